"""Rows of chosen episodes into new data files: every value as it is, only numbering is new."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.edit.pieces import DatasetPiece, damaged, numbered, task_names
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

CHUNK_FILES: Final = 1000
"""Files in a folder before the next one begins, as in LeRobot (`chunks_size`)."""
DATA_FILE_BYTES: Final = 100 * 1024 * 1024
"""A data file is closed at this size, as in LeRobot (`data_files_size_in_mb`)."""


@dataclass
class Placed:
    """Where the rows of the new dataset's episodes are.

    Attributes:
        rows: per episode, the columns of `meta/episodes` that say so.
        tasks: instruction to its new task index.
        task_indices: per episode, its rows' new task indices, shape (length,).
        moved: per episode, by how much its rows' `index` and its `episode_index` have grown.
    """

    rows: list[dict[str, int]] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    task_indices: list[np.ndarray[Any, Any]] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    frames: int = 0


def write_rows(
    pieces: Sequence[DatasetPiece], stage: Path, on_episode: Callable[[], None] | None = None
) -> Placed:
    """Write the data files of a dataset made of `pieces`, one row group per episode.

    Raises:
        UnusableInputError: a source whose rows are not what its episode table says.
    """
    placed, shelf = Placed(), _Shelf(stage, pieces[0].info)
    readers: dict[Path, _Reader] = {}  # of the piece that is being read: one file in memory
    try:
        for new, piece, episode in numbered(pieces):
            root = piece.info.root
            if root not in readers:
                readers = {root: _Reader(piece, task_names(piece.info))}
            reader = readers[root]
            rows = reader.rows_of(episode)
            table = _renumber(rows, new, reader, placed)
            chunk, file = shelf.write(table)
            first = placed.frames
            placed.frames += len(table)
            placed.rows.append(
                {
                    "episode_index": new,
                    "data/chunk_index": chunk,
                    "data/file_index": file,
                    "dataset_from_index": first,
                    "dataset_to_index": placed.frames,
                }
            )
            if on_episode is not None:
                on_episode()
    finally:
        shelf.close()
    return placed


class _Reader:
    """Rows of one dataset's episodes; the file read last stays in memory."""

    def __init__(self, piece: DatasetPiece, tasks: Mapping[int, str]) -> None:
        self.tasks = tasks
        self._piece = piece
        self._path = Path()
        self._table: pa.Table = None
        self._bounds: dict[int, tuple[int, int]] = {}

    def rows_of(self, episode: EpisodeRow) -> pa.Table:
        row, info = episode.row, self._piece.info
        chunk, file = row.get("data/chunk_index"), row.get("data/file_index")
        if chunk is None or file is None:
            raise damaged(self._piece, f"episode {episode.index} doesn't say where its rows are.")
        path = info.root / info.data_name(chunk, file)
        if path != self._path:
            self._open(path)
        first, last = self._bounds.get(episode.index, (0, 0))
        if last - first != episode.length:
            raise damaged(
                self._piece,
                f"{path.name} holds {last - first} rows of episode {episode.index}, which has "
                f"{episode.length}.",
            )
        return self._table.slice(first, last - first)

    def _open(self, path: Path) -> None:
        features = self._piece.info.features
        wanted = [n for n, spec in features.items() if spec.get("dtype") != "video"]
        table = layout.read_parquet(path)
        lacking = [n for n in wanted if n not in table.column_names]
        if lacking:
            raise damaged(self._piece, f"{path.name} has no column {', '.join(lacking)}.")
        self._path, self._table = path, table.select(wanted).combine_chunks()
        numbers = table["episode_index"].to_numpy()
        breaks = np.flatnonzero(np.diff(numbers)) + 1
        edges = [0, *breaks.tolist(), len(numbers)] if len(numbers) else []
        self._bounds = {int(numbers[a]): (a, b) for a, b in itertools.pairwise(edges)}


def _renumber(rows: pa.Table, new: int, reader: _Reader, placed: Placed) -> pa.Table:
    """Return the rows with the numbers that they have in the new dataset."""
    old_tasks = rows["task_index"].to_numpy()
    mapping: dict[int, int] = {}
    for old in dict.fromkeys(old_tasks.tolist()):  # in order of appearance
        if old not in reader.tasks:
            raise UnusableInputError(
                f"task_index {old} stands in no {layout.TASKS}. Restore that table from a copy."
            )
        mapping[old] = placed.tasks.setdefault(reader.tasks[old], len(placed.tasks))
    tasks = np.array([mapping[t] for t in old_tasks.tolist()], dtype=np.int64)
    n, first = len(rows), placed.frames
    placed.task_indices.append(tasks)
    placed.moved.append(
        (first - int(rows["index"][0].as_py()), new - int(rows["episode_index"][0].as_py()))
        if n
        else (0, 0)
    )
    numbers = {
        "index": np.arange(first, first + n),
        "episode_index": np.full(n, new),
        "task_index": tasks,
    }
    for name, values in numbers.items():
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(name)
        rows = rows.set_column(place, kind, pa.array(values, type=kind.type))
    return rows


class _Shelf:
    """Data files of the new dataset, one after the other, all with the first one's columns."""

    def __init__(self, stage: Path, info: DatasetInfo) -> None:
        self._stage, self._info = stage, info
        self._schema: pa.Schema | None = None
        self._writer: pq.ParquetWriter | None = None
        self._path = Path()
        self._number = -1

    def write(self, table: pa.Table) -> tuple[int, int]:
        if self._schema is None:
            self._schema = table.schema
        if self._writer is not None and self._path.stat().st_size >= DATA_FILE_BYTES:
            self.close()
        if self._writer is None:
            self._next()
        fitting = table.select(self._schema.names)
        if not fitting.schema.equals(self._schema):
            fitting = fitting.cast(self._schema)
        assert self._writer is not None
        self._writer.write_table(fitting, row_group_size=max(1, len(fitting)))
        return divmod(self._number, CHUNK_FILES)

    def _next(self) -> None:
        self._number += 1
        chunk, file = divmod(self._number, CHUNK_FILES)
        name = self._info.data_name(chunk, file)
        self._path = self._stage / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            self._path, self._schema, compression="snappy", use_dictionary=True
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
