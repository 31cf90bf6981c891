"""How often the policy fails, for what reason, and what takes against it are expected to bring.

Everything that is uncertain is drawn, the same draws for every part of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis
from gaploop.failure_analysis.planning.curves import Curve, fixed_share

CAUSES: Final = (*GapDimension, None)
"""Columns of shares: the nine dimensions, then "none of these"."""
PSEUDO_TAKES: Final = 1.0
"""Prior of the shares: one take, spread evenly over the causes (Perks 1947). Three failures of
one cause don't show that all have it."""
SHARED_ERRORS: Final = 0.5
"""Share of what the diagnosis is unsure of that goes wrong on all takes of a station together.
Assumed: with none of it ten takes at 60 % would make 60 % all but certain."""
DRAWS: Final = 4000
"""For intervals: their ends move by about a point between sets of as many draws."""


@dataclass(frozen=True)
class Failures:
    """What is known of a policy's failures, in an order of their own: that given doesn't matter.

    `measured` is the share of all rollouts that a dimension costs, where they were reproduced in
    the station's twin and it fails as the station does; `by_station` what all failures together
    name.
    """

    takes: tuple[TakeDiagnosis, ...]
    failed: int
    succeeded: int
    measured: Mapping[GapDimension, Estimate] = field(default_factory=dict)
    by_station: frozenset[GapDimension] = frozenset()

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Failures:
        """Return the failures that a diagnosis is about."""
        outcomes: Mapping[str, int] = diagnosis.summary.get("outcomes", {})
        failed = max(int(outcomes.get(Outcome.FAILURE.value, 0)), len(diagnosis.takes))
        reproduction = diagnosis.summary.get("reproduction", {})
        alike = reproduction.get("reproduces") and reproduction["failing"]["station"] is not None
        measured: dict[GapDimension, Estimate] = {}
        for row in reproduction["costs"] if alike else ():
            if row["cause"] in set(GapDimension):  # its mechanisms' errors add up
                value, low, high = row["points"]
                d = GapDimension(row["cause"])
                so_far = measured.get(d, Estimate(0.0, 0.0, 0.0))
                below = math.hypot(so_far.value - so_far.low, value - low)
                above = math.hypot(so_far.high - so_far.value, high - value)
                mean = so_far.value + value
                measured[d] = Estimate(mean, mean - below, mean + above)
        told = diagnosis.summary.get("station", {}).get("named", ())
        return cls(
            tuple(sorted(diagnosis.takes, key=lambda t: (posterior(t), t.uid))),
            failed,
            int(outcomes.get(Outcome.SUCCESS.value, 0)),
            measured,
            frozenset(d for d in GapDimension if d.value in told),
        )

    @property
    def named(self) -> tuple[TakeDiagnosis, ...]:
        """Failures whose cause was named."""
        return tuple(t for t in self.takes if not t.abstained)

    @property
    def causes(self) -> frozenset[GapDimension]:
        """What was named, by a take of its own or by all together."""
        own = [t.named or ([t.top] if t.top else []) for t in self.named]
        return self.by_station | {GapDimension(c) for causes in own for c in causes}

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

    def cost(self, dimension: GapDimension) -> float:
        """Return the expected share of all rollouts that fail for a dimension."""
        if dimension in self.measured:
            return max(0.0, self.measured[dimension].value)
        return self.rate * float(self.shares[CAUSES.index(dimension)])

    def draw_shares(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return draws of the causes' shares, shape (draws, len(CAUSES)).

        A diagnosis that errs on one take of a station errs on the next for the same reason: part of
        the weight goes to causes drawn for all failures with one random number. Which failures were
        seen at all is drawn too (a Dirichlet posterior).
        """
        # How many failures have each cause where each is at quantile u of its posterior.
        u, last = rng.random(draws), len(CAUSES) - 1
        edges = np.sort(np.cumsum(self.posteriors, axis=1), axis=0)  # each column sorted
        upto = [len(edges) - np.searchsorted(edges[:, k], u, side="right") for k in range(last)]
        reached = np.stack([*upto, np.full(draws, len(edges))], axis=1).astype(float)
        shared = SHARED_ERRORS * np.diff(reached, axis=1, prepend=0.0)
        counts = shared + (1.0 - SHARED_ERRORS) * self.posteriors.sum(axis=0)
        weights = rng.standard_gamma(counts + PSEUDO_TAKES / len(CAUSES))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def posterior(take: TakeDiagnosis) -> tuple[float, ...]:
    """Return a take's shares in the order of `CAUSES`; all on "none" where nothing was found."""
    found = [take.dimensions.get(d.value, 0.0) for d in GapDimension]
    rest = max(take.none, 0.0)
    return (*found, rest if sum(found) + rest > 0 else 1.0)


@dataclass(frozen=True)
class GainForecast:
    """What to expect of more takes of one dimension, everything else left as it is.

    Expected percentage points, and their 95 % interval, shape (n, 3), by numbers of takes; those
    planned are with the ones that may follow.
    """

    dimension: GapDimension
    takes: FloatArray
    gain: FloatArray
    planned: int


class GainModel:
    """The same draws, shape (DRAWS,), for every part of a plan, so that parts and whole agree.

    `rate` is the share of rollouts that fail.
    """

    def __init__(self, failures: Failures, curves: Mapping[GapDimension, Curve]) -> None:
        self.rate: FloatArray = np.ones(DRAWS)
        if failures.rate_known:  # by Jeffreys' prior
            failed, succeeded = failures.failed + 0.5, failures.succeeded + 0.5
            self.rate = np.random.default_rng(0).beta(failed, succeeded, DRAWS)
        shares = failures.draw_shares(np.random.default_rng(1), DRAWS)
        self._lost = {d: self.rate * shares[:, CAUSES.index(d)] for d in GapDimension}
        spread = np.random.default_rng(6).standard_normal(DRAWS)
        for d, cost in failures.measured.items():
            below, above = (cost.value - cost.low) / 1.96, (cost.high - cost.value) / 1.96
            drawn = cost.value + spread * np.where(spread < 0, below, above)
            self._lost[d] = np.clip(drawn, 0.0, self.rate)
        rng = np.random.default_rng(2)
        self._curves = {d: curves[d].draw(rng, DRAWS) for d in GapDimension}

    def gain(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the percentage points that takes bring, shape (DRAWS,)."""
        return self.gain_of(dimension, self.fixed(dimension, takes))

    def gain_of(self, dimension: GapDimension, fixed: FloatArray) -> FloatArray:
        """Return draws of the points that fixing a share of a dimension's failures brings."""
        return 100.0 * self._lost[dimension] * fixed

    def fixed(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the share of its failures that takes fix, shape (DRAWS,)."""
        return fixed_share(*self._curves[dimension], np.asarray(float(takes)))

    def prospect(self, dimension: GapDimension, planned: int) -> GainForecast:
        """Return what to expect of up to twice the planned takes, and of 60 at least."""
        takes = np.unique(np.linspace(0, max(60, 2 * planned), 31).round())
        lines = [self.gain(dimension, n) for n in takes]
        gain = np.array([[g.mean(), *np.quantile(g, (0.025, 0.975))] for g in lines])
        return GainForecast(dimension, takes, gain, planned)
