"""How settings are named to people, and which factor a setting varies."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from gaploop.finetune.evaluating.factors import FACTORS, GRID
from gaploop.finetune.evaluation import NOMINAL

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")


def parts(condition: str) -> dict[str, str]:
    """Return a setting's name as condition to value, both text; none of the nominal one."""
    if condition == NOMINAL:
        return {}
    pairs = (part.partition("=") for part in re.split(r", (?=\w+=)", condition))
    return {name: value for name, _, value in pairs}


def varied(condition: str, base: str) -> dict[str, str]:
    """Return what a setting sets otherwise than the base, condition to value."""
    usual = parts(base)
    return {n: v for n, v in parts(condition).items() if usual.get(n) != v}


def factor_of(condition: str, base: str) -> str:
    """Return the factor that a setting varies; "" for the base."""
    return next(iter(varied(condition, base)), "")


def grid_cell(condition: str, base: str) -> tuple[int, int] | None:
    """Return the grid cell that a setting varies, as row and column."""
    value = varied(condition, base).get(GRID)
    if value is None:
        return None
    row, column = json.loads(value)
    return int(row), int(column)


def words(condition: str, base: str = NOMINAL) -> str:
    """Return a setting in words, without what it shares with the base."""
    said = [_phrase(n, v) for n, v in varied(condition, base).items()]
    return "; ".join(said) or "base"


def order(condition: str, base: str) -> tuple[Any, ...]:
    """Return a key that sorts settings as people look for them: by factor, then by level."""
    factor = factor_of(condition, base)
    place = FACTORS.index(factor) if factor in FACTORS else len(FACTORS)
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", condition)]
    return (bool(factor), place, factor, numbers, condition)


def _phrase(name: str, value: str) -> str:
    if name == "camera_pose":
        offsets = zip(json.loads(value), _AXES, strict=True)
        return "camera " + " ".join(_offset(v, axis) for v, axis in offsets if v)
    if name == "table_height":
        return f"table {1000 * float(value):+.0f} mm"
    if name == GRID:
        row, column = json.loads(value)
        return f"row {row}, column {column}"
    if name == "distractors":
        return f"{value} distractors"
    return f"{name.replace('_', ' ')} {value.replace('_', ' ')}"


def _offset(value: float, axis: str) -> str:
    if axis in _AXES[:3]:
        return f"{1000 * value:+.0f} mm {axis}"
    return f"{math.degrees(value):+.1f}° {axis}"
