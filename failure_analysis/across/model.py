"""Logistic regression with Firth's penalty: finite estimates for any table of counts.

Where a level never failed, or never succeeded, plain maximum likelihood runs off to infinity
(separation), which is the common case with a dozen takes a condition. Firth's penalty (Biometrika
80:27, 1993; Heinze and Schemper, Stat Med 21:2409, 2002) keeps the estimate finite and takes out
its first-order bias. Adding half of each row's leverage to successes and to failures is the same
thing, and is how it is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import expit

from gaploop.core.types import FloatArray

_TURNS: Final = 200
_TOLERANCE: Final = 1e-8
_LONGEST: Final = 2.0
"""A step in any coefficient, in log odds; longer ones overshoot."""


@dataclass(frozen=True)
class Fit:
    """A fitted logistic regression.

    Attributes:
        coefficients: log odds, shape (p,).
        covariance: of the coefficients, from the penalised likelihood, shape (p, p).
    """

    coefficients: FloatArray
    covariance: FloatArray


def fit_logistic(
    design: FloatArray, successes: FloatArray, trials: FloatArray, start: FloatArray | None = None
) -> Fit:
    """Fit successes out of trials.

    Args:
        design: shape (n, p), of full column rank over rows that have trials.
        successes: shape (n,).
        trials: shape (n,).
        start: coefficients to begin from, shape (p,).
    """
    beta = np.zeros(design.shape[1]) if start is None else start.copy()
    for _ in range(_TURNS):
        chance = expit(design @ beta)
        weight = trials * chance * (1 - chance)
        covariance = _inverse(design, weight)
        leverage = weight * np.einsum("ij,jk,ik->i", design, covariance, design)
        score = design.T @ (successes - trials * chance + leverage * (0.5 - chance))
        step = covariance @ score
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300))
        beta = beta + step
        if float(np.abs(step).max()) < _TOLERANCE:
            break
    chance = expit(design @ beta)
    return Fit(beta, _inverse(design, trials * chance * (1 - chance)))


def _inverse(design: FloatArray, weight: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(design.T @ (design * weight[:, None])), dtype=np.float64)


def difference_of_rates(
    beta: FloatArray, design: FloatArray, other: FloatArray, weight: FloatArray
) -> tuple[float, FloatArray]:
    """Return mean success under `other` minus under `design`, and its gradient in `beta`.

    Standardised over the rows by weight: everything but what differs between the two designs stays
    as it was observed.

    Args:
        beta: coefficients, shape (p,).
        design: as it would be at the reference, shape (n, p).
        other: as it would be at the level asked for, shape (n, p).
        weight: of each row, shape (n,).
    """
    weight = weight / weight.sum()
    p, q = expit(other @ beta), expit(design @ beta)
    gradient = (weight * p * (1 - p)) @ other - (weight * q * (1 - q)) @ design
    return float(weight @ (p - q)), gradient
