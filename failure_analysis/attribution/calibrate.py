"""Calibrates a fitted model on predictions that left out what they are about.

Temperature and doubt make shares as likely as they say; three numbers say what two causes at once
are worth; thresholds say when to name; cuts say what belongs to a conformal set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.attribution.labelled import LabelledFailures
from gaploop.failure_analysis.attribution.model import (
    CAUSES,
    FIRST,
    NONE,
    SECOND,
    Pairs,
    Thresholds,
    doubted,
    named,
    softmax,
    together,
    trusted,
)

COVERAGE: Final = 0.90
"""Of the conformal sets."""
FALSE_CAUSE: Final = 0.04
"""Share of gap-free failures for which a cause may be named, on left-out predictions."""
WRONG_COSTS: Final = 4.0
"""What naming wrongly, or half of what acts, costs in units of what naming rightly is worth."""


ALIKE: Final = 0.7
"""How far causes differ in their doubt, spread of its logit: few takes speak for each."""
SHARPEST: Final = 0.5
"""Least temperature: doubt could explain every error, and evidence then be taken for certain."""


def calibration(logits: FloatArray, data: LabelledFailures) -> tuple[float, tuple[float, ...]]:
    """Return temperature and doubts by which shares are as likely as they say.

    Takes with one cause or none count, as often as they occur.

    Args:
        logits: left-out, shape (m, 10).
        data: what they are about.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    single = data.targets.max(axis=1) > 0.99
    counts, of = data.counts[single], data.targets[single]

    def loss(theta: FloatArray) -> float:
        shares = doubted(softmax(logits[single] / math.exp(theta[0])), expit(theta[2:]))
        missed = -counts @ np.log(np.sum(of * shares, axis=1) + 1e-12)
        return float(missed + 0.5 * np.sum((theta[2:] - theta[1]) ** 2) / ALIKE**2)

    bounds = [(math.log(SHARPEST), 2.0), *[(-6.0, 1.0)] * (1 + len(CAUSES))]
    starts = [np.array([warm, *[-3.0] * (1 + len(CAUSES))]) for warm in (-0.5, 0.0, 0.7)]
    tries = [minimize(loss, start, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(tries, key=lambda done: float(done.fun)).x
    return float(math.exp(best[0])), tuple(float(share) for share in expit(best[2:]))


def fit_pairs(
    logits: FloatArray, placed: FloatArray, doubt: Sequence[float], data: LabelledFailures
) -> Pairs:
    """Return what two causes at once are worth, likeliest on left-out predictions.

    Three numbers for all pairs of dimensions alike, so that they hold for pairs never seen.

    Args:
        logits: left-out and divided by the temperature, shape (m, 10).
        placed: the feature `PLACED`, shape (m,).
        doubt: from `calibration`.
        data: what they are about.
    """
    from scipy.optimize import minimize

    truth = true_sets(data.targets)
    start = Pairs()
    first = np.array([start.second, start.placed, start.odds])
    loose = np.array([0.5, 0.5, 4.0])

    def loss(theta: FloatArray) -> float:
        sets = trusted(together(logits, placed, Pairs(*theta)), doubt)
        missed = -np.log(sets[np.arange(len(truth)), truth] + MISLED)
        return float(data.counts @ missed + 0.5 * np.sum(((theta - first) / loose) ** 2))

    bounds = [(0.0, 2.0), (0.0, 1.0), (-8.0, 4.0)]
    done = minimize(loss, first, method="L-BFGS-B", bounds=bounds)
    return Pairs(*(float(value) for value in done.x))


def true_sets(of: FloatArray) -> NDArray[np.int64]:
    """Return which of `together`'s sets takes with these target shares, shape (m, 10), are."""
    ranked = np.sort(np.argsort(-of, axis=1, kind="stable")[:, :2], axis=1)
    pair = np.array([
        int(np.flatnonzero((a == FIRST) & (b == SECOND))[0]) if b < len(CAUSES) - 1 else 0
        for a, b in ranked
    ])  # fmt: skip
    single = of.max(axis=1) > 0.99
    return np.where(single, of.argmax(axis=1), len(CAUSES) + pair)


def conformal_cuts(
    shares: FloatArray, data: LabelledFailures, coverage: float = COVERAGE
) -> tuple[float, ...]:
    """Return the cut of each cause by which sets hold it with `coverage`.

    Split conformal prediction within each cause (Mondrian; Vovk 2012), so that a cause that is hard
    to tell isn't paid for by easy ones; takes weighted by their counts (Tibshirani et al. 2019).
    One with too few takes to say belongs to every set. Takes with one cause or none count; see
    `model.candidates` for the sets.
    """
    single = data.targets.max(axis=1) > 0.99
    order = np.argsort(-shares[single], axis=1, kind="stable")
    ranked = np.take_along_axis(shares[single], order, axis=1)
    above = np.cumsum(ranked, axis=1) - ranked
    truth, counts = np.argmax(data.targets[single], axis=1), data.counts[single]
    at = np.argmax(order == truth[:, None], axis=1)
    scores = above[np.arange(len(at)), at]
    return tuple(
        _quantile(scores[truth == c], counts[truth == c], coverage) for c in range(len(CAUSES))
    )


def _quantile(scores: FloatArray, counts: FloatArray, coverage: float) -> float:
    """Return just above the weighted conformal quantile; 2, above any score, where too few."""
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(counts[order])
    reached = np.flatnonzero(below >= coverage * (float(counts.sum()) + 1.0) - 1e-9)
    return float(np.nextafter(scores[order[reached[0]]], 2.0)) if len(reached) else 2.0


MISLED: Final = 0.002
"""Share of any set where evidence misleads: some tenth, spread over all of them."""
NAMES: Final = tuple(np.round(np.arange(0.30, 0.991, 0.02), 2).tolist())
BOTH: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def thresholds(sets: FloatArray, cuts: tuple[float, ...], data: LabelledFailures) -> Thresholds:
    """Return the limits by which naming is worth most, within the limit on false causes.

    Naming exactly what was injected is worth 1, abstaining nothing, anything else costs
    `WRONG_COSTS`: whoever collects for a wrong cause loses hours, whoever is told nothing looks.

    Args:
        sets: left-out posteriors of `together`, as far as `trusted`, shape (m, 46).
        cuts: of the conformal sets.
        data: what they are about.
    """
    tried = [Thresholds(name, both, cuts) for name in NAMES for both in BOTH]
    return max(tried, key=lambda limits: _worth(sets, data, limits))


def _worth(sets: FloatArray, data: LabelledFailures, limits: Thresholds) -> float:
    worth, none, false = 0.0, 0.0, 0.0
    for share, target, count in zip(sets, data.targets, data.counts, strict=True):
        said = {d.value for d in named(share, limits)}
        true = {CAUSES[n] for n in np.flatnonzero(target)}
        if true == {NONE}:
            none += count
            false += count * bool(said)
        elif said:
            worth += count * (1.0 if said == true else -WRONG_COSTS)
    beyond = max(false / max(none, 1e-9) - FALSE_CAUSE, 0.0)
    return worth / float(data.counts.sum()) - 10.0 * beyond


@dataclass(frozen=True)
class Calibrated:
    """What a fit is completed with; see `model.EvidenceModel`."""

    temperature: float
    doubt: tuple[float, ...]
    pairs: Pairs
    thresholds: Thresholds


def calibrate(logits: FloatArray, placed: FloatArray, data: LabelledFailures) -> Calibrated:
    """Calibrate on left-out predictions.

    Args:
        logits: of fits that left each take's mechanisms and task out, shape (m, 10).
        placed: the feature `PLACED`, shape (m,).
        data: what they are about.
    """
    temperature, doubt = calibration(logits, data)
    warm = logits / temperature
    pairs = fit_pairs(warm, placed, doubt, data)
    cuts = conformal_cuts(doubted(softmax(warm), doubt), data)
    sets = trusted(together(warm, placed, pairs), doubt)
    return Calibrated(temperature, doubt, pairs, thresholds(sets, cuts, data))
