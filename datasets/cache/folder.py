"""Where decoded pictures are kept, and how much of the disk they may take.

One folder per dataset below a common one, in it one per form (size, decoder). The bound
holds for all of them together: the least recently used that nobody reads makes room first.
They show people, so only their owner may read them, and a withdrawn consent removes them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import filelock
import numpy as np
import xxhash
from numpy.typing import NDArray

from gaploop.core import platform_calls
from gaploop.core.consent import Place, note_made_from
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, parse_json, read_json, write_atomically
from gaploop.core.messages import Image

log = logging.getLogger(__name__)

PACK: Final = ".pack"
INDEX: Final = ".index"
PRIVATE: Final = 0o600
"""Mode of every file here: pictures show people."""
RESERVE_BYTES: Final = 2_000_000_000
"""Left free on the disk, whatever the bound says."""
_USED: Final = "used"
_VIDEOS: Final = "videos.json"
_LOCK: Final = "videos.lock"
_BUILDING: Final = "lock"

type Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: called with a description and the number of pictures, gives `advance(n)`."""


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an opener for `open`."""
    return os.open(path, flags, PRIVATE)


@dataclass(frozen=True)
class CacheOptions:
    """How decoded pictures are kept for training; see docs/data/loading.md."""

    size: str = "native"
    """What pictures are scaled to, such as 224 or 320x240: what training uses loads fastest. off
    keeps none and reads the videos."""
    max_gb: float = 20.0
    """What all caches in $XDG_CACHE_HOME/gaploop may take together [GB]."""
    dir: Path | None = field(default=None, metadata={"option": False})
    """Where caches are; gaploop/frames in $XDG_CACHE_HOME (~/.cache) unless given."""
    keep: bool = field(default=True, metadata={"option": False})
    """Keep pictures; otherwise videos are decoded for every sample, as LeRobot does."""

    def __post_init__(self) -> None:
        if self.size == "off":
            object.__setattr__(self, "keep", False)
        if not self.max_gb >= 0:
            raise UnusableInputError(f"--cache.max_gb={self.max_gb:g} must be 0 or more.")
        parse_size(self.size)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width that pictures are scaled to [px]; None for as they were recorded."""
        return parse_size(self.size)


def parse_size(text: str) -> tuple[int, int] | None:
    """Return height and width [px]: of "320x240" (width first), "224", None of "native" or ""."""
    if text in ("", "native", "off"):
        return None
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    width, height = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not width or not height:
        raise UnusableInputError(
            f"--cache.size={text} is no picture size. Give WIDTHxHEIGHT such as 320x240, one "
            "number for a square such as 224, or native."
        )
    return height, width


def default_folder() -> Path:
    """Return `$XDG_CACHE_HOME/gaploop/frames`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gaploop" / "frames"


class CacheFolder:
    """The cached pictures of one dataset."""

    def __init__(self, root: Path, options: CacheOptions) -> None:
        self.base = options.dir or default_folder()
        self.path = cache_path(root, self.base)
        self._root, self._max_bytes = root, int(options.max_gb * 1e9)
        self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(exist_ok=True, mode=0o700)
        try:  # an earlier version let everybody read what it made
            self.path.chmod(0o700)
            for path in self.path.rglob("*"):
                if path.is_symlink():  # none of ours
                    continue
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    path.chmod(0o700 if path.is_dir() else PRIVATE)
        except PermissionError:
            log.warning(
                "%s belongs to somebody else, who decides who may see its pictures.", self.path
            )
        note_made_from(Place("cache", str(self.path.absolute())), [root])
        self._used: BinaryIO | None = None

    def use(self, form: str) -> None:
        """Say that pictures of a form are in use, for as long as this object lives."""
        path = self.path / form / _USED
        while True:  # a shared lock and the present time, also where it was just removed
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                stream = os.fdopen(private(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
                platform_calls.lock(stream.fileno(), shared=True)
                if path.exists() and path.stat().st_ino == os.fstat(stream.fileno()).st_ino:
                    os.utime(path)
                    self._used = stream
                    return
                stream.close()

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Hold the lock under which pictures are added; waits while another process builds."""
        lock = filelock.FileLock(self.path / _BUILDING, mode=PRIVATE)
        try:
            held = lock.acquire(timeout=0)
        except filelock.Timeout:
            log.info("Another process builds the frame cache of %s; waiting for it.", self._root)
            held = lock.acquire()
        with held:
            yield

    def video_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return a hash of the content of each video, by its name relative to the dataset.

        A file is read only where its size or time of change differs from when it was last read.
        What is cached of a content that no video has any more is removed.
        """
        lock = filelock.FileLock(self.path / _LOCK, mode=PRIVATE)
        with lock:  # two trainings may begin with different takes
            path = self.path / _VIDEOS
            before = read_json(path)["files"] if path.exists() else {}
            known = {name: value for name, value in before.items() if (self._root / name).exists()}
            for name in names:
                state = (self._root / name).stat()
                stamp = [state.st_size, state.st_mtime_ns]
                if name not in known or known[name][:2] != stamp:
                    with (self._root / name).open("rb") as stream:
                        digest = hashlib.file_digest(stream, xxhash.xxh3_128)
                    known[name] = [*stamp, digest.hexdigest()]
            if known != before:
                value = {"root": str(self._root), "files": known}
                write_atomically(path, json.dumps(value, indent=1) + "\n", PRIVATE)
                current = {value[2] for value in known.values()}
                for pack in self.path.glob(f"*/*{PACK}"):
                    if pack.stem.rpartition(".")[2] not in current:
                        log.info(
                            "A video of %s has changed; its cached pictures are removed.",
                            self._root,
                        )
                        remove(pack)
            return {name: known[name][2] for name in names}

    def room(self, needed_bytes: int, form: str) -> int:
        """Return how many bytes may be added, after making room for `needed_bytes` if possible.

        Caches that nobody reads are removed, the least recently used first, but only where that
        makes enough room, and never this dataset's pictures of `form`.
        """
        mine = self.path / form
        others = [p.parent for p in self.base.glob(f"*/*/{_USED}") if p.parent != mine]
        others.sort(key=lambda p: (p / _USED).stat().st_mtime_ns)
        held = {path: folder_bytes(path) for path in others}
        room = self.left()
        if room < needed_bytes <= room + sum(held.values()):
            for path in others:
                if _remove_unused(path):
                    log.info("Removed the frame cache %s (%.1f GB).", path, held[path] / 1e9)
                    room = self.left()
                if room >= needed_bytes:
                    break
        return room

    def left(self) -> int:
        """Return how many bytes may be added as things stand; below 0 where there are too many."""
        free = shutil.disk_usage(self.path).free - RESERVE_BYTES
        return min(self._max_bytes - folder_bytes(self.base), free)


def cache_path(root: Path, base: Path | None = None) -> Path:
    """Return where below `base` the pictures of the dataset at `root` are cached, there or not."""
    digest = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
    return (base or default_folder()) / f"{root.resolve().name}-{digest}"


def is_cache(path: Path) -> bool:
    """Say whether a folder is the cache of a dataset."""
    return not path.is_symlink() and (path / _VIDEOS).is_file()


def remove_cache(path: Path) -> bool:
    """Remove all cached pictures of a dataset; False where a training uses or builds them."""
    forms = [used.parent for used in sorted(path.glob(f"*/{_USED}"))]
    if sum(_remove_unused(form) for form in forms) < len(forms):
        return False
    lock = filelock.FileLock(path / _BUILDING, mode=PRIVATE)
    try:
        with lock.acquire(timeout=0):
            shutil.rmtree(path)
    except filelock.Timeout:
        return False
    return True


def remove(pack: Path) -> None:
    """Remove a pack and its index."""
    pack.with_suffix(INDEX).unlink(missing_ok=True)
    pack.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Return what the packs and indexes below a folder take [bytes]."""
    total = 0
    for path in (p for suffix in (PACK, INDEX) for p in folder.rglob(f"*{suffix}")):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            total += path.stat().st_size
    return total


def _remove_unused(folder: Path) -> bool:
    """Remove a cache unless someone uses it; say whether it is gone."""
    try:
        with (folder / _USED).open("ab") as stream:
            platform_calls.lock(stream.fileno(), wait=False)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:
        return True
    except OSError:  # in use
        return False
    return not folder.exists()


# -- packs: pictures of episodes in one file -----------------------------------------------------


type Int64Array = NDArray[np.int64]

PARTS: Final = 8
"""Into how many parts a batch is cut for threads: a part each costs more than a small picture."""


@dataclass(frozen=True)
class PackedEpisode:
    """One episode's pictures in a pack, in order of frame.

    Attributes:
        key: names the pictures by what they were made from.
        shape: height and width of each [px].
        offset: where the first begins in the pack [bytes].
        sizes: length of each [bytes], shape (n,).
        sums: XXH3-64 of each, shape (n,).
    """

    key: str
    shape: tuple[int, int]
    offset: int
    sizes: Int64Array
    sums: NDArray[np.uint64]

    @property
    def end(self) -> int:
        """Where the last one ends in the pack [bytes]."""
        return self.offset + int(self.sizes.sum())


def read_index(pack: Path) -> dict[str, PackedEpisode]:
    """Return the episodes that a pack holds whole, by key; none where there is no pack.

    Lines that don't match their checksum are passed over, and so are pictures that lie beyond
    the end of the file.
    """
    index = pack.with_suffix(INDEX)
    if not index.exists() or not pack.exists():
        return {}
    size = pack.stat().st_size
    entries: dict[str, PackedEpisode] = {}
    for line in index.read_bytes().splitlines():
        digest, _, body = line.partition(b" ")
        if xxhash.xxh3_64_hexdigest(body).encode() != digest:
            continue
        try:
            value: Mapping[str, Any] = parse_json(body)
        except ValueError:
            continue
        if "drop" in value:
            entries.pop(value["drop"], None)
            continue
        height, width = value["shape"]
        sizes = np.frombuffer(base64.b64decode(value["sizes"]), dtype="<u4").astype(np.int64)
        sums = np.frombuffer(base64.b64decode(value["sums"]), dtype="<u8").astype(np.uint64)
        entry = PackedEpisode(value["key"], (height, width), value["offset"], sizes, sums)
        if entry.end <= size:
            entries[entry.key] = entry
    return entries


def _append(pack: Path, value: Mapping[str, Any]) -> None:
    body = json.dumps(value)
    index = pack.with_suffix(INDEX)
    index.touch(PRIVATE)
    append_line(index, f"{xxhash.xxh3_64_hexdigest(body.encode())} {body}")


def append_episodes(pack: Path, episodes: Iterable[tuple[str, Iterable[Image]]]) -> None:
    """Append episodes to a pack: their keys and RGB pictures (height, width, 3).

    One process at a time, under the cache's lock.
    """
    pack.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    end = max((e.end for e in read_index(pack).values()), default=0)
    with open(pack, "ab", opener=private) as stream:
        stream.truncate(end)  # what a kill left of an episode
        for key, pictures in episodes:
            offset = stream.seek(0, os.SEEK_END)
            sizes, sums, shape = list[int](), list[int](), [0, 0]
            for picture in pictures:
                # In the order in which a policy wants them: channel, row, column.
                data = np.ascontiguousarray(picture.transpose(2, 0, 1)).reshape(-1)
                stream.write(data.data)
                sizes.append(len(data))
                sums.append(xxhash.xxh3_64_intdigest(data))
                shape = list(picture.shape[:2])
            stream.flush()
            of_each = {
                name: base64.b64encode(np.array(numbers, dtype=kind).tobytes()).decode()
                for name, numbers, kind in (("sizes", sizes, "<u4"), ("sums", sums, "<u8"))
            }
            _append(pack, {"key": key, "shape": shape, "offset": offset, **of_each})


class PictureStore:
    """One camera's pictures, by row of a dataset; may be pickled into worker processes.

    Args:
        entries: per episode, the pack's number, the pictures, and the rows that they belong to.
        rows: how many rows the dataset has.
    """

    def __init__(
        self,
        packs: Sequence[Path],
        entries: Iterable[tuple[int, PackedEpisode, Int64Array]],
        rows: int,
    ) -> None:
        self._packs = tuple(packs)
        self._keys: list[tuple[int, str]] = []
        self._episode = np.full(rows, -1, dtype=np.int32)
        self._offset = np.zeros(rows, dtype=np.int64)
        self._size = np.zeros(rows, dtype=np.int64)
        self._sum = np.zeros(rows, dtype=np.uint64)
        self.shape = (0, 0)
        for number, (pack, entry, at) in enumerate(entries):
            self._keys.append((pack, entry.key))
            self._episode[at] = number
            self._offset[at] = entry.offset + np.cumsum(entry.sizes) - entry.sizes
            self._size[at], self._sum[at] = entry.sizes, entry.sums
            self.shape = entry.shape
        self._open: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def layout(self, n: int) -> tuple[int, int, int, int]:
        """Return the shape of the array that `read` fills with `n` pictures."""
        return (n, 3, *self.shape)

    def read(
        self, rows: Int64Array, out: NDArray[np.uint8], threads: ThreadPoolExecutor | None = None
    ) -> Int64Array:
        """Read the pictures of some rows into `out`, of the shape that `layout` gives.

        Returns:
            positions in `rows` whose picture is damaged or gone; `out` holds anything there.
        """
        good = np.zeros(len(rows), dtype=bool)

        def some(first: int) -> None:
            for position in range(first, len(rows), PARTS):
                row, data = int(rows[position]), out[position].reshape(-1)
                size = int(self._size[row])
                if not size or len(data) != size:
                    continue
                pack = self._keys[int(self._episode[row])][0]
                try:
                    stream = self._open.get(pack)
                    if stream is None:
                        opened = self._packs[pack].open("rb", buffering=0)
                        stream = self._open.setdefault(pack, opened)
                    # Not a memory map: page faults cost more than the copy that they save.
                    at = int(self._offset[row])
                    read = os.preadv(stream.fileno(), [data.data], at)
                except OSError:
                    continue
                if read != size or xxhash.xxh3_64_intdigest(data) != int(self._sum[row]):
                    continue
                good[position] = True

        list(threads.map(some, range(PARTS)) if threads else map(some, range(PARTS)))
        return np.flatnonzero(~good)

    def forget(self, row: int) -> None:
        """Have the episode of `row` made anew when the cache is next built."""
        pack, key = self._keys[int(self._episode[row])]
        _append(self._packs[pack], {"drop": key})
