"""What a set of takes says together, beside what each failure says by itself: what conditions cost
(`factors`), the domain among them, so also how far simulation is ahead, all else alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.statistics import Estimate, percent, points
from gaploop.failure_analysis.factors import (
    SCENES,
    Attempt,
    Effect,
    FactorTable,
    Trials,
    attempted,
    factor_table,
    trials_of,
    without,
)
from gaploop.failure_analysis.station import words

SCHEMA: Final = "gaploop.across.v1"
SHOWN: Final = 12
"""Effects in a short list; all of them are in the JSON and in the figure."""


@dataclass(frozen=True)
class CohortStatistics:
    """What a set of takes, in words `counted`, says together.

    `table` is None where no take says how it ended.
    """

    counted: str
    table: FactorTable | None

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
        return {"schema": SCHEMA, "counted": self.counted, **table}


def cohort_of_takes(attempts: Sequence[Attempt]) -> CohortStatistics:
    """Return what takes or episodes that were judged say together, in any order."""
    judged, counted = attempted(attempts)
    return cohort_of_trials(trials_of(judged), counted)


def cohort_of_trials(rows: Sequence[Trials], counted: str = "trials") -> CohortStatistics:
    """Return what trials, all with the same factors, say together."""
    conditions = without(rows, SCENES)  # what names a scene isn't what may cost success
    return CohortStatistics(counted, factor_table(conditions) if rows else None)


def _json(of: Effect | FactorTable, *names: str) -> dict[str, Any]:
    """Return what something calls by these names as JSON types, under the same names."""
    values = {name: getattr(of, name) for name in names}
    return {n: _estimate_json(v) if isinstance(v, Estimate) else v for n, v in values.items()}


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": round(estimate.value, 6),
        "interval": [round(estimate.low, 6), round(estimate.high, 6)],
    }


def effect_words(effect: Effect, reference: str) -> str:
    """Return one difference in words and numbers."""
    said = (
        f"{words(effect.factor)} {effect.level}: {points(effect.difference)} against {reference}, "
        f"{effect.verdict} ({effect.successes}/{effect.trials})"
    )
    return f"{said}; {effect.note}" if effect.note else said


def cohort_lines(cohort: CohortStatistics) -> Iterator[str]:
    """Yield what takes say together; of conditions, the costliest first."""
    if cohort.table is None:
        yield "no episode has an outcome: nothing to compare"
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
