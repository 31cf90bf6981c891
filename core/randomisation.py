"""Ranges that a cell is drawn from anew for every take: the YAML of `--robot.randomise=FILE`.

Each is of a parameter of a mechanism, "dimension.mechanism.parameter" (or
"dimension.mechanism.joint.parameter", as a twin has them), with its unit. What isn't named stays as
it is. Whether the cell has such a parameter is checked where values are drawn (`sim.randomise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import dimension

SCHEMA: Final = "gaploop.randomisation.v1"
DISTRIBUTIONS: Final = ("uniform", "log_uniform", "normal", "integer")
"""normal: low and high are its 5th and 95th percentile; nothing is drawn twice as far out."""


@dataclass(frozen=True)
class Range:
    """What one parameter is drawn from.

    Attributes:
        name: "dimension.mechanism.parameter", or with a joint before the parameter.
        unit: the parameter's own, such as "m"; "1" for a factor, a fraction or a count.
        distribution: one of `DISTRIBUTIONS`.
        centre: value at strength 0; the nominal one if None.
    """

    name: str
    low: float
    high: float
    unit: str
    distribution: str = "uniform"
    centre: float | None = None

    @property
    def mechanism(self) -> str:
        """The mechanism's key, "dimension.mechanism"."""
        return ".".join(self.name.split(".")[:2])

    @property
    def key(self) -> str:
        """Its name among the mechanism's values."""
        return self.name.split(".", 2)[2]


@dataclass(frozen=True)
class Randomisation:
    """What every take's cell is drawn from.

    Attributes:
        name: what it is called in a take's conditions, such as "all" or the file's name.
        ranges: each is drawn by its own name, so that a further one moves no other.
        strength: 1 draws from the ranges as they are, 0.5 from half of them about the centre.
    """

    name: str
    ranges: tuple[Range, ...]
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.strength <= 2.0:
            raise UnusableInputError(f"randomise: a strength of {self.strength:g}; give 0 to 2.")


def as_yaml(randomisation: Randomisation) -> str:
    """Return the file that `load_randomisation` reads, for a person to edit."""
    rows: dict[str, dict[str, Any]] = {}
    for r in randomisation.ranges:
        rows[r.name] = {"low": _short(r.low), "high": _short(r.high), "unit": r.unit}
        if r.distribution != "uniform":
            rows[r.name]["distribution"] = r.distribution
        if r.centre is not None:
            rows[r.name]["centre"] = _short(r.centre)
    head = {"schema": SCHEMA}
    if randomisation.strength != 1.0:
        head["strength"] = randomisation.strength  # type: ignore[assignment]
    lines = [yaml.safe_dump(head, sort_keys=False), "ranges:\n"]
    lines += [
        f"  {name}: {yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=200)}"
        for name, row in rows.items()
    ]
    return "".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def load_randomisation(path: Path) -> Randomisation:
    """Read and check a file of ranges, or raise UnusableInputError with what is valid."""
    value, where = load_yaml(path, "Randomisation"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{where} is no randomisation (schema {value.get('schema')!r}, expected {SCHEMA}). "
            "Print one to start from: gaploop record --robot.randomise=help"
        )
    check_keys(value, ("schema", "strength", "ranges"), where, ("ranges",))
    rows = value["ranges"]
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise UnusableInputError(
            f"{where}: ranges must map dimension.mechanism.parameter to low, high and unit."
        )
    strength = number(value.get("strength", 1.0), f"{where}: strength", 0.0, 2.0)
    ranges = []
    for name, row in rows.items():
        place, parts = f"{where}: {name}", str(name).split(".")
        if not 3 <= len(parts) <= 4:
            raise UnusableInputError(
                f"{place} must be named dimension.mechanism.parameter, such as "
                "actuator_response.latency.latency_s."
            )
        dimension(parts[0], place)
        needed = ("low", "high", "unit")
        check_keys(row, (*needed, "distribution", "centre"), place, needed)
        low, high = (number(row[k], f"{place}: {k}", -math.inf, math.inf) for k in ("low", "high"))
        if not low <= high or not math.isfinite(high - low):
            raise UnusableInputError(
                f"{place}: low {low:g} and high {high:g} are no finite range."
                " Give two numbers, the lower one first."
            )
        distribution = row.get("distribution", "uniform")
        if distribution not in DISTRIBUTIONS:
            raise unknown_choice("distribution", distribution, DISTRIBUTIONS, place)
        if distribution == "log_uniform" and low <= 0.0:
            raise UnusableInputError(f"{place}: log_uniform needs a low above 0, got {low:g}.")
        centre = row.get("centre")
        if centre is not None:
            centre = number(centre, f"{place}: centre", low, high)
        ranges.append(Range(str(name), low, high, str(row["unit"]), distribution, centre))
    return Randomisation(path.stem, tuple(ranges), strength)


def around_twin(twin: Twin, strength: float = 1.0) -> Randomisation:
    """Return ranges that are what isn't known of a station: the intervals of its twin.

    What the takes couldn't tell has no interval, and stays nominal.
    """
    found = tuple(
        Range(f"{p.mechanism}.{p.key}", *p.interval, p.unit, "normal", p.estimate)
        for p in twin.parameters
        if p.excited and math.isfinite(p.interval[1] - p.interval[0])
        and p.mechanism in twin.mechanisms
    )  # fmt: skip
    return replace(Randomisation("twin", found), strength=strength)
