"""A station's own labels: what engineers say caused its failures, and a model corrected by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core import labels
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.attribution.features import PLACED
from gaploop.failure_analysis.attribution.model import CAUSES, NONE, EvidenceModel, softmax

LEAST_LABELS: Final = 12
"""Labelled failures of a station from which on the model learns from them."""
LABEL_STIFFNESS: Final = 3.0
"""How hard a station's labels find it to move a weight; chosen on one shifted station."""


def engineer_labels(path: Path) -> dict[str, dict[str, float]]:
    """Return uid to dimension to weight, of the labels that engineers gave and didn't take back.

    Suggestions and operators' words are left out: the model would learn from itself. An engineer's
    empty label says that none of the dimensions is the cause. Without a file nothing is said.

    Raises:
        UnusableInputError: a line of it can't be read.
    """
    given = (e for e in labels.read(path) if e.source == "engineer" and e.field == "dimensions")
    return {uid: dict(event.value) for (uid, _), event in labels.standing(given).items()}


def weighted_targets(causes: Sequence[Mapping[str, float]]) -> FloatArray:
    """Return the target shares, shape (m, 10), of takes with weighted causes; none if empty."""
    rows = np.zeros((len(causes), len(CAUSES)))
    for row, found in zip(rows, causes, strict=True):
        for cause, weight in found.items():
            row[CAUSES.index(cause)] = weight
        if not row.any():
            row[CAUSES.index(NONE)] = 1.0
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def recalibrated(model: EvidenceModel, rows: FloatArray, of: FloatArray) -> EvidenceModel:
    """Return the model corrected by a station's labelled failures, shape (m, n).

    The shipped weights are the prior; a few dozen labels move what they contradict: evidence that
    is always there at this station stops counting. `of` are target shares, shape (m, 10).
    """
    mean = model.weights / model.temperature
    precision = np.full_like(mean, LABEL_STIFFNESS)
    precision[:, model.names.index("one")] *= 0.1  # here, how often each occurs counts
    precision[:, model.names.index(PLACED)] = np.inf
    lowest = np.full_like(mean, -np.inf)
    weights = likeliest_weights(rows, of, np.ones(len(rows)), mean, precision, lowest)
    about = {**model.about, "labels": len(rows)}
    return replace(model, weights=weights, temperature=1.0, about=about)


def likeliest_weights(
    rows: FloatArray,
    of: FloatArray,
    counts: FloatArray,
    mean: FloatArray,
    precision: FloatArray,
    lowest: FloatArray,
) -> FloatArray:
    """Return the likeliest weights of labelled failures, shape (10, n).

    Args:
        rows: their features, shape (m, n).
        of: their causes as target shares, shape (m, 10).
        counts: how much each counts, shape (m,).
        mean: of the prior; its precision and the weights' lower bounds are of shape (10, n), too. A
            feature stays at the mean where any precision is infinite.
    """
    from scipy.optimize import minimize

    free = np.isfinite(precision).all(axis=0)
    start, held = mean[:, free], precision[:, free]
    fixed = rows[:, ~free] @ mean[:, ~free].T
    rows = rows[:, free]

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(start.shape)
        shares = softmax(rows @ weights.T + fixed)
        missed = -np.sum(of * np.log(shares + 1e-12), axis=1)
        pulled = held * (weights - start)
        value = counts @ missed + 0.5 * np.sum(pulled * (weights - start))
        slope = ((shares - of) * counts[:, None]).T @ rows + pulled
        return float(value), slope.ravel()

    bounds = [(None if v == -np.inf else float(v), None) for v in lowest[:, free].ravel()]
    done = minimize(
        loss, start.ravel(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 400, "ftol": 1e-8},
    )  # fmt: skip
    found = mean.copy()
    found[:, free] = np.asarray(done.x).reshape(start.shape)
    return found
