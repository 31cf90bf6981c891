"""What an operator is asked after a take: how it went; for a failure what was seen, and why.

Pure: an `Inquiry` and an answer give the next `Inquiry` and what has been said. Anything may be
passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from gaploop.core.vocabulary import FailureMode, GapDimension, Outcome

type Said = Mapping[str, Any]
"""Label field to value, as in `core.labels`."""


class Question(StrEnum):
    """What is asked."""

    OUTCOME = "outcome"
    MODE = "failure_mode"
    DIMENSION = "dimensions"
    REASON = "discard_reason"


ASKED: Final = MappingProxyType(
    {
        Question.OUTCOME: "How did it go?",
        Question.MODE: "What was seen?",
        Question.DIMENSION: "Why?",
        Question.REASON: "Why discard it?",
    }
)
REASONS: Final = (
    "operator error",
    "wrong set-up",
    "disturbed",
    "equipment",
    "bad demonstration",
    "other",
)
RERECORDED: Final = "re-recorded"
CHOICES: Final[Mapping[Question, tuple[str, ...]]] = MappingProxyType(
    {
        Question.OUTCOME: (Outcome.SUCCESS.value, Outcome.FAILURE.value, Outcome.DISCARDED.value),
        Question.MODE: tuple(mode.value for mode in FailureMode),
        Question.DIMENSION: tuple(dimension.value for dimension in GapDimension),
        Question.REASON: REASONS,
    }
)


@dataclass(frozen=True)
class Suggestion:
    """What the machine thinks; a person's word counts.

    Attributes:
        outcome: how it seems to have ended, or None.
        mode: a failure mode, or "".
        dimension: a gap dimension, or "".
    """

    outcome: Outcome | None = None
    mode: str = ""
    dimension: str = ""

    @classmethod
    def of(cls, labels: Mapping[str, object], outcome: Outcome | None = None) -> Suggestion:
        """Read what a `Suggest` returned; what isn't in the vocabulary is passed over."""
        mode, dimensions = labels.get("failure_mode"), labels.get("dimensions")
        known = CHOICES[Question.DIMENSION]
        shares = dimensions if isinstance(dimensions, Mapping) else {}
        shares = {d: s for d, s in shares.items() if d in known and isinstance(s, int | float)}
        return cls(
            outcome,
            str(mode) if mode in CHOICES[Question.MODE] else "",
            max(shares, key=lambda d: shares[d], default=""),
        )


@dataclass(frozen=True)
class Inquiry:
    """A take about which the operator is asked.

    Attributes:
        uid: the take.
        question: what is asked now.
        suggestion: what is marked unless the operator marks something else.
        marked: place of the answer that the operator has marked, or None.
        purpose: the take's dimensions where it doesn't fail.
    """

    uid: str
    question: Question = Question.OUTCOME
    suggestion: Suggestion = Suggestion()
    marked: int | None = None
    purpose: Mapping[str, float] = MappingProxyType({})

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers there are."""
        return CHOICES[self.question]

    @property
    def at(self) -> int | None:
        """Place of the answer that is marked, by the operator or the suggestion."""
        if self.marked is not None:
            return self.marked
        suggested = {
            Question.OUTCOME: self.suggestion.outcome.value if self.suggestion.outcome else "",
            Question.MODE: self.suggestion.mode,
            Question.DIMENSION: self.suggestion.dimension,
        }.get(self.question, "")
        return self.choices.index(suggested) if suggested in self.choices else None

    def mark(self, step: int) -> Inquiry:
        """Mark the answer `step` places further down, round and round."""
        here = self.at
        start = here if here is not None else (-1 if step > 0 else 0)
        return replace(self, marked=(start + step) % len(self.choices))

    def suggest(self, suggestion: Suggestion) -> Inquiry:
        """Take a suggestion in; the outcome that was proposed before stays unless it has one."""
        outcome = suggestion.outcome or self.suggestion.outcome
        return replace(self, suggestion=replace(suggestion, outcome=outcome))

    def answer(self, place: int) -> tuple[Inquiry | None, Said]:
        """Give the answer at `place`; return what is asked next, if anything, and what was said."""
        value = self.choices[place]
        if self.question is Question.OUTCOME:
            return self._outcome(Outcome(value))
        if self.question is Question.MODE:
            return self._ask(Question.DIMENSION), {Question.MODE.value: value}
        if self.question is Question.DIMENSION:
            return None, {Question.DIMENSION.value: {value: 1.0}}
        return None, {Question.REASON.value: value}

    def skip(self) -> tuple[Inquiry | None, Said]:
        """Pass over the question: the outcome stays as sealed, a mode and a dimension open."""
        if self.question is Question.MODE:
            return self._ask(Question.DIMENSION), {}
        return None, {}

    def _outcome(self, outcome: Outcome) -> tuple[Inquiry | None, Said]:
        if outcome is Outcome.FAILURE:
            # A failed take's dimensions are its cause: what it was recorded for isn't that.
            return self._ask(Question.MODE), _cleared(outcome, {})
        said = _cleared(outcome, self.purpose)
        return (self._ask(Question.REASON) if outcome is Outcome.DISCARDED else None), said

    def _ask(self, question: Question) -> Inquiry:
        return replace(self, question=question, marked=None)


def _cleared(outcome: Outcome, dimensions: Mapping[str, float]) -> dict[str, Any]:
    """Return what an outcome says, with what an earlier one said taken back."""
    return {
        "outcome": outcome.value,
        "failure_mode": "",
        "dimensions": dict(dimensions),
        "discard_reason": "",
    }


def discarded(reason: str, purpose: Mapping[str, float]) -> Said:
    """Return what is said of a take that is thrown away for a known reason."""
    return {**_cleared(Outcome.DISCARDED, purpose), "discard_reason": reason}
