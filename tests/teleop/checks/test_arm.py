"""The checks that move an arm find what encoders can't: swapped ids, and who watches says so."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from emulated import SWAPPED, emulated_arm
from patient_wire import LoopTime

from gaploop.collect import lerobot_factory
from gaploop.collect.lerobot_types import registries
from gaploop.collect.preflight import Terminal
from gaploop.core.arms import ARMS
from gaploop.core.clock import Clock
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.sim.cell import CellFollower, SimCell
from gaploop.teleop.checks import By, CheckResult, Level, Person, all_usable
from gaploop.teleop.checks.connected_arm import (
    MEASURE,
    MOVED,
    STILL,
    Moved,
    OneJoint,
    check_estop,
    check_joints,
    check_limits,
    check_moving,
)
from gaploop.teleop.control import ControlThread
from gaploop.teleop.emulator.arms import JOINTS, arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.loop import Rates
from gaploop.teleop.lowering import Lowering
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
def test_where_nobody_watches_the_answer_is_no(tmp_path: Path, loop_time: LoopTime) -> None:
    with emulated_arm(tmp_path, loop_time) as (robot, _):
        items = checked(robot, loop_time, Terminal())
    open_ = [item.check for item in items if item.level is Level.UNANSWERED]
    assert open_ == [*["joint_order"] * 6, "estop"]
    assert not all_usable(items)


def test_an_arm_that_sags_as_it_begins_to_hold_is_waited_for() -> None:
    """Its first joint "was asked to move and shoulder_lift moved too": it sank by its weight."""
    sags = iter([0.0, -0.03, -0.05, -0.05, 9.0])

    class Sagging(OneJoint):
        position_rad = property(lambda _self: np.array([next(sags)]), lambda _self, _q_rad: None)

    control: Any = SimpleNamespace(alive=True)
    leader = Sagging(np.zeros(1), np.array([[-0.01, 0.01]]))  # without room to move
    assert [r.level for r in check_joints(control, leader, ["lift"], None, 0)] == [Level.FAIL]
    assert next(sags) == 9.0, "until two looks were the same"


def test_a_base_stands_while_the_joints_above_it_are_tried() -> None:
    """`doctor` tried a LeKiwi's speeds as joints, and drove it; what rolled was kept rolling."""
    leader = OneJoint(np.array([0.1, 0.2, 0.3, -0.5]), np.array([[-1.0, 1.0]] * 4), speeds=2)
    assert [*leader.joints] == [0, 1]
    for joint in leader.joints:
        assert leader.begin(joint) != 0.0
        asked = np.array([leader.read(k / 100).q_rad for k in range(100)])
        assert not asked[:, 2:].any()
        assert np.ptp(asked[:, joint]) > 0.0


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


RESTS = Lowering.rests
STRETCHED_RAD = (0.0, -0.5, 0.3, 0.3, 0.0, 0.5)


class Beside:
    """Somebody beside the arm who answers every question alike, and presses nothing."""

    stopped, is_there = False, True

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.questions: list[str] = []
        self.lets_go: Callable[[], object] = lambda: None

    def listening(self, *_: object) -> AbstractContextManager[None]:
        return nullcontext()

    def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
        self.questions.append(question)
        return self.answer if self.answer in choices else None

    def instruct(self, _what: str) -> bool:
        self.lets_go()
        return True


@pytest.mark.members(1)
@pytest.mark.parametrize(
    ("model", "answer", "damps", "level"),
    [
        ("so101", "y", True, Level.OK),
        ("so101", "n", None, Level.UNANSWERED),
        ("so101", None, None, Level.UNANSWERED),
        ("koch", "y", False, Level.OK),
    ],
)
def test_damping_is_measured_by_a_fall_that_a_person_allows(
    model: str, answer: str | None, damps: bool | None, level: Level, tmp_path: Path,
    loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On the joint model a shoulder falls at 1.1 rad/s with Torque_Enable=2, at 6.5 without."""
    plan = arm_plan(model, "follower").calibrated()
    (tmp_path / "f.json").write_text(json.dumps(plan.calibration()))
    person = Beside(answer)
    monkeypatch.setattr(Lowering, "rests", RESTS)  # it is lowered as by any other session
    bus = EmulatedBus(plan=plan, hand="none", link=tmp_path / "f", clock=loop_time)
    joints = [servo.joint for servo in bus.servos.values()]
    for joint, q_rad in zip(joints, STRETCHED_RAD, strict=True):
        joint.q_rad = joint.hand_rad = q_rad  # as somebody holds it
    loop_time.on_turn = person.lets_go = lambda: [setattr(j, "hand_rad", None) for j in joints]
    with bus:
        robot_config = registries()[0].get_choice_class(f"{model}_follower")
        robot = robot_config(port=str(tmp_path / "f"), id="f", calibration_dir=tmp_path)
        follower, _ = lerobot_factory.follower_of(robot, STATION)
        items = list(
            check_moving(follower, loop_time, STATION, Rates.near(50.0), person, [MEASURE])
        )
        after = [joint.q_rad for joint in joints]
        assert all(servo.memory["Torque_Enable"] == 0 for servo in bus.servos.values())
    (item,) = items
    assert (item.level, item.data.get("damps")) == (level, damps), item
    assert len(person.questions) == (model == "so101")
    if damps:
        braked, free = item.data["deg_s"]
        assert braked < 0.5 * free
        park_rad = [
            ARMS["so101"].park_rad.get(name, q) for name, q in zip(JOINTS, after, strict=True)
        ]
        assert np.abs(np.array(after) - park_rad).max() < 0.15  # lowered before it is limp
