"""Fits the attribution model to labelled failures, calibrates it, and saves it.

The rules are the prior: a weight starts where the rules' author put it, and data moves it as far
as it is worth. What evidence for a dimension says about that dimension may not become negative.
Everything is chosen on predictions for mechanisms and tasks that the fit behind them left out:
temperature and doubt make shares as likely as they say; three numbers say what two causes at once
are worth; thresholds say when to name; cuts say what belongs to a conformal set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.files import write_atomically
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.attribution import (
    CAUSES,
    FEATURES,
    FIRST,
    NONE,
    PLACED,
    SCHEMA,
    SECOND,
    EvidenceModel,
    Pairs,
    Thresholds,
    doubted,
    likeliest_weights,
    named,
    softmax,
    together,
    trusted,
    weighted_targets,
)

STRENGTH: Final = "left"
STRENGTH_FIRST: Final = 1.0
"""What a strength of the rules is worth at first, in any dimension."""
BIAS_STIFFNESS: Final = 1e3
"""Dimensions get hardly any weight of their own: how often each occurs says nothing elsewhere."""
NONE_FIRST: Final = 1.2
"""Logit of "none" where nothing speaks for anything; the rules' own value."""


@dataclass(frozen=True)
class LabelledFailures:
    """Failures with known causes.

    Attributes:
        rows: features, shape (m, n).
        targets: share of each cause, shape (m, 10), rows sum to 1.
        weights: how much each counts in the fit, where causes count equally, shape (m,).
        counts: how much each counts in calibration, where takes do, shape (m,).
        groups: mechanisms (or errors) of each, of which none may be on both sides of a split.
        tasks: task of each.
    """

    rows: FloatArray
    targets: FloatArray
    weights: FloatArray
    counts: FloatArray
    groups: tuple[frozenset[str], ...]
    tasks: tuple[str, ...]

    def only(self, keep: NDArray[np.bool_]) -> LabelledFailures:
        """Return those where `keep`, shape (m,), is true."""
        chosen = np.flatnonzero(keep)
        return LabelledFailures(
            self.rows[keep], self.targets[keep], self.weights[keep], self.counts[keep],
            tuple(self.groups[n] for n in chosen), tuple(self.tasks[n] for n in chosen),
        )  # fmt: skip


def targets(causes: Sequence[Sequence[str]]) -> FloatArray:
    """Return the target shares, shape (m, 10), of takes with these causes; none if empty."""
    return weighted_targets([dict.fromkeys(found, 1.0) for found in causes])


def balanced(of: FloatArray) -> FloatArray:
    """Return weights, shape (m,), by which every cause counts equally; their mean is 1."""
    share = of.sum(axis=0)
    weights = of @ (1.0 / np.maximum(share, 1e-9))
    return np.asarray(weights * len(of) / weights.sum())


def joined(first: LabelledFailures, second: LabelledFailures) -> LabelledFailures:
    """Return both, one after the other."""
    return LabelledFailures(
        np.concatenate([first.rows, second.rows]),
        np.concatenate([first.targets, second.targets]),
        np.concatenate([first.weights, second.weights]),
        np.concatenate([first.counts, second.counts]),
        first.groups + second.groups,
        first.tasks + second.tasks,
    )


@dataclass(frozen=True)
class Stiffness:
    """How hard weights are held at what all dimensions share: precisions; the larger, the harder.

    Chosen on the training part, on mechanisms and tasks left out: with some hundred failures, what
    all dimensions share carries over to mechanisms never seen, and single signals hardly do.

    Attributes:
        rules: weights of what the rules say, on their own dimension.
        signals: all other weights.
    """

    rules: float = 1000.0
    signals: float = 3000.0


def fit_weights(names: Sequence[str], data: LabelledFailures, stiffness: Stiffness) -> FloatArray:
    """Return the most likely weights, shape (10, n).

    First what the rules' strengths are worth in any dimension, from all dimensions together: that
    holds for a dimension, too, of which no mechanism was seen. Then how far each dimension, and
    each signal, differs from it.
    """
    mean = _shared(names, data)
    precision = np.full_like(mean, stiffness.signals)
    lowest = np.full_like(mean, -np.inf)
    for column, name in enumerate(names):
        kind, _, of = name.partition(".")
        if kind == "one":
            precision[:, column] = BIAS_STIFFNESS
        elif kind == PLACED:
            precision[:, column] = np.inf
        elif kind == STRENGTH:
            row = CAUSES.index(of)
            precision[row, column] = stiffness.rules
            lowest[row, column] = 0.0
    return likeliest_weights(data.rows, data.targets, data.weights, mean, precision, lowest)


def _shared(names: Sequence[str], data: LabelledFailures) -> FloatArray:
    """Return weights that are the same for every dimension: two numbers fitted, shape (10, n)."""
    from scipy.optimize import minimize

    strengths = np.zeros((len(CAUSES), len(names)))
    for row, cause in enumerate(CAUSES[:-1]):
        strengths[row, names.index(f"{STRENGTH}.{cause}")] = 1.0
    unexplained = np.zeros_like(strengths)
    unexplained[-1, names.index("one")] = 1.0
    start = np.array([STRENGTH_FIRST, NONE_FIRST])

    def loss(theta: FloatArray) -> float:
        weights = theta[0] * strengths + theta[1] * unexplained
        shares = softmax(data.rows @ weights.T)
        missed = -np.sum(data.targets * np.log(shares + 1e-12), axis=1)
        return float(data.weights @ missed + 0.5 * np.sum((theta - start) ** 2))

    done = minimize(loss, start, method="L-BFGS-B", bounds=[(0.0, None), (None, None)])
    return np.asarray(done.x[0] * strengths + done.x[1] * unexplained)


type Fit = Callable[[LabelledFailures], Callable[[FloatArray], FloatArray]]
"""Fits something that turns rows into logits."""


def left_out(data: LabelledFailures, fit: Fit) -> FloatArray:
    """Return logits, shape (m, 10), of each take by a fit without its mechanisms and its task."""
    logits = np.zeros_like(data.targets)
    tasks = np.array(data.tasks)
    folds = sorted({(group, task) for group, task in zip(data.groups, data.tasks, strict=True)},
                   key=lambda fold: (sorted(fold[0]), fold[1]))  # fmt: skip
    for group, task in folds:
        inside = np.array([g == group for g in data.groups]) & (tasks == task)
        apart = np.array([not (g & group) for g in data.groups])
        train = apart & (tasks != task) if (tasks != task).any() else apart
        logits[inside] = fit(data.only(train))(data.rows[inside])
    return logits


def log_linear(names: Sequence[str], stiffness: Stiffness) -> Fit:
    """Return how the model itself is fitted."""

    def fit(data: LabelledFailures) -> Callable[[FloatArray], FloatArray]:
        weights = fit_weights(names, data, stiffness)
        return lambda rows: np.asarray(rows @ weights.T)

    return fit


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


def fit_model(
    names: Sequence[str],
    data: LabelledFailures,
    extra: LabelledFailures,
    about: Mapping[str, Any],
    stiffness: Stiffness | None = None,
) -> EvidenceModel:
    """Fit and calibrate the model.

    Args:
        names: of the features.
        data: failures as recorded, and as mechanisms would leave them that no signal was made for:
            the calibration is chosen on these.
        extra: variants with channels taken away, which the weights are fitted to as well.
        about: what to say about where it comes from.
        stiffness: as chosen by cross-validation.
    """
    stiffness = stiffness or Stiffness()
    logits = left_out(data, log_linear(names, stiffness))
    temperature, doubt = calibration(logits, data)
    warm, placed = logits / temperature, data.rows[:, list(names).index(PLACED)]
    pairs = fit_pairs(warm, placed, doubt, data)
    cuts = conformal_cuts(doubted(softmax(warm), doubt), data)
    sets = trusted(together(warm, placed, pairs), doubt)
    limits = thresholds(sets, cuts, data)
    weights = fit_weights(names, joined(data, extra), stiffness)
    return EvidenceModel(weights, temperature, doubt, pairs, limits, COVERAGE, dict(about))


def save_model(model: EvidenceModel, path: Path) -> None:
    """Write a model's file, atomically; `attribution.load_model` reads it."""
    value = {
        "schema": SCHEMA,
        "about": dict(model.about),
        "temperature": model.temperature,
        "doubt": list(model.doubt),
        "pairs": asdict(model.pairs),
        "thresholds": asdict(model.thresholds),
        "coverage": model.coverage,
        "causes": list(CAUSES),
        "weights": {
            name: [round(float(w), 5) for w in column]
            for name, column in zip(FEATURES, model.weights.T, strict=True)
        },
    }
    write_atomically(path, json.dumps(value, indent=0) + "\n")
