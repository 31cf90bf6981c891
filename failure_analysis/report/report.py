"""`report.html` of a diagnosis: what went wrong, when, why, and on what evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from gaploop.core.plan import Plan
from gaploop.core.types import Image
from gaploop.core.vocabulary import DIMENSIONS, GapDimension, Phase
from gaploop.failure_analysis.diagnosis import NO_MODE, Diagnosis, TakeDiagnosis
from gaploop.failure_analysis.report.figures import count_grid, share_bars, words
from gaploop.failure_analysis.report.page import (
    Section,
    facts,
    figure,
    figure_png,
    notice,
    page,
    save_figure,
    section,
    table,
    take_card,
    text,
)

__all__ = [
    "Section",
    "diagnosis_report",
    "dimension_section",
    "evidence_section",
    "facts",
    "figure",
    "figure_png",
    "mode_section",
    "notice",
    "page",
    "plan_section",
    "save_figure",
    "section",
    "table",
    "take_card",
    "text",
]

SIM_TO_SIM: Final = (
    "Sim-to-sim: these takes come from the embedded cell with injected gaps, a stand-in for a "
    "real robot. Nothing here is evidence about a real robot."
)
NOTHING_SEEN: Final = 0.99
"""Mean share of "none seen" above which there is nothing to draw."""
CARDS: Final = 12
"""Takes shown in full; a report of more lists the clearest."""


def diagnosis_report(
    diagnosis: Diagnosis, pictures: Mapping[str, Sequence[Image]] | None = None
) -> str:
    """Return the page.

    Args:
        diagnosis: what was found.
        pictures: take uid to a few of its pictures, RGB.
    """
    summary = diagnosis.summary
    subtitle = (
        f"{summary['diagnosed']} of {summary['takes']} takes diagnosed, "
        f"against {summary['reference']['name']}"
    )
    sections = [_overview(diagnosis)]
    if diagnosis.takes:
        sections += [
            dimension_section(diagnosis),
            mode_section(diagnosis),
            evidence_section(diagnosis, pictures or {}),
            _definitions(diagnosis),
        ]
    footer = f"Diagnosis {diagnosis.id} of {diagnosis.source or 'takes'}. Made by gaploop diagnose."
    return page("Diagnosis", sections, subtitle=subtitle, footer=footer)


def _overview(diagnosis: Diagnosis) -> Section:
    summary = diagnosis.summary
    top, modes = Counter(summary["top"]), Counter(summary["modes"])
    first = top.most_common(1)[0][0] if top else ""
    blocks = [
        facts([
            (str(summary["takes"]), "takes read"),
            (str(summary["outcomes"].get("success", 0)), "successful"),
            (str(summary["diagnosed"]), "diagnosed"),
            (str(summary["abstained"]), "abstained: no clear cause"),
            (words(modes.most_common(1)[0][0]) if modes else "none", "commonest mode"),
        ])
    ]  # fmt: skip
    if summary["sim_to_sim"]:
        blocks.append(notice(SIM_TO_SIM))
    unseen = summary.get("unseen", {})
    if unseen:
        said = "; ".join(f"{why} ({count} takes)" for why, count in unseen.items())
        blocks.append(notice(f"Could not be seen: {said}."))
    lead = (
        f"Most failures point to {words(first)}."
        if first
        else "No failure points clearly to one cause."
    )
    return section("In short", lead, blocks)


def dimension_section(diagnosis: Diagnosis, injected: str = "") -> Section:
    """Return the section on why takes failed: bars of the gap dimensions' mean shares.

    Args:
        diagnosis: what was found.
        injected: the dimension that was injected, for a demonstration; "" if unknown.
    """
    title = "Why: gap dimensions"
    if diagnosis.summary["none"] > NOTHING_SEEN:
        words_ = (
            "No channel of these takes tells why: gap dimensions show in joint commands and "
            "readings, in pictures and in the tracked scene."
        )
        return section(title, "", [notice(words_)])
    shares = {**diagnosis.summary["dimensions"], "none seen": diagnosis.summary["none"]}
    caption = (
        "Mean posterior over the diagnosed takes. 'none seen' is the share of failures that no "
        "signal explains."
    )
    bars = figure(figure_png(share_bars(shares, mark=injected)), caption, 720)
    return section(title, "What differs from where the policy works.", [bars])


def mode_section(diagnosis: Diagnosis) -> Section:
    """Return the section on what was seen, and when."""
    counts = Counter((t.mode, t.phase or "unknown") for t in diagnosis.takes)
    modes = sorted({mode for mode, _ in counts}, key=lambda m: -diagnosis.summary["modes"][m])
    phases = [p.value for p in Phase if any(phase == p for _, phase in counts)]
    if any(phase == "unknown" for _, phase in counts):
        phases.append("unknown")
    title = "What and when: failure modes by phase"
    if phases == ["unknown"]:
        rows = [(words(mode), diagnosis.summary["modes"][mode]) for mode in modes]
        return section("What: failure modes", "", [table(("mode", "takes"), rows, numbers=(1,))])
    grid = count_grid(modes, phases, counts, ("phase", "mode"))
    width = 190 + 105 * len(phases)
    return section(title, "", [figure(figure_png(grid), "Takes.", width)])


def evidence_section(
    diagnosis: Diagnosis, pictures: Mapping[str, Sequence[Image]], most: int = CARDS
) -> Section:
    """Return one card per take with its evidence and example frames, clearest first."""
    shown = _shown(diagnosis.takes, most)
    cards = [_card(take, pictures.get(take.uid, ())) for take in shown]
    left = len(diagnosis.takes) > most
    lead = f"{most} of {len(diagnosis.takes)} takes: of each kind, the clearest." if left else ""
    return section("Evidence, take by take", lead, cards)


def _shown(takes: Sequence[TakeDiagnosis], most: int) -> list[TakeDiagnosis]:
    """Return takes to show: kinds (mode and cause) in turn, the clearest of each first."""

    def clearness(take: TakeDiagnosis) -> tuple[bool, bool, float]:
        return take.mode == NO_MODE, take.abstained, -max(take.dimensions.values())

    seen = Counter[tuple[str, str]]()
    ranked = []
    for take in sorted(takes, key=clearness):
        kind = (take.mode, take.top)
        ranked.append((seen[kind], *clearness(take), take.uid, take))
        seen[kind] += 1
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])[:most]]


def _card(take: TakeDiagnosis, pictures: Sequence[Image]) -> Markup:
    name = f"episode {take.episode}" if take.episode is not None else take.uid[:13]
    title = words(take.mode) + (f" in {take.phase}" if take.phase else "") + f" · {name}"
    ranked = sorted(take.dimensions.items(), key=lambda pair: -pair[1])[:3]
    tags = [f"{words(d)} {share:.0%}" for d, share in ranked if share >= 0.05]
    if take.abstained:
        tags.insert(0, "cause not named")
    return take_card(title, tags, [e.says for e in take.evidence[:5]], pictures)


def plan_section(plan: Plan) -> Section:
    """Return the section on what to do: what to collect, and what to do instead."""
    rows = [
        (
            words(item.dimension.value),
            f"{item.share:.0%}",
            item.remedy,
            str(item.takes) if item.takes else "none",
            f"{item.why} {item.protocol}",
        )
        for item in plan.items
    ]
    lead = (
        f"Record {plan.takes} takes, about {plan.minutes:.0f} minutes."
        if plan.takes
        else "Don't collect: nothing that demonstrations would mend stands out."
    )
    head = ("dimension", "share", "remedy", "takes", "why and how")
    return section("Plan", lead, [table(head, rows, numbers=(1, 3))])


def _definitions(diagnosis: Diagnosis) -> Section:
    found = [d for d in GapDimension if diagnosis.summary["dimensions"][d.value] >= 0.10]
    rows = [
        (words(d.value), DIMENSIONS[d].definition, DIMENSIONS[d].evidence, DIMENSIONS[d].remedy)
        for d in found
    ]
    blocks = [table(("dimension", "definition", "evidence", "remedy"), rows)] if rows else [
        text("No dimension reaches a tenth of the failures.")
    ]  # fmt: skip
    return section("What the dimensions mean", "", blocks)
