"""One pass over a dataset's frames: what every episode holds, in memory that its length bounds.

Files are read a batch of rows at a time. A run is a stretch of consecutive rows with one
episode index; in a sound dataset each episode is one run.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.datasets import columns
from gaploop.datasets.columns import ACTION, STATE
from gaploop.datasets.layout import DatasetInfo

BATCH_ROWS: Final = 50_000
"""Rows read at once: 20 MB of a dataset with 50 numbers a row."""
TIMESTAMP_TOLERANCE_S: Final = 1e-4
"""LeRobot's own tolerance (`LeRobotDataset.tolerance_s`)."""
INDICES: Final = ("episode_index", "frame_index", "timestamp", "index", "task_index")
_FLOAT32_STEP: Final = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class RunMoments:
    """Statistics of one feature, run by run; arrays of shape (runs, width)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    def merged_with(self, later: RunMoments) -> RunMoments:
        """Return these runs and `later`, whose first run goes on with the last of these."""
        low = np.minimum(self.low[-1:], later.low[:1])
        high = np.maximum(self.high[-1:], later.high[:1])
        total = self.total[-1:] + later.total[:1]
        squares = self.squares[-1:] + later.squares[:1]
        return RunMoments(
            np.concatenate([self.low[:-1], low, later.low[1:]]),
            np.concatenate([self.high[:-1], high, later.high[1:]]),
            np.concatenate([self.total[:-1], total, later.total[1:]]),
            np.concatenate([self.squares[:-1], squares, later.squares[1:]]),
        )

    def only(self, run: int) -> RunMoments:
        """Return those of one run."""
        at = slice(run, run + 1)
        return RunMoments(self.low[at], self.high[at], self.total[at], self.squares[at])

    @classmethod
    def of(cls, values: NDArray[np.float64], starts: NDArray[np.int64]) -> RunMoments:
        """Compute them of `values`, shape (n, width), for runs that begin at `starts`."""
        return cls(
            np.minimum.reduceat(values, starts),
            np.maximum.reduceat(values, starts),
            np.add.reduceat(values, starts),
            np.add.reduceat(values * values, starts),
        )

    @classmethod
    def joined(cls, parts: list[RunMoments]) -> RunMoments:
        """Return all of them one after the other."""
        names = ("low", "high", "total", "squares")
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


@dataclass
class EpisodeRows:
    """Consecutive rows of one episode.

    Attributes:
        start: its first row, counted over all files.
        rows: how many there are.
        file: number of the data file it begins in.
        odd: names of index columns that don't count as they should.
        tasks: task indices that occur.
        takes: values of `gap.take` that occur.
        checksum: of action and state; equal runs have equal ones.
    """

    episode: int
    start: int
    rows: int
    file: int
    odd: set[str] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    takes: set[int] = field(default_factory=set)
    checksum: int = 0


@dataclass(frozen=True)
class Scan:
    """What the frames of a dataset hold.

    Attributes:
        rows: number of rows that could be read.
        runs: in order of rows.
        moments: numeric feature to its statistics, one row per run.
        not_finite: (file, feature) to rows of that file with NaN, infinity or nothing.
        signals: episode to feature to its values, for the episodes asked for.
    """

    rows: int
    runs: list[EpisodeRows]
    moments: Mapping[str, RunMoments]
    not_finite: Mapping[tuple[str, str], list[int]]
    signals: Mapping[int, Mapping[str, NDArray[np.float32]]]

    @property
    def whole(self) -> bool:
        """Whether each episode is one run."""
        return len({run.episode for run in self.runs}) == len(self.runs)


def numeric_features(info: DatasetInfo) -> dict[str, int]:
    """Return features that are numbers or vectors, with their width."""
    found: dict[str, int] = {}
    for name, spec in info.features.items():
        kind, shape = str(spec.get("dtype")), spec.get("shape")
        if kind in ("video", "image", "string", "language") or name in INDICES:
            continue
        if isinstance(shape, list | tuple) and all(isinstance(n, int) and n > 0 for n in shape):
            found[name] = int(np.prod(shape, dtype=np.int64)) if shape else 1
    return found


def matrix(column: pa.ChunkedArray, width: int) -> NDArray[np.float64]:
    """Return a column as numbers, shape (n, width); NaN where a row holds nothing.

    Raises:
        ValueError: rows of another length, or of something that isn't a number.
    """
    flat: Any = column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):  # combine_chunks of no chunk at all
        return np.empty((0, width))
    if flat.null_count:
        flat = _without_nulls(flat, width)
    while hasattr(flat, "storage"):
        flat = flat.storage
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.uint8())
    if not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)):
        raise ValueError(f"it holds {flat.type}, not numbers")
    if len(flat) != width * len(column):
        raise ValueError(f"its rows don't hold {width} values each")
    values: NDArray[np.float64] = np.asarray(
        flat.to_numpy(zero_copy_only=False), dtype=np.float64
    ).reshape(len(column), width)
    return values


def _without_nulls(flat: Any, width: int) -> Any:
    if not pa.types.is_nested(flat.type):
        return flat.cast(pa.float64())
    filled = [[float("nan")] * width if row is None else row for row in flat.to_pylist()]
    return pa.array(filled, type=pa.list_(pa.float64()))


class Scanner:
    """Takes batches of rows, in order, and adds up what they hold."""

    def __init__(self, info: DatasetInfo, keep: Collection[int] = ()) -> None:
        self._fps = info.fps
        self._numeric = numeric_features(info)
        self._keep = set(keep)
        self._kept: dict[int, dict[str, list[NDArray[np.float32]]]] = {}
        self._parts: dict[str, list[RunMoments]] = {name: [] for name in self._numeric}
        self._bad: dict[tuple[str, str], list[int]] = {}
        self._runs: list[EpisodeRows] = []
        self._rows = 0
        self._file_rows: dict[str, int] = {}

    def add(self, table: pa.Table, file: int, name: str) -> None:
        """Add some rows of a file; they must have `episode_index`."""
        episode = matrix(table["episode_index"], 1)[:, 0]
        if not len(episode):
            return
        starts = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1)).astype(np.int64)
        goes_on = bool(self._runs) and self._runs[-1].episode == int(episode[0])
        values = self._numbers(table, name)
        for key, x in values.items():
            moments, parts = RunMoments.of(x, starts), self._parts[key]
            if goes_on and parts:
                moments = parts.pop().merged_with(moments)
            parts.append(moments)
        stops = np.append(starts[1:], len(episode))
        index = self._indices(table)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            self._extend(int(episode[start]), slice(start, stop), file, index, values)
        self._rows += len(episode)
        self._file_rows[name] = self._file_rows.get(name, 0) + len(episode)

    def _numbers(self, table: pa.Table, name: str) -> dict[str, NDArray[np.float64]]:
        values = {}
        for key, width in self._numeric.items():
            if key not in table.column_names:
                continue
            x = matrix(table[key], width)
            bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
            if len(bad):
                at = self._file_rows.get(name, 0)
                self._bad.setdefault((name, key), []).extend((bad + at).tolist())
            values[key] = x
        return values

    def _indices(self, table: pa.Table) -> dict[str, NDArray[Any]]:
        present = [n for n in INDICES[1:] if n in table.column_names]
        result: dict[str, NDArray[Any]] = {n: matrix(table[n], 1)[:, 0] for n in present}
        if columns.TAKE in table.column_names and not table[columns.TAKE].null_count:
            result[columns.TAKE] = np.asarray(table[columns.TAKE].to_numpy())  # no float: 63 bits
        return result

    def _extend(
        self,
        episode: int,
        where: slice,
        file: int,
        index: Mapping[str, NDArray[Any]],
        values: Mapping[str, NDArray[np.float64]],
    ) -> None:
        n = where.stop - where.start
        if not self._runs or self._runs[-1].episode != episode:
            self._runs.append(EpisodeRows(episode, self._rows + where.start, 0, file))
        run = self._runs[-1]
        count = run.rows + np.arange(n)
        run.odd |= _odd(index, where, count, self._rows, self._fps)
        if "task_index" in index:
            found = index["task_index"][where]
            run.tasks |= {int(t) if np.isfinite(t) else -1 for t in np.unique(found)}
        if columns.TAKE in index and len(run.takes) < 2:
            run.takes |= {int(t) for t in np.unique(index[columns.TAKE][where])[:2]}
        for key in (ACTION, STATE):
            if key in values:
                run.checksum = zlib.crc32(values[key][where].tobytes(), run.checksum)
        run.rows += n
        if episode in self._keep:
            kept = self._kept.setdefault(episode, {})
            for key, x in values.items():
                kept.setdefault(key, []).append(x[where].astype(np.float32))

    def result(self) -> Scan:
        """Return what was found."""
        moments = {k: RunMoments.joined(v) for k, v in self._parts.items() if v}
        signals = {
            episode: {key: np.concatenate(parts) for key, parts in kept.items()}
            for episode, kept in self._kept.items()
        }
        return Scan(self._rows, self._runs, moments, self._bad, signals)


def _odd(
    index: Mapping[str, NDArray[Any]],
    where: slice,
    count: NDArray[np.int64],
    first_row: int,
    fps: float,
) -> set[str]:
    """Return the names of index columns that don't count as LeRobot's writer counts."""
    odd = set()
    for name, x in index.items():
        found = x[where]
        if name == "timestamp":
            due = count / fps
            tolerance = TIMESTAMP_TOLERANCE_S + _FLOAT32_STEP * due
            wrong = ~(np.abs(found - due) <= tolerance)
        elif name == "frame_index":
            wrong = found != count
        elif name == "index":
            wrong = found != first_row + np.arange(where.start, where.stop)
        else:
            continue
        if wrong.any():
            odd.add(name)
    return odd


def batches(path: Path, names: Collection[str]) -> Iterator[pa.Table]:
    """Yield a Parquet file's rows, `BATCH_ROWS` at a time, only the columns `names`."""
    with pq.ParquetFile(path) as file:
        present = [n for n in file.schema_arrow.names if n in names]
        for batch in file.iter_batches(BATCH_ROWS, columns=present):
            yield pa.Table.from_batches([batch])
