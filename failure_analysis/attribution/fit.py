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

COVERAGE: Final = 0.90
"""Of the conformal sets."""
NONE_FIRST: Final = 1.2
"""Logit of "none" where nothing speaks for anything; the rules' own value."""
FALSE_CAUSE: Final = 0.04
"""Share of gap-free failures for which a cause may be named, on left-out predictions."""
MIXED_SAFE: Final = 0.92
"""Share of mixed failures of which both causes are named, or none, on left-out predictions."""


@dataclass(frozen=True)
class Stiffness:
    """How hard weights are held at their prior: precisions; the larger, the harder.

    Attributes:
        rules: weights of what the rules say, on their own dimension.
        signals: all weights of single signals, modes and flags.
        start: prior weight of what the rules leave standing.
    """

    rules: float = 1.0
    signals: float = 8.0
    start: float = 0.8


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
    """Return the most likely weights, shape (10, n), given the rules as prior."""
    mean, precision, lowest = _prior(names, stiffness)
    return _maximise(data, mean, precision, lowest)


def _prior(names: Sequence[str], stiffness: Stiffness) -> tuple[FloatArray, FloatArray, FloatArray]:
    mean = np.zeros((len(CAUSES), len(names)))
    precision = np.full_like(mean, stiffness.signals)
    lowest = np.full_like(mean, -np.inf)
    starts = {"left": stiffness.start, "direct": 0.0, "indirect": 0.0}
    for column, name in enumerate(names):
        kind, _, of = name.partition(".")
        if kind == "one":
            precision[:, column] = 0.1
            mean[CAUSES.index(NONE), column] = NONE_FIRST
        elif kind in starts:
            row = CAUSES.index(of)
            mean[row, column] = starts[kind]
            precision[row, column] = stiffness.rules
            lowest[row, column] = 0.0
    return mean, precision, lowest


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
    """Return what to divide logits by so that shares are as likely as they say."""
    from scipy.optimize import minimize_scalar

    def loss(log_t: float) -> float:
        shares = softmax(logits / math.exp(log_t))
        missed = -np.sum(data.targets * np.log(shares + 1e-12), axis=1)
        return float(data.weights @ missed)

    found = minimize_scalar(loss, bounds=(-1.5, 2.0), method="bounded")
    return float(math.exp(found.x))


def conformal_cut(shares: FloatArray, data: Labelled, coverage: float = COVERAGE) -> float:
    """Return the cut by which sets hold the cause with `coverage`, by split conformal prediction.

    Takes with one cause or none count; see `model.candidates` for the sets.
    """
    single = data.targets.max(axis=1) > 0.99
    order = np.argsort(-shares[single], axis=1, kind="stable")
    ranked = np.take_along_axis(shares[single], order, axis=1)
    above = np.cumsum(ranked, axis=1) - ranked
    truth = np.argmax(data.targets[single], axis=1)
    at = np.argmax(order == truth[:, None], axis=1)
    scores = np.sort(above[np.arange(len(at)), at])
    rank = math.ceil((len(scores) + 1) * coverage)
    return 1.0 if rank > len(scores) else float(np.nextafter(scores[rank - 1], 2.0))


def thresholds(shares: FloatArray, data: Labelled) -> Thresholds:
    """Return the limits that name most single causes rightly, within the two error limits.

    Args:
        shares: left-out posteriors, shape (m, 10).
        data: what they are about.
    """
    cut = conformal_cut(shares, data)
    best, best_value = Thresholds(0.9, 0.1, 0.95, cut), -np.inf
    for name in np.arange(0.30, 0.96, 0.05):
        for second in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
            for both in (0.7, 0.8, 0.9, 0.95):
                tried = Thresholds(float(name), second, both, cut)
                value = _worth(shares, data, tried)
                if value > best_value:
                    best, best_value = tried, value
    return best


def _worth(shares: FloatArray, data: Labelled, limits: Thresholds) -> float:
    """Share of single causes named rightly, less ten times what exceeds the error limits."""
    counts = {"single": 0, "right": 0, "wrong": 0, "none": 0, "false": 0, "mixed": 0, "unsafe": 0}
    for share, target in zip(shares, data.targets, strict=True):
        said = {d.value for d in named(share, limits)}
        true = {CAUSES[n] for n in np.flatnonzero(target)}
        if true == {NONE}:
            counts["none"] += 1
            counts["false"] += bool(said)
        elif len(true) > 1:
            counts["mixed"] += 1
            counts["unsafe"] += bool(said) and said != true
        else:
            counts["single"] += 1
            counts["right"] += said == true
            counts["wrong"] += bool(said) and said != true
    false = counts["false"] / max(counts["none"], 1) - FALSE_CAUSE
    unsafe = counts["unsafe"] / max(counts["mixed"], 1) - (1.0 - MIXED_SAFE)
    named_rightly = (counts["right"] - 0.5 * counts["wrong"]) / max(counts["single"], 1)
    return named_rightly - 10.0 * (max(false, 0.0) + max(unsafe, 0.0))


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
    precision[:, model.names.index("one")] = 0.1 * stiffness
    lowest = np.full_like(mean, -np.inf)
    data = Labelled(rows, of, np.ones(len(rows)), (), ())
    weights = _maximise(data, mean, precision, lowest)
    about = {**model.about, "labels": len(rows)}
    return replace(model, weights=weights, temperature=1.0, about=about)
