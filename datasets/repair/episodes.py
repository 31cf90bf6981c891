"""Repair: `meta/episodes` and `meta/stats.json`, kept row by row where they are right."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE, Findings
from gaploop.datasets.check.frames import matrix, numeric_features, scan_frames
from gaploop.datasets.check.stats import differing_episodes
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.repair.names import RepairDraft
from gaploop.datasets.repair.rows import Whole
from gaploop.datasets.repair.stats import written
from gaploop.datasets.repair.videos import Camera, Place, numbers_of

SAME_S: Final = 1e-5
"""Times of a video that differ less are equal [s]; LeRobot's tolerance is ten times that."""
FILE: Final = "chunk-000/file-000.parquet"
_OWN_PLACE: Final = ("meta/episodes/chunk_index", "meta/episodes/file_index")


@dataclass(frozen=True)
class OldTable:
    """`meta/episodes` as far as it can be read.

    Attributes:
        table: all readable rows, with statistics; None where there are none.
        row_of: episode to its row.
        whole: whether every file could be read, and all have the same columns.
    """

    table: pa.Table | None
    row_of: Mapping[int, int]
    whole: bool = False

    def column(self, name: str) -> dict[int, Any]:
        """Return episode to value of a column; {} without that column."""
        if self.table is None or name not in self.table.column_names:
            return {}
        values = self.table[name].to_pylist()
        return {e: values[i] for e, i in self.row_of.items() if values[i] is not None}


def read_old(root: Path, runs: Mapping[tuple[int, int], int]) -> OldTable:
    """Read the episode table that there is.

    Args:
        root: the dataset.
        runs: (first row, rows) to the episode whose rows stand there; finds the episode of a
            row of the table whose own number is lost.
    """
    tables = []
    files = layout.episode_files(root)
    for path in files:
        try:
            table = pq.read_table(path, partitioning=None)
            table.validate(full=True)
        except DAMAGE:
            continue
        if "episode_index" in table.column_names:
            tables.append(table)
    try:
        table = pa.concat_tables(tables, promote_options="permissive") if tables else None
    except pa.ArrowException:
        table = tables[0]
    if table is None:
        return OldTable(None, {})
    alike = len({t.schema.remove_metadata() for t in tables}) == 1
    return OldTable(table, _rows_of(table, runs), alike and len(tables) == len(files))


def _rows_of(table: pa.Table, runs: Mapping[tuple[int, int], int]) -> dict[int, int]:
    row_of: dict[int, int] = {}
    spare = []
    known = set(runs.values())
    for i, episode in enumerate(table["episode_index"].to_pylist()):
        if isinstance(episode, int) and episode in known and episode not in row_of:
            row_of[episode] = i
        else:
            spare.append(i)
    if {"dataset_from_index", "length"} <= set(table.column_names):
        first, length = table["dataset_from_index"].to_pylist(), table["length"].to_pylist()
        for i in spare:
            meant = runs.get((first[i], length[i]))
            if meant is not None:
                row_of.setdefault(meant, i)
    return row_of


def known_places(old: OldTable, key: str) -> dict[int, Place]:
    """Return episode to where the table says its pictures of a camera are."""
    chunk = old.column(f"videos/{key}/chunk_index")
    file = old.column(f"videos/{key}/file_index")
    start = old.column(f"videos/{key}/from_timestamp")
    return {
        e: (int(chunk[e]), int(file[e]), float(start[e]))
        for e in chunk
        if e in file and e in start and np.isfinite(float(start[e]))
    }


def mend_episodes(
    draft: RepairDraft,
    info: DatasetInfo,
    old: OldTable,
    episodes: Sequence[Whole],
    homes: Sequence[Path],
    found: Sequence[tuple[Camera, Mapping[int, Place]]],
    tasks: Sequence[Sequence[str]],
) -> None:
    """Write the episode table anew where it isn't right.

    Args:
        draft: the dataset, its data files already in order.
        info: its description.
        old: the table before.
        episodes: what stays, in order.
        homes: each one's data file.
        found: each camera, with each episode's place (by its old index).
        tasks: each one's tasks.
    """
    scan = scan_frames(info, (), Findings())
    moments = scan.moments if scan is not None else {}
    columns = _columns(info, episodes, homes, found, tasks)
    kept = [i for i, e in enumerate(episodes) if e.old in old.row_of]
    wrong = set(range(len(episodes))) - set(kept)
    has_stats = old.table is not None and "stats/action/mean" in old.table.column_names
    if old.table is not None and kept and has_stats:
        rows = old.table.take(pa.array([old.row_of[episodes[i].old] for i in kept]))
        lengths = np.array([len(e) for e in episodes], dtype=np.float64)
        wrong |= {kept[i] for i in differing_episodes(rows, moments, lengths, kept)}
    else:
        wrong = set(range(len(episodes)))
    if not wrong and _is_right(old, episodes, columns):
        return
    fresh = _fresh_rows(info, old, episodes, homes, found, sorted(wrong))
    table = _assembled(old, episodes, wrong, fresh, columns)
    shutil.rmtree(draft.root / layout.EPISODES, ignore_errors=True)
    path = draft.root / layout.EPISODES / FILE
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, compression="snappy")
    more = f", statistics of {len(wrong)} computed anew" if wrong else ""
    draft.did("rebuilt_episodes", f"{layout.EPISODES}: {len(table)} episodes{more}")


def _is_right(old: OldTable, episodes: Sequence[Whole], columns: Mapping[str, pa.Array]) -> bool:
    """Say whether the table that there is says what it should."""
    table = old.table
    if table is None or not old.whole or len(table) != len(episodes):
        return False
    if any(old.row_of.get(e.old) != i for i, e in enumerate(episodes)):
        return False
    for name, column in columns.items():
        if name not in table.column_names:
            return False
        if pa.types.is_floating(column.type):
            close = np.abs(table[name].to_numpy() - column.to_numpy()) < SAME_S
            if not close.all():
                return False
        elif table[name].to_pylist() != column.to_pylist():
            return False
    return True


def _columns(
    info: DatasetInfo,
    episodes: Sequence[Whole],
    homes: Sequence[Path],
    found: Sequence[tuple[Camera, Mapping[int, Place]]],
    tasks: Sequence[Sequence[str]],
) -> dict[str, pa.Array]:
    """Return every column that isn't a statistic, in LeRobot's order and types."""
    n = len(episodes)
    lengths = np.array([len(e) for e in episodes], dtype=np.int64)
    stops = np.cumsum(lengths)
    numbers = np.array([numbers_of(p) for p in homes], dtype=np.int64).reshape(n, 2)
    columns = {
        "episode_index": pa.array(np.arange(n)),
        "tasks": pa.array([list(t) for t in tasks], pa.list_(pa.string())),
        "length": pa.array(lengths),
        "data/chunk_index": pa.array(numbers[:, 0]),
        "data/file_index": pa.array(numbers[:, 1]),
        "dataset_from_index": pa.array(stops - lengths),
        "dataset_to_index": pa.array(stops),
    }
    for camera, places in found:
        here = [places.get(e.old) for e in episodes]
        if any(p is None for p in here):
            continue  # a camera without videos: what the table says of it stays
        chunk, file, start = zip(*(p for p in here if p is not None), strict=True)
        name = f"videos/{camera.key}"
        columns[f"{name}/chunk_index"] = pa.array(chunk, pa.int64())
        columns[f"{name}/file_index"] = pa.array(file, pa.int64())
        columns[f"{name}/from_timestamp"] = pa.array(start, pa.float64())
        ends = np.array(start) + lengths / info.fps
        columns[f"{name}/to_timestamp"] = pa.array(ends, pa.float64())
    return columns


def _fresh_rows(
    info: DatasetInfo,
    old: OldTable,
    episodes: Sequence[Whole],
    homes: Sequence[Path],
    found: Sequence[tuple[Camera, Mapping[int, Place]]],
    wanted: Sequence[int],
) -> dict[int, dict[str, Any]]:
    """Return rows with statistics computed from the frames, for these episodes."""
    from gaploop.datasets.lerobot_stats import of_numbers  # here: it imports torch

    rows: dict[int, dict[str, Any]] = {}
    names = {**numeric_features(info), **dict.fromkeys(("timestamp", "frame_index"), 1)}
    names |= dict.fromkeys(("episode_index", "index", "task_index"), 1)
    whole = written(info.root)
    for home in sorted({homes[i] for i in wanted}):
        table = pq.read_table(home, partitioning=None)
        index = matrix(table["episode_index"], 1)[:, 0]
        for i in (i for i in wanted if homes[i] == home):
            part = table.filter(pa.array(index == i))
            row: dict[str, Any] = {}
            if old.table is not None and episodes[i].old in old.row_of:
                row = old.table.slice(old.row_of[episodes[i].old], 1).to_pylist()[0]
            for name, width in names.items():
                if name in part.column_names:
                    stats = of_numbers(matrix(part[name], width))
                    row |= {f"stats/{name}/{k}": v.tolist() for k, v in stats.items()}
            for camera, places in found:
                _add_picture_stats(row, info, camera, places.get(episodes[i].old), part, whole)
            rows[i] = row
    return rows


def _add_picture_stats(
    row: dict[str, Any],
    info: DatasetInfo,
    camera: Camera,
    place: Place | None,
    part: pa.Table,
    whole: Mapping[str, Any],
) -> None:
    """Add statistics of pictures where the row has none: from the video, else of the dataset."""
    from gaploop.datasets.lerobot_stats import of_pictures  # here: it imports torch

    if row.get(f"stats/{camera.key}/mean") is not None:
        return
    if place is not None:
        stats = of_pictures(camera.paths[place[:2]], place[2], len(part), info.fps)
        row |= {f"stats/{camera.key}/{k}": v.tolist() for k, v in stats.items()}
    elif isinstance(whole.get(camera.key), dict):
        row |= {f"stats/{camera.key}/{k}": v for k, v in whole[camera.key].items()}


def _assembled(
    old: OldTable,
    episodes: Sequence[Whole],
    wrong: set[int],
    fresh: Mapping[int, Mapping[str, Any]],
    columns: Mapping[str, pa.Array],
) -> pa.Table:
    """Return the table: old rows where they are right, fresh ones elsewhere."""
    kept = [i for i in range(len(episodes)) if i not in wrong]
    parts, places = [], [*kept, *sorted(wrong)]
    if kept and old.table is not None:
        parts.append(old.table.take(pa.array([old.row_of[episodes[i].old] for i in kept])))
    if wrong:
        parts.append(_typed([fresh[i] for i in sorted(wrong)], old.table))
    table = pa.concat_tables(parts, promote_options="permissive")
    table = table.take(pa.array(np.argsort(places)))
    zeros = pa.array(np.zeros(len(episodes), dtype=np.int64))
    columns = {**columns, **dict.fromkeys(_OWN_PLACE, zeros)}
    before = old.table.column_names if old.table is not None else []
    order = list(dict.fromkeys([*before, *columns, *table.column_names]))
    if not before:
        order = [*(n for n in order if n not in _OWN_PLACE), *_OWN_PLACE]
    result = {n: columns[n] if n in columns else table[n] for n in order}
    return pa.table(result).combine_chunks()


def _typed(rows: Sequence[Mapping[str, Any]], like: pa.Table | None) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = like.schema.field(name).type if like and name in like.column_names else None
        try:
            arrays[name] = pa.array(values, type=kind)
        except pa.ArrowException:
            arrays[name] = pa.array(values)
    return pa.table(arrays)
