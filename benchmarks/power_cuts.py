"""`benchmarks power_cuts`: what a power cut costs, at moments and in orders drawn at random.

A session records, labels, publishes, publishes again and deletes takes on a file system of our own
(FUSE), which logs every write, name and sync of every process. Each cut is then laid out as a disk
could hold it: what was synced is there; of what came later each block is there, missing or zeros,
and each folder has its names up to some moment of its own. That is all that POSIX promises; ext4
and xfs keep more. There the journal is recovered, every take that was claimed sealed is read to its
last picture, and plain LeRobot loads the dataset.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import journal
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

CLAIMS: Final = ".claims"
"""File in which the session says what it has done, in the order of the writes."""
BLOCK: Final = 4096
TAKE_S: Final = 0.8
DISKS: Final = ("in order", "worst", "drawn", "drawn")
"""What a cut leaves of what wasn't synced: all, nothing, or a part, in turn."""
LOADED: Final = 5
"""Plain LeRobot loads the dataset after one in so many cuts."""
EXCHANGE: Final = 2  # renameat2(2)
type Op = tuple[Any, ...]


@dataclass
class Node:
    """A file, folder or link. Its names are nodes' numbers by name."""

    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, int] = field(default_factory=dict)


class Disk:
    """Nodes by number, the root's is 0; what an `Op` does to them.

    Ops: ("new", node, mode), ("write", node, offset, data), ("size", node, bytes), ("sync", node),
    ("name", folder, name, node), ("unname", folder, name), and ("rename" or "exchange", folder,
    name, new folder, new name).
    """

    def __init__(self) -> None:
        self.nodes = {0: Node(stat.S_IFDIR | 0o755)}

    def apply(self, op: Op) -> None:
        """Do it; a name that isn't there, because another folder forgot it, is passed over."""
        match op:
            case ("new", node, mode):
                self.nodes[node] = Node(mode)
            case ("write", node, offset, data):
                held = self.nodes[node].data
                held.extend(bytes(max(0, offset + len(data) - len(held))))
                held[offset : offset + len(data)] = data
            case ("size", node, size):
                held = self.nodes[node].data
                del held[size:]
                held.extend(bytes(size - len(held)))
            case ("name", folder, name, node):
                self.nodes[folder].names[name] = node
            case ("unname", folder, name):
                self.nodes[folder].names.pop(name, None)
            case ("rename", folder, name, to, new):
                if (node := self.nodes[folder].names.pop(name, None)) is not None:
                    self.nodes[to].names[new] = node
            case ("exchange", folder, name, to, new):
                one, other = self.nodes[folder].names, self.nodes[to].names
                if name in one and new in other:
                    one[name], other[new] = other[new], one[name]

    def lay_out(self, folder: Path) -> None:
        """Write it all to a new folder; two names of one file are links."""
        first: dict[int, Path] = {}

        def put(number: int, path: Path) -> None:
            node = self.nodes[number]
            if stat.S_ISDIR(node.mode):
                path.mkdir()
                for name, child in node.names.items():
                    put(child, path / name)
            elif stat.S_ISLNK(node.mode):
                path.symlink_to(os.fsdecode(bytes(node.data)))
            elif number in first:
                os.link(first[number], path)
            else:
                path.write_bytes(node.data)
                first[number] = path

        put(0, folder)


FOLDERS_OF: Final = {"name": (1,), "unname": (1,), "rename": (1, 3), "exchange": (1, 3)}


def left_by_cut(ops: Sequence[Op], disk: str, draw: np.random.Generator) -> Disk:
    """Return what a disk of `DISKS` may hold where the power goes after `ops`."""
    synced: dict[int, int] = {}
    for index, op in enumerate(ops):
        if op[0] == "sync":
            synced[op[1]] = index
    upto: dict[int, int] = defaultdict(lambda: -1, synced)
    if disk != "worst":
        for op in ops:
            for place in FOLDERS_OF.get(op[0], ()):
                begin = synced.get(op[place], -1)
                if op[place] not in upto or upto[op[place]] == begin:
                    late = len(ops) if disk == "in order" else draw.integers(begin, len(ops) + 1)
                    upto[op[place]] = int(late)
    left = Disk()
    for index, op in enumerate(ops):
        if op[0] == "sync":
            continue
        if op[0] in FOLDERS_OF:
            if index <= max(upto[op[place]] for place in FOLDERS_OF[op[0]]):
                left.apply(op)
        elif op[0] == "new" or disk == "in order" or index < synced.get(op[1], -1):
            left.apply(op)
        elif disk == "drawn" and op[0] == "size":
            if draw.random() < 0.5:
                left.apply(op)
        elif disk == "drawn":
            _, node, offset, data = op
            for begin in range(0, len(data), BLOCK):
                part, fate = data[begin : begin + BLOCK], draw.random()
                if fate < 0.75:
                    part = part if fate < 0.5 else bytes(len(part))
                    left.apply(("write", node, offset + begin, part))
    return left


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[tuple[Path, list[Op]]]:
    """Mount the file system that logs; yield where, and the ops, which are there at the end.

    Raises:
        UnusableInputError: there is no FUSE here.
    """
    folder = folder.absolute()  # FUSE leaves this one for /
    mount, log, ops = folder / "mount", folder / "ops.pickle", list[Op]()
    mount.mkdir(parents=True)
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        raise UnusableInputError(
            f"power_cuts needs FUSE ({error}): apt-get install fuse3, pip install mfusepy."
        ) from None
    serving = multiprocessing.get_context("spawn").Process(target=serve_fuse, args=(mount, log))
    serving.start()
    try:
        while not mount.is_mount():
            if not serving.is_alive():
                raise UnusableInputError("FUSE can't mount here. Run power_cuts as root.")
            time.sleep(0.05)
        yield mount, ops
    finally:
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        serving.join(60.0)
    ops += pickle.loads(log.read_bytes())


def serve_fuse(mount: Path, log: Path) -> None:
    """Serve the file system that logs until it is unmounted, then write its log."""
    import mfusepy

    ops, disk = list[Op](), Disk()

    def do(*op: Any) -> int:
        ops.append(op)
        disk.apply(op)
        return 0

    def find(path: str) -> int:
        number = 0
        for name in path.strip("/").split("/") if path != "/" else ():
            found = disk.nodes[number].names.get(name)
            if found is None:
                raise mfusepy.FuseOSError(errno.ENOENT)
            number = found
        return number

    def at(path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return find(folder or "/"), name

    def make(path: str, mode: int, data: bytes = b"") -> int:
        number = len(disk.nodes)
        do("new", number, mode)
        if data:
            do("write", number, 0, data)
        do("name", *at(path), number)
        return number

    class Logging(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            number = find(path) if fh is None else fh
            node = disk.nodes[number]
            links = sum(number in n.names.values() for n in disk.nodes.values())
            who = {"st_uid": os.getuid(), "st_gid": os.getgid()}
            return {"st_mode": node.mode, "st_size": len(node.data), "st_ino": number + 1,
                    "st_nlink": max(links, 1), **who}  # fmt: skip

        def readdir(self, path: str, _fh: int) -> list[tuple[str, dict[str, Any], int]]:
            names = disk.nodes[find(path)].names
            return [(name, self.getattr("", number), 0) for name, number in names.items()]

        def readlink(self, path: str) -> str:
            return os.fsdecode(bytes(disk.nodes[find(path)].data))

        def opendir(self, path: str) -> int:
            return find(path)

        def open(self, path: str, flags: int) -> int:
            number = find(path)
            return do("size", number, 0) or number if flags & os.O_TRUNC else number

        def create(self, path: str, mode: int, _fi: Any = None) -> int:
            return make(path, stat.S_IFREG | stat.S_IMODE(mode))

        def mkdir(self, path: str, mode: int) -> int:
            return 0 * make(path, stat.S_IFDIR | mode)

        def symlink(self, target: str, source: str) -> int:
            return 0 * make(target, stat.S_IFLNK | 0o777, os.fsencode(source))

        def link(self, target: str, source: str) -> int:
            return do("name", *at(target), find(source))

        def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
            return bytes(disk.nodes[fh].data[offset : offset + size])

        def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
            return do("write", fh, offset, data) or len(data)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            return do("size", fh if path is None else find(path), length)

        def fsync(self, _path: str, _datasync: int, fh: int) -> int:
            return do("sync", fh)

        def fsyncdir(self, _path: str, _datasync: int, fh: int) -> int:
            return do("sync", fh)

        def unlink(self, path: str) -> int:
            return do("unname", *at(path))

        def rmdir(self, path: str) -> int:
            if disk.nodes[find(path)].names:
                raise mfusepy.FuseOSError(errno.ENOTEMPTY)
            return do("unname", *at(path))

        def rename(self, old: str, new: str, flags: int = 0) -> int:
            find(old)
            return do("exchange" if flags & EXCHANGE else "rename", *at(old), *at(new))

        def chmod(self, path: str, mode: int) -> int:
            node = disk.nodes[find(path)]
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
            return 0

        def utimens(self, _path: str, _times: Any = None) -> int:
            return 0

        def statfs(self, _path: str) -> dict[str, int]:
            return dict.fromkeys(("f_blocks", "f_bfree", "f_bavail"), 1 << 24) | {
                "f_bsize": BLOCK, "f_frsize": BLOCK, "f_namemax": 255}  # fmt: skip

    class Fuse(mfusepy.FUSE):  # type: ignore[misc]
        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
            return self.operations.rename(os.fsdecode(old), os.fsdecode(new), flags)  # type: ignore[no-any-return]

    Fuse(Logging(), str(mount), foreground=True, nothreads=True, hard_remove=True, use_ino=True)
    log.write_bytes(pickle.dumps(ops))


class Claims:
    """Where the session says what it has done: a file in the logged file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, claim: tuple[Any, ...]) -> None:
        """Say it; in one write."""
        with self._path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(claim).encode() + b"\n")


def session(work: Path, takes: int) -> None:
    """Record, label, publish, record more, publish again, delete one, and leave one open."""
    from benchmarks import journal_jobs as jobs
    from gaploop.collect.encoder import Encoder
    from gaploop.collect.journal import JournalWriter
    from gaploop.core import labels
    from gaploop.core.journal_format import LABELS
    from gaploop.core.labels import LabelEvent
    from gaploop.datasets.edit.actions import delete_takes
    from gaploop.datasets.lerobot_publish import publish_takes

    claims, folder, root = Claims(work / CLAIMS), work / "lab" / "journal", work / "sets" / "data"

    def sealed() -> list[str]:
        lines = (work / CLAIMS).read_text().splitlines()
        return [claim[1] for claim in map(json.loads, lines) if claim[0] == "sealed"]

    for _ in range(2):
        jobs.record(claims, folder, TAKE_S, takes)  # type: ignore[arg-type]
        mark = LabelEvent(sealed()[-1], "failure_mode", "slip", "ana", "engineer", labels.now())
        labels.append(folder / LABELS, mark)
        claims.send(("labelled", mark.uid))
        publish_takes(folder, root, jobs.REPO)
        claims.send(("published", sealed()))
    first = sealed()[0]
    claims.send(("deleting", first))
    delete_takes(root, lambda episode: episode.info.uid == first)
    claims.send(("deleted", first))
    with Encoder() as encoder, ThreadPoolExecutor(1):
        encoder.start(jobs.header().cameras)
        with contextlib.suppress(KeyboardInterrupt), JournalWriter(
            folder, jobs.header(), encoder=encoder
        ) as writer:  # fmt: skip
            jobs._write(claims, writer, round(2 * TAKE_S * jobs.FPS))  # type: ignore[arg-type]
            raise KeyboardInterrupt


def judge(work: Path, claims: list[tuple[Any, ...]], tally: journal.Tally, *, load: bool) -> str:
    """Recover what a cut left, and compare it with what was claimed; return what is wrong."""
    from gaploop.core import labels
    from gaploop.core.journal_format import LABELS

    lost = tally.sealed_lost
    folder, root = work / "lab" / "journal", work / "sets" / "data"
    try:
        journal._judge(folder, claims, tally, "cut")
        said = {event.uid for event in labels.read(folder / LABELS)}
    except Exception as error:  # noqa: BLE001  # whatever it raises, the session is unreadable
        tally.torn += 1
        return f"{type(error).__name__}: {error}"
    wrong = [f"sealed takes lost: {tally.sealed_lost - lost}"] * (tally.sealed_lost > lost)
    wrong += [f"label lost: {c[1]}" for c in claims if c[0] == "labelled" and c[1] not in said]
    if load:
        due = {uid for c in claims if c[0] == "published" for uid in c[1]}
        due -= {c[1] for c in claims if c[0] == "deleting"}
        found = journal._published(root)
        if found is None or not due <= found:
            wrong.append(
                "dataset not loaded" if found is None else f"{len(due - found)} takes gone"
            )
        elif back := found & {c[1] for c in claims if c[0] == "deleted"}:
            wrong.append(f"deleted takes back: {len(back)}")
    tally.unloadable += any("label" not in w and "sealed" not in w for w in wrong)
    return "; ".join(wrong)


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record a session once, and cut its power `kills` times."""
    draw, tally = np.random.default_rng(config.seed), journal.Tally()
    shutil.rmtree(folder / "fuse", ignore_errors=True)
    with options.progress("Recording"), recorded(folder / "fuse") as (mount, ops):
        session(mount, config.n or 3)
    claims_at = next(op[3] for op in ops if op[0] == "name" and op[2] == CLAIMS)
    claimed_at = [k for k, op in enumerate(ops, 1) if op[:2] == ("write", claims_at)]
    faults: dict[str, int] = defaultdict(int)
    example: dict[str, str] = {}
    with options.progress("Cutting", config.kills) as advance:
        for number in range(config.kills):
            # Half of them while something is claimed, which is mostly that a row comes.
            cut = int(
                draw.choice(claimed_at) if number // len(DISKS) % 2 else draw.integers(len(ops))
            )
            disk = DISKS[number % len(DISKS)]
            before = [op for op in ops[:cut] if claims_at not in (op[1], op[-1])]
            said = b"".join(op[3] for op in ops[:cut] if op[:2] == ("write", claims_at))
            claims = [tuple(json.loads(line)) for line in said.rpartition(b"\n")[0].splitlines()]
            work = folder / "cut"
            shutil.rmtree(work, ignore_errors=True)
            left_by_cut(before, disk, draw).lay_out(work)
            tally.kills[disk] += 1
            if wrong := judge(work, claims, tally, load=number % LOADED == 0):
                faults[disk] += 1
                example.setdefault(disk, f"cut {cut} of {len(ops)}: {wrong}")
            advance()
    shutil.rmtree(folder / "fuse", ignore_errors=True)
    found = journal.figures(tally)
    return {"operations": len(ops), **found, "cuts_with_faults": dict(faults), "first": example}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    return "\n".join(f"{name:<34}{value}" for name, value in result.items())
