"""Starts a program that isn't trusted: `python -m benchmarks.board.confined SPEC program …`.

SPEC is JSON: `memory_mb`, `file_mb`, `processes`, and `root` with `reads` where the program goes
into namespaces of its own. Exit code 125: the system doesn't permit those, and nothing was run.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gaploop.core.platform_calls import c_library_error

REFUSED: Final = 125
MB: Final = 1 << 20
IS_LINUX: Final = sys.platform.startswith("linux")
_AT_FDCWD: Final = -100
_NAMESPACES: Final = ("NEWUSER", "NEWNS", "NEWNET", "NEWPID", "NEWIPC", "NEWUTS")
_NOBODY: Final = 65534
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_PR_SET_NO_NEW_PRIVS: Final = 38
_MS_BIND_REC: Final = 4096 | 16384  # <linux/mount.h>
_MS_REC_PRIVATE: Final = 16384 | 1 << 18
_MS_PLAIN: Final = 2 | 4  # no set-user-id programs, no devices
_MOUNT_SETATTR: Final = 442  # the same number on all of Linux's architectures
_AT_RECURSIVE: Final = 0x8000


def limit_process(memory_bytes: int, file_bytes: int, processes: int) -> None:
    """Limit what this process and what it starts may take; as far as the system can.

    Private memory of each process, length of any file that is written, and this user's processes,
    threads included; 0 for no limit of those.
    """
    wanted = {"CORE": 0, "DATA": memory_bytes, "FSIZE": file_bytes, "NOFILE": 256}
    if processes:
        wanted["NPROC"] = processes
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            most = resource.getrlimit(kind)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone; Linux only."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def confine(root: Path, reads: Sequence[Path], scratch_bytes: int) -> None:
    """Go on in a process that has no network, no other processes and no files but some to read.

    Returns in a child in Linux namespaces of its own (user, mounts, network, processes, IPC), whose
    root, mounted on the empty folder `root`, is made anew: `reads` at their own paths and
    read-only, with links made anew, four harmless devices, an empty `/tmp` of `scratch_bytes` in
    memory. What it executes has no capabilities, and can't make namespaces itself: it is in a
    chroot. The calling process waits for it and ends as it did; where the system doesn't permit
    this (user namespaces, Linux 5.12), before anything was executed.

    Raises:
        OSError: the system doesn't permit it.
    """
    if not IS_LINUX or not hasattr(os, "unshare"):
        raise OSError(errno.ENOSYS, "No namespaces on this system")
    uid, gid = os.geteuid(), os.getegid()
    flags = 0
    for name in _NAMESPACES:
        flags |= getattr(os, f"CLONE_{name}")
    os.unshare(flags)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{_NOBODY} {uid} 1"),
        ("gid_map", f"{_NOBODY} {gid} 1"),
    ):
        Path("/proc/self", name).write_text(line)
    if child := os.fork():  # the first process of the new namespace: with it all others end
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    end_with_parent()
    _mount("none", "/", "", _MS_REC_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_PLAIN, "size=1m,mode=755")
    for name in ("dev", "proc", "tmp"):
        (root / name).mkdir()
    _mount("tmpfs", root / "tmp", "tmpfs", _MS_PLAIN, f"size={scratch_bytes},mode=777")
    with contextlib.suppress(OSError):  # not where parts of /proc are hidden from us already
        _mount("proc", root / "proc", "proc", _MS_PLAIN)
        # Root's own process could write /proc/sys, without any right.
        _restrict(root / "proc", 1, 0)
    for place in (*map(Path, _DEVICES), *reads):
        there = root / place.relative_to("/")
        if there.exists() or there.is_symlink() or not (place.exists() or place.is_symlink()):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            there.symlink_to(place.readlink())
            continue
        if place.is_dir():
            there.mkdir()
        else:
            there.touch()
        _mount(place, there, "", _MS_BIND_REC)
        is_device = stat.S_ISCHR(place.stat().st_mode)
        _restrict(there, 0 if is_device else 1 | _MS_PLAIN, _AT_RECURSIVE)
    (root / "dev" / "shm").symlink_to("/tmp")
    _restrict(root, 1, 0)
    os.chroot(root)
    os.chdir("/tmp")
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _restrict(place: Path, attributes: int, flags: int) -> None:
    """Set attributes of a mount: 1 read-only, 2 no set-user-id programs, 4 no devices."""
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd.
    given = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    call = ctypes.CDLL(None, use_errno=True).syscall
    size, number = ctypes.c_size_t(32), ctypes.c_long(_MOUNT_SETATTR)
    if call(number, _AT_FDCWD, os.fsencode(place), flags, ctypes.byref(given), size):
        raise c_library_error(place)


def _mount(source: str | Path, target: str | Path, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    call = ctypes.CDLL(None, use_errno=True).mount
    if call(*words, ctypes.c_ulong(flags), os.fsencode(data) or None):
        raise c_library_error(target)


def main() -> None:
    """Give up what the program shall not have, then become it."""
    spec, program = json.loads(sys.argv[1]), sys.argv[2:]
    end_with_parent()
    if spec["root"]:
        reads = [Path(place) for place in spec["reads"]]
        try:
            confine(Path(spec["root"]), reads, spec["file_mb"] * MB)
        except OSError as error:
            sys.stderr.write(f"No namespaces: {error}\n")
            sys.stderr.flush()
            os._exit(REFUSED)
    processes = spec["processes"] if spec["root"] else 0  # else the user's others count, too
    limit_process(spec["memory_mb"] * MB, spec["file_mb"] * MB, processes)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
