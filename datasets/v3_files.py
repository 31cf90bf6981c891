"""The files of a LeRobot v3 dataset: written one episode after the other, numbers read as arrays.

Numbers come straight from Parquet: no video is opened, no LeRobot needed.
"""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import columns, layout
from gaploop.datasets.layout import EPISODES, TASKS, DatasetInfo, EpisodeRow
from gaploop.datasets.video import MAX_FILE_BYTES, VideoWriter

CHUNK_FILES: Final = 1000
"""Files in a folder before the next one begins, as in LeRobot (`chunks_size`)."""
DATA_FILE_BYTES: Final = 100 * 1024 * 1024
"""A data file is closed at this size, as in LeRobot (`data_files_size_in_mb`)."""
AUTOMATIC_FEATURES: Final = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": (1,), "names": None}
    for name in columns.AUTOMATIC
}
"""The columns that LeRobot makes itself, as it describes them."""
SUCCESS: Final = re.compile(
    r"(?:.*\.)?(?:(?:is|task|episode)_)*(?:success|successful|succeeded|fail|failure|failed)"
)
"""Names of columns that say how an episode ended."""
_TASKS: Final = pa.schema([("task_index", pa.int64()), ("task", pa.string())])
_PICTURE: Final = pa.struct({"bytes": pa.binary(), "path": pa.string()})
OWN_PLACE: Final = ("meta/episodes/chunk_index", "meta/episodes/file_index")
"""Columns of `meta/episodes` that name the file of that table which a row is in."""


def file_number(row: Mapping[str, Any], kind: str) -> int:
    """Return the number of the file that an episode is in, counted over all folders.

    Args:
        kind: `data`, or `videos/` and the camera's feature.
    """
    return int(row[f"{kind}/chunk_index"]) * CHUNK_FILES + int(row[f"{kind}/file_index"])


class DataFiles:
    """Data files, all with the columns of the first table; an episode is a row group.

    Args:
        last: number of its last data file so far; see `file_number`.
    """

    def __init__(self, info: DatasetInfo, last: int = -1) -> None:
        self._info, self._number = info, last
        self._schema: pa.Schema | None = None
        self._writer: pq.ParquetWriter | None = None
        self._path = info.root

    def append(self, table: pa.Table) -> dict[str, Any]:
        """Append an episode; return the columns of its row that name the file."""
        schema = self._schema = self._schema or table.schema
        if self._writer is not None and self._path.stat().st_size >= DATA_FILE_BYTES:
            self.close()
        if self._writer is None:
            self._number += 1
            name = self._info.data_name(*divmod(self._number, CHUNK_FILES))
            self._path = self._info.root / name
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, schema, compression="snappy")
        fitting = table.select(schema.names)
        if not fitting.schema.equals(schema):
            fitting = fitting.cast(schema)
        self._writer.write_table(fitting, row_group_size=max(1, len(fitting)))
        chunk, file = divmod(self._number, CHUNK_FILES)
        return {"data/chunk_index": chunk, "data/file_index": file}

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class VideoFiles:
    """One camera's video files, filled packet by packet; `last` as in `DataFiles`."""

    def __init__(self, info: DatasetInfo, key: str, last: int = -1) -> None:
        self._info, self._key, self._number = info, key, last
        self._writer: VideoWriter | None = None

    def append(self, source: Path, start_s: float | None, frames: int) -> dict[str, Any]:
        """Append an episode's pictures; return the columns of its row about them.

        Raises:
            UnusableInputError: as `VideoWriter.append_part`; nothing is written then.
        """
        writer = self._writer
        full = writer is None or writer.size_bytes >= MAX_FILE_BYTES
        if writer is None or full or not writer.append_part(source, start_s, frames):
            self.close()
            writer = VideoWriter(self._next(), self._info.fps)
            writer.append_part(source, start_s, frames)
            self._writer, self._number = writer, self._number + 1
        return self.columns((writer.frames - frames) / self._info.fps, frames)

    def place(self) -> Path:
        """Return where a file that is taken as it is shall be; `columns` speaks of it then."""
        self.close()
        path = self._next()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._number += 1
        return path

    def columns(self, start_s: float, frames: int) -> dict[str, Any]:
        """Return the columns of an episode whose pictures begin at `start_s` [s] of this file."""
        chunk, file = divmod(self._number, CHUNK_FILES)
        return {
            f"videos/{self._key}/chunk_index": chunk,
            f"videos/{self._key}/file_index": file,
            f"videos/{self._key}/from_timestamp": start_s,
            f"videos/{self._key}/to_timestamp": start_s + frames / self._info.fps,
        }

    def _next(self) -> Path:
        name = self._info.video_name(self._key, *divmod(self._number + 1, CHUNK_FILES))
        return self._info.root / name

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def with_columns(table: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Return a table with these columns, of the types that they had; new ones at its end."""
    for name, column in values.items():
        place = table.schema.get_field_index(name)
        if place < 0:
            table = table.append_column(name, pa.array(column))
        else:
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.array(column, type=field.type))
    return table


def replace_table(path: Path, table: pa.Table, groups: Sequence[int] = ()) -> None:
    """Put a table in the place of a file, which shows the old one or the new one.

    Nobody else may write the dataset. `groups`: rows of each row group; all in one unless given.
    """
    part = path.with_suffix(".part")
    with pq.ParquetWriter(part, table.schema, compression="snappy") as writer:
        at = 0
        for size in groups or (len(table),):
            writer.write_table(table.slice(at, size))
            at += size
    part.replace(path)


def write_episodes(root: Path, table: pa.Table, number: int = 0) -> None:
    """Write a file of `meta/episodes`, the only one or the next; its columns about itself, too."""
    place = divmod(number, CHUNK_FILES)
    own = zip(OWN_PLACE, place, strict=True)
    table = with_columns(table, {name: np.full(len(table), n, np.int64) for name, n in own})
    path = root / EPISODES / f"chunk-{place[0]:03d}" / f"file-{place[1]:03d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")


def write_tasks(root: Path, tasks: Mapping[int, str]) -> None:
    """Write `meta/tasks.parquet`; the name appears only when the file is whole.

    LeRobot reads it with pandas and wants the task as index: a note in the file makes it one.
    """
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    about = [
        {"name": n, "field_name": n, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for n, (kind, numpy) in kinds.items()
    ]
    note = {"index_columns": ["task"], "column_indexes": [], "columns": about}
    table = pa.table({"task_index": list(tasks), "task": list(tasks.values())}, _TASKS)
    path = root / TASKS
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_table(path, table.replace_schema_metadata({"pandas": json.dumps(note)}))


def arrow_schema(features: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return the columns of data files with these features, as LeRobot writes them.

    With the note that Hugging Face's `datasets` reads its own types from.

    Raises:
        ValueError: a type or a shape that LeRobot doesn't know.
    """
    fields, notes = list[pa.Field](), dict[str, Any]()
    for name, spec in features.items():
        dtype, shape = spec["dtype"], list(spec["shape"])
        note: dict[str, Any] = {"dtype": dtype, "_type": "Value"}
        if dtype == "video":
            continue
        if dtype == "image":
            kind, note = _PICTURE, {"_type": "Image"}
        else:
            kind = pa.type_for_alias(dtype)
            if not 1 <= len(shape) <= layout.MOST_AXES:
                raise ValueError(f"{name} has {len(shape)} axes")
            if len(shape) > 1:
                note = {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
                for _ in shape:
                    kind = pa.list_(kind)
            elif shape != [1]:
                kind = pa.list_(kind, shape[0])
                note = {"feature": note, "length": shape[0], "_type": "List"}
        fields.append(pa.field(name, kind))
        notes[name] = note
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": notes}})})


def automatic_columns(
    frames: int, fps: float, episode: int, first: int, task: int
) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot makes itself of an episode, whose first row is `first`."""
    count = np.arange(frames)
    return {
        "timestamp": count / fps, "frame_index": count, "episode_index": np.full(frames, episode),
        "index": first + count, "task_index": np.full(frames, task),
    }  # fmt: skip


def table_of(values: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return rows with the types of LeRobot's files.

    Args:
        values: column to array, shape (n,) or (n, …), or to a list of anything else.
        schema: of `arrow_schema`.
    """
    arrays = []
    for field in schema:
        column = values[field.name]
        if not isinstance(column, np.ndarray):
            arrays.append(pa.array(column, field.type))
        elif pa.types.is_fixed_size_list(field.type):
            flat = pa.array(column.reshape(-1), field.type.value_type)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
        else:
            arrays.append(pa.array(column.reshape(-1), field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


BATCH_ROWS: Final = 50_000
"""Rows read at once: 20 MB of a dataset with 50 numbers a row."""
INDICES: Final = ("episode_index", "frame_index", "timestamp", "index", "task_index")


def numeric_features(info: DatasetInfo) -> dict[str, int]:
    """Return features that are numbers or vectors, with their width."""
    found: dict[str, int] = {}
    for name, spec in info.features.items():
        kind, shape = str(spec.get("dtype")), spec.get("shape")
        if kind in ("video", "image", "string", "language") or name in INDICES:
            continue
        if isinstance(shape, list | tuple) and all(isinstance(n, int) and n > 0 for n in shape):
            found[name] = int(np.prod(shape, dtype=np.int64))  # 1 of an empty one
    return found


def matrix(column: pa.ChunkedArray, width: int) -> NDArray[np.float64]:
    """Return a column as numbers, shape (n, width); NaN where a row holds nothing.

    Raises:
        ValueError: rows of another length, or of something that isn't a number.
    """
    flat: Any = column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):  # combine_chunks of no chunk at all
        return np.empty((0, width))
    if flat.null_count and pa.types.is_nested(flat.type):
        filled = [[np.nan] * width if row is None else row for row in flat.to_pylist()]
        flat = pa.array(filled, type=pa.list_(pa.float64()))
    elif flat.null_count:
        flat = flat.cast(pa.float64())
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
    values = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float64)
    return values.reshape(len(column), width)


def batches(path: Path, names: Collection[str]) -> Iterator[pa.Table]:
    """Yield a Parquet file's rows, `BATCH_ROWS` at a time, only the columns `names`."""
    with pq.ParquetFile(path) as file:
        layout.require_plausible(file.metadata, path)
        present = [n for n in file.schema_arrow.names if n in names]
        for batch in file.iter_batches(BATCH_ROWS, columns=present):
            yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class FrameTable:
    """Frames of some episodes, in order of episode, then frame.

    Attributes:
        columns: feature to values, one row per frame: shape (n,) or (n, width).
        episode_index: episode of each frame, shape (n,).
    """

    info: DatasetInfo
    columns: Mapping[str, NDArray[Any]]
    episode_index: NDArray[np.int64]
    episodes: tuple[EpisodeRow, ...]

    def __len__(self) -> int:
        return len(self.episode_index)

    def rows_of(self, episode: int) -> slice:
        """Return the rows of an episode."""
        first, last = np.searchsorted(self.episode_index, [episode, episode + 1])
        return slice(int(first), int(last))


def load_frames(
    root: Path, columns: Iterable[str], episodes: Sequence[int] | None = None
) -> FrameTable:
    """Load columns of a dataset's frames.

    Args:
        columns: features to load; vectors become float32 of shape (n, width).

    Raises:
        UnusableInputError: no dataset there, an unknown column or episode, a damaged file.
    """
    info = layout.read_info(Path(root))
    wanted = list(dict.fromkeys(columns))
    for name in wanted:
        if name not in info.features or name in info.video_keys:
            valid = [n for n in info.features if n not in info.video_keys]
            raise unknown_choice("column", name, valid, str(root))
    files = layout.data_files(info.root)
    if not files:
        raise UnusableInputError(f"{info.root} has no data files. Restore its data folder.")
    return _frames(info, files, wanted, tuple(layout.read_episodes(info, episodes)))


def load_episode(info: DatasetInfo, episode: EpisodeRow, columns: Sequence[str]) -> FrameTable:
    """Load columns of one episode's frames, from no other data file than its row names."""
    return _frames(info, [data_file(info, episode)], columns, (episode,))


def data_file(info: DatasetInfo, episode: EpisodeRow) -> Path:
    """Return the data file that holds an episode's frames, by its row."""
    chunk, file = (int(episode.row.get(f"data/{name}_index") or 0) for name in ("chunk", "file"))
    return info.root / info.data_name(chunk, file)


def recorded_success(root: Path) -> tuple[str, dict[int, bool]]:
    """Return the column that says how episodes ended, and what it says; "" and nothing without one.

    LeRobot's environments write `next.success`, others names like `is_failure`, or a reward of 0
    and 1; in every row, in an episode's last ones, or in the table of episodes.
    """
    info, table = layout.read_info(root), layout.episode_rows(root)
    names = [*info.features, *(table[0] if table else {})]
    said = [n for n in sorted(names, key=lambda n: n != "next.success") if SUCCESS.fullmatch(n)]
    for name in (*said, *(n for n in ("next.reward", "reward") if n in info.features)):
        values: dict[int, set[float]] = {}
        if name in info.features:
            for path in layout.data_files(root):
                for rows in batches(path, {"episode_index", name}):
                    if rows.num_columns == 2:
                        pair = rows["episode_index"].to_pylist(), rows[name].to_pylist()
                        for episode, value in zip(*pair, strict=True):
                            values.setdefault(episode, set()).update(_numbers(value))
        else:
            values = {int(row["episode_index"]): _numbers(row.get(name)) for row in table}
        every = set[float]().union(*values.values())
        if not every or not every <= {0.0, 1.0} or ("reward" in name and every == {0.0}):
            continue  # a reward on the way, or one that nobody gave
        failed = "fail" in name.rpartition(".")[2]
        return name, {e: (1.0 in v) is not failed for e, v in sorted(values.items()) if v}
    return "", {}


def _numbers(value: Any) -> set[float]:
    """Return the numbers of a cell; of what isn't numbers NaN."""
    try:
        return {float(v) for v in np.ravel([] if value is None else value)}
    except (TypeError, ValueError):
        return {math.nan}


class EpisodeReader:
    """Rows of a dataset's episodes, one after the other; the data file read last is kept."""

    def __init__(self, info: DatasetInfo, names: Iterable[str]) -> None:
        self._info, self._names = info, list(names)
        self._path, self._table = Path(), pa.table({})
        self._bounds: dict[int, tuple[int, int]] = {}

    def rows_of(self, episode: EpisodeRow) -> pa.Table:
        """Return an episode's rows.

        Raises:
            UnusableInputError: they aren't there, or not as the episode table says.
        """
        row, info = episode.row, self._info
        if row.get("data/chunk_index") is None or row.get("data/file_index") is None:
            raise layout.damaged(
                info.root, f"episode {episode.index} doesn't state where its rows are."
            )
        path = data_file(info, episode)
        if path != self._path:
            table = layout.read_parquet(path)
            lacking = [n for n in (*self._names, "episode_index") if n not in table.column_names]
            if lacking:
                raise layout.damaged(info.root, f"{path.name} has no column {', '.join(lacking)}.")
            numbers = table["episode_index"].to_numpy()
            breaks = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
            edges = [0, *breaks, len(numbers)] if len(numbers) else []
            self._bounds = {int(numbers[a]): (a, b) for a, b in itertools.pairwise(edges)}
            self._path, self._table = path, table.select(self._names).combine_chunks()
        first, last = self._bounds.get(episode.index, (0, 0))
        if last - first != episode.length:
            raise layout.damaged(
                info.root,
                f"{path.name} holds {last - first} rows of episode {episode.index}, which has "
                f"{episode.length}.",
            )
        return self._table.slice(first, last - first)


def _frames(
    info: DatasetInfo, files: Sequence[Path], wanted: Sequence[str], chosen: tuple[EpisodeRow, ...]
) -> FrameTable:
    names = list(dict.fromkeys([*wanted, "episode_index", "frame_index"]))
    keep = pc.field("episode_index").isin(pa.array([e.index for e in chosen], pa.int64()))
    order = [("episode_index", "ascending"), ("frame_index", "ascending")]
    problem = f"{info.root}: the frames aren't as {layout.INFO} describes them"
    with layout.reraise_as_damaged(problem, f"Find out more with: gaploop check {info.root}"):
        parts = [layout.read_parquet(path, names, keep).select(names) for path in files]
        table = pa.concat_tables(parts).sort_by(order)
        values = {name: to_numpy(table[name]) for name in wanted}
        return FrameTable(info, values, table["episode_index"].to_numpy(), chosen)


def to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as an array, of lists a matrix; UnusableInputError: of unequal length."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return np.asarray(column.to_numpy())
    if not len(column):
        return np.empty((0, getattr(kind, "list_size", 0)), dtype=np.float32)
    flat: Any = column.combine_chunks()
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type):  # of lists, too
        flat = flat.flatten()
    if len(flat) % len(column):
        raise UnusableInputError("A vector column has rows of unequal length. Restore it.")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), -1)
