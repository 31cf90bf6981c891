"""Which frames stand at the moments of another rate."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice

RULES: Final = {
    "hold": "the newest frame that there was at that moment",
    "nearest": "the frame nearest in time, be it later",
    "linear": "joint values in between, pictures and the rest as with hold",
}
"""How frames of another rate are made."""
_ROUNDING: Final = 1e-6  # of a frame

type Indices = NDArray[np.int64]


def chosen_rows(frames: int, source_fps: float, target_fps: float, rule: str) -> Indices:
    """Return which frame of a take stands at each moment of another rate.

    Args:
        frames: how many the take has.
        source_fps: its rate [Hz].
        target_fps: the new rate [Hz].
        rule: one of `RULES`; `linear` chooses as `hold`.

    Returns:
        Shape (n,), never falling; as many as fit into the take's time.
    """
    if rule not in RULES:
        raise unknown_choice("rule", rule, RULES, "fps")
    count = int(np.floor((frames - 1) * target_fps / source_fps + _ROUNDING)) + 1
    place = np.arange(count) * source_fps / target_fps
    shift = 0.5 if rule == "nearest" else _ROUNDING
    return np.asarray(np.minimum(np.floor(place + shift), frames - 1).astype(np.int64))


def between(values: NDArray[Any], source_fps: float, target_fps: float) -> NDArray[np.float64]:
    """Return rows at the moments of another rate, on straight lines between the given ones.

    Args:
        values: shape (n_frames, width).
    """
    count = len(chosen_rows(len(values), source_fps, target_fps, "hold"))
    place = np.minimum(np.arange(count) * source_fps / target_fps, len(values) - 1)
    rows = np.arange(len(values))
    return np.stack([np.interp(place, rows, column) for column in values.T], axis=1)
