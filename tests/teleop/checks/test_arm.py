"""The checks that move an arm find what encoders can't: swapped ids, and who watches says so."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from emulated import SWAPPED, emulated_arm
from patient_wire import LoopTime

from gaploop.collect import lerobot_factory
from gaploop.core.clock import Clock
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.scripts._preflight import Terminal
from gaploop.sim.cell import SimCell
from gaploop.sim.follower import CellFollower
from gaploop.teleop.checks.arm import (
    MOVED,
    STILL,
    Moved,
    OneJoint,
    check_estop,
    check_limits,
    check_moving,
)
from gaploop.teleop.checks.result import By, CheckResult, Level, Person, all_usable
from gaploop.teleop.control import ControlThread
from gaploop.teleop.emulator.arms import JOINTS
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety

STATION = Station(name="bench", domain=Domain.SIM_TARGET)


def checked(robot: object, clock: Clock, person: Person) -> list[CheckResult]:
    follower, _ = lerobot_factory.follower_of(robot, STATION)
    return list(check_moving(follower, clock, STATION, Rates.near(50.0), person))


def test_an_arm_that_is_well_passes_and_its_switch_is_seen_on_the_bus(
    tmp_path: Path, loop_time: LoopTime
) -> None:
    with emulated_arm(tmp_path, loop_time) as (robot, watcher):
        items = checked(robot, loop_time, watcher)
    assert all_usable(items), [item for item in items if item.fix]
    by_name = {item.check: item for item in items}
    assert {item.data["joint"] for item in items if item.check == "joint_order"} == set(JOINTS)
    assert [item.check for item in items][-3:] == ["loop", "estop", "estop"]
    assert by_name["estop"].by is By.MACHINE
    assert ["Cut" in what for what in watcher.told_to] == [True, False]
    assert not any("shoulder" in question for question in watcher.questions)  # not suggested


def test_swapped_servo_ids_and_a_stuck_joint_are_found(tmp_path: Path, loop_time: LoopTime) -> None:
    """Swapped before lerobot-calibrate, two servos answer for each other: encoders agree with
    commands, and every policy and every take has the two joints in each other's place.
    """
    with emulated_arm(tmp_path, loop_time, swapped=True, stuck=("wrist_roll",)) as (robot, watcher):
        items = checked(robot, loop_time, watcher)
    failed = [item for item in items if item.level is Level.FAIL and item.check == "joint_order"]
    seen = {item.data["joint"] for item in failed if item.by is By.PERSON}
    assert seen == set(SWAPPED)
    (measured,) = [item for item in failed if item.by is By.MACHINE]
    assert measured.data["joint"] == "wrist_roll"
    assert "doesn't move" in measured.found
    assert not all_usable(items)


def test_a_stop_of_an_arm_that_has_tripped_already_is_not_called_tried(
    tmp_path: Path, loop_time: LoopTime
) -> None:
    """After a trip in the joints' check the arm was limp already, and the stop was reported ok."""
    with emulated_arm(tmp_path, loop_time) as (robot, _):
        follower, _ = lerobot_factory.follower_of(robot, STATION)
        safety = make_safety(STATION, follower, 0.02)
        leader = OneJoint(follower.read().position_rad, follower.joint_limits_rad)
        control = ControlThread(follower, leader, safety, Rates.near(50.0), clock=loop_time)
        with control:
            control.start()
            control.estop()
            while not control.snapshot().tripped:
                time.sleep(0.01)  # the loop makes its turns, and time with them
            item = check_estop(control, follower, safety.limits.torque_off_s)
    assert item.level is Level.FAIL
    assert "ESTOP" in item.found


@pytest.mark.slow
def test_where_nobody_watches_the_answer_is_no_whatever_yes_says(
    tmp_path: Path, loop_time: LoopTime
) -> None:
    with emulated_arm(tmp_path, loop_time) as (robot, _):
        items = checked(robot, loop_time, Terminal(yes=True))
    open_ = [item.check for item in items if item.level is Level.UNANSWERED]
    assert open_ == [*["joint_order"] * 6, "estop"]
    assert not all_usable(items)


@given(st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3), st.integers(0, 2))
def test_a_joint_passes_only_if_it_alone_comes_its_way(shares: list[float], joint: int) -> None:
    """Whatever else happened, something is said."""
    moved = Moved(joint, -0.1, -0.1 * np.array(shares))
    others = [abs(s) for j, s in enumerate(shares) if j != joint]
    is_well = shares[joint] >= MOVED and max(others) <= STILL
    assert (moved.fault(("a", "b", "c")) == "") == is_well


def test_feedback_from_the_wrong_joint_is_named() -> None:
    moved = Moved(0, 0.1, np.array([0.0, 0.1, 0.0]))
    assert moved.fault(("a", "b", "c")) == "a was asked to move and b moved in its place"


def test_limits_are_said_and_an_arm_outside_them_is_seen() -> None:
    with SimCell() as cell:
        follower = CellFollower(cell)
        station = Station(name="lab")
        items = list(check_limits(station, follower, 0.005, has_file=True))
        assert [item.level for item in items] == [Level.OK, Level.OK]
        lift = follower.joint_names.index("shoulder_lift")
        at = follower.read().position_rad[lift]
        narrow = Station(name="lab", joint_limits_rad={"shoulder_lift": (at + 0.3, at + 0.6)})
        outside: CheckResult = next(iter(check_limits(narrow, follower, 0.005, has_file=True)))
    assert outside.level is Level.FAIL
    assert "shoulder_lift by 0.3" in outside.found
