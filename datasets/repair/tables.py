"""Repair: the tables below `meta`: tasks, episodes and statistics, kept row by row where right."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets import layout
from gaploop.datasets.check.episodes import read_tasks
from gaploop.datasets.check.findings import DAMAGE, Findings
from gaploop.datasets.check.frames import Scan, matrix
from gaploop.datasets.check.stats import check_stats, differing_episodes
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.repair.description import RepairDraft, read_object
from gaploop.datasets.repair.rows import Rows, WholeEpisode
from gaploop.datasets.repair.videos import Camera, Place, numbers_of
from gaploop.datasets.v3_files import write_episodes, write_tasks
from gaploop.datasets.whole_stats import complete_stats, of_pictures, of_rows

UNKNOWN = "unknown task"
"""Stands where no table says what an episode's task was."""


SAME_S: Final = 1e-5
"""Times of a video that differ less are equal [s]; LeRobot's tolerance is ten times that."""


def _unnamed(taken: Mapping[Any, str]) -> str:
    numbered = (f"{UNKNOWN} {number}" for number in itertools.count(2))
    return next(n for n in itertools.chain([UNKNOWN], numbered) if n not in taken.values())


@dataclass(frozen=True)
class OldTable:
    """`meta/episodes` as far as it can be read.

    Attributes:
        table: all readable rows, with statistics.
        row_of: episode to its row.
        whole: whether every file could be read, and all have the same columns.
    """

    table: pa.Table
    row_of: Mapping[int, int]
    whole: bool

    def column(self, name: str) -> dict[int, Any]:
        """Return episode to value of a column; {} without that column."""
        if name not in self.table.column_names:
            return {}
        values = self.table[name].to_pylist()
        return {e: values[i] for e, i in self.row_of.items() if values[i] is not None}


def read_old(root: Path, runs: Mapping[tuple[int, int], int]) -> OldTable:
    """Read the episode table that there is.

    `runs`, (first row, rows) to the episode that stands there, find that of a row without a number.
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
    if not tables:
        return OldTable(pa.table({"episode_index": pa.array([], pa.int64())}), {}, whole=False)
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        table = tables[0]
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
    alike = len({t.schema.remove_metadata() for t in tables}) == 1
    return OldTable(table, row_of, alike and len(tables) == len(files))


def read_table(root: Path) -> pa.Table | None:
    """Return the episode table with its statistics; None where it can't be read."""
    try:
        files = layout.episode_files(root)
        return pa.concat_tables([pq.read_table(p, partitioning=None) for p in files])
    except DAMAGE:
        return None


def repair_tasks(
    draft: RepairDraft,
    rows: Rows,
    episodes: Sequence[WholeEpisode],
    said: Mapping[int, Sequence[str]],
) -> tuple[list[str], list[WholeEpisode], dict[int, int]]:
    """Bring tasks in line: the table of tasks counts first, then what episodes name.

    Args:
        said: episode (old index) to the tasks that the episode table names.

    Returns:
        The tasks by index; the episodes with theirs; and the task index that the rows of an
        episode (its new index) get, where that changes.
    """
    path = draft.root / layout.TASKS
    names: list[str] | None = None
    with contextlib.suppress(*DAMAGE):
        names = read_tasks(path)
    table: list[str] = list(names or ())
    slots: dict[int, str] = dict(enumerate(table))
    used = []
    for episode in episodes:
        found = np.unique(rows.values["task_index"][episode.rows])
        used.append([int(i) if np.isfinite(i) else -1 for i in found])
    if names is None:
        for episode, indices in zip(episodes, used, strict=True):
            words = list(said.get(episode.old, ()))
            if len(indices) == len(words) == 1 and words[0] not in slots.values():
                slots.setdefault(indices[0], words[0])
        highest = max((i for indices in used for i in indices), default=-1)
        for i in range(min(highest, len(episodes)) + 1):
            slots.setdefault(i, _unnamed(slots))
        table = [slots[i] for i in sorted(slots) if i <= highest]
    changed: dict[int, int] = {}
    with_tasks = []
    for new, (episode, indices) in enumerate(zip(episodes, used, strict=True)):
        if not indices or not all(0 <= i < len(table) for i in indices):
            word = next(map(str, said.get(episode.old, ())), UNKNOWN)
            if word not in table:
                table.append(word)
            changed[new] = table.index(word)
            indices = [changed[new]]
        with_tasks.append(replace(episode, tasks=tuple(table[i] for i in indices)))
    if table != names:
        write_tasks(draft.root, dict(enumerate(table)))
        draft.did("rebuilt_tasks", f"{layout.TASKS}: {len(table)} tasks, such as {table[:1]}")
    if changed:
        draft.did("set_tasks", f"task_index of {len(changed)} episodes set to a task there is")
    return table, with_tasks, changed


def repair_episodes(
    draft: RepairDraft,
    info: DatasetInfo,
    scan: Scan | None,
    old: OldTable,
    episodes: Sequence[WholeEpisode],
    cameras: Sequence[Camera],
) -> None:
    """Write the episode table anew where it isn't right; data files are in order already."""
    n, lengths = len(episodes), np.array([len(e) for e in episodes], dtype=np.int64)
    stops = np.cumsum(lengths)
    homes = np.array([numbers_of(e.home) for e in episodes], dtype=np.int64).reshape(n, 2)
    columns = {  # every one that isn't a statistic, in LeRobot's order and types
        "episode_index": pa.array(np.arange(n)),
        "tasks": pa.array([list(e.tasks) for e in episodes], pa.list_(pa.string())),
        "length": pa.array(lengths),
        "data/chunk_index": pa.array(homes[:, 0]),
        "data/file_index": pa.array(homes[:, 1]),
        "dataset_from_index": pa.array(stops - lengths),
        "dataset_to_index": pa.array(stops),
    }
    for camera in cameras:
        here = [camera.places[e.old] for e in episodes if e.old in camera.places]
        if len(here) < n:
            continue  # a camera without videos: what the table says of it stays
        chunk, file, start = zip(*here, strict=True)
        name = f"videos/{camera.key}"
        columns |= {
            f"{name}/chunk_index": pa.array(chunk, pa.int64()),
            f"{name}/file_index": pa.array(file, pa.int64()),
            f"{name}/from_timestamp": pa.array(start, pa.float64()),
            f"{name}/to_timestamp": pa.array(np.array(start) + lengths / info.fps, pa.float64()),
        }
    kept = [i for i, e in enumerate(episodes) if e.old in old.row_of]
    wrong = set(range(n))
    if kept and "stats/action/mean" in old.table.column_names:
        rows = old.table.take(pa.array([old.row_of[episodes[i].old] for i in kept]))
        moments = scan.moments if scan is not None else {}
        differing = differing_episodes(rows, info, moments, lengths.astype(np.float64), kept)
        wrong = wrong - set(kept) | {kept[i] for i in differing}
    if not wrong and _is_right(old, episodes, columns):
        return
    parts = []
    right = [i for i in range(n) if i not in wrong]
    if right:
        parts.append(old.table.take(pa.array([old.row_of[episodes[i].old] for i in right])))
    if wrong:
        parts.append(_fresh_rows(info, old, episodes, cameras, sorted(wrong)))
    table = pa.concat_tables(parts, promote_options="permissive")
    table = table.take(pa.array(np.argsort([*right, *sorted(wrong)])))
    order = list(dict.fromkeys([*old.table.column_names, *columns, *table.column_names]))
    shutil.rmtree(draft.root / layout.EPISODES, ignore_errors=True)
    whole = pa.table({c: columns[c] if c in columns else table[c] for c in order})
    write_episodes(draft.root, whole.combine_chunks())
    more = f", statistics of {len(wrong)} computed anew" if wrong else ""
    draft.did("rebuilt_episodes", f"{layout.EPISODES}: {len(whole)} episodes{more}")


def known_places(old: OldTable, key: str) -> dict[int, Place]:
    """Return episode to where the table says its pictures of a camera are."""
    names = ("chunk_index", "file_index", "from_timestamp")
    chunk, file, start = (old.column(f"videos/{key}/{name}") for name in names)
    return {
        e: (int(chunk[e]), int(file[e]), float(start[e]))
        for e in chunk
        if e in file and e in start and np.isfinite(float(start[e]))
    }


def _is_right(
    old: OldTable, episodes: Sequence[WholeEpisode], columns: Mapping[str, pa.Array]
) -> bool:
    """Say whether the table that there is says what it should."""
    table = old.table
    if not old.whole or len(table) != len(episodes):
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


def _fresh_rows(
    info: DatasetInfo,
    old: OldTable,
    episodes: Sequence[WholeEpisode],
    cameras: Sequence[Camera],
    wanted: Sequence[int],
) -> pa.Table:
    """Return rows with statistics computed from the frames, for these episodes, in order.

    Statistics of pictures are added where a row has none: from the video, else of the dataset.
    """
    rows: dict[int, dict[str, Any]] = {}
    whole = read_object(info.root / layout.STATS)
    for home in sorted({episodes[i].home for i in wanted}):
        table = pq.read_table(home, partitioning=None)
        index = matrix(table["episode_index"], 1)[:, 0]
        for i in (i for i in wanted if episodes[i].home == home):
            part = table.filter(pa.array(index == i))
            row: dict[str, Any] = {}
            if episodes[i].old in old.row_of:
                row = old.table.slice(old.row_of[episodes[i].old], 1).to_pylist()[0]
            for name, stats in of_rows(part, info).items():
                row |= {f"stats/{name}/{k}": v.tolist() for k, v in stats.items()}
            for camera in cameras:
                key, place = camera.key, camera.places.get(episodes[i].old)
                if row.get(f"stats/{key}/mean") is not None:
                    continue
                if place is not None:
                    stats = of_pictures(camera.paths[place[:2]], place[2], len(part), info.fps)
                    row |= {f"stats/{key}/{k}": v.tolist() for k, v in stats.items()}
                elif isinstance(whole.get(key), dict):
                    row |= {f"stats/{key}/{k}": v for k, v in whole[key].items()}
            rows[i] = row
    arrays = {}
    for name in dict.fromkeys(name for i in wanted for name in rows[i]):
        values = [rows[i].get(name) for i in wanted]
        known = name in old.table.column_names
        try:
            arrays[name] = pa.array(values, old.table.schema.field(name).type if known else None)
        except pa.ArrowException:
            arrays[name] = pa.array(values)
    return pa.table(arrays)


def repair_stats(draft: RepairDraft, info: DatasetInfo, scan: Scan | None) -> None:
    """Write `stats.json`, and statistics of pictures per episode, anew where something is amiss."""
    findings = Findings()
    check_stats(info, scan, findings)
    with contextlib.suppress(*DAMAGE):  # what can't be computed is left as it is
        if findings.items and complete_stats(info):
            draft.did("rebuilt_stats", f"{layout.STATS}: computed anew from the frames")
