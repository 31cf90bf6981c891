"""What a labeller is about to say about one take, and what each key makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.diagnosis import TakeDiagnosis, suggested_labels

WEIGHTS: Final = (1.0, 0.5, 0.25)
"""Weights that pressing a dimension's key again and again goes through, then none."""
STEP: Final = 0.1
"""By how much a weight is made heavier or lighter."""
SOURCE: Final = labels.SOURCES[-1]
"""Who reviews is an engineer: that word stands above the operator's."""


@dataclass(frozen=True)
class TakeStatement:
    """What is said about one take.

    Attributes:
        outcome: how it ended.
        failure_mode: what was seen, or "".
        phase: when, or "".
        dimensions: gap dimension to weight in (0, 1].
        note: in the labeller's own words.
    """

    outcome: str = Outcome.UNLABELLED.value
    failure_mode: str = ""
    phase: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def with_mode(self, mode: str) -> TakeStatement:
        """Return it with a failure mode, or without the one that it has already."""
        if mode == self.failure_mode:
            return replace(self, failure_mode="")
        return replace(self, outcome=Outcome.FAILURE.value, failure_mode=mode)

    def with_phase(self, phase: str) -> TakeStatement:
        """Return it with a phase, or without the one that it has already."""
        return replace(self, phase="" if phase == self.phase else phase)

    def with_outcome(self, outcome: str) -> TakeStatement:
        """Return it with an outcome; only a failure has a mode, a phase and causes."""
        if outcome == Outcome.FAILURE:
            return replace(self, outcome=outcome)
        return replace(self, outcome=outcome, failure_mode="", phase="", dimensions={})

    def with_dimension(self, name: str) -> TakeStatement:
        """Return it with the next lower of `WEIGHTS` for a dimension, without it after the last."""
        now = self.dimensions.get(name, 2.0)
        lower = [w for w in WEIGHTS if w < now]
        rest = {k: w for k, w in self.dimensions.items() if k != name}
        return replace(self, dimensions=rest | {name: lower[0]} if lower else rest)

    def heavier(self, name: str, by: float) -> TakeStatement:
        """Return it with more weight, or less, on a dimension that it names."""
        if name not in self.dimensions:
            return self
        weight = round(min(1.0, max(0.05, self.dimensions[name] + by)), 3)
        return replace(self, dimensions={**self.dimensions, name: weight})

    def values(self) -> dict[str, Any]:
        """Return label field to value."""
        return {
            "outcome": self.outcome,
            "failure_mode": self.failure_mode,
            "phase": self.phase,
            "dimensions": dict(self.dimensions),
        }


def of_values(said: Mapping[str, Any], note: str = "") -> TakeStatement:
    """Return what label fields say, where one is missing what it is while nobody says anything."""
    known = {n: said.get(n, labels.NOTHING_SAID[n]) for n in TakeStatement().values()}
    return TakeStatement(**known, note=note)


def suggested(before: TakeStatement, found: TakeDiagnosis | None) -> TakeStatement:
    """Return what a take's recorded labels and its diagnosis say together.

    Args:
        before: what is said without it; where that names a mode it is kept.
        found: the diagnosis, None where there is none.
    """
    said = {e.field: e.value for e in suggested_labels(found)} if found is not None else {}
    if not said or before.failure_mode or before.outcome in (Outcome.SUCCESS, Outcome.DISCARDED):
        return before
    failed = before if "failure_mode" not in said else before.with_mode(said["failure_mode"])
    return replace(
        failed,
        phase=said.get("phase", before.phase),
        dimensions=said.get("dimensions", before.dimensions),
    )


def events(
    uid: str, said: TakeStatement, author: str, own: Mapping[str, LabelEvent]
) -> tuple[LabelEvent, ...]:
    """Return one act that says it: what the author hasn't said in the same way already.

    The outcome and the mode are always said, so that two labellers can be compared on them; phase
    and dimensions where there is something to say or to take away.

    Args:
        uid: the take.
        said: what is said.
        author: who says so.
        own: what they said before, by field.
    """
    at = labels.now()
    wanted = {
        name: value
        for name, value in said.values().items()
        if name in ("outcome", "failure_mode") or value or name in own
    }
    new = (LabelEvent(uid, n, v, author, SOURCE, at, note=said.note) for n, v in wanted.items())
    return tuple(e for e in new if e.field not in own or not _same(e, own[e.field]))


def _same(event: LabelEvent, before: LabelEvent) -> bool:
    return replace(before, at=event.at) == event


def again(act: Sequence[LabelEvent]) -> tuple[LabelEvent, ...]:
    """Return an act that was taken back, said once more, now."""
    at = labels.now()
    return tuple(replace(event, at=at, retracts="") for event in act)
