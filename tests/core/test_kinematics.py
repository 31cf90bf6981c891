from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel, model_of

MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
ZERO = np.zeros(6)


@pytest.fixture(params=list(ARM_MODELS))
def arm(request: pytest.FixtureRequest) -> ArmModel:
    return ArmModel.load(str(request.param))


def test_joints_are_lerobots_motors(arm: ArmModel) -> None:
    assert arm.joint_names == MOTORS


def test_limits_hold_the_zero(arm: ArmModel) -> None:
    low, high = arm.joint_limits_rad.T
    assert (low < high).all()
    assert (low[:5] < 0).all()
    assert (high[:5] > 0).all()


def test_half_ranges_are_the_models(arm: ArmModel) -> None:
    halves = dict(zip(arm.joint_names, np.ptp(arm.joint_limits_rad, axis=1) / 2, strict=True))
    assert ARM_MODELS[arm.name].half_range_rad == pytest.approx(halves)


def test_zero_is_the_middle_of_the_range_where_lerobot_calibrates() -> None:
    for name in ("so101", "koch"):
        limits = ArmModel.load(name).joint_limits_rad[:5]
        np.testing.assert_allclose(limits.sum(axis=1), 0.0, atol=1e-6)


def test_tool_looks_forward_and_stands_in_the_workspace(arm: ArmModel) -> None:
    pose = arm.T_base_tcp(ZERO)
    np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-9)
    assert np.linalg.det(pose[:3, :3]) == pytest.approx(1.0)
    assert pose[0, 2] > 0.85, "z of the tool looks along x of the base"
    box = np.array(ARM_MODELS[arm.name].workspace_m)
    points = arm.points_m(ZERO)
    assert points.shape == (len(arm.point_names), 3)
    assert ((points >= box[:, 0]) & (points <= box[:, 1])).all()
    np.testing.assert_allclose(points[0], pose[:3, 3])


def test_no_guarded_point_moves_further_than_the_joints_reach(arm: ArmModel) -> None:
    """What lets the workspace box skip turns: a bound, and one that is worth having."""
    rng = np.random.default_rng(1)
    low, high = np.clip(arm.joint_limits_rad.T, -np.pi, np.pi)
    shares = []
    for size in np.repeat([1e-3, 0.1, 2.0], 300):
        one = rng.uniform(low, high)
        turned = rng.uniform(-size, size, 6) * (rng.random(6) < 0.4)
        two = np.clip(one + turned, low, high)
        bound = np.abs(two - one) @ arm.reach_m
        moved = np.linalg.norm(arm.points_m(two) - arm.points_m(one), axis=1).max()
        assert moved <= bound + 1e-12
        shares.append(moved / bound if bound else 0.0)
    assert max(shares) > 0.9


def test_openmanipulator_matches_its_lengths() -> None:
    """Joint origins of omx_f.urdf, added up by hand."""
    arm = ArmModel.load("openmanipulator")
    reach = -0.01125 + 0.0415 + 0.162 + 0.0287 + 0.09193
    height = 0.034 + 0.0635 + 0.11315
    np.testing.assert_allclose(arm.T_base_tcp(ZERO)[:3, 3], [reach, -0.0016, height], atol=1e-9)
    up = np.array([0.0, 0.0, -math.pi / 2, 0.0, 0.0, 0.0])
    lifted = [-0.01125 + 0.0415, -0.0016, height + 0.162 + 0.0287 + 0.09193]
    np.testing.assert_allclose(arm.T_base_tcp(up)[:3, 3], lifted, atol=1e-9)
    aside = np.array([math.pi / 2, 0.0, 0.0, 0.0, 0.0, 0.0])
    turned = [-0.01125 + 0.0016, reach + 0.01125, height]
    np.testing.assert_allclose(arm.T_base_tcp(aside)[:3, 3], turned, atol=1e-9)


def test_koch_matches_its_lengths() -> None:
    """Upper arm upright and forearm level: the source's zero, ours shifted to mid-range."""
    q = np.array([0.0, 0.485, 0.06, 0.0, 0.0, 0.0])
    reach = -0.012 + 0.0148 + 0.10048 + 0.045 + 0.065
    side = 0.0209 - 0.0065 - 0.00005 - 0.013097 - 0.0072
    height = 0.0409 + 0.0154 + 0.1083 + 0.0026999 + 0.0005
    tool = ArmModel.load("koch").T_base_tcp(q)
    np.testing.assert_allclose(tool[:3, 3], [reach, side, height], atol=1e-6)
    np.testing.assert_allclose(tool[:3, 2], [1.0, 0.0, 0.0], atol=1e-6)


def test_so101_tool_turns_about_the_pan_axis() -> None:
    """The pan axis stands 38.8 mm in front of the base's origin."""
    arm = ArmModel.load("so101")
    radii = []
    for pan in (-1.5, 0.0, 0.7):
        x, y, _ = arm.T_base_tcp(np.array([pan, 0, 0, 0, 0, 0.0]))[:3, 3]
        radii.append(math.hypot(x - 0.0388353, y))
    np.testing.assert_allclose(radii, radii[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["koch", "openmanipulator"])
def test_opening_the_gripper_moves_only_finger_tips(name: str) -> None:
    arm = ArmModel.load(name)
    opened = ZERO.copy()
    opened[5] = arm.joint_limits_rad[5, 1]
    np.testing.assert_allclose(arm.T_base_tcp(opened), arm.T_base_tcp(ZERO))

    def gap_m(q: np.ndarray) -> float:
        points = arm.points_m(q)
        return float(np.linalg.norm(points[1] - points[2]))

    assert gap_m(ZERO) < 0.012, "closed"
    assert gap_m(opened) > 0.05, "open"


def test_geared_finger_mirrors_the_driven_one() -> None:
    arm = ArmModel.load("openmanipulator")
    q = np.array([0.3, -0.2, 0.4, 0.1, 0.0, 0.8])
    tool = np.linalg.inv(arm.T_base_tcp(q))
    driven, geared = (tool[:3, :3] @ p + tool[:3, 3] for p in arm.points_m(q)[1:3])
    np.testing.assert_allclose(driven * [-1, 1, 1], geared, atol=2e-4)


def test_threads_do_not_disturb_each_other() -> None:
    """The safety filter and the terminal view ask the same model from their own threads."""
    arm = ArmModel.load("koch")
    wrong: list[int] = []

    def ask(seed: int) -> None:
        q = np.random.default_rng(seed).uniform(-1, 1, 6)
        expected = arm.points_m(q)
        wrong.extend(i for i in range(2000) if not np.array_equal(arm.points_m(q), expected))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lerobot_types_have_models() -> None:
    assert model_of("so101_follower") == model_of("so101_sim") == "so101"
    assert model_of("koch_follower") == "koch"
    assert model_of("omx_follower") == "openmanipulator"
    assert model_of("koch") == "koch"
    assert model_of("unitree_g1") is None


def test_an_arm_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "two_link.xml"
    path.write_text(
        "<mujoco><compiler angle='radian' autolimits='true'/><worldbody><body name='upper'>"
        "<geom type='capsule' size='.01' fromto='0 0 0 .2 0 0'/>"
        "<joint name='shoulder' axis='0 0 1' range='-1 1'/><body name='fore' pos='.2 0 0'>"
        "<geom type='capsule' size='.01' fromto='0 0 0 .1 0 0'/>"
        "<joint name='elbow' axis='0 0 1' range='-2 2'/><site name='tip' pos='.1 0 0'/>"
        "</body></body></worldbody></mujoco>"
    )
    arm = ArmModel.load(path)
    assert arm.joint_names == ("shoulder", "elbow")
    assert arm.point_names == ("tool centre", "shoulder", "elbow")
    at = arm.T_base_tcp(np.array([math.pi / 2, -math.pi / 2]))[:3, 3]
    np.testing.assert_allclose(at, [0.1, 0.2, 0.0], atol=1e-9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<mujoco><worldbody/></mujoco>", "no site named gripperframe or tcp"),
        ("<mujoco><worldbody>", "MuJoCo can't use"),
        (
            "<mujoco><worldbody><body><geom size='1'/><joint name='j'/><site name='tcp'/></body>"
            "</worldbody></mujoco>",
            "joint 'j' must be a hinge with a range",
        ),
    ],
)
def test_a_bad_model_gets_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.xml"
    path.write_text(text)
    with pytest.raises(UnusableInputError, match=says) as caught:
        ArmModel.load(path)
    assert "\n" not in str(caught.value)


def test_unknown_arm_names_the_valid_ones() -> None:
    with pytest.raises(UnusableInputError, match="so101"):
        ArmModel.load("so11")
    with pytest.raises(UnusableInputError, match="exists"):
        ArmModel.load("nowhere.xml")


def test_importing_kinematics_loads_no_mujoco() -> None:
    code = "import sys, gaploop.core.kinematics as k; k.model_of('koch'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"mujoco", "so101_nexus", "lerobot"} & set(done.stdout.split())


@pytest.mark.parametrize("name", ["koch", "openmanipulator"])
def test_our_models_can_be_simulated(name: str) -> None:
    """The emulator moves them: gravity and the position servos must not blow them up."""
    import mujoco

    model = mujoco.MjModel.from_xml_path(str(ARM_MODELS[name].mjcf))
    data = mujoco.MjData(model)
    goal = np.array([0.5, -0.3, 0.4, -0.2, 0.6, 0.5])
    data.ctrl[:] = goal
    for _ in range(600):
        mujoco.mj_step(model, data)
    reached = np.array([data.joint(motor).qpos[0] for motor in MOTORS])
    np.testing.assert_allclose(reached, goal, atol=0.06)
