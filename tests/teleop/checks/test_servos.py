"""The doctor's scan of a servo bus: finds everybody, says who is unwell, changes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gaploop.teleop.checks.calibrations import check_arm_files
from gaploop.teleop.checks.result import CheckResult, Level
from gaploop.teleop.checks.servos import check_servos
from gaploop.teleop.emulator import EmulatedBus, Fault, koch, openmanipulator, so101
from gaploop.teleop.emulator.arms import ArmPlan

ARMS = {"so101": so101, "koch": koch, "openmanipulator": openmanipulator}

pytestmark = pytest.mark.usefixtures("patient_serial")


def scan(plan: ArmPlan) -> list[CheckResult]:
    with EmulatedBus(plan=plan) as bus:
        return list(check_servos(bus.port))


def settings(bus: EmulatedBus) -> list[dict[str, int]]:
    """All registers that a host could change."""
    with bus.lock:
        return [
            {
                register.name: servo.memory[register.name]
                for register in servo.memory.table.by_name.values()
                if register.writable
            }
            for servo in bus.all_servos
        ]


@pytest.mark.parametrize("model", ARMS)
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_every_servo_is_found_and_nothing_is_changed(model: str, role: str) -> None:
    with EmulatedBus(model, role=role) as bus:
        before = settings(bus)
        findings = list(check_servos(bus.port))
        after = settings(bus)
        ids = sorted(bus.servos)
    # How long a turn takes on a crowded machine is another finding.
    unhurried = [finding for finding in findings if "read_all_s" not in finding.data]
    assert all(finding.level is Level.OK for finding in unhurried)
    assert findings[0].data["ids"] == ids
    assert after == before


def test_torque_that_was_left_on_is_said_and_left_on() -> None:
    with EmulatedBus() as bus:
        for servo in bus.all_servos:
            servo.memory["Torque_Enable"] = 1
        (said,) = [f for f in check_servos(bus.port) if f.level is Level.WARN]
        assert "torque on at servos 1 (shoulder_pan), 2" in said.found
        assert all(servo.torque for servo in bus.all_servos)


@pytest.mark.parametrize(
    ("plan", "level", "says"),
    [
        (so101().with_servo("gripper", id=5), Level.FAIL, "several servos answer to id 5"),
        (koch().with_servo("gripper", id=5), Level.FAIL, "several servos answer to id 5"),
        (so101().factory_new(), Level.FAIL, "several servos answer to id 1"),
        (koch().factory_new(), Level.FAIL, "several servos answer to id 1"),
        (so101().without(["elbow_flex"]), Level.FAIL, "servo 3 (elbow_flex) is silent"),
        (
            so101().with_servo("gripper", settings={"Firmware_Minor_Version": 9}),
            Level.FAIL,
            "different firmware (3.10: id 1, 2, 3, 4, 5; 3.9: id 6)",
        ),
    ],
)
def test_what_is_wrong_with_a_bus_has_a_fix(plan: ArmPlan, level: Level, says: str) -> None:
    # How long a turn takes on a crowded machine is another finding.
    found = [finding for finding in scan(plan) if "read_all_s" not in finding.data]
    (wrong,) = [finding for finding in found if finding.level is not Level.OK]
    assert wrong.level is level
    assert says in wrong.found
    assert wrong.fix


def test_a_hot_servo_and_a_silent_port() -> None:
    with EmulatedBus() as bus:
        bus.faults.add(Fault("overheat", id=3))
        unwell = [f for f in check_servos(bus.port) if f.level is Level.FAIL]
        assert any("servo 3 (elbow_flex) reports overheating (" in f.found for f in unwell)
        bus.plug([])
        (silent,) = check_servos(bus.port)
    assert silent.level is Level.FAIL
    assert "no servo answers" in silent.found


def test_a_slow_bus_is_said() -> None:
    with EmulatedBus(wire_time=False) as bus:
        bus.faults.add(Fault("slow", latency_s=0.008))
        slow = [f for f in check_servos(bus.port) if "read in" in f.found]
    assert [f.level for f in slow] == [Level.WARN]


def test_a_port_that_is_gone_is_one_finding() -> None:
    master, slave = os.openpty()
    path = os.ttyname(slave)
    os.close(slave)
    os.close(master)
    (gone,) = check_servos(path)
    assert gone.level is Level.FAIL
    assert "\n" not in gone.found


def folder_of(root: Path, plan: ArmPlan, arm: str) -> Path:
    """Write the calibration file of an arm where LeRobot looks for it."""
    file = root / "robots" / arm / "f.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(plan.calibration()))
    return root


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("", ""),
        ("straddles", "elbow_flex: its range 0 to 4095 runs across the encoder's end"),
        ("saturated", "elbow_flex: its homing offset 2047 was cut"),
        ("differs", "elbow_flex: homing_offset 238 in the motor, 88 in the file"),
    ],
)
def test_the_calibration_in_the_motors(fault: str, says: str, tmp_path: Path) -> None:
    plan = so101()
    if fault:
        plan = plan.with_calibration_fault("elbow_flex", fault)
    folder = folder_of(tmp_path, plan, "so_follower")
    with EmulatedBus(plan=plan.calibrated()) as bus:
        found = [f for f in check_servos(bus.port, folder) if "calibration" in f.data]
    failed = [f for f in found if f.level is Level.FAIL]
    assert ["holds the calibration of so_follower 'f'" in f.found for f in found].count(True) == (
        fault != "differs"
    )
    assert len(failed) == bool(fault)
    if failed:
        assert says in failed[0].found
        assert "lerobot-calibrate" in failed[0].fix
    in_files = [f for f in check_arm_files(folder) if f.level is Level.FAIL]
    assert len(in_files) == (fault in ("straddles", "saturated"))


def test_a_file_of_another_arm_is_not_compared(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, openmanipulator(), "omx_follower")
    with EmulatedBus("so101") as bus:
        assert not [f for f in check_servos(bus.port, folder) if "calibration" in f.data]
