"""What many takes say together, as sections of a page: where it fails, gaps, trends, groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from markupsafe import Markup

from gaploop.core.messages import Image
from gaploop.core.statistics import percent, points
from gaploop.failure_analysis.cohort.cohort import (
    CohortStatistics,
    change_words,
    effect_words,
    gap_words,
    naming_command,
)
from gaploop.failure_analysis.cohort.compare import FALSE_ALARM
from gaploop.failure_analysis.cohort.factors import Effect, FactorTable
from gaploop.failure_analysis.cohort.unexplained import Group
from gaploop.failure_analysis.report.figures import effect_figure
from gaploop.failure_analysis.report.page import (
    BarRow,
    Section,
    bars,
    command,
    facts,
    figure_png,
    more,
    notice,
    page,
    section,
    table,
    take_card,
    text,
)
from gaploop.failure_analysis.station import words

SHOWN: Final = 16
"""Conditions on a page; the others are folded into a table."""
KIND: Final = {"costs": "bad", "helps": "good", "not shown": "quiet"}


def cohort_page(cohort: CohortStatistics, source: str) -> tuple[str, dict[str, bytes]]:
    """Return one page of what trials of `source` say together, and its pictures by file name."""
    blocks: list[Markup] = []
    if cohort.table is not None:
        success = cohort.table.rate
        span = f"success, 95 %: {success.low:.0%} to {success.high:.0%}"
        counted = (str(cohort.table.trials), cohort.counted)
        blocks.append(facts([(f"{success.value:.0%}", span), counted]))
    sections = [section("In short", headline(cohort), blocks), *cohort_sections(cohort)]
    footer = "Made by gaploop diagnose --factors."
    return page(f"What costs success: {source}", sections, footer=footer), cohort_pngs(cohort)


def cohort_pngs(cohort: CohortStatistics) -> dict[str, bytes]:
    """Return the figures of what takes say together, by file name."""
    if cohort.table is None or not cohort.table.effects:
        return {}
    rows = [
        (f"{words(e.factor)}: {e.level}", e.difference, e.verdict) for e in _shown(cohort.table)
    ]
    return {"factors.png": figure_png(effect_figure(rows))}


def headline(cohort: CohortStatistics) -> str:
    """Return in one sentence where success is lost."""
    if cohort.table is None:
        return "No take has an outcome, so nothing can be compared."
    if not cohort.table.effects:
        return "Every take was recorded under the same conditions, so none can be compared."
    worst = cohort.table.worst
    if worst is None:
        return "No condition is shown to cost success."
    reference = cohort.table.references[worst.factor][0]
    return (
        f"Costliest: {words(worst.factor)} {worst.level}, {points(worst.difference)} against "
        f"{reference}, all else alike."
    )


def cohort_sections(cohort: CohortStatistics) -> Iterator[Section]:
    """Yield the sections on conditions, on the gap to simulation and on time."""
    if cohort.table is not None and (cohort.table.effects or cohort.table.aside):
        yield where_section(cohort.table)
    if cohort.gaps:
        said = [text(_sentence(gap_words(domain, gap))) for domain, gap in cohort.gaps.items()]
        yield section("Gap to simulation", "The same circumstances in both.", said)
    if cohort.change is not None or len(cohort.versions) > 1:
        blocks: list[Markup] = []
        if cohort.change is not None:
            sentence = _sentence(change_words(cohort.change))
            kind = "good" if cohort.change.difference.value > 0 else "bad"
            blocks.append(notice(sentence, kind) if cohort.change.flagged else text(sentence))
        if len(cohort.versions) > 1:
            rows = [
                (
                    version.policy,
                    f"{percent(version.rate)} of {version.trials}",
                    points(version.since_before.difference) if version.since_before else "–",
                    "changed" if version.flagged else "",
                )
                for version in cohort.versions
            ]
            blocks.append(table(("policy", "success", "against the version before", ""), rows))
        yield section("Over time and policy versions", "", blocks)


def _sentence(said: str) -> str:
    return said[0].upper() + said[1:] + "."


def where_section(result: FactorTable) -> Section:
    """Return the section on what each condition costs."""
    lead = (
        "Difference in success, in percentage points with 95 % intervals, from what the same "
        "trials would have had at the usual level, all else as it was. Coloured: shown, at "
        f"{FALSE_ALARM:.0%} for all of them together."
    )
    shown, rows = _shown(result), list[BarRow]()
    for effect in shown:
        d = effect.difference
        at_reference = min(max(effect.rate.value - d.value, 0.0), 1.0)  # these trials, there
        sentence = (
            f"{points(d)} · {effect.rate.value:.0%} of {effect.trials} trials, not "
            f"{at_reference:.0%} as at {result.references[effect.factor][0]}"
        )
        name = f"{words(effect.factor)}: {effect.level}"
        rows.append(BarRow(name, d.value, d.low, d.high, sentence, KIND[effect.verdict]))
    blocks = []
    if rows:
        left, right = min(r.low for r in rows), max(r.high for r in rows)
        reach = min(max(0.1, -left, right) * 1.05, 1.0)
        blocks.append(bars(rows, (-reach, min(reach, max(0.1, right))), filled=False))
    rest = [e for e in result.effects if e not in shown]
    if rest:
        lines = (effect_words(e, result.references[e.factor][0]) for e in rest)
        blocks.append(more(f"{len(rest)} more", [text(line) for line in lines]))
    notes = list(dict.fromkeys(f"{words(e.factor)} {e.level}: {e.note}" for e in shown if e.note))
    notes += [f"{words(f)} not judged: {why}" for f, why in result.aside.items()]
    if notes:
        blocks.append(notice("; ".join(notes) + "."))
    how = (
        f"Intervals allow for differences between {result.clusters} clusters of trials (sessions)."
        if result.clusters
        else "Intervals take the trials as independent of each other."
    )
    return section("Where: what each condition costs", lead, [*blocks, text(how)])


def _shown(result: FactorTable) -> list[Effect]:
    ranked = sorted(result.effects, key=lambda e: (e.verdict == "not shown", e.p))[:SHOWN]
    return sorted(ranked, key=lambda e: (e.difference.value, e.factor, e.level))


def groups_section(
    groups: Sequence[Group], source: str, pictures: Mapping[str, Sequence[Image]]
) -> Section:
    """Return the section on failures that no signal explains, for a person to name.

    Takes are in the folder `source`, a few of their pictures by uid, RGB, in `pictures`.
    """
    cards = []
    for group in groups:
        tags = [f"{words(mode)} {n}×" for mode, n in group.modes.items()]
        lines = group.traits or ("nothing in the signals sets them apart from other failures",)
        title = f"Group {group.name}: {len(group.uids)} takes"
        seen = next((pictures[uid] for uid in group.uids if uid in pictures), ())
        cards.append(take_card(title, tags, lines, seen))
        cards.append(more("Name it", [command(naming_command(group, source))]))
    return section("Unexplained: groups to look at", "", cards)
