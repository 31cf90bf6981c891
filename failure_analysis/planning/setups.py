"""Under which conditions the takes of a dimension are recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.plan import every_value
from gaploop.core.station import NAMED_CONDITIONS, Station
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.failures import (
    Failures,
    common_conditions,
    mass_by_value,
)
from gaploop.failure_analysis.planning.remedies import REMEDIES

NOBODY: Final = "none"
"""The `human` condition in which nobody is there: nothing to record against people."""


@dataclass(frozen=True)
class SetupTakes:
    """Takes that share their conditions.

    Attributes:
        conditions: what holds for all of them.
        vary: condition to the values it takes in turn.
        mass: share of the dimension's failures that they are recorded against.
        suffix: what tells the part's item from others of its dimension; "" for an only one.
    """

    conditions: Mapping[str, Any]
    vary: Mapping[str, tuple[Any, ...]]
    mass: float = 1.0
    suffix: str = ""

    def every(self) -> list[dict[str, Any]]:
        """Return all set-ups."""
        combinations = itertools.product(*self.vary.values())
        return [{**self.conditions, **dict(zip(self.vary, c, strict=True))} for c in combinations]


@dataclass(frozen=True)
class Setups:
    """How a dimension's takes are shared out; masses sum to 1."""

    parts: tuple[SetupTakes, ...]

    def every(self) -> list[dict[str, Any]]:
        """Return all set-ups of all parts."""
        return [setup for part in self.parts for setup in part.every()]


def setups_for(
    dimension: GapDimension,
    failures: Failures,
    conditions: Mapping[str, Mapping[str, Any]],
    station: Station,
) -> Setups:
    """Return how a dimension's takes are shared out among conditions.

    Takes are recorded under what all failures had in common: the gap is in the station as it
    stands. Where failures differ in the condition that matters for the dimension, takes follow the
    failures; where nothing is known of it, they are spread over what the station can set up.

    Args:
        conditions: uid of a failed take to what was set up.
    """
    remedy = REMEDIES[dimension]
    shared = common_conditions(failures, conditions)
    masses = mass_by_value(failures, conditions, dimension, remedy.split_by)
    names = [*remedy.vary]
    if not masses and remedy.split_by in NAMED_CONDITIONS and remedy.split_by not in names:
        names.insert(0, remedy.split_by)
    if len(masses) > 1:
        names = [n for n in names if n != remedy.split_by]
    vary = {n: _values(n, station) for n in names if n not in shared and _values(n, station)}
    if len(masses) < 2:
        return Setups((SetupTakes(shared, vary),))
    name = remedy.split_by
    return Setups(
        tuple(
            SetupTakes({**shared, name: value}, vary, mass, f":{name}={value}")
            for value, mass in masses
        )
    )


def _values(name: str, station: Station) -> tuple[Any, ...]:
    return tuple(v for v in every_value(name, station) if (name, v) != ("human", NOBODY))
