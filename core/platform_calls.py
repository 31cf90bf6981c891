"""Calls that not every operating system has, each with what is done in its place.

Linux has them all, macOS most. On Windows datasets are worked on, and what needs an arm or records
is refused (`require_posix`). Whoever needs one calls it here; `tests/test_platforms.py` finds calls
that were made elsewhere, and runs gaploop with the functions taken away.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from gaploop.core.errors import UnusableInputError

try:
    import fcntl as _fcntl
    import termios as _termios
    import tty as _tty
except ImportError:  # Windows
    _fcntl = _termios = _tty = None  # type: ignore[assignment]
fcntl: Any = _fcntl
termios: Any = _termios
tty: Any = _tty

_IS_LINUX: bool = sys.platform.startswith("linux")


WINDOWS: Final = fcntl is None


def require_posix(what: str) -> None:
    """Refuse on Windows what needs serial ports, terminals or processes as POSIX has them.

    Raises:
        UnusableInputError: this is Windows.
    """
    if WINDOWS:
        raise UnusableInputError(f"{what}: not supported on Windows. Use Linux, macOS or WSL 2.")


# -- files on the disk ----------------------------------------------------------------------


def sync(handle: int, *, data_only: bool = False) -> None:
    """Wait until what was written to an open file is on the disk; with `data_only` not its times.

    Raises:
        OSError: the disk doesn't take it.
    """
    # macOS's fsync leaves it in the drive's own memory, where a power cut takes it; F_FULLFSYNC
    # doesn't (fsync(2) there), but not every file system knows it.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(handle, full)
            return
    if data_only and hasattr(os, "fdatasync"):
        os.fdatasync(handle)
    else:
        os.fsync(handle)


def sync_path(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, durable.

    Does nothing for a folder on Windows, whose file system keeps names in a journal of its own.

    Raises:
        OSError: the disk doesn't take it.
    """
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows syncs what is writable
    try:
        sync(handle)
    finally:
        os.close(handle)


def nameless_file(name: str) -> int:
    """Open a file that nobody else can open and that goes when it is closed; in memory on Linux.

    Tools that list open files show `name`.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange_names(a: Path, b: Path) -> bool:
    """Let two names trade places atomically; False where kernel or file system can't.

    Source: renameat2(2), flag RENAME_EXCHANGE, glibc 2.28 or newer.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # macOS; Windows
        return False
    flags = ctypes.c_uint(_RENAME_EXCHANGE)
    if call(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), flags) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise c_library_error(a)


def c_library_error(path: str | Path) -> OSError:
    """Return the error of the last call of a C library."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), str(path))


# -- locks ----------------------------------------------------------------------------------


def lock(handle: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file against other processes, until it is closed or the process ends.

    Does nothing on Windows, where nobody records; what datasets need locked there is locked by
    `filelock`.

    Raises:
        BlockingIOError: another holds it, and it isn't to be waited for.
    """
    if not WINDOWS:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)


# -- processes and priorities ---------------------------------------------------------------

HAS_REALTIME: Final = hasattr(os, "sched_setscheduler")
_PR_SET_TIMERSLACK: Final = 29  # <linux/prctl.h>


def realtime(priority: int, *, hand_down: bool = True) -> bool:
    """Give the calling thread real-time priority (SCHED_FIFO), 1 to 99; say whether it has it.

    With `hand_down` what the thread starts has it, too.
    """
    if not HAS_REALTIME:
        return False
    policy = os.SCHED_FIFO | (0 if hand_down else os.SCHED_RESET_ON_FORK)
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except PermissionError:
        return False
    return True


def ordinary_priority() -> None:
    """Give up the real-time priority that a thread was handed down."""
    if HAS_REALTIME:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


HIGHEST: Final = 99
"""Of real-time priorities; nothing of gaploop's own has it."""


def no_highest_priority() -> None:
    """Give this process's threads that have the highest real-time priority an ordinary one.

    Run by root, SVT-AV1 gives it to its own threads and to whoever calls it: for as long as they
    have something to do, no control loop on the machine gets the processor that they are on.
    """
    threads = os.listdir("/proc/self/task") if HAS_REALTIME and _IS_LINUX else ()
    for thread in map(int, threads):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getparam(thread).sched_priority == HIGHEST:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def exact_timers() -> None:
    """Keep the kernel from lumping the calling thread's timers together, by 50 us on Linux."""
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def nice(value: int, pid: int = 0) -> None:
    """Set how far a process stands back, -20 to 19, where that is possible.

    `pid` is the process, or on Linux the thread; 0 is the calling one.
    """
    with contextlib.suppress(AttributeError, OSError):  # Windows hasn't it
        os.setpriority(os.PRIO_PROCESS, pid, value)


def group_name(gid: int) -> str:
    """Return the name of a group of users; "" where it has none, or the system has no groups."""
    with contextlib.suppress(ImportError, KeyError):
        import grp

        return grp.getgrgid(gid).gr_name
    return ""


@contextlib.contextmanager
def signals_handled(numbers: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    """Let `handler` have these signals while the block runs; in the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextlib.contextmanager
def starting_deaf() -> Iterator[None]:
    """Have processes that the block starts ignore Ctrl-C from the first import on.

    Until their own code ran they would end with a traceback. Other threads can't: nothing is done.
    """
    with contextlib.ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            undo.enter_context(signals_handled([signal.SIGINT], signal.SIG_IGN))
        yield


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return those signals that the system has; Windows has SIGINT and SIGTERM, few others."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


# -- ending another process -----------------------------------------------------------------


def own_handle() -> int | None:
    """Open a handle by which another process can end this one; None where there is none (macOS).

    Unlike its number, the handle never comes to mean another process.
    """
    with contextlib.suppress(AttributeError, OSError):  # an old kernel, or a sandbox
        return os.pidfd_open(os.getpid())
    return None


def kill_process(pid: int, handle: int | None) -> None:
    """End a process at once, whatever it does, by its `own_handle` if there is one."""
    with contextlib.suppress(ProcessLookupError):
        if handle is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)


# -- terminals ------------------------------------------------------------------------------

TERMINAL_ERRORS: Final[tuple[type[Exception], ...]] = (
    (OSError, ValueError) if termios is None else (OSError, ValueError, termios.error)
)
"""What opening, setting or closing a terminal or a serial port may raise."""


@contextlib.contextmanager
def key_by_key(stream: IO[str] | None) -> Iterator[bool]:
    """Have a terminal's keys come one by one, without Enter; it is put back afterwards.

    Meanwhile neither Ctrl-S nor Ctrl-Z holds the program up: it may have an arm to look after.

    Yields:
        Whether they do: not where there is no terminal, where the shell would stop a program that
        reads in the background, or on Windows.
    """
    if termios is None or stream is None:  # pythonw, or a closed standard input
        yield False
        return
    try:
        handle = stream.fileno()
        before = termios.tcgetattr(handle)
    except TERMINAL_ERRORS:  # none, or none that is open
        yield False
        return
    try:
        in_front = os.getpgrp() == os.tcgetpgrp(handle)
    except OSError:  # a terminal that isn't the one that controls this program
        in_front = True
    if not in_front:
        yield False
        return
    with contextlib.ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            # What would stop this process, and with it a control loop, for using its terminal.
            stops = signals("SIGTSTP", "SIGTTIN", "SIGTTOU")
            undo.enter_context(signals_handled(stops, signal.SIG_IGN))
        undo.callback(_set_terminal, handle, termios.TCSADRAIN, before)
        iflag, oflag, cflag, lflag, ispeed, ospeed, controls = before
        controls = list(controls)
        controls[termios.VMIN], controls[termios.VTIME] = 1, 0
        controls[termios.VSUSP] = bytes([os.fpathconf(handle, "PC_VDISABLE") & 0xFF])
        lflag &= ~(termios.ECHO | termios.ICANON)
        _set_terminal(
            handle,
            termios.TCSANOW,
            [iflag & ~termios.IXON, oflag, cflag, lflag, ispeed, ospeed, controls],
        )
        yield True


def _set_terminal(handle: int, when: int, settings: list[Any]) -> None:
    with contextlib.suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(handle, when, settings)


def claim_terminal(handle: int) -> None:
    """Keep other programs from opening a serial port as well; they may be told anyway."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(handle, termios.TIOCEXCL)


def wait_terminal(handle: int, event: int, timeout_s: float) -> bool:
    """Wait for `select.POLLIN` or `POLLOUT` of a terminal or serial port; say whether it came.

    By select() on macOS, whose poll() "does not support devices" (poll(2), BUGS).
    """
    # One each time: who takes torque off from outside mustn't fail because a thread that hangs is
    # waiting in the other one.
    asked: Any = None if sys.platform == "darwin" else select.poll()
    if asked is not None:
        asked.register(handle, event)
        return bool(asked.poll(timeout_s * 1000.0))
    read, write = ([handle] if event == way else [] for way in (select.POLLIN, select.POLLOUT))
    try:
        return any(select.select(read, write, (), timeout_s))
    except (OSError, ValueError):  # it is closed: who reads it gets the error
        return True


def open_terminals() -> tuple[int, int, str]:
    """Open a pseudo-terminal that passes every byte on; return our end, the host's and its name."""
    ours, hosts = os.openpty()
    os.set_blocking(ours, False)
    tty.setraw(hosts)
    return ours, hosts, os.ttyname(hosts)


# Linux, asm-generic/ioctls.h: struct termios2 holds any bit rate, not only the named ones.
_TCGETS2: Final = 0x802C542A
_TERMIOS2_SIZE: Final = 44
_OSPEED: Final = 40


def terminal_baud(handle: int) -> int:
    """Return the bit rate that a terminal is set to [bit/s]."""
    if _IS_LINUX:
        settings = fcntl.ioctl(handle, _TCGETS2, bytes(_TERMIOS2_SIZE))
        return int.from_bytes(settings[_OSPEED : _OSPEED + 4], sys.byteorder)
    return int(termios.tcgetattr(handle)[5])  # its number is the rate itself on macOS
