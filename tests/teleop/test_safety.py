"""Laws of the safety filter: whatever is asked, what is sent is safe."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.station import SafetyLimits
from gaploop.core.types import FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.teleop.safety import SafetyFilter

LIMITS = SafetyLimits()
BOUNDS = np.array([[-1.0, 1.0], [-2.0, 0.5], [0.0, 0.0]])
PERIOD_S = 0.01
anything = st.floats(allow_nan=True, allow_infinity=True)
near = st.floats(-3.0, 3.0)
requests = st.lists(st.lists(anything | near, min_size=3, max_size=3), min_size=1, max_size=40)


def state(position: Sequence[float] = (0.0, 0.0, 0.0), **given_: Sequence[float]) -> FollowerState:
    values: dict[str, FloatArray] = {
        name: np.full(3, np.nan)
        for name in ("velocity_rad_s", "current_a", "load_pct", "temperature_c", "voltage_v")
    }
    values |= {name: np.array(value, dtype=float) for name, value in given_.items()}
    status = np.asarray(values.pop("status", np.zeros(3))).astype(np.int64)
    return FollowerState(0.0, np.array(position), **values, status=status)


def fresh(limits: SafetyLimits = LIMITS, start: Sequence[float] = (0.0, 0.0, 0.0)) -> SafetyFilter:
    safety = SafetyFilter(limits, BOUNDS, PERIOD_S)
    safety.reset(np.array(start))
    return safety


def send(
    safety: SafetyFilter,
    q: Sequence[float] | FloatArray,
    now_s: float = 0.0,
    reported: FollowerState | None = None,
) -> tuple[FloatArray, SafetyReason]:
    command = safety.filter(LeaderSample(now_s, np.array(q)), reported or state(), now_s)
    return command.sent_rad, command.reasons


@settings(max_examples=300, deadline=None)
@given(requests, st.lists(near, min_size=3, max_size=3), st.sets(st.integers(0, 39)))
def test_output_is_finite_and_within_position_velocity_and_acceleration_limits(
    asked: list[list[float]], start: list[float], stops: set[int]
) -> None:
    safety = fresh(start=start)
    step_rad, gain_rad = LIMITS.velocity_rad_s * PERIOD_S, LIMITS.acceleration_rad_s2 * PERIOD_S**2
    last: FloatArray = safety.sent_rad
    last_step: FloatArray = np.zeros(3)
    for turn, q in enumerate(asked):
        if turn in stops:
            safety.estop()
        sent, _ = send(safety, q, turn * PERIOD_S)
        step = sent - last
        assert np.isfinite(sent).all()
        assert (sent >= BOUNDS[:, 0]).all()
        assert (sent <= BOUNDS[:, 1]).all()
        assert (np.abs(step) <= step_rad + 1e-12).all()
        growth = np.abs(step) - np.where(step * last_step > 0, np.abs(last_step), 0.0)
        assert (growth <= gain_rad + 1e-12).all()
        last, last_step = sent, step


@settings(max_examples=100, deadline=None)
@given(requests)
def test_a_reason_is_given_exactly_when_the_command_was_changed(asked: list[list[float]]) -> None:
    safety = fresh()
    for turn, q in enumerate(asked):
        sent, reasons = send(safety, q, turn * PERIOD_S)
        assert bool(reasons) == (not np.allclose(sent, q, rtol=0, atol=1e-9))


def test_a_reachable_target_is_reached_and_never_overshot() -> None:
    safety, target = fresh(), np.array([0.7, -1.9, 0.0])
    for turn in range(200):
        sent, _ = send(safety, target, turn * PERIOD_S)
        assert (np.abs(sent) <= np.abs(target) + 1e-12).all()
    np.testing.assert_allclose(sent, target)


def test_not_finite_holds_all_joints_and_says_so() -> None:
    safety = fresh()
    before, _ = send(safety, [0.005, 0.0, 0.0])
    sent, reasons = send(safety, [0.008, math.nan, 0.0], PERIOD_S)
    np.testing.assert_array_equal(sent, before)
    assert reasons == SafetyReason.NON_FINITE
    assert not safety.tripped


@pytest.mark.parametrize(
    ("reported", "cause"),
    [
        (state(status=[0, 32, 0]), SafetyReason.HARDWARE_ERROR),
        (state(temperature_c=[30, 66, math.nan]), SafetyReason.OVER_TEMPERATURE),
    ],
)
def test_a_trip_latches_until_the_operator_clears_it(
    reported: FollowerState, cause: SafetyReason
) -> None:
    safety = fresh()
    held, reasons = send(safety, [0.1, 0.0, 0.0], 0.0, reported)
    assert reasons == SafetyReason.TRIPPED | cause
    for turn in range(1, 20):
        sent, reasons = send(safety, [0.5, 0.0, 0.0], turn * PERIOD_S)
        np.testing.assert_array_equal(sent, held)
        assert reasons & SafetyReason.TRIPPED
    safety.reset(np.zeros(3))
    assert safety.tripped == cause
    safety.clear()
    assert not safety.tripped
    sent, _ = send(safety, [0.5, 0.0, 0.0], 1.0)
    assert sent[0] > held[0]


def test_stall_current_trips_only_when_it_lasts() -> None:
    stalled, easy = state(current_a=[0, 2.6, 0]), state(current_a=[0, 2.4, math.nan])
    safety = fresh()
    for turn in range(49):
        send(safety, [0.0] * 3, turn * PERIOD_S, stalled)
    send(safety, [0.0] * 3, 0.49, easy)
    for turn in range(50, 100):
        send(safety, [0.0] * 3, turn * PERIOD_S, stalled)
    assert not safety.tripped
    send(safety, [0.0] * 3, 1.0, stalled)
    assert safety.tripped == SafetyReason.STALL


def test_a_stalled_arm_is_held_where_it_is_not_where_it_pushes() -> None:
    safety = fresh(SafetyLimits(stall_s=0.02))
    for turn in range(100):
        reported = state((0.1, 0.0, 0.0), current_a=[3.0 if turn > 40 else 0.0, 0, 0])
        sent, _ = send(safety, [0.6, 0.0, 0.0], turn * PERIOD_S, reported)
    np.testing.assert_allclose(sent, [0.1, 0.0, 0.0])


@pytest.mark.parametrize("sampled_s", [0.0, math.nan, -math.inf])
def test_a_stale_leader_trips(sampled_s: float) -> None:
    safety = fresh()
    safety.filter(LeaderSample(sampled_s, np.zeros(3)), state(), 0.21)
    assert safety.tripped == SafetyReason.STALE_LEADER


def test_torque_off_is_due_after_the_hold() -> None:
    safety = fresh(SafetyLimits(torque_off_s=0.1))
    safety.estop()
    for turn in range(10):
        send(safety, [0.0] * 3, turn * PERIOD_S)
        assert safety.tripped == SafetyReason.ESTOP
        assert not safety.torque_off_due
    send(safety, [0.0] * 3, 0.11)
    assert safety.torque_off_due


def test_a_start_without_a_measured_position_is_refused() -> None:
    with pytest.raises(DeviceError, match="finite"):
        fresh(start=(0.0, math.nan, 0.0))


@pytest.mark.parametrize("bounds", [[[1.0, -1.0]], [[0.0, math.inf]], [0.0, 1.0]])
def test_there_is_no_way_to_say_no_limit(bounds: list[float]) -> None:
    with pytest.raises(UnusableInputError, match=r"[Jj]oint limits"):
        SafetyFilter(LIMITS, np.array(bounds), PERIOD_S)
