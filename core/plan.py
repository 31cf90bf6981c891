"""`plan.yaml`: what to collect next and why, or what to do instead of collecting."""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core import schema
from gaploop.core.consent import BANDS, check_bands
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.station import NAMED_CONDITIONS, SIM_STATION, Station
from gaploop.core.statistics import Estimate, TrialCounts
from gaploop.core.vocabulary import GapDimension

SCHEMA: Final = "gaploop.plan.v1"
REMEDIES: Final = (
    "collect", "resimulate", "randomise", "recalibrate", "compensate", "drive_slower",
    "change_scene", "change_task",
)  # fmt: skip
"""What fixes a gap. Only the first asks for episodes of a person; the next five are commands, and
the last two words: what no command can do."""

EXPECTED_CONFIDENCE: Final = 0.90
"""Of the interval of `Plan.expected`."""


@dataclass(frozen=True)
class Alternative:
    """A remedy that was weighed against the one that was chosen.

    Attributes:
        gain_points: percentage points of success expected of it.
        hours: of an operator [h].
        machine_hours: of one core, with nobody there [h].
    """

    remedy: str = field(metadata={"read": schema.one_of(REMEDIES, "remedy")})
    gain_points: Estimate
    hours: Estimate
    machine_hours: float = schema.ranged(0.0, 0, 1e6)

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

    id: str = field(metadata={"read": schema.word})
    dimension: GapDimension
    takes: int = field(metadata={"read": schema.whole_number})
    remedy: str = field(metadata={"read": schema.one_of(REMEDIES, "remedy")})
    why: str = ""
    protocol: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    share: float = schema.ranged(0.0, 0, 1)
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    test: str = ""
    gain_points: Estimate | None = None
    hours: Estimate | None = None
    machine_hours: float = schema.ranged(0.0, 0, 1e6)
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
class ParticipantQuotas:
    """What a plan asks of the people who take part.

    Attributes:
        bands: kind to band to the takes that are wanted of it at least.
        most_each: takes of one person at most; 0 for any number.
    """

    bands: Mapping[str, Mapping[str, int]]
    most_each: int = 0


def _participants(value: Any, place: str) -> ParticipantQuotas | None:
    if value is None:
        return None
    given = schema.mapping(value, place, "kind: {band: takes}")
    schema.check_keys(given, (*BANDS, "most_each"), place)
    most_each = schema.whole_number(given.get("most_each", 0), f"{place}: most_each")
    bands: dict[str, dict[str, int]] = {}
    for kind in (k for k in BANDS if k in given):
        wanted = schema.mapping(given[kind], f"{place}: {kind}", "band: takes")
        for band, count in wanted.items():
            check_bands({kind: band}, place)
            schema.whole_number(count, f"{place}: {kind}: {band}")
        bands[kind] = {band: wanted[band] for band in BANDS[kind] if band in wanted}
    return ParticipantQuotas(bands, most_each)


@dataclass(frozen=True)
class Plan:
    """What to do about the failures of one diagnosis.

    Attributes:
        id: names the plan in lineage.
        items: in falling order of share.
        minutes: estimated time to record it [min].
        gain_points: percentage points of success expected of all items together.
        gain_of: what the points are of, in words.
        expected: the same gain, -1 to 1, with its 90 % interval.
        before: the rollouts that the plan rests on.
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

    id: str = field(metadata={"read": schema.word})
    diagnosis: str = ""
    items: tuple[PlanItem, ...] = ()
    minutes: float = schema.ranged(0.0, 0, 1e6)
    gain_points: Estimate | None = None
    gain_of: str = ""
    expected: Estimate | None = None
    before: TrialCounts | None = None
    success_now: Estimate | None = None
    success_then: Estimate | None = None
    hours: Estimate | None = None
    machine_hours: float = schema.ranged(0.0, 0, 1e6)
    rollout_hours: float = schema.ranged(0.0, 0, 1e6)
    cost: Estimate | None = None
    currency: str = ""
    stop: str = ""
    notes: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    participants: ParticipantQuotas | None = schema.read_with(_participants, None)

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
    value, where = schema.load_yaml(path, "Plan"), str(path)
    if (found := value.pop("schema", None)) != SCHEMA:
        raise UnusableInputError(f"{where}: schema must be {SCHEMA}, got {found!r}.")
    schema.check_keys(value, Plan.__dataclass_fields__, where, ("id", "items"))
    plan, items = schema.read_as(Plan, value, where), []
    for kind, wanted in (plan.participants or ParticipantQuotas({})).bands.items():
        if sum(wanted.values()) > plan.takes:
            raise UnusableInputError(
                f"{where}: participants: {kind} asks for {sum(wanted.values())} episodes, the plan "
                f"for {plan.takes}. Raise the episodes of its items, or ask for fewer."
            )
    for n, item in enumerate(plan.items, 1):
        vary = {}
        if station is not None:
            place = f"{where}: item {n}"
            station.check_conditions(item.conditions, place)
            vary = _vary(item.vary, item.conditions, place, station)
        items.append(replace(item, vary=vary))
    return replace(plan, items=tuple(items))


def _vary(
    value: Mapping[str, Any], conditions: Mapping[str, Any], where: str, station: Station
) -> dict[str, tuple[Any, ...]]:
    """Return condition to its values; `all` names every grid cell, or every name of the station."""
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
