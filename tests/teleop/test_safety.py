"""Laws of the safety filter: whatever is asked, what is sent is safe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.core.station import SafetyLimits
from gaploop.teleop.safety import JUMP_HOLD_S, MOST_JUMP_RAD, SafetyFilter

LIMITS = SafetyLimits(align_velocity_rad_s=SafetyLimits().velocity_rad_s)
BOUNDS = np.array([[-1.0, 1.0], [-2.0, 0.5], [0.0, 0.0]])
PERIOD_S = 0.01
ALL_WELL = np.zeros(3)
NOT_MEASURED: dict[str, FloatArray] = dict.fromkeys(
    ("velocity_rad_s", "current_a", "load_pct", "temperature_c", "voltage_v"), np.full(3, np.nan)
)
NOT_MEASURED["current_a"].flags.writeable = False  # one array for all and every state
anything = st.floats(allow_nan=True, allow_infinity=True)
near = st.floats(-3.0, 3.0)
joints = st.lists(anything | near, min_size=3, max_size=3)
requests = st.lists(joints, min_size=1, max_size=40)


def state(position: Sequence[float] = (0.0, 0.0, 0.0), **given_: Sequence[float]) -> FollowerState:
    values = {name: np.array(value, dtype=float) for name, value in given_.items()}
    status = values.pop("status", ALL_WELL).astype(np.int64)
    return FollowerState(0.0, np.array(position), **NOT_MEASURED | values, status=status)


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


@dataclass(frozen=True)
class Asked:
    """What comes in on one turn."""

    q: Any
    elapsed_s: float
    age_s: float
    reported: FollowerState
    intervention: bool
    does: str


@st.composite
def turns(draw: st.DrawFn) -> Asked:
    shape = draw(st.sampled_from([3, 3, 3, 3, 3, 3, 0, 2, 7]))
    arrays = {
        name: np.array(draw(st.lists(anything | near, min_size=shape, max_size=shape)))
        for name in ("position_rad", "current_a", "load_pct", "temperature_c")
    }
    status = np.array(draw(st.sampled_from([[0, 0, 0]] * 4 + [[0, 4, 0], [NO_REPLY, 0, 0]])))
    nothing = np.full(3, np.nan)
    reported = FollowerState(
        0.0, **arrays, velocity_rad_s=nothing, voltage_v=nothing, status=status
    )
    wrong: st.SearchStrategy[Any] = st.sampled_from([[], [1.0], [[0.0] * 3], ["a"] * 3, None, 1j])
    return Asked(
        draw(st.one_of(joints, joints, joints, wrong)),
        draw(st.sampled_from([PERIOD_S] * 4 + [0.0, 0.001, 0.0099, 0.0101, 0.035, 2.0])),
        draw(st.sampled_from([0.0] * 6 + [0.1, 0.3, math.nan, math.inf, -math.inf])),
        reported if draw(st.booleans()) else state(),
        draw(st.booleans()),
        draw(st.sampled_from(["", "", "", "", "", "estop", "clear", "clear", "reset"])),
    )


@settings(max_examples=100)
@given(st.lists(turns(), min_size=1, max_size=40), st.lists(near, min_size=3, max_size=3))
def test_whatever_comes_in_what_is_sent_is_finite_and_inside_every_limit(
    asked: list[Asked], start: list[float]
) -> None:
    limits = SafetyLimits()
    safety = fresh(limits, np.clip(start, *BOUNDS.T))
    last: FloatArray = safety.sent_rad
    last_speed: FloatArray = np.zeros(3)
    now_s = 0.0
    for index, turn in enumerate(asked):
        now_s += turn.elapsed_s
        since_s = turn.elapsed_s if index and turn.does != "reset" else PERIOD_S
        if turn.does == "reset":
            safety.reset(last)
            last_speed = np.zeros(3)
        elif turn.does:
            getattr(safety, turn.does)()
        sample = LeaderSample(now_s - turn.age_s, turn.q, turn.intervention)
        command = safety.filter(sample, turn.reported, now_s)
        sent, step = command.sent_rad, command.sent_rad - last
        assert command.requested_rad.shape == (3,)
        assert np.isfinite(sent).all()
        assert (sent >= BOUNDS[:, 0]).all()
        assert (sent <= BOUNDS[:, 1]).all()
        counted_s = min(since_s, PERIOD_S) * (1 + 1e-5)
        assert (np.abs(step) <= limits.velocity_rad_s * counted_s + 1e-12).all()
        speed = step / since_s if since_s else np.zeros(3)
        growth = np.abs(speed) - np.where(speed * last_speed > 0, np.abs(last_speed), 0.0)
        assert (growth <= limits.acceleration_rad_s2 * counted_s * 1.001 + 1e-6).all()
        last, last_speed = sent, speed


@settings(max_examples=75)
@given(st.lists(turns(), min_size=1, max_size=30), st.integers(0, 20))
def test_a_latched_trip_never_moves_the_arm(asked: list[Asked], at: int) -> None:
    """Stalled, an arm is held where it is: then the goal goes there and no further."""
    safety, now_s = fresh(start=(0.2, -0.3, 0.0)), 0.0
    held: FloatArray | None = None
    measured: FloatArray
    for index, turn in enumerate(asked):
        now_s += turn.elapsed_s
        if index == at:
            safety.estop()
        before = safety.sent_rad
        sample = LeaderSample(now_s - turn.age_s, turn.q, turn.intervention)
        sent = safety.filter(sample, turn.reported, now_s).sent_rad
        if safety.tripped and held is None:
            measured = (
                np.clip(turn.reported.position_rad, *BOUNDS.T)
                if (safety.tripped & SafetyReason.STALL)
                else before
            )
            held = measured
        if held is not None:
            off_before, off = np.abs(before - held), np.abs(sent - held)
            assert (off <= off_before + 1e-12).all() or np.array_equal(sent, before)
    if held is not None:
        safety.clear()
        assert not safety.tripped
        safety.filter(LeaderSample(now_s, np.zeros(3)), state(), now_s)
        assert not safety.tripped


@given(requests)
def test_an_arm_that_stands_outside_comes_back_and_never_goes_further_out(
    asked: list[list[float]],
) -> None:
    """Clipping the first goal into the limits sent the arm there at its motors' full speed."""
    safety = fresh(SafetyLimits(), (1.8, 0.9, -0.2))
    outside = np.array([0.8, 0.4, 0.2])
    last = safety.sent_rad
    for turn, q in enumerate(asked):
        sent, _ = send(safety, q, turn * PERIOD_S, state(last.tolist()))
        now_outside = np.maximum(np.maximum(BOUNDS[:, 0] - sent, sent - BOUNDS[:, 1]), 0.0)
        assert (now_outside <= outside + 1e-12).all()
        assert (np.abs(sent - last) <= LIMITS.velocity_rad_s * PERIOD_S + 1e-12).all()
        last, outside = sent, now_outside
    for turn in range(len(asked), len(asked) + 400):
        sent, _ = send(safety, [0.0, 0.0, 0.0], turn * PERIOD_S, state(sent.tolist()))
    np.testing.assert_allclose(sent, 0.0)


def test_a_turn_that_follows_a_late_one_moves_no_faster() -> None:
    """Steps of a whole period went out 1 ms apart: 15 rad/s where 3 were allowed."""
    safety = fresh()
    sent = [send(safety, [0.9, 0.0, 0.0], at_s)[0][0] for at_s in (0.0, 0.01, 0.02, 0.039, 0.04)]
    assert sent[4] - sent[3] <= LIMITS.velocity_rad_s * 0.001 + 1e-12
    assert sent[3] - sent[2] <= LIMITS.velocity_rad_s * PERIOD_S


def test_far_from_its_leader_the_arm_creeps_until_it_has_caught_up_once() -> None:
    limits = SafetyLimits()
    safety = fresh(limits)
    last = safety.sent_rad

    def fastest(q: Sequence[float], first: int, turns: int, turns_to_creep: int = 0) -> float:
        nonlocal last
        speeds = []
        for turn in range(first, first + turns):
            sample = LeaderSample(turn * PERIOD_S, np.array(q), intervention=first >= 500)
            creeps = safety.catching_up
            reported = state(last.tolist())
            sent = safety.filter(sample, reported, turn * PERIOD_S).sent_rad
            if creeps or not turns_to_creep:
                speeds.append(np.abs(sent - last).max() / PERIOD_S)
            last = sent
        assert len(speeds) >= turns_to_creep
        return float(max(speeds))

    assert fastest([0.8, 0.0, 0.0], 0, 200, 90) <= limits.align_velocity_rad_s + 1e-9
    assert not safety.catching_up
    quick = [fastest([0.8 - 0.08 * n, 0.0, 0.0], 200 + n, 1) for n in range(20)]
    assert max(quick) > 2.9
    fastest([-0.8, 0.0, 0.0], 220, 180)
    safety.clear()
    assert fastest([0.8, 0.0, 0.0], 400, 100, 90) <= limits.align_velocity_rad_s + 1e-9
    # Somebody else takes over, from elsewhere.
    assert fastest([-0.8, 0.0, 0.0], 500, 100, 90) <= limits.align_velocity_rad_s + 1e-9


@given(requests)
@example([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])  # a jump, and back
def test_a_reason_is_given_exactly_when_the_command_was_changed(asked: list[list[float]]) -> None:
    safety = fresh()
    for turn, q in enumerate(asked):
        sent, reasons = send(safety, q, turn * PERIOD_S)
        assert bool(reasons) == (not np.allclose(sent, q, rtol=0, atol=1e-9))


def test_an_arm_that_a_slow_policy_drove_is_lowered_as_fast_as_any() -> None:
    """Its goals would run ahead of what is sent, and torque would go before the arm is down."""
    safety = fresh()
    safety.filter(LeaderSample(0.0, np.zeros(3), speed_share=0.01), state(), 0.0)
    step = 0.2 * PERIOD_S  # about what a lowering asks for, of 0.03 that the policy had
    for turn in range(1, 20):
        goal = turn * step * np.array([1.0, -1.0, 0.0])
        np.testing.assert_allclose(safety.lower(goal).sent_rad, goal)


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


@pytest.mark.parametrize(
    ("stalled", "easy"),
    [
        ({"current_a": [0, 2.1, 0]}, {"current_a": [0, -1.9, math.nan]}),
        ({"current_a": [0, -2.1, math.nan]}, {"current_a": [0, 0, math.nan], "load_pct": [90] * 3}),
        ({"load_pct": [0, -81, 0]}, {"load_pct": [0, 79, math.nan]}),
    ],
)
def test_a_stall_trips_only_when_it_lasts_by_load_where_there_is_no_current(
    stalled: dict[str, list[float]], easy: dict[str, list[float]]
) -> None:
    stalled_, easy_ = state(**stalled), state(**easy)
    if (
        "load_pct" in easy and "current_a" in easy
    ):  # a motor that reports current isn't judged by load
        easy_ = state(current_a=[0, 0, 0], load_pct=[90] * 3)
    safety = fresh()
    for turn in range(49):
        send(safety, [0.0] * 3, turn * PERIOD_S, stalled_)
    send(safety, [0.0] * 3, 0.49, easy_)
    for turn in range(50, 100):
        send(safety, [0.0] * 3, turn * PERIOD_S, stalled_)
    assert not safety.tripped
    send(safety, [0.0] * 3, 1.0, stalled_)
    assert safety.tripped == SafetyReason.STALL


@pytest.mark.parametrize(
    "unwell",
    [
        state(load_pct=[0.0, 95.0, 0.0]),
        state(position=[0.0, 0.5, 0.0], current_a=[0.0] * 3),
        state(position=[0.0, 1.5, 0.0], current_a=[1.0] * 3),
    ],
)
def test_a_machine_that_hung_for_seconds_is_no_motor_that_stalled(unwell: FollowerState) -> None:
    """`doctor` told of a stall on a busy machine: two looks, in between nobody had looked."""
    safety = fresh()
    for now_s in (0.0, 3.0, 6.0):
        send(safety, [0.0] * 3, now_s, unwell)
        assert not safety.tripped
    for turn in range(200):
        send(safety, [0.0] * 3, 6.0 + turn * PERIOD_S, unwell)
    assert safety.tripped


@pytest.mark.parametrize("what", ["current_a", "load_pct"])
@given(st.sets(st.integers(1, 49), max_size=48))
def test_a_missed_reply_does_not_start_the_stall_timer_anew(what: str, missed: set[int]) -> None:
    """A motor that pushed at stall on a bus that lost every tenth reply was never noticed."""
    silent = state(status=[0, NO_REPLY, 0])
    pushes = state(**{what: [0.0, 95.0, 0.0]})
    safety = fresh()
    for turn in range(51):
        reported = silent if turn in missed and turn - 1 not in missed else pushes
        assert not safety.tripped
        send(safety, [0.0] * 3, turn * PERIOD_S, reported)
    assert safety.tripped == SafetyReason.STALL


def test_a_servo_that_misses_a_turn_is_waited_for_and_a_silent_one_trips() -> None:
    silent, limits = state(status=[0, NO_REPLY, 0]), SafetyLimits(lost_servo_s=0.1)
    safety = fresh(limits)
    for turn in range(40):
        send(safety, [0.0] * 3, turn * PERIOD_S, silent if turn % 5 else state())
    assert not safety.tripped
    for turn in range(40, 50):
        send(safety, [0.0] * 3, turn * PERIOD_S, silent if turn > 40 else state())
    assert not safety.tripped
    send(safety, [0.0] * 3, 0.501, silent)
    assert safety.tripped == SafetyReason.LOST_SERVO
    assert safety.hold_is_over  # who isn't heard can't be told to hold


def test_a_stalled_arm_is_held_where_it_is_not_where_it_pushes() -> None:
    safety = fresh(replace(LIMITS, stall_s=0.02))
    for turn in range(100):
        reported = state((0.1, 0.0, 0.0), current_a=[3.0 if turn > 40 else 0.0, 0, 0])
        sent, _ = send(safety, [0.6, 0.0, 0.0], turn * PERIOD_S, reported)
    np.testing.assert_allclose(sent, [0.1, 0.0, 0.0])


@pytest.mark.parametrize("sampled_s", [0.0, 1.0, math.nan, math.inf, -math.inf])
def test_a_stale_leader_trips_and_so_does_one_whose_clock_is_wrong(sampled_s: float) -> None:
    safety = fresh()
    safety.filter(LeaderSample(sampled_s, np.zeros(3)), state(), 0.21)
    assert safety.tripped == SafetyReason.STALE_LEADER


HELD = st.integers(1, 60)


@settings(max_examples=75)
@given(st.lists(st.tuples(joints, HELD), min_size=1, max_size=12))
@example([([0.0] * 3, 3), ([0.0, 2.0, 0.0], 1), ([0.0, 0.0, math.inf], 19), ([0.0, 2.0, 0.0], 1)])
@example([([0.0] * 3, 5), ([0.0, 0.0, 2.0], 21), ([0.0] * 3, 1)])
@example([([-1.0, -2.0, 0.0], 10), ([-0.06, -0.06, 0.0], 1)])
@example([([-1.0, -2.0, 0.0], 10), ([-0.06, -0.06, 0.0], 40), ([2.0, 0.0, 0.0], 1)])
def test_a_jump_never_sweeps(poses: list[tuple[list[float], int]]) -> None:
    """A leader's encoder wrapped from 4095 to 0: the arm swept 340 degrees at 3 rad/s.

    From a jump until the arm has caught up with the leader again, it aligns as slowly as at a
    start; and a reading that is gone again within `JUMP_HOLD_S` moves nothing. Readings that were
    no numbers don't count as time spent there: two readings 0.2 s apart, with nothing but NaN
    between them, once passed for a leader that had stayed. A jump back to where the arm still
    stands is held, too, but changes nothing, so that no reason is given for it.
    """
    limits = SafetyLimits()
    safety, last = fresh(limits), np.zeros(3)
    followed, creeping, held_turns = None, True, 0
    turns = [pose for pose, count in poses for _ in range(count)]
    for turn, pose in enumerate(turns):
        sent, reasons = send(safety, pose, turn * PERIOD_S, state(last.tolist()))
        assert not safety.tripped
        if reasons == SafetyReason.NON_FINITE:
            np.testing.assert_array_equal(sent, last)
            continue
        if reasons == SafetyReason.LEADER_JUMP and (sent == last).all():
            held_turns += 1
            continue
        apart = 0.0 if followed is None else np.abs(np.subtract(pose, followed)).max()
        jumped = apart > MOST_JUMP_RAD
        stands_there = np.allclose(sent, pose, rtol=0.0, atol=1e-9)  # creeping there rounds
        if jumped and not reasons and (sent == last).all() and stands_there:
            held_turns += 1
            if held_turns >= JUMP_HOLD_S / PERIOD_S - 1e-6:
                followed, held_turns, creeping = pose, 0, safety.catching_up
            continue
        if jumped:
            assert held_turns >= JUMP_HOLD_S / PERIOD_S - 1e-6
            creeping = True
        followed, held_turns = pose, 0
        if creeping:
            assert np.abs(sent - last).max() <= limits.align_velocity_rad_s * PERIOD_S + 1e-12
        creeping &= safety.catching_up
        last = sent


def test_one_bad_reading_of_the_leader_moves_nothing_and_a_hand_is_no_jump() -> None:
    safety = fresh(SafetyLimits())
    hand = [0.6 * math.sin(4.0 * turn * PERIOD_S) for turn in range(400)]  # 2.4 rad/s
    last = np.zeros(3)
    for turn, q in enumerate(hand):
        bad = turn == 200
        sent, reasons = send(
            safety, [-2.9 if bad else q, 0.0, 0.0], turn * PERIOD_S, state(last.tolist())
        )
        if bad:
            np.testing.assert_array_equal(sent, last)
        assert bool(reasons & SafetyReason.LEADER_JUMP) == bad
        last = sent
    assert abs(last[0] - hand[-1]) < 0.05
    assert not safety.catching_up


class Servo:
    """A joint that comes nearer to its goal at its speed, or is stuck, or limp.

    Attributes:
        torque: it tries.
        stuck: it doesn't move.
        rad_s: how fast it is.
        lag_s: how late it hears its goals.
    """

    def __init__(self, rad_s: float = 3.5, lag_s: float = 0.06) -> None:
        self.torque, self.stuck, self.rad_s = True, False, rad_s
        self.q, self.goals = 0.0, [0.0] * max(1, round(lag_s / PERIOD_S))

    def turn(self, goal: float) -> tuple[float, float]:
        """Go on for a period; return position [rad] and current [A]."""
        self.goals = [*self.goals[1:], goal]
        error = self.goals[0] - self.q
        if self.torque and not self.stuck:
            self.q += math.copysign(min(abs(error) * 0.2, self.rad_s * PERIOD_S), error)
        elif not self.torque and not self.stuck:
            self.q -= 0.5 * PERIOD_S  # its weight
        return self.q, math.copysign(min(abs(error) * 9.0, 1.5), error) if self.torque else 0.01


def drive(servo: Servo, turns: int, q: float | None = None) -> tuple[SafetyFilter, float]:
    """Lead a joint fast to and fro, or to `q` [rad]; return the filter and when it tripped [s]."""
    limits = SafetyLimits()
    safety = SafetyFilter(limits, np.array([[-1.8, 1.8]] * 3), PERIOD_S)
    safety.reset(np.zeros(3))
    at, current, sent = 0.0, 0.0, np.zeros(3)
    for turn in range(turns):
        led = 1.6 * math.sin(1.8 * turn * PERIOD_S) if q is None else min(q, turn * PERIOD_S)
        reported = state((at, 0.0, 0.0), current_a=[current, 0.0, math.nan], load_pct=[0.0] * 3)
        sent, _ = send(safety, [led, 0.0, 0.0], turn * PERIOD_S, reported)
        if safety.tripped:
            return safety, turn * PERIOD_S
        at, current = servo.turn(sent[0])
    return safety, math.inf


@given(st.floats(0.8, 6.0), st.floats(0.01, 0.25), st.just(1000))
@example(0.8, 0.01, 2000)
@example(0.8, 0.25, 2000)
@example(6.0, 0.25, 2000)
def test_a_joint_that_is_far_behind_but_under_way_never_trips(
    rad_s: float, lag_s: float, turns: int
) -> None:
    """Fast teleoperation of a slow or late servo, such as one that lifts a weight.

    It is led to and fro every 3.5 s, and from the second time on nothing is new.
    """
    safety, _ = drive(Servo(rad_s, lag_s), turns)
    assert not safety.tripped


@pytest.mark.parametrize(("torque", "stuck"), [(False, False), (False, True)])
def test_a_servo_that_does_not_try_trips_soon(torque: bool, stuck: bool) -> None:
    """A servo stuck without current was noticed after 6.7 s."""
    servo = Servo()
    servo.torque, servo.stuck = torque, stuck
    safety, at_s = drive(servo, 2000, 1.0)
    assert safety.tripped == SafetyReason.NOT_FOLLOWING
    limits = SafetyLimits()
    behind_s = limits.following_rad / limits.align_velocity_rad_s
    assert at_s <= behind_s + limits.following_s + 0.15


def test_a_joint_that_pushes_on_something_is_contact_until_it_is_far_off() -> None:
    servo = Servo()
    servo.stuck = True
    assert not drive(servo, 2000, 0.9)[0].tripped
    assert drive(servo, 2000, 1.5)[0].tripped == SafetyReason.NOT_FOLLOWING


def test_a_gripper_may_hold_on() -> None:
    safety = SafetyFilter(SafetyLimits(), np.array([[-1.8, 1.8]] * 3), PERIOD_S, grips=[0])
    safety.reset(np.zeros(3))
    for turn in range(1000):
        holds = state((0.1, 0.0, 0.0), current_a=[0.4, 0.0, 0.0])
        send(safety, [min(1.7, turn * PERIOD_S), 0.0, 0.0], turn * PERIOD_S, holds)
    assert not safety.tripped


def test_torque_off_is_due_after_the_hold() -> None:
    safety = fresh(SafetyLimits(torque_off_s=0.1))
    safety.estop()
    for turn in range(10):
        send(safety, [0.0] * 3, turn * PERIOD_S)
        assert safety.tripped == SafetyReason.ESTOP
        assert not safety.hold_is_over
    send(safety, [0.0] * 3, 0.11)
    assert safety.hold_is_over


def test_nobody_who_is_handed_a_command_can_change_what_was_sent() -> None:
    sent, _ = send(fresh(), [0.5, 0.0, 0.0])
    with pytest.raises(ValueError, match="read-only"):
        sent += 1.0


def test_a_start_far_outside_the_limits_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"Joint 2 .* Calibrate"):
        fresh(start=(0.0, 4.0, 0.0))


def test_a_start_without_a_measured_position_is_refused() -> None:
    with pytest.raises(DeviceError, match="finite"):
        fresh(start=(0.0, math.nan, 0.0))


@pytest.mark.parametrize("bounds", [[[1.0, -1.0]], [[0.0, math.inf]], [0.0, 1.0]])
def test_there_is_no_way_to_say_no_limit(bounds: list[float]) -> None:
    with pytest.raises(UnusableInputError, match=r"[Jj]oint limits"):
        SafetyFilter(LIMITS, np.array(bounds), PERIOD_S)
