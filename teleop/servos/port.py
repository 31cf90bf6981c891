"""A serial port that waits in poll(): on a USB adapter as on a pseudo-terminal.

It is held exclusively, because two programs on one half-duplex bus garble each other, and asks
its driver for low latency, because an FTDI adapter otherwise keeps replies for 16 ms.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import select
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import serial
from serial.tools import list_ports

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError

log = logging.getLogger(__name__)

BITS_PER_BYTE: Final = 10
"""8 data bits, one start and one stop bit."""
WRITE_TIMEOUT_S: Final = 0.05
"""A driver that takes no bytes for this long is broken: a whole request takes 1 ms [s]."""
_PATTERNS: Final = ("/dev/ttyACM*", "/dev/ttyUSB*", "/dev/tty.usb*", "/dev/cu.usb*")
SUPERVISOR: Final = "gaploop.teleop.supervisor"
"""The module that holds a port beside the program that opened it, and outlives it."""
LOWERING_S: Final = 60.0
"""An arm that a supervisor lowers is waited for so long [s]: 3 rad take 12 s."""
_BUSY: Final = (errno.EBUSY, errno.EAGAIN, errno.EWOULDBLOCK)


class SerialPort:
    """One serial port, such as /dev/ttyACM0, at `baud` bits per second."""

    def __init__(self, path: str, baud: int = 1_000_000) -> None:
        self.path = path
        self.baud = baud
        self._serial: serial.Serial | None = None
        self._fd = -1

    @classmethod
    def inherited(cls, path: str, baud: int, handle: int) -> Self:
        """Return the port that another process opened, locked and handed down as `handle`."""
        port = cls(path, baud)
        port._fd = handle
        return port

    @property
    def byte_s(self) -> float:
        """Time that one byte takes on the wire [s]."""
        return BITS_PER_BYTE / self.baud

    def fileno(self) -> int:
        """Return the file descriptor, -1 where the port is closed."""
        return self._fd

    def open(self) -> None:
        """Open and lock the port, if it isn't open; DeviceError says what is wrong and the fix."""
        if self._serial is not None:
            return
        platform_calls.require_posix(f"An arm on {self.path}")
        give_up_s, said = time.monotonic() + LOWERING_S, False
        while True:
            try:
                device = serial.Serial(self.path, self.baud, timeout=0, exclusive=True)
                break
            except platform_calls.TERMINAL_ERRORS as error:  # SerialException is an OSError
                holder = port_holder(self.path)
                lowers = said if holder is None else holder[1] == SUPERVISOR
                if not lowers or time.monotonic() > give_up_s:
                    raise open_error(self.path, error) from error
            if not said:
                log.warning("%s: an earlier gaploop's arm is being lowered; waiting.", self.path)
                said = True
            time.sleep(0.1)
        self._serial, self._fd = device, device.fileno()
        if os.path.realpath(self.path).startswith("/dev/pts/"):
            return
        # Keep others out who don't ask for the lock, and notice those that are in already.
        held = port_holder(self.path)
        if held is not None:
            self.close()
            raise _busy_error(self.path, f"process {held[0]} ({held[1]})")
        platform_calls.claim_terminal(self._fd)
        with contextlib.suppress(OSError, ValueError, NotImplementedError, AttributeError):
            device.set_low_latency_mode(True)

    def set_baud(self, baud: int) -> None:
        """Change the speed [bit/s]; DeviceError where the driver refuses it."""
        self.baud = baud
        if self._serial is not None:
            try:
                self._serial.baudrate = baud
            except platform_calls.TERMINAL_ERRORS as error:
                raise DeviceError(f"{self.path} doesn't do {baud} bit/s: {error}.") from error

    def close(self) -> None:
        """Close the port; safe to call twice."""
        device, self._serial, self._fd = self._serial, None, -1
        if device is not None:
            with contextlib.suppress(*platform_calls.TERMINAL_ERRORS):
                device.close()

    def read(self, most: int = 4096) -> bytes:
        """Return up to `most` bytes that have come, without waiting; OSError if it is gone."""
        try:
            return os.read(self._fd, most)
        except BlockingIOError:
            return b""

    def discard(self) -> int:
        """Throw away what has come in and return how many bytes that was."""
        count = 0
        while self.wait(0.0) and (data := self.read()):
            count += len(data)
        return count

    def write(self, data: bytes) -> None:
        """Hand all of `data` to the driver; OSError if it takes nothing for `WRITE_TIMEOUT_S`."""
        sent = self._write_some(data)
        if sent == len(data):
            return
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        while sent < len(data):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not platform_calls.wait_terminal(self._fd, select.POLLOUT, left_s):
                raise TimeoutError(f"{self.path} takes no bytes")
            sent += self._write_some(data[sent:])

    def _write_some(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read; return whether there is."""
        if self.fileno() < 0:  # closed meanwhile, by who takes torque off
            return False
        return platform_calls.wait_terminal(self.fileno(), select.POLLIN, max(timeout_s, 0.0))


# --- why one can't be opened --------------------------------------------------------------------


def open_error(path: str, error: BaseException) -> DeviceError:
    """Return the one-line error, with the fix, for a port that `error` kept from opening."""
    code = getattr(error, "errno", None)
    if not code:  # pyserial keeps it nowhere but in its message
        _, _, rest = str(error).partition("[Errno ")
        digits = rest.partition("]")[0]
        code = int(digits) if digits.isdigit() else None
    if code == errno.ENOENT or not os.path.exists(path):
        there = sorted(found for pattern in _PATTERNS for found in glob.glob(pattern))
        ports = f"Ports there are: {', '.join(there)}." if there else "No serial port is there."
        return DeviceError(
            f"No serial port {path!r}. {ports} Is the arm's USB cable in? lerobot-find-port shows "
            "which port is which."
        )
    if code in (errno.EACCES, errno.EPERM):
        group = platform_calls.group_name(os.stat(path).st_gid)
        group = "dialout" if group in ("", "root") else group
        return DeviceError(
            f"No permission to open {path}. Run: sudo usermod -aG {group} $USER, then log out and "
            "in again."
        )
    if code in _BUSY or "exclusively lock" in str(error):
        held = port_holder(path, or_self=True)
        if held is None:
            return _busy_error(path, "")
        if held[0] == os.getpid():
            return _busy_error(path, "this very command: was the same port given twice?")
        return _busy_error(path, f"process {held[0]} ({held[1]})")
    reason = os.strerror(code) if code else str(error)
    return DeviceError(f"{path} can't be used as a serial port: {reason}.")


def _busy_error(path: str, holder: str) -> DeviceError:
    by = f" by {holder}" if holder else ""
    return DeviceError(f"{path} is in use{by}. Stop that first: a servo bus takes one program.")


def permission_fix(path: str, gid: int) -> str:
    """Return the command by which the user may open a device that belongs to group `gid`."""
    group = platform_calls.group_name(gid)
    if group in ("", "root"):
        return f"sudo chmod a+rw {path} (or add a udev rule that gives it to group dialout)"
    return f"sudo usermod -aG {group} $USER, then log in again"


def port_holder(
    path: str, root: Path = Path("/"), *, or_self: bool = False
) -> tuple[int, str] | None:
    """Return process id and name of another program that has a device open, if one can be seen.

    A program that holds both ends of a pseudo-terminal is the emulated device itself, and doesn't
    count. Sees what /proc in `root` shows this user; nothing where there is no /proc. With
    `or_self` this very process counts too, where no other has it open; a supervisor comes last.
    """
    try:
        wanted = os.stat(path)
        processes = [p for p in (root / "proc").iterdir() if p.name.isdigit()]
    except OSError:
        return None
    own, found = str(os.getpid()), list[tuple[bool, bool, int, str]]()
    for process in processes:
        opened: list[Path] = []
        if process.name != own or or_self:
            with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
                opened = list((process / "fd").iterdir())
        if any(_is_same(link, wanted) for link in opened) and (
            process.name == own or not _has_other_end(path, opened)
        ):
            program = _program(process)
            found.append((program == SUPERVISOR, process.name == own, int(process.name), program))
    return min(found)[2:] if found else None


def _program(process: Path) -> str:
    """Return the name of a program in /proc; its script or module, where it is Python's."""
    program = "a program that has ended"
    with contextlib.suppress(OSError):
        program = (process / "comm").read_text().strip()
    with contextlib.suppress(OSError, IndexError):
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        names = [word.rpartition("/")[2] for word in words]
        program = names[0] or program
        if program.startswith("python") and names[1]:
            module = words.index("-m") + 1 if "-m" in words[:3] else 1
            program = names[module]
    return program


def _is_same(link: Path, wanted: os.stat_result) -> bool:
    """Say whether an open file is the device, by whichever of its names it was opened."""
    try:
        found = os.stat(link)
    except OSError:
        return False
    if stat.S_ISCHR(found.st_mode) and stat.S_ISCHR(wanted.st_mode):
        return found.st_rdev == wanted.st_rdev
    return os.path.samestat(found, wanted)


def is_emulated_here(path: str) -> bool:
    """Say whether this very program is the device: it has the terminal's other end, or no port."""
    opened: list[Path] = []
    with contextlib.suppress(OSError):
        opened = list(Path("/proc/self/fd").iterdir())
    try:
        return not stat.S_ISCHR(os.stat(path).st_mode) or _has_other_end(path, opened)
    except OSError:
        return True


def _has_other_end(path: str, opened: list[Path]) -> bool:
    """Say whether one of a process's open files is the other end of a pseudo-terminal."""
    wanted = f"tty-index:\t{Path(os.path.realpath(path)).name}"
    for link in opened:
        with contextlib.suppress(OSError):
            if os.readlink(link).endswith("/ptmx"):
                info = link.parent.parent / "fdinfo" / link.name
                if wanted in info.read_text().splitlines():
                    return True
    return False


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
    return {
        os.path.realpath(port.device): Usb(
            f"{port.vid:04x}:{port.pid:04x}",
            str(port.serial_number or ""),
            str(port.location or ""),
        )
        for port in list_ports.comports()
        if port.vid is not None
    }
