"""Serial ports: which there are, who may open them, who holds them, what slows them down."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.core import platform_calls
from gaploop.teleop.doctor.finding import DoctorFinding, Level

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
    """One serial port.

    Attributes:
        path: what to open, such as `/dev/ttyACM0`.
        stable: its name that survives re-plugging, such as `/dev/serial/by-id/…`, or empty.
        adapter: what it is, in words.
        is_servo_adapter: servo buses hang on such adapters, so it may be scanned.
    """

    path: str
    stable: str = ""
    adapter: str = ""
    is_servo_adapter: bool = False


def find() -> list[FoundPort]:
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


def look(
    port: FoundPort, root: Path = Path("/"), access: Access = os.access
) -> list[DoctorFinding]:
    """Return what stands in the way of using a port; it isn't opened."""
    path = Path(port.path)
    what = " ".join(filter(None, (port.adapter, port.stable)))
    refused = trouble(port.path, access)
    if refused is not None:
        return [DoctorFinding(AREA, port.path, Level.FAIL, *refused)]
    held = holder(port.path, root)
    if held is not None:
        pid, program = held
        mend = f"Stop that program, or: kill {pid}"
        data = {"holder_pid": pid, "holder": program}
        found = f"held by {program} (process {pid})"
        return [DoctorFinding(AREA, port.path, Level.FAIL, found, mend, data)]
    data = {"stable": port.stable, "adapter": port.adapter}
    findings = [DoctorFinding(AREA, port.path, Level.OK, what or str(path.resolve()), data=data)]
    return findings + list(_latency_timer(port, root))


def none_found() -> DoctorFinding:
    """Return what is said where no serial port is found."""
    mend = "Plug in the arm's adapter and its power supply, or name a port: --port=./follower"
    return DoctorFinding(AREA, "none", Level.WARN, "no USB serial port at this machine", mend)


def unusable(findings: list[DoctorFinding]) -> bool:
    """Say whether a port is better left alone."""
    return any(finding.level is Level.FAIL for finding in findings)


def trouble(port: str, access: Access = os.access) -> tuple[str, str] | None:
    """Return why a port can't be opened and how to fix it, or None where it can."""
    path = Path(port)
    try:
        mode = path.stat()
    except OSError as error:
        if error.errno == errno.EACCES:
            return "its folder can't be read", f"sudo chmod a+rx {path.parent}"
        there = ", ".join(p.stable or p.path for p in find()) or "none"
        found = "dangling link" if path.is_symlink() else "not found"
        return found, f"Plug it in, or choose one that is there: {there}"
    if not stat.S_ISCHR(mode.st_mode):
        return "not a serial port", "Name a serial port, such as /dev/ttyACM0."
    if not access(port, os.R_OK | os.W_OK):
        return "no permission", permission_mend(port, mode.st_gid)
    return None


def permission_mend(port: str, gid: int) -> str:
    """Return how to be allowed to open a port that belongs to group `gid`."""
    group = platform_calls.group_name(gid)
    if group in ("", "root"):
        return f"sudo chmod a+rw {port} (or add a udev rule that gives it to group dialout)"
    return f"sudo usermod -aG {group} $USER, then log in again"


def holder(port: str, root: Path = Path("/")) -> tuple[int, str] | None:
    """Return process id and name of another program that has `port` open, if one can be seen.

    A program that holds both ends of a pseudo-terminal is the emulated device itself.
    """
    device = os.path.realpath(port)
    for process in (root / "proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        targets = {link: _target(link) for link in _open_files(process)}
        if device in targets.values() and not _is_master(device, targets):
            return int(process.name), _name(process)
    return None


def _open_files(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to somebody else
        return []


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _is_master(device: str, targets: Mapping[Path, str]) -> bool:
    """Say whether one of a process's open files is the other end of a pseudo-terminal."""
    wanted = f"tty-index:\t{Path(device).name}"
    for link, target in targets.items():
        if target.endswith("/ptmx"):
            info = link.parent.parent / "fdinfo" / link.name
            with contextlib.suppress(OSError):
                if wanted in info.read_text().splitlines():
                    return True
    return False


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a program that has ended"


def _latency_timer(port: FoundPort, root: Path) -> Iterator[DoctorFinding]:
    name = Path(os.path.realpath(port.path)).name
    file = root / "sys/bus/usb-serial/devices" / name / "latency_timer"
    try:
        wait_ms = int(file.read_text())
    except (OSError, ValueError):
        return
    data = {"latency_timer_ms": wait_ms}
    if wait_ms <= SLOW_LATENCY_MS:
        yield DoctorFinding(AREA, name, Level.OK, f"latency timer {wait_ms} ms", data=data)
        return
    found = f"latency timer {wait_ms} ms: every reply waits that long, 200 Hz can't be reached"
    yield DoctorFinding(AREA, name, Level.WARN, found, f"echo 1 | sudo tee {file}", data)


def modem_manager(root: Path = Path("/")) -> list[DoctorFinding]:
    """Return a warning where ModemManager runs: it talks to every new serial port for seconds."""
    for comm in (root / "proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:
            continue
        if name == "ModemManager":
            mend = "sudo systemctl disable --now ModemManager"
            found = "running: it talks to a bus for seconds after it is plugged in"
            return [DoctorFinding(AREA, name, Level.WARN, found, mend)]
    return []
