"""Watches a running take: a sink that keeps its failure score and alarms once.

A recorded take is turned into the loop's turns again, so that the score is fitted to takes by the
same code that watches rollouts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafeCommand, Tick
from gaploop.core.protocols import Policy, TakeSink
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.sources import load_takes
from gaploop.failure_analysis.live.score import (
    EVERY_S,
    FEATURES,
    FailureScore,
    SignalTrack,
    explain,
    fit_score,
)
from gaploop.failure_analysis.live.signals import LiveSignals
from gaploop.failure_analysis.views.policy_view import overlap_rms
from gaploop.failure_analysis.views.view import TakeView

log = logging.getLogger(__name__)

SHIPPED: Final = Path(__file__).with_name("so101_cell.json")
"""The score of the embedded cell with the shipped policy.

`python -m benchmarks detection` rebuilds it.
"""
FALSE_ALARMS: Final = 0.05
"""Share of the takes that go well that may alarm."""
ALARM: Final = "failure_alarm"
"""Name of the event in a take's events."""

type PlannedChunk = Callable[[], FloatArray | None]
"""Returns the policy's newest plan, shape (h, n_joints), LeRobot units; the same array until it
plans anew."""


@dataclass(frozen=True)
class Alarm:
    """A take that looks like failing, so long after it began.

    The score is in standard deviations of a successful take's at that time; the share `p_value` of
    those ever get as high.
    """

    t_s: float
    score: float
    p_value: float
    why: str


class PlanChange:
    """How much a policy's plans of the arm's joints, in degrees, differ from those before."""

    def __init__(self, planned: PlannedChunk, arm: Sequence[int]) -> None:
        self._planned, self._arm = planned, list(arm)
        self._before: FloatArray | None = None
        self._frames = 0
        self._differences: list[float] = []

    def frame(self) -> None:
        """Take note of a policy frame."""
        self._frames += 1
        plan = self._planned()
        if plan is None or plan is self._before:
            return
        if self._before is not None:
            now, before = plan[:, self._arm], self._before[:, self._arm]
            self._differences.append(math.radians(overlap_rms(now, before, self._frames)))
        self._before, self._frames = plan, 0

    @property
    def median_rad(self) -> float:
        """Median rms difference of overlapping plans so far [rad]."""
        return float(np.median(self._differences)) if self._differences else np.nan


class SignalTracker:
    """A sink that keeps the live signals along a take, every 0.1 s.

    `planned` gives the policy's newest plan in degrees, if it plans several steps.
    """

    def __init__(
        self,
        joints: Sequence[str],
        control_hz: float,
        fps: float,
        planned: PlannedChunk | None = None,
    ) -> None:
        self._signals = LiveSignals(joints, control_hz, fps)
        arm = [i for i, name in enumerate(joints) if "gripper" not in name]
        self._plan = PlanChange(planned, arm) if planned is not None else None
        self._every = max(1, round(EVERY_S * fps))
        self._frames = 0
        self.t_s: list[float] = []
        self.values: dict[str, float] = {}
        self._rows: list[list[float]] = []

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        self._signals.tick(tick)
        if not tick.policy_frame:
            return
        self._frames += 1
        if self._plan is not None:
            self._plan.frame()
        if self._frames % self._every == 0:
            self.values = self._signals.values()
            self.values["chunk_disagreement_rad"] = self._plan.median_rad if self._plan else np.nan
            self.t_s.append(tick.t_s)
            self._rows.append([self.values[name] for name in FEATURES])
            self.sampled(tick.t_s)

    def sampled(self, t_s: float) -> None:
        """Called after every sample; for whoever scores them."""

    def track(self, failed: bool) -> SignalTrack:
        """Return what was kept."""
        return SignalTrack(
            np.array(self.t_s), np.array(self._rows).reshape(-1, len(FEATURES)), failed
        )


class FailureWatch(SignalTracker):
    """Scores a running take and alarms once where the score is too high.

    So it does in the share `false_alarms` of the takes that go well.
    """

    def __init__(
        self,
        score: FailureScore,
        joints: Sequence[str],
        control_hz: float,
        fps: float,
        *,
        planned: PlannedChunk | None = None,
        false_alarms: float = FALSE_ALARMS,
        on_alarm: Callable[[Alarm], None] = lambda _alarm: None,
    ) -> None:
        super().__init__(joints, control_hz, fps, planned)
        self._model, self._threshold = score, score.threshold(false_alarms)
        self._on_alarm = on_alarm
        self._over = False
        self.score = self.peak = 0.0
        self.alarm: Alarm | None = None

    def tick(self, tick: Tick) -> None:
        """Take note of one turn; once a person has taken over, the policy's failing is known."""
        if not self._over:
            self._over = tick.leader.intervention
            super().tick(tick)

    def sampled(self, t_s: float) -> None:
        """Score the take so far."""
        row = np.array([self._rows[-1]])
        times = np.array([t_s])
        deviations = self._model.usual.deviations(times, row)
        self.score = float(self._model.standardised(times, deviations)[0])
        self.peak = max(self.peak, self.score)
        if self.alarm is None and self.score > self._threshold:
            why = explain(self._model, t_s, self.values)
            self.alarm = Alarm(t_s, self.score, self._model.p_value(self.score), why)
            self._on_alarm(self.alarm)


class SessionWatch:
    """Watches every attempt of a session.

    Args:
        score: says how unusual an attempt is; None where nothing is watched.
        planned: the policy's newest plan, in degrees; None where it doesn't show one.
    """

    def __init__(
        self,
        score: FailureScore | None,
        planned: PlannedChunk | None,
    ) -> None:
        self.score, self._planned = score, planned
        self.alarms: dict[str, Alarm] = {}
        """Take to its alarm."""

    def __call__(self, rig: Any, writer: Any) -> Sequence[TakeSink]:
        """Return what watches an attempt that begins, given its rig and its journal writer."""
        if self.score is None:
            return ()

        def alarmed(alarm: Alarm) -> None:
            self.alarms[writer.header.info.uid] = alarm
            said = {"score": alarm.score, "p_value": alarm.p_value, "why": alarm.why}
            writer.event(alarm.t_s, ALARM, **said)
            log.warning(
                "This attempt has looked like a failure since %.1f s: %s (p = %.2g).",
                alarm.t_s, alarm.why, alarm.p_value,
            )  # fmt: skip

        follower = rig.follower
        watch = FailureWatch(
            self.score,
            follower.joint_names,
            rig.control_hz,
            rig.fps,
            planned=self._planned if follower.units.startswith("deg") else None,
            on_alarm=alarmed,
        )
        return (watch,)


def session_watch(watch: str, policy: Policy, policy_id: str, is_embedded: bool) -> SessionWatch:
    """Return what watches a session's attempts.

    Args:
        watch: a folder of takes that went well, auto or never.
        policy_id: the id of the policy that drives.
        is_embedded: in the embedded cell.

    Raises:
        UnusableInputError: too few successful takes.
    """
    score = None
    if watch == "auto":
        shipped = shipped_score() if is_embedded else None
        score = shipped if shipped is not None and shipped.policy == policy_id else None
    elif watch != "never":
        score = score_of(load_takes(Path(watch)), watch)
    if score is not None and math.isinf(score.threshold(FALSE_ALARMS)):
        raise UnusableInputError(
            f"{score.name}: {len(score.peaks)} takes that went well are too few for a false-alarm "
            f"rate of {FALSE_ALARMS:g}: record {math.ceil(1 / FALSE_ALARMS)}."
        )
    return SessionWatch(score, (lambda: policy.chunk) if hasattr(policy, "chunk") else None)


def shipped_score() -> FailureScore:
    """Return the score that ships: weights learned from several policies' failures in the cell."""
    return FailureScore.load(SHIPPED)


def score_of(takes: Iterable[Take], name: str) -> FailureScore:
    """Fit a score to takes of one policy and station that went well, with the weights that ship.

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
    record, unknown = take.telemetry, np.full(len(motion.joints), np.nan)
    named = [arm for arm in record.arms() if record.joints(arm) == motion.joints]
    named.sort(key=lambda arm: arm != "follower")
    loads = record.stack(named[0], "load_pct") if named else None
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
