"""Fits the model to labelled failures, calibrates it, and corrects it by a station's labels.

The rules are the prior: a weight starts where the rules' author put it, and data moves it as far
as it is worth. What evidence for a dimension says about that dimension may not become negative.
Everything is chosen on predictions for mechanisms and tasks that the fit behind them left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.attribution.calibrate import COVERAGE, calibrate
from gaploop.failure_analysis.attribution.features import PLACED
from gaploop.failure_analysis.attribution.labelled import LabelledFailures, joined
from gaploop.failure_analysis.attribution.model import CAUSES, EvidenceModel, softmax

STRENGTH: Final = "left"
STRENGTH_FIRST: Final = 1.0
"""What a strength of the rules is worth at first, in any dimension."""
BIAS_STIFFNESS: Final = 1e3
"""Dimensions get hardly any weight of their own: how often each occurs says nothing elsewhere."""
NONE_FIRST: Final = 1.2
"""Logit of "none" where nothing speaks for anything; the rules' own value."""


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
    return _maximise(data, mean, precision, lowest)


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


def _maximise(
    data: LabelledFailures, mean: FloatArray, precision: FloatArray, lowest: FloatArray
) -> FloatArray:
    """Return the likeliest weights, shape (10, n); where `precision` is infinite, the mean."""
    from scipy.optimize import minimize

    free = np.isfinite(precision).all(axis=0)
    rows, start = data.rows[:, free], mean[:, free]
    held, low = precision[:, free], lowest[:, free]
    fixed = data.rows[:, ~free] @ mean[:, ~free].T

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(start.shape)
        shares = softmax(rows @ weights.T + fixed)
        missed = -np.sum(data.targets * np.log(shares + 1e-12), axis=1)
        pulled = held * (weights - start)
        value = data.weights @ missed + 0.5 * np.sum(pulled * (weights - start))
        slope = ((shares - data.targets) * data.weights[:, None]).T @ rows + pulled
        return float(value), slope.ravel()

    bounds = [(None if value == -np.inf else float(value), None) for value in low.ravel()]
    done = minimize(
        loss, start.ravel(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 400, "ftol": 1e-8},
    )  # fmt: skip
    found = mean.copy()
    found[:, free] = np.asarray(done.x).reshape(start.shape)
    return found


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
    calibrated = calibrate(logits, data.rows[:, list(names).index(PLACED)], data)
    weights = fit_weights(names, joined(data, extra), stiffness)
    return EvidenceModel(
        tuple(names), weights, calibrated.temperature, calibrated.doubt, calibrated.pairs,
        calibrated.thresholds, COVERAGE, dict(about),
    )  # fmt: skip


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
    precision[:, model.names.index(PLACED)] = np.inf
    lowest = np.full_like(mean, -np.inf)
    data = LabelledFailures(rows, of, np.ones(len(rows)), np.ones(len(rows)), (), ())
    weights = _maximise(data, mean, precision, lowest)
    about = {**model.about, "labels": len(rows)}
    return replace(model, weights=weights, temperature=1.0, about=about)
