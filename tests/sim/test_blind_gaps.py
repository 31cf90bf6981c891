"""Each blind mechanism acts as it says, and only through what a real robot would show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import blind_gaps
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import add_mechanisms

add_mechanisms(blind_gaps.__name__)
HOME = np.asarray(SO101.home_q_rad)


def slide_m(gaps: dict[str, float]) -> float:
    """How far a pushed object slides."""
    with SimCell(gaps=gaps, image_size=64) as cell:
        cell.reset(0)
        start = np.array(cell.truth()["object_pos_m"])
        cell.data.qvel[int(cell.model.joint("object").dofadr[0])] = 0.15
        cell.advance(0.5)
        return float(np.linalg.norm(np.array(cell.truth()["object_pos_m"]) - start))


def test_an_object_slides_on_a_slick_table() -> None:
    assert slide_m({"contact_dynamics.slick_table": 1.0}) > slide_m({}) + 0.03


@pytest.mark.members(6)
@pytest.mark.parametrize(
    ("key", "telemetry", "pictures"),
    [
        ("visual_domain.glare", False, True),
        ("visual_domain.banding", False, True),
        ("sensor_noise.encoder_spikes", True, True),
        ("sensor_noise.dead_rows", False, True),
        ("object_property.flat", False, True),
        ("object_property.l_shaped", False, True),
        ("environmental_complexity.posts", False, True),
        ("actuator_response.torque_limit", True, True),
        ("actuator_response.deaf_joint", True, True),
        ("spatial_geometry.base_moved", False, True),
        ("spatial_geometry.bent_gripper", False, True),
        ("task_specification.deadline", False, False),
        ("task_specification.keep_clear", False, False),
    ],
)
def test_a_gap_shows_where_it_acts_and_nowhere_else(
    key: str, telemetry: bool, pictures: bool, nominal: SimCell, sweep: Any
) -> None:
    joints, seen = sweep(nominal, 4)
    with SimCell(gaps={key: 1.0}, gap_seed=0) as cell:  # posts stand on the other side
        other_joints, other_seen = sweep(cell, 4)
    assert (np.abs(other_joints - joints).max() > 0.08) == telemetry
    differs = max(np.abs(a.astype(float) - b).mean() for a, b in zip(seen, other_seen, strict=True))
    assert (differs > 0.02) == pictures


def test_dead_rows_are_dark_and_grow_with_severity() -> None:
    dark = []
    for severity in (0.0, 0.5, 1.0):
        with SimCell(gaps={"sensor_noise.dead_rows": severity}) as cell:
            rows = cell.frame().image.max(axis=(1, 2))
            dark.append(float((rows < 20).mean()))
    assert dark[0] == 0.0
    assert 0.03 < dark[1] < 0.12 < 0.2 < dark[2] < 0.45


def test_a_deaf_joint_lags_alone() -> None:
    """It is one servo that misses its goals; the others follow theirs."""
    with SimCell(gaps={"actuator_response.deaf_joint": 1.0}, gap_seed=3, image_size=64) as cell:
        cell.reset(0)
        late = np.zeros(6)
        for tick in range(150):
            goal = HOME - 0.2 + 0.2 * np.cos(0.04 * tick)
            cell.command(goal)
            cell.advance(0.02)
            late = np.maximum(late, np.abs(cell.read().position_rad - goal))
        deaf = int(cell.injected[0].parameters["deaf_joint"])
    assert late[deaf] > 0.1
    assert np.delete(late[:5], deaf).max() < 0.05


def test_a_torque_limit_caps_the_load() -> None:
    load_pct = []
    for gaps in ({}, {"actuator_response.torque_limit": 1.0}):
        with SimCell(gaps=gaps, image_size=64) as cell:
            cell.reset(0)
            cell.command(HOME + 0.5)
            peak = np.zeros(6)
            for _ in range(20):
                cell.advance(0.02)
                peak = np.maximum(peak, np.abs(cell.read().load_pct))
            load_pct.append(peak[:5].max())
    assert load_pct[1] < 22.0 < 90.0 < load_pct[0]


def test_a_hand_lies_on_the_target_and_leaves() -> None:
    with SimCell(gaps={"human_behavior.cover_target": 1.0}, image_size=64) as cell:
        cell.reset(3)
        target = np.array(cell.truth()["target_pos_m"])
        cell.advance(3.0)
        hand = np.array(cell.truth()["hand_pos_m"])
        assert hand[2] < 0.02
        assert np.linalg.norm(hand[:2] - target[:2]) < 0.03
        cell.advance(5.0)
        assert cell.truth()["hand_pos_m"] is None


def test_a_bump_pushes_the_arm_aside() -> None:
    """The arm stands over the object, commanded to stay; the hand passes through its place."""
    moved = []
    for gaps in ({}, {"human_behavior.bump_arm": 1.0}):
        with SimCell(gaps=gaps, gap_seed=2, image_size=64) as cell:
            cell.reset(3)
            cell.command(np.array([0.0, 0.0, 0.3, 1.2, 0.0, 0.5]))
            cell.advance(0.5)
            cell.data.qpos[int(cell.model.joint("object").qposadr[0]) :][:2] = np.array(
                cell.truth()["tool_pos_m"]
            )[:2]
            places = []
            for _ in range(150):
                cell.advance(0.02)
                places.append(cell.read().position_rad)
            moved.append(float(np.ptp(np.array(places)[25:], axis=0).max()))
    assert moved[1] > moved[0] + 0.05
