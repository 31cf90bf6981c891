"""Failures with known causes: what attribution is fitted to and calibrated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.attribution.model import CAUSES, NONE


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
