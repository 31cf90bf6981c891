"""Rules of `check` for `meta/`: folders, features, tasks and the table of episodes."""

from __future__ import annotations

import contextlib
import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE, Findings, numbers, reason
from gaploop.datasets.layout import DatasetInfo

NEEDED: Final = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
NUMBERS: Final = frozenset(
    {"float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"}
    | {"uint8", "uint16", "uint32", "uint64"}
)
"""Number types a feature may have; beside them there are video, image, string and language."""
_OTHER: Final = frozenset(("video", "image", "string", "language"))
_BATCH: Final = 1000


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


def feature_fault(spec: object) -> str:
    """Say why LeRobot can't use a feature's description; "" where it can."""
    if not isinstance(spec, Mapping):
        return "is no table"
    kind, shape = spec.get("dtype"), spec.get("shape")
    if kind not in NUMBERS | _OTHER:
        return f"has dtype {kind!r}"
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 5:
        return f"has shape {shape!r}"
    whole = all(type(n) is int and n > 0 for n in shape)
    return "" if whole else f"has shape {shape!r}"


def check_folders(info: DatasetInfo, findings: Findings) -> None:
    """Find folders under a misspelt name, such as `video` for `videos`."""
    needed = ["data", "meta"] + (["videos"] if info.video_keys else [])
    present = {p.name for p in info.root.iterdir() if p.is_dir()}
    for name in needed:
        near = difflib.get_close_matches(name, sorted(present - set(needed)), n=1, cutoff=0.7)
        if name not in present and near:
            text = f"There is a folder {near[0]} where LeRobot looks for {name}."
            fix = shlex.join(["mv", str(info.root / near[0]), str(info.root / name)])
            findings.error("misnamed_folder", near[0], text, fix)


def check_features(info: DatasetInfo, findings: Findings) -> None:
    """Check that features are described as LeRobot needs it, and that the usual ones are there."""
    for name, spec in info.features.items():
        fault = feature_fault(spec)
        if "/" in name:
            fault = "has a '/' in its name"
        if fault:
            findings.error("bad_info", layout.INFO, f"Feature {name} {fault}.")
    for name in (columns.ACTION, columns.STATE, *columns.AUTOMATIC):
        if name in info.features:
            continue
        known = (columns.ACTION, columns.STATE, columns.ENVIRONMENT, *columns.AUTOMATIC)
        other = [n for n in info.features if n not in (*known, *info.video_keys)]
        near = difflib.get_close_matches(name, other, n=1, cutoff=0.6)
        hint = f" Did the writer call it {near[0]}?" if near else ""
        fix = ""
        if not near and name not in columns.AUTOMATIC:
            short = name.rpartition(".")[2]
            theirs = short if short in info.features else "THEIRS"
            fix = findings.repair(f"--rename_map='{{{theirs}: {name}}}'")
            fix += "" if theirs == short else "  # THEIRS: the feature that holds it"
        # Sets of pictures and actions alone train, too; a near name says that it was meant.
        say = findings.warn if name == columns.STATE and not near else findings.error
        say("missing_feature", layout.INFO, f"There is no feature {name}.{hint}", fix)


def task_names(info: DatasetInfo, findings: Findings) -> list[str] | None:
    """Check `meta/tasks.parquet` and return the tasks by index; None where it can't be used."""
    path = info.root / layout.TASKS
    if not info.total_episodes:
        return None
    if not path.is_file():
        findings.error("missing_tasks", layout.TASKS, "The table of tasks is missing.")
        return None
    try:
        return read_tasks(path)
    except DAMAGE as error:
        findings.error("unreadable", layout.TASKS, f"It can't be used: {reason(error)}")
        return None


def read_tasks(path: Path) -> list[str]:
    """Return the tasks by index: LeRobot takes row i for task i, its name from pandas' index.

    Raises:
        UnusableInputError: rows out of order, or without a name.
    """
    table = layout.read_parquet(path)
    pandas = (table.schema.pandas_metadata or {}).get("index_columns") or []
    names = [c for c in pandas if isinstance(c, str) and c in table.column_names]
    if len(names) != 1 or "task_index" not in table.column_names:
        raise UnusableInputError(f"{path} has no index of task names next to task_index.")
    if table["task_index"].to_pylist() != list(range(len(table))):
        raise UnusableInputError(f"{path}: task_index doesn't count 0, 1, 2 …")
    tasks = table[names[0]].to_pylist()
    if not all(isinstance(task, str) for task in tasks) or len(set(tasks)) != len(tasks):
        raise UnusableInputError(f"{path}: a task has no name, or the name of another task.")
    return [str(task) for task in tasks]


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
        names = pq.read_schema(path).names
        wanted = [n for n in names if not n.startswith("stats/")]
        lacking = [n for n in NEEDED if n not in names]
        if lacking:
            raise UnusableInputError(f"{path} has no column {', '.join(lacking)}.")
        with pq.ParquetFile(path) as file:
            layout.require_plausible(file.metadata, path)
            for _ in file.iter_batches(_BATCH):  # LeRobot reads the statistics, too
                pass
        tables.append(layout.read_table(path, wanted))
    if len({t.schema.remove_metadata() for t in tables}) > 1:
        raise UnusableInputError("its files have columns of different names or types.")
    table = pa.concat_tables(tables)
    for name in NEEDED:
        column = table[name]
        if column.null_count or not pa.types.is_integer(column.type):
            raise UnusableInputError(f"column {name} has {column.type} or missing values.")
    needed = (np.asarray(table[name].to_numpy(), dtype=np.int64) for name in NEEDED)
    return EpisodeTable(table, *needed)


def is_json_object(text: object) -> bool:
    """Say whether conditions are what they should be; "" stands for none."""
    if not isinstance(text, str):
        return False
    try:
        return text == "" or isinstance(parse_json(text), dict)
    except ValueError:
        return False


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
