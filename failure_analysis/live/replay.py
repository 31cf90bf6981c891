"""A recorded take as the loop's turns, so that what watches rollouts can be fitted to takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.take import Take
from gaploop.core.types import FloatArray, FollowerState, LeaderSample, SafeCommand, Tick
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.live.score import FailureScore, SignalTrack, fit_score
from gaploop.failure_analysis.live.watch import SignalTracker
from gaploop.failure_analysis.views.view import TakeView

SHIPPED: Final = Path(__file__).with_name("so101_cell.json")
"""The score of the embedded cell with the shipped policy.

`python -m benchmarks detection` rebuilds it.
"""


def shipped_score() -> FailureScore:
    """Return the score that ships: weights learned from several policies' failures in the cell."""
    return FailureScore.load(SHIPPED)


def score_of(takes: Iterable[Take], name: str) -> FailureScore:
    """Fit a score to a station's own takes that went well, with the weights that ship.

    Args:
        takes: of one policy on one station; those that failed are left out.
        name: what they are.

    Raises:
        UnusableInputError: too few of them.
    """
    tracks = [track_of(t) for t in takes if t.outcome is Outcome.SUCCESS]
    return fit_score([t for t in tracks if len(t.t_s)], shipped_score().weights, name)


def track_of(take: Take) -> SignalTrack:
    """Return the live signals along a recorded take."""
    motion = TakeView(take, images=False).motion
    if motion is None:
        return SignalTrack(np.empty(0), np.empty((0, 0)), failed=True)
    tracker = SignalTracker(motion.joints, motion.rate_hz, take.info.fps)
    for tick in turns(take):
        tracker.tick(tick)
    return tracker.track(take.outcome is not Outcome.SUCCESS)


def turns(take: Take) -> Iterator[Tick]:
    """Yield a take's turns: commands, readings, currents, loads, and the scene at its frames."""
    view = TakeView(take, images=False)
    motion = view.motion
    if motion is None:
        return
    unknown = np.full(len(motion.joints), np.nan)
    loads = _loads(take, motion.joints)
    scene, frames_s = view.scene, take.frames.t_s
    frame = 0
    for k, t_s in enumerate(motion.t_s):
        is_frame = frame < len(frames_s) and frames_s[frame] <= t_s + 1e-4
        state = FollowerState(
            float(t_s), motion.position_rad[k], unknown, motion.current_a[k],
            loads[k] if loads is not None else unknown, unknown, unknown,
            np.zeros(len(motion.joints), dtype=np.int64),
        )  # fmt: skip
        sent = motion.sent_rad[k]
        yield Tick(
            index=k,
            t_s=float(t_s),
            period_s=1.0 / motion.rate_hz,
            lateness_s=0.0,
            leader=LeaderSample(float(t_s), sent),
            command=SafeCommand(sent, sent),
            state=state,
            frames={},
            environment_state=scene[frame] if is_frame and scene is not None else None,
            policy_frame=is_frame,
        )
        frame += is_frame


def _loads(take: Take, joints: tuple[str, ...]) -> FloatArray | None:
    record = take.telemetry
    for arm in sorted(record.arms(), key=lambda name: name != "follower"):
        if record.joints(arm) == joints:
            return record.stack(arm, "load_pct")
    return None
