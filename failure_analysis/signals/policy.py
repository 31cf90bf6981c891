"""Signals of the policy that drove: does it stick to its plans, does it know what it sees."""

from __future__ import annotations

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.view import TakeView


def _percentile(values: FloatArray, q: float) -> float:
    seen = values[np.isfinite(values)]
    return float(np.percentile(seen, q)) if len(seen) else np.nan


@signal("rad", "policy", 0.003, "successive plans differ by {value} rms")
def chunk_disagreement_rad(view: TakeView) -> float:
    """Median rms difference of overlapping consecutive action chunks, over arm joints and steps.

    After the temporal consistency of Agia et al. 2024 (arXiv:2410.04640).
    """
    return _percentile(known(view.policy).disagreement_rad, 50)


@signal("rad", "policy", 0.006, "at worst successive plans differ by {value} rms")
def chunk_disagreement_peak_rad(view: TakeView) -> float:
    """95th percentile of the difference of overlapping consecutive action chunks."""
    return _percentile(known(view.policy).disagreement_rad, 95)


@signal("", "policy", 0.1, "the policy's features stand {value} spreads from its training data")
def feature_mahalanobis(view: TakeView) -> float:
    """95th percentile of the Mahalanobis distance in the policy's own encoder (Lee et al. 2018).

    Divided by the root of the number of features: about 1 on training data.
    """
    return _percentile(known(view.policy).mahalanobis, 95)


@signal("", "policy", 0.1, "the nearest training features stand {value} spreads away")
def feature_neighbour(view: TakeView) -> float:
    """95th percentile of the distance to the tenth nearest training features (Sun et al. 2022)."""
    return _percentile(known(view.policy).neighbour, 95)


@signal(
    "",
    "policy",
    0.05,
    "to the policy its pictures are {value} times as unfamiliar as its training takes'",
)
def view_unfamiliar(view: TakeView) -> float:
    """Median over the take of how unfamiliar the policy's pictures are, its worst camera.

    Distance of a picture's three least familiar cells from the nearest cells that the policy's
    encoder yields on its training takes (Roth et al. 2022), in those takes' own reach.
    """
    return known(view.policy).measures.get("view_unfamiliar", np.nan)


@signal("px", "policy", 0.3, "a camera's view stands {value} from its place")
def view_moved_px(view: TakeView) -> float:
    """Shift of a picture's middle against the training takes, largest camera, of 192 px.

    By matched features and RANSAC.
    """
    return known(view.policy).measures.get("view_moved_px", np.nan)


@signal("", "policy", 1.0, "a camera's light or colour stands {value} spreads off")
def view_light(view: TakeView) -> float:
    """Spreads of light, colour or sharpness from the training takes, largest of any camera."""
    return known(view.policy).measures.get("view_light", np.nan)
