"""`station.yaml`: what a cell is called, what can be set up in it, and the arm's limits.

A limit is always a finite number within a range: "no limit" can't be said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.costs import Costs, parse_costs
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.limits import (
    Interval,
    SafetyLimits,
    Workspace,
    parse_joint_limits,
    parse_safety,
    parse_workspace,
)
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import CONDITIONS, Domain

__all__ = ["SIM_STATION", "SafetyLimits", "Station", "Workspace", "load_station"]

NAMED_CONDITIONS: Final = ("background", "lighting", "object", "human")
"""Conditions whose values are names that the station file defines."""


@dataclass(frozen=True)
class Station:
    """One cell: its name, its domain, the values its conditions may take, its limits.

    Attributes:
        conditions: for each of `NAMED_CONDITIONS`, the names that can be set up here.
        grid: rows and columns of the placement grid.
        robot_model: name of an arm model or path of an MJCF file; "" for the robot type's own.
        workspace: box that the arm stays in; None for the arm model's own box.
        joint_limits_rad: joint to [lower, upper] [rad], within the robot's own limits.
        costs: what recording costs here.
        where: the file it was read from, for messages.
    """

    name: str
    domain: Domain = Domain.REAL
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grid: tuple[int, int] = (3, 3)
    safety: SafetyLimits = field(default_factory=SafetyLimits)
    robot_model: str = ""
    workspace: Workspace | None = None
    joint_limits_rad: Mapping[str, Interval] = field(default_factory=dict)
    where: str = "the station"
    costs: Costs = field(default_factory=Costs)

    def joint_limits(self, joint_names: Sequence[str], own_rad: FloatArray) -> FloatArray:
        """Return the robot's own joint limits, narrowed where the station says so.

        Args:
            joint_names: the robot's joints.
            own_rad: the robot's own lower and upper limits [rad], shape (n_joints, 2).

        Returns:
            Lower and upper limits [rad], shape (n_joints, 2).

        Raises:
            UnusableInputError: a joint that the robot hasn't got, or a limit outside its own.
        """
        limits = np.array(own_rad, dtype=np.float64)
        for name, (low, high) in self.joint_limits_rad.items():
            place = f"{self.where}: joint_limits_rad"
            if name not in joint_names:
                raise unknown_choice("joint", name, joint_names, place)
            own_low, own_high = limits[joint_names.index(name)].tolist()
            if low < own_low or high > own_high:
                raise UnusableInputError(
                    f"{place}: {name}: [{low:g}, {high:g}] reaches outside the robot's own range "
                    f"[{own_low:.4g}, {own_high:.4g}] rad. A station may only narrow it."
                )
            limits[joint_names.index(name)] = low, high
        return limits

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
    # Nothing can be hurt in simulation: a trip is held long enough to be seen in the record, an
    # arm far from its leader needn't creep, and the box holds all that the arm can reach. A joint
    # that misses its goals for a while is one of the gaps that can be injected.
    safety=SafetyLimits(
        torque_off_s=5.0, align_velocity_rad_s=3.0, stall_current_a=2.5, following_s=10.0
    ),
    workspace=Workspace((-0.6, 0.6), (-0.6, 0.6), (-0.6, 0.8)),
)
"""The embedded cell; `--station=FILE` names another."""


_KEYS: Final = (
    "name",
    "domain",
    "conditions",
    "grid",
    "safety",
    "robot_model",
    "workspace",
    "joint_limits_rad",
    "costs",
)


def load_station(path: Path) -> Station:
    """Read and check a station file.

    What only the robot knows, such as its own joint limits, is checked by `Station.joint_limits`.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Station file"), str(path)
    check_keys(value, _KEYS, where, ("name",))
    domain = value.get("domain", "real")
    if domain not in list(Domain):
        raise unknown_choice("domain", domain, [d.value for d in Domain], where)
    model = value.get("robot_model", "")
    if not isinstance(model, str) or ("robot_model" in value and not model.strip()):
        raise UnusableInputError(
            f"{where}: robot_model must be the name of an arm model or the path of an MJCF file, "
            f"got {model!r}."
        )
    return Station(
        str(value["name"]),
        Domain(domain),
        _conditions(value.get("conditions"), where),
        _grid(value.get("grid", [3, 3]), where),
        parse_safety(value.get("safety"), where),
        _beside(path, model),
        parse_workspace(value["workspace"], where) if "workspace" in value else None,
        parse_joint_limits(value["joint_limits_rad"], where) if "joint_limits_rad" in value else {},
        where,
        parse_costs(value.get("costs"), where),
    )


def _beside(path: Path, model: str) -> str:
    """Return `model`, as a path beside the station file where such a file exists."""
    beside = path.parent / model
    return str(beside) if model and beside.is_file() else model


def _conditions(value: object, where: str) -> dict[str, tuple[str, ...]]:
    value = mapping(value, f"{where}: conditions", "condition: [name, …]")
    check_keys(value, NAMED_CONDITIONS, f"{where}: conditions")
    for name, names in value.items():
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise UnusableInputError(f"{where}: conditions: {name} must be a list of names.")
    return {k: tuple(v) for k, v in value.items()}


def _grid(value: Any, where: str) -> tuple[int, int]:
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(isinstance(n, int) and n > 0 for n in value)
    ):
        raise UnusableInputError(f"{where}: grid must be [rows, columns], got {value!r}.")
    return value[0], value[1]


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
