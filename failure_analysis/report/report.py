"""`report.html` of a diagnosis, which a manager reads in a minute and an engineer goes on reading.

Where it fails, why, how sure that is, what to collect and what it costs; then take by take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gaploop.core.plan import Plan
from gaploop.core.statistics import percent
from gaploop.core.types import Image
from gaploop.core.vocabulary import DIMENSIONS, GapDimension, Phase
from gaploop.failure_analysis.across.across import Across
from gaploop.failure_analysis.diagnosis import NO_MODE, Diagnosis, TakeDiagnosis
from gaploop.failure_analysis.report.across_page import (
    across_pngs,
    across_sections,
    groups_section,
    headline,
    share_estimate,
)
from gaploop.failure_analysis.report.figures import count_grid, share_bars, words
from gaploop.failure_analysis.report.page import (
    BarRow,
    Section,
    answers,
    bars,
    figure_png,
    heat,
    notice,
    page,
    section,
    table,
    take_card,
    text,
)
from gaploop.failure_analysis.report.plan_part import plan_answer, plan_section

__all__ = ["SIM_TO_SIM", "diagnosis_report", "evidence_section", "plan_section", "report_pngs"]

SIM_TO_SIM: Final = (
    "Sim-to-sim: these takes come from the embedded cell with injected gaps, a stand-in for a "
    "real robot. Nothing here is evidence about a real robot."
)
NONE_SEEN: Final = "none seen"
NOTHING_SEEN: Final = 0.99
"""Mean share of "none seen" above which there is nothing to draw."""
LEAST_SHARE: Final = 0.10
"""Of the failures: a dimension below it is drawn and not talked about."""
CARDS: Final = 12
"""Takes shown in full; a report of more shows the clearest of each kind."""


def diagnosis_report(
    diagnosis: Diagnosis,
    pictures: Mapping[str, Sequence[Image]] | None = None,
    across: Across | None = None,
    plan: Plan | None = None,
) -> str:
    """Return the page.

    Args:
        diagnosis: what was found.
        pictures: take uid to a few of its pictures, RGB.
        across: what the takes say together.
        plan: what to do about it.
    """
    summary = diagnosis.summary
    subtitle = (
        f"{summary['diagnosed']} of {summary['takes']} takes diagnosed, "
        f"against {summary['reference']['name']}"
    )
    sections = [_minute(diagnosis, across, plan)]
    if across is not None:
        sections += across_sections(across)
    if diagnosis.takes:
        sections += [mode_section(diagnosis), dimension_section(diagnosis)]
        sections.append(_surety(diagnosis))
    if plan is not None and diagnosis.takes:
        sections.append(plan_section(plan))
    if across is not None and across.groups:
        sections.append(groups_section(across.groups, diagnosis.source, pictures or {}))
    if diagnosis.takes:
        sections += [evidence_section(diagnosis, pictures or {}), _definitions(diagnosis)]
    footer = f"Diagnosis {diagnosis.id} of {diagnosis.source or 'takes'}. Made by gaploop diagnose."
    return page("Diagnosis", sections, subtitle=subtitle, footer=footer)


def report_pngs(diagnosis: Diagnosis, across: Across | None = None) -> dict[str, bytes]:
    """Return the report's figures as PNG for slides, by file name."""
    found = across_pngs(across) if across is not None else {}
    if not diagnosis.takes:
        return found
    rows, columns, counts = _modes(diagnosis)
    found["modes.png"] = figure_png(count_grid(rows, columns, counts, ("phase", "mode")))
    shares = _shares(diagnosis)
    spans = {name: share_estimate(share, len(diagnosis.takes)) for name, share in shares.items()}
    found["dimensions.png"] = figure_png(share_bars(shares, intervals=spans))
    return found


def _minute(diagnosis: Diagnosis, across: Across | None, plan: Plan | None) -> Section:
    summary = diagnosis.summary
    said: list[tuple[str, str]] = []
    if across is not None and across.table is not None:
        rate = across.table.rate
        said.append(("Success", f"{percent(rate)} of {across.table.trials} {across.counted}."))
        said.append(("Where", headline(across)))
    if diagnosis.takes:
        said += [
            ("What", _what(diagnosis)),
            ("Why", _why(diagnosis)),
            ("How sure", _sure(diagnosis)),
        ]
        if plan is not None:
            said += plan_answer(plan)
    else:
        said.append(("Why", "No failure to explain."))
    blocks = [answers(said)]
    if summary["sim_to_sim"]:
        blocks.insert(0, notice(SIM_TO_SIM))
    return section("In a minute", "", blocks)


def _what(diagnosis: Diagnosis) -> str:
    kinds = Counter((t.mode, t.phase) for t in diagnosis.takes)
    said = [
        f"{words(mode)}{f' in {phase}' if phase else ''} {n}×"
        for (mode, phase), n in kinds.most_common(3)
    ]
    return ", ".join(said) + (" and others." if len(kinds) > 3 else ".")


def _why(diagnosis: Diagnosis) -> str:
    if not diagnosis.summary["top"]:
        return "No failure points clearly to one cause."
    shares: Mapping[str, float] = diagnosis.summary["dimensions"]
    ranked = sorted((n for n in shares if shares[n] >= LEAST_SHARE), key=lambda n: -shares[n])
    takes, none = len(diagnosis.takes), float(diagnosis.summary["none"])
    said = [f"{words(n)} {percent(share_estimate(shares[n], takes))}" for n in ranked]
    if none >= LEAST_SHARE:
        said.append(f"unexplained {percent(share_estimate(none, takes))}")
    if not said:
        return "No single cause explains a tenth of the failures."
    text_ = ", ".join(said)
    return f"{text_[0].upper()}{text_[1:]} of the failures."


def _sure(diagnosis: Diagnosis) -> str:
    n, left = len(diagnosis.takes), diagnosis.summary["abstained"]
    few = f" {n} failures are few: read the intervals." if n < 20 else ""
    if not left:
        return f"Each of the {n} failures has a clear cause.{few}"
    return f"{left} of {n} failures have no clear cause, and none is guessed.{few}"


def _surety(diagnosis: Diagnosis) -> Section:
    summary = diagnosis.summary
    counts = summary["reference"]["takes"]
    usual = f"What is usual: {summary['reference']['name']}" + (
        f" ({counts} takes)." if counts else "."
    )
    by = summary.get("attributed_by", {})
    rows = [text(usual)]
    if by:
        rows.append(
            text("Causes judged by " + ", ".join(f"{k} ({n})" for k, n in by.items()) + ".")
        )
    unseen = summary.get("unseen", {})
    if unseen:
        said = "; ".join(f"{why} ({count} takes)" for why, count in unseen.items())
        rows.append(notice(f"Could not be seen: {said}."))
    return section("How sure", _sure(diagnosis), rows)


def _shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {**diagnosis.summary["dimensions"], NONE_SEEN: diagnosis.summary["none"]}


def dimension_section(diagnosis: Diagnosis) -> Section:
    """Return the section on why takes failed: the gap dimensions' shares of the failures."""
    title = "Why: what differs from where the policy works"
    if diagnosis.summary["none"] > NOTHING_SEEN:
        words_ = (
            "No channel of these takes tells why: gap dimensions show in joint commands and "
            "readings, in pictures and in the tracked scene."
        )
        return section(title, "", [notice(words_)])
    shares = _shares(diagnosis)
    spans = {name: share_estimate(share, len(diagnosis.takes)) for name, share in shares.items()}
    order = sorted(shares, key=lambda name: -shares[name])
    top = max(shares, key=lambda name: shares[name])
    rows = [
        BarRow(words(n), spans[n].value, spans[n].low, spans[n].high, percent(spans[n]),
            "quiet" if n == NONE_SEEN else "" if n == top or shares[n] >= LEAST_SHARE else "quiet")
        for n in order
    ]  # fmt: skip
    lead = (
        "Share of the failures with 95 % intervals, which allow for how many there are and for "
        "what is unsure about each. 'None seen': no signal explains them."
    )
    reach = max(0.2, *(s.high for s in spans.values()))
    return section(title, lead, [bars(rows, (0.0, min(1.0, 1.05 * reach)))])


def _modes(diagnosis: Diagnosis) -> tuple[list[str], list[str], Counter[tuple[str, str]]]:
    counts = Counter((t.mode, t.phase or "unknown") for t in diagnosis.takes)
    modes = Counter(t.mode for t in diagnosis.takes)
    phases = [p.value for p in Phase if any(phase == p for _, phase in counts)]
    if any(phase == "unknown" for _, phase in counts):
        phases.append("unknown")
    return [mode for mode, _ in modes.most_common()], phases, counts


def mode_section(diagnosis: Diagnosis) -> Section:
    """Return the section on what was seen, and when."""
    rows, columns, counts = _modes(diagnosis)
    if columns == ["unknown"]:
        found = [(words(mode), counts[mode, "unknown"]) for mode in rows]
        return section("What: failure modes", "", [table(("mode", "takes"), found, numbers=(1,))])
    title = "What and when: failure modes by phase"
    return section(title, "Failed takes.", [heat(rows, columns, counts)])


def evidence_section(
    diagnosis: Diagnosis, pictures: Mapping[str, Sequence[Image]], most: int = CARDS
) -> Section:
    """Return one card per take with its evidence and example frames, clearest first."""
    shown = shown_takes(diagnosis.takes, most)
    cards = [_card(take, pictures.get(take.uid, ())) for take in shown]
    left = len(diagnosis.takes) > most
    lead = f"{most} of {len(diagnosis.takes)} takes: of each kind, the clearest." if left else ""
    return section("Evidence, take by take", lead, cards)


def shown_takes(takes: Sequence[TakeDiagnosis], most: int = CARDS) -> list[TakeDiagnosis]:
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


def _definitions(diagnosis: Diagnosis) -> Section:
    found = [d for d in GapDimension if diagnosis.summary["dimensions"][d.value] >= LEAST_SHARE]
    rows: list[Sequence[Any]] = [
        (words(d.value), DIMENSIONS[d].definition, DIMENSIONS[d].evidence, DIMENSIONS[d].remedy)
        for d in found
    ]
    blocks = [table(("dimension", "definition", "evidence", "remedy"), rows)] if rows else [
        text("No dimension reaches a tenth of the failures.")
    ]  # fmt: skip
    return section("What the dimensions mean", "", blocks)
