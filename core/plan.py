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
from gaploop.core.participants import ParticipantQuotas, parse_participants
from gaploop.core.schema import check_keys, load_yaml, number, numbers, ranged, texts, whole_number
from gaploop.core.station import NAMED_CONDITIONS, SIM_STATION, Station
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import GapDimension, dimension

SCHEMA: Final = "gaploop.plan.v1"
REMEDIES: Final = (
    "collect", "resimulate", "randomise", "recalibrate", "compensate", "change_scene",
    "change_task",
)  # fmt: skip
"""What fixes a gap. Only the first asks for takes of a person; the next four are commands, and the
last two words: what no command can do."""
RENAMED: Final = {
    "demonstrate": "collect",
    "identify": "change_scene",
    "perception": "change_scene",
    "control": "change_scene",
    "restate": "change_task",
}
"""Remedies of plans from before 2026-11-24; read for one release more."""


@dataclass(frozen=True)
class Alternative:
    """A remedy that was weighed against the one that was chosen.

    Attributes:
        gain_points: percentage points of success expected of it.
        hours: of an operator [h].
        machine_hours: of one core, with nobody there [h].
    """

    remedy: str
    gain_points: Estimate
    hours: Estimate
    machine_hours: float = ranged(0.0, 0, 1e6)

    @property
    def points_per_hour(self) -> float:
        """Expected percentage points for an hour of an operator."""
        return self.gain_points.value / max(self.hours.value, 1e-9)


@dataclass(frozen=True)
class PlanItem:
    """One campaign, or one thing to do instead.

    Attributes:
        id: names the item in the takes collected for it (`gap_plan`).
        takes: how many to record; 0 unless the remedy is to collect.
        protocol: how to record them, in words.
        remedy: one of `REMEDIES`.
        why: the evidence, in words and numbers.
        conditions: what to set up for every take.
        vary: condition to the values it takes in turn; takes are spread over all combinations.
        share: the dimension's share of the diagnosed failures, 0 to 1.
        sensors: what to record with, in words.
        test: a cheap test that tells whether this is the right thing to do.
        gain_points: percentage points of success expected of the remedy, or of all takes.
        hours: of an operator: to record them all, or to see a remedy through [h].
        machine_hours: of one core, with nobody there [h].
        commands: what carries the remedy out, as it is typed, in this order.
        alternatives: the other remedies that were weighed.
    """

    id: str
    dimension: GapDimension
    takes: int
    remedy: str
    why: str
    protocol: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    share: float = ranged(0.0, 0, 1)
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    test: str = ""
    gain_points: Estimate | None = None
    hours: Estimate | None = None
    machine_hours: float = ranged(0.0, 0, 1e6)
    commands: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

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
        items: in falling order of share.
        minutes: estimated time to record it [min].
        gain_points: percentage points of success expected of all items together.
        gain_of: what the points are of, in words.
        success_now: share of rollouts that succeed before, 0 to 1; None where it isn't known.
        success_then: the same with everything recorded.
        hours: to record it all, what may follow too [h].
        machine_hours: of one core: commands, adapting to the takes, and evaluating [h].
        rollout_hours: of an operator: to roll the adapted policy out at the station [h].
        cost: the same in money; None without an hourly rate.
        stop: when more takes are no longer worth it, in words.
        notes: what else to know or to find out first.
        measure: commands that bring better evidence than the diagnosis had, as they are typed.
        participants: who is to take part, where the plan asks.
    """

    id: str
    diagnosis: str
    items: tuple[PlanItem, ...]
    minutes: float = ranged(0.0, 0, 1e6)
    gain_points: Estimate | None = None
    gain_of: str = ""
    success_now: Estimate | None = None
    success_then: Estimate | None = None
    hours: Estimate | None = None
    machine_hours: float = ranged(0.0, 0, 1e6)
    rollout_hours: float = ranged(0.0, 0, 1e6)
    cost: Estimate | None = None
    currency: str = ""
    stop: str = ""
    notes: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    participants: ParticipantQuotas | None = None

    @property
    def takes(self) -> int:
        """Number of takes to record in all."""
        return sum(item.takes for item in self.items)


def save_plan(plan: Plan, path: Path) -> None:
    """Write `plan.yaml`, atomically; what is empty is left out."""
    items = []
    for item in plan.items:
        entry = asdict(item) | {"dimension": item.dimension.value}
        entry["vary"] = {name: list(values) for name, values in entry["vary"].items()}
        items.append(_filled(entry))
    value = {"schema": SCHEMA, **_filled(asdict(plan)), "items": items}
    if plan.participants is not None:
        asked = plan.participants
        value["participants"] = {"most_each": asked.most_each, **asked.bands}
    write_atomically(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))


_KEPT: Final = (
    "id", "diagnosis", "minutes", "dimension", "takes", "remedy", "why", "protocol", "conditions",
    "share", "vary",
)  # fmt: skip
"""Keys that are written even where they hold nothing: people look for them."""


def _filled(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` with lists for tuples and without further keys that hold nothing."""
    return {
        name: list(entry) if isinstance(entry, tuple) else entry
        for name, entry in value.items()
        if entry or name in _KEPT
    }


def load_plan(path: Path, station: Station | None = SIM_STATION) -> Plan:
    """Read and check a plan against the station it is to be collected on.

    With None, what is to be set up isn't checked, for readers that nothing is set up for.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Plan"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{where}: schema must be {SCHEMA}, got {value.get('schema')!r}.")
    check_keys(value, ("schema", *Plan.__dataclass_fields__), where, ("id", "items"))
    items = value["items"]
    if not isinstance(items, list):
        raise UnusableInputError(f"{where}: items must be a list.")
    read = tuple(_item(item, f"{where}: item {n}", station) for n, item in enumerate(items, 1))
    takes = sum(item.takes for item in read)
    numbered = numbers(Plan, value, where, "key: value", further=value)
    numbered |= {k: _estimate(value.get(k), f"{where}: {k}") for k in _PLAN_ESTIMATES}
    return Plan(
        str(value["id"]),
        str(value.get("diagnosis", "")),
        read,
        gain_of=str(value.get("gain_of", "")),
        currency=str(value.get("currency", "")),
        stop=str(value.get("stop", "")),
        notes=texts(value.get("notes"), f"{where}: notes"),
        measure=texts(value.get("measure"), f"{where}: measure"),
        participants=parse_participants(value.get("participants"), takes, where),
        **numbered,
    )


_PLAN_ESTIMATES: Final = ("gain_points", "success_now", "success_then", "hours", "cost")


def _item(value: Any, where: str, station: Station | None) -> PlanItem:
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping, got {value!r}.")
    keys = PlanItem.__dataclass_fields__
    check_keys(value, keys, where, ("id", "dimension", "takes", "remedy"))
    remedy = _remedy(value["remedy"], where)
    conditions = value.get("conditions") or {}
    if not isinstance(conditions, dict):
        raise UnusableInputError(f"{where}: conditions must be a mapping, got {conditions!r}.")
    if station is not None:
        station.check_conditions(conditions, where)
    return PlanItem(
        id=str(value["id"]),
        dimension=dimension(value["dimension"], where),
        takes=whole_number(value["takes"], f"{where}: takes"),
        remedy=remedy,
        why=str(value.get("why", "")),
        protocol=str(value.get("protocol", "")),
        conditions=conditions,
        vary={} if station is None else _vary(value.get("vary") or {}, conditions, where, station),
        sensors=texts(value.get("sensors"), f"{where}: sensors"),
        test=str(value.get("test", "")),
        gain_points=_estimate(value.get("gain_points"), f"{where}: gain_points"),
        hours=_estimate(value.get("hours"), f"{where}: hours"),
        commands=texts(value.get("commands"), f"{where}: commands"),
        alternatives=_alternatives(value.get("alternatives") or [], where),
        **numbers(PlanItem, value, where, "key: value", further=value),
    )


def _remedy(value: Any, where: str) -> str:
    remedy = RENAMED.get(value, value) if isinstance(value, str) else value
    if remedy not in REMEDIES:
        raise unknown_choice("remedy", remedy, REMEDIES, where)
    return str(remedy)


def _alternatives(value: Any, where: str) -> tuple[Alternative, ...]:
    place = f"{where}: alternatives"
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UnusableInputError(f"{place} must be a list of mappings, got {value!r}.")
    found = []
    for entry in value:
        needed = ("remedy", "gain_points", "hours")
        check_keys(entry, Alternative.__dataclass_fields__, place, needed)
        gain, hours = (_estimate(entry[k], f"{place}: {k}") for k in ("gain_points", "hours"))
        if gain is None or hours is None:
            raise UnusableInputError(f"{place}: give gain_points and hours as mean, low and high.")
        machine = numbers(Alternative, entry, place, "key: value", further=entry)
        found.append(Alternative(_remedy(entry["remedy"], place), gain, hours, **machine))
    return tuple(found)


def _estimate(value: Any, where: str) -> Estimate | None:
    if value is None:
        return None
    keys = tuple(Estimate.__dataclass_fields__)
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping of {', '.join(keys)}, got {value!r}.")
    if "mean" in value:  # as plans of 0.1 have it
        value = {**value, "value": value["mean"]}
        del value["mean"]
    check_keys(value, keys, where, keys)
    return Estimate(**{key: number(value[key], f"{where}: {key}", -1e9, 1e9) for key in keys})


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
        if values == "all":
            values = list(every_value(name, station)) or values
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


def every_value(name: str, station: Station) -> tuple[Any, ...]:
    """Return what `all` stands for: every grid cell, or every name that a station defines."""
    if name == "grid_cell":
        return tuple(list(cell) for cell in itertools.product(*map(range, station.grid)))
    return station.conditions.get(name, ())
