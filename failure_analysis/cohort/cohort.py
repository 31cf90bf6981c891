"""What a set of takes says together, beside what each failure says by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gaploop.core.statistics import Estimate, percent, points
from gaploop.core.vocabulary import Domain
from gaploop.failure_analysis.cohort.compare import (
    Change,
    Matched,
    Version,
    change,
    matched,
    versions,
)
from gaploop.failure_analysis.cohort.factors import Effect, FactorTable, factor_table
from gaploop.failure_analysis.cohort.trials import (
    SCENES,
    Attempt,
    Trials,
    attempted,
    trials_of,
    without,
)
from gaploop.failure_analysis.cohort.unexplained import Group, Unexplained, group_unexplained
from gaploop.failure_analysis.reference import UsualValue
from gaploop.failure_analysis.station import words

SCHEMA: Final = "gaploop.across.v1"
SHOWN: Final = 12
"""Effects in a short list; all of them are in the JSON and in the figure."""
BESIDES: Final = ("domain", "station", "operator")
"""What differs between simulation and the real cell by its nature."""


@dataclass(frozen=True)
class CohortStatistics:
    """What a set of takes, in words `counted`, says together.

    `table` is None where no take says how it ended; `gaps` are simulation's success minus that in
    another domain, like with like; `versions` of the policy are in order of first use.
    """

    counted: str
    table: FactorTable | None
    gaps: Mapping[str, Matched]
    change: Change | None
    versions: tuple[Version, ...]
    groups: tuple[Group, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, for `summary.across` of a diagnosis and for `factors.json`."""
        table: dict[str, Any] = {"trials": 0, "effects": []}
        if self.table is not None:
            references = self.table.references
            effects = [
                {
                    **_json(effect, "factor", "level"),
                    "reference": references[effect.factor][0],
                    **_json(
                        effect, "successes", "trials", "rate", "difference", "odds_ratio", "p",
                        "p_family", "verdict", "note",
                    ),
                }
                for effect in self.table.effects
            ]  # fmt: skip
            table = {
                **_json(self.table, "successes", "trials", "rate", "clusters"),
                "references": {
                    f: {"level": level, "rate": _estimate_json(rate)}
                    for f, (level, rate) in references.items()
                },
                "effects": effects,
                "not_judged": dict(self.table.aside),
            }
        return {
            "schema": SCHEMA,
            "counted": self.counted,
            **table,
            "sim_gap": {domain: _matched_json(gap) for domain, gap in self.gaps.items()},
            "change": None if self.change is None else _json(
                self.change, "flagged", "p", "at_ns", "uid", "before", "after", "difference",
                "shuffled",
            ),
            "versions": [
                {
                    **_json(v, "policy", "successes", "trials", "rate"),
                    "since_before": _matched_json(v.since_before) if v.since_before else None,
                    "flagged": v.flagged,
                }
                for v in self.versions
            ],
            "unexplained": [
                {
                    "name": g.name,
                    "takes": len(g.uids),
                    "uids": list(g.uids),
                    "says": list(g.traits),
                    "modes": dict(g.modes),
                }
                for g in self.groups
            ],
        }  # fmt: skip


def cohort_of_takes(
    attempts: Sequence[Attempt],
    unexplained: Sequence[Unexplained] = (),
    usual: Mapping[str, UsualValue] | None = None,
) -> CohortStatistics:
    """Return what takes or episodes that were judged say together, in any order.

    `usual` is signal to what is usual, for failures that are `unexplained`.
    """
    judged, counted = attempted(attempts)
    groups = group_unexplained(unexplained, usual or {})
    return cohort_of_trials(trials_of(judged), counted, groups=groups)


def cohort_of_trials(
    rows: Sequence[Trials],
    counted: str = "trials",
    references: Mapping[str, str] | None = None,
    groups: tuple[Group, ...] = (),
) -> CohortStatistics:
    """Return what trials say together.

    Args:
        rows: trials, all with the same factors.
        references: factor to the level that others are compared with, where not the usual one.

    Raises:
        UnusableInputError: a reference that isn't there.
    """
    conditions = without(rows, SCENES)  # what names a scene isn't what may cost success
    return CohortStatistics(
        counted,
        factor_table(conditions, references) if rows else None,
        sim_gaps(rows),
        change(conditions),
        versions(rows),
        groups,
    )


def sim_gaps(rows: Sequence[Trials]) -> dict[str, Matched]:
    """Return simulation's success minus that of each other domain, over what both have tried."""
    by_domain: dict[str, list[Trials]] = {}
    for row in rows:
        by_domain.setdefault(row.levels.get("domain", ""), []).append(row)
    sim = by_domain.get(Domain.SIM.value, [])
    compared = {
        domain: matched(sim, by_domain[domain], besides=BESIDES)
        for domain in (Domain.REAL.value, Domain.SIM_TARGET.value)
        if sim and domain in by_domain
    }
    return {domain: found for domain, found in compared.items() if found is not None}


def _json(of: Effect | FactorTable | Change | Version, *names: str) -> dict[str, Any]:
    """Return what something calls by these names as JSON types, under the same names."""
    values = {name: getattr(of, name) for name in names}
    return {n: _estimate_json(v) if isinstance(v, Estimate) else v for n, v in values.items()}


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": round(estimate.value, 6),
        "interval": [round(estimate.low, 6), round(estimate.high, 6)],
    }


def _matched_json(found: Matched) -> dict[str, Any]:
    return {
        "difference": _estimate_json(found.difference),
        "rates": [_estimate_json(found.first), _estimate_json(found.second)],
        "trials": list(found.trials),
        "pairs": found.pairs,
        "strata": found.strata,
        "unmatched": list(found.unmatched),
    }


def effect_words(effect: Effect, reference: str) -> str:
    """Return one difference in words and numbers."""
    said = (
        f"{words(effect.factor)} {effect.level}: {points(effect.difference)} against {reference}, "
        f"{effect.verdict} ({effect.successes}/{effect.trials})"
    )
    return f"{said}; {effect.note}" if effect.note else said


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


def naming_command(group: Group, where: str) -> str:
    """Return the command by which a person names a group: none of the dimensions, and a note."""
    uids = ", ".join(group.uids)
    return (
        f"gaploop label {where} --episodes='[{uids}]' --dimensions='{{}}' "
        '--note="what it is, in your words"'
    )


def cohort_lines(cohort: CohortStatistics) -> Iterator[str]:
    """Yield what takes say together; of conditions, the costliest first."""
    if cohort.table is None:
        yield "no take has an outcome: nothing to compare"
        return
    table = cohort.table
    yield f"success {percent(table.rate)} ({table.successes}/{table.trials})"
    shown = [e for e in table.effects if e.verdict != "not shown"]
    shown += [e for e in table.effects if e.verdict == "not shown"][: max(0, SHOWN - len(shown))]
    for effect in sorted(shown, key=lambda e: e.difference.value):
        yield "  " + effect_words(effect, table.references[effect.factor][0])
    if len(table.effects) > len(shown):
        yield f"  … and {len(table.effects) - len(shown)} more, not shown to matter"
    for factor, why in table.aside.items():
        yield f"  {words(factor)}: not judged, {why}"
    for domain, gap in cohort.gaps.items():
        yield gap_words(domain, gap)
    if cohort.change is not None:
        yield change_words(cohort.change)
    for version in cohort.versions[1:]:
        beside = version.since_before
        said = points(beside.difference) if beside else "nothing comparable tried"
        mark = "changed" if version.flagged else "no change shown"
        yield f"policy {version.policy}: {said} against the version before, {mark}"
    for group in cohort.groups:
        modes = ", ".join(f"{words(mode)} {n}×" for mode, n in group.modes.items())
        traits = "; ".join(group.traits) or "nothing in the signals sets them apart"
        yield f"group {group.name}, {len(group.uids)} takes ({modes}): {traits}"
