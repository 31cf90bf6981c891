"""Serial ports: which there are, who may open them, who holds them, what slows them down."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.teleop.checks.result import CheckResult, Level
from gaploop.teleop.servos.port import SUPERVISOR, permission_fix, port_holder

AREA: Final = "serial port"

ADAPTERS: Final[dict[tuple[int, int], str]] = {
    (0x1A86, 0x55D3): "WCH CH343 (Waveshare / Feetech bus servo adapter)",
    (0x1A86, 0x7523): "WCH CH340",
    (0x1A86, 0x7522): "WCH CH340",
    (0x0403, 0x6014): "FTDI FT232H (ROBOTIS U2D2)",
    (0x0403, 0x6001): "FTDI FT232R",
    (0x10C4, 0xEA60): "Silicon Labs CP210x",
    (0x2F5D, 0x2202): "ROBOTIS OpenRB-150",
    (0xFFF1, 0xFF48): "ROBOTIS OpenCM 9.04",
}
"""USB vendor and product id of adapters that servo buses hang on (the makers' USB ids)."""

SLOW_LATENCY_MS: Final = 1
"""An FTDI adapter hands its bytes over after this long [ms]; Linux sets 16 unless told."""

type Access = Callable[[str, int], bool]


@dataclass(frozen=True)
class FoundPort:
    """One serial port; `stable` is its name that survives re-plugging, or empty."""

    path: str
    stable: str = ""
    adapter: str = ""
    is_servo_adapter: bool = False


@dataclass(frozen=True)
class Usb:
    """What a USB device says of itself, and where it is plugged in; "" where that isn't known."""

    ids: str
    """Vendor and product id."""
    serial: str = ""
    socket: str = ""

    def is_other(self, before: Usb) -> bool:
        """Say whether it isn't the device of before, as far as can be told.

        Not every maker numbers its devices: without a number the socket tells.
        """
        if self.serial and before.serial:
            return (self.ids, self.serial) != (before.ids, before.serial)
        moved = bool(self.socket and before.socket and self.socket != before.socket)
        return self.ids != before.ids or moved

    def __str__(self) -> str:
        """Return it in words."""
        serial = f", serial {self.serial}" if self.serial else ""
        return f"USB {self.ids}{serial}{f', socket {self.socket}' if self.socket else ''}"


def usb_ports() -> dict[str, Usb]:
    """Return the USB serial ports of this machine: real path to what it is."""
    from serial.tools import list_ports

    return {
        os.path.realpath(port.device): Usb(
            f"{port.vid:04x}:{port.pid:04x}",
            str(port.serial_number or ""),
            str(port.location or ""),
        )
        for port in list_ports.comports()
        if port.vid is not None
    }


def find_ports() -> list[FoundPort]:
    """Return the USB serial ports of this machine."""
    from serial.tools import list_ports

    names = {os.path.realpath(p): str(p) for p in Path("/dev/serial/by-id").glob("*")}
    ports = []
    for info in sorted(list_ports.comports(), key=lambda port: port.device):
        if info.vid is None:
            continue  # a port of the mainboard: no servo bus hangs there
        known = ADAPTERS.get((info.vid, info.pid), "")
        adapter = known or f"{info.description} ({info.vid:04x}:{info.pid:04x})"
        ports.append(FoundPort(info.device, names.get(info.device, ""), adapter, bool(known)))
    return ports


def no_port() -> CheckResult:
    """Return what is said where no serial port is found."""
    fix = "Plug in the arm's adapter and its power supply, or name a port: --port=./follower"
    return CheckResult(AREA, Level.WARN, "no USB serial port at this machine", fix, subject="none")


def check_port(
    port: FoundPort, root: Path = Path("/"), access: Access = os.access
) -> list[CheckResult]:
    """Return what stands in the way of using a port; it isn't opened.

    `root` holds /proc and /sys; `access` says what the user may open, as `os.access`.
    """
    path, fail = (
        Path(port.path),
        functools.partial(CheckResult, AREA, Level.FAIL, subject=port.path),
    )
    try:
        mode = path.stat()
    except OSError as error:
        if error.errno == errno.EACCES:
            return [fail("its folder can't be read", f"sudo chmod a+rx {path.parent}")]
        there = ", ".join(p.stable or p.path for p in find_ports()) or "none"
        found = "dangling link" if path.is_symlink() else "not found"
        return [fail(found, f"Plug it in, or choose one that is there: {there}")]
    if not stat.S_ISCHR(mode.st_mode):
        return [fail("not a serial port", "Name a serial port, such as /dev/ttyACM0.")]
    if not access(port.path, os.R_OK | os.W_OK):
        return [fail("no permission", permission_fix(port.path, mode.st_gid))]
    held = port_holder(port.path, root)
    if held is not None:
        pid, program = held
        found, fix = f"held by {program} (process {pid})", f"Stop that program, or: kill {pid}"
        if program == SUPERVISOR:
            fix = f"Wait: it lowers an arm. To have it let go of at once: kill -INT {pid}"
        return [fail(found, fix, {"holder_pid": pid, "holder": program})]
    real = Path(os.path.realpath(port.path))
    found = " ".join(filter(None, (port.adapter, port.stable))) or str(real)
    data = {"stable": port.stable, "adapter": port.adapter}
    results = [CheckResult(AREA, Level.OK, found, data=data, subject=port.path)]
    timer = root / "sys/bus/usb-serial/devices" / real.name / "latency_timer"
    try:
        wait_ms = int(timer.read_text())
    except (OSError, ValueError):
        return results
    level, found, fix = Level.OK, f"latency timer {wait_ms} ms", ""
    if wait_ms > SLOW_LATENCY_MS:
        level, fix = Level.WARN, f"echo 1 | sudo tee {timer}"
        found += ": every reply waits that long, 200 Hz can't be reached"
    waits = CheckResult(AREA, level, found, fix, {"latency_timer_ms": wait_ms}, real.name)
    return [*results, waits]


def check_modem_manager(root: Path = Path("/")) -> list[CheckResult]:
    """Return a warning where ModemManager runs: it talks to every new serial port for seconds."""
    for comm in (root / "proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:
            continue
        if name == "ModemManager":
            found = "running: it talks to a bus for seconds after it is plugged in"
            fix = "sudo systemctl disable --now ModemManager"
            return [CheckResult(AREA, Level.WARN, found, fix, subject=name)]
    return []
