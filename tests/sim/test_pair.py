"""Two arms in one cell: who reaches what, who hands over, and gaps that strike both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gaploop.core.arm import MountedArm
from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.sim.catalogue import from_degrees, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import RelayLeader, nominal_arm, scripted
from gaploop.sim.gaps import add_mechanisms
from gaploop.sim.kinematics import ArmIk
from gaploop.sim.scene import SceneOptions, cell_appliers
from gaploop.sim.tracker import Tracker

add_mechanisms("benchmarks.blind_gaps")
PAIR = CELL_ARMS["bi_so101"]
LEFT, RIGHT = PAIR.arms
SIX = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


@pytest.fixture(scope="module")
def cell() -> Any:
    with SimCell(robot="bi_so101") as built:
        yield built


def test_joints_are_called_as_lerobots_pair_calls_them(cell: SimCell) -> None:
    assert cell.joint_names == tuple(f"{side}_{name}" for side in ("left", "right") for name in SIX)
    assert PAIR.grippers == [5, 11]
    assert [PAIR.columns(side) for side in PAIR.arms] == [slice(0, 6), slice(6, 12)]


def test_both_grippers_go_from_0_to_100() -> None:
    ends = np.zeros((2, 12))
    ends[:, [5, 11]] = np.array(PAIR.grip.travel_rad)[:, None]
    assert to_degrees(ends, PAIR)[:, [5, 11]] == pytest.approx(np.array([[0, 0], [100, 100]]))
    q_rad = np.random.default_rng(0).uniform(-1, 1, (5, 12))
    assert np.allclose(from_degrees(to_degrees(q_rad, PAIR), PAIR), q_rad)


def miss_m(side: MountedArm, place_m: FloatArray) -> float:
    """How far from a place on the table this arm's hand stays, pointing down [m]."""
    ik, q = (
        ArmIk(nominal_arm(side.arm), side.arm.joint_names[:-1]),
        np.array(side.arm.home_q_rad)[:5],
    )
    target = np.array([*(place_m - side.at_m), 0.0125])
    for _ in range(40):
        q = ik.solve(target, float(np.arctan2(target[1], target[0])) + np.pi, q)
    position, rotation = ik.tcp(q)
    tilted = rotation[2, 2] > -np.cos(np.radians(25.0))
    return 1.0 if tilted else float(np.linalg.norm(position - target))


def test_neither_arm_alone_brings_the_cube_to_the_disc(cell: SimCell) -> None:
    for seed in range(5):
        cell.reset(seed)
        truth: dict[str, Any] = cell.truth()
        cube, disc = (np.array(truth[key])[:2] for key in ("object_pos_m", "target_pos_m"))
        relay = np.array(PAIR.relay_m)
        for side, own, other in ((LEFT, cube, disc), (RIGHT, disc, cube)):
            assert max(miss_m(side, own), miss_m(side, relay)) < 0.004
            assert miss_m(side, other) > 0.008


def test_one_arm_hands_over_to_the_other(cell: SimCell) -> None:
    leader = scripted(cell, 0)
    assert isinstance(leader, RelayLeader)
    cell.reset(7)
    leader.reset()
    while not leader.done() and cell.now_s < 12.0:
        cell.command(leader.read(cell.now_s).q_rad)
        cell.advance(0.02)
    assert leader.done()
    assert cell.success()


def test_a_hand_that_reaches_in_is_seen_by_both_arms() -> None:
    """The pair's truth is arrays, and "is there a hand?" ended the first take with a traceback."""
    with SimCell(robot="bi_so101", gaps={"human_behavior.nudge": 1.0}, image_size=64) as cell:
        cell.reset(7)
        leader = RelayLeader(cell, 0)
        seen = False
        while not leader.done() and cell.now_s < 12.0:
            cell.command(leader.read(cell.now_s).q_rad)
            cell.advance(0.02)
            seen |= cell.truth()["hand_pos_m"] is not None
        assert seen


def test_the_arm_whose_turn_it_is_not_stands_still(cell: SimCell) -> None:
    cell.reset(1)
    leader = RelayLeader(cell, 1)
    moved = np.zeros(12, dtype=bool)
    before = leader.read(0.0).q_rad
    for _ in range(60):
        cell.advance(0.02)
        after = leader.read(cell.now_s).q_rad
        moved |= after != before
        before = after
        cell.command(after)
    assert moved[:6].any()
    assert not moved[6:].any()


def test_the_tracker_sees_both_ends_of_the_table(cell: SimCell) -> None:
    tracker = Tracker.nominal(cell.image_size, arm=cell.arm)
    for seed in range(4):
        cell.reset(seed)
        truth: dict[str, Any] = cell.truth()
        found = tracker.detect(cell.frame().image)
        assert found.object is not None
        assert found.target is not None
        for homography, blob, key in (
            (tracker.calibration.object_from_px, found.object, "object_pos_m"),
            (tracker.calibration.table_from_px, found.target, "target_pos_m"),
        ):
            seen = homography @ np.array([*blob.centroid_px, 1.0])
            assert np.linalg.norm(seen[:2] - truth[key][:2]) < 0.004


@pytest.mark.parametrize(
    "gap",
    [
        "actuator_response.weak", "spatial_geometry.base_moved", "spatial_geometry.bent_gripper",
        "contact_dynamics.soft",
    ],
)  # fmt: skip
def test_a_gap_of_the_arm_strikes_both_arms_alike(cell: SimCell, gap: str) -> None:
    with SimCell(robot="bi_so101", gaps={gap: 0.8}, image_size=64) as gapped:
        was, now = cell.model, gapped.model
        fields = ("actuator_forcerange", "dof_frictionloss", "body_pos", "body_quat", "geom_solref")
        changed = False
        for field in fields:
            difference = getattr(now, field) - getattr(was, field)
            names = [now.body(b).name for b in range(now.nbody)]
            left = [b for b, name in enumerate(names) if name.startswith("left_")]
            right = [names.index(names[b].replace("left_", "right_")) for b in left]
            if field.startswith("geom"):
                owner = now.geom_bodyid
                rows = [np.flatnonzero(np.isin(owner, side)).tolist() for side in (left, right)]
            elif field.startswith("body"):
                rows = [left, right]
            else:
                half = len(cell.joint_names) // 2
                rows = [list(range(half)), list(range(half, 2 * half))]
            assert np.allclose(difference[rows[0]], difference[rows[1]])
            changed |= bool(np.any(difference[rows[0]]))
        assert changed


def test_a_grippers_zero_is_never_off_on_either_arm() -> None:
    sensors = cell_appliers(SceneOptions(arm=PAIR)).sensors
    sensors.zero_rad[:] = 0.1
    sensors.reset([0])
    assert np.flatnonzero(sensors.offset(0.0, np.zeros(12)) == 0.0).tolist() == [5, 11]


def test_what_a_pair_is_not_for_is_refused() -> None:
    with pytest.raises(UnusableInputError, match="pick_lift"):
        SimCell("pick_lift", robot="bi_so101")
