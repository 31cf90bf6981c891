"""The project's statistics: intervals of rates, differences and means, and tests, for small counts.

A rate has a Wilson interval; a rate standardised over strata has a Wilson
interval at its effective number of trials (as for proportions in surveys: Franco, Little, Louis and
Slud 2019); and a weighted sum of independent rates has the square-and-add interval of Newcombe
(1998, method 10) and Zou and Donner (2008), which for two rates is Newcombe's. None of them
collapses to a point where a cell holds no success or no failure. Pairs are tested by the exact
McNemar test, several at once by Holm's method. scipy is imported where it is used: it takes a
second, which `--help` doesn't have.

And statistics of pictures in [0, 1], as LeRobot states them, from how often each value occurs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE
from gaploop.core.messages import Image

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, such as a rate (0 to 1) or a difference of rates (-1 to 1)."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """The interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, -self.high, -self.low)


@dataclass(frozen=True)
class TrialCounts:
    """Trials of one stratum.

    Attributes:
        weight: of the stratum; those of a rate's cells sum to 1.
    """

    successes: int
    trials: int
    weight: float = 1.0


def rate(successes: float, trials: float, confidence: float = CONFIDENCE) -> Estimate:
    """Return a success rate with its two-sided Wilson score interval (Wilson 1927).

    Expected successes will do, and an effective number of trials above 0.
    """
    value, z = successes / trials, NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (value + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = math.sqrt(value * (1 - value) / trials + (z / (2 * trials)) ** 2)
    reach *= z / (1 + z * z / trials)
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    # Rounding must not push a limit past the estimate itself, which is exact at 0 and at 1.
    return Estimate(value, min(float(low), value), max(float(high), value))


def standardised(cells: Sequence[TrialCounts], confidence: float = CONFIDENCE) -> Estimate:
    """Return the weighted mean rate of some strata with its interval.

    The variance of each cell is taken at (successes + 1) / (trials + 2), so that a stratum of one
    trial, or one without any failure, doesn't count as known.
    """
    value = sum(cell.weight * cell.successes / cell.trials for cell in cells)
    if len(cells) == 1:
        return rate(cells[0].successes, cells[0].trials, confidence)
    shares = [(cell.successes + 1) / (cell.trials + 2) for cell in cells]
    spread = sum(
        cell.weight**2 * share * (1 - share) / cell.trials
        for cell, share in zip(cells, shares, strict=True)
    )
    even = 1.0 / sum(cell.weight**2 / cell.trials for cell in cells)  # were all strata alike
    effective = max(value * (1 - value) / spread, even) if 0 < value < 1 else even
    return rate(value * effective, effective, confidence)


def weighted_sum(
    terms: Sequence[tuple[float, Sequence[TrialCounts]]], confidence: float = CONFIDENCE
) -> Estimate:
    """Return a weighted sum of independent standardised rates, such as a difference.

    Each term is a coefficient with the cells of the rate.
    """
    rates = [(c, standardised(cells, confidence)) for c, cells in terms]
    value = sum(c * r.value for c, r in rates)
    down = sum((c * (r.value - (r.low if c > 0 else r.high))) ** 2 for c, r in rates)
    up = sum((c * (r.value - (r.high if c > 0 else r.low))) ** 2 for c, r in rates)
    return Estimate(value, value - math.sqrt(down), value + math.sqrt(up))


def paired_difference(
    both: int, first: int, second: int, neither: int, confidence: float = CONFIDENCE
) -> Estimate:
    """Return first minus second rate over matched pairs (Newcombe 1998, Stat Med 17:2635, no. 10).

    Counted are pairs in which both went well, only the first, only the second, and neither.
    """
    n = both + first + second + neither
    one, two = rate(both + first, n, confidence), rate(both + second, n, confidence)
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    cross: float = both * neither - first * second
    if cross > 0:
        cross = max(cross - n / 2, 0)  # his continuity correction
    phi = cross / math.sqrt(margins) if margins else 0.0

    def half(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    value = (first - second) / n
    down = half(one.value - one.low, two.high - two.value)
    up = half(one.high - one.value, two.value - two.low)
    return Estimate(value, max(-1.0, value - down), min(1.0, value + up))


def mcnemar_p(first: int, second: int) -> float:
    """Return the two-sided p of the exact McNemar test: a binomial test on the discordant pairs.

    Those in which only the first went well, and only the second.
    """
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that allow for all of them (Holm 1979, Scand J Stat 6:65).

    statsmodels' `multipletests` collects all garbage at each call: 20 ms, and more in a large
    program.
    """
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = least
    return adjusted


def median_interval(values: NDArray[np.float64]) -> Estimate:
    """Return a median with its notch, about 95 % (McGill, Tukey and Larsen 1978); shape (n,).

    NaN where there is nothing; of one value all that it shows is itself.
    """
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    low, middle, high = (float(v) for v in np.percentile(values, [25, 50, 75]))
    half = 1.57 * (high - low) / math.sqrt(len(values))
    return Estimate(middle, middle - half, middle + half)


def points(estimate: Estimate) -> str:
    """Return a difference in percentage points, as people read it."""
    value, low, high = (100 * v for v in (estimate.value, estimate.low, estimate.high))
    return f"{value:+.0f} points [{low:+.0f}, {high:+.0f}]"


def percent(estimate: Estimate) -> str:
    """Return a rate in per cent, as people read it."""
    return f"{estimate.value:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


# -- statistics of pixels, as stats.json holds them --------------------------------------------

QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_NAMES: Final = ("min", "max", "mean", "std", *QUANTILES)
MOST_PICTURES: Final = 200
"""LeRobot takes 100 pictures of an episode, of more than 500 rows n^0.75; with these it is 100 to
200 of any episode that is longer."""

type Stats = dict[str, NDArray[Any]]
"""Statistic to its value in each channel, shape (3, 1, 1); `count` of the pictures, shape (1,)."""


def pixel_counts(picture: Image) -> NDArray[np.int64]:
    """Return how often each value occurs in a picture, thinned by LeRobot's rule.

    Args:
        picture: RGB, uint8, shape (height, width, 3).

    Returns:
        shape (3, 256).
    """
    height, width = picture.shape[:2]
    step = int((width if width > height else height) / 150) if max(width, height) >= 300 else 1
    thinned = picture[::step, ::step].reshape(-1, picture.shape[2]).T
    return np.stack([np.bincount(channel, minlength=256) for channel in thinned])


def statistics_of(counts: NDArray[np.int64], pictures: int) -> Stats:
    """Return statistics of pixels; `counts` are those of all `pictures`, shape (3, 256)."""
    values, below = np.arange(256) / 255.0, np.cumsum(counts, axis=1)
    n = below[:, -1:]
    mean = (counts * values).sum(axis=1, keepdims=True) / n
    spread = (counts * (values - mean) ** 2).sum(axis=1, keepdims=True) / n

    def ranked(place: NDArray[Any]) -> NDArray[np.float64]:  # the value at a place in rising order
        return np.asarray((below <= place).sum(axis=1, keepdims=True) / 255.0)

    found = {"min": ranked(0 * n), "max": ranked(n - 1), "mean": mean, "std": np.sqrt(spread)}
    for name, level in QUANTILES.items():
        place = level * (n - 1)
        low, high = ranked(np.floor(place)), ranked(np.ceil(place))
        found[name] = low + (high - low) * (place - np.floor(place))
    return {**{k: v[:, :, None] for k, v in found.items()}, "count": np.array([pictures])}


class PictureSample:
    """Evenly spread pictures of an episode whose length isn't known yet, as counts of pixels."""

    def __init__(self) -> None:
        self._counts: list[NDArray[np.int64]] = []
        self._seen, self._every = 0, 1

    def add(self, picture: Image) -> None:
        """Take note of the next picture, or pass it over; its memory isn't kept."""
        if self._seen % self._every == 0:
            self._counts.append(pixel_counts(picture))
            if len(self._counts) > MOST_PICTURES:
                del self._counts[1::2]
                self._every *= 2
        self._seen += 1

    def stated(self) -> dict[str, list[float]]:
        """Return the statistics as a take's seal states them; {} where there was no picture."""
        if not self._counts:
            return {}
        found = statistics_of(np.sum(self._counts, axis=0), len(self._counts))
        return {name: value.reshape(-1).tolist() for name, value in found.items()}


def from_stated(value: Any) -> Stats | None:
    """Return what `PictureSample.stated` wrote; None where it is missing or isn't plausible."""
    try:
        found = {name: np.array(value[name], np.float64).reshape(3, 1, 1) for name in _NAMES}
        count = int(value["count"][0])
    except DAMAGE:
        return None
    if count < 1 or not all(((v >= 0) & (v <= 1)).all() for v in found.values()):
        return None
    return {**found, "count": np.array([count])}
