"""Collision against obstruction on a set of windows that the judge never saw.

A collision is brief and an obstruction is pushed against, so what tells them apart is how hard
and how long the arm pressed: log RMS and log peak of the force (`force_energy`), nothing
else, in a logistic regression with both classes weighted the same. Its threshold, even odds, is
fixed by the training set alone. No axis, no rest reading and no statistic of the other set is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.figures import (
    Indices,
    RecordedFigure,
    auroc,
    balanced_accuracy,
    duplicates,
    over,
)
from gaploop.core.messages import FloatArray

OBSTRUCTION: Final = "obstruction"
COLLISIONS: Final = ("collision", "fr_collision")
"""`fr_collision` is the source's "front collision"; only LP1 has it."""

RESOLUTION_N: Final = 1.0
"""Of the sets; no logarithm is taken of less."""


@dataclass(frozen=True)
class Transfer:
    """What a judge frozen on one set says of another.

    Attributes:
        collisions: windows of the other set that are a collision.
        obstructions: that are an obstruction.
        auroc: chance that an obstruction scores above a collision.
        balanced: mean of both classes' shares told right at the frozen threshold.
        found: share of the obstructions told.
        false_alarms: share of the collisions called an obstruction.
    """

    collisions: int
    obstructions: int
    auroc: RecordedFigure
    balanced: RecordedFigure
    found: float
    false_alarms: float


def force_energy(windows: FloatArray) -> FloatArray:
    """Return log of RMS and of peak force, shape (n_windows, 2).

    How hard and how long the arm pressed, in a scale where twice is always the same step. It needs
    no axes and no rest reading, so it carries over from one task of an arm to another.
    """
    force_n = np.linalg.norm(windows[..., :3], axis=2)
    rms_n, peak_n = np.sqrt((force_n**2).mean(axis=1)), force_n.max(axis=1)
    return np.asarray(np.log(np.maximum(np.stack([rms_n, peak_n], axis=1), RESOLUTION_N)))


def transfer(
    train: tuple[FloatArray, NDArray[np.str_]],
    other: tuple[FloatArray, NDArray[np.str_]],
    collisions: tuple[str, ...] = COLLISIONS[:1],
    seed: int = 0,
) -> Transfer | None:
    """Fit to `train`, judge `other`; both windows and labels. None where a class is missing."""
    from sklearn.linear_model import LogisticRegression

    x, y = _pair(*train, collisions)
    x_other, y_other = _pair(*other, collisions)
    if any(y_.all() or not y_.any() for y_ in (y, y_other)):
        return None
    judge = LogisticRegression(class_weight="balanced").fit(force_energy(x), y)
    odds = np.asarray(judge.decision_function(force_energy(x_other)))
    alarm = odds > 0

    def area(rows: Indices) -> float:
        return auroc(odds[rows], y_other[rows])

    def balanced(rows: Indices) -> float:
        return balanced_accuracy(alarm[rows], y_other[rows])

    groups = duplicates(x_other)
    return Transfer(
        int((~y_other).sum()),
        int(y_other.sum()),
        over(groups, area, seed),
        over(groups, balanced, seed),
        float(alarm[y_other].mean()),
        float(alarm[~y_other].mean()),
    )


def every_transfer(
    sets: Mapping[str, tuple[FloatArray, NDArray[np.str_]]], seed: int = 0
) -> dict[str, Transfer]:
    """Return every direction between two sets that have both classes, by "from → to"."""
    found = {}
    for a in sets:
        for b in sets:
            result = transfer(sets[a], sets[b], seed=seed) if a != b else None
            if result is not None:
                found[f"{a} → {b}"] = result
    return found


def _pair(
    windows: FloatArray, labels: NDArray[np.str_], collisions: tuple[str, ...]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    kept = np.isin(labels, (OBSTRUCTION, *collisions))
    return windows[kept], labels[kept] == OBSTRUCTION
