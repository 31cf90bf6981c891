"""Classes of force windows, learned from windows that somebody labelled.

Extremely randomised trees (Geurts et al., 2006) on each axis' mean, deviation, extremes and slope.
Votes of five classifiers on 150 features did no better (docs/figures/real_input.md).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray

TREES: Final = 100


class ForceClasses:
    """Tells the class of windows of force and torque, each of shape (n_samples, 6)."""

    def __init__(self, seed: int = 0) -> None:
        from sklearn.ensemble import ExtraTreesClassifier

        self._trees: Any = ExtraTreesClassifier(TREES, random_state=seed)

    def fit(self, windows: FloatArray | list[FloatArray], labels: NDArray[np.str_]) -> ForceClasses:
        """Learn from labelled windows: `labels` has one word for each, two words at least."""
        self._trees.fit([_features(w) for w in windows], labels)
        return self

    def predict(self, windows: FloatArray) -> NDArray[np.str_]:
        """Return the likeliest class of each window, shape (n_windows,)."""
        return np.asarray(self._trees.predict([_features(w) for w in windows]))


def _features(window: FloatArray) -> FloatArray:
    """Return mean, deviation, extremes and slope of each axis, shape (30,)."""
    window = window[np.isfinite(window).all(axis=1)]
    time = np.linspace(-1.0, 1.0, len(window))
    slope = time @ window / max(float(time @ time), 1e-9)
    return np.concatenate(
        [window.mean(axis=0), window.std(axis=0), window.min(axis=0), window.max(axis=0), slope]
    )
