"""Arms of the embedded cell behind one interface."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import pytest

from gaploop.core.arm import CellArm
from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnknownChoiceError, UnusableInputError
from gaploop.sim import conditions
from gaploop.sim.catalogue import SO101, arm_named, arm_of, from_degrees, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import nominal_arm
from gaploop.sim.kinematics import ArmIk, from_polar, polar
from gaploop.sim.lerobot_tracker_step import TrackerStep
from gaploop.sim.tracker import Tracker

OLD_OBJECT_M = [0.22647161591627665, 0.07703241229299033, 0.0125]
OLD_TARGET_M = [0.20906592013117567, -0.022707364270723413, 0.001]
OLD_HOME_RAD = [
    1.4027729133088738,
    -0.588021809125158,
    0.5888918343151316,
    1.559261518463701,
    0.045265687931656015,
    0.7312502196044457,
]
"""Scene 3 of the nominal cell: object, target and the joints at rest, before there was a choice."""


class Without:
    """A finder that finds what others find, but for one package."""

    def __init__(self, finders: Sequence[Any], missing: str) -> None:
        self._finders, self._missing = finders, missing

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == self._missing:
            return None
        specs = (finder.find_spec(name, path, target) for finder in self._finders)
        return next((spec for spec in specs if spec is not None), None)


def test_without_its_meshes_an_arm_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, SO101.model.package, raising=False)  # another test's
    monkeypatch.setattr(sys, "meta_path", [Without(list(sys.meta_path), SO101.model.package)])
    for refused in (lambda: SO101.spec(conditions.PAINT), lambda: arm_named("so101")):
        with pytest.raises(UnusableInputError, match="pip install") as said:
            refused()
        assert "\n" not in str(said.value)


def test_an_unknown_arm_is_refused_with_the_choices() -> None:
    with pytest.raises(UnknownChoiceError, match="so101"):
        SimCell(robot="so100")


def test_the_default_arm_is_the_so101_to_the_bit(
    nominal: SimCell, sweep: Callable[..., Any], same: Callable[..., bool]
) -> None:
    with SimCell(robot="so101") as named:
        assert same(sweep(named, 3), sweep(nominal, 3))


def test_scenes_of_the_so101_are_those_that_its_base_was_made_of(nominal: SimCell) -> None:
    """The second arm brought the scene's places into data; draws of old seeds must not move."""
    nominal.reset(3)
    truth: dict[str, Any] = nominal.truth()
    assert truth["object_pos_m"] == OLD_OBJECT_M
    assert truth["target_pos_m"] == OLD_TARGET_M
    assert nominal.data.qpos[:6].tolist() == OLD_HOME_RAD


@pytest.mark.parametrize("arm", CELL_ARMS.values())
def test_an_arms_numbers_fit_together(arm: CellArm) -> None:
    n = len(arm.joint_names)
    for values in (arm.home_q_rad, arm.servos.stall_nm, arm.servos.nm_per_a):
        assert len(values) == n
    assert len(arm.zero_keys) == n - len(arm.arms)
    assert arm.grippers == [arm.columns(side).stop - 1 for side in arm.arms]
    grip = arm.grip
    assert grip.travel_rad[0] <= grip.shut_rad < grip.empty_rad < grip.open_rad
    assert grip.open_rad < grip.travel_rad[1]
    assert arm_of(arm.robot_type) is arm


def test_recordings_of_arms_that_the_cell_has_not_count_as_before() -> None:
    assert arm_of("so101_follower") is arm_of("") is SO101


def test_units_go_there_and_back_and_the_gripper_from_0_to_100() -> None:
    arm = SO101
    q_rad = np.random.default_rng(0).uniform(-1, 1, (5, len(arm.joint_names)))
    assert np.allclose(from_degrees(to_degrees(q_rad, arm), arm), q_rad)
    ends = np.zeros((2, len(arm.joint_names)))
    ends[:, -1] = arm.grip.travel_rad
    assert np.allclose(to_degrees(ends, arm)[:, -1], [0.0, 100.0])


def test_the_tool_is_where_the_model_has_it() -> None:
    arm = SO101
    ik = ArmIk(nominal_arm(arm), arm.joint_names[:-1])
    q_rad = np.random.default_rng(2).uniform(-1.5, 1.5, (20, len(arm.joint_names)))
    places = [ik.tcp(row)[0] for row in q_rad]
    np.testing.assert_allclose(arm.tool_centre_m(q_rad), places, atol=1e-9)
    assert arm.tool_centre_m(q_rad[:0]).shape == (0, 3)


def test_the_arm_reaches_every_place_with_its_hand_down() -> None:
    arm = SO101
    ik = ArmIk(nominal_arm(arm), arm.joint_names[:-1])
    rng = np.random.default_rng(1)
    for _ in range(10):
        angle, radius = rng.uniform(-1.3, 1.3), rng.uniform(0.05, 0.13)
        xy = np.array(arm.spawn_centre_m) + radius * np.array([np.cos(angle), np.sin(angle)])
        place = np.array([*xy, rng.uniform(0.0115, 0.07)])
        q_rad = np.array(arm.home_q_rad)[: len(arm.arm_columns)]
        for _ in range(40):
            q_rad = ik.solve(place, polar(xy)[0] + np.pi, q_rad)
        reached, rotation = ik.tcp(q_rad)
        assert np.linalg.norm(reached - place) < 1e-3
        assert rotation[2, 2] < -0.95


BENT_RAD = (0.0, 0.3, 1.2, 1.4, 0.0, 0.0, 0.0)
"""Joints of an arm whose hand points down."""
AXES = ("0 0 1", "0 1 0", "0 1 0", "0 1 0", "0 0 1", "0 1 0", "0 0 1")


def links(joints: int, most_rad: float) -> mujoco.MjModel:
    """Return an arm of hinges, 12 cm from one to the next, each going so far from `BENT_RAD`."""
    hinges = [
        f'<body pos="0 0 .12"><joint name="j{number}" axis="{axis}" limited="true" '
        f'range="{at_rad - most_rad} {at_rad + most_rad}"/><geom size=".01"/>'
        for number, (axis, at_rad) in enumerate(zip(AXES, BENT_RAD, strict=True))
    ][:joints]
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><compiler angle="radian"/><worldbody>{"".join(hinges)}<site pos="0 0 .1" '
        f'name="gripperframe"/>{"</body>" * joints}</worldbody></mujoco>'
    )


@pytest.mark.members(3)
@pytest.mark.parametrize("most_rad", [0.3, 0.5])
@pytest.mark.parametrize("joints", [4, 5, 6, 7])
def test_a_joint_at_its_limit_leaves_the_place_to_the_others(joints: int, most_rad: float) -> None:
    """A wrist at its limit left the tool 85 mm beside a place that the other joints could reach."""
    ik = ArmIk(links(joints, most_rad), [f"j{number}" for number in range(joints)])
    rng, home = np.random.default_rng(joints), np.array(BENT_RAD[:joints])
    for _ in range(20):
        place, _ = ik.tcp(home + rng.uniform(-0.8, 0.8, joints) * most_rad)
        start, q_rad = ik.tcp(home)[0], home
        for step in np.linspace(0.0, 1.0, 40):
            q_rad = ik.solve(start + step * (place - start), np.pi, q_rad, 6)
        assert np.linalg.norm(ik.tcp(q_rad)[0] - place) < 0.015
        assert (np.abs(q_rad - home) <= most_rad + 1e-9).all()


def test_the_tracker_sees_object_and_target_where_they_are() -> None:
    arm = SO101
    with SimCell(robot=arm.name) as cell:
        tracker = Tracker.nominal(cell.image_size, arm=arm)
        for seed in range(4):
            cell.reset(seed)
            truth: dict[str, Any] = cell.truth()
            seen = tracker.observe(cell.frame().image)
            assert np.linalg.norm(from_polar(*seen[:2]) - truth["object_pos_m"][:2]) < 2.5e-3
            assert np.linalg.norm(from_polar(*seen[3:5]) - truth["target_pos_m"][:2]) < 2.5e-3


def test_a_saved_tracker_names_the_arm_only_where_it_is_not_the_default() -> None:
    """Policies saved before there was a second arm have no such entry, and their id is a hash."""
    assert "robot" not in TrackerStep().get_config()
    assert TrackerStep(**TrackerStep(robot="bi_so101").get_config()).robot == "bi_so101"
