"""Failure modes and phases against what really happened, with channels removed (sim-to-sim).

Takes are recorded in cells with one gap each, or with a failure that is provoked, and diagnosed
from the journal alone. What really happened is the oracle's word, from simulator state, in
`truth.jsonl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.modes_record import RecordingJob
    from gaploop.core.take import Take

CONTROLLERS: Final = (
    ("pick_place", "policy"),
    ("pick_place", "scripted"),
    ("pick_lift", "scripted"),
    ("stack_cube", "scripted"),
)
SEVERITIES: Final = (0.4, 0.7, 1.0)
EVERYTHING: Final = "everything"
GROUPS: Final = {
    "known": "gaps whose mechanisms the rules were checked against",
    "held out": "gaps whose mechanisms they weren't",
    "provoked": "failures provoked one way at a time",
    "no gap": "failures without any gap",
}


@dataclass(frozen=True)
class ModeRow:
    """One failed take: what happened, and what was said.

    Attributes:
        station: the takes of one aren't independent.
        group: one of `GROUPS`.
        task: of the cell.
        controller: who drove.
        truth: mode and phase by the oracle.
        said: channels left to the mode and phase that rules named, "" for none.
    """

    station: str
    group: str
    task: str
    controller: str
    truth: tuple[str, str]
    said: Mapping[str, tuple[str, str]]


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record `n` takes of every station, or take those under `data`; return how often modes fit."""
    from benchmarks.modes_record import record
    from gaploop.finetune.workers import run_jobs

    root = config.data
    if root is None:
        root = folder / f"journals_{config.seed}"
        jobs = plan_jobs(config.policy.required(), root, config.seed, config.n or 2)
        with options.progress("Stations", total=len(jobs)) as advance:
            for _ in run_jobs(record, jobs, config.workers):
                advance(1)
    journals = sorted(path.parent for path in root.rglob("truth.jsonl"))
    rows = list[ModeRow]()
    with options.progress("Judging", total=len(journals)) as advance:
        for journal in journals:
            rows += judge_journal(journal)
            advance(1)
    return score(rows)


def plan_jobs(policy: str | Path, folder: Path, seed: int, takes: int) -> list[RecordingJob]:
    """Return one station of every mechanism and of every way to fail, for every controller.

    In random order, so that what a run that was cut short leaves is a fair sample.
    """
    from benchmarks.modes_record import RecordingJob
    from benchmarks.provoke import WAYS
    from gaploop.sim.gaps import MECHANISMS

    rng, jobs = np.random.default_rng([seed, 78]), list[RecordingJob]()
    for task, controller in CONTROLLERS:
        gaps = [f"{m.dimension.value}.{m.name}" for m in MECHANISMS]
        for name in (*gaps, *WAYS):
            severity = float(rng.choice(SEVERITIES))
            way, gap = (name, {}) if name in WAYS else ("", {name: severity})
            draw, scene = (int(k) for k in rng.integers(1_000_000, size=2))
            jobs.append(
                RecordingJob(
                    f"{task}-{controller}-{name}",
                    task,
                    controller,
                    policy,
                    gap,
                    way,
                    draw,
                    scene,
                    takes,
                    folder,
                )
            )
    return [jobs[k] for k in rng.permutation(len(jobs))]


def judge_journal(journal: Path) -> Iterator[ModeRow]:
    """Yield a row for every failed take of a journal with the oracle's word beside it."""
    from benchmarks.corpus.scores import read_truth
    from gaploop.core.journal_format import TRUTH, read_journal

    truth = read_truth(journal / TRUTH)
    for take in read_journal(journal):
        told = truth.get(take.info.uid, {})
        happened = told.get("happened", {})
        if happened.get("mode"):
            said = {name: _call(seen) for name, seen in _with_less(take).items()}
            yield ModeRow(
                journal.name, _group(told), _task(happened, journal), told.get("controller", ""),
                (happened["mode"], happened["phase"]), said,
            )  # fmt: skip


def _group(told: Mapping[str, Any]) -> str:
    if told.get("way"):
        return "provoked"
    injected = told.get("injected", [])
    if not injected:
        return "no gap"
    return "held out" if any(gap["held_out"] for gap in injected) else "known"


def _task(happened: Mapping[str, Any], journal: Path) -> str:
    return str(happened.get("task") or journal.name.partition("-")[0])


def _with_less(take: Take) -> dict[str, Take]:
    """Return the take as it is and with channels removed, by what is left out."""
    from dataclasses import replace

    from gaploop.core.telemetry import Telemetry

    frames, record = take.frames, take.telemetry
    untracked = replace(frames, environment_state=np.empty((len(frames), 0)))
    drives = ("current_a", "load_pct")
    plain = {k: v for k, v in record.columns.items() if not k.endswith(drives)}
    jaws = "gripper.position_rad"
    unread = {k: np.full(len(v), np.nan) if k.endswith(jaws) else v
              for k, v in record.columns.items()}  # fmt: skip
    return {
        EVERYTHING: take,
        "no tracker": replace(take, frames=untracked),
        "no loads or currents": replace(take, telemetry=Telemetry(record.t_s, plain)),
        "no telemetry": replace(take, telemetry=Telemetry(np.empty(0), {})),
        "jaws not read": replace(take, telemetry=Telemetry(record.t_s, unread)),
    }


def _call(take: Take) -> tuple[str, str]:
    from gaploop.failure_analysis.modes import failure_mode
    from gaploop.failure_analysis.signals.registry import measure as signals
    from gaploop.failure_analysis.views.view import TakeView

    view = TakeView(take, images=False)
    call = failure_mode(view, signals(view))
    return call.mode.value if call.mode else "", call.phase.value if call.phase else ""


def score(rows: Sequence[ModeRow]) -> dict[str, Any]:
    """Return accuracy of mode, and of mode with phase, by group, task, controller and channels."""
    counts = Counter((row.truth[0], row.said[EVERYTHING][0] or "none") for row in rows)
    modes = sorted({mode for mode, _ in counts} | {said for _, said in counts})
    return {
        "evidence": "sim-to-sim",
        "failed_takes": len(rows),
        "groups": {g: _right([r for r in rows if r.group == g]) for g in GROUPS},
        "gaps and no gap": _right([r for r in rows if r.group != "provoked"]),
        "by_task": _by(rows, "task"),
        "by_controller": _by(rows, "controller"),
        "by_mode": {m: _right([r for r in rows if r.truth[0] == m])
                    for m in modes if m != "none"},
        "by_channels": {name: _right(rows, name) for name in (rows[0].said if rows else ())},
        "confusion": {t: {s: counts[t, s] for s in modes if counts[t, s]} for t in modes},
    }  # fmt: skip


def _by(rows: Sequence[ModeRow], key: str) -> dict[str, Any]:
    names = sorted({getattr(row, key) for row in rows})
    return {name: _right([r for r in rows if getattr(r, key) == name]) for name in names}


def _right(rows: Sequence[ModeRow], channels: str = EVERYTHING) -> dict[str, Any] | None:
    """Return shares with 95 % Wilson intervals, and the share of the commonest true mode."""
    from gaploop.finetune.evaluation import wilson

    if not rows:
        return None
    by_mode = [row.truth[0] == row.said[channels][0] for row in rows]
    by_both = [row.truth == row.said[channels] for row in rows]
    commonest = Counter(row.truth[0] for row in rows).most_common(1)[0][1]
    return {
        "mode": wilson(sum(by_mode), len(rows)),
        "mode_and_phase": wilson(sum(by_both), len(rows)),
        "majority": commonest / len(rows),
        "stations": len({row.station for row in rows}),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return accuracies and the cross-table as Markdown; rows what happened, columns said."""
    lines = ["| failed takes | mode | mode and phase | commonest mode |", "|---|---|---|---|"]
    parts = {**result["groups"], "gaps and no gap": result["gaps and no gap"]}
    for key in ("by_task", "by_controller", "by_mode", "by_channels"):
        parts |= result[key]
    for name, right in parts.items():
        if right:
            lines.append(
                f"| {name.replace('_', ' ')} | {right['mode']} | {right['mode_and_phase']} | "
                f"{right['majority']:.0%} |"
            )
    rows = result["confusion"]
    columns = list(rows)
    lines += ["", "| happened \\ said | " + " | ".join(c.replace("_", " ") for c in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, row in rows.items():
        if row:
            cells = " | ".join(str(row.get(c, "·")) for c in columns)
            lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    lines += [
        "",
        "Sim-to-sim; failed takes only; 95 % Wilson intervals over takes, too narrow where several "
        "takes share a station.",
    ]
    return "\n".join(lines)
