"""By whose statistics a tuned policy normalises: its base's, the new data's, or both.

A base has learned what its inputs and answers mean on its own scale. New statistics move every
one of them at once (the action spread went from 0.89 to 4.46 in a trial), and a small adapter
then relearns the scale instead of the task: hence `base` unless said otherwise. `new` is what
LeRobot does. It is right for a base that has no statistics of this arm, as those on the Hub
that are meant to be tuned to any. `merged` counts both alike, for data that reach well beyond
what the base has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice

CHOICES: Final = ("base", "new", "merged")

type Stats = Mapping[str, Mapping[str, Any]]
"""Feature to statistic, such as `mean` and `std`, to its values."""


def check_choice(choice: str) -> None:
    """Check that `choice` is one of `CHOICES`.

    Raises:
        UnknownChoiceError: it isn't.
    """
    if choice not in CHOICES:
        raise unknown_choice("statistics", choice, CHOICES, "--stats")


def merged(base: Stats, new: Stats) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the statistics of both distributions counted alike, for the features of `new`.

    Mean and spread are exact. The extremes of both bound what either has seen; of quantiles the
    outer ones are taken, since those of a mixture can't be had from those of its parts.
    """
    result: dict[str, dict[str, NDArray[np.float64]]] = {}
    for key, ours in new.items():
        a = {k: np.asarray(v, dtype=np.float64) for k, v in ours.items()}
        b = {k: np.asarray(v, dtype=np.float64) for k, v in base.get(key, {}).items()}
        result[key] = {name: _both(name, a, b) for name in a}
    return result


def _both(
    name: str, new: Mapping[str, NDArray[np.float64]], base: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    if name not in base or base[name].shape != new[name].shape:
        return new[name]
    a, b = new[name], base[name]
    if name == "std" and "mean" in new and "mean" in base:
        return np.asarray(np.sqrt((a**2 + b**2) / 2 + ((new["mean"] - base["mean"]) / 2) ** 2))
    if name == "count":
        return np.asarray(a + b)
    if name == "min" or name in ("q01", "q10"):
        return np.minimum(a, b)
    if name == "max" or name in ("q90", "q99"):
        return np.maximum(a, b)
    return np.asarray((a + b) / 2)
