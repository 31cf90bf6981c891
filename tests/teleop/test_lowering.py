"""Laws of lowering: slow, inside the limits, never pressing on, and nothing falls at its end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState
from gaploop.teleop.lowering import LOWER_RAD_S, MOST_PCT, PARKED_RAD, Lowering, LoweringPhase

DT_S = 0.02
GAIN_PCT = 460.0
"""An STS3215 at the gain that LeRobot sets [% of stall/rad]."""
LIMITS = np.array([[-1.7, 1.7]] * 3)


class Joints:
    """Three joints that follow their goals at once, as far as weight and obstacles let them."""

    def __init__(
        self,
        q_rad: FloatArray,
        weight_pct: Callable[[FloatArray], FloatArray],
        low_rad: FloatArray | None = None,
        report: str = "load",
        gain_pct: float = GAIN_PCT,
    ) -> None:
        self.weight_pct, self.report, self.gain_pct = weight_pct, report, gain_pct
        self.low_rad = np.full(3, -9.0) if low_rad is None else low_rad
        self.q = np.array(q_rad)
        self.goal = self.q - weight_pct(self.q) / gain_pct  # as a motor that holds it
        self.most_pct = 0.0

    def turn(self, goal: FloatArray) -> None:
        self.goal = goal
        wanted = self.goal + self.weight_pct(self.q) / self.gain_pct
        self.q = np.maximum(wanted, self.low_rad)

    @property
    def load_pct(self) -> FloatArray:
        return self.gain_pct * (self.goal - self.q)

    def state(self) -> FollowerState:
        none = np.full(3, np.nan)
        load, self.most_pct = self.load_pct, max(self.most_pct, np.abs(self.load_pct).max())
        pct = load if self.report == "load" else none
        amps = load * 0.015 if self.report == "current" else none
        return FollowerState(0.0, self.q.copy(), none, amps, pct, none, none, np.zeros(3, np.int64))


def pendulum(most_pct: float) -> Callable[[FloatArray], FloatArray]:
    """Hangs down at -pi/2: a stretched arm weighs most [% of stall]."""
    return lambda q: np.array([-most_pct, -most_pct / 2, -most_pct / 6]) * np.cos(q)


def lower(joints: Joints, park: FloatArray | None, **given: object) -> tuple[Lowering, float]:
    """Lower until it is done; return how long that took [s]."""
    lowering = Lowering(joints.goal, park, LIMITS, **given)  # type: ignore[arg-type]
    for turn in range(6000):
        before = joints.goal.copy()
        goal = lowering.step(joints.state(), DT_S)
        if lowering.done:
            return lowering, turn * DT_S
        assert np.abs(goal - before).max() <= LOWER_RAD_S * DT_S + 1e-9
        joints.turn(goal)
    raise AssertionError("it never ended")


pose = st.lists(st.floats(-1.6, 1.6), min_size=3, max_size=3).map(np.array)


@settings(max_examples=10)
@given(pose, pose, st.floats(0.0, 35.0), st.sampled_from(["load", "current", "error"]))
def test_it_goes_slowly_to_the_park_pose_inside_the_limits(
    start: FloatArray, park: FloatArray, most_pct: float, report: str
) -> None:
    park = np.where(np.abs(park) > 1.0, -math.pi / 2, park)  # some of them where nothing pulls
    joints = Joints(start, pendulum(most_pct), report=report)
    lowering, took_s = lower(joints, park)
    assert not lowering.met
    assert took_s < 3.4 / LOWER_RAD_S + 70.0
    # Nothing holds it up any more: not at a park pose in the air, either.
    at_end = np.isclose(lowering.goal_rad, LIMITS[:, 0], atol=1e-3)
    assert (at_end | (np.abs(joints.load_pct) < 6.0)).all() or lowering.rests(joints.state())


@settings(max_examples=8)
@given(pose, st.integers(0, 2), st.floats(0.1, 1.0))
def test_what_stops_it_is_not_pressed_on_and_bears_it_in_the_end(
    start: FloatArray, joint: int, part: float
) -> None:
    """An arm that met a hand went on pressing until the servo gave up."""
    park = np.full(3, -math.pi / 2)
    low = np.full(3, -9.0)
    low[joint] = start[joint] + part * (park[joint] - start[joint])
    joints = Joints(start, pendulum(30.0), low)
    lowering, _ = lower(joints, park)
    assert joints.most_pct < MOST_PCT + 1.0  # it stops in the turn after
    assert (np.abs(joints.load_pct) < 6.0).all()
    if start[joint] - low[joint] < 3.0 and low[joint] - park[joint] > 0.3:
        assert lowering.met


def test_an_arm_without_a_park_pose_gives_way_until_nothing_holds_it_up() -> None:
    joints = Joints(np.array([0.3, -0.4, 0.9]), pendulum(30.0), np.array([-1.2, -9.0, -0.1]))
    lower(joints, None)
    np.testing.assert_allclose(joints.q[[0, 2]], [-1.2, -0.1], atol=0.01)
    assert joints.q[1] < -1.4


def test_stiff_joints_on_the_table_are_let_go_of_soon() -> None:
    """On an emulated cell their load turned round at each turn, for a minute after each session."""
    stiff = Joints(np.zeros(3), pendulum(30.0), np.full(3, -0.4), gain_pct=30_000.0)
    lowering, took_s = lower(stiff, np.full(3, -0.9))
    assert lowering.met
    assert took_s < 20.0
    assert np.abs(stiff.load_pct).max() < 6.0


def test_an_arm_that_slides_for_most_of_a_minute_isnt_let_go_of_on_its_way() -> None:
    """Incident: after half a minute an OMX was, still sliding; its wrist fell at 1.5 rad/s."""
    light = Joints(np.full(3, 1.0), lambda q: np.where(q > 0.0, -2.5, 0.0))
    lowering, took_s = lower(light, None)
    assert took_s > 30.0
    assert np.abs(light.load_pct).max() < 1.1, lowering.goal_rad
    assert (light.q < 0.05).all()


def test_it_ends_at_once_where_it_rests_already_and_leaves_what_isn_t_named() -> None:
    park = np.array([-1.5, np.nan, np.nan])
    joints = Joints(np.array([-1.5 + 0.9 * PARKED_RAD, 1.0, 1.0]), pendulum(0.0))
    assert lower(joints, park)[1] == 0.0
    joints = Joints(np.array([0.0, 1.0, 0.5]), pendulum(0.0))
    lower(joints, park)
    np.testing.assert_allclose(joints.q, [-1.5, 1.0, 0.5], atol=1e-3)


def test_grips_and_limp_joints_stay_and_their_load_means_nothing() -> None:
    joints = Joints(np.array([1.0, 0.5, 0.2]), lambda _q: np.array([0.0, 90.0, -80.0]))
    start = joints.goal.copy()
    lowering, _ = lower(joints, np.array([-1.5, -1.5, -1.5]), grips=[2], limp=[1])
    np.testing.assert_array_equal(lowering.goal_rad[1:], start[1:])
    assert not lowering.met


def test_a_hand_that_is_taken_away_again_only_delays_it() -> None:
    joints = Joints(np.zeros(3), pendulum(20.0), np.array([-0.5, -9.0, -9.0]))
    lowering = Lowering(joints.goal, np.full(3, -1.5), LIMITS)
    for turn in range(5000):
        if turn * DT_S > 5.0:
            joints.low_rad = np.full(3, -9.0)
        goal = lowering.step(joints.state(), DT_S)
        if lowering.done:
            break
        joints.turn(goal)
    assert lowering.phase is LoweringPhase.DONE
    assert lowering.met
    assert joints.q[0] == pytest.approx(-1.5, abs=PARKED_RAD)


def test_a_hand_under_one_joint_doesnt_swing_another_up_and_down_for_ever() -> None:
    """An elbow lay on something; the wrist, whose park pose is in the air, was raised to it and
    hung down again for as long as anybody watched, and torque never went off."""
    joints = Joints(np.array([0.5, 0.5, 0.5]), pendulum(40.0), np.array([-0.2, -9.0, -9.0]))
    lowering, _ = lower(joints, np.array([-1.5, -1.5, -0.3]))
    assert lowering.met
    assert (np.abs(joints.load_pct) < 6.0).all()


def test_a_servo_that_misses_turns_stops_nothing() -> None:
    joints = Joints(np.zeros(3), pendulum(20.0))
    lowering = Lowering(joints.goal, np.full(3, -1.5), LIMITS)
    for turn in range(5000):
        state = joints.state()
        if turn % 5 == 0:
            state.status[1] = NO_REPLY
            state.load_pct[1] = np.nan
        goal = lowering.step(state, DT_S)
        if lowering.done:
            break
        joints.turn(goal)
    assert not lowering.met
    assert lowering.done


@pytest.mark.members(4)
@pytest.mark.parametrize("turn_s", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("gain_pct", [300.0, GAIN_PCT, 1000.0])
def test_late_turns_stop_nothing_however_stiff_the_joints_are(
    gain_pct: float, turn_s: float
) -> None:
    """On a bus with a bad cable a stiff arm took its own catching up for a hand in its way."""
    lag_s, draw = 15.0 / gain_pct / LOWER_RAD_S, np.random.default_rng(0)
    joints = Joints(np.zeros(3), pendulum(10.0), gain_pct=gain_pct)
    lowering = Lowering(joints.goal, np.full(3, -1.5), LIMITS)
    for _ in range(20_000):
        took_s = float(draw.uniform(0.03, 0.25)) if draw.random() < turn_s / 0.4 else turn_s
        before = joints.q
        joints.turn(lowering.goal_rad)  # where it would stand in the end
        joints.q = before + (joints.q - before) * (1.0 - math.exp(-took_s / lag_s))
        lowering.step(joints.state(), took_s)
        if lowering.done:
            break
    assert not lowering.met
    assert lowering.rests(joints.state())


@pytest.mark.parametrize("name", sorted(ARM_MODELS))
def test_the_park_pose_of_each_arm_is_inside_its_limits_and_above_the_table(name: str) -> None:
    from gaploop.core.arms import ARMS

    arm = ArmModel.load(name)
    q = np.clip(np.zeros(len(arm.joint_names)), *arm.joint_limits_rad.T)
    for joint, angle_rad in ARMS[name].park_rad.items():
        low, high = arm.joint_limits_rad[arm.joint_names.index(joint)]
        assert low <= angle_rad <= high
        q[arm.joint_names.index(joint)] = angle_rad
    heights_m = arm.points_m(q)[:, 2]
    assert -0.005 < heights_m.min() < 0.02
