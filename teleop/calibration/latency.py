"""From command to motion: how late an arm follows, by cross-correlation, with an interval.

The velocities of what was sent and of what the servos report are shifted against each other
until they agree best. The peak is found between samples. What is measured is dead time plus the
servo's own lag, as one shift. Two things that are the loop's and not the arm's are taken off: a
goal is held until the next one, half a period on average; and it leaves `loop.latency_s` after
its turn's positions were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.ndimage import gaussian_filter1d

from gaploop.core.errors import UnusableInputError
from gaploop.core.telemetry import Telemetry
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.correlation import (
    EARLIEST_S,
    INTERVAL,
    LATEST_S,
    SEGMENT_S,
    Lag,
    Pieces,
    correlate,
    draws,
    lag_of,
    resampled,
)

MIN_MOTION_RAD: Final = 0.03
"""A piece in which a joint was sent through less than this says nothing (20 ticks of 4096)."""
MIN_CORRELATION: Final = 0.8
MIN_SEGMENTS: Final = 6
SMOOTH_S: Final = 0.012
"""Both signals are smoothed alike: it moves no peak, and encoder steps make no velocity."""


@dataclass(frozen=True)
class JointMotion:
    """What was sent to joints and where they were, at one control rate.

    Attributes:
        t_s: time of each turn [s], shape (n,), rising.
        sent_rad: goals [rad], shape (n, n_joints).
        position_rad: measured positions [rad], shape (n, n_joints), NaN where none came.
        joint_names: of the columns.
        send_delay_s: from reading the positions to sending the goals of the same turn [s].
    """

    t_s: FloatArray
    sent_rad: FloatArray
    position_rad: FloatArray
    joint_names: tuple[str, ...]
    send_delay_s: float = 0.0

    @classmethod
    def of(cls, telemetry: Telemetry, arm: str = "") -> JointMotion:
        """Return one arm's motion in a control-rate record.

        Args:
            telemetry: has `sent_rad` and `position_rad` columns.
            arm: its name; the only one that is commanded unless given.

        Raises:
            UnusableInputError: no such arm, or several and none named.
        """
        arms = [a for a in telemetry.arms() if np.isfinite(telemetry.stack(a, "sent_rad")).any()]
        if not arm and len(arms) == 1:
            arm = arms[0]
        if arm not in arms:
            known = ", ".join(arms) or "none"
            raise UnusableInputError(
                f"The telemetry has no commands to an arm {arm!r} (arms: {known}). Name one with "
                "--arm_name."
            )
        delay = telemetry.columns.get("loop.latency_s", np.empty(0))
        known_delay = delay[np.isfinite(delay)]
        return cls(
            telemetry.t_s,
            telemetry.stack(arm, "sent_rad"),
            telemetry.stack(arm, "position_rad"),
            telemetry.joints(arm),
            float(np.median(known_delay)) if len(known_delay) else 0.0,
        )


@dataclass(frozen=True)
class LatencyResult:
    """How late an arm follows.

    Attributes:
        overall: the median joint.
        joints: joint to its own lag.
        skipped: joint to why it says nothing.
        rate_hz: of the record [Hz].
    """

    overall: Lag
    joints: dict[str, Lag]
    skipped: dict[str, str]
    rate_hz: float

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            **self.overall.to_json(),
            "rate_hz": self.rate_hz,
            "joints": {name: lag.to_json() for name, lag in self.joints.items()},
        }


def measure_latency(motions: Sequence[JointMotion], seed: int = 0) -> LatencyResult:
    """Measure how late an arm follows what it is sent.

    Args:
        motions: records of the same arm, one or more; a chirp of 20 s is plenty.
        seed: draws the bootstrap.

    Raises:
        UnusableInputError: too little motion, or no joint follows what it is sent.
    """
    names = motions[0].joint_names
    period_s = float(np.median(np.concatenate([np.diff(m.t_s) for m in motions])))
    if not period_s > 0:
        raise UnusableInputError("The record has no two turns at different times. Record again.")
    # A held goal acts like one that is sent half a period later.
    held_s = period_s / 2 + float(np.median([m.send_delay_s for m in motions]))
    pieces: dict[str, Pieces] = {}
    skipped: dict[str, str] = {}
    for j, name in enumerate(names):
        found = [_pieces(m.t_s, m.sent_rad[:, j], m.position_rad[:, j], period_s) for m in motions]
        joined = Pieces.join(found)
        why = _why_not(joined)
        if why:
            skipped[name] = why
        else:
            pieces[name] = joined
    if not pieces:
        words = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise UnusableInputError(
            f"No joint tells the latency ({words}). Move every joint by 5° or more for 10 s: "
            "gaploop calibrate latency --robot.type=… does it."
        )
    return _pooled(pieces, skipped, period_s, held_s, seed)


def _pieces(t_s: FloatArray, sent: FloatArray, position: FloatArray, period_s: float) -> Pieces:
    grid_s = np.arange(t_s[0], t_s[-1], period_s)
    goal = resampled(t_s, sent, grid_s)

    def moving(piece: slice) -> bool:
        part = goal[piece]
        return bool(np.isfinite(part).all() and np.ptp(part) >= MIN_MOTION_RAD)

    response = resampled(t_s, position, grid_s)
    return correlate(_velocity(goal, period_s), _velocity(response, period_s), moving, period_s)


def _velocity(values: FloatArray, period_s: float) -> FloatArray:
    sigma = max(SMOOTH_S / period_s, 1.0)
    smooth = gaussian_filter1d(values, sigma, mode="nearest")
    return np.asarray(np.gradient(smooth, period_s), dtype=np.float64)


def _why_not(pieces: Pieces) -> str:
    if len(pieces.driver) < MIN_SEGMENTS:
        return (
            f"moved in {len(pieces.driver) * SEGMENT_S:.0f} s, "
            f"{MIN_SEGMENTS * SEGMENT_S:.0f} s are needed"
        )
    best_s, correlation = pieces.peak()
    if not correlation >= MIN_CORRELATION:
        return f"doesn't follow (correlation {np.nan_to_num(correlation):.2f}): blocked or limp?"
    if not EARLIEST_S + 2 * pieces.period_s < best_s < LATEST_S - 2 * pieces.period_s:
        return f"no peak between {EARLIEST_S:g} and {LATEST_S:g} s"
    return ""


def _pooled(
    pieces: dict[str, Pieces],
    skipped: dict[str, str],
    period_s: float,
    held_s: float,
    seed: int,
) -> LatencyResult:
    joints = {name: lag_of(part, seed + n, held_s) for n, (name, part) in enumerate(pieces.items())}
    drawn = [
        part.peaks(draws(len(part.driver), seed + n))[0] for n, part in enumerate(pieces.values())
    ]
    low, high = np.percentile(np.median(drawn, axis=0) - held_s, INTERVAL)
    overall = Lag(
        float(np.median([lag.latency_s for lag in joints.values()])),
        (float(low), float(high)),
        float(np.median([lag.correlation for lag in joints.values()])),
        sum(lag.segments for lag in joints.values()),
    )
    return LatencyResult(overall, joints, skipped, 1.0 / period_s)
