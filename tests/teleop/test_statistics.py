"""Statistics of a loop: percentiles within a bin, trips counted once, nothing lost on NaN."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.messages import FollowerState, LeaderSample, SafeCommand, SafetyReason, Tick
from gaploop.core.station import SafetyLimits
from gaploop.teleop.loop import Histogram, LoopStatistics

PERIOD_S = 0.005


def tick(index: int, *, reasons: SafetyReason = SafetyReason.NONE, period_s: float = 0.005) -> Tick:
    zero = np.zeros(2)
    state = FollowerState(0.0, zero, zero, zero, zero, zero, zero, np.zeros(2, dtype=np.int64))
    asked = SafeCommand(zero, zero, reasons)
    sample = LeaderSample(0.0, zero)
    first = math.nan if index == 0 else period_s
    return Tick(index, index * PERIOD_S, first, 1e-4, sample, asked, state, {}, latency_s=0.001)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_within_two_percent_of_the_exact_one(
    values: list[float], share: float
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    assert exact * 0.98 <= histogram.quantile_s(share) <= exact * 1.02
    assert histogram.worst_s == max(values)


def test_nothing_measured_is_nan_and_extremes_fit() -> None:
    histogram = Histogram()
    histogram.add(math.nan)
    assert math.isnan(histogram.quantile_s(0.5))
    for value in (0.0, 1e9, -0.5):
        histogram.add(value)
    assert histogram.worst_s == 1e9


def test_a_leader_never_heard_of_is_infinitely_late_and_breaks_nothing() -> None:
    """Killed before its first reading, its trip was lost and the command ended with 0."""
    histogram = Histogram()
    histogram.add(math.inf)
    histogram.add(0.002)
    assert histogram.worst_s == 0.002


def test_figures_of_a_steady_loop() -> None:
    statistics = LoopStatistics(("a", "b"), PERIOD_S, SafetyLimits())
    for index in range(401):
        statistics.tick(tick(index))
    figures = statistics.figures()
    assert figures.turns == 401
    assert abs(figures.rate_hz - 200.0) < 1e-6
    assert figures.period_error.max_s < 1e-12
    assert abs(figures.latency.p50_s / 0.001 - 1) < 0.02


def test_a_missed_turn_counts_as_error_and_as_missed() -> None:
    statistics = LoopStatistics(("a", "b"), PERIOD_S, SafetyLimits())
    statistics.tick(tick(0))
    statistics.tick(dataclasses.replace(tick(1, period_s=0.015), overruns=2))
    figures = statistics.figures()
    assert figures.missed == 2
    assert abs(figures.period_error.max_s - 0.010) < 1e-12


def test_each_trip_is_kept_once_however_long_it_lasts() -> None:
    statistics = LoopStatistics(("a", "b"), PERIOD_S, SafetyLimits())
    stop = SafetyReason.ESTOP | SafetyReason.TRIPPED
    for index, reasons in enumerate([SafetyReason.NONE, stop, stop, SafetyReason.NONE, stop]):
        statistics.tick(tick(index, reasons=reasons))
    figures = statistics.figures()
    assert [trip.reason for trip in figures.trips] == [SafetyReason.ESTOP] * 2
    assert figures.changes["tripped"] == 3
