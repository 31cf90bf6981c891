"""Outcomes that were recorded elsewhere, replayed as if they came in one by one."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_text
from gaploop.core.suite import Suite, SuiteTask
from gaploop.finetune.gate.folder import SIDES
from gaploop.finetune.gate.judge import Outcomes

NEEDED: Final = ("policy", "success")
OPTIONAL: Final = ("task", "pair", "safety")
TRUE: Final = ("1", "true", "yes", "y", "success")
FALSE: Final = ("0", "false", "no", "n", "failure")


@dataclass(frozen=True)
class Replay:
    """Outcomes of a file.

    Attributes:
        outcomes: complete rounds.
        left_out: attempts without a partner, or after the last complete round.
    """

    tasks: tuple[str, ...]
    outcomes: Outcomes
    left_out: int


def read_outcomes(path: Path, suite: Suite | None) -> Replay:
    """Read a CSV file with a line per attempt: policy, success, and task, pair, safety if known.

    `policy` is baseline or candidate. Attempts of a task with the same `pair` belong together;
    without that column the first of each do, the second of each, and so on.

    Raises:
        UnusableInputError: a column or value is missing or unknown, or there is no pair at all.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        columns, lines = reader.fieldnames or [], list(reader)
    except csv.Error as error:
        raise UnusableInputError(f"{path} isn't a CSV file ({error}).") from None
    for name in NEEDED:
        if name not in columns:
            raise UnusableInputError(
                f"{path} has no column '{name}'. Needed: {', '.join(NEEDED)}; known too: "
                f"{', '.join(OPTIONAL)}. It has: {', '.join(columns) or 'none'}."
            )
    rows = []
    for n, line in enumerate(lines, 2):
        where, side = f"{path}, line {n}", (line["policy"] or "").strip().lower()
        if side not in SIDES:
            raise unknown_choice("policy", side, SIDES, where)
        success = _flag(line["success"], f"{where}, success")
        safety = _flag(line.get("safety") or "0", f"{where}, safety")
        task, pair = ((line.get(name) or "").strip() for name in ("task", "pair"))
        rows.append(_Row(side, success, safety, task, pair))
    named = tuple(dict.fromkeys(row.task for row in rows))
    tasks = tuple(task.name for task in suite.tasks) if suite else named
    if suite and named == ("",) and len(tasks) == 1:
        named, rows = tasks, [_Row(r.side, r.success, r.safety, tasks[0], r.pair) for r in rows]
    for name in named:
        if name not in tasks:
            raise unknown_choice("task", name, tasks, f"{path}, column task")
    # Of each task the pairs by name, in the order in which they were complete: [side][success,
    # safety].
    pairs: dict[str, dict[str, list[list[bool]]]] = {name: {} for name in tasks}
    waiting: dict[tuple[str, str], dict[str, list[bool]]] = {}
    counts = Counter[tuple[str, str]]()
    for row in rows:
        key = row.pair or f"#{counts[row.task, row.side]}"
        counts[row.task, row.side] += 1
        half = waiting.setdefault((row.task, key), {})
        if row.side in half:
            raise UnusableInputError(
                f"{path}: pair {row.pair} of task '{row.task}' names {row.side} twice. Number "
                "pairs so that each holds one attempt of both policies."
            )
        half[row.side] = [row.success, row.safety]
        if len(half) == len(SIDES):
            pairs[row.task][key] = [half[side] for side in SIDES]
    if not tasks or not all(pairs.values()):
        lacking = [name for name, found in pairs.items() if name and not found] or ["the file"]
        raise UnusableInputError(
            f"{path}: no pair of attempts, one by each policy, of: {', '.join(lacking)}. Each task "
            "needs lines with policy baseline and with policy candidate."
        )
    rounds = min(map(len, pairs.values()))
    kept = [list(found.values())[:rounds] for found in pairs.values()]
    moved = np.array(kept, dtype=bool).transpose(3, 1, 0, 2)  # from tasks, rounds, side, kind
    left_out = len(rows) - 2 * rounds * len(pairs)
    return Replay(tuple(pairs), Outcomes(moved[0], moved[1]), left_out)


def suite_of(tasks: Iterable[str], where: str) -> Suite:
    """Return the suite of a file that comes without one: its tasks, with no pass rate to reach."""
    entries = tuple(SuiteTask(name or "recorded outcomes", min_pass_rate=0.0) for name in tasks)
    return Suite("recorded outcomes", entries, where=where)


@dataclass(frozen=True)
class _Row:
    side: str
    success: bool
    safety: bool
    task: str
    pair: str


def _flag(value: str | None, where: str) -> bool:
    word = (value or "").strip().lower()
    if word not in TRUE + FALSE:
        raise UnusableInputError(f"{where}: {value!r} must be 1 or 0, or true or false.")
    return word in TRUE
