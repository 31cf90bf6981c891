"""What was recorded wrongly in a way that can be undone exactly, put right per episode.

A joint that read a constant too much, and cameras whose pictures went under each other's names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import columns
from gaploop.datasets.edit.compose import DatasetPiece, EpisodeChange
from gaploop.datasets.layout import DatasetInfo


def changes(
    piece: DatasetPiece,
    chosen: Collection[int],
    subtract: Mapping[str, Mapping[str, Any]],
    swap: Sequence[str] = (),
) -> dict[int, EpisodeChange]:
    """Return what becomes of the chosen episodes.

    Args:
        subtract: feature to its entries and what each reads too much, in its units. What was sent
            (`gap.sent`) is shifted as the action is.
        swap: two cameras whose pictures are under each other's names.

    Raises:
        UnusableInputError: no such feature, entry or camera, or cameras of unlike pictures.
    """
    info = piece.info
    vectors: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
    for feature, entries in subtract.items():
        by = _subtracted(info, feature, entries)
        vectors[feature] = by
        if feature == columns.ACTION and info.width(columns.SENT) == len(by):
            vectors[columns.SENT] = by
    cameras = dict[str, str]()
    if swap:
        cameras = _swapped(info, swap)
    return dict.fromkeys(chosen, EpisodeChange(subtract=vectors, cameras=cameras))


def _subtracted(
    info: DatasetInfo, feature: str, values: Mapping[str, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    numbers = [
        n for n, spec in info.features.items()
        if str(spec.get("dtype")).startswith("float")
        and len(spec.get("shape") or (1,)) == 1
        and n not in columns.AUTOMATIC
    ]  # fmt: skip
    if feature not in numbers:
        raise unknown_choice("feature", feature, numbers, "--subtract")
    names = info.names(feature)
    by = np.zeros(len(names))
    for name, value in values.items():
        if name not in names:
            raise unknown_choice("entry", str(name), names, f"--subtract, {feature}")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise UnusableInputError(f"--subtract: {name} is {value!r}; give a number.")
        by[names.index(name)] = value
    return by


def _swapped(info: DatasetInfo, swap: Sequence[str]) -> dict[str, str]:
    known = {key.removeprefix(columns.IMAGES): key for key in info.picture_keys}
    names = [str(name).removeprefix(columns.IMAGES) for name in swap]
    for name in names:
        if name not in known:
            raise unknown_choice("camera", name, known, "--swap")
    if len(set(names)) != 2 or len(names) != 2:
        raise UnusableInputError(f"--swap: name two cameras, such as '[top, wrist]'; got {names}.")
    a, b = (known[name] for name in names)
    for what in ("dtype", "shape", "info"):
        mine, other = (info.features[key].get(what) for key in (a, b))
        if mine != other:
            raise UnusableInputError(
                f"--swap: {what} of {names[0]} is {mine}, of {names[1]} {other}. Pictures can only "
                "be swapped between cameras that are alike."
            )
    return {a: b, b: a}
