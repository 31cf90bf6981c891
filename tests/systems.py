"""Other operating systems, by taking away from gaploop's modules what those don't have.

Only modules of gaploop miss it: libraries and Python itself have their own ways on each system,
which aren't here to be run. What behaves otherwise there (folders that can't be opened, open
files that can't be renamed by `os.replace` or `os.rename`) is put in its place. Open
files that can't be deleted, paths with backslashes and the rest of Windows aren't imitated.
"""

from __future__ import annotations

import builtins
import errno
import os
import select
import signal
import stat
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_OS = """
    fdatasync fork forkpty getpgrp getpgid setpgid setpgrp setsid getsid tcgetpgrp tcsetpgrp
    killpg nice setpriority getpriority openpty ttyname ctermid posix_openpt ptsname grantpt
    unlockpt O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_DSYNC O_DIRECT O_TMPFILE
    O_PATH O_NOATIME O_NOCTTY posix_fadvise posix_fallocate posix_spawn posix_spawnp sendfile
    pread preadv pwrite pwritev readv writev memfd_create copy_file_range splice eventfd
    getuid geteuid getgid getegid getgroups setuid setgid seteuid statvfs fstatvfs fchmod
    chown fchown lchown chroot mkfifo mknod sysconf confstr pathconf fpathconf uname
    getloadavg wait wait3 wait4 waitid WNOHANG WIFEXITED WEXITSTATUS WIFSIGNALED WTERMSIG
    PRIO_PROCESS PRIO_PGRP PRIO_USER pidfd_open register_at_fork sync getrandom getxattr
    setxattr listxattr removexattr lockf fwalk getlogin startfile O_BINARY sched_setscheduler
    sched_getscheduler sched_setaffinity sched_getaffinity sched_param sched_get_priority_max
    sched_get_priority_min sched_yield SCHED_FIFO SCHED_RR SCHED_OTHER SCHED_BATCH SCHED_IDLE
    SCHED_RESET_ON_FORK
"""
OS = frozenset(_OS.split())
"""Names of `os` that Linux, macOS or Windows lacks."""
_MODULES = "fcntl termios tty pty resource grp pwd syslog posix curses readline"
MODULES = frozenset(_MODULES.split())
ELSEWHERE = {"msvcrt", "winreg", "winsound", "nt"}
SELECT = {"poll", "epoll", "kqueue", "devpoll"}
SIGNALS = {name for name in signal.Signals.__members__ if name not in ("SIGINT", "SIGTERM")}
SIGNAL_CALLS = {"alarm", "setitimer", "getitimer", "pause", "pthread_kill", "sigwait"}

_NOT_ON_MACOS = """
    fdatasync posix_fadvise posix_fallocate memfd_create O_TMPFILE O_PATH O_DIRECT O_NOATIME
    copy_file_range splice eventfd pidfd_open getrandom getxattr setxattr listxattr
    removexattr O_BINARY startfile
"""
NOT_ON_MACOS = {
    *_NOT_ON_MACOS.split(),
    *(name for name in OS if name.startswith(("sched_", "SCHED_"))),
}


class _Without(types.ModuleType):
    """A module without some of its names, or with others in their place."""

    def __init__(
        self,
        real: types.ModuleType,
        gone: Collection[str],
        instead: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _gone=gone, **(instead or {}))

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_gone"]:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}' here")
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_real"], name, value)


def _open(path: Any, flags: int, *given: Any, **named: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return os.open(path, flags, *given, **named)


def _fsync(handle: int) -> None:
    import fcntl

    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    assert stat.S_ISREG(os.fstat(handle).st_mode)
    os.fsync(handle)


def _replace(source: Any, target: Any) -> None:
    """Rename as Windows does: nothing open, nothing that holds it, and nothing over it."""
    for number in os.listdir("/proc/self/fd"):
        try:
            held = Path(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
        for path in (source, target):
            if held.is_relative_to(Path(path).absolute()):
                raise PermissionError(errno.EACCES, f"{held} is open", str(path))
    os.replace(source, target)


def _select(*_waiting: Any) -> Any:
    raise OSError(10038, "An operation was attempted on something that is not a socket")


def _no_library(name: object = None, **_named: Any) -> Any:
    raise TypeError(f"argument of type {type(name).__name__}")


class _EmptyLibrary:
    """A C library that has none of Linux's own calls."""

    def __init__(self, *_given: Any, **_named: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _fullfsync(handle: int, command: int, *argument: Any) -> Any:
    import fcntl

    if command == 51:
        return os.fsync(handle)
    return fcntl.fcntl(handle, command, *argument)


class _PollWithoutDevices:
    """macOS's: "does not support devices" (poll(2), BUGS)."""

    def __init__(self) -> None:
        self._real, self._devices = select.poll(), set[int]()

    def register(self, handle: Any, events: int) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        if os.isatty(number):
            self._devices.add(number)
        else:
            self._real.register(number, events)

    def unregister(self, handle: Any) -> None:
        self._real.unregister(handle)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        return [(one, select.POLLNVAL) for one in self._devices] or self._real.poll(timeout_ms)


def _signals(*names: str) -> Any:
    import enum

    return enum.IntEnum("Signals", {name: signal.Signals[name].value for name in names})


def macos() -> dict[str, types.ModuleType | None]:
    """Return what gaploop's modules get on macOS, by module; None where there is no such."""
    import ctypes
    import fcntl
    import sys

    gone = {"SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX", "SIGCLD"}
    few = _signals(*(name for name in signal.Signals.__members__ if name not in gone))
    return {
        "os": _Without(os, NOT_ON_MACOS),
        "sys": _Without(sys, set(), {"platform": "darwin"}),
        "select": _Without(select, {"epoll", "devpoll"}, {"poll": _PollWithoutDevices}),
        "signal": _Without(signal, gone, {"Signals": few}),
        "fcntl": _Without(fcntl, {"F_OFD_SETLK"}, {"F_FULLFSYNC": 51, "fcntl": _fullfsync}),
        "ctypes": _Without(ctypes, set(), {"CDLL": _EmptyLibrary}),
        **dict.fromkeys(ELSEWHERE),
    }


def windows() -> dict[str, types.ModuleType | None]:
    """Return what gaploop's modules get on Windows, by module; None where there is no such."""
    import ctypes
    import sys

    few = {"Signals": _signals("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")}
    calls: dict[str, Callable[..., Any]] = {
        "open": _open,
        "fsync": _fsync,
        "replace": _replace,
        "rename": _replace,
    }
    return {
        "os": _Without(os, OS, {"name": "nt", **calls}),
        "sys": _Without(sys, set(), {"platform": "win32"}),
        "select": _Without(select, SELECT, {"select": _select}),
        "signal": _Without(signal, SIGNALS - set(few["Signals"].__members__) | SIGNAL_CALLS, few),
        "ctypes": _Without(ctypes, set(), {"CDLL": _no_library}),
        **dict.fromkeys(MODULES | ELSEWHERE),
    }


SYSTEMS = {"macos": macos, "windows": windows}


def install(system: str) -> None:
    """From now on gaploop's modules get what the system has; before any of them is imported."""
    has, real = SYSTEMS[system](), builtins.__import__

    def get(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        package = str((globals or {}).get("__package__") or "").split(".")[0]
        if package != "gaploop" or level or name.split(".")[0] not in has:
            return real(name, globals, locals, fromlist or (), level)
        found = has[name.split(".")[0]]
        if found is None:
            raise ImportError(f"No module named '{name}' on {system}", name=name)
        return found

    builtins.__import__ = get


def environment(system: str, folder: Path) -> dict[str, str]:
    """Return the environment for Python programs that are to run as on another system.

    Args:
        system: one of `SYSTEMS`.
        folder: for a file that their interpreters read as they start.
    """
    folder.mkdir(exist_ok=True)
    here = Path(__file__).resolve().parent
    code = (
        f"import sys\nsys.path.append({str(here)!r})\nimport systems\nsystems.install({system!r})\n"
    )
    (folder / "sitecustomize.py").write_text(code)
    found = [str(folder), os.environ.get("PYTHONPATH", "")]
    cache = str(folder / "cache")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "XDG_CACHE_HOME": cache,
        "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl"),
    }
