"""Which takes to record with a budget, and when to stop.

The expected gain of a plan is the sum over dimensions of (failure rate x share x fixed share), each
concave in its takes. So taking the best next take until the budget is spent, or the next one brings
less than is worth it, is the best plan (Fox, Operations Research 14, 1966).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.curves import MOST_TAKES, Curve

LEAST_GAIN: Final = 0.1
"""Percentage points of success that a take must be expected to bring: assumed. Fifty takes for
five points are hardly worth an afternoon."""
OPEN_RESPONSE: Final = 0.8
"""Probability that demonstrations help, below which the plan says that it is open."""


@dataclass(frozen=True)
class Budget:
    """What may be spent; every limit that is given holds."""

    takes: int | None = None
    """How many demonstrations may be recorded at most; 50 where no limit is given."""
    hours: float | None = None
    """How long recording may be expected to take [h]."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UnusableInputError(f"--budget.{name} is {value}: give 0 or more.")


class Decision(StrEnum):
    """What becomes of a dimension."""

    RECORD = "record"
    """Its takes are worth their time."""
    UNCLEAR = "unclear"
    """Too few failures have a named cause."""
    NO_BUDGET = "no_budget"
    """Takes would be worth their time; the budget goes elsewhere."""
    NOT_WORTH = "not_worth"
    """The first take brings too little."""
    NOT_FIXED = "not_fixed"
    """Demonstrations hardly ever fix it."""
    INSTEAD = "instead"
    """Another remedy brings more for an hour of an operator."""

    @property
    def demonstrate(self) -> bool:
        """Whether demonstrations are the remedy, now or later."""
        return self not in (Decision.NOT_WORTH, Decision.NOT_FIXED, Decision.INSTEAD)


@dataclass(frozen=True)
class DimensionQuota:
    """Takes of one dimension; `next_gain` is what one more is expected to bring [points]."""

    decision: Decision
    takes: int = 0
    next_gain: float = 0.0


def next_gains(
    curves: Mapping[GapDimension, Curve], points: Mapping[GapDimension, float]
) -> dict[GapDimension, FloatArray]:
    """Return what each dimension's 1st, 2nd, … take is expected to bring [points], (MOST_TAKES,).

    `points` are those of success that its failures cost.
    """
    takes = np.arange(MOST_TAKES + 1, dtype=float)
    return {d: np.diff(worth * curves[d].fixed(takes)) for d, worth in points.items()}


def best_order(
    gains: Mapping[GapDimension, FloatArray], price: Mapping[GapDimension, float], least_gain: float
) -> list[GapDimension]:
    """Return takes in the order in which to buy them: most of `next_gains` for its price first.

    Those that bring less than `least_gain` [points] are left out.
    """
    names = list(GapDimension)
    offers = [
        (-gain / price[d], place, names.index(d))
        for d, line in gains.items()
        for place, gain in enumerate(line)
        if gain > 0 and gain >= least_gain
    ]
    return [names[index] for _, _, index in sorted(offers)]


def affordable(
    order: Sequence[GapDimension],
    budget: Budget,
    hours: Callable[[Mapping[GapDimension, int]], float],
) -> dict[GapDimension, int]:
    """Return how many takes of each dimension the budget pays for: the longest part of `order`.

    `hours` are those that an allocation is expected to need; they grow with it.
    """
    limit_h = math.inf if budget.hours is None else budget.hours

    def first(takes: int) -> dict[GapDimension, int]:
        bought = order[:takes]
        return {d: bought.count(d) for d in GapDimension if d in bought}

    most = len(order) if budget.takes is None else min(len(order), budget.takes)
    paid = bisect.bisect_right(range(1, most + 1), limit_h, key=lambda n: hours(first(n)))
    return first(paid)


def split_takes(takes: int, masses: Sequence[float], curve: Curve) -> list[int]:
    """Share takes out among conditions, of which `masses` are the failures' shares, to fix most.

    Takes under one condition are assumed to fix failures under that condition. An even split
    among C equal conditions fixes what the dimension's own curve says: n takes under one of them
    count as C n.
    """
    each = np.minimum(np.arange(takes + 1) * len(masses), MOST_TAKES).astype(float)
    gains = np.diff(curve.fixed(each))
    got = [0] * len(masses)
    for _ in range(takes):
        best = max(range(len(masses)), key=lambda c: (masses[c] * gains[got[c]], -c))
        got[best] += 1
    return got
