"""The doctor's scan of a servo bus: finds everybody, says who is unwell, changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from calibration_faults import faulty

from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.checks.calibrations import check_arm_files
from gaploop.teleop.checks.servos import check_servos
from gaploop.teleop.emulator.arms import ArmPlan, koch, openmanipulator, so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.servos.calibration import SWAP_FIX, arm_folder, usual_folder

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
                for register in servo.memory.registers.values()
                if register.writable
            }
            for servo in bus.all_servos
        ]


@pytest.mark.members(2)
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
        found = [f for f in check_servos(bus.port) if "read_all_s" not in f.data]
        (said,) = [f for f in found if f.level is Level.WARN]
        assert "torque on at servos 1 (shoulder_pan), 2" in said.found
        assert all(servo.torque for servo in bus.all_servos)


@pytest.mark.members(2)
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
        (
            so101().with_servo("elbow_flex", settings={"Max_Torque_Limit": 100}),
            Level.WARN,
            "servo 3 (elbow_flex) may not use its torque (Max_Torque_Limit 100",
        ),
        (
            so101().with_servo("wrist_flex", settings={"CCW_Dead_Zone": 20}),
            Level.WARN,
            "servo 4 (wrist_flex) ignores goals that are less than 20 steps of 0.088° away (CCW_D",
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


def test_a_bad_cable_isnt_several_servos_with_one_id() -> None:
    """Of a wire that spoils three answers of ten an owner was told to give a servo another id."""
    with EmulatedBus(faults=[Fault("corrupt", rate=0.3)]) as bus:
        found = [finding.found for finding in check_servos(bus.port)]
    assert not [words for words in found if "answer to id" in words]
    assert [words for words in found if "answers came garbled" in words]


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


def folder_of(root: Path, kept: dict[str, dict[str, int]], arm: str) -> Path:
    """Write the calibration file of an arm where LeRobot looks for it."""
    file = root / "robots" / arm / "f.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(kept))
    return root


@pytest.mark.members(2)
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
    plan, kept = faulty(so101(), "elbow_flex", fault)
    folder = folder_of(tmp_path, kept, "so_follower")
    with EmulatedBus(plan=plan) as bus:
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
    folder = folder_of(tmp_path, openmanipulator().calibration(), "omx_follower")
    with EmulatedBus("so101") as bus:
        assert not [f for f in check_servos(bus.port, folder) if "calibration" in f.data]


def failures(found: list[CheckResult]) -> list[CheckResult]:
    """What is wrong, but for how long a turn takes on a crowded machine."""
    return [f for f in found if f.level is not Level.OK and "read_all_s" not in f.data]


def keep(folder: Path, kind: str, arm: str, name: str, plan: ArmPlan) -> Path:
    file = folder / kind / arm / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(plan.calibration()))
    return file


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("plan", "silent", "says"),
    [
        (so101(), ["gripper"], "servo 6 (gripper) is silent; 1 to 5 answer"),
        (so101(), ["shoulder_pan"], "servo 1 (shoulder_pan) is silent; 2 to 6 answer"),
        (so101(), ["wrist_roll", "gripper"], "servos 5 (wrist_roll), 6 (gripper) are silent"),
        (so101(), ["shoulder_lift", "gripper"], "servos 2 (shoulder_lift), 6 (gripper) are silent"),
        (koch(), ["gripper"], "servo 6 (gripper) is silent"),
        (koch("leader"), ["shoulder_pan", "gripper"], "servos 1 (shoulder_pan), 6 (gripper)"),
        (openmanipulator(), ["gripper"], "servo 16 (gripper) is silent; 11 to 15 answer"),
        (openmanipulator("leader"), ["gripper"], "servo 6 (gripper) is silent"),
    ],
)
def test_a_silent_servo_is_named_wherever_in_the_chain(
    plan: ArmPlan, silent: list[str], says: str, tmp_path: Path
) -> None:
    """The last one is the one whose cable comes off: "ids 1 to 5, all ok"."""
    arm = "so_follower" if plan.model == "so101" else f"{plan.model}_{plan.role}"
    keep(tmp_path, "robots" if plan.role == "follower" else "teleoperators", arm, "f", plan)
    with EmulatedBus(plan=plan.calibrated(), wire_time=False) as bus:
        whole = sorted(bus.servos)
        gone = [servo.id for servo in plan.servos if servo.name in silent]
        for servo_id in gone:
            bus.faults.add(Fault("vanish", id=servo_id))
        found = list(check_servos(bus.port, tmp_path))
        (fail,) = failures(found)
        assert fail.level is Level.FAIL
        assert says in fail.found
        assert "cable" in fail.fix
        assert fail.data["missing"] == gone
        assert not any("holds the calibration of" in f.found for f in found)
        for servo_id in gone:  # the fix: its cable
            bus.inflict(Fault("vanish", id=servo_id), False)
        found = list(check_servos(bus.port, tmp_path))
    assert found[0].data["ids"] == whole
    assert not failures(found)
    assert any("holds the calibration of" in f.found for f in found)


def test_a_file_knows_of_more_servos_than_the_shape_of_the_arm(tmp_path: Path) -> None:
    """A LeKiwi whose wheels are silent looks like an SO-101."""
    file = keep(tmp_path, "robots", "lekiwi", "kiwi", so101())
    motors = {f"arm_{name}": motor for name, motor in json.loads(file.read_text()).items()}
    motors |= {f"wheel_{n}": {**motors["arm_gripper"], "id": n} for n in (7, 8, 9)}
    file.write_text(json.dumps(motors))
    with EmulatedBus(plan=so101().calibrated(), wire_time=False) as bus:
        found = list(check_servos(bus.port, tmp_path))
    (fail,) = failures(found)
    assert "servos 7 (wheel_7), 8 (wheel_8), 9 (wheel_9) are silent" in fail.found


def test_an_arm_of_unknown_make_says_what_it_cannot_know() -> None:
    plan = so101().with_servo("gripper", id=12).with_servo("wrist_roll", id=11)
    with EmulatedBus(plan=plan, wire_time=False) as bus:
        first, *others = check_servos(bus.port)
    assert "which arm it is isn't known" in first.found
    assert failures(others)[0].data["missing"] == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("plan", "says", "fix"),
    [
        (
            koch().with_servo("gripper", model="xl330-m077"),
            "servo 6 (gripper) is a xl330-m077, a koch_follower has a xl330-m288 there",
            "lerobot-setup-motors",
        ),
        (
            koch().with_servo("shoulder_lift", id=3).with_servo("elbow_flex", id=2),
            "their ids are swapped",
            "one plugged in at a time",
        ),
        (
            so101().with_servo("gripper", settings={"Baud_Rate": 1}),
            "servo 6 (gripper) speaks at 500000 baud, the others at 1000000",
            "lerobot-setup-motors",
        ),
        (
            so101().with_servo("shoulder_pan", settings={"Max_Voltage_Limit": 80}),
            "12.0 V on servo 1 (shoulder_pan) for at most 8.0 V",
            "Switch the arm's power off now",
        ),
    ],
)
def test_more_that_is_wrong_with_servos(plan: ArmPlan, says: str, fix: str) -> None:
    with EmulatedBus(plan=plan, wire_time=False) as bus:
        bus.faults.add(Fault("voltage", value=12.0)) if "12.0" in says else None
        (wrong,) = failures(list(check_servos(bus.port)))
    assert wrong.level is Level.FAIL
    assert says in wrong.found
    assert fix in wrong.fix


@pytest.mark.parametrize(
    ("plan", "volts", "says"),
    [
        (koch(), 17.0, ["7.6 V on servos 3 (elbow_flex), 4 (wrist_flex), 5 (wrist_roll), 6",
                        "17.0 V on servos 1 (shoulder_pan), 2 (shoulder_lift) for at most 14.0"]),
        (koch(), 5.0, ["2.2 V on servos 3 (elbow_flex), 4 (wrist_flex), 5 (wrist_roll), 6",
                       "5.0 V on servos 1 (shoulder_pan), 2 (shoulder_lift) for at least 6.0"]),
        (so101(), 7.4, ["7.4 V on servos 1 (shoulder_pan), 2 (shoulder_lift), 3"]),
        (so101(), 3.5, ["3.5 V on servos 1 (shoulder_pan), 2 (shoulder_lift), 3"]),
    ],
)  # fmt: skip
def test_a_supply_that_does_not_fit_the_servos(
    plan: ArmPlan, volts: float, says: list[str]
) -> None:
    with EmulatedBus(plan=plan, wire_time=False) as bus:
        bus.faults.add(Fault("voltage", value=volts))
        found = failures(list(check_servos(bus.port)))
    assert [f.found[: len(words)] for f, words in zip(found, says, strict=True)] == says
    is_weak = volts == 7.4
    assert {f.level for f in found} == {Level.WARN if is_weak else Level.FAIL}


def test_leader_and_follower_with_the_same_file_are_told_apart_by_role(tmp_path: Path) -> None:
    """Whoever came first in the alphabet was it."""
    for plan, follower, leader in (
        (koch(), "koch_follower", "koch_leader"),
        (so101(), "so_follower", "so_leader"),
    ):
        keep(tmp_path, "robots", follower, "f", plan)
        keep(tmp_path, "teleoperators", leader, "l", plan)
    drives = {"Max_Torque_Limit": 500, "Protection_Current": 250, "Overload_Torque": 25}
    limited = so101().calibrated().with_servo("gripper")
    (gripper,) = (s for s in limited.servos if s.name == "gripper")
    limited = limited.with_servo("gripper", settings={**gripper.settings, **drives})
    for plan, says in (
        (koch().calibrated(), "holds the calibration of koch_follower 'f'"),
        (limited, "holds the calibration of so_follower 'f'"),
        (so101().calibrated(), "so_follower 'f' and so_leader 'l' have the same calibration"),
    ):
        with EmulatedBus(plan=plan, wire_time=False) as bus:
            found = list(check_servos(bus.port, tmp_path))
        (said,) = [f.found for f in found if "calibration" in f.data]
        assert said.startswith(says)
    (tmp_path / "robots/koch_follower/f.json").unlink()
    (tmp_path / "robots/so_follower/f.json").unlink()
    for plan, level in ((koch().calibrated(), Level.FAIL), (limited, Level.WARN)):
        with EmulatedBus(plan=plan, wire_time=False) as bus:
            (wrong,) = failures(list(check_servos(bus.port, tmp_path)))
        assert wrong.level is level
        assert wrong.found.startswith("is a follower by its servos, but holds the calibration of")


def test_swapped_ids_of_two_joints_are_seen_by_the_calibration(tmp_path: Path) -> None:
    keep(tmp_path, "robots", "so_follower", "f", so101())
    swapped = so101().calibrated().with_servo("shoulder_lift", id=3).with_servo("elbow_flex", id=2)
    with EmulatedBus(plan=swapped, wire_time=False) as bus:
        (wrong,) = failures(list(check_servos(bus.port, tmp_path)))
    assert "servos 2 and 3 have swapped ids" in wrong.found
    assert wrong.fix == SWAP_FIX  # "calibrate it anew" would have made that last


@pytest.mark.parametrize("former", ["so101_follower", "so100_follower", "so101_leader"])
def test_a_calibration_in_lerobots_former_folder_is_brought_over(
    former: str, tmp_path: Path
) -> None:
    """huggingface/lerobot#1668: "isn't calibrated, run lerobot-calibrate" moves all zeros."""
    role = former.partition("_")[2]
    plan, kind = so101(role), "robots" if role == "follower" else "teleoperators"
    file = keep(tmp_path, kind, former, "my arm", plan)
    (in_files,) = check_arm_files(tmp_path)
    assert in_files.level is Level.WARN
    assert "lerobot-calibrate" not in in_files.fix
    with EmulatedBus(plan=plan.calibrated(), wire_time=False) as bus:
        (wrong,) = failures(list(check_servos(bus.port, tmp_path)))
        assert wrong.level is Level.FAIL
        assert str(file.parent) in wrong.found
        command = wrong.fix.rpartition("my arm: ")[2]
        assert command == in_files.fix.rpartition("anew: ")[2]
        subprocess.run(command, shell=True, check=True)
        found = list(check_servos(bus.port, tmp_path))
        assert not failures(found)
        assert f"holds the calibration of so_{role} 'my arm'" in found[-1].found
    assert all(f.level is Level.OK for f in check_arm_files(tmp_path))


def test_another_calibration_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    keep(tmp_path, "robots", "so101_follower", "f", so101())
    newer = keep(tmp_path, "robots", "so_follower", "f", so101("leader"))
    before = newer.read_text()
    with EmulatedBus(plan=so101().calibrated(), wire_time=False) as bus:
        (wrong,) = failures(list(check_servos(bus.port, tmp_path)))
        subprocess.run(wrong.fix.rpartition("f_former: ")[2], shell=True, check=True)
        assert not failures(list(check_servos(bus.port, tmp_path)))
    assert newer.read_text() == before


def test_a_calibration_where_lerobots_variables_dont_point_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = keep(usual_folder(), "robots", "so_follower", "f", so101())
    monkeypatch.setenv("HF_LEROBOT_CALIBRATION", str(tmp_path / "elsewhere"))
    with EmulatedBus(plan=so101().calibrated(), wire_time=False) as bus:
        (wrong,) = failures(list(check_servos(bus.port, arm_folder())))
        assert wrong.level is Level.FAIL
        assert str(file.parent) in wrong.found
        subprocess.run(wrong.fix.rpartition("id f: ")[2], shell=True, check=True)
        assert not failures(list(check_servos(bus.port, arm_folder())))
