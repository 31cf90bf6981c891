"""Signals of a force/torque sensor, whose rest reading is the take's own quietest stretch."""

from __future__ import annotations

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.view import TakeView

QUIET_SAMPLES = 5
FORCE, TORQUE = slice(3), slice(3, 6)


def quiet_stretch(wrench: FloatArray) -> tuple[FloatArray, float]:
    """Return mean [N, N m], shape (6,), and force spread [N] of the quietest few samples."""
    wrench = wrench[np.isfinite(wrench).all(axis=1)]
    n = min(QUIET_SAMPLES, len(wrench))
    starts = range(len(wrench) - n + 1)
    spreads = [float(np.linalg.norm(wrench[s : s + n, :3].std(axis=0))) for s in starts]
    best = int(np.argmin(spreads))
    return wrench[best : best + n].mean(axis=0), spreads[best]


def _deviation(view: TakeView, axes: slice) -> FloatArray:
    """Return how far three axes are from their rest reading, shape (n,), where they were read."""
    wrench = known(view.wrench)
    rest = quiet_stretch(wrench)[0]
    values = np.linalg.norm(wrench[:, axes] - rest[axes], axis=1)
    return np.asarray(values[np.isfinite(values)])


def _jumps(view: TakeView, axes: slice) -> FloatArray:
    """Return how far three axes change from sample to sample, shape (n - 1,)."""
    return np.asarray(np.linalg.norm(np.diff(known(view.wrench)[:, axes], axis=0), axis=1))


@signal("N", "force", 1.0, "force reaches {value} from rest")
def force_peak_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading."""
    return float(_deviation(view, FORCE).max())


@signal("N", "force", 1.0, "force stands {value} from rest")
def force_typical_n(view: TakeView) -> float:
    """Median distance of the force from its rest reading: a push that lasts."""
    return float(np.median(_deviation(view, FORCE)))


@signal("N", "force", 1.0, "force ends {value} from rest")
def force_end_n(view: TakeView) -> float:
    """Median distance of the force from rest over the last three samples."""
    return float(np.median(_deviation(view, FORCE)[-3:]))


@signal("N", "force", 1.0, "force changes by {value} between samples")
def force_jump_n(view: TakeView) -> float:
    """Largest change of the force between two samples."""
    jumps = _jumps(view, FORCE)
    return float(np.max(jumps, where=np.isfinite(jumps), initial=0.0)) if len(jumps) else np.nan


@signal("N m", "force", 0.1, "torque reaches {value} from rest")
def torque_peak_nm(view: TakeView) -> float:
    """Largest distance of the torque from its rest reading."""
    return float(_deviation(view, TORQUE).max())


@signal("N m", "force", 0.1, "torque changes by {value} between samples")
def torque_jump_nm(view: TakeView) -> float:
    """Largest change of the torque between two samples."""
    jumps = _jumps(view, TORQUE)
    return float(np.nanmax(jumps)) if np.isfinite(jumps).any() else np.nan
