"""One fixed way from labelled force windows to classes, the same for every set.

Classifiers of different kinds vote by their mean probability: extremely randomised trees (Geurts
et al., 2006) on the features as they are, with two votes; a support vector machine, a logistic
regression and a shrunken linear discriminant (Ledoit and Wolf, 2004) on their signed logarithms.
Trees are best at classes told by how hard, linear ones at classes told by which way. Windows come
by the dozen, so nothing is tuned per set.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.wrench import signed_log, wrench_features
from gaploop.core.types import FloatArray

TREES: Final = 100
TREE_FEATURES: Final = 0.3
"""Share of the features that a split chooses among."""
TREE_VOTES: Final = 2
SVM_C: Final = 10.0
LOGISTIC_C: Final = 0.1
SHARPNESS: Final = 1.5
"""Turns the machine's one-against-rest scores, spaced by about one, into probabilities."""

Labels = NDArray[np.str_]


class WindowClassifier:
    """Classifies windows of force and torque, shape (n_windows, n_samples, 6)."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.classes: Labels = np.empty(0, dtype=str)
        self._trees: Any = None
        self._linear: tuple[Any, ...] = ()

    def fit(self, windows: FloatArray, labels: Labels) -> WindowClassifier:
        """Learn from labelled windows: `labels` has one word for each, two words at least."""
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        features = wrench_features(windows)
        self._trees = ExtraTreesClassifier(
            TREES, max_features=TREE_FEATURES, random_state=self.seed
        ).fit(features, labels)
        self.classes = self._trees.classes_
        machines = (
            SVC(C=SVM_C),
            LogisticRegression(C=LOGISTIC_C, max_iter=300),
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        )
        self._linear = tuple(
            make_pipeline(StandardScaler(), m).fit(signed_log(features), labels) for m in machines
        )
        return self

    def probabilities(self, windows: FloatArray) -> FloatArray:
        """Return a probability for each of `classes`, shape (n_windows, n_classes)."""
        features = wrench_features(windows)
        logs = signed_log(features)
        machine, logistic, discriminant = self._linear
        scores = machine.decision_function(logs)
        if scores.ndim == 1:  # two classes: one score, for the second
            scores = np.stack([-scores, scores], axis=1)
        power = np.exp(SHARPNESS * (scores - scores.max(axis=1, keepdims=True)))
        votes = (
            *[self._trees.predict_proba(features)] * TREE_VOTES,
            power / power.sum(axis=1, keepdims=True),
            logistic.predict_proba(logs),
            discriminant.predict_proba(logs),
        )
        return np.asarray(np.mean(votes, axis=0))

    def predict(self, windows: FloatArray) -> Labels:
        """Return the likeliest class of each window, shape (n_windows,)."""
        return np.asarray(self.classes[self.probabilities(windows).argmax(axis=1)])
