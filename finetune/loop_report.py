"""The demo's report: what failed and why, what was planned, and what it brought."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gaploop.core.files import write_atomically
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import Image
from gaploop.core.plan import PlanItem
from gaploop.core.take import Take
from gaploop.core.vocabulary import DIMENSIONS
from gaploop.failure_analysis.report.page import (
    ACCENT,
    PALE,
    SOFT,
    Section,
    facts,
    figure,
    figure_png,
    new_figure,
    notice,
    page,
    section,
    table,
)
from gaploop.failure_analysis.report.page import text as paragraph
from gaploop.failure_analysis.report.report import SIM_TO_SIM, evidence_section
from gaploop.failure_analysis.station import words as plain
from gaploop.finetune.closed_loop import LoopResult
from gaploop.finetune.demo import DemoResult
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Answer
from gaploop.sim.gaps import draw_gaps

CARDS: Final = 3
"""Failed takes shown in pictures, per cell."""
INSTANTS: Final = (0.0, 0.33, 0.67, 1.0)
"""Which pictures of a take are shown, as fractions of its length."""
STAGES: Final = {
    "failed": ("failed takes", "rollouts/"),
    "twin": ("the station's twin", "station_twin.yaml"),
    "diagnosis": ("diagnosis", "diagnosis.json"),
    "plan": ("plan", "plan.yaml"),
    "demonstrations": ("demonstrations", "takes/"),
    "run": ("run", "run.json"),
    "policy": ("policy", ""),
}
"""Entry of a loop's lineage: what it is called, and where it lies in the loop's folder."""
SHOWN_IDS: Final = 4


def write_report(result: DemoResult, folder: Path, minutes: float) -> Path:
    """Write `report.html` and its figures to `folder`; return the page's path."""
    sections = [_summary(result, folder, minutes)]
    for name, loop in _named(result):
        shown = {t.uid for t in loop.diagnosis.takes}
        takes = (t for t in read_journal(loop.folder / "rollouts_journal") if t.info.uid in shown)
        pictures = {t.info.uid: pictures_of(t) for t in takes}
        summary = loop.diagnosis.summary
        modes = ", ".join(f"{plain(m)} {n}×" for m, n in summary["modes"].items()) or "none"
        lead = (
            f"{summary['diagnosed']} of {summary['takes']} recorded rollouts failed ({modes}). "
            f"Diagnosed: {diagnosed_words(loop)}. Injected: {injected_words(loop)}."
        )
        head = ("dimension", "share", "what to do", "why", "what it means")
        rows = [
            (
                plain(item.dimension.value),
                f"{item.share:.0%}",
                _advice(item),
                f"{item.why} {item.protocol}",
                DIMENSIONS[item.dimension].definition,
            )
            for item in loop.plan.items
        ]
        advice = paragraph("The plan has nothing to do.")
        if rows:
            advice = table(head, rows, numbers=(1,))
        sections.append(section(f"Cell {name}: diagnosis and plan", lead, [advice]))
        sections.append(evidence_section(loop.diagnosis, pictures, CARDS))
    stages = []
    for name, loop in _named(result):
        for key, (stage, file) in STAGES.items():
            if key in loop.lineage:
                there = f"{loop.run_folder}/{file}" if key in ("run", "policy") else file
                ids = loop.lineage[key]
                if not isinstance(ids, str):  # the ends of the first few: all are in the file
                    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
                    ids = ", ".join(f"…{uid[-12:]}" for uid in ids[:SHOWN_IDS]) + more
                stages.append((name, stage, ids, f"{loop.folder.name}/{there}"))
        if loop.verdict:
            counted = "" if loop.is_counted else " (not counted)"
            answer = f"{loop.verdict.verdict.value}{counted}: names all of the above"
            stages.append((name, "verdict", answer, f"{loop.folder.name}/verdict.json"))
    lead = "Each stage names the one before by id; the files lie beside this page."
    lineage = table(("cell", "stage", "id", "file"), stages)
    sections.append(section("Lineage", lead, [lineage]))
    limits = (
        "Nothing here was measured on a real robot. The cells, their gaps and the demonstrator "
        "are simulated; the policy sees joints and tracked poses, not pixels. One training seed.",
        f"To repeat it: gaploop demo{_seeded(result)} --output_dir=DIR: the same gaps and scenes.",
    )
    sections.append(section("What this does not show", "", list(map(paragraph, limits))))
    path = folder / "report.html"
    title = "Closing the gap, sim-to-sim"
    write_atomically(path, page(title, sections, subtitle=f"gaploop demo{_seeded(result)}"))
    return path


def rate_words(result: Evaluation) -> str:
    """Return a success rate with its interval, in words."""
    low, high = result.interval
    return f"{result.rate:.0%} [{low:.0%}, {high:.0%}]"


def diagnosed_words(loop: LoopResult) -> str:
    """Return what the failures were attributed to, most frequent first."""
    top: Mapping[str, int] = loop.diagnosis.summary["top"]
    named = [f"{plain(d)} {n}×" for d, n in sorted(top.items(), key=lambda item: -item[1])]
    if loop.diagnosis.summary["abstained"]:
        named.append(f"not named {loop.diagnosis.summary['abstained']}×")
    return ", ".join(named) or "no failures"


def injected_words(loop: LoopResult) -> str:
    """Return what was injected: known from the draw, never from the takes."""
    drawn = draw_gaps(loop.target.gaps, loop.target.gap_seed)
    return ", ".join(f"{plain(g.dimension)}: {plain(g.mechanism)}, {g.severity:g}" for g in drawn)


COLUMNS: Final = (
    "injected", "measured", "diagnosed", "plan", "done", "before", "after", "nominal sim after",
    "verdict",
)  # fmt: skip
"""What `loop_words` returns."""


def loop_words(loop: LoopResult) -> tuple[str, ...]:
    """Return what came of a loop, in the order of `COLUMNS`."""
    return (
        injected_words(loop),
        ", ".join(map(plain, loop.twin.mechanisms)) or "nothing differs"
        if loop.twin
        else "not probed",
        diagnosed_words(loop),
        "; ".join(map(_advice, loop.plan.items)) or "nothing to do",
        loop.done,
        rate_words(loop.before),
        rate_words(loop.after) if loop.after else "—",
        rate_words(loop.nominal_after) if loop.nominal_after else "—",
        (loop.verdict.verdict.value if loop.is_counted else "not counted")
        if loop.verdict
        else "nothing done",
    )


def better_words(result: DemoResult) -> str:
    """Return how the demo ended."""
    told = []
    for (name, loop), better in zip(_named(result), result.better, strict=True):
        shown = "is not shown to be better" if loop.is_counted else "isn't counted"
        shown = "got better" if better else shown
        told.append(f"Cell {name} {shown}")
    return f"{', '.join(told)}."


def success_figure(result: DemoResult) -> Any:
    """Draw success with 95 % intervals in every cell, before and after."""
    groups: list[tuple[str, Evaluation, Evaluation | None]] = []
    kept = next((loop.nominal_after for loop in result.loops if loop.nominal_after), None)
    groups.append(("nominal sim", result.nominal, kept))
    for name, loop in _named(result):
        what = injected_words(loop).replace(": ", ":\n")  # beside each other they would touch
        groups.append((f"cell {name}\n{what}", loop.before, loop.after))
    with new_figure(7.6, 3.1) as (drawn, axes):
        for x, (_, base, adapted) in enumerate(groups):
            both = [(base, PALE)] + ([(adapted, ACCENT)] if adapted else [])
            for n, (rate, colour) in enumerate(both):
                place, (low, high) = x + (n - (len(both) - 1) / 2) * 0.36, rate.interval
                error = [[max(rate.rate - low, 0)], [max(high - rate.rate, 0)]]
                axes.bar(place, rate.rate, 0.32, color=colour)
                axes.errorbar(place, rate.rate, yerr=error, color=SOFT, capsize=3, lw=1)
                axes.text(place, high + 0.03, f"{rate.rate:.0%}", ha="center", fontsize=10)
        axes.set_xticks(range(len(groups)), [name for name, _, _ in groups])
        axes.set_ylim(0, 1.28)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_ylabel("success")
        axes.tick_params(length=0)
        for label, colour in (("before", PALE), ("after the remedy", ACCENT)):
            axes.bar(0, 0, color=colour, label=label)
        axes.legend(frameon=False, ncols=2, loc="upper right")
    return drawn


def pictures_of(take: Take) -> list[Image]:
    """Return a few pictures of a take's first camera, in order."""
    for pictures in take.cameras.values():
        images = list(pictures())
        if images:
            return [images[round(at * (len(images) - 1))] for at in INSTANTS]
    return []


def _summary(result: DemoResult, folder: Path, minutes: float) -> Section:
    png = figure_png(success_figure(result))
    (folder / "success.png").write_bytes(png)
    n = result.nominal.trials
    caption = f"Success over {n} rollouts each, on the same scenes; 95 % Wilson intervals."
    rows = [(name, *loop_words(loop)) for name, loop in _named(result)]
    verdicts = [loop.verdict for loop in result.loops if loop.verdict and loop.is_counted]
    lead = better_words(result)
    blocks = [notice(SIM_TO_SIM)]
    blocks += [
        notice(v.message, "good" if v.verdict is Answer.PROMOTE else "bad") for v in verdicts
    ]
    found = [(f"{minutes:.1f} min", "on this machine")]
    for name, loop in _named(result):
        change = f"{loop.before.rate:.0%} → {loop.after.rate:.0%}" if loop.after else "no change"
        found.append((change, f"cell {name}: {loop.done}"))
    blocks += [
        facts(found),
        figure(png, caption, 760),
        table(("cell", *COLUMNS), rows),
    ]
    return section("In short", lead, blocks)


def _advice(item: PlanItem) -> str:
    if item.takes:
        return f"collect {item.takes} takes"
    if item.remedy == "collect":
        return "roll out more first"
    return plain(item.remedy)


def _seeded(result: DemoResult) -> str:
    return "" if result.seed is None else f" --seed={result.seed}"


def _named(result: DemoResult) -> list[tuple[str, LoopResult]]:
    return list(zip("AB", result.loops, strict=False))
