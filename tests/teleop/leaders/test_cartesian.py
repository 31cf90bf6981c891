from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import (
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.teleop.leaders.cartesian import SPEED_M_S, CartesianLeader, common_limits
from gaploop.teleop.leaders.controls import Intent, IntentSource, TimedIntent

ARM = ArmModel.load("so101")
START = np.array([0.0, -0.3, 0.6, 0.6, 0.0, 0.2])
STEP_S = 0.005
FORWARD = Intent(held=True, forward=1.0, step=4)


class Hand(IntentSource):
    """An input device that says what the test says."""

    def __init__(self) -> None:
        self.message = TimedIntent()

    def latest(self) -> TimedIntent:
        return self.message

    def close(self) -> None:
        self.message = replace(self.message, closed=True)


class Desk:
    """An operator, the leader, and a follower that is where it is told to be."""

    def __init__(self, limits: np.ndarray = ARM.joint_limits_rad) -> None:
        self.hand = Hand()
        self.where = START.copy()
        self.leader = CartesianLeader(ARM, limits, self.hand, lambda: self.where)
        self.leader.reset()
        self.now_s = 10.0

    def turn(self, intent: Intent, turns: int = 1, age_s: float = 0.0) -> LeaderSample:
        self.hand.message = TimedIntent(intent, age_s)
        for _ in range(turns):
            self.now_s += STEP_S
            sample = self.leader.read(self.now_s)
        return sample

    def tell(self, sent: np.ndarray, reasons: SafetyReason = SafetyReason.NONE) -> None:
        nothing = np.full(6, math.nan)
        state = FollowerState(
            self.now_s, self.where, nothing, nothing, nothing, nothing, nothing, np.zeros(6, int)
        )
        sample = LeaderSample(self.now_s, sent)
        command = SafeCommand(sent, sent, reasons)
        self.leader.tick(Tick(0, 0.0, STEP_S, 0.0, sample, command, state, {}))


intents = st.builds(
    Intent,
    held=st.booleans(),
    forward=st.floats(-1, 1),
    left=st.floats(-1, 1),
    up=st.floats(-1, 1),
    roll=st.floats(-1, 1),
    pitch=st.floats(-1, 1),
    gripper=st.floats(-1, 1),
    home=st.booleans(),
    step=st.integers(1, 4),
    frame=st.sampled_from(["base", "tool"]),
    present=st.booleans(),
    focused=st.booleans(),
    hand=st.none() | st.tuples(*[st.floats(-2.0, 2.0)] * 5),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(intents, st.sampled_from([0.0, 0.05, 0.3])), max_size=12))
def test_nothing_moves_without_the_dead_man(steps: list[tuple[Intent, float]]) -> None:
    desk = Desk()
    before = desk.turn(Intent()).q_rad
    for intent, age_s in steps:
        after = desk.turn(intent, 4, age_s).q_rad
        if not intent.drives or age_s > 0.1:
            np.testing.assert_array_equal(after, before)
        low, high = ARM.joint_limits_rad.T
        assert (after >= low).all()
        assert (after <= high).all()
        before = after


def test_releasing_stops_at_once() -> None:
    desk = Desk()
    moving = desk.turn(FORWARD, 100).q_rad
    assert not np.array_equal(moving, START)
    np.testing.assert_array_equal(desk.turn(replace(FORWARD, held=False)).q_rad, moving)


def test_starting_is_gradual() -> None:
    desk = Desk()
    desk.turn(Intent())
    q = [desk.turn(FORWARD).q_rad for _ in range(60)]
    speed = np.abs(np.diff(q, axis=0)).max(axis=1) / STEP_S
    assert speed[0] < 0.1 * speed[-1]


def test_speed_steps_scale_the_tools_speed() -> None:
    """The top speed is 15 cm/s; step 2 is a quarter of it."""
    for step, speed_m_s in ((4, 0.15), (2, 0.0375)):
        desk = Desk()
        desk.turn(replace(FORWARD, step=step, forward=-1.0), 60)
        start_m = ARM.T_base_tcp(desk.turn(replace(FORWARD, step=step, forward=-1.0)).q_rad)[0, 3]
        end = desk.turn(replace(FORWARD, step=step, forward=-1.0), 40).q_rad
        moved_m = start_m - ARM.T_base_tcp(end)[0, 3]
        assert moved_m == pytest.approx(speed_m_s * 40 * STEP_S, rel=0.05)


def test_an_old_input_is_a_released_dead_man_and_an_old_sample() -> None:
    """The safety filter trips on a stale leader: an unplugged gamepad, a main thread that hangs."""
    desk = Desk()
    before = desk.turn(FORWARD, 50).q_rad
    sample = desk.turn(FORWARD, 1, age_s=0.3)
    np.testing.assert_array_equal(sample.q_rad, before)
    assert desk.now_s - sample.t_s == pytest.approx(0.3)


def test_it_goes_on_from_what_was_sent() -> None:
    """The safety filter held the arm back; the next press starts there, not further on."""
    desk = Desk()
    desk.turn(FORWARD, 100)
    desk.turn(Intent())
    desk.where = START.copy()
    desk.tell(START)
    np.testing.assert_allclose(desk.turn(FORWARD).q_rad, START, atol=0.002)


def test_what_is_asked_never_runs_away_from_what_is_sent() -> None:
    desk = Desk()
    for _ in range(400):
        asked = desk.turn(replace(FORWARD, forward=0.0, left=1.0)).q_rad
        desk.tell(START)
        assert np.abs(asked - START).max() < 0.4


def test_after_a_trip_it_stays_where_the_arm_has_sunk_to() -> None:
    """Else clearing the trip would lift the arm with nobody's hand on the dead-man button."""
    desk = Desk()
    desk.turn(FORWARD, 100)
    desk.where = START + np.array([0.0, 0.3, 0.2, 0.0, 0.0, 0.0])
    desk.tell(START, SafetyReason.TRIPPED | SafetyReason.STALL)
    np.testing.assert_array_equal(desk.turn(Intent()).q_rad, desk.where)


def test_after_a_pause_of_the_loop_it_stays_where_the_arm_is() -> None:
    desk = Desk()
    desk.turn(FORWARD, 100)
    desk.where = START + 0.1
    desk.now_s += 5.0
    np.testing.assert_array_equal(desk.turn(Intent()).q_rad, desk.where)


def test_home_goes_back_to_the_start_while_held() -> None:
    desk = Desk()
    away = desk.turn(replace(FORWARD, left=1.0, gripper=1.0), 200).q_rad
    home = Intent(held=True, home=True, step=4)
    part = desk.turn(home, 20).q_rad
    assert 0 < np.abs(part - START).max() < np.abs(away - START).max()
    np.testing.assert_array_equal(desk.turn(replace(home, held=False), 20).q_rad, part)
    np.testing.assert_allclose(desk.turn(home, 400).q_rad, START, atol=1e-6)


def test_gripper_opens_in_the_time_asked_for() -> None:
    desk = Desk()
    q = desk.turn(Intent(held=True, gripper=1.0, step=4), 300).q_rad
    assert q[5] == pytest.approx(ARM.joint_limits_rad[5, 1])
    np.testing.assert_allclose(q[:5], START[:5], atol=1e-4)


def test_in_the_tools_frame_forward_is_along_the_fingers() -> None:
    desk = Desk()
    start = ARM.T_base_tcp(START)
    q = desk.turn(replace(FORWARD, forward=-1.0, frame="tool"), 80).q_rad
    moved = ARM.T_base_tcp(q)[:3, 3] - start[:3, 3]
    direction = moved / np.linalg.norm(moved)
    np.testing.assert_allclose(direction, -start[:3, 2], atol=0.05)


def test_a_follower_that_does_not_know_where_it_is() -> None:
    desk = Desk()
    desk.where = np.full(6, math.nan)
    with pytest.raises(DeviceError, match="joint positions"):
        desk.leader.reset()


def test_limits_are_the_narrower_of_model_and_arm() -> None:
    limits = ARM.joint_limits_rad.copy()
    limits[0] = -0.5, 9.0
    both = common_limits(ARM, limits)
    assert both[0].tolist() == [-0.5, ARM.joint_limits_rad[0, 1]]
    limits[1] = 5.0, 6.0
    with pytest.raises(UnusableInputError, match="shoulder_lift"):
        common_limits(ARM, limits)
    with pytest.raises(UnusableInputError, match="12 joints"):
        common_limits(ARM, np.tile(limits, (2, 1)))


@pytest.mark.parametrize(("step", "share"), [(4, 1.0), (3, 0.5)])
def test_the_tool_goes_as_far_as_the_hand_scaled(step: int, share: float) -> None:
    desk = Desk()
    before = ARM.T_base_tcp(desk.turn(Intent()).q_rad)[:3, 3]
    for k in range(401):
        way_m = 0.04 * min(k / 200, 1.0)
        hand = (0.0, way_m, way_m / 2, 0.0, 0.0)
        after = desk.turn(Intent(held=True, step=step, hand=hand)).q_rad
    moved = ARM.T_base_tcp(after)[:3, 3] - before
    np.testing.assert_allclose(moved, [0.0, 0.04 * share, 0.02 * share], atol=0.002)


def test_a_hand_that_jumps_is_followed_at_the_top_speed_and_not_for_long() -> None:
    """A phone that loses and finds itself again a metre away must not send the arm after it."""
    desk = Desk()
    desk.turn(Intent(held=True, step=4, hand=(0.0,) * 5), 200)
    before = ARM.T_base_tcp(desk.leader.read(desk.now_s).q_rad)[:3, 3]
    at = [before]
    for _ in range(400):
        after = desk.turn(Intent(held=True, step=4, hand=(0.0, 1.0, 0.0, 0.0, 0.0))).q_rad
        at.append(ARM.T_base_tcp(after)[:3, 3])
    fastest = np.linalg.norm(np.diff(at, axis=0), axis=1).max() / STEP_S
    assert fastest < 1.3 * SPEED_M_S
    assert np.linalg.norm(at[-1] - before) < 0.06
