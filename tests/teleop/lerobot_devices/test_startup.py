"""What is wrong with an arm is said in one line with its fix, and leaves it limp."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_faults import faulty
from emulated_arms import PLANS as PLANS_OF
from emulated_arms import calibration_folder, config_of, emulated

from gaploop.core.errors import DeviceError, GaploopError, UnusableInputError
from gaploop.teleop.checks import Level
from gaploop.teleop.checks.servos import check_servos
from gaploop.teleop.emulator.arms import koch, so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.lerobot_devices.servo_arm import ServoFollower

pytestmark = pytest.mark.usefixtures("loop_time")


def said(make: Callable[[], Any]) -> str:
    with pytest.raises(GaploopError) as caught:
        make()
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in text
    return text


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.memory["Torque_Enable"] for servo in bus.servos.values())


def test_no_such_port(tmp_path: Path) -> None:
    config = config_of("so101", "follower", "/dev/ttyACM77", tmp_path)
    text = said(lambda: make_follower(config))
    assert "/dev/ttyACM77" in text
    assert "serial port" in text
    assert "lerobot-find-port" in text


def test_not_a_serial_port(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("")
    text = said(lambda: make_follower(config_of("so101", "follower", str(file), tmp_path)))
    assert "can't be used as a serial port" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open anything")
def test_no_permission(tmp_path: Path) -> None:
    master, slave = os.openpty()
    path = os.ttyname(slave)
    os.chmod(path, 0)
    text = said(lambda: make_follower(config_of("so101", "follower", path, tmp_path)))
    os.close(master), os.close(slave)
    assert "usermod -aG" in text


def test_a_port_in_use_names_who_uses_it(tmp_path: Path) -> None:
    with emulated("so101", "follower", tmp_path) as arm:
        follower = make_follower(arm.config)
        text = said(lambda: make_follower(arm.config))
        assert "in use" in text
        assert "given twice" in text
        follower.close()


def test_leader_and_follower_on_one_port(tmp_path: Path) -> None:
    with emulated("so101", "follower", tmp_path) as arm:
        follower = make_follower(arm.config)
        folder = calibration_folder(tmp_path, "leader", so101("leader").calibration())
        config = config_of("so101", "leader", arm.bus.port, folder)
        assert "given twice" in said(lambda: make_leader(config, follower))
        follower.close()


PLANS = {
    "missing": (
        so101().calibrated().without(["elbow_flex"]),
        ("no answer from servo 3 (elbow_flex)", "1, 2, 4, 5, 6 answer"),
    ),
    "doubled": (
        so101().calibrated().with_servo("gripper", id=5),
        ("servo 5 (wrist_roll)", "two servos have that id", "lerobot-setup-motors"),
    ),
    "mixed firmware": (
        so101().calibrated().with_servo("gripper", settings={"Firmware_Minor_Version": 9}),
        ("servo 6 (gripper) has firmware 3.9", "3.10", "FD software"),
    ),
    "wrong model": (
        koch().calibrated().with_servo("gripper", model="xl330-m077"),
        ("servo 6 is a xl330-m077", "xl330-m288"),
    ),
    "unpowered": (so101().without([s.name for s in so101().servos]), ("no servo answers", "power")),
}


@pytest.mark.members(3)
@pytest.mark.parametrize("case", list(PLANS))
def test_wrong_servos(case: str, tmp_path: Path) -> None:
    plan, words = PLANS[case]
    with emulated(plan.model, "follower", tmp_path, plan=plan) as arm:
        text = said(lambda: make_follower(arm.config))
        for word in words:
            assert word in text, text
        assert limp(arm.bus)
        with EmulatedBus("so101") as other:  # the port is free again
            assert other.port != arm.bus.port


@pytest.mark.members(2)
@pytest.mark.parametrize("model", ["so101", "koch"])
@pytest.mark.parametrize("ticks", [1700, -1700])
def test_a_joint_that_stands_far_beyond_its_range_gets_no_torque(
    ticks: int, model: str, tmp_path: Path
) -> None:
    """It went back by 59° in a thirtieth of a second: a servo's goal ends where its range does."""
    with emulated(model, "follower", tmp_path) as arm:
        arm.bus.faults.add(Fault("slip", id=3, value=ticks))
        follower = make_follower(arm.config)
        assert "elbow_flex stands" in said(follower.torque_on)
        assert limp(arm.bus)
        follower.close()


@pytest.mark.members(2)
@pytest.mark.parametrize("model", ["so101", "koch"])
@pytest.mark.parametrize("is_arm", [True, False])
def test_an_echo_is_neither_two_servos_of_one_id_nor_a_missing_one(
    is_arm: bool, model: str, tmp_path: Path
) -> None:
    """Of an adapter with echo an owner was told to set all ids anew. A modem echoes, too."""
    with emulated(model, "follower", tmp_path) as arm:
        hear = arm.bus.hear

        def echoing(data: bytes, baud: int) -> tuple[float, bytes]:
            due_s, answer = hear(data, baud)
            return due_s, data + answer * is_arm

        arm.bus.hear = echoing  # type: ignore[method-assign]
        found = [one for one in check_servos(arm.bus.port) if one.level is Level.FAIL]
        if is_arm and model == "koch":  # whose answers don't look like what was sent
            make_follower(arm.config).close()
            assert not found
        else:
            assert "whatever is sent there comes back" in said(lambda: make_follower(arm.config))
            assert [one.found for one in found] == ["whatever is sent there comes back"]


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_koch_arm_on_the_wrong_side(role: str, tmp_path: Path) -> None:
    other = "leader" if role == "follower" else "follower"
    with (
        emulated("koch", role, tmp_path, plan=koch(other).calibrated()) as arm,
        emulated("koch", "follower", tmp_path / "good") as good,
    ):
        if role == "follower":
            text = said(lambda: make_follower(arm.config))
        else:
            follower = make_follower(good.config)
            text = said(lambda: make_leader(arm.config, follower))
            follower.close()
        assert f"is a koch_{other}, not a koch_{role}" in text
        assert "swap --robot.port and --teleop.port" in text
        assert limp(arm.bus)


def test_an_uncalibrated_arm(tmp_path: Path) -> None:
    with emulated("so101", "follower", tmp_path, plan=so101()) as arm:
        (arm.folder / "arm.json").rename(arm.folder / "other.json")
        text = said(lambda: make_follower(arm.config))
        assert "isn't calibrated" in text
        assert "Calibrated ids: other" in text
        command = f"--robot.type=so101_follower --robot.port={arm.bus.port} --robot.id=arm"
        assert text.endswith(f"Run: lerobot-calibrate {command}")


def test_an_arm_that_holds_another_arms_calibration(tmp_path: Path) -> None:
    theirs = so101("leader").with_servo("elbow_flex", zero_ticks=1900)
    calibration_folder(tmp_path, "leader", theirs.calibration(), "my_leader")
    with emulated("so101", "follower", tmp_path, plan=theirs.calibrated()) as arm:
        text = said(lambda: make_follower(arm.config))
        assert "hold the calibration of 'my_leader', not of 'arm'" in text
        assert "swap --robot.port and --teleop.port" in text
    changed = so101().with_servo("elbow_flex", zero_ticks=2222)
    with emulated("so101", "follower", tmp_path, plan=changed.calibrated()) as arm:
        text = said(lambda: make_follower(arm.config))
        assert "elbow_flex: homing_offset" in text
        assert "lerobot-calibrate" in text
        assert limp(arm.bus)


def test_swapped_feetech_arms_by_their_supply(tmp_path: Path) -> None:
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("so101", "leader", tmp_path) as led,
    ):
        arm.bus.faults.add(Fault("voltage", value=7.4))
        led.bus.faults.add(Fault("voltage", value=12.0))
        follower = make_follower(arm.config)
        text = said(lambda: make_leader(led.config, follower))
        assert "look swapped" in text
        follower.read()  # the leader's bus is no longer part of it
        follower.close()


def test_units_that_differ(tmp_path: Path) -> None:
    with (
        emulated("so101", "follower", tmp_path, use_degrees=False) as arm,
        emulated("so101", "leader", tmp_path) as led,
    ):
        follower = make_follower(arm.config)
        assert follower.units == "m100_100"
        with pytest.raises(UnusableInputError, match="use_degrees=true"):
            make_leader(led.config, follower)
        follower.close()


def test_a_leader_with_other_joints(tmp_path: Path) -> None:
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("koch", "leader", tmp_path) as led,
    ):
        follower = make_follower(arm.config)
        with pytest.raises(GaploopError, match="use_degrees"):
            make_leader(led.config, follower)
        assert limp(led.bus)
        follower.close()


def test_a_follower_goes_on_without_a_leader_that_was_refused(tmp_path: Path) -> None:
    """One arm as the leader of two was refused, but the pair went on asking its closed port."""
    from lerobot.robots.bi_so_follower import BiSOFollowerConfig
    from lerobot.robots.so_follower import SOFollowerConfig

    with (
        EmulatedBus("so101", wire_time=False) as left,
        EmulatedBus("so101", wire_time=False) as right,
        emulated("so101", "leader", tmp_path) as led,
    ):
        folder = calibration_folder(tmp_path, "follower", so101().calibration(), "bi_left")
        calibration_folder(tmp_path, "follower", so101().calibration(), "bi_right")
        arms = {
            f"{side}_arm_config": SOFollowerConfig(port=bus.port)
            for side, bus in (("left", left), ("right", right))
        }
        follower = make_follower(BiSOFollowerConfig(**arms, id="bi", calibration_dir=folder))
        with pytest.raises(UnusableInputError, match="aren't those of the follower"):
            make_leader(led.config, follower)
        assert isinstance(follower, ServoFollower)
        assert follower.group.buses == follower.buses
        follower.close()


def test_a_second_start_works_after_an_error(tmp_path: Path) -> None:
    with emulated("so101", "follower", tmp_path) as arm:
        arm.bus.faults.add(Fault("vanish", id=3))
        with pytest.raises(DeviceError):
            make_follower(arm.config)
        arm.bus.faults.clear()
        make_follower(arm.config).close()


@pytest.mark.members(2)
@pytest.mark.parametrize("model", ["so101", "koch"])
@pytest.mark.parametrize("stall_s", [0.08, 0.4])
def test_a_stall_makes_no_servo_missing_or_doubled(
    stall_s: float, model: str, tmp_path: Path
) -> None:
    """On a busy machine an arm that was well couldn't be opened: "two servos have that id"."""
    with emulated(model, "follower", tmp_path) as arm:
        arm.bus.faults.add(Fault("slow", latency_s=stall_s, for_s=stall_s))
        follower = make_follower(arm.config)
        assert np.isfinite(follower.read().position_rad).all()
        assert len(follower.joint_names) == len(arm.bus.plan.servos)
        follower.close()


@pytest.mark.members(6)
@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.parametrize("model", ["so101", "koch", "openmanipulator"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("straddles", "elbow_flex: its range 0 to 4095 runs across the encoder's end"),
        ("saturated", "elbow_flex: its homing offset"),
        ("differs", "elbow_flex: homing_offset"),
    ],
)
def test_a_calibration_that_cannot_be_driven_with(
    fault: str, words: str, model: str, role: str, tmp_path: Path
) -> None:
    """Ranges over the encoder's end and offsets that were cut were driven with all the same."""
    plan, kept = faulty(PLANS_OF[model](role), "elbow_flex", fault)
    with emulated(model, role, tmp_path, plan=plan) as arm:
        calibration_folder(tmp_path, role, kept)
        if fault == "straddles" and model == "openmanipulator":
            return  # all of its joints are calibrated to the whole turn
        with emulated(model, "follower", tmp_path / "good") as good:
            if role == "follower":
                text = said(lambda: make_follower(arm.config))
            else:
                follower = make_follower(good.config)
                text = said(lambda: make_leader(arm.config, follower))
                follower.close()
        assert words in text
        assert "lerobot-calibrate --" in text
        assert limp(arm.bus)


@pytest.mark.parametrize(("model", "role"), [("so101", "follower"), ("koch", "leader")])
def test_half_a_calibrated_range_is_refused(model: str, role: str, tmp_path: Path) -> None:
    """ENTER after half a sweep: the elbow's zero was 48° off, and so was the workspace box."""
    plan = PLANS_OF[model](role).calibrated()
    kept = plan.calibration()
    kept["elbow_flex"]["range_max"] = 2047
    (elbow,) = (servo for servo in plan.servos if servo.name == "elbow_flex")
    half = {**elbow.settings, "Max_Position_Limit": 2047}
    with (
        emulated(model, role, tmp_path, plan=plan.with_servo("elbow_flex", settings=half)) as arm,
        emulated(model, "follower", tmp_path / "good") as good,
    ):
        calibration_folder(tmp_path, role, kept)
        if role == "follower":
            text = said(lambda: make_follower(arm.config))
        else:
            follower = make_follower(good.config)
            text = said(lambda: make_leader(arm.config, follower))
            follower.close()
        assert limp(arm.bus)
    assert "elbow_flex: its range" in text
    assert "wasn't swept from end to end" in text
    assert "lerobot-calibrate --" in text


@pytest.mark.parametrize(
    ("model", "fault", "settings", "says"),
    [
        ("so101", None, {"Max_Voltage_Limit": 80},
         "12.0 V on servo 1 (shoulder_pan) for at most 8.0 V. Switch the arm's power off now"),
        ("so101", Fault("voltage", value=3.5), {}, "3.5 V on servos 1 (shoulder_pan), 2"),
        ("koch", Fault("voltage", value=5.0), {}, "2.2 V on servos 3 (elbow_flex), 4"),
        ("so101", Fault("overheat", id=3), {}, "servo 3 (elbow_flex) reports overheating (95 °C)"),
        ("koch", Fault("overheat", id=3), {}, "servo 3 (elbow_flex) reports overheating (95 °C)"),
    ],
)  # fmt: skip
def test_a_servo_that_cannot_be_driven_says_why_and_not_what_lerobot_says(
    model: str, fault: Fault | None, settings: dict[str, int], says: str, tmp_path: Path
) -> None:
    """It was "Failed to read 'Min_Position_Limit' on id_=1 … Input voltage error!"."""
    plan = PLANS_OF[model]("follower").calibrated()
    (first, *_) = plan.servos
    plan = plan.with_servo(first.name, settings={**first.settings, **settings})
    with emulated(model, "follower", tmp_path, plan=plan) as arm:
        if fault is not None:
            arm.bus.faults.add(fault)
        text = said(lambda: make_follower(arm.config))
        assert text.startswith(f"{arm.bus.port}: {says}")
        assert "id_" not in text
        assert limp(arm.bus)


def test_a_servo_that_is_lost_while_it_is_set_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot.robots.so_follower import SOFollower

    def fails(_: object) -> None:
        raise ConnectionError("Failed to write 'P_Coefficient' on id_=4 with '16' after 1 tries.")

    monkeypatch.setattr(SOFollower, "configure", fails)
    with emulated("so101", "follower", tmp_path) as arm:
        text = said(lambda: make_follower(arm.config))
        assert f"{arm.bus.port}: servo 4 (wrist_flex) stopped answering as it should" in text
        assert "cables" in text


def lerobots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have LeRobot keep its calibrations in a folder of the test's, and return that."""
    root = tmp_path / "cal"
    for module in (
        "lerobot.robots.robot",
        "lerobot.teleoperators.teleoperator",
        "gaploop.teleop.lerobot_devices.arm",
        "gaploop.teleop.lerobot_devices.make",
    ):
        monkeypatch.setattr(f"{module}.HF_LEROBOT_CALIBRATION", root)
    monkeypatch.setattr("gaploop.teleop.lerobot_devices.arm.usual_folder", lambda: tmp_path / "old")
    return root  # fmt: skip


@pytest.mark.parametrize(
    "place", ["cal/robots/so101_follower", "cal/robots/so100_follower", "old/robots/so_follower"]
)
def test_a_calibration_in_a_former_folder_is_brought_over_not_made_anew(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface/lerobot#1668: a new calibration moves the zeros of all datasets and policies."""
    lerobots(tmp_path, monkeypatch)
    former = tmp_path / place / "arm.json"
    former.parent.mkdir(parents=True)
    former.write_text(json.dumps(so101().calibration()))
    with emulated("so101", "follower", tmp_path) as arm:
        arm.config.calibration_dir = None
        (arm.folder / "arm.json").unlink()
        text = said(lambda: make_follower(arm.config))
        assert str(former) in text
        assert "lerobot-calibrate" not in text
        subprocess.run(text.partition("Bring it over: ")[2], shell=True, check=True)
        make_follower(arm.config).close()


def test_an_old_file_that_the_motors_dont_hold_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lerobots(tmp_path, monkeypatch)
    former = root / "robots" / "so101_follower" / "arm.json"
    former.parent.mkdir(parents=True)
    former.write_text(json.dumps(so101("leader").calibration()))
    with emulated("so101", "follower", tmp_path) as arm:
        arm.config.calibration_dir = None
        (arm.folder / "arm.json").unlink()
        text = said(lambda: make_follower(arm.config))
    assert f"{former} is of this id, but its motors differ" in text


OF_LEROBOT_0_1 = {
    "homing_offset": [-2145, 4, -1401, -3126, 2970, -1769],
    "drive_mode": [0, 1, 0, 0, 1, 0],
    "start_pos": [2085, 56, 1285, 3237, 3080, 1983],
    "end_pos": [3169, 1020, 2425, 4150, -1946, 2793],
    "calib_mode": ["DEGREE"] * 5 + ["LINEAR"],
    "motor_names": [servo.name for servo in so101().servos],
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps(OF_LEROBOT_0_1), "is a calibration of LeRobot 0.1"),
        ("{", "is not JSON"),
        ('{"gripper": {"id": 6}}', "is no calibration that LeRobot can read"),
    ],
)
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_file_that_lerobot_cannot_read(role: str, text: str, says: str, tmp_path: Path) -> None:
    """It was "'list' object has no attribute 'keys'", or a traceback of draccus's."""
    make = make_follower if role == "follower" else lambda config: make_leader(config, None)
    with emulated("so101", role, tmp_path) as arm:
        (arm.folder / "arm.json").write_text(text)
        line = said(lambda: make(arm.config))
        assert says in line
        assert "lerobot-calibrate" in line
        subprocess.run(line.rpartition("options: ")[2], shell=True, check=True)
        assert "isn't calibrated" in said(lambda: make(arm.config))  # so lerobot-calibrate begins


@pytest.mark.parametrize("width", [0, 8, 40])
def test_a_joint_that_nobody_moved_is_not_said_to_cross_the_encoders_end(
    width: int, tmp_path: Path
) -> None:
    plan = so101().calibrated()
    (lift,) = (s for s in plan.servos if s.name == "shoulder_lift")
    low = {"Min_Position_Limit": 2000, "Max_Position_Limit": 2000 + width}
    plan = plan.with_servo("shoulder_lift", settings={**lift.settings, **low})
    with emulated("so101", "follower", tmp_path, plan=plan) as arm:
        file = arm.folder / "arm.json"
        kept = json.loads(file.read_text())
        kept["shoulder_lift"] |= {"range_min": 2000, "range_max": 2000 + width}
        file.write_text(json.dumps(kept))
        text = said(lambda: make_follower(arm.config))
    assert "shoulder_lift: it wasn't moved while ranges were recorded" in text
    assert "encoder's end (" not in text
    assert "from end to end" in text
