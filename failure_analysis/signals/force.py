"""Signals of a force/torque window, for logs that hold little else.

The sensor's rest reading is not known, so it comes from the reference (the quiet part of the
set's windows) where there is one, else from the window's own quietest stretch.
"""

from __future__ import annotations

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.signals.registry import signal
from gaploop.failure_analysis.views.view import TakeView

NAN = float("nan")
QUIET_SAMPLES = 5


def quiet_stretch(wrench: FloatArray) -> tuple[FloatArray, float]:
    """Return mean [N, N m], shape (6,), and force spread [N] of the quietest few samples."""
    wrench = wrench[np.isfinite(wrench).all(axis=1)]
    n = min(QUIET_SAMPLES, len(wrench))
    starts = range(len(wrench) - n + 1)
    spreads = [float(np.linalg.norm(wrench[s : s + n, :3].std(axis=0))) for s in starts]
    best = int(np.argmin(spreads))
    return wrench[best : best + n].mean(axis=0), spreads[best]


def force_deviation_n(view: TakeView) -> FloatArray:
    """Return how far the force is from its rest reading [N], shape (n,), where it was read."""
    wrench = view.wrench
    if wrench is None or not np.isfinite(wrench[:, :3]).any():
        return np.empty(0)
    rest = view.force_rest if view.force_rest is not None else quiet_stretch(wrench)[0]
    values = np.linalg.norm(wrench[:, :3] - rest[:3], axis=1)
    return np.asarray(values[np.isfinite(values)])


@signal("force_peak_n", "N", "force", 1.0, "force reaches {value} from rest")
def force_peak_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading."""
    values = force_deviation_n(view)
    return float(np.nanmax(values)) if len(values) else NAN


@signal("force_typical_n", "N", "force", 1.0, "force stands {value} from rest")
def force_typical_n(view: TakeView) -> float:
    """Median distance of the force from its rest reading: a push that lasts."""
    values = force_deviation_n(view)
    return float(np.nanmedian(values)) if len(values) else NAN


@signal("force_end_n", "N", "force", 1.0, "force ends {value} from rest")
def force_end_n(view: TakeView) -> float:
    """Median distance of the force from rest over the last three samples."""
    values = force_deviation_n(view)
    return float(np.nanmedian(values[-3:])) if len(values) else NAN


@signal("force_jump_n", "N", "force", 1.0, "force changes by {value} between samples")
def force_jump_n(view: TakeView) -> float:
    """Largest change of the force between two samples."""
    wrench = view.wrench
    if wrench is None or len(wrench) < 2:
        return NAN
    jumps = np.linalg.norm(np.diff(wrench[:, :3], axis=0), axis=1)
    return float(np.max(jumps, where=np.isfinite(jumps), initial=0.0))


@signal("torque_peak_nm", "N m", "force", 0.1, "torque reaches {value} from rest")
def torque_peak_nm(view: TakeView) -> float:
    """Largest distance of the torque from its rest reading."""
    wrench = view.wrench
    if wrench is None or not np.isfinite(wrench[:, 3:]).any():
        return NAN
    rest = view.force_rest if view.force_rest is not None else quiet_stretch(wrench)[0]
    return float(np.nanmax(np.linalg.norm(wrench[:, 3:] - rest[3:], axis=1)))


@signal("torque_jump_nm", "N m", "force", 0.1, "torque changes by {value} between samples")
def torque_jump_nm(view: TakeView) -> float:
    """Largest change of the torque between two samples."""
    wrench = view.wrench
    if wrench is None or len(wrench) < 2:
        return NAN
    jumps = np.linalg.norm(np.diff(wrench[:, 3:], axis=0), axis=1)
    return float(np.nanmax(jumps)) if np.isfinite(jumps).any() else NAN
