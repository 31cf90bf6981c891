"""The part of a conversion's spec that is about units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.schema import check_keys, mapping, number
from gaploop.datasets.harmonise.steps import UNITS, is_gripper, joint

_TICKS: Final = 4096.0
"""Encoder ticks to a turn; LeRobot's degrees divide by one less."""


@dataclass(frozen=True)
class UnitsSpec:
    """Conversion of units.

    Attributes:
        target: one of `steps.UNITS`.
        source: as `target`; "" to take what the takes say.
        ranges_deg: joint to its angle [deg] at -100 and at 100.
        gripper_rad: angle [rad] of the gripper at 0 and at 100; None to keep its values.
        gripper: "keep" or "angles": that the gripper was thought of; "" where it wasn't.
    """

    target: str
    source: str = ""
    ranges_deg: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gripper_rad: tuple[float, float] | None = None
    gripper: str = ""


def parse_units(value: Any, where: str, folder: Path) -> UnitsSpec | None:
    """Return the conversion of units that a spec describes, or None.

    Raises:
        UnusableInputError: it makes no sense.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = {"to": value}
    value = mapping(value, where, "key: value")
    check_keys(value, ("from", "to", "ranges", "arm", "gripper"), where, ("to",))
    for key in ("from", "to"):
        if key in value and value[key] not in list(UNITS):
            raise unknown_choice("units", value[key], UNITS, where)
    gripper, angles = _gripper(value.get("gripper", ""), value.get("arm"), where)
    ranges = _ranges(value.get("ranges"), value.get("arm"), where, folder)
    return UnitsSpec(value["to"], str(value.get("from", "")), ranges, angles, gripper)


def _gripper(value: Any, arm: Any, where: str) -> tuple[str, tuple[float, float] | None]:
    if value in ("", "keep"):
        return str(value), None
    if value == "model":
        if arm not in list(ARM_MODELS):
            raise unknown_choice("arm", arm, ARM_MODELS, f"{where}, gripper: model needs arm")
        return "angles", ARM_MODELS[str(arm)].gripper_percent_rad
    return "angles", _pair(value, f"{where}, gripper", "keep, model, or [rad at 0, rad at 100]")


def _ranges(value: Any, arm: Any, where: str, folder: Path) -> dict[str, tuple[float, float]]:
    if value == "model":
        if arm not in list(ARM_MODELS):
            raise unknown_choice("arm", arm, ARM_MODELS, f"{where}, ranges: model needs arm")
        model = ArmModel.load(str(arm))
        limits = np.degrees(model.joint_limits_rad)
        pairs = zip(model.joint_names, limits.tolist(), strict=True)
        return {n: (float(lo), float(hi)) for n, (lo, hi) in pairs if not is_gripper(n)}
    if isinstance(value, str):
        return _calibrated(folder / value)
    form = "joint: [deg at -100, deg at 100]"
    entries = mapping(value, f"{where}, ranges", form)
    return {joint(str(k)): _pair(v, f"{where}, ranges, {k}", form) for k, v in entries.items()}


def _calibrated(path: Path) -> dict[str, tuple[float, float]]:
    """Return the ranges of a LeRobot calibration file: degrees about the middle, as LeRobot's."""
    found = {}
    for name, entry in mapping(read_json(path), str(path), "motor: calibration").items():
        try:
            half = (float(entry["range_max"]) - float(entry["range_min"])) / 2.0
        except DAMAGE:
            raise UnusableInputError(
                f"{path}: motor {name} has no range_min and range_max. Name a calibration file "
                "that lerobot-calibrate wrote."
            ) from None
        angle = half * 360.0 / (_TICKS - 1.0)
        found[str(name)] = (-angle, angle)
    return found


def _pair(value: Any, where: str, form: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UnusableInputError(f"{where}: {value!r} must be {form}.")
    low, high = (number(v, where, -1e6, 1e6) for v in value)
    if low == high:
        raise UnusableInputError(f"{where}: both ends are {low:g}. They must differ.")
    return low, high
