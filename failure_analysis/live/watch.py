"""Watches a running take: a sink that keeps its failure score and alarms once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray, Tick
from gaploop.failure_analysis.live.score import (
    EVERY_S,
    FEATURES,
    FailureScore,
    SignalTrack,
    explain,
)
from gaploop.failure_analysis.live.stream import LiveSignals
from gaploop.failure_analysis.views.policy_view import overlap_rms

NAN: Final = float("nan")
FALSE_ALARMS: Final = 0.05
"""Share of the takes that go well that may alarm."""
ALARM: Final = "failure_alarm"
"""Name of the event in a take's events."""

type Planned = Callable[[], FloatArray | None]
"""Returns the policy's newest plan, shape (h, n_joints), LeRobot units; the same array until it
plans anew."""


@dataclass(frozen=True)
class Alarm:
    """A take that looks like failing.

    Attributes:
        t_s: when, since the take began [s].
        score: standard deviations of a successful take's score at that time.
        p_value: share of successful takes whose score ever gets as high.
        why: the deviation that adds most, in words.
    """

    t_s: float
    score: float
    p_value: float
    why: str


class PlanChange:
    """How much a policy's plans differ from those before, so far.

    Args:
        planned: the policy's newest plan.
        arm: columns of the arm's joints, in degrees.
    """

    def __init__(self, planned: Planned, arm: Sequence[int]) -> None:
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
        return float(np.median(self._differences)) if self._differences else NAN


class SignalTracker:
    """A sink that keeps the live signals along a take, every 0.1 s.

    Args:
        joints: the arm's joint names.
        control_hz: turns of the loop per second [Hz].
        fps: policy frames per second [Hz].
        planned: the policy's newest plan in degrees, if it plans several steps.
    """

    def __init__(
        self, joints: Sequence[str], control_hz: float, fps: float, planned: Planned | None = None
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
            self.values["chunk_disagreement_rad"] = self._plan.median_rad if self._plan else NAN
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

    Args:
        score: fitted to takes that went well.
        joints: the arm's joint names.
        control_hz: turns of the loop per second [Hz].
        fps: policy frames per second [Hz].
        planned: the policy's newest plan in degrees.
        false_alarms: share of takes that go well that may alarm.
        on_alarm: called at the alarm.
    """

    def __init__(
        self,
        score: FailureScore,
        joints: Sequence[str],
        control_hz: float,
        fps: float,
        *,
        planned: Planned | None = None,
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
