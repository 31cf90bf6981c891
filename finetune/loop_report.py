"""The loop's report: what failed and why, what was planned, and what it brought, with pictures."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from gaploop.core.journal_format import read_journal
from gaploop.core.take import Take
from gaploop.core.types import Image
from gaploop.core.vocabulary import DIMENSIONS, GapDimension, dimension
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.report import Section, page, save_figure
from gaploop.finetune.closed_loop import LoopResult
from gaploop.finetune.demo import DemoResult
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.sweep import ABSTAINED, DrawResult, accuracy, confusion

matplotlib.use("Agg")

BASE_COLOUR: Final = "#8a8f98"
ADAPTED_COLOUR: Final = "#1f6feb"
SHOWN_FAILURES: Final = 3
"""Failed takes shown in pictures, per cell."""
SHOWN_INSTANTS: Final = (0.0, 0.35, 0.7, 1.0)
"""Which pictures of a take are shown, as fractions of its length."""


def write_report(result: DemoResult, folder: Path, minutes: float) -> Path:
    """Write `report.html` and its figures to `folder`; return the page's path."""
    sections = [_summary(result, folder, minutes)]
    for name, loop in zip("AB", result.loops, strict=False):
        sections.append(_cell(name, loop, folder))
    if result.sweep:
        sections.append(_attribution(result.sweep, folder))
    sections += [_lineage(result), _limits(result)]
    path = folder / "report.html"
    path.write_text(page("gaploop: closing the gap, sim-to-sim", sections))
    return path


def rate_words(result: Evaluation) -> str:
    """Return a success rate with its interval, in words."""
    low, high = result.interval
    return f"{result.rate:.0%} [{low:.0%}, {high:.0%}]"


def diagnosed_words(loop: LoopResult) -> str:
    """Return what the failures were attributed to, most frequent first."""
    top: Mapping[str, int] = loop.diagnosis.summary.get("top", {})
    words = [f"{n}× {d}" for d, n in sorted(top.items(), key=lambda item: -item[1])]
    if loop.diagnosis.summary.get("abstained"):
        words.append(f"{loop.diagnosis.summary['abstained']}× not named")
    return ", ".join(words) or "no failures"


def plan_words(loop: LoopResult) -> str:
    """Return what the plan says to do."""
    return (
        "; ".join(
            f"collect {item.takes} takes" if item.takes else f"don't collect: {item.remedy}"
            for item in loop.plan.items
        )
        or "nothing to do"
    )


def injected_words(loop: LoopResult) -> str:
    """Return what was injected: known from the draw, never from the takes."""
    from gaploop.sim.gaps import draw_gaps

    drawn = draw_gaps(loop.target.gaps, loop.target.gap_seed)
    return ", ".join(f"{g.dimension} ({g.mechanism}, severity {g.severity:g})" for g in drawn)


def success_figure(result: DemoResult) -> Figure:
    """Draw success with 95 % intervals: nominal and target cells, base and adapted."""
    bars: list[tuple[str, Evaluation, str]] = [("nominal cell", result.nominal, BASE_COLOUR)]
    for name, loop in zip("AB", result.loops, strict=False):
        bars.append((f"cell {name}", loop.before, BASE_COLOUR))
        if loop.after and loop.nominal_after:
            bars.append((f"cell {name}", loop.after, ADAPTED_COLOUR))
            bars.insert(1, ("nominal cell", loop.nominal_after, ADAPTED_COLOUR))
    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for x, (_, rate, colour) in enumerate(bars):
        low, high = rate.interval
        error = [[100 * (rate.rate - low)], [100 * (high - rate.rate)]]
        axes.bar(x, 100 * rate.rate, color=colour, width=0.62)
        axes.errorbar(x, 100 * rate.rate, yerr=error, color="#24292f", capsize=4, lw=1.2)
        axes.text(x, 100 * high + 3, f"{rate.rate:.0%}", ha="center", fontsize=10)
    axes.set_xticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set(ylim=(0, 118), ylabel="success [%]", yticks=range(0, 101, 25))
    axes.spines[["top", "right"]].set_visible(False)
    for label, colour in (("base", BASE_COLOUR), ("adapted with LoRA", ADAPTED_COLOUR)):
        axes.bar(0, 0, color=colour, label=label)
    axes.legend(frameon=False, ncols=2, loc="upper right")
    return figure


def confusion_figure(results: Sequence[DrawResult]) -> Figure:
    """Draw injected against diagnosed dimension, counted in takes."""
    rows = confusion(results)
    columns = [*(d.value for d in GapDimension), ABSTAINED]
    counts = np.array([[rows[r][c] for c in columns] for r in rows])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[i, j] > 0.55 else "#24292f"
            axes.text(j, i, str(count), ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), [_words(c) for c in columns], rotation=35, ha="right")
    axes.set_yticks(range(len(rows)), [_words(r) for r in rows])
    axes.set(xlabel="diagnosed", ylabel="injected")
    axes.spines[:].set_visible(False)
    return figure


def frames_figure(take: Take, title: str) -> Figure | None:
    """Draw a few pictures of a take in order, or None where it has no camera."""
    for camera, pictures in take.cameras.items():
        images = list(pictures())
        if images:
            return _strip(images, take, camera, title)
    return None


def _strip(images: Sequence[Image], take: Take, camera: str, title: str) -> Figure:
    figure = Figure(figsize=(8.5, 2.5), layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    for axes, at in zip(figure.subplots(1, len(SHOWN_INSTANTS)), SHOWN_INSTANTS, strict=True):
        index = round(at * (len(images) - 1))
        axes.imshow(images[index])
        axes.set_title(f"{index / take.info.fps:.1f} s", fontsize=9)
        axes.set_axis_off()
    figure.supxlabel(f"camera {camera}", fontsize=8, color="#57606a")
    return figure


def _summary(result: DemoResult, folder: Path, minutes: float) -> Section:
    figure = save_figure(success_figure(result), folder / "success.png")
    rows = [
        [
            f"<b>{name}</b>",
            html.escape(injected_words(loop)),
            html.escape(diagnosed_words(loop)),
            html.escape(plan_words(loop)),
            rate_words(loop.before),
            rate_words(loop.after) if loop.after else "—",
            loop.verdict.verdict.value if loop.verdict else "nothing was collected",
        ]
        for name, loop in zip("AB", result.loops, strict=False)
    ]
    head = ["cell", "injected", "diagnosed", "plan", "success before", "after", "verdict"]
    says = [loop.verdict.says for loop in result.loops if loop.verdict]
    answer = "The adapted policy is better." if result.better else "Not shown to be better."
    text = "".join(f"<p>{html.escape(s)}</p>" for s in says)
    return Section(
        answer,
        f"<p>Sim-to-sim: a simulated cell stands in for the real one, with gaps drawn from seed "
        f"{result.seed}. {minutes:.1f} minutes on this machine. Intervals are 95 % (Wilson).</p>"
        f"{text}{figure}{html_table(head, rows)}",
    )


def _cell(name: str, loop: LoopResult, folder: Path) -> Section:
    parts = [f"<p>{html.escape(_counts_words(loop))}</p>"]
    takes = {t.info.uid: t for t in read_journal(loop.folder / "rollouts_journal")}
    for n, diagnosed in enumerate(_shown(loop.diagnosis.takes)):
        figure = frames_figure(takes[diagnosed.uid], _title(diagnosed))
        if figure is not None:
            parts.append(save_figure(figure, folder / f"cell_{name.lower()}_failure_{n + 1}.png"))
        says = "".join(f"<li>{html.escape(e.says)}</li>" for e in diagnosed.evidence[:4])
        parts.append(f"<ul>{says}</ul>")
    parts.append("<h3>Plan</h3>")
    parts += [_item(item.dimension, item.takes, item.remedy, item.why) for item in loop.plan.items]
    if not loop.plan.items:
        parts.append("<p>No dimension has enough evidence: nothing to do yet.</p>")
    return Section(f"Cell {name}: why the policy fails", "".join(parts))


def _counts_words(loop: LoopResult) -> str:
    summary = loop.diagnosis.summary
    modes = ", ".join(f"{n}× {_words(m)}" for m, n in summary.get("modes", {}).items())
    return (
        f"{summary['diagnosed']} of {summary['takes']} recorded rollouts failed: "
        f"{modes or 'none'}. Diagnosed: {diagnosed_words(loop)}."
    )


def _item(what: GapDimension, takes: int, remedy: str, why: str) -> str:
    doc = DIMENSIONS[what]
    advice = f"Collect {takes} takes." if takes else f"Don't collect: {remedy}. {doc.remedy}"
    return (
        f"<p><b>{_words(what.value)}</b>: {html.escape(advice)} {html.escape(why)}</p>"
        f"<p class='note'>{html.escape(doc.definition)}</p>"
    )


def _shown(takes: Sequence[TakeDiagnosis]) -> list[TakeDiagnosis]:
    """Return the clearest diagnoses, one per mode first."""
    ranked = sorted(takes, key=lambda t: -max(t.dimensions.values()))
    first = {t.mode: t for t in reversed(ranked)}
    rest = [t for t in ranked if t not in first.values()]
    return [*sorted(first.values(), key=ranked.index), *rest][:SHOWN_FAILURES]


def _title(take: TakeDiagnosis) -> str:
    when = f" in {take.phase}" if take.phase else ""
    why = f"{_words(take.top)}, {take.dimensions[take.top]:.0%}" if take.top else "cause not named"
    return f"Take {take.uid[-8:]}: {_words(take.mode)}{when}; {why}"


def _attribution(results: Sequence[DrawResult], folder: Path) -> Section:
    right, named, every = accuracy(confusion(results))
    figure = save_figure(confusion_figure(results), folder / "confusion.png")
    return Section(
        "Injected against diagnosed, all nine dimensions",
        f"<p>For each dimension a fresh cell was drawn (mechanism, direction and severity), the "
        f"base policy rolled out, and what failed was diagnosed: {every} failed takes, {named} "
        f"named, {right} of those rightly. Sim-to-sim, by rules; counts of takes.</p>{figure}",
    )


def _lineage(result: DemoResult) -> Section:
    rows = []
    for name, loop in zip("AB", result.loops, strict=False):
        failed = ", ".join(t.uid[-8:] for t in loop.diagnosis.takes[:6])
        more = "…" if len(loop.diagnosis.takes) > 6 else ""
        rows.append([f"{name}: failed takes", f"{failed}{more}"])
        rows += [[f"{name}: {stage}", html.escape(str(i))] for stage, i in loop.lineage.items()]
    text = "<p>Each stage names the one before by id; the files are beside this page.</p>"
    return Section("Lineage", text + html_table(["stage", "id"], rows))


def _limits(result: DemoResult) -> Section:
    return Section(
        "What this does not show",
        "<p>Nothing here was measured on a real robot. The cell, its gaps and the scripted "
        "demonstrator are simulated; the policy sees tracked poses and joints, not pixels. One "
        "training seed per adapter.</p>"
        f"<p>Repeat it: <code>gaploop demo --seed={result.seed} --output_dir=DIR</code></p>",
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
