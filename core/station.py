"""`station.yaml`: what a cell is called, what can be set up in it, and the arm's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.core.vocabulary import CONDITIONS, Domain

NAMED_CONDITIONS: Final = ("background", "lighting", "object", "human")
"""Conditions whose values are names that the station file defines."""


@dataclass(frozen=True)
class SafetyLimits:
    """Limits of the safety filter. There is no way to say "no limit".

    Attributes:
        velocity_rad_s: fastest change of any joint's command [rad/s].
        acceleration_rad_s2: fastest change of that velocity [rad/s²].
        stale_leader_s: a leader older than this trips [s].
        temperature_c: a motor hotter than this trips [°C]; 70 is the STS3215's own cut-off.
        stall_current_a: current above this, held for `stall_s`, trips [A].
        stall_s: how long [s].
        torque_off_s: after a trip the arm holds this long, then torque goes off [s].
        lost_servo_s: a servo that is silent for longer than this trips [s].
    """

    velocity_rad_s: float = 3.0
    acceleration_rad_s2: float = 60.0
    stale_leader_s: float = 0.2
    temperature_c: float = 65.0
    stall_current_a: float = 2.5
    stall_s: float = 0.5
    torque_off_s: float = 0.1
    lost_servo_s: float = 0.1


_LIMIT_RANGES: Final[dict[str, tuple[float, float]]] = {
    "velocity_rad_s": (0.01, 20.0),
    "acceleration_rad_s2": (0.1, 1000.0),
    "stale_leader_s": (0.005, 5.0),
    "temperature_c": (20.0, 90.0),
    "stall_current_a": (0.05, 20.0),
    "stall_s": (0.02, 10.0),
    "torque_off_s": (0.0, 60.0),
    "lost_servo_s": (0.01, 2.0),
}


@dataclass(frozen=True)
class Station:
    """One cell: its name, its domain, the values its conditions may take, its limits.

    Attributes:
        conditions: for each of `NAMED_CONDITIONS`, the names that can be set up here.
        grid: rows and columns of the placement grid.
    """

    name: str
    domain: Domain = Domain.REAL
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grid: tuple[int, int] = (3, 3)
    safety: SafetyLimits = SafetyLimits()

    def check_conditions(self, conditions: Mapping[str, Any], where: str) -> None:
        """Check that every condition can be set up here. Free keys hold any text or number.

        Raises:
            UnusableInputError: a value of the wrong form, or a name this station doesn't define.
        """
        for name, value in conditions.items():
            place = f"{where}: condition {name}"
            if name in NAMED_CONDITIONS:
                known = self.conditions.get(name, ())
                if value not in known:
                    raise unknown_choice(
                        f"{name} condition", value, known or ("(none defined)",), where
                    )
            elif name in CONDITIONS:
                _check_condition(name, value, self.grid, place)
            elif not isinstance(value, str | int | float):
                raise UnusableInputError(f"{place} must be text or a number, got {value!r}.")


SIM_STATION: Final = Station(
    name="so101_cell",
    domain=Domain.SIM,
    conditions={
        "background": ("wood", "grey", "white", "dark", "cloth"),
        "lighting": ("nominal", "dim", "bright", "warm", "cold", "side"),
        "object": (
            "red_cube",
            "small_cube",
            "large_cube",
            "huge_cube",
            "heavy_cube",
            "long_box",
            "cylinder",
        ),
        "human": ("none", "reach_in", "nudge", "take"),
    },
    # Nothing can be hurt in simulation, so a trip is held long enough to be seen in the record.
    safety=SafetyLimits(torque_off_s=5.0),
)
"""The embedded cell; `--station=FILE` names another."""


def load_station(path: Path) -> Station:
    """Read and check a station file.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Station file"), str(path)
    check_keys(value, ("name", "domain", "conditions", "grid", "safety"), where, ("name",))
    domain = value.get("domain", "real")
    if domain not in list(Domain):
        raise unknown_choice("domain", domain, [d.value for d in Domain], where)
    conditions = value.get("conditions") or {}
    check_keys(conditions, NAMED_CONDITIONS, f"{where}: conditions")
    for name, names in conditions.items():
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise UnusableInputError(f"{where}: conditions: {name} must be a list of names.")
    grid = value.get("grid", [3, 3])
    if (
        not isinstance(grid, list)
        or len(grid) != 2
        or not all(isinstance(n, int) and n > 0 for n in grid)
    ):
        raise UnusableInputError(f"{where}: grid must be [rows, columns], got {grid!r}.")
    limits = value.get("safety") or {}
    check_keys(limits, _LIMIT_RANGES, f"{where}: safety")
    checked = {k: number(v, f"{where}: safety: {k}", *_LIMIT_RANGES[k]) for k, v in limits.items()}
    return Station(
        str(value["name"]),
        Domain(domain),
        {k: tuple(v) for k, v in conditions.items()},
        (grid[0], grid[1]),
        SafetyLimits(**checked),
    )


def _check_condition(name: str, value: Any, grid: tuple[int, int], place: str) -> None:
    if name == "distractors":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 20:
            raise UnusableInputError(f"{place} must be a whole number from 0 to 20, got {value!r}.")
    elif name == "table_height":
        number(value, place, -0.2, 0.2)
    elif name == "camera_pose":
        if not isinstance(value, list | tuple) or len(value) != 6:
            raise UnusableInputError(
                f"{place} must be [dx, dy, dz, droll, dpitch, dyaw], got {value!r}."
            )
        for entry in value:
            number(entry, place, -math.pi, math.pi)
    elif name == "grid_cell":
        ok = isinstance(value, list | tuple) and len(value) == 2
        if not ok or not all(
            isinstance(v, int) and 0 <= v < n for v, n in zip(value, grid, strict=True)
        ):
            raise UnusableInputError(f"{place} must be [row, column] within {grid}, got {value!r}.")
