"""What an experimenter sets in the cell on purpose, as opposed to gaps, which nobody asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import CONDITIONS
from gaploop.sim import look

GRID_ROWS = 3  # by azimuth about the middle of the spawn region
GRID_COLUMNS = 3  # by radius
MAX_DISTRACTORS = 8


@dataclass(frozen=True)
class ObjectKind:
    """A carried object: a "box", or a "cylinder" (radius and half height from the half sizes).

    Attributes:
        com_m: centre of mass relative to the geometric centre, shape (3,).
    """

    half_size_m: tuple[float, float, float] = (0.0125, 0.0125, 0.0125)
    mass_kg: float = 0.01
    shape: str = "box"
    com_m: tuple[float, float, float] = (0.0, 0.0, 0.0)


OBJECTS: dict[str, ObjectKind] = {
    "red_cube": ObjectKind(),
    "small_cube": ObjectKind((0.0095, 0.0095, 0.0095), 0.005),
    "large_cube": ObjectKind((0.016, 0.016, 0.016), 0.02),
    "huge_cube": ObjectKind((0.0195, 0.0195, 0.0195), 0.04),
    "heavy_cube": ObjectKind(mass_kg=0.25),
    "long_box": ObjectKind((0.022, 0.0125, 0.0125), 0.02),
    "cylinder": ObjectKind((0.014, 0.014, 0.014), 0.012, "cylinder"),
}

HUMANS: dict[str, dict[str, float]] = {
    "none": {},
    "reach_in": {"side_rad": 0.6, "stay_s": 1.5, "start_s": 0.4},
    "nudge": {"side_rad": 0.6, "push_m": 0.035},
    "take": {"side_rad": 0.6, "carry_m": 0.08},
}
"""What a person does, to the parameters of the gap mechanism of the same name."""

PLACEMENTS = ("nominal", "inner", "flank")
"""Where the object starts. Only in nominal has any demonstration of the embedded cell begun; the
others are beside it and within reach: `placement` says where."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a cell; the defaults are the nominal cell.

    Attributes:
        background: name in look.BACKGROUNDS.
        lighting: name in look.LIGHTINGS.
        object: name in OBJECTS.
        camera_pose: offset (dx, dy, dz [m], droll, dpitch, dyaw [rad]) of the camera.
        table_height: offset of the table top [m].
        grid_cell: (row, column) of the spawn region that the object starts in, or None.
        human: name in HUMANS.
        placement: name in PLACEMENTS; a free condition, which only the embedded cell knows.
    """

    background: str = "wood"
    lighting: str = "nominal"
    distractors: int = 0
    object: str = "red_cube"
    camera_pose: tuple[float, float, float, float, float, float] = (0.0,) * 6
    table_height: float = 0.0
    grid_cell: tuple[int, int] | None = None
    human: str = "none"
    placement: str = "nominal"


NAMES: dict[str, Sequence[str]] = {
    "background": tuple(look.BACKGROUNDS),
    "lighting": tuple(look.LIGHTINGS),
    "object": tuple(OBJECTS),
    "human": tuple(HUMANS),
}
"""Condition that takes a name, to the names the embedded cell knows."""


def parse_conditions(values: Mapping[str, object]) -> Conditions:
    """Check conditions, as in vocabulary.CONDITIONS, and fill in the nominal ones.

    Raises:
        UnknownChoiceError: for a condition or a name that the cell doesn't have.
        UnusableInputError: for a value of the wrong kind or out of range.
    """
    known: dict[str, object] = {}
    for key, value in values.items():
        if key not in (*CONDITIONS, "placement"):
            raise unknown_choice("condition", key, (*CONDITIONS, "placement"), "conditions")
        names = PLACEMENTS if key == "placement" else NAMES.get(key)
        if names is not None:
            if value not in names:
                raise unknown_choice(key, value, names, f"condition '{key}'")
            known[key] = value
        elif key == "distractors":
            known[key] = int(_numbers(key, [value], 1, 0, MAX_DISTRACTORS)[0])
        elif key == "table_height":
            known[key] = _numbers(key, [value], 1, -0.05, 0.05)[0]
        elif key == "camera_pose":
            known[key] = _numbers(key, value, 6, -0.6, 0.6)
        else:
            row, column = _numbers(key, value, 2, 0, max(GRID_ROWS, GRID_COLUMNS) - 1)
            known[key] = int(row), int(column)
    return Conditions(**known)  # type: ignore[arg-type]


def _numbers(key: str, value: object, count: int, low: float, high: float) -> tuple[float, ...]:
    wanted = f"{count} number(s) from {low:g} to {high:g}"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count:
        with contextlib.suppress(TypeError, ValueError):
            numbers = tuple(float(v) for v in value)
            if all(low <= number <= high for number in numbers):
                return numbers
    raise UnusableInputError(f"Condition '{key}' is {value!r}: give {wanted}.")
