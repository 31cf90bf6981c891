"""What was recorded wrongly in a way that can be undone exactly, put right per episode.

A joint that read a constant too much, encoder ticks for angles, and cameras whose pictures went
under each other's names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray
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


NO_DEGREES: Final = 1080.0
"""Three turns: what reads more is no angle."""
TICKS: Final = 4095
"""The last tick of a turn: LeRobot 0.6's degrees are (tick - middle of range) 360 / 4095."""


def ticks_to_degrees(info: DatasetInfo, calibration: Path, values: FloatArray) -> EpisodeChange:
    """Return what makes encoder ticks LeRobot's degrees, and its 0 to 100 of a gripper.

    Args:
        calibration: what lerobot-calibrate wrote: of each motor range_min, range_max, drive_mode.
        values: some of the states, shape (n, joints).

    Raises:
        UnusableInputError: no such file, a joint that isn't in it, or values that are no ticks.
    """
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < 0 or not NO_DEGREES < high <= TICKS + 1:
        raise UnusableInputError(
            f"--calibration: {columns.STATE} goes from {low:.0f} to {high:.0f}, which are no "
            f"encoder ticks (0 to {TICKS}). Leave --calibration out."
        )
    motors = read_json(calibration)
    subtract, scale = dict[str, FloatArray](), dict[str, FloatArray]()
    for feature in (columns.STATE, columns.ACTION, columns.SENT):
        if not info.width(feature):
            continue
        less, times = [], []
        for name in info.names(feature):
            joint = name.removesuffix(".pos").removeprefix("main_")
            try:
                ends = [float(motors[joint][key]) for key in ("range_min", "range_max")]
                turned = bool(motors[joint].get("drive_mode", 0))
            except DAMAGE:
                raise UnusableInputError(
                    f"{calibration} has no range_min and range_max of {joint}. Name the file that "
                    "lerobot-calibrate wrote of this arm."
                ) from None
            grips = "gripper" in joint
            less.append(ends[turned] if grips else sum(ends) / 2.0)
            percent = 100.0 / (ends[1] - ends[0]) * (-1.0 if turned else 1.0)
            times.append(percent if grips else 360.0 / TICKS)
        subtract[feature], scale[feature] = np.array(less), np.array(times)
    return EpisodeChange(subtract=subtract, scale=scale)


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
