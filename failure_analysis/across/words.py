"""What a set of takes says together, in lines that people read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gaploop.core.statistics import percent, points
from gaploop.failure_analysis.across.across import Across
from gaploop.failure_analysis.across.factors import Effect, FactorTable
from gaploop.failure_analysis.across.matched import Matched
from gaploop.failure_analysis.across.trends import Change
from gaploop.failure_analysis.across.unexplained import Group

SHOWN: Final = 12
"""Effects in a short list; all of them are in the JSON and in the figure."""


def plain(name: str) -> str:
    """Return a name of the vocabulary as people read it."""
    return name.replace("_", " ")


def effect_words(effect: Effect, reference: str) -> str:
    """Return one difference in words and numbers."""
    said = (
        f"{plain(effect.factor)} {effect.level}: {points(effect.difference)} beside {reference}, "
        f"{effect.verdict} ({effect.successes}/{effect.trials})"
    )
    return f"{said}; {effect.note}" if effect.note else said


def table_lines(table: FactorTable) -> Iterator[str]:
    """Yield what each condition does to success, the costliest first."""
    yield f"success {percent(table.rate)} ({table.successes}/{table.trials})"
    shown = [e for e in table.effects if e.verdict != "not shown"]
    shown += [e for e in table.effects if e.verdict == "not shown"][: max(0, SHOWN - len(shown))]
    for effect in sorted(shown, key=lambda e: e.difference.value):
        yield "  " + effect_words(effect, table.references[effect.factor][0])
    if len(table.effects) > len(shown):
        yield f"  … and {len(table.effects) - len(shown)} more, not shown to matter"
    for factor, why in table.aside.items():
        yield f"  {plain(factor)}: not judged, {why}"


def gap_words(domain: str, gap: Matched) -> str:
    """Return the matched gap of one domain in words and numbers."""
    there = "the real robot" if domain == "real" else "the cell with injected gaps (sim-to-sim)"
    how = f"{gap.pairs} matched scenes" if gap.pairs else f"{gap.strata} matched circumstances"
    said = (
        f"simulation {percent(gap.first)}, {there} {percent(gap.second)}: "
        f"gap {points(gap.difference)} over {how}"
    )
    left = sum(gap.unmatched)
    return f"{said}; {left} takes without a counterpart left out" if left else said


def change_words(change: Change) -> str:
    """Return in words whether success has changed over time."""
    when = datetime.fromtimestamp(change.at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    if not change.flagged:
        return f"no change over time shown (p {change.p:.2f})"
    return (
        f"success changed around {when} UTC, from {percent(change.before)} to "
        f"{percent(change.after)} (p {change.p:.3f}; one false alarm in 20 unchanged sets)"
    )


def group_words(group: Group) -> str:
    """Return what sets a group of unexplained failures apart."""
    modes = ", ".join(f"{plain(mode)} {n}×" for mode, n in group.modes.items())
    says = "; ".join(group.says) or "nothing in the signals sets them apart"
    return f"group {group.name}, {len(group.uids)} takes ({modes}): {says}"


def naming_command(group: Group, where: str) -> str:
    """Return the command by which a person names a group: none of the dimensions, and a note."""
    uids = ", ".join(group.uids)
    return (
        f"gaploop label {where} --uid='[{uids}]' --dimensions='{{}}' "
        '--note="what it is, in your words"'
    )


def across_lines(across: Across) -> Iterator[str]:
    """Yield what takes say together."""
    if across.table is None:
        yield "no take says how it ended: nothing to compare"
        return
    yield from table_lines(across.table)
    for domain, gap in across.gaps.items():
        yield gap_words(domain, gap)
    if across.change is not None:
        yield change_words(across.change)
    for version in across.versions[1:]:
        beside = version.since_before
        said = points(beside.difference) if beside else "nothing tried alike"
        mark = "changed" if version.flagged else "no change shown"
        yield f"policy {version.policy}: {said} beside the version before, {mark}"
    for group in across.groups:
        yield group_words(group)
