"""Pictures on disk, fast to read at random: an append-only pack per source video, and its index.

A line of the index is written after the pictures it names, so a reader sees whole episodes only,
and a killed writer goes on after the last one. Every picture carries a checksum that is compared
at every read: a disk that lost or changed bytes is found out before training sees them, which is
also why nothing here waits for fsync.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from gaploop.core.files import append_line, parse_json
from gaploop.core.messages import Image
from gaploop.datasets.cache.folder import INDEX, PRIVATE, private

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


class PackWriter:
    """Appends episodes to a pack; one writer at a time, under the cache's lock."""

    def __init__(self, pack: Path) -> None:
        self.pack = pack

    def __enter__(self) -> PackWriter:
        self.pack.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        end = max((e.end for e in read_index(self.pack).values()), default=0)
        self._stream = open(self.pack, "ab", opener=private)
        self._stream.truncate(end)  # what a kill left of an episode
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, key: str, pictures: Iterable[Image]) -> None:
        """Append one episode's RGB pictures (height, width, 3)."""
        offset = self._stream.seek(0, os.SEEK_END)
        sizes, sums, height, width = [], [], 0, 0
        for picture in pictures:
            # In the order in which a policy wants them: channel, row, column.
            data = np.ascontiguousarray(picture.transpose(2, 0, 1)).reshape(-1)
            self._stream.write(data.data)
            sizes.append(len(data))
            sums.append(xxhash.xxh3_64_intdigest(data))
            height, width = picture.shape[:2]
        self._stream.flush()
        _append(
            self.pack,
            {
                "key": key,
                "shape": [height, width],
                "offset": offset,
                "sizes": base64.b64encode(np.array(sizes, dtype="<u4").tobytes()).decode(),
                "sums": base64.b64encode(np.array(sums, dtype="<u8").tobytes()).decode(),
            },
        )


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
