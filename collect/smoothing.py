"""How a policy's targets are smoothed, and one plan is gone over into from another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import FloatArray


def lag_share(time_constant_s: float | None, fps: float) -> float:
    """Return by which share of the way a first-order lag comes nearer in a frame; 1 without lag.

    A constant target is approached to 63 % within `time_constant_s`; a moving one is followed that
    much later.

    Args:
        time_constant_s: above 0 [s], or None.
        fps: frames per second [Hz].

    Raises:
        UnusableInputError: a time constant that isn't above 0.
    """
    if time_constant_s is None:
        return 1.0
    if not 0 < time_constant_s < math.inf:
        raise UnusableInputError(
            f"--smoothing.exponential_s must be above 0 s, got {time_constant_s:g}. Leave it out "
            "for no smoothing."
        )
    return -math.expm1(-1.0 / (fps * time_constant_s))


def lagged(before: FloatArray, target: FloatArray, share: float) -> FloatArray:
    """Return what lies by `share` on the way from what was asked for `before` to a target."""
    if share == 1.0 or not np.isfinite(before).all():
        return target
    return before + share * (target - before)


def cross_faded(old: Sequence[FloatArray], new: Sequence[FloatArray]) -> list[FloatArray]:
    """Return `new`, come to gradually from `old` over the steps that both have.

    Args:
        old: targets that were planned before, each of shape (n_joints,).
        new: targets that are planned now, from the same step on.
    """
    both = min(len(old), len(new))
    shares = [(step + 1) / (both + 1) for step in range(both)]
    faded = [o + share * (n - o) for o, n, share in zip(old, new, shares, strict=False)]
    return [*faded, *new[both:]]
