"""Figures about labelled recordings: repeated folds, intervals, baselines, frozen thresholds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.force_classes import ForceClasses
from gaploop.core.messages import FloatArray

FOLDS: Final = 5
DRAWS: Final = 1000
"""Of a bootstrap."""
LEVEL: Final = (2.5, 97.5)
"""Percentiles of an interval: 95 %."""
BASELINE_TREES: Final = 100
OURS: Final = "trees on mean, deviation, extremes, slope"

Indices = NDArray[np.int64]
Labels = NDArray[np.str_]


class Classifier(Protocol):
    """Fits labelled windows and names the class of others."""

    def fit(self, windows: FloatArray, labels: Labels) -> Any:
        """Learn from windows, shape (n, n_samples, 6), and their labels, shape (n,)."""

    def predict(self, windows: FloatArray) -> Labels:
        """Return a label for each window."""


class Majority:
    """Always says the commonest class."""

    label = ""

    def fit(self, _windows: FloatArray, labels: Labels) -> None:
        """Find the commonest class."""
        names, counts = np.unique(labels, return_counts=True)
        self.label = str(names[counts.argmax()])

    def predict(self, windows: FloatArray) -> Labels:
        """Return it for each window."""
        return np.full(len(windows), self.label)


class RawForest:
    """A plain random forest on the raw readings."""

    def __init__(self, seed: int = 0) -> None:
        from sklearn.ensemble import RandomForestClassifier

        self._forest = RandomForestClassifier(BASELINE_TREES, random_state=seed)

    def fit(self, windows: FloatArray, labels: Labels) -> None:
        """Learn from the readings as they are."""
        self._forest.fit(windows.reshape(len(windows), -1), labels)

    def predict(self, windows: FloatArray) -> Labels:
        """Return a label for each window."""
        return np.asarray(self._forest.predict(windows.reshape(len(windows), -1)))


METHODS: Final[dict[str, Callable[[int], Classifier]]] = {
    OURS: ForceClasses,
    "random forest on raw readings": RawForest,
    "majority": lambda _seed: Majority(),
}


@dataclass(frozen=True)
class RecordedFigure:
    """A figure and its 95 % interval."""

    value: float
    interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"value": self.value, "interval": list(self.interval)}


@dataclass(frozen=True)
class Score:
    """How often cases were told right.

    Attributes:
        accuracy: share of the cases.
        balanced: mean over the classes.
        confusion: true class to guessed class to mean count over the repeats.
    """

    accuracy: RecordedFigure
    balanced: RecordedFigure
    confusion: dict[str, dict[str, float]]


def duplicates(windows: FloatArray) -> Indices:
    """Return a number for each window, the same for windows that hold the same readings."""
    _, groups = np.unique(windows.reshape(len(windows), -1), axis=0, return_inverse=True)
    return np.asarray(groups.ravel())


def folds(labels: Labels, groups: Indices, seed: int) -> Iterator[tuple[Indices, Indices]]:
    """Yield training and test cases of each of five folds; a group is never in both."""
    from sklearn.model_selection import StratifiedGroupKFold

    split = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # a class with fewer cases than folds is what sets have
        warnings.filterwarnings("ignore", message="The least populated class")
        yield from split.split(np.zeros(len(labels)), labels, groups)


def cross_validated(
    windows: FloatArray,
    labels: Labels,
    make: Callable[[int], Classifier],
    repeats: Sequence[int],
    groups: Indices,
    progress: Callable[[], None] = lambda: None,
) -> Labels:
    """Return the class told for each case by a classifier that never saw it.

    Args:
        windows: shape (n_cases, n_samples, 6).
        labels: shape (n_cases,).
        make: builds a classifier from a seed.
        repeats: seeds; each draws its own folds.
        groups: cases with the same number stay in the same fold, shape (n_cases,).
        progress: called after each repeat.

    Returns:
        Shape (n_repeats, n_cases).
    """
    told = np.empty((len(repeats), len(labels)), dtype=labels.dtype)
    for row, seed in enumerate(repeats):
        for train, test in folds(labels, groups, seed):
            classifier = make(seed)
            classifier.fit(windows[train], labels[train])
            told[row, test] = classifier.predict(windows[test])
        progress()
    return told


def score(told: Labels, labels: Labels, groups: Indices, seed: int = 0) -> Score:
    """Score repeats, shape (n_repeats, n_cases); intervals by bootstrap over groups of cases."""
    names = np.unique(labels)
    right = (told == labels).mean(axis=0)

    def balanced(rows: Indices) -> float:
        present = [rows[labels[rows] == name] for name in names]
        return float(np.mean([right[p].mean() for p in present if len(p)]))

    def accuracy(rows: Indices) -> float:
        return float(right[rows].mean())

    confusion = {
        str(true): {
            str(guess): float((told[:, labels == true] == guess).sum(axis=1).mean())
            for guess in names
        }
        for true in names
    }
    return Score(over(groups, accuracy, seed), over(groups, balanced, seed), confusion)


def over(groups: Indices, figure: Callable[[Indices], float], seed: int = 0) -> RecordedFigure:
    """Return a figure of cases, with an interval by bootstrap over their groups.

    Args:
        groups: which group each case belongs to, shape (n_cases,).
        figure: from case numbers to a figure; NaN where they don't allow one.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    draws = [
        figure(np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))]))
        for _ in range(DRAWS)
    ]
    low, high = np.nanpercentile(draws, LEVEL)
    return RecordedFigure(figure(np.arange(len(groups))), (float(low), float(high)))


def auroc(scores: FloatArray, positive: NDArray[np.bool_]) -> float:
    """Return the chance that a positive case scores above a negative one; NaN without both."""
    from scipy.stats import rankdata

    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((rankdata(scores)[positive].sum() - n * (n + 1) / 2) / (n * m))


def matched_auroc(scores: FloatArray, positive: NDArray[np.bool_], stratum: Indices) -> float:
    """Return `auroc` over the pairs of one stratum only; NaN where no stratum holds both."""
    wins = pairs = 0.0
    for value in np.unique(stratum[positive]):
        inside = stratum == value
        count = float(positive[inside].sum() * (~positive[inside]).sum())
        if count:
            wins += count * auroc(scores[inside], positive[inside])
            pairs += count
    return wins / pairs if pairs else float("nan")


def balanced_accuracy(alarm: NDArray[np.bool_], positive: NDArray[np.bool_]) -> float:
    """Return the mean of both classes' shares told right; NaN without both."""
    if positive.all() or not positive.any():
        return float("nan")
    return float((alarm[positive].mean() + (~alarm[~positive]).mean()) / 2)
