"""Why a serial port can't be opened, in one line with the fix."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError

_PATTERNS: Final = ("/dev/ttyACM*", "/dev/ttyUSB*", "/dev/tty.usb*", "/dev/cu.usb*")
_BUSY: Final = (errno.EBUSY, errno.EAGAIN, errno.EWOULDBLOCK)


def serial_ports() -> list[str]:
    """Return the USB serial ports there are."""
    return sorted(path for pattern in _PATTERNS for path in glob.glob(pattern))


def open_error(path: str, error: BaseException) -> DeviceError:
    """Return the one-line error for a port that `error` kept from opening."""
    code = getattr(error, "errno", None) or _number_in(str(error))
    if code == errno.ENOENT or not os.path.exists(path):
        there = serial_ports()
        ports = f"Ports there are: {', '.join(there)}." if there else "No serial port is there."
        return DeviceError(
            f"No serial port {path!r}. {ports} Is the arm's USB cable in? lerobot-find-port says "
            "which port is which."
        )
    if code == errno.EACCES or code == errno.EPERM:
        return DeviceError(
            f"No permission to open {path}. Run: sudo usermod -aG {_group(path)} $USER, then log "
            "out and in again."
        )
    if code in _BUSY or "exclusively lock" in str(error):
        return busy_error(path, other_holder(path, or_self=True))
    reason = os.strerror(code) if code else str(error)
    return DeviceError(f"{path} can't be used as a serial port: {reason}.")


def busy_error(path: str, holder: str) -> DeviceError:
    """Return the one-line error for a port that `holder` has open."""
    by = f" by {holder}" if holder else ""
    return DeviceError(f"{path} is in use{by}. Stop that first: a servo bus takes one program.")


def _number_in(text: str) -> int | None:
    """Return the errno that pyserial wrote into its message, as it keeps it nowhere else."""
    start = text.find("[Errno ")
    digits = text[start + 7 : text.find("]", start)] if start >= 0 else ""
    return int(digits) if digits.isdigit() else None


def _group(path: str) -> str:
    with contextlib.suppress(OSError):
        name = platform_calls.group_name(os.stat(path).st_gid)
        if name not in ("", "root"):
            return name
    return "dialout"


def other_holder(path: str, *, or_self: bool = False) -> str:
    """Return which process has `path` open, such as `process 123 (lerobot-record)`, or ''.

    Sees what /proc shows this user; '' where there is no /proc.
    """
    try:
        wanted = os.stat(path).st_rdev
    except OSError:
        return ""
    for pid in _processes():
        if (pid != os.getpid() or or_self) and _has_open(pid, wanted):
            if pid == os.getpid():
                return "this very command: was the same port given twice?"
            return f"process {pid} ({_command(pid)})"
    return ""


def _processes() -> Iterator[int]:
    """All processes, this one last."""
    with contextlib.suppress(OSError):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        yield from (pid for pid in pids if pid != os.getpid())
        yield os.getpid()


def _has_open(pid: int, device: int) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                status = os.stat(f"{folder}/{name}")
                if stat.S_ISCHR(status.st_mode) and status.st_rdev == device:
                    return True
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        names = [Path(word).name for word in words[:2] if word]
        if names and names[0].startswith("python") and len(names) > 1:
            return names[1]
        return names[0] if names else "?"
    return "?"
