"""A program that nobody trusts, in a process of its own: no network, bounded memory and time.

On Linux, where user namespaces are permitted, the program sees no network, no other process, and
no file but Python, gaploop, this folder and what it is given to read (`confined`). Elsewhere
only limits of memory and file size hold, and what Python itself can refuse (`guard`): that stops
accidents, not malice, so it does for policies, whose files were looked at, and not for programs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

import gaploop
from benchmarks.board.confined import MB, REFUSED
from gaploop.core.errors import DeviceError
from gaploop.core.files import printable

CHECKOUT: Final = Path(__file__).parents[2]
NAMESPACES: Final = "namespaces"
GUARD: Final = "guard"
SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives",
)  # fmt: skip
"""What programs need of a Linux system."""
LOOK_S: Final = 0.25
"""How often memory and time are looked at [s]."""
GONE_S: Final = 5.0
"""What was killed is waited for no longer than this [s]: on a busy machine that takes a moment."""
GUARDED: Final = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
    "os.startfile", "pty.",
)  # fmt: skip
"""Python's audit events that `guard` refuses."""


@dataclass(frozen=True)
class LimitOptions:
    """What a submission may take."""

    memory_mb: int = 4096
    """With all of its processes [MiB]."""
    load_s: float = 300.0
    """A policy is ready to answer within this [s]."""
    answer_s: float = 20.0
    """It answers each question within this [s]."""
    program_s: float = 1800.0
    """A program ends within this [s]."""
    download_mb: int = 2048
    """All files of a submission [MiB]."""


@dataclass(frozen=True)
class Limits(LimitOptions):
    """What a submission may take, with what no server needs to choose."""

    file_mb: int = 64
    """Length of a file that it writes, and of all of them in namespaces [MiB]."""
    processes: int = 128
    """Threads and processes, in namespaces."""
    output_mb: int = 32
    """What a program prints [MiB]."""


class EndedError(DeviceError):
    """A program ended, was ended, or doesn't keep to what was agreed.

    Args:
        reason: why, in words that tell nothing of what it saw.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"The submission {reason}.")
        self.reason = reason


@functools.cache
def isolation() -> str:
    """Return how programs are kept apart here: `namespaces`, or else `guard`."""
    with Sandbox([sys.executable, "-c", ""], (), Limits(), NAMESPACES) as tried:
        return GUARD if tried.process.wait() == REFUSED else NAMESPACES


class Sandbox:
    """A running program; nothing of it is left once this is closed.

    Args:
        argv: the program by its path, and its arguments.
        reads: files and folders that it may read besides Python and gaploop.
        how: `namespaces` or `guard`; what there is, unless given.
    """

    def __init__(
        self, argv: Sequence[str], reads: Sequence[Path], limits: Limits, how: str = ""
    ) -> None:
        how = how or isolation()
        self._limits, self.why = limits, ""
        self._until_s = time.monotonic() + limits.load_s
        self._over = threading.Event()
        self._root = tempfile.mkdtemp(prefix="gaploop-box-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `close` does
        shown = [str(place) for place in (*_runtime(), *(p.resolve() for p in reads))]
        spec = {
            "root": self._root if how == NAMESPACES else "",
            "reads": shown,
            "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb,
            "processes": limits.processes,
        }
        command = [sys.executable, "-P", "-m", "benchmarks.board.confined", json.dumps(spec), *argv]
        here = "/tmp" if how == NAMESPACES else self._root
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": here,
            "TMPDIR": here,
            "USER": "nobody",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{Path(gaploop.__file__).parent.parent}{os.pathsep}{CHECKOUT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "MUJOCO_GL": "disable",
            "HF_HUB_OFFLINE": "1",
            "GAPLOOP_GUARD": "" if how == NAMESPACES else "1",
        }
        self.process = subprocess.Popen(
            command, env=environment, cwd="/", stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def allow(self, seconds: float) -> None:
        """Let it run for so long from now on [s]; then it is ended."""
        self._until_s = time.monotonic() + seconds

    def send(self, data: bytes) -> None:
        """Write all of `data` to its standard input.

        Raises:
            EndedError: it is gone.
        """
        try:
            self._to.write(data)
            self._to.flush()
        except (OSError, ValueError):
            raise self._ended() from None

    def receive(self, count: int) -> bytes:
        """Read `count` bytes of its standard output.

        Raises:
            EndedError: it ends, or is ended, before.
        """
        data: bytes = self._from.read(count)
        if len(data) != count:
            raise self._ended()
        return data

    def output(self) -> bytes:
        """Return all that it prints from now on, once it has ended with exit code 0.

        Raises:
            EndedError: it prints too much, takes too long or too much memory, or fails.
        """
        with contextlib.suppress(OSError):
            self._to.close()
        most = self._limits.output_mb * MB
        data: bytes = self._from.read(most + 1)
        if len(data) > most:
            self._end(f"prints more than {self._limits.output_mb} MiB")
        if self.process.wait() or self.why:
            raise self._ended()
        return data

    def stderr_tail(self) -> str:
        """Return the end of what it printed as errors: for the operator, never for the public."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - 4000, 0))
        return printable(self._errors.read().decode(errors="replace"))

    def close(self) -> None:
        """End it with everything that it started; safe to call twice."""
        self._over.set()
        self._end("")
        self._watcher.join()
        for stream in (self._to, self._from, self._errors):
            with contextlib.suppress(OSError):
                stream.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def _ended(self) -> EndedError:
        self._watcher.join(2 * LOOK_S)  # it may be about to say why
        return EndedError(self.why or "ended by itself")

    def _end(self, why: str) -> None:
        self.why = self.why or why
        tree = _tree(self.process.pid)
        for process in tree:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        until_s = time.monotonic() + GONE_S
        while any(map(_runs, tree)) and time.monotonic() < until_s:
            time.sleep(0.01)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S) and self.process.poll() is None:
            used = 0
            for process in _tree(self.process.pid):
                with contextlib.suppress(psutil.Error):
                    used += process.memory_info().rss
            if used > self._limits.memory_mb * MB:
                self._end(f"takes more than {self._limits.memory_mb} MiB of memory")
            elif time.monotonic() > self._until_s:
                self._end("takes too long")


def _tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [*top.children(recursive=True), top]
    except psutil.Error:
        return []


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@functools.cache
def _runtime() -> tuple[Path, ...]:
    """Return what Python and gaploop consist of, and the links on the way there."""
    package = Path(gaploop.__file__).parent
    linked = (entry.resolve() for entry in package.iterdir() if entry.is_symlink())
    executable, links = Path(sys.executable), list[Path]()
    while executable.is_symlink():
        links.append(executable)
        executable = executable.parent / executable.readlink()
    home = Path(sys.base_prefix)
    venv = Path(sys.prefix)
    places = (*map(Path, SYSTEM), venv, venv.resolve(), home, home.resolve(), executable, package)
    board = (CHECKOUT / "benchmarks" / "__init__.py", Path(__file__).parent)
    return (*places, *linked, *links, *board)


def guard() -> None:
    """Refuse, in this Python process from now on, sockets, programs, and writing but in $TMPDIR.

    Stops Python code that does so without malice; compiled code isn't asked.
    """
    home = os.path.realpath(os.environ.get("TMPDIR") or tempfile.gettempdir())
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event.startswith(GUARDED):
            raise PermissionError(f"{event} is refused in a benchmark")
        if event == "open" and isinstance(given[2], int) and given[2] & writes:
            name = given[0]
            path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
            inside = f"{os.path.realpath(path)}{os.sep}".startswith(home + os.sep)
            if path and path != os.devnull and not inside:
                raise PermissionError(f"writing {path} is refused in a benchmark")

    sys.addaudithook(hook)
