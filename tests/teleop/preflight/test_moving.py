"""The checks that move an arm find what encoders can't: swapped ids, and who watches says so."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emulated import SWAPPED, emulated_arm

from gaploop.core.clock import ManualClock
from gaploop.core.station import SafetyLimits, Station
from gaploop.core.vocabulary import Domain
from gaploop.scripts import _arms
from gaploop.scripts._preflight_motion import moving_checks
from gaploop.scripts._preflight_person import Terminal
from gaploop.teleop.control import ControlThread
from gaploop.teleop.emulator.arms import JOINTS
from gaploop.teleop.loop import Rates
from gaploop.teleop.preflight.estop import check_estop
from gaploop.teleop.preflight.item import By, Item, Person, Result, may_drive
from gaploop.teleop.preflight.joints import OneJoint
from gaploop.teleop.safety import make_safety

pytestmark = pytest.mark.usefixtures("patient_wire")

PATIENT = SafetyLimits(lost_servo_s=2.0)
"""The driver's own waits are of the machine's time: beside busy programs it may wait in vain."""
STATION = Station(name="bench", domain=Domain.SIM_TARGET, safety=PATIENT)


@pytest.fixture
def clock() -> ManualClock:
    """Return the time of arm and control loop: it goes on as the loop makes its turns."""
    return ManualClock()


def checked(robot: object, clock: ManualClock, person: Person) -> list[Item]:
    follower, _ = _arms.follower_of(robot, STATION)
    return list(moving_checks(follower, clock, STATION, Rates.near(50.0), person))


def test_an_arm_that_is_well_passes_and_its_switch_is_seen_on_the_bus(
    tmp_path: Path, clock: ManualClock
) -> None:
    with emulated_arm(tmp_path, clock) as (robot, watcher):
        items = checked(robot, clock, watcher)
    assert may_drive(items), [item for item in items if item.mend]
    by_name = {item.name: item for item in items}
    assert {item.data["joint"] for item in items if item.name == "joint_order"} == set(JOINTS)
    assert [item.name for item in items][-3:] == ["loop", "estop", "estop"]
    assert by_name["estop"].by is By.MACHINE
    assert ["Cut" in what for what in watcher.told_to] == [True, False]
    assert not any("shoulder" in question for question in watcher.questions)  # not suggested


def test_swapped_servo_ids_and_a_stuck_joint_are_found(tmp_path: Path, clock: ManualClock) -> None:
    """Swapped before lerobot-calibrate, two servos answer for each other: encoders agree with
    commands, and every policy and every take has the two joints in each other's place.
    """
    with emulated_arm(tmp_path, clock, swapped=True, stuck=("wrist_roll",)) as (robot, watcher):
        items = checked(robot, clock, watcher)
    failed = [item for item in items if item.result is Result.FAIL and item.name == "joint_order"]
    seen = {item.data["joint"] for item in failed if item.by is By.PERSON}
    assert seen == set(SWAPPED)
    (measured,) = [item for item in failed if item.by is By.MACHINE]
    assert measured.data["joint"] == "wrist_roll"
    assert "doesn't move" in measured.found
    assert not may_drive(items)


def test_a_stop_of_an_arm_that_has_tripped_already_is_not_called_tried(
    tmp_path: Path, clock: ManualClock
) -> None:
    """After a trip in the joints' check the arm was limp already, and the stop was reported ok."""
    with emulated_arm(tmp_path, clock) as (robot, _):
        follower, _ = _arms.follower_of(robot, STATION)
        safety = make_safety(STATION, follower, 0.02)
        leader = OneJoint(follower.read().position_rad, follower.joint_limits_rad)
        control = ControlThread(follower, leader, safety, Rates.near(50.0), clock=clock)
        with control:
            control.start()
            control.estop()
            while not control.snapshot().tripped:
                time.sleep(0.01)  # the loop makes its turns, and time with them
            item = check_estop(control, follower, safety.limits.torque_off_s)
    assert item.result is Result.FAIL
    assert "ESTOP" in item.found


@pytest.mark.slow
def test_where_nobody_watches_the_answer_is_no_whatever_yes_says(
    tmp_path: Path, clock: ManualClock
) -> None:
    with emulated_arm(tmp_path, clock) as (robot, _):
        items = checked(robot, clock, Terminal(yes=True))
    open_ = [item.name for item in items if item.result is Result.UNANSWERED]
    assert open_ == [*["joint_order"] * 6, "estop"]
    assert not may_drive(items)
