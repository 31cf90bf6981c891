"""What a running loop did, counted turn by turn: a subscriber that costs microseconds a turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import NO_REPLY, Image, SafetyReason, Tick
from gaploop.core.station import SafetyLimits

RECENT_TURNS: Final = 1000
"""What "now" means for the rate and the percentiles on the screen: five seconds at 200 Hz."""

_GROWTH: Final = math.log(1.01)  # a bin of the histogram is 1 % wide
_SMALLEST_S: Final = 1e-7
_BINS: Final = 2048  # 1e-7 s × 1.01^2048 = 70 s


class Histogram:
    """Counts of durations in bins 1 % wide: percentiles of any number of turns in 16 KB."""

    def __init__(self) -> None:
        self._counts = [0] * _BINS
        self.worst_s = math.nan

    def add(self, duration_s: float) -> None:
        """Count one duration [s], a negative one by its size; what isn't finite is passed over."""
        size_s = abs(duration_s)
        if not math.isfinite(size_s):
            return
        place = int(math.log(size_s / _SMALLEST_S) / _GROWTH) if size_s > _SMALLEST_S else 0
        self._counts[min(place, _BINS - 1)] += 1
        if not size_s <= self.worst_s:
            self.worst_s = size_s

    def quantile_s(self, share: float) -> float:
        """Return the duration [s] that `share` of those counted don't exceed; NaN without any."""
        total = sum(self._counts)
        if not total:
            return math.nan
        place = int(np.searchsorted(np.cumsum(self._counts), share * total))
        return float(min(_SMALLEST_S * math.exp(_GROWTH * (place + 1)), self.worst_s))


@dataclass(frozen=True)
class DurationSpread:
    """Percentiles of a duration [s]; NaN where nothing was measured."""

    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class Trip:
    """The safety filter tripped: when since the start [s], why, and which joints show it."""

    t_s: float
    reason: SafetyReason
    joints: tuple[str, ...]


@dataclass(frozen=True)
class Figures:
    """How the loop has run.

    Attributes:
        missed: turns skipped because the loop ran late.
        duration_s: from the first turn to the last, pauses after a trip left out [s].
        period_error: how far the time between two turns was from what was asked.
        lateness: how late turns began against their deadline.
        latency: from the leader's sample to the goals handed over.
        changes: reason to turns in which the safety filter changed the command for it.
        silent: joint to turns in which its servo didn't answer.
    """

    turns: int
    missed: int
    duration_s: float
    rate_hz: float
    period_error: DurationSpread
    lateness: DurationSpread
    latency: DurationSpread
    changes: dict[str, int] = field(default_factory=dict)
    silent: dict[str, int] = field(default_factory=dict)
    trips: tuple[Trip, ...] = ()


class LoopStatistics:
    """Subscribes to a loop. One thread calls `tick`; any other may read at the same time."""

    def __init__(self, joint_names: tuple[str, ...], period_s: float, limits: SafetyLimits) -> None:
        self._joints, self._period_s, self._limits = joint_names, period_s, limits
        self._period_error, self._lateness, self._latency = Histogram(), Histogram(), Histogram()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_TURNS)
        self._changes: dict[SafetyReason, int] = {}
        self._silent = np.zeros(len(joint_names), dtype=np.int64)
        self._trips: list[Trip] = []
        self._tripped = SafetyReason.NONE
        self._turns = self._missed = 0
        self._duration_s = 0.0
        self.latest: Tick | None = None
        self.pictures: Mapping[str, Image] = {}
        """Camera to its newest picture; none of depth."""

    def tick(self, tick: Tick) -> None:
        """Count one turn."""
        self._turns += 1
        self._missed += tick.overruns
        if tick.period_s == tick.period_s:  # the first turn of a run has none
            self._period_error.add(tick.period_s - self._period_s)
            self._recent.append((tick.period_s, tick.latency_s))
            self._duration_s += tick.period_s
        self._lateness.add(tick.lateness_s)
        self._latency.add(tick.latency_s)
        reasons = tick.command.reasons
        if reasons or self._tripped:
            for reason in reasons:
                self._changes[reason] = self._changes.get(reason, 0) + 1
            if not reasons & SafetyReason.TRIPPED:
                self._tripped = SafetyReason.NONE
            elif not self._tripped:
                self._tripped = reasons & ~SafetyReason.TRIPPED
                self._trips.append(Trip(tick.t_s, self._tripped, self._blamed(tick)))
        status = tick.state.status
        if any(status.tolist()):
            self._silent += (status & NO_REPLY) != 0
        self.latest = tick
        if tick.frames:
            self.pictures = {n: f.image for n, f in tick.frames.items() if f.image.ndim == 3}

    def _blamed(self, tick: Tick) -> tuple[str, ...]:
        """Return the joints that show why the filter tripped, as far as that can be told."""
        cause, state, limits = self._tripped, tick.state, self._limits
        silent = (state.status & NO_REPLY) != 0
        guilty = np.zeros(len(self._joints), dtype=np.bool_)
        if cause & SafetyReason.LOST_SERVO:
            guilty |= silent
        if cause & SafetyReason.HARDWARE_ERROR:
            guilty |= (state.status & ~NO_REPLY) != 0
        if cause & SafetyReason.OVER_TEMPERATURE:
            guilty |= state.temperature_c > limits.temperature_c
        if cause & SafetyReason.STALL:
            guilty |= np.abs(state.current_a) > limits.stall_current_a
        behind: NDArray[np.bool_] = np.zeros_like(guilty)
        if cause & SafetyReason.NOT_FOLLOWING:
            behind = np.abs(tick.command.sent_rad - state.position_rad) > limits.following_rad
        named = [k for which in (guilty, behind & ~guilty) for k in np.flatnonzero(which)]
        return tuple(self._joints[k] for k in named)

    def now(self) -> tuple[float, DurationSpread, DurationSpread]:
        """Return rate [Hz], period error and latency of the last few seconds."""
        recent = np.array(list(self._recent)).reshape(-1, 2)
        mean_s = float(recent[:, 0].mean()) if len(recent) else math.nan
        rate_hz = 1.0 / mean_s if mean_s > 0 else math.nan
        return rate_hz, _spread(recent[:, 0] - self._period_s), _spread(recent[:, 1])

    def figures(self) -> Figures:
        """Return what was counted since the start."""
        rate_hz = (self._turns - 1) / self._duration_s if self._duration_s > 0 else math.nan
        silent = zip(self._joints, self._silent.tolist(), strict=True)
        return Figures(
            self._turns,
            self._missed,
            self._duration_s,
            rate_hz,
            _percentiles(self._period_error),
            _percentiles(self._lateness),
            _percentiles(self._latency),
            {str(r.name).lower(): n for r, n in list(self._changes.items())},
            {joint: count for joint, count in silent if count},
            tuple(self._trips),
        )


def _percentiles(histogram: Histogram) -> DurationSpread:
    p50_s, p99_s = histogram.quantile_s(0.5), histogram.quantile_s(0.99)
    return DurationSpread(p50_s, p99_s, histogram.worst_s)


def _spread(values_s: NDArray[np.float64]) -> DurationSpread:
    sizes_s = np.abs(values_s[np.isfinite(values_s)])
    if not len(sizes_s):
        return DurationSpread(math.nan, math.nan, math.nan)
    p50_s, p99_s = np.quantile(sizes_s, (0.5, 0.99))
    return DurationSpread(float(p50_s), float(p99_s), float(sizes_s.max()))
