"""Units of joints: what they are called on the command line, and how takes note them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gaploop.core.errors import unknown_choice

UNITS: Final[Mapping[str, str]] = {
    "degrees": "deg", "radians": "rad", "normalized": "m100_100", "unknown": "unknown",
}  # fmt: skip
"""What `--units` takes, and how `gap_units` notes it."""
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
