"""Outcomes in files: recorded elsewhere, and replayed as if they came in one by one; or simulated.

Both policies are simulated on the station's scenes and on many others, drawn alike. Of a pair of
attempts on the station the control is the simulated difference on its scene, less the mean over
other scenes that no other pair uses. As all scenes were drawn alike that is 0 on average, whatever
the simulation gets wrong, so evidence that takes it in promises as much as without it
(prediction-powered inference: Angelopoulos et al. 2023, Science 382:669-674).
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_text, write_atomically
from gaploop.core.messages import FloatArray
from gaploop.core.suite import Suite, SuiteTask
from gaploop.finetune.evaluation import ROLLOUTS, read_rollouts
from gaploop.finetune.gate.folder import RESULT, SIDES, SIMULATED, GateFolder, attempts
from gaploop.finetune.gate.judge import HARDWARE, Outcomes

NEEDED: Final = ("policy", "success")
OPTIONAL: Final = ("task", "pair", "safety")
TRUE: Final = ("1", "true", "yes", "y", "success")
FALSE: Final = ("0", "false", "no", "n", "failure")


@dataclass(frozen=True)
class Replay:
    """Outcomes of a file.

    Attributes:
        outcomes: complete rounds.
        pairs: names of the pairs, [task][round].
        left_out: attempts without a partner, or after the last complete round.
    """

    tasks: tuple[str, ...]
    outcomes: Outcomes
    pairs: tuple[tuple[str, ...], ...]
    left_out: int


def read_outcomes(path: Path, suite: Suite | None) -> Replay:
    """Read a CSV file with a line per attempt: policy, success, and task, pair, safety if known.

    `policy` is baseline or candidate. Attempts of a task with the same `pair` belong together;
    without that column the first of each do, the second of each, and so on.

    Raises:
        UnusableInputError: a column or value is missing or unknown, or there is no pair at all.
    """
    pairs, attempts = read_pairs(read_text(path), path, suite)
    rounds = min(map(len, pairs.values()))
    kept = {name: list(found.items())[:rounds] for name, found in pairs.items()}
    arrays = np.array([[pair for _, pair in found] for found in kept.values()], dtype=bool)
    moved = arrays.transpose(3, 1, 0, 2)  # from tasks, rounds, side, kind
    names = tuple(tuple(name for name, _ in found) for found in kept.values())
    left_out = attempts - 2 * rounds * len(pairs)
    return Replay(tuple(pairs), Outcomes(moved[0], moved[1]), names, left_out)


def read_pairs(
    whole: str, path: Path, suite: Suite | None
) -> tuple[dict[str, dict[str, list[list[bool]]]], int]:
    """Return the pairs of such a file, whose text is `whole`, and how many attempts it holds.

    Returns:
        of each task the pairs by name, in the order in which they were complete: [side][success,
        safety].

    Raises:
        UnusableInputError: as `read_outcomes`.
    """
    try:
        reader = csv.DictReader(io.StringIO(whole, newline=""))
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
    return pairs, len(rows)


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


OTHERS: Final = 8
"""Other scenes for each pair, at least, while they last: the control then varies by an eighth more
than the simulated difference does."""
ALIKE: Final = 3.3
"""Standard errors by which the station's scenes may differ from the others in simulation: one file
of a thousand is refused although its scenes were drawn alike."""


@dataclass(frozen=True)
class SimulatedPairs:
    """What simulation says of a gate's pairs.

    Attributes:
        control: of `Outcomes`, shape (rounds, tasks); 0 where it says nothing.
        scenes: of how many pairs it says something.
        others: other scenes that went into that.
    """

    control: FloatArray
    scenes: int
    others: int


def gate_scenes(folder: GateFolder, tasks: int, rounds: int) -> list[list[str]]:
    """Return the names of the pairs that a gate may come to on the station, [task][round]."""
    found = [[""] * rounds for _ in range(tasks)]
    for turn in islice(attempts(folder.seed, HARDWARE, tasks), 2 * tasks * rounds):
        found[turn.task][turn.round] = str(turn.scene)
    return found


def simulated_pairs(
    source: Path | None, folder: GateFolder, suite: Suite, scenes: Sequence[Sequence[str]],
    recorded: bool = False,
) -> SimulatedPairs | None:  # fmt: skip
    """Return what was simulated; it is copied into the gate's folder before the first attempt.

    From then on the gate goes by the copy: what is bet may not hang on outcomes.

    Args:
        source: a CSV file like that of recorded outcomes, with a column `pair`; or a folder with
            what gaploop evaluate wrote of each policy, as `baseline` and `candidate`. None for
            the copy, if there is one.
        suite: its tasks are those of the file.
        scenes: names of the pairs on the station, [task][round].

    Raises:
        UnusableInputError: the gate began without it or with another, or it can't be used.
    """
    kept = folder.path / SIMULATED
    if source is None:
        return _read(read_text(kept), kept, suite, scenes) if kept.exists() else None
    if source.is_dir():
        lines = ["policy,success,pair"]
        for side in SIDES:
            rollouts = list(read_rollouts(source / side / ROLLOUTS))
            if len({rollout.condition for rollout in rollouts}) != 1:
                raise UnusableInputError(
                    f"{source / side / ROLLOUTS} must hold rollouts under one condition. Run: "
                    f"gaploop evaluate --policy.path=… --env.twin=… --output_dir={source / side}"
                )
            lines += [f"{side},{int(rollout.success)},{rollout.seed}" for rollout in rollouts]
        whole = "\n".join([*lines, ""])
    else:
        whole = read_text(source)
    begun = folder.tried(HARDWARE) or (recorded and (folder.path / RESULT).exists())
    if kept.exists() and whole != read_text(kept):
        raise UnusableInputError(
            f"{source} isn't what this gate began with ({kept}). Leave --simulated out to go on, "
            "or name another folder with --output_dir."
        )
    if begun and not kept.exists():
        raise UnusableInputError(
            f"The gate in {folder.path} began without simulated outcomes. Leave --simulated out "
            "to go on, or begin a new gate in another --output_dir."
        )
    found = _read(whole, source, suite, scenes)
    write_atomically(kept, whole)
    return found


def _read(whole: str, path: Path, suite: Suite, scenes: Sequence[Sequence[str]]) -> SimulatedPairs:
    """Which other scenes go with a pair hangs on no outcome: it is settled by their names."""
    pairs, _ = read_pairs(whole, path, suite)
    rounds = len(scenes[0])
    control = np.zeros((rounds, len(scenes)))
    count = used = 0
    for n, (task, names) in enumerate(zip(pairs, scenes, strict=True)):
        found = {pair: float(new[0]) - old[0] for pair, (old, new) in pairs[task].items()}
        own = {at: found.pop(name) for at, name in enumerate(names) if name in found}
        others = np.random.default_rng(0).permutation([found[name] for name in sorted(found)])
        each = max(OTHERS, len(others) // rounds)
        if not own or len(others) < each:
            raise UnusableInputError(
                f"{path}, {task or 'all rows'}: has {len(own)} scenes of the station and "
                f"{len(others)} others. Simulate both policies on pairs {names[0]} to {names[-1]} "
                f"and on at least {each} others, {OTHERS * rounds} for all pairs, drawn likewise; "
                "column pair names the scene."
            )
        # A control is 0 on average only where both kinds of scenes were drawn alike.
        ours = np.array(list(own.values()))
        spread = np.concatenate([ours, others]).std()
        error = spread * math.sqrt(1 / len(ours) + 1 / len(others))
        if abs(ours.mean() - others.mean()) > ALIKE * error:
            raise UnusableInputError(
                f"{path}, {task or 'all rows'}: in simulation the candidate gains "
                f"{ours.mean():+.1%} on the station's scenes and {others.mean():+.1%} on the "
                "others, so they weren't drawn alike. Draw the others as the station's are drawn, "
                "or leave --simulated out."
            )
        means = others[: len(others) // each * each].reshape(-1, each).mean(1)
        for (at, value), mean in zip(own.items(), means, strict=False):
            control[at, n] = value - mean
            count, used = count + 1, used + each
    return SimulatedPairs(control, count, used)
