"""How often the policy fails and for what reason, with the uncertainty of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis

CAUSES: Final = (*GapDimension, None)
"""Columns of shares: the nine dimensions, then "none of these"."""
PSEUDO_TAKES: Final = 1.0
"""Prior of the shares: one take, spread evenly over the causes (Perks 1947). Three failures of
one cause don't show that all have it."""
SHARED_ERRORS: Final = 0.5
"""Share of what the diagnosis is unsure of that goes wrong on all takes of a station together.
Assumed: with none of it ten takes at 60 % would make 60 % all but certain."""
LEANING: Final = 0.5
"""A failure leans to a cause that has more than this share."""


@dataclass(frozen=True)
class Failures:
    """What is known of a policy's failures.

    Attributes:
        takes: the failed takes, in an order of their own: nothing depends on the order given.
        failed: rollouts that failed.
        succeeded: rollouts that succeeded; 0 where none is known.
    """

    takes: tuple[TakeDiagnosis, ...]
    failed: int
    succeeded: int

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Failures:
        """Return the failures that a diagnosis is about."""
        outcomes: Mapping[str, int] = diagnosis.summary.get("outcomes", {})
        failed = max(int(outcomes.get(Outcome.FAILURE.value, 0)), len(diagnosis.takes))
        return cls(
            tuple(sorted(diagnosis.takes, key=lambda t: (posterior(t), t.uid))),
            failed,
            int(outcomes.get(Outcome.SUCCESS.value, 0)),
        )

    @property
    def named(self) -> tuple[TakeDiagnosis, ...]:
        """Failures whose cause was named."""
        return tuple(t for t in self.takes if not t.abstained)

    def leaning(self, dimension: GapDimension) -> int:
        """Return how many failures have this cause more likely than not, named or not."""
        return int((self.posteriors[:, CAUSES.index(dimension)] > LEANING).sum())

    @property
    def rate_known(self) -> bool:
        """Whether successes were among what was diagnosed, so that points of success are known."""
        return self.succeeded > 0

    @cached_property
    def posteriors(self) -> FloatArray:
        """Each failure's posterior, shape (failures, len(CAUSES)); rows sum to 1."""
        found = np.array([posterior(t) for t in self.takes]).reshape(-1, len(CAUSES))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    @cached_property
    def shares(self) -> FloatArray:
        """Expected share of the failures of each cause, shape (len(CAUSES),)."""
        counts = self.posteriors.sum(axis=0) + PSEUDO_TAKES / len(CAUSES)
        return np.asarray(counts / counts.sum())

    @property
    def rate(self) -> float:
        """Expected share of rollouts that fail; 1 where points are of the failures alone."""
        if not self.rate_known:
            return 1.0
        return (self.failed + 0.5) / (self.failed + self.succeeded + 1.0)

    def draw_rates(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return draws of the share of rollouts that fail (Jeffreys' prior), shape (draws,)."""
        if not self.rate_known:
            return np.ones(draws)
        return rng.beta(self.failed + 0.5, self.succeeded + 0.5, draws)

    def draw_shares(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return draws of the causes' shares, shape (draws, len(CAUSES)).

        A diagnosis that errs on one take of a station errs on the next for the same reason. So
        part of the weight goes to causes drawn for all failures with one random number. Which
        failures were seen at all is drawn too (a Dirichlet posterior).
        """
        shared = SHARED_ERRORS * self._drawn_together(rng.random(draws))
        counts = shared + (1.0 - SHARED_ERRORS) * self.posteriors.sum(axis=0)
        weights = rng.standard_gamma(counts + PSEUDO_TAKES / len(CAUSES))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def _drawn_together(self, u: FloatArray) -> FloatArray:
        """Return how many failures have each cause where each is at quantile u of its posterior."""
        edges = np.sort(np.cumsum(self.posteriors, axis=1), axis=0)  # each column sorted
        last = len(CAUSES) - 1
        upto = [len(edges) - np.searchsorted(edges[:, k], u, side="right") for k in range(last)]
        reached = np.stack([*upto, np.full(len(u), len(edges))], axis=1).astype(float)
        return np.asarray(np.diff(reached, axis=1, prepend=0.0))


def posterior(take: TakeDiagnosis) -> tuple[float, ...]:
    """Return a take's shares in the order of `CAUSES`; all on "none" where nothing was found."""
    found = [take.dimensions.get(d.value, 0.0) for d in GapDimension]
    rest = max(take.none, 0.0)
    return (*found, rest if sum(found) + rest > 0 else 1.0)


def mass_by_value(
    failures: Failures,
    conditions: Mapping[str, Mapping[str, Any]],
    dimension: GapDimension,
    name: str,
) -> list[tuple[Any, float]]:
    """Return how much of a dimension's failures fell under each value of a condition.

    Args:
        conditions: uid to what was set up; failures it doesn't know are left out.
        name: the condition.

    Returns:
        (value, share) in falling order of share; shares sum to 1 unless there are none.
    """
    column, values = CAUSES.index(dimension), {}
    mass: Counter[str] = Counter()
    for take, row in zip(failures.takes, failures.posteriors, strict=True):
        if name in conditions.get(take.uid, {}):
            value = conditions[take.uid][name]
            values[repr(value)] = value
            mass[repr(value)] += row[column]
    total = sum(mass.values())
    ranked = sorted(mass.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(values[key], m / total) for key, m in ranked] if total > 0 else []


def common_conditions(
    failures: Failures, conditions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the conditions that were the same in every failure."""
    known: Sequence[Mapping[str, Any]] = [
        conditions[t.uid] for t in failures.takes if t.uid in conditions
    ]
    if not known:
        return {}
    return {
        name: value
        for name, value in sorted(known[0].items())
        if all(name in other and other[name] == value for other in known)
    }
