"""What a set of takes says together, beside what each failure says by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import Domain
from gaploop.failure_analysis.across.factors import Effect, FactorTable, factor_table
from gaploop.failure_analysis.across.matched import Matched, matched
from gaploop.failure_analysis.across.trends import Change, Version, change, versions
from gaploop.failure_analysis.across.trials import (
    SCENES,
    Attempt,
    Trials,
    attempted,
    trials_of,
    without,
)
from gaploop.failure_analysis.across.unexplained import Group, Unexplained, group_unexplained
from gaploop.failure_analysis.reference import UsualValue

SCHEMA: Final = "gaploop.across.v1"
BESIDES: Final = ("domain", "station", "operator")
"""What differs between simulation and the real cell by its nature."""


@dataclass(frozen=True)
class Across:
    """What a set of takes says together.

    Attributes:
        counted: which takes, in words.
        table: success by condition; None where no take says how it ended.
        gaps: domain to simulation's success minus success there, like with like.
        change: where success changed most over time.
        versions: policy versions in order of first use.
        groups: failures that no signal explains, grouped.
    """

    counted: str
    table: FactorTable | None
    gaps: Mapping[str, Matched]
    change: Change | None
    versions: tuple[Version, ...]
    groups: tuple[Group, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, for `summary.across` of a diagnosis and for `factors.json`."""
        return {
            "schema": SCHEMA,
            "counted": self.counted,
            **(_table_json(self.table) if self.table else {"trials": 0, "effects": []}),
            "sim_gap": {domain: _matched_json(gap) for domain, gap in self.gaps.items()},
            "change": _change_json(self.change) if self.change else None,
            "versions": [_version_json(v) for v in self.versions],
            "unexplained": [
                {
                    "name": g.name,
                    "takes": len(g.uids),
                    "uids": list(g.uids),
                    "says": list(g.says),
                    "modes": dict(g.modes),
                }
                for g in self.groups
            ],
        }


def across_takes(
    attempts: Sequence[Attempt],
    unexplained: Sequence[Unexplained] = (),
    usual: Mapping[str, UsualValue] | None = None,
    references: Mapping[str, str] | None = None,
) -> Across:
    """Return what takes say together.

    Args:
        attempts: takes or episodes, in any order; those that were judged count.
        unexplained: failures without a clear cause.
        usual: signal to what is usual, for those.
        references: factor to the level that others are compared with, where not the usual one.
    """
    judged, counted = attempted(attempts)
    groups = group_unexplained(unexplained, usual or {})
    return across_trials(trials_of(judged), counted, references, groups)


def across_trials(
    rows: Sequence[Trials],
    counted: str = "trials",
    references: Mapping[str, str] | None = None,
    groups: tuple[Group, ...] = (),
) -> Across:
    """Return what trials say together.

    Args:
        rows: trials, all with the same factors.
        counted: which trials these are, in words.
        references: factor to the level that others are compared with, where not the usual one.
        groups: failures that no signal explains, grouped.

    Raises:
        UnusableInputError: a reference that isn't there.
    """
    conditions = without(rows, SCENES)  # what names a scene isn't what may cost success
    return Across(
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


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": round(estimate.value, 6),
        "interval": [round(estimate.low, 6), round(estimate.high, 6)],
    }


def _table_json(table: FactorTable) -> dict[str, Any]:
    return {
        "successes": table.successes,
        "trials": table.trials,
        "rate": _estimate_json(table.rate),
        "clusters": table.clusters,
        "references": {
            f: {"level": level, "rate": _estimate_json(rate)}
            for f, (level, rate) in table.references.items()
        },
        "effects": [_effect_json(e, table.references[e.factor][0]) for e in table.effects],
        "not_judged": dict(table.aside),
    }


def _effect_json(effect: Effect, reference: str) -> dict[str, Any]:
    return {
        "factor": effect.factor,
        "level": effect.level,
        "reference": reference,
        "successes": effect.successes,
        "trials": effect.trials,
        "rate": _estimate_json(effect.rate),
        "difference": _estimate_json(effect.difference),
        "odds_ratio": _estimate_json(effect.odds_ratio),
        "p": effect.p,
        "p_family": effect.p_family,
        "verdict": effect.verdict,
        "note": effect.note,
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


def _change_json(found: Change) -> dict[str, Any]:
    return {
        "flagged": found.flagged,
        "p": found.p,
        "at_ns": found.at_ns,
        "uid": found.uid,
        "before": _estimate_json(found.before),
        "after": _estimate_json(found.after),
        "difference": _estimate_json(found.difference),
        "shuffled": found.shuffled,
    }


def _version_json(version: Version) -> dict[str, Any]:
    beside = version.since_before
    return {
        "policy": version.policy,
        "successes": version.successes,
        "trials": version.trials,
        "rate": _estimate_json(version.rate),
        "since_before": _matched_json(beside) if beside else None,
        "flagged": version.flagged,
    }
