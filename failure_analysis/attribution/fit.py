"""Fits the model to labelled failures, calibrates it, and corrects it by a station's labels.

The rules are the prior: a weight starts where the rules' author put it, and data moves it as far
as it is worth. What evidence for a dimension says about that dimension may not become negative.
Everything is chosen on predictions for mechanisms and tasks that the fit behind them left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.attribution.model import (
    CAUSES,
    NONE,
    EvidenceModel,
    Thresholds,
    named,
    softmax,
)

STRENGTH: Final = "left"
STRENGTH_FIRST: Final = 1.0
"""What a strength of the rules is worth at first, in any dimension."""
BIAS_STIFFNESS: Final = 1e3
"""Dimensions get hardly any weight of their own: how often each occurs says nothing elsewhere."""
COVERAGE: Final = 0.90
"""Of the conformal sets."""
NONE_FIRST: Final = 1.2
"""Logit of "none" where nothing speaks for anything; the rules' own value."""
FALSE_CAUSE: Final = 0.04
"""Share of gap-free failures for which a cause may be named, on left-out predictions."""


@dataclass(frozen=True)
class Stiffness:
    """How hard weights are held at what all dimensions share: precisions; the larger, the harder.

    Chosen on the training part, on mechanisms and tasks left out: with some hundred failures, what
    all dimensions share carries over to mechanisms never seen, and single signals hardly do.

    Attributes:
        rules: weights of what the rules say, on their own dimension.
        signals: all weights of single signals, modes and flags.
    """

    rules: float = 1000.0
    signals: float = 3000.0


@dataclass(frozen=True)
class Labelled:
    """Failures with known causes.

    Attributes:
        rows: features, shape (m, n).
        targets: share of each cause, shape (m, 10), rows sum to 1.
        weights: how much each counts, shape (m,).
        groups: mechanisms (or errors) of each, of which none may be on both sides of a split.
        tasks: task of each.
    """

    rows: FloatArray
    targets: FloatArray
    weights: FloatArray
    groups: tuple[frozenset[str], ...]
    tasks: tuple[str, ...]

    def only(self, keep: NDArray[np.bool_]) -> Labelled:
        """Return those where `keep`, shape (m,), is true."""
        chosen = np.flatnonzero(keep)
        return Labelled(
            self.rows[keep], self.targets[keep], self.weights[keep],
            tuple(self.groups[n] for n in chosen), tuple(self.tasks[n] for n in chosen),
        )  # fmt: skip


def targets(causes: Sequence[Sequence[str]]) -> FloatArray:
    """Return the target shares, shape (m, 10), of takes with these causes; none if empty."""
    return weighted_targets([dict.fromkeys(found, 1.0) for found in causes])


def weighted_targets(causes: Sequence[Mapping[str, float]]) -> FloatArray:
    """Return the target shares, shape (m, 10), of takes with weighted causes; none if empty."""
    rows = np.zeros((len(causes), len(CAUSES)))
    for row, found in zip(rows, causes, strict=True):
        for cause, weight in found.items():
            row[CAUSES.index(cause)] = weight
        if not row.any():
            row[CAUSES.index(NONE)] = 1.0
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def balanced(of: FloatArray) -> FloatArray:
    """Return weights, shape (m,), by which every cause counts equally; their mean is 1."""
    share = of.sum(axis=0)
    weights = of @ (1.0 / np.maximum(share, 1e-9))
    return np.asarray(weights * len(of) / weights.sum())


def fit_weights(names: Sequence[str], data: Labelled, stiffness: Stiffness) -> FloatArray:
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
        elif kind == STRENGTH:
            row = CAUSES.index(of)
            precision[row, column] = stiffness.rules
            lowest[row, column] = 0.0
    return _maximise(data, mean, precision, lowest)


def _shared(names: Sequence[str], data: Labelled) -> FloatArray:
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


def _maximise(
    data: Labelled, mean: FloatArray, precision: FloatArray, lowest: FloatArray
) -> FloatArray:
    from scipy.optimize import minimize

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(mean.shape)
        shares = softmax(data.rows @ weights.T)
        missed = -np.sum(data.targets * np.log(shares + 1e-12), axis=1)
        pulled = precision * (weights - mean)
        value = data.weights @ missed + 0.5 * np.sum(pulled * (weights - mean))
        slope = ((shares - data.targets) * data.weights[:, None]).T @ data.rows + pulled
        return float(value), slope.ravel()

    bounds = [(None if low == -np.inf else float(low), None) for low in lowest.ravel()]
    done = minimize(
        loss, mean.ravel(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 400, "ftol": 1e-8},
    )  # fmt: skip
    return np.asarray(done.x).reshape(mean.shape)


type Fit = Callable[[Labelled], Callable[[FloatArray], FloatArray]]
"""Fits something that turns rows into logits."""


def left_out(data: Labelled, fit: Fit) -> FloatArray:
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

    def fit(data: Labelled) -> Callable[[FloatArray], FloatArray]:
        weights = fit_weights(names, data, stiffness)
        return lambda rows: np.asarray(rows @ weights.T)

    return fit


def temperature(logits: FloatArray, data: Labelled) -> float:
    """Return what to divide logits by so that shares are as likely as they say.

    Takes with one cause or none count, each once: as often as they occur.
    """
    from scipy.optimize import minimize_scalar

    single = data.targets.max(axis=1) > 0.99

    def loss(log_t: float) -> float:
        shares = softmax(logits[single] / math.exp(log_t))
        return float(-np.sum(data.targets[single] * np.log(shares + 1e-12)))

    found = minimize_scalar(loss, bounds=(-2.0, 2.0), method="bounded")
    return float(math.exp(found.x))


def conformal_cuts(
    shares: FloatArray, data: Labelled, coverage: float = COVERAGE
) -> tuple[float, ...]:
    """Return the cut of each cause by which sets hold it with `coverage`.

    Split conformal prediction within each cause (Mondrian; Vovk 2012), so that a cause that is hard
    to tell isn't paid for by easy ones. One with too few takes to say belongs to every set. Takes
    with one cause or none count; see `model.candidates` for the sets.
    """
    single = data.targets.max(axis=1) > 0.99
    order = np.argsort(-shares[single], axis=1, kind="stable")
    ranked = np.take_along_axis(shares[single], order, axis=1)
    above = np.cumsum(ranked, axis=1) - ranked
    truth = np.argmax(data.targets[single], axis=1)
    at = np.argmax(order == truth[:, None], axis=1)
    scores = above[np.arange(len(at)), at]
    return tuple(_quantile(np.sort(scores[truth == c]), coverage) for c in range(len(CAUSES)))


def _quantile(scores: FloatArray, coverage: float) -> float:
    """Return just above the conformal quantile of sorted scores; 2, above any, where too few."""
    rank = math.ceil((len(scores) + 1) * coverage)
    return 2.0 if rank > len(scores) else float(np.nextafter(scores[rank - 1], 2.0))


def thresholds(shares: FloatArray, data: Labelled) -> Thresholds:
    """Return the limits by which naming is worth most, within the limit on false causes.

    Naming exactly what was injected is worth 1, abstaining nothing, anything else costs 1.

    Args:
        shares: left-out posteriors, shape (m, 10).
        data: what they are about.
    """
    cuts = conformal_cuts(shares, data)
    tried = [
        Thresholds(name, second, both, cuts)
        for name in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
        for second in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
        for both in (0.7, 0.8, 0.9, 0.95)
    ]
    return max(tried, key=lambda limits: _worth(shares, data, limits))


def _worth(shares: FloatArray, data: Labelled, limits: Thresholds) -> float:
    worth, none, false = 0.0, 0, 0
    for share, target in zip(shares, data.targets, strict=True):
        said = {d.value for d in named(share, limits)}
        true = {CAUSES[n] for n in np.flatnonzero(target)}
        if true == {NONE}:
            none += 1
            false += bool(said)
        elif said:
            worth += 1.0 if said == true else -1.0
    beyond = max(false / max(none, 1) - FALSE_CAUSE, 0.0)
    return worth / len(shares) - 10.0 * beyond


def fit_model(
    names: Sequence[str],
    data: Labelled,
    extra: Labelled,
    about: Mapping[str, Any],
    stiffness: Stiffness | None = None,
) -> EvidenceModel:
    """Fit and calibrate the model.

    Args:
        names: of the features.
        data: failures as recorded: the calibration is chosen on these.
        extra: variants with channels taken away, which the weights are fitted to as well.
        about: what to say about where it comes from.
        stiffness: as chosen by cross-validation.
    """
    stiffness = stiffness or Stiffness()
    logits = left_out(data, log_linear(names, stiffness))
    warmth = temperature(logits, data)
    limits = thresholds(softmax(logits / warmth), data)
    weights = fit_weights(names, joined(data, extra), stiffness)
    return EvidenceModel(tuple(names), weights, warmth, limits, COVERAGE, dict(about))


def joined(first: Labelled, second: Labelled) -> Labelled:
    """Return both, one after the other."""
    return Labelled(
        np.concatenate([first.rows, second.rows]),
        np.concatenate([first.targets, second.targets]),
        np.concatenate([first.weights, second.weights]),
        first.groups + second.groups,
        first.tasks + second.tasks,
    )


LEAST_LABELS: Final = 12
"""Labelled failures of a station from which on the model learns from them."""
LABEL_STIFFNESS: Final = 3.0
"""How hard a station's labels find it to move a weight; chosen on one shifted station."""


def recalibrated(
    model: EvidenceModel,
    rows: FloatArray,
    of: FloatArray,
    stiffness: float = LABEL_STIFFNESS,
) -> EvidenceModel:
    """Return the model corrected by a station's labelled failures.

    The shipped weights are the prior; a few dozen labels move what they contradict: evidence that
    is always there at this station stops counting.

    Args:
        model: as shipped.
        rows: features of labelled failures, shape (m, n).
        of: their causes as target shares, shape (m, 10).
        stiffness: precision of the prior.
    """
    mean = model.weights / model.temperature
    precision = np.full_like(mean, stiffness)
    precision[:, model.names.index("one")] = 0.1 * stiffness  # here, how often each occurs counts
    lowest = np.full_like(mean, -np.inf)
    data = Labelled(rows, of, np.ones(len(rows)), (), ())
    weights = _maximise(data, mean, precision, lowest)
    about = {**model.about, "labels": len(rows)}
    return replace(model, weights=weights, temperature=1.0, about=about)
