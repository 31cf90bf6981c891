"""Units of joints: what they are called on the command line, and how takes note them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice

UNITS: Final[Mapping[str, str]] = {
    "degrees": "deg", "radians": "rad", "normalized": "m100_100", "unknown": "unknown",
}  # fmt: skip
"""What `--units` takes, and how `gap_units` notes it."""
HALF_TURN: Final = math.pi + 0.2
"""No joint of an arm is much further from its middle [rad]."""
MOVES_RAD: Final = 0.35
"""A joint that is used moves at least so far: 20 degrees."""
ALIKE: Final = 3.0
"""Times that one episode's joint moves further than another's, in equal units."""
_ALSO: Final[Mapping[str, str]] = {"normalised": "m100_100", **{v: v for v in UNITS.values()}}


def noted(name: str) -> str:
    """Return how takes note the units of a name; what is none of `UNITS`, such as `m`, as it is."""
    return UNITS.get(name, _ALSO.get(name, name))


def joint_units(name: str, option: str = "--units") -> str:
    """Return how takes note an arm's units; "" of "".

    Raises:
        UnusableInputError: none of `UNITS`.
    """
    if name and noted(name) not in UNITS.values():
        raise unknown_choice("units", name, UNITS, option)
    return noted(name)


def named(units: str) -> str:
    """Return what noted units are called."""
    return next((name for name, known in UNITS.items() if known == units), units)


def plainly_radians(low: NDArray[np.float64], high: NDArray[np.float64]) -> list[int]:
    """Return which episodes are in radians among others in degrees; none where that isn't certain.

    Certain is where the joints that move do so by an arm's angles in both, 57 times as far in some.

    Args:
        low: smallest reading of each joint in each episode, shape (episodes, joints).
        high: the largest one.
    """
    if len(low) < 2 or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return []
    far, moved = np.maximum(-low, high), high - low
    small = (far.max(axis=1) <= HALF_TURN) & (moved.max(axis=1) >= MOVES_RAD)
    large = moved.max(axis=1) >= math.degrees(MOVES_RAD)
    if not small.any() or not (small | large).all() or not large.any():
        return []
    usual = np.median(moved[large], axis=0)
    used = usual >= math.degrees(MOVES_RAD)
    ratio = usual[used] / np.maximum(moved[small][:, used], 1e-9)
    fits = (ratio > math.degrees(1.0) / ALIKE) & (ratio < math.degrees(1.0) * ALIKE)
    # An arm that stands still may flicker by a third of a degree; most of its joints don't.
    fits &= moved[small][:, used] >= MOVES_RAD
    return np.flatnonzero(small).tolist() if (fits.mean(axis=1) > 0.5).all() else []
