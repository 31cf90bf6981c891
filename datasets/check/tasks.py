"""Tasks: `meta/tasks.parquet`, and what episodes and rows name of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import DAMAGE, Findings, FixDraft, reason
from gaploop.datasets.check.frames import Rows, Scan, WholeEpisode
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.v3_files import write_tasks

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
