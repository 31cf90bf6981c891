"""The tables of episodes and tasks: what they say, kept row by row where it is right."""

import contextlib
import itertools
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.check.description import read_object
from gaploop.datasets.check.findings import DAMAGE, Findings, FixDraft, reason
from gaploop.datasets.check.frames import Rows, Scan, WholeEpisode
from gaploop.datasets.check.stats import differing_episodes
from gaploop.datasets.check.videos import Camera, Place, numbers_of
from gaploop.datasets.layout import DatasetInfo, numbers
from gaploop.datasets.v3_files import matrix, write_episodes, write_tasks
from gaploop.datasets.whole_stats import of_pictures, of_rows

NEEDED: Final = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
_BATCH: Final = 1000
SAME_S: Final = 1e-5
"""Times of a video that differ less are equal [s]; LeRobot's tolerance is ten times that."""
_SAYS: Final = {
    "frame_index": "frame_index doesn't count 0, 1, 2 …",
    "timestamp": "timestamps are not frame_index / fps",
    "index": "index doesn't count all rows of the dataset",
}


@dataclass(frozen=True)
class EpisodeTable:
    """`meta/episodes` without its statistics, in the order of its files; arrays of shape (n,).

    `first` and `last` are `dataset_from_index` and `dataset_to_index`.
    """

    table: pa.Table
    index: NDArray[np.int64]
    length: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, NaN where a row has none, or there is no such column."""
        with contextlib.suppress(KeyError, pa.ArrowException):
            return np.asarray(self.table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)
        return np.full(len(self), np.nan)


def check_episodes(info: DatasetInfo, findings: Findings) -> EpisodeTable | None:
    """Read `meta/episodes`; None where it can't be used."""
    text = "The dataset has no episodes."
    fix = "Nothing is lost with the folder: delete it, and record some: gaploop record --help"
    if not layout.episode_files(info.root):
        if info.total_episodes or (info.root / "data").exists():
            findings.error("missing_episodes", layout.EPISODES, "There is no episode table.")
        else:
            findings.error("empty", info.root.name, text, fix)
        return None
    try:
        episodes = _read_episode_table(info.root)
    except DAMAGE as error:
        findings.error("unreadable", layout.EPISODES, f"It can't be used: {reason(error)}")
        return None
    if len(episodes) != info.total_episodes:
        count = f"total_episodes is {info.total_episodes}, the episode table has {len(episodes)} "
        count += "rows: a recording was killed before it was finalised, or episodes were lost."
        findings.error("episode_count", layout.INFO, count)
    if (episodes.index != np.arange(len(episodes))).any():
        values, counts = np.unique(episodes.index, return_counts=True)
        twice = values[counts > 1].tolist()
        order = "Episodes are not numbered 0, 1, 2 … in the order of the table."
        order += f" Twice: {numbers(twice)}." if twice else ""
        findings.error("episode_numbers", layout.EPISODES, order)
    bad = episodes.index[episodes.length < 1].tolist()
    findings.about(bad, "bad_rows", layout.EPISODES, "no frames.")
    if not len(episodes):
        findings.error("empty", info.root.name, text, fix)
    return episodes


def _read_episode_table(root: Path) -> EpisodeTable:
    """Read the episode table, or raise `DAMAGE`."""
    tables = []
    for path in layout.episode_files(root):
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if lacking := [n for n in NEEDED if n not in schema.names]:
                raise UnusableInputError(f"{path} has no column {', '.join(lacking)}.")
            layout.require_plausible(file.metadata, path)
            wanted = [n for n in schema.names if not n.startswith("stats/")]
            # All of it is read, as LeRobot does, and without the statistics kept.
            batches = [batch.select(wanted) for batch in file.iter_batches(_BATCH)]
        kept = pa.schema([schema.field(n) for n in wanted])
        tables.append(pa.Table.from_batches(batches, kept))
    if len({t.schema.remove_metadata() for t in tables}) > 1:
        raise UnusableInputError("its files have columns of different names or types.")
    table = pa.concat_tables(tables)
    for name in NEEDED:
        column = table[name]
        if column.null_count or not pa.types.is_integer(column.type):
            raise UnusableInputError(f"column {name} has {column.type} or missing values.")
    needed = (np.asarray(table[name].to_numpy(), dtype=np.int64) for name in NEEDED)
    return EpisodeTable(table, *needed)


def check_ranges(info: DatasetInfo, episodes: EpisodeTable, scan: Scan, findings: Findings) -> None:
    """Compare the row ranges that the episode table claims with the rows that are there."""
    runs = {run.start: run for run in scan.runs}
    wrong = defaultdict[str, list[int]](list)
    chunk, file = episodes.numbers("data/chunk_index"), episodes.numbers("data/file_index")
    homes = []
    if np.isfinite(chunk + file).all():
        homes = [info.root / info.data_name(c, f) for c, f in zip(chunk, file, strict=True)]
    claims = np.stack([episodes.index, episodes.length, episodes.first, episodes.last], axis=1)
    paths = layout.data_files(info.root)
    for at, (index, length, first, last) in enumerate(claims.tolist()):
        run = runs.get(first)
        if run is None or run.episode != index or not run.rows == last - first == length:
            wrong["rows"].append(index)
            continue
        for name in run.odd:
            wrong[name].append(index)
        if homes and paths[run.file] != homes[at]:
            wrong["file"].append(index)
    text = "the row range in the episode table doesn't match their rows."
    findings.about(wrong["rows"], "bad_rows", layout.EPISODES, text)
    for name, says in _SAYS.items():
        findings.about(wrong[name], f"bad_{name}", "data", f"{says}.")
    text = "they are not in the data file that the table names."
    findings.about(wrong["file"], "bad_file_index", layout.EPISODES, text)
    orphans = sorted({run.episode for run in scan.runs} - set(episodes.index.tolist()))
    findings.about(orphans, "orphan_rows", "data", "the episode table doesn't list them.")


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
    tables, counted = [], True
    files = layout.episode_files(root)
    for path in files:
        try:
            table = pq.read_table(path, partitioning=None)
            table.validate(full=True)
        except DAMAGE:
            continue
        if "episode_index" in table.column_names:
            tables.append(_counted(table))
            counted &= tables[-1].schema.equals(table.schema)
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
    return OldTable(table, row_of, alike and counted and len(tables) == len(files))


def _counted(table: pa.Table) -> pa.Table:
    """Return a table whose counts are whole numbers: pandas makes decimals of them for one gap."""
    for name in (n for n in table.column_names if n.endswith("_index") or n == "length"):
        if pa.types.is_floating(table.schema.field(name).type):
            values = pc.if_else(pc.is_finite(table[name]), table[name], None)
            with contextlib.suppress(pa.ArrowException):  # halves are no counts
                at = table.column_names.index(name)
                table = table.set_column(at, name, values.cast(pa.int64()))
    return table


def fix_episodes(
    draft: FixDraft,
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


UNKNOWN = "unknown task"
"""Stands where no table says what an episode's task was."""


def task_names(info: DatasetInfo, findings: Findings) -> list[str] | None:
    """Check `meta/tasks.parquet` and return the tasks by index; None where it can't be used."""
    path = info.root / layout.TASKS
    if not info.total_episodes:
        return None
    if not path.is_file():
        findings.error("missing_tasks", layout.TASKS, "The table of tasks is missing.")
        return None
    try:
        return layout.read_tasks(path)
    except DAMAGE as error:
        findings.error("unreadable", layout.TASKS, f"It can't be used: {reason(error)}")
        return None


def check_episode_tasks(
    episodes: EpisodeTable, tasks: list[str], findings: Findings
) -> dict[int, set[str]]:
    """Check that each episode names tasks of the table; return episode to its tasks."""
    if "tasks" not in episodes.table.column_names:
        findings.error("bad_tasks", layout.EPISODES, "Column tasks is missing.")
        return {}
    known, named, bad = set(tasks), {}, []
    for index, words in zip(episodes.index.tolist(), episodes.table["tasks"], strict=True):
        listed: Any = words.as_py()
        said = {listed} if isinstance(listed, str) else set(listed or ())
        named[index] = said
        if not said <= known:
            bad.append(index)
    text = f"they name tasks that {layout.TASKS} doesn't hold."
    findings.about(bad, "bad_tasks", layout.EPISODES, text)
    return named


def check_tasks_of_rows(
    scan: Scan, tasks: list[str], named: Mapping[int, set[str]], findings: Findings
) -> None:
    """Check that rows name tasks that exist, and those that the episode table names."""
    unknown = [r.episode for r in scan.runs if any(not 0 <= t < len(tasks) for t in r.tasks)]
    if unknown:
        text = "rows have a task_index that doesn't exist."
        findings.about(unknown, "bad_task_index", "data", text)
        return
    other = [
        run.episode
        for run in scan.runs
        if run.episode in named and {tasks[t] for t in run.tasks} != named[run.episode]
    ]
    text = f"rows have another task than {layout.EPISODES} gives."
    findings.about(other, "bad_tasks", "data", text)


def _unnamed(taken: Mapping[Any, str]) -> str:
    numbered = (f"{UNKNOWN} {number}" for number in itertools.count(2))
    return next(n for n in itertools.chain([UNKNOWN], numbered) if n not in taken.values())


def fix_tasks(
    draft: FixDraft,
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
        names = layout.read_tasks(path)
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
