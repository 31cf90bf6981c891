"""Classes of force windows, learned from windows that somebody labelled.

Extremely randomised trees (Geurts et al., 2006) on each axis' mean, deviation, extremes and slope.
Votes of five classifiers on 150 features did no better (docs/real_input.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.views.view import TakeView

TREES: Final = 100
NORMAL: Final = "normal"
"""Label of a window in which nothing failed; that of takes that went well."""
ELSEWHERE: Final = (
    "Warning: classes of force windows were learned from others than these, and labels of one task "
    "or sensor seldom carry over to another (71 of 117 and 43 of 88 windows right: "
    "docs/real_input.md). Label some of these takes (gaploop label), and name their folder with "
    "--forces."
)
"""What to say where no window was among those that were learned from."""


class ForceClasses:
    """Tells the class of windows of force and torque, each of shape (n_samples, 6)."""

    def __init__(self, seed: int = 0) -> None:
        from sklearn.ensemble import ExtraTreesClassifier

        self._trees: Any = ExtraTreesClassifier(TREES, random_state=seed)
        self._learned: set[bytes] = set()

    def fit(self, windows: FloatArray | list[FloatArray], labels: NDArray[np.str_]) -> ForceClasses:
        """Learn from labelled windows: `labels` has one word for each, two words at least."""
        self._trees.fit([_features(w) for w in windows], labels)
        self._learned = set(map(_key, windows))
        return self

    def knows(self, window: FloatArray) -> bool:
        """Say whether this very window was among those that it learned from."""
        return _key(window) in self._learned

    def predict(self, windows: FloatArray) -> NDArray[np.str_]:
        """Return the likeliest class of each window, shape (n_windows,)."""
        return np.asarray(self._trees.predict([_features(w) for w in windows]))

    def likeliest(self, window: FloatArray) -> tuple[str, float]:
        """Return the likeliest class of one window, and its share of the trees' votes."""
        (shares,) = self._trees.predict_proba([_features(window)])
        return str(self._trees.classes_[shares.argmax()]), float(shares.max())


def learn_force_classes(path: Path) -> ForceClasses:
    """Learn from a file in the format of UCI's sets, or from a folder of labelled takes.

    Of takes, the failure mode is the class; those that went well are `NORMAL`.

    Raises:
        UnusableInputError: it can't be read, or holds fewer than two classes.
    """
    from gaploop.collect.imports.uci_failures import labelled_windows
    from gaploop.datasets.sources import load_takes

    if path.is_dir():
        pairs = [
            (wrench, take.failure_mode or NORMAL)
            for take in load_takes(path)
            if (wrench := TakeView(take, images=False).wrench) is not None
            and (take.failure_mode or take.outcome is Outcome.SUCCESS)
        ]
        windows, labels = [w for w, _ in pairs], np.array([label for _, label in pairs])
    else:
        read, labels = labelled_windows(path)
        windows = list(read)
    if len(set(labels)) < 2:
        raise UnusableInputError(
            f"--forces={path} holds {len(labels)} labelled force windows of {len(set(labels))} "
            "class(es). Two classes are needed: gaploop label DIR --failure_mode=…, and "
            "--outcome=success where nothing failed."
        )
    return ForceClasses().fit(windows, labels)


def _key(window: FloatArray) -> bytes:
    return np.asarray(window, dtype=np.float32).tobytes()


def _features(window: FloatArray) -> FloatArray:
    """Return mean, deviation, extremes and slope of each axis, shape (30,)."""
    window = window[np.isfinite(window).all(axis=1)]
    time = np.linspace(-1.0, 1.0, len(window))
    slope = time @ window / max(float(time @ time), 1e-9)
    return np.concatenate(
        [window.mean(axis=0), window.std(axis=0), window.min(axis=0), window.max(axis=0), slope]
    )
