"""The gate's page: the verdict, the evidence as it grew, what it was based on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gaploop.core.files import write_atomically
from gaploop.failure_analysis.report.page import (
    ACCENT,
    INK,
    Section,
    facts,
    figure,
    figure_png,
    new_figure,
    notice,
    page,
    section,
    table,
    text,
)
from gaploop.finetune.gate.judge import Answer, StageAnswer, StageResult
from gaploop.finetune.gate.run import GateResult

REPORT: Final = "report.html"
EVIDENCE: Final = "evidence.png"
AGAINST: Final = "#b3402e"
KINDS: Final = {Answer.PROMOTE: "good", Answer.REJECT: "bad", Answer.INCONCLUSIVE: ""}
TITLES: Final = {
    "sim": "Regression in simulation",
    "hardware": "Comparison on the station",
    "canary": "Canary",
    "full": "Whole fleet",
}


def write_report(result: GateResult, folder: Path, names: tuple[str, str]) -> Path:
    """Write `report.html` and its pictures.

    Args:
        names: baseline and candidate, as people know them.
    """
    rows = [(TITLES[s.stage], s.answer.value, s.pairs, s.message) for s in result.stages] + [
        (TITLES[name], "not run", "", why) for name, why in result.not_run.items()
    ]
    pairs: list[tuple[str, str]] = [(result.verdict.value, f"{names[1]} against {names[0]}")]
    hardware = result.stage("hardware")
    if hardware is not None and hardware.difference is not None:
        value, low, high = hardware.difference
        pairs.append((f"{value:+.1%}", f"difference, {low:+.1%} to {high:+.1%}"))
        pairs.append((str(2 * hardware.pairs), "attempts in the comparison"))
    blocks = [
        notice(result.message, KINDS[result.verdict]),
        facts(pairs),
        table(("stage", "answer", "pairs or episodes", "why"), rows, numbers=(2,)),
        text(f"Evidence: {result.evidence}."),
    ]
    lead = "Stages run in this order; a failed stage stops the later ones."
    sections = [section("Answer", lead, blocks)]
    for stage in result.stages:
        if stage.tracks:
            picture = figure_png(evidence_figure(stage))
            if stage.stage == "hardware":
                (folder / EVIDENCE).write_bytes(picture)
            sections.append(_stage(stage, picture))
    canary = result.canary
    if canary is not None:
        lead = f"{canary.phase.value.replace('_', ' ').capitalize()}: {canary.message}."
        sections.append(section("Canary and whole fleet", lead))
    design = result.design
    lead = (
        f"Planned before the first attempt: better by more than {design.margin:.1%}, at most "
        f"{design.max_pairs} pairs. A test of fixed size needs {design.fixed_pairs}."
    )
    told = "Simulated with independent attempts at the success that the suite expects."
    head = ("true difference", "promoted", "pairs on average")
    expected = [
        (f"{p.difference:+.0%}", f"{p.promoted:.0%}", f"{p.pairs:.0f}") for p in design.curve
    ]
    drawn = table(head, expected, numbers=(0, 1, 2))
    sections.append(section("What to expect", lead, [drawn, text(told)]))
    blocks = [
        text(
            "Wilson intervals describe success rates; they don't allow for having looked along "
            "the way. The interval of the difference does."
        ),
        text(
            "The margin rests on retrain_sd, how much trainings on the same data differ. One "
            "candidate is one training: no number of attempts shows what another would do."
        ),
    ]
    if open_words := [s.stage for s in result.stages if s.answer is StageAnswer.OPEN]:
        blocks.append(text(f"Not over yet: {', '.join(open_words)}."))
    sections.append(section("What this does not show", "", blocks))
    path = folder / REPORT
    write_atomically(path, page("Gate", sections, subtitle=f"{names[1]} against {names[0]}"))
    return path


def evidence_figure(stage: StageResult) -> Any:
    """Draw the evidence over the pairs of attempts, with what it has to reach.

    The evidence is drawn as a share of its boundary, so that statements with several can share
    an axis: at 1 a statement counts as shown.
    """
    # The two main statements first, then the four that came nearest to being shown.
    rest = sorted(stage.tracks[2:], key=lambda t: -max(t.log10, default=0.0) / t.boundary)
    tracks = [*stage.tracks[:2], *rest[:4]]
    rounds = max((len(track.log10) for track in tracks), default=1)
    per_round = stage.pairs / max(rounds, 1)
    with new_figure(7.6, 3.6) as (drawn, axes):
        axes.axhline(1.0, color=INK, lw=1, ls=(0, (4, 3)))
        axes.text(0, 1.03, "shown", color=INK, fontsize=9, va="bottom")
        for n, track in enumerate(tracks):
            x = [per_round * (k + 1) for k in range(len(track.log10))]
            shares = [max(e / track.boundary, -1.5) for e in track.log10]
            colour = ACCENT if track.promotes else AGAINST
            axes.plot(x, shares, color=colour, lw=2.2 if n < 2 else 1, alpha=1 if n < 2 else 0.55)
        # Labels stand at the ends of their lines, moved apart.
        ends = [min(max(t.log10[-1] / t.boundary, -1.5), 1.5) for t in tracks]
        lowest = -1.6
        for y, n in sorted((y, n) for n, y in enumerate(ends)):
            lowest, track = max(y, lowest + 0.22), tracks[n]
            axes.annotate(
                track.message, (stage.pairs, lowest), (6, 0), textcoords="offset points",
                color=ACCENT if track.promotes else AGAINST, fontsize=9, va="center",
                annotation_clip=False,
            )  # fmt: skip
        axes.set_ylim(-1.6, 1.6)
        axes.set_xlim(0, max(stage.pairs, 1))
        axes.set_xlabel("pairs of attempts")
        axes.set_ylabel("evidence, of what is needed")
    return drawn


def _stage(stage: StageResult, picture: bytes) -> Section:
    rows = [(name, str(rate)) for name, rate in stage.rates.items()]
    lead = f"{stage.answer.value.capitalize()} after {stage.pairs} pairs: {stage.message}."
    caption = (
        "Evidence over the pairs. Blue speaks for the candidate, red against it. Where a "
        "line reaches the dashed one, its statement is shown at the stated error rate, however "
        "often one looks."
    )
    blocks = [figure(picture, caption, 860), table(("success", "rate, 95 % Wilson interval"), rows)]
    head = ("statement", "for", "shown after round", "evidence, powers of ten", "needed")
    shown = [
        (
            track.message,
            "promotion" if track.promotes else "no answer" if track.ends_only else "rejection",
            track.crossed or "—",
            f"{max(track.log10, default=0.0):.2f}",
            f"{track.boundary:.2f}",
        )
        for track in stage.tracks
    ]
    blocks.append(table(head, shown, numbers=(2, 3, 4)))
    for what, counts in (
        ("Tries that the operator said didn't count", stage.repeats),
        ("Answers that the operator took back and gave anew", stage.taken_back),
    ):
        if any(counts.values()):
            told = ", ".join(f"{side} {count}" for side, count in counts.items())
            blocks.append(text(f"{what}: {told}."))
    return section(TITLES[stage.stage], lead, blocks)
