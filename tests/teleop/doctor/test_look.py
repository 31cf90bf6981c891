"""The doctor on folders that stand for /proc, /sys and /dev: what is in the way, and the fix."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaploop.teleop.calibration.store import save_part
from gaploop.teleop.doctor import calibrations, cameras, host, ports
from gaploop.teleop.doctor.finding import DoctorFinding, Level, failed


@pytest.fixture
def terminal() -> Iterator[str]:
    """A pseudo-terminal's device, open in this process only."""
    master, slave = pty.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def allow(_path: str, _mode: int) -> bool:
    return True


def refuse(_path: str, _mode: int) -> bool:
    return False


def process(root: Path, pid: int, name: str, *opened: str, pty_index: int | None = None) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "comm").write_text(f"{name}\n")
    for number, target in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(target)
        said = f"pos:\t0\ntty-index:\t{pty_index}\n" if target.endswith("ptmx") else "pos:\t0\n"
        (folder / "fdinfo" / str(number)).write_text(said)


def one(findings: list[DoctorFinding]) -> DoctorFinding:
    (finding,) = findings
    return finding


def test_a_free_port_is_ok(terminal: str, tmp_path: Path) -> None:
    assert one(ports.look(ports.FoundPort(terminal), tmp_path, allow)).level is Level.OK


def test_a_port_that_another_program_holds_is_left_alone(terminal: str, tmp_path: Path) -> None:
    process(tmp_path, 77, "lerobot-record", "/dev/null", terminal)
    finding = one(ports.look(ports.FoundPort(terminal), tmp_path, allow))
    assert finding.level is Level.FAIL
    assert "lerobot-record (process 77)" in finding.found
    assert "kill 77" in finding.mend


def test_an_emulated_bus_does_not_hold_its_own_port(terminal: str, tmp_path: Path) -> None:
    process(tmp_path, 77, "gaploop", "/dev/ptmx", terminal, pty_index=int(Path(terminal).name))
    assert ports.holder(terminal, tmp_path) is None
    process(tmp_path, 78, "other", "/dev/ptmx", terminal, pty_index=4242)
    assert ports.holder(terminal, tmp_path) == (78, "other")


def test_no_permission_names_the_group(terminal: str, tmp_path: Path) -> None:
    finding = one(ports.look(ports.FoundPort(terminal), tmp_path, refuse))
    assert (finding.level, finding.found) == (Level.FAIL, "no permission")
    assert ports.permission_mend("/dev/ttyACM0", 0).startswith("sudo chmod")
    assert "root" not in ports.permission_mend("/dev/ttyACM0", 0).split()


@pytest.mark.parametrize(("name", "says"), [("absent", "not found"), ("plain", "not a serial")])
def test_what_is_no_port(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    finding = one(ports.look(ports.FoundPort(str(tmp_path / name)), tmp_path, allow))
    assert finding.level is Level.FAIL
    assert says in finding.found
    assert finding.mend


@pytest.mark.parametrize(("wait_ms", "level"), [(16, Level.WARN), (1, Level.OK)])
def test_the_latency_timer_of_an_ftdi_adapter(
    wait_ms: int, level: Level, terminal: str, tmp_path: Path
) -> None:
    device = tmp_path / "sys/bus/usb-serial/devices" / Path(terminal).name
    device.mkdir(parents=True)
    (device / "latency_timer").write_text(f"{wait_ms}\n")
    _, timer = ports.look(ports.FoundPort(terminal), tmp_path, allow)
    assert timer.level is level
    assert ("echo 1" in timer.mend) == (level is Level.WARN)


def test_modem_manager_is_named_with_its_mend(tmp_path: Path) -> None:
    assert ports.modem_manager(tmp_path) == []
    process(tmp_path, 5, "ModemManager")
    assert "systemctl" in one(ports.modem_manager(tmp_path)).mend


def camera(root: Path, number: int, index: int = 0) -> None:
    node = root / f"sys/class/video4linux/video{number}"
    node.mkdir(parents=True)
    (node / "name").write_text("Webcam C270\n")
    (node / "index").write_text(f"{index}\n")


def test_cameras_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    assert one(cameras.look(tmp_path)).level is Level.OK
    (tmp_path / "dev").mkdir()
    camera(tmp_path, 0)
    camera(tmp_path, 1, index=1)  # the same camera's metadata
    assert "no such device" in one(cameras.look(tmp_path)).found
    device = tmp_path / "dev/video0"
    device.write_text("")
    finding = one(cameras.look(tmp_path, refuse))
    assert "no permission" in finding.found
    process(tmp_path, 9, "zoom", str(device.resolve()))
    assert "zoom (process 9)" in one(cameras.look(tmp_path, allow)).found


def calibration(root: Path, name: str, text: str, age_days: float) -> Path:
    file = root / "robots" / "so101_follower" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (1e9 - age_days * 86400, 1e9 - age_days * 86400))
    return file


def test_calibrations_by_age_and_state(tmp_path: Path) -> None:
    assert one(calibrations.look(tmp_path)).level is Level.WARN
    good = json.dumps({"pan": {"range_min": 100, "range_max": 3000}})
    flat = json.dumps({"pan": {"range_min": 100, "range_max": 100}})
    calibration(tmp_path, "a_new", good, 2)
    calibration(tmp_path, "b_old", good, 200)
    calibration(tmp_path, "c_flat", flat, 2)
    calibration(tmp_path, "d_broken", "{", 2)
    new, old, empty, broken = calibrations.look(tmp_path, now_s=1e9)
    assert [f.level for f in (new, old, empty, broken)] == [
        Level.OK, Level.WARN, Level.FAIL, Level.FAIL,
    ]  # fmt: skip
    assert "2 days" in new.found
    again = "lerobot-calibrate --robot.type=so101_follower --robot.port=PORT --robot.id=b_old"
    assert again in old.mend
    assert "pan" in empty.found


def test_the_stations_own_calibration(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    assert one(calibrations.look_at_station(path)).level is Level.OK
    save_part(path, ("arms", "follower", "latency"), {"latency_s": 0.03})
    assert one(calibrations.look_at_station(path)).level is Level.OK
    path.write_text("{")
    assert one(calibrations.look_at_station(path)).level is Level.FAIL


def test_the_folder_follows_lerobots_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from lerobot.utils.constants import HF_LEROBOT_CALIBRATION as c; print(c)"
    for name, value in (("HF_LEROBOT_CALIBRATION", "/x/c"), ("HF_LEROBOT_HOME", "/x/h")):
        monkeypatch.setenv(name, value)
        run = [sys.executable, "-c", code]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        assert str(calibrations.folder()) == said
        monkeypatch.delenv(name)


def test_governor_and_disk(tmp_path: Path) -> None:
    assert host.governor(tmp_path) == []
    file = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    file.parent.mkdir(parents=True)
    file.write_text("powersave\n")
    assert "cpupower" in one(host.governor(tmp_path)).mend
    file.write_text("performance\n")
    assert one(host.governor(tmp_path)).level is Level.OK
    assert "free" in host.disk(tmp_path / "not/there/yet").found


def test_what_fails_has_a_mend_and_an_encoder_that_does_not_exist_fails() -> None:
    assert host.encoder("h264").level is Level.OK
    bad = host.encoder("h999")
    assert failed([bad])
    assert bad.mend
    assert host.python_version().level is Level.OK
    assert host.lerobot_version().level is Level.OK
    assert host.real_time().level in (Level.OK, Level.WARN)
