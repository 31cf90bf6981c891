"""`plan.yaml`: what to collect next and why, or what to do instead of collecting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import write_atomically
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.core.station import NAMED_CONDITIONS, SIM_STATION, Station
from gaploop.core.vocabulary import GapDimension, dimension

SCHEMA: Final = "gaploop.plan.v1"
REMEDIES: Final = ("demonstrate", "recalibrate", "identify", "perception", "control", "restate")
"""What mends a gap. Only the first is collected; the others are done instead."""


@dataclass(frozen=True)
class PlanItem:
    """One campaign, or one thing to do instead.

    Attributes:
        id: names the item in the takes collected for it (`gap_plan`).
        takes: how many to record; 0 unless the remedy is to demonstrate.
        protocol: how to record them, in words.
        remedy: one of `REMEDIES`.
        why: the evidence, in words and numbers.
        conditions: what to set up for every take.
        vary: condition to the values it takes in turn; takes are spread over all combinations.
        share: the dimension's share of the diagnosed failures, 0 to 1.
    """

    id: str
    dimension: GapDimension
    takes: int
    remedy: str
    why: str
    protocol: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    share: float = 0.0
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def setups(self) -> tuple[dict[str, Any], ...]:
        """Return the conditions of every set-up, one for each combination of `vary`."""
        combinations = itertools.product(*self.vary.values())
        return tuple(
            {**self.conditions, **dict(zip(self.vary, values, strict=True))}
            for values in combinations
        )


@dataclass(frozen=True)
class Plan:
    """What to do about the failures of one diagnosis.

    Attributes:
        id: names the plan in lineage.
        diagnosis: id of the diagnosis it comes from.
        items: in falling order of share.
        minutes: estimated time to record it [min].
    """

    id: str
    diagnosis: str
    items: tuple[PlanItem, ...]
    minutes: float = 0.0

    @property
    def takes(self) -> int:
        """Number of takes to record in all."""
        return sum(item.takes for item in self.items)


def save_plan(plan: Plan, path: Path) -> None:
    """Write `plan.yaml`, atomically."""
    value = {"schema": SCHEMA, **asdict(plan)}
    value["items"] = [{**asdict(i), "dimension": i.dimension.value} for i in plan.items]
    for item in value["items"]:
        item["conditions"] = dict(item["conditions"])
        item["vary"] = {name: list(values) for name, values in item["vary"].items()}
    write_atomically(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))


def load_plan(path: Path, station: Station = SIM_STATION) -> Plan:
    """Read and check a plan against the station it is to be collected on.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Plan"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{where}: schema must be {SCHEMA}, got {value.get('schema')!r}.")
    keys = ("schema", "id", "diagnosis", "items", "minutes")
    check_keys(value, keys, where, ("id", "items"))
    items = value["items"]
    if not isinstance(items, list):
        raise UnusableInputError(f"{where}: items must be a list.")
    return Plan(
        str(value["id"]),
        str(value.get("diagnosis", "")),
        tuple(_item(item, f"{where}: item {n}", station) for n, item in enumerate(items, 1)),
        number(value.get("minutes", 0.0), f"{where}: minutes", 0, 1e6),
    )


def _item(value: Any, where: str, station: Station) -> PlanItem:
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping, got {value!r}.")
    keys = PlanItem.__dataclass_fields__
    check_keys(value, keys, where, ("id", "dimension", "takes", "remedy"))
    if value["remedy"] not in REMEDIES:
        raise unknown_choice("remedy", value["remedy"], REMEDIES, where)
    takes = value["takes"]
    if isinstance(takes, bool) or not isinstance(takes, int) or takes < 0:
        raise UnusableInputError(
            f"{where}: takes must be a whole number, 0 or more, got {takes!r}."
        )
    conditions = value.get("conditions") or {}
    if not isinstance(conditions, dict):
        raise UnusableInputError(f"{where}: conditions must be a mapping, got {conditions!r}.")
    station.check_conditions(conditions, where)
    return PlanItem(
        id=str(value["id"]),
        dimension=dimension(value["dimension"], where),
        takes=takes,
        remedy=value["remedy"],
        why=str(value.get("why", "")),
        protocol=str(value.get("protocol", "")),
        conditions=conditions,
        share=number(value.get("share", 0.0), f"{where}: share", 0, 1),
        vary=_vary(value.get("vary") or {}, conditions, where, station),
    )


def _vary(
    value: Any, conditions: Mapping[str, Any], where: str, station: Station
) -> dict[str, tuple[Any, ...]]:
    """Return condition to its values; `all` names every grid cell, or every name of the station."""
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where}: vary must map conditions to lists, got {value!r}.")
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in value.items():
        place = f"{where}: vary: {name}"
        if name in conditions:
            raise UnusableInputError(
                f"{place} is fixed in conditions already. Keep one of the two."
            )
        if values == "all" and name == "grid_cell":
            values = [list(cell) for cell in itertools.product(*map(range, station.grid))]
        elif values == "all" and name in NAMED_CONDITIONS:
            values = list(station.conditions.get(name, ()))
        if not isinstance(values, list) or not values:
            raise UnusableInputError(
                f"{place} must be a list of values"
                + (", or all" if name in ("grid_cell", *NAMED_CONDITIONS) else "")
                + f", got {values!r}."
            )
        if any(entry in values[:n] for n, entry in enumerate(values)):
            raise UnusableInputError(f"{place} names a value twice: {values!r}.")
        for entry in values:
            station.check_conditions({name: entry}, f"{where}: vary")
        found[name] = tuple(values)
    return found
