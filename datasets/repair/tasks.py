"""Repair: the table of tasks, and which task each episode names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaploop.datasets import layout
from gaploop.datasets.check.episodes import read_tasks
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.repair.names import RepairDraft
from gaploop.datasets.repair.rows import Rows, Whole

UNKNOWN = "unknown task"
"""Stands where neither tables nor `--task` say what an episode's task was."""


@dataclass(frozen=True)
class Tasks:
    """The tasks as they shall be.

    Attributes:
        names: by index.
        of_episode: for each episode that stays, the names of its tasks.
        changed: episode (its new index) to the task index its rows get.
    """

    names: list[str]
    of_episode: list[list[str]]
    changed: Mapping[int, int]


def mend_tasks(
    draft: RepairDraft,
    rows: Rows,
    episodes: Sequence[Whole],
    said: Mapping[int, Sequence[str]],
    task: str,
) -> Tasks:
    """Bring tasks in line: the table of tasks counts first, then what episodes name.

    Args:
        draft: the dataset.
        rows: all rows.
        episodes: what stays.
        said: episode (old index) to the tasks that the episode table names.
        task: name of tasks that nothing names any more; "" for a place holder.
    """
    names = _known(draft)
    intact = names is not None
    table: list[str] = names if names is not None else []
    slots: dict[int, str] = dict(enumerate(table))
    used = [_used(rows, episode) for episode in episodes]
    if not intact:
        for episode, found in zip(episodes, used, strict=True):
            words = list(said.get(episode.old, ()))
            if len(found) == len(words) == 1 and words[0] not in slots.values():
                slots.setdefault(found[0], words[0])
        highest = max((i for found in used for i in found), default=-1)
        for i in range(min(highest, len(episodes)) + 1):
            slots.setdefault(i, _unknown(task, slots))
        table = [slots[i] for i in sorted(slots) if i <= highest]
    changed: dict[int, int] = {}
    of_episode = []
    for new, (episode, found) in enumerate(zip(episodes, used, strict=True)):
        if found and all(0 <= i < len(table) for i in found):
            of_episode.append([table[i] for i in found])
            continue
        words = [str(w) for w in said.get(episode.old, ())][:1] or [_unknown(task, {})]
        if words[0] not in table:
            table.append(words[0])
        changed[new] = table.index(words[0])
        of_episode.append(words)
    if table != names:
        _write(draft, table)
        draft.did("rebuilt_tasks", f"{layout.TASKS}: {len(table)} tasks, such as {table[:1]}")
    if changed:
        draft.did("set_tasks", f"task_index of {len(changed)} episodes set to a task there is")
    return Tasks(table, of_episode, changed)


def _known(draft: RepairDraft) -> list[str] | None:
    try:
        return read_tasks(draft.root / layout.TASKS)
    except DAMAGE:
        return None


def _used(rows: Rows, episode: Whole) -> list[int]:
    found = np.unique(rows.values["task_index"][episode.rows])
    return [int(i) if np.isfinite(i) else -1 for i in found]


def _unknown(task: str, taken: Mapping[Any, str]) -> str:
    name = task or UNKNOWN
    number = 1
    while name in taken.values():
        number += 1
        name = f"{task or UNKNOWN} {number}"
    return name


def _write(draft: RepairDraft, names: Sequence[str]) -> None:
    import pandas as pd  # here: LeRobot wants pandas' own index in the file

    path = draft.root / layout.TASKS
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    index = pd.Index(list(names), name="task")
    pd.DataFrame({"task_index": range(len(names))}, index=index).to_parquet(part)
    part.replace(path)
