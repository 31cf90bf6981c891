"""Hours and money that takes cost, with an interval: measured where takes are there already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.collect.campaign import (
    BLOCK_TAKES,
    RESET_S,
    SETUP_EFFORT,
    SETUP_S,
    TAKE_S,
    LoggedTake,
    counts,
    intervals,
)
from gaploop.core.messages import FloatArray
from gaploop.core.station import Costs
from gaploop.core.statistics import CONFIDENCE, Estimate
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.planning.gains import recorded_before

ASSUMED_SD: Final = 0.4
"""Relative standard deviation of a time that nobody measured: within a factor of two or so."""
DAY_SD: Final = 0.1
"""The same of a measured mean: people and days differ. Assumed."""
STATED_SD: Final = 0.1
"""The same of a time that somebody wrote down."""


@dataclass(frozen=True)
class SeenTake:
    """A take as planning needs it: no signals."""

    info: TakeInfo
    outcome: Outcome
    duration_s: float


@dataclass(frozen=True)
class Duration:
    """A mean time, "measured", "stated" or "assumed", with its standard deviation."""

    mean_s: float
    sd_s: float
    basis: str

    def draw(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return log-normal draws of the mean [s], shape (draws,)."""
        if self.mean_s <= 0:
            return np.zeros(draws)
        log_var = math.log1p((self.sd_s / self.mean_s) ** 2)
        return rng.lognormal(math.log(self.mean_s) - log_var / 2, math.sqrt(log_var), draws)


@dataclass(frozen=True)
class RecordingEffort:
    """What recording takes at a station.

    Attributes:
        reset: from the end of an attempt to the next one's start.
        setup: what a change of set-up of effort 1 adds.
        recorded: demonstrations that succeeded and that failed, of those at hand.
        rate_per_hour: operator and station; None where nobody said.
        measured: takes behind the measured times.
    """

    take: Duration
    reset: Duration
    setup: Duration
    recorded: tuple[int, int] = (0, 0)
    rate_per_hour: float | None = None
    currency: str = field(default=Costs.currency)
    measured: int = 0

    def success(self, dimension: GapDimension) -> tuple[float, float]:
        """Return the parameters of the Beta distribution of "an attempt is a good take"."""
        done, failed = recorded_before(dimension)
        return done + self.recorded[0] + 0.5, failed + self.recorded[1] + 0.5

    def hours_per_take(self, dimension: GapDimension) -> float:
        """Return the expected hours for one more take, without changes of set-up [h]."""
        done, failed = self.success(dimension)
        attempts = (done + failed) / done
        return attempts * (self.take.mean_s + self.reset.mean_s) / 3600.0

    def draw_hours(
        self,
        takes: Mapping[GapDimension, int],
        changes: float,
        rng: np.random.Generator,
        draws: int,
    ) -> FloatArray:
        """Return draws of the hours that takes need, shape (draws,)."""
        each_s = self.take.draw(rng, draws) + self.reset.draw(rng, draws)
        total_s = changes * self.setup.draw(rng, draws)
        for dimension, n in takes.items():
            if n:
                good = np.maximum(rng.beta(*self.success(dimension), draws), 0.02)
                attempts = n + rng.negative_binomial(n, good)
                total_s += attempts * each_s
        return np.asarray(total_s / 3600.0)


def effort_from(
    takes: Iterable[SeenTake] = (),
    stated: Costs = Costs(),  # noqa: B008  frozen
) -> RecordingEffort:
    """Return what recording takes.

    Demonstrations, oldest first, say how many attempts a take needs; lengths and resets come from
    them, too, or from rollouts where there is no demonstration. What a station file states counts
    more than takes do.
    """
    every = [take for take in takes if take.duration_s > 0]
    shown = [take for take in every if take.info.kind is TakeKind.DEMONSTRATION]
    logged = [
        LoggedTake(t.info, counts(t.info.kind, t.outcome), t.duration_s) for t in shown or every
    ]
    lengths, resets, moves = intervals(logged) if logged else ([], [], [])
    reset = _duration(resets, stated.reset_s, RESET_S)
    extra = [max(0.0, move_s - reset.mean_s) for move_s in moves]
    done = sum(t.outcome is Outcome.SUCCESS for t in shown)
    failed = sum(t.outcome is Outcome.FAILURE for t in shown)
    return RecordingEffort(
        _duration(lengths, stated.take_s, TAKE_S),
        reset,
        _duration(extra, stated.setup_s, SETUP_S),
        (done, failed),
        stated.rate_per_hour,
        stated.currency,
        len(logged),
    )


def _duration(seen_s: Sequence[float], stated_s: float | None, assumed_s: float) -> Duration:
    if stated_s is not None:
        return Duration(stated_s, STATED_SD * stated_s, "stated")
    if len(seen_s) < 3:  # of two, the spread can't be told
        return Duration(assumed_s, ASSUMED_SD * assumed_s, "assumed")
    mean, sd = float(np.mean(seen_s)), float(np.std(seen_s, ddof=1))
    return Duration(mean, math.hypot(sd / math.sqrt(len(seen_s)), DAY_SD * mean), "measured")


def setup_changes(takes: int, setups: Sequence[Mapping[str, object]]) -> float:
    """Return about how many changes of set-up a campaign has, weighted by their effort.

    Takes come in blocks that each visit most set-ups (`collect.campaign`).
    """
    if not takes or len(setups) < 2:
        return 0.0
    blocks = max(2, math.ceil(takes / BLOCK_TAKES))
    names = {n for s in setups for n in s if any(s.get(n) != o.get(n) for o in setups)}
    each = max((SETUP_EFFORT.get(name, 1.0) for name in names), default=0.0)
    return min(takes, blocks * len(setups)) * each


def estimate(draws: FloatArray, digits: int = 2, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean and central interval of draws."""
    low, high = np.quantile(draws, (0.5 - 0.5 * confidence, 0.5 + 0.5 * confidence))
    return Estimate(*(round(float(v), digits) for v in (draws.mean(), low, high)))
