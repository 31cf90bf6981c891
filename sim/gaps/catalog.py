"""Draws the gaps of a station.

A gap is drawn once per station (from `gap_seed`): which mechanism, which direction, and how
the severity is shared out. What changes from take to take is drawn from the take's seed by
the modules that apply the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import GapDimension, dimension
from gaploop.sim.gaps.blind import BLIND_MECHANISMS
from gaploop.sim.gaps.mechanisms import MECHANISMS, Mechanism

HeldOut = Literal["any", "never", "only", "blind"]


@dataclass(frozen=True)
class InjectedGap:
    """A gap as drawn for one station; written to truth.jsonl and nowhere else.

    Attributes:
        dimension: value of GapDimension.
        mechanism: name of the Mechanism.
        severity: 0 (nominal) to 1.
        parameters: physical quantities, named with their units.
        held_out: whether the mechanism is kept out of training.
        blind: whether, moreover, nobody who diagnoses was told of it.
    """

    dimension: str
    mechanism: str
    severity: float
    parameters: Mapping[str, float]
    held_out: bool
    blind: bool = False


def mechanisms_of(name: str, held_out: HeldOut = "any") -> tuple[Mechanism, ...]:
    """Mechanisms of a dimension, optionally without, or only, those kept out of training.

    Blind ones come only by `held_out="blind"`, and then alone: what is drawn for a seed must not
    change when one is added.

    Raises:
        UnknownChoiceError: for an unknown dimension.
    """
    wanted = dimension(name, "gaps")
    if held_out == "blind":
        return tuple(m for m in BLIND_MECHANISMS if m.dimension == wanted)
    keep = {"any": (False, True), "never": (False,), "only": (True,)}[held_out]
    return tuple(m for m in MECHANISMS if m.dimension == wanted and m.held_out in keep)


def draw_gaps(
    gaps: Mapping[str, float], seed: int, held_out: HeldOut = "any"
) -> tuple[InjectedGap, ...]:
    """Draw mechanism, direction and magnitude of every gap of a station.

    Args:
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        seed: draws mechanism and direction; each dimension has its own stream, so adding a
            gap does not change another.
        held_out: whether mechanisms that are kept out of training may, may not, or must be
            drawn, or blind ones must. A mechanism given by name is always taken.

    Returns:
        One gap per entry, in the order of `gaps`.

    Raises:
        UnknownChoiceError: for an unknown dimension or mechanism.
        UnusableInputError: for a severity outside [0, 1].
    """
    return tuple(_draw(key, severity, seed, held_out) for key, severity in gaps.items())


def _draw(key: str, severity: float, seed: int, held_out: HeldOut) -> InjectedGap:
    if not 0.0 <= severity <= 1.0:
        raise UnusableInputError(f"Severity of gap '{key}' is {severity}: give 0 to 1.")
    name, _, wanted = key.partition(".")
    choices = mechanisms_of(name, "any" if wanted else held_out)
    index = list(GapDimension).index(choices[0].dimension)
    rng = np.random.default_rng([seed, 1000 + index])
    mechanism = choices[int(rng.integers(len(choices)))]
    if wanted:
        by_name = {m.name: m for m in (*choices, *mechanisms_of(name, "blind"))}
        if wanted not in by_name:
            raise unknown_choice(f"mechanism of {name}", wanted, by_name, "gaps")
        mechanism = by_name[wanted]
    parameters = mechanism.draw(float(severity), rng) if severity > 0.0 else {}
    return InjectedGap(
        mechanism.dimension.value,
        mechanism.name,
        float(severity),
        {k: float(v) for k, v in parameters.items()},
        mechanism.held_out,
        mechanism.blind,
    )
