"""The mapping file of `gaploop import --format=csv`: which column is what, where takes lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, number

SCHEMA: Final = "gaploop.csv.v1"
TIME_UNITS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
"""Unit of a numeric time column to nanoseconds."""
ISO: Final = "iso8601"


@dataclass(frozen=True)
class CsvMapping:
    """How to read one kind of CSV log.

    Attributes:
        time_column: column with the time.
        time_unit: `iso8601`, or a unit of `TIME_UNITS` for numbers.
        channels: column to (telemetry name, unit).
        events: boolean column to the name of the event that begins where it turns true.
        before_s: take before an event's onset [s].
        after_s: take after it [s].
        max_gap_s: a take never spans a longer pause in the log [s].
        controls: how many event-free takes to cut, at most.
        clear_s: how far a control keeps from any event [s].
    """

    where: str
    separator: str
    decimal: str
    time_column: str
    time_unit: str
    channels: Mapping[str, tuple[str, str]]
    events: Mapping[str, str] = field(default_factory=dict)
    before_s: float = 20.0
    after_s: float = 5.0
    max_gap_s: float = 3.0
    controls: int = 0
    clear_s: float = 20.0
    robot_type: str = ""
    task: str = ""
    station: str = ""

    @property
    def length_s(self) -> float:
        """Length of every take [s]."""
        return self.before_s + self.after_s


def load_mapping(path: Path) -> CsvMapping:
    """Read and check a mapping file.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Mapping"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{where}: schema must be {SCHEMA}, got {value.get('schema')!r}.")
    words = ("schema", "separator", "decimal", "robot_type", "task", "station")
    keys = (*words, "time", "channels", "events", "window", "controls")
    check_keys(value, keys, where, ("time", "channels"))
    time = _mapping(value, "time", where)
    check_keys(time, ("column", "unit"), f"{where}: time", ("column", "unit"))
    if time["unit"] not in (ISO, *TIME_UNITS):
        raise unknown_choice("time unit", time["unit"], (ISO, *TIME_UNITS), where)
    window, controls = _mapping(value, "window", where), _mapping(value, "controls", where)
    check_keys(window, ("before_s", "after_s", "max_gap_s"), f"{where}: window")
    check_keys(controls, ("takes", "clear_s"), f"{where}: controls")
    separator, decimal = str(value.get("separator", ",")), str(value.get("decimal", "."))
    if len(separator) != 1 or len(decimal) != 1 or separator == decimal:
        raise UnusableInputError(
            f"{where}: separator {separator!r} and decimal {decimal!r} must be two different "
            "characters."
        )
    return CsvMapping(
        where,
        separator,
        decimal,
        str(time["column"]),
        str(time["unit"]),
        _channels(_mapping(value, "channels", where), where),
        {str(k): str(v) for k, v in _mapping(value, "events", where).items()},
        number(window.get("before_s", 20.0), f"{where}: before_s", 0, 3600),
        number(window.get("after_s", 5.0), f"{where}: after_s", 0, 3600),
        number(window.get("max_gap_s", 3.0), f"{where}: max_gap_s", 1e-6, 3600),
        int(number(controls.get("takes", 0), f"{where}: controls: takes", 0, 1e6)),
        number(controls.get("clear_s", 20.0), f"{where}: controls: clear_s", 0, 3600),
        *(str(value.get(key, "")) for key in ("robot_type", "task", "station")),
    )


def _mapping(value: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise UnusableInputError(f"{where}: {key} must be a mapping, got {found!r}.")
    return found


def _channels(value: Mapping[str, Any], where: str) -> dict[str, tuple[str, str]]:
    if not value:
        raise UnusableInputError(f"{where}: channels is empty. Name at least one column.")
    channels: dict[str, tuple[str, str]] = {}
    for column, spec in value.items():
        place = f"{where}: channel {column!r}"
        if not isinstance(spec, dict):
            raise UnusableInputError(f"{place} must be {{name: …, unit: …}}, got {spec!r}.")
        check_keys(spec, ("name", "unit"), place, ("name", "unit"))
        name = str(spec["name"])
        if "/" in name or name == "t_ns" or name in {n for n, _ in channels.values()}:
            raise UnusableInputError(f"{place}: name {name!r} is taken or holds a slash.")
        channels[str(column)] = (name, str(spec["unit"]))
    return channels
