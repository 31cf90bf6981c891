from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.teleop.leaders.cartesian import STRETCHED_M, StretchLimit, ToolServo

STEP_S = 0.005
FASTEST_RAD_S = 2.0
START = {
    "so101": np.array([0.0, -0.3, 0.6, 0.6, 0.0, 0.2]),
    "koch": np.array([0.0, -0.3, -0.5, 0.6, 0.0, 0.3]),
    "openmanipulator": np.array([0.0, -0.6, 0.6, 0.9, 0.0, 0.3]),
}
ARMS = {name: ArmModel.load(name) for name in ARM_MODELS}


def servo(name: str) -> ToolServo:
    arm = ARMS[name]
    made = ToolServo(arm, arm.joint_limits_rad, FASTEST_RAD_S, ARM_MODELS[name].workspace_m)
    made.reset(START[name])
    return made


def drive(made: ToolServo, twist: list[float], duration_s: float) -> np.ndarray:
    """Return the joint angles of every step, shape (steps, 6)."""
    steps = round(duration_s / STEP_S)
    return np.array([made.step(np.array(twist), STEP_S) for _ in range(steps)])


def outside_m(name: str, q: np.ndarray) -> float:
    low, high = np.array(ARM_MODELS[name].workspace_m).T
    points = ARMS[name].points_m(q)
    return float(np.maximum(low - points, points - high).max())


@pytest.mark.members(3)
@pytest.mark.parametrize("name", list(ARM_MODELS))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tool_goes_straight(name: str, axis: int) -> None:
    """5 cm at 10 cm/s: along the axis asked for, and nowhere else."""
    made = servo(name)
    start_m = made.T_base_tcp[:3, 3]
    sign = -1.0 if axis == 0 else 1.0
    twist = [0.0] * 6
    twist[axis] = 0.1 * sign
    drive(made, twist, 0.5)
    moved = made.T_base_tcp[:3, 3] - start_m
    wanted = np.zeros(3)
    wanted[axis] = 0.05 * sign
    np.testing.assert_allclose(moved, wanted, atol=0.002)


def test_tool_turns_in_place() -> None:
    made = servo("so101")
    start = made.T_base_tcp
    fingers = start[:3, 2]
    drive(made, [0, 0, 0, *(0.5 * fingers)], 1.0)
    end = made.T_base_tcp
    np.testing.assert_allclose(end[:3, 3], start[:3, 3], atol=0.002)
    np.testing.assert_allclose(end[:3, 2], fingers, atol=0.02)
    turned = np.arccos((np.trace(start[:3, :3].T @ end[:3, :3]) - 1) / 2)
    assert turned == pytest.approx(0.5, abs=0.03)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(ARM_MODELS)),
    twists=st.lists(
        st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=6, max_size=6),
        min_size=1,
        max_size=6,
    ),
    gripper=st.floats(-10, 10),
)
def test_whatever_is_asked_stays_inside_every_limit(
    name: str, twists: list[list[float]], gripper: float
) -> None:
    made, arm = servo(name), ARMS[name]
    low, high = arm.joint_limits_rad.T
    made.set_gripper(gripper)
    before = made.q_rad
    for twist in twists:
        scaled = (np.array(twist) * [0.3, 0.3, 0.3, 2.0, 2.0, 2.0]).tolist()
        q = drive(made, scaled, 0.25)
        assert np.isfinite(q).all()
        assert (q >= low).all()
        assert (q <= high).all()
        steps = np.diff(np.vstack([before, q]), axis=0)
        assert np.abs(steps).max() <= FASTEST_RAD_S * STEP_S + 1e-6
        assert max(outside_m(name, pose) for pose in q[4::5]) < 0.001
        before = q[-1]


@pytest.mark.members(1)
@pytest.mark.parametrize("name", list(ARM_MODELS))
def test_nothing_winds_up_at_the_edge(name: str) -> None:
    """Pushing outwards for long, then back: it comes back at once, the way it went."""
    made = servo(name)
    drive(made, [0.15, 0, 0, 0, 0, 0], 2.0)
    edge_m = made.T_base_tcp[:3, 3]
    drive(made, [-0.15, 0, 0, 0, 0, 0], 0.2)
    moved = made.T_base_tcp[:3, 3] - edge_m
    assert -0.031 < moved[0] < -0.008, "a stretched elbow opens no faster than its joint may"
    np.testing.assert_allclose(moved[1:], 0.0, atol=0.002)


@pytest.mark.members(1)
@pytest.mark.parametrize("name", list(ARM_MODELS))
def test_a_stretched_arm_rests(name: str) -> None:
    """Without the guard on stretching the elbow flipped to and fro at full speed."""
    made, guard = servo(name), StretchLimit(ARMS[name], ARMS[name].kinematics())
    way = drive(made, [0.15, 0, 0, 0, 0, 0], 2.0)
    assert min(guard._gain(ARMS[name].qpos(q)) for q in way[::10]) > 0.9 * STRETCHED_M
    q = drive(made, [0.15, 0, 0, 0, 0, 0], 0.5)
    assert np.abs(np.diff(q, axis=0)).max() / STEP_S < 0.2


def test_the_arm_slides_along_the_table() -> None:
    """Held against the floor of the box it can still be moved sideways."""
    made = servo("so101")
    drive(made, [0, 0, -0.15, 0, 0, 0], 2.0)
    before_m = made.T_base_tcp[:3, 3]
    drive(made, [0, 0.1, -0.1, 0, 0, 0], 0.5)
    moved = made.T_base_tcp[:3, 3] - before_m
    assert moved[1] > 0.03
    assert outside_m("so101", made.q_rad) < 0.001


def test_the_arm_rises_although_the_wrist_has_come_to_its_end() -> None:
    """Position before orientation: it stopped after 9 of 30 cm, with the gripper still down."""
    made = servo("so101")
    drive(made, [-0.15, 0, 0, 0, 0, 0], 1.0)
    before_m = made.T_base_tcp[:3, 3]
    drive(made, [0, 0, 0.15, 0, 0, 0], 1.5)
    moved = made.T_base_tcp[:3, 3] - before_m
    np.testing.assert_allclose(moved, [0, 0, 0.225], atol=0.015)
    assert made.q_rad[3] > 1.6
