"""Serial ports on folders that stand for /proc, /sys and /dev: what is in the way, and the fix."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_system import allow, one, process, refuse

from gaploop.teleop.checks import Level
from gaploop.teleop.checks.machine import FoundPort, check_modem_manager, check_port
from gaploop.teleop.servos.port import permission_fix, port_holder


@pytest.fixture
def terminal() -> Iterator[str]:
    """A pseudo-terminal's device, open in this process only."""
    master, slave = pty.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def test_a_free_port_is_ok(terminal: str, tmp_path: Path) -> None:
    assert one(check_port(FoundPort(terminal), tmp_path, allow)).level is Level.OK


def test_a_port_that_another_program_holds_is_left_alone(terminal: str, tmp_path: Path) -> None:
    process(tmp_path, 77, "lerobot-record", "/dev/null", terminal)
    finding = one(check_port(FoundPort(terminal), tmp_path, allow))
    assert finding.level is Level.FAIL
    assert "lerobot-record (process 77)" in finding.found
    assert "kill 77" in finding.fix


def test_an_emulated_bus_does_not_hold_its_own_port(terminal: str, tmp_path: Path) -> None:
    process(tmp_path, 77, "gaploop", "/dev/ptmx", terminal, pty_index=int(Path(terminal).name))
    assert port_holder(terminal, tmp_path) is None
    process(tmp_path, 78, "other", "/dev/ptmx", terminal, pty_index=4242)
    assert port_holder(terminal, tmp_path) == (78, "other")


def test_no_permission_names_the_group(terminal: str, tmp_path: Path) -> None:
    finding = one(check_port(FoundPort(terminal), tmp_path, refuse))
    assert (finding.level, finding.found) == (Level.FAIL, "no permission")
    assert permission_fix("/dev/ttyACM0", 0).startswith("sudo chmod")
    assert "root" not in permission_fix("/dev/ttyACM0", 0).split()


@pytest.mark.parametrize(("name", "says"), [("absent", "not found"), ("plain", "not a serial")])
def test_what_is_no_port(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    finding = one(check_port(FoundPort(str(tmp_path / name)), tmp_path, allow))
    assert finding.level is Level.FAIL
    assert says in finding.found
    assert finding.fix


@pytest.mark.parametrize(("wait_ms", "level"), [(16, Level.WARN), (1, Level.OK)])
def test_the_latency_timer_of_an_ftdi_adapter(
    wait_ms: int, level: Level, terminal: str, tmp_path: Path
) -> None:
    device = tmp_path / "sys/bus/usb-serial/devices" / Path(terminal).name
    device.mkdir(parents=True)
    (device / "latency_timer").write_text(f"{wait_ms}\n")
    _, timer = check_port(FoundPort(terminal), tmp_path, allow)
    assert timer.level is level
    assert ("echo 1" in timer.fix) == (level is Level.WARN)


def test_modem_manager_is_named_with_its_fix(tmp_path: Path) -> None:
    assert check_modem_manager(tmp_path) == []
    process(tmp_path, 5, "ModemManager")
    assert "systemctl" in one(check_modem_manager(tmp_path)).fix
