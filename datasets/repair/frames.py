"""Repair: the data files. Files that are right stay as they are, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.check.frames import BATCH_ROWS
from gaploop.datasets.repair import parquet_salvage
from gaploop.datasets.repair.names import RepairDraft
from gaploop.datasets.repair.rows import Ints, Rows, Whole

_INDEX_TYPES: Final = {
    "timestamp": pa.float32(),
    "frame_index": pa.int64(),
    "episode_index": pa.int64(),
    "index": pa.int64(),
    "task_index": pa.int64(),
}


def data_paths(root: Path) -> list[Path]:
    """Return the data files in LeRobot's order."""
    return sorted(p for p in (root / "data").glob("*/*.parquet") if p.is_file())


def salvage_files(draft: RepairDraft, info: Mapping[str, Any]) -> None:
    """Replace damaged data files by what can still be read of them, or take them out."""
    for path in data_paths(draft.root):
        name = path.relative_to(draft.root)
        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches(BATCH_ROWS):
                    pass
            continue
        except DAMAGE:
            table = _salvaged(path, data_paths(draft.root), info)
        if table is None or not len(table):
            path.unlink()
            draft.did("lost_file", f"{name}: nothing of it can be read; it is left out")
        else:
            write_table(path, table, [len(table)])
            draft.did("salvaged", f"{name}: its first {len(table)} rows can still be read")


def _salvaged(path: Path, others: Sequence[Path], info: Mapping[str, Any]) -> pa.Table | None:
    """Return the readable row groups of a damaged file, up to the first damaged one."""
    try:
        with pq.ParquetFile(path) as file:
            groups = []
            for number in range(file.metadata.num_row_groups):
                try:
                    groups.append(file.read_row_group(number))
                except DAMAGE:
                    break
            return pa.concat_tables(groups) if groups else None
    except DAMAGE:
        pass
    for schema in _schemas(path, others, info):
        try:
            return parquet_salvage.salvage(path, schema)
        except DAMAGE:
            continue
    return None


def _schemas(path: Path, others: Sequence[Path], info: Mapping[str, Any]) -> list[pa.Schema]:
    """Return what the columns of a file without a footer may be, likeliest first."""
    found = []
    for other in others:
        if other != path:
            try:
                found.append(pq.read_schema(other))
                break
            except DAMAGE:
                continue
    fields = [
        pa.field(name, _arrow_type(spec))
        for name, spec in info["features"].items()
        if spec["dtype"] not in ("video", "language")
    ]
    return [*found, pa.schema(fields)]


def _arrow_type(spec: Mapping[str, Any]) -> pa.DataType:
    dtype, shape = str(spec["dtype"]), list(spec["shape"])
    if dtype == "image":  # as Hugging Face stores pictures
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.string() if dtype == "string" else pa.bool_() if dtype == "bool" else None
    kind = kind or pa.from_numpy_dtype(np.dtype(dtype))
    if shape == [1]:
        return kind
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def rewrite_files(
    draft: RepairDraft,
    paths: Sequence[Path],
    rows: Rows,
    episodes: Sequence[Whole],
    fps: float,
    names: Mapping[str, str],
    tasks: Mapping[int, int],
) -> list[Path]:
    """Bring the data files in line with the episodes that stay.

    Args:
        draft: the dataset.
        paths: its data files.
        rows: what they hold.
        episodes: what stays, in order; each becomes the episode of its position.
        fps: frames per second.
        names: column to the feature it stands for, where they differ.
        tasks: episode's new index to its task index, where that changes.

    Returns:
        for each episode the file that its first frame is in.
    """
    targets = _targets(rows, episodes, fps, tasks)
    homes = [paths[int(rows.file[episode.rows[0]])] for episode in episodes]
    for number, path in enumerate(paths):
        here = [(i, t) for i, t in enumerate(targets) if (t["file"] == number).any()]
        if not here:
            path.unlink()
            continue
        parts = [{k: v[t["file"] == number] for k, v in t.items()} for _, t in here]
        order = np.concatenate([p["row"] for p in parts])
        index = {k: np.concatenate([p[k] for p in parts]) for k in _INDEX_TYPES}
        if not _as_it_is(rows, number, order, index) or _renames(path, names):
            table = pq.read_table(path, partitioning=None)
            table = _renamed(table, names).take(pa.array(order))
            write_table(path, _with_index(table, index), [len(p["row"]) for p in parts])
            name = path.relative_to(draft.root)
            draft.did(
                "rewrote_data", f"{name}: rows of {len(here)} episodes in order, counted anew"
            )
    return homes


def _targets(
    rows: Rows, episodes: Sequence[Whole], fps: float, tasks: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return for each episode where its rows are and what their index columns shall be."""
    targets, first = [], 0
    for new, episode in enumerate(episodes):
        n = len(episode)
        count = np.arange(n)
        stamps = rows.values["timestamp"][episode.rows]
        due = (count / fps).astype(np.float32)
        fine = np.abs(stamps - due) <= 1e-4 + 1e-7 * due
        targets.append(
            {
                "file": rows.file[episode.rows],
                "row": rows.row[episode.rows],
                "timestamp": np.where(fine, stamps, due),
                "frame_index": count,
                "episode_index": np.full(n, new),
                "index": first + count,
                "task_index": np.full(n, tasks[new])
                if new in tasks
                else rows.values["task_index"][episode.rows],
            }
        )
        first += n
    return targets


def _as_it_is(rows: Rows, number: int, order: Ints, index: Mapping[str, Any]) -> bool:
    here = rows.file == number
    if not np.array_equal(order, rows.row[here]):
        return False
    if not np.array_equal(index["episode_index"], rows.episode[here]):
        return False
    return all(
        np.array_equal(index[k], rows.values[k][here]) for k in _INDEX_TYPES if k in rows.values
    )


def _renames(path: Path, names: Mapping[str, str]) -> bool:
    return bool(set(names) & set(pq.read_schema(path).names))


def _renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Rename columns; what pandas and Hugging Face noted about the old ones goes."""
    if not set(names) & set(table.column_names):
        return table
    table = table.rename_columns([names.get(n, n) for n in table.column_names])
    return table.replace_schema_metadata(None)


def _with_index(table: pa.Table, index: Mapping[str, Any]) -> pa.Table:
    for name, values in index.items():
        kind = _INDEX_TYPES[name]
        if name in table.column_names:
            kind = table.schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                kind = _INDEX_TYPES[name]
        column = pa.array(np.asarray(values)).cast(kind, safe=False)
        if name in table.column_names:
            at = table.column_names.index(name)
            table = table.set_column(at, pa.field(name, kind), column)
        else:
            table = table.append_column(pa.field(name, kind), column)
    return table


def write_table(path: Path, table: pa.Table, groups: Sequence[int]) -> None:
    """Write a data file anew, a row group for each episode; the name changes hands at the end."""
    part = path.with_suffix(".part")
    with pq.ParquetWriter(part, table.schema, compression="snappy") as writer:
        at = 0
        for size in groups:
            writer.write_table(table.slice(at, size))
            at += size
    os.replace(part, path)
