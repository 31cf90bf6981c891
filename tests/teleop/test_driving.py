"""Laws of the filter of an arm on a base that drives: a base that nobody drives stands still."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.core.station import SafetyLimits
from gaploop.teleop.safety import BASE_M_S2, DrivingFilter

BOUNDS = np.array([[-1.0, 1.0], [-2.0, 0.5], [-0.2, 0.2], [-1.0, 1.0]])
PERIOD_S = 0.01
anything = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-2.0, 2.0)
requests = st.lists(st.lists(anything, min_size=0, max_size=5), min_size=1, max_size=30)
NONE = np.full(4, np.nan)
STATE = FollowerState(0.0, np.zeros(4), NONE, NONE, NONE, NONE, NONE, np.zeros(4, dtype=np.int64))


def fresh() -> DrivingFilter:
    limits = SafetyLimits()
    safety = DrivingFilter(limits, BOUNDS, PERIOD_S, speeds=2)
    safety.reset(np.array([0.0, 0.0, 0.15, -0.5]))  # it was driving when the take began
    return safety


def drive(safety: DrivingFilter, turns: int, q: tuple[float, ...], start_s: float = 0.0) -> float:
    for turn in range(turns):
        now_s = start_s + turn * PERIOD_S
        safety.filter(LeaderSample(now_s, np.array(q)), STATE, now_s)
    return start_s + turns * PERIOD_S


@settings(deadline=None, max_examples=60)
@given(requests)
def test_a_base_never_goes_faster_than_allowed_nor_gains_speed_at_once(
    asked: list[list[float]],
) -> None:
    safety = fresh()
    before: FloatArray = np.zeros(2)
    for turn, q in enumerate(asked):
        now_s = turn * PERIOD_S
        command = safety.filter(LeaderSample(now_s, np.array(q)), STATE, now_s)
        speed = command.sent_rad[2:]
        assert np.isfinite(command.sent_rad).all()
        assert (np.abs(speed) <= BOUNDS[2:, 1] + 1e-12).all()
        gained = np.abs(speed) - np.where(speed * before > 0, np.abs(before), 0.0)
        assert (gained <= BASE_M_S2 * PERIOD_S + 1e-12).all()
        before = speed


def test_a_base_gets_where_it_is_asked() -> None:
    safety = fresh()
    drive(safety, 200, (0.0, 0.0, 0.1, -0.7))
    np.testing.assert_allclose(safety.sent_rad[2:], [0.1, -0.7])
    drive(safety, 1, (0.0, 0.0, 0.05, -0.7), 2.0)
    assert safety.sent_rad[2] == 0.05  # slower at once


def test_whatever_stops_the_arm_stops_the_base_at_once() -> None:
    for stop in ("estop", "hold", "stale", "nothing asked", "reset"):
        safety = fresh()
        now_s = drive(safety, 100, (0.0, 0.0, 0.1, 0.5))
        assert safety.sent_rad[2] > 0.0
        if stop == "estop":
            safety.estop()
            drive(safety, 1, (0.0, 0.0, 0.1, 0.5), now_s)
        elif stop == "hold":
            assert (safety.hold().sent_rad[2:] == 0.0).all()
        elif stop == "stale":
            old = LeaderSample(now_s, np.array([0.0, 0.0, 0.1, 0.5]))
            late_s = now_s + 10.0
            command = safety.filter(old, STATE, late_s)
            assert command.reasons & SafetyReason.STALE_LEADER
        elif stop == "nothing asked":
            drive(safety, 1, (0.0, 0.0, math.nan, 0.5), now_s)
        else:
            safety.reset(np.array([0.0, 0.0, 0.1, 0.5]))
        assert (safety.sent_rad[2:] == 0.0).all(), stop


def test_after_a_trip_it_stands_until_the_operator_clears_it() -> None:
    safety = fresh()
    safety.estop()
    now_s = drive(safety, 50, (0.0, 0.0, 0.1, 0.5))
    assert safety.tripped
    assert safety.sent_rad[2:] == pytest.approx(0.0)
    safety.clear()
    drive(safety, 100, (0.0, 0.0, 0.1, 0.0), now_s)
    assert safety.sent_rad[2] == pytest.approx(0.1)
