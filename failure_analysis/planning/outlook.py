"""What takes are expected to bring: draws from everything that is uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.curves import Curve, mended_share
from gaploop.failure_analysis.planning.failures import CAUSES, Failures

DRAWS: Final = 4000
"""For intervals: their ends move by about a point between sets of as many draws."""


@dataclass(frozen=True)
class Prospect:
    """What to expect of more takes of one dimension, everything else left as it is.

    Attributes:
        takes: numbers of takes, shape (n,).
        gain: expected percentage points, and their 95 % interval, shape (n, 3): mean, low, high.
        planned: takes that the plan asks for, those that may follow too.
    """

    dimension: GapDimension
    takes: FloatArray
    gain: FloatArray
    planned: int


class Outlook:
    """The same draws for every part of a plan, so that parts and whole agree.

    Attributes:
        rate: draws of the share of rollouts that fail, shape (DRAWS,).
    """

    def __init__(self, failures: Failures, curves: Mapping[GapDimension, Curve]) -> None:
        self.rate = failures.draw_rates(np.random.default_rng(0), DRAWS)
        self._shares = failures.draw_shares(np.random.default_rng(1), DRAWS)
        rng = np.random.default_rng(2)
        self._curves = {d: curves[d].draw(rng, DRAWS) for d in GapDimension}

    def gain(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the percentage points that takes bring, shape (DRAWS,)."""
        share = self._shares[:, CAUSES.index(dimension)]
        return 100.0 * self.rate * share * self.mended(dimension, takes)

    def mended(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the share of its failures that takes fix, shape (DRAWS,)."""
        return mended_share(*self._curves[dimension], np.asarray(float(takes)))

    def prospect(self, dimension: GapDimension, planned: int) -> Prospect:
        """Return what to expect of up to twice the planned takes, and of 60 at least."""
        takes = np.unique(np.linspace(0, max(60, 2 * planned), 31).round())
        lines = [self.gain(dimension, n) for n in takes]
        gain = np.array([[g.mean(), *np.quantile(g, (0.025, 0.975))] for g in lines])
        return Prospect(dimension, takes, gain, planned)
