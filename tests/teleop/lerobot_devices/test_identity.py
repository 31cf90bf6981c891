"""A reconnection opens the devices that the session began with, and writes to no other."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from emulated_arms import calibration_folder, config_of
from plugin_devices import FakeCamera
from plugin_devices.config import FakeCameraConfig

from gaploop.core.clock import ManualClock
from gaploop.core.errors import DeviceError
from gaploop.teleop.checks.cameras import video_identity
from gaploop.teleop.emulator.arms import arm_plan, koch, so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices import identity
from gaploop.teleop.lerobot_devices import make as cameras_module
from gaploop.teleop.lerobot_devices.identity import Identities
from gaploop.teleop.lerobot_devices.make import make_cameras, make_follower, make_leader
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine
from gaploop.teleop.servos.port import SerialPort, Usb

pytestmark = pytest.mark.usefixtures("loop_time")


KEPT = ("Torque_Enable", "Goal_Position", "Homing_Offset", "Operating_Mode")


def written(bus: EmulatedBus) -> list[list[int]]:
    with bus.lock:
        return [[servo.memory[name] for name in KEPT] for servo in bus.servos.values()]


def held(bus: EmulatedBus) -> list[list[int]]:
    """Have an arm hold, driven by somebody else, and return what its servos have in memory."""
    with bus.lock:
        for servo in bus.servos.values():
            servo.memory["Torque_Enable"] = 1
            servo.configure()
    return written(bus)


OTHERS = {
    "another calibration": (so101, lambda: so101().with_servo("elbow_flex", zero_ticks=1900)),
    "another firmware": (
        so101,
        lambda: dataclasses.replace(
            so101(),
            servos=tuple(
                dataclasses.replace(s, settings={**s.settings, "Firmware_Minor_Version": 9})
                for s in so101().servos
            ),
        ),
    ),
    "the leader": (koch, lambda: koch("leader")),
    "another reduction": (koch, lambda: koch().with_servo("wrist_flex", model="xl330-m077")),
}


@pytest.mark.members(2)
@pytest.mark.parametrize("case", OTHERS)
def test_another_arm_under_the_old_name_is_not_touched(case: str, tmp_path: Path) -> None:
    """After a replug ttyACM0 may be the other arm: torque off would let it fall."""
    plan, other = OTHERS[case]
    folder = calibration_folder(tmp_path, "follower", plan().calibration())
    link, seen = tmp_path / "follower", Identities()
    config = config_of(plan().model, "follower", str(link), folder)
    with EmulatedBus(plan=plan().calibrated(), hand="still", wire_time=False) as bus:
        link.symlink_to(bus.port)
        make_follower(config, identities=seen).close()
        make_follower(config, identities=seen).close()  # itself again
        with EmulatedBus(plan=other().calibrated(), hand="still", wire_time=False) as stranger:
            before = held(stranger)
            link.unlink()
            link.symlink_to(stranger.port)
            with pytest.raises(DeviceError, match="is another arm than this session began with"):
                make_follower(config, identities=seen)
            assert written(stranger) == before
            link.unlink()
            link.symlink_to(bus.port)
            make_follower(config, identities=seen).close()


def test_a_leader_is_known_again_too(tmp_path: Path) -> None:
    folder = calibration_folder(tmp_path, "leader", so101("leader").calibration())
    link, seen = tmp_path / "leader", Identities()
    config = config_of("so101", "leader", str(link), folder)
    plan = so101("leader")
    with EmulatedBus(plan=plan.calibrated(), hand="still", wire_time=False) as bus:
        link.symlink_to(bus.port)
        make_leader(config, None, identities=seen).close()
    changed = plan.with_servo("shoulder_pan", zero_ticks=1700).calibrated()
    with EmulatedBus(plan=changed, hand="still", wire_time=False) as stranger:
        before = held(stranger)
        link.unlink()
        link.symlink_to(stranger.port)
        with pytest.raises(DeviceError, match="servo 1 has homing offset"):
            make_leader(config, None, identities=seen)
        assert written(stranger) == before


@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.parametrize("model", ["so101", "koch", "openmanipulator"])
def test_an_arm_whose_servos_forgot_what_lerobot_sets_up_is_the_same(
    model: str, role: str, tmp_path: Path
) -> None:
    """An emulated arm was started anew in the middle of a session, and was "another arm": its
    servos had the maker's gains and modes again, until LeRobot's class set them up."""
    plan = arm_plan(model, role)
    folder = calibration_folder(tmp_path, role, plan.calibration())
    link, seen = tmp_path / role, Identities()
    config = config_of(model, role, str(link), folder)
    noted = []
    for _ in range(2):
        with EmulatedBus(plan=plan.calibrated(), hand="still", wire_time=False) as bus:
            link.symlink_to(bus.port)
            if role == "follower":
                make_follower(config, identities=seen).close()
            else:
                make_leader(config, None, identities=seen).close()
            noted.append({name: dict(servos) for name, servos in seen.servos.items()})
            link.unlink()
    before, after = noted
    assert before == after
    assert all(set(servos) == {s.id for s in plan.servos} for servos in after.values())
    assert len(after) == 1


@pytest.mark.parametrize("latency_s", [0.06, 0.3])
def test_an_arm_that_answers_late_is_no_other(latency_s: float) -> None:
    """The answer for one register was taken for another's: "servo 1 has d coefficient 16"."""
    plan = so101().calibrated()
    with EmulatedBus(plan=plan, hand="still", wire_time=False) as bus:
        line = BusLine(SerialPort(bus.port), plan.protocol)
        line.port.open()
        servos = ServoBus(line, list(bus.servos), [s.model for s in plan.servos])
        seen = Identities()
        seen.note_servos("robot", servos)
        bus.faults.add(Fault("slow", latency_s=latency_s))
        for _ in range(3):
            seen.check_servos("robot", servos)
        line.port.close()


@pytest.mark.parametrize(
    ("now", "is_other"),
    [
        (Usb("1a86:55d3", "A1"), False),
        (Usb("1a86:55d3", "B2"), True),
        (Usb("0403:6014", "A1"), True),
        (Usb("1a86:55d3"), False),  # it doesn't say
    ],
)
def test_twins_are_told_apart_by_their_adapters(
    now: Usb, is_other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: dict[str, Usb] = {}
    monkeypatch.setattr(identity, "usb_ports", lambda: there)
    folder = calibration_folder(tmp_path, "follower", so101().calibration())
    seen = Identities()
    with EmulatedBus(plan=so101().calibrated(), hand="still", wire_time=False) as bus:
        config = config_of("so101", "follower", bus.port, folder)
        there[os.path.realpath(bus.port)] = Usb("1a86:55d3", "A1")
        make_follower(config, identities=seen).close()
        before = held(bus)
        there |= {os.path.realpath(bus.port): now, "/dev/ttyACM7": Usb("1a86:55d3", "A1")}
        if not is_other:
            make_follower(config, identities=seen).close()
            return
        with pytest.raises(DeviceError, match="It is at /dev/ttyACM7 now"):
            make_follower(config, identities=seen)
        assert written(bus) == before


def sysfs(root: Path, number: int, socket: str, **said: str) -> None:
    """Put a camera where Linux shows it."""
    usb = root / "sys/devices/pci0/usb1" / socket
    interface = usb / f"{socket}:1.0"
    interface.mkdir(parents=True)
    for name, value in ({"idVendor": "046d", "idProduct": "0825"} | said).items():
        (usb / name).write_text(value + "\n")
    node = root / f"sys/class/video4linux/video{number}"
    node.mkdir(parents=True)
    (node / "device").symlink_to(interface)


def test_a_camera_is_known_by_its_serial_number_or_socket(tmp_path: Path) -> None:
    sysfs(tmp_path, 0, "1-2", serial="AB12")
    sysfs(tmp_path, 2, "1-3")
    known = Usb("046d:0825", "AB12", "1-2")
    assert str(video_identity(0, tmp_path)) == "USB 046d:0825, serial AB12, socket 1-2"
    assert video_identity("/dev/video2", tmp_path) == Usb("046d:0825", "", "1-3")
    (tmp_path / "by-id").symlink_to("/dev/video0")
    assert video_identity(tmp_path / "by-id", tmp_path) == known
    assert video_identity(7, tmp_path) is video_identity(None, tmp_path) is None
    assert not Usb("046d:0825", "AB12", "1-4").is_other(known)  # moved: a warning
    assert Usb("046d:0825", "", "1-4").is_other(Usb("046d:0825", "", "1-2"))


def test_camera_0_that_is_another_one_now_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    robot = SimpleNamespace(cameras={"top": FakeCameraConfig(fps=200, width=6, height=4)})
    seen = Identities()
    now = Usb("046d:0825", "A", "1-2")
    monkeypatch.setattr(cameras_module, "camera_identity", lambda _: now)
    (camera,) = make_cameras(robot, ManualClock(), seen)
    assert seen.cameras == {"top": now}
    device: FakeCamera = camera._camera
    now = Usb("046d:0825", "B", "1-2")  # replugged: the thread connects it again by itself
    monkeypatch.setattr(cameras_module, "AGAIN_S", 0.01)
    device.dead.set()
    while "serial A" not in camera.fault:
        time.sleep(0.002)
    device.dead.clear()
    assert device.connects == 1
    camera.close()
    with pytest.raises(
        DeviceError, match=r"Camera 'top' is another .*serial B, .* it was .*serial A"
    ):
        make_cameras(robot, ManualClock(), seen)
    now = Usb("046d:0825", "A", "1-2")
    (camera,) = make_cameras(robot, ManualClock(), seen)
    camera.close()
    now = Usb("046d:0825", "A", "1-4")
    make_cameras(robot, ManualClock(), seen)[0].close()
    assert "is in another USB socket" in caplog.text
