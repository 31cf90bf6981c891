"""Limits of a cell: what the safety filter holds a command to and what trips it.

A limit is always a finite number within a range: "no limit" can't be said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import check_keys, mapping, number
from gaploop.core.types import FloatArray


@dataclass(frozen=True)
class SafetyLimits:
    """Limits of the safety filter. There is no way to say "no limit".

    Attributes:
        velocity_rad_s: fastest change of any joint's command [rad/s].
        align_velocity_rad_s: the same until the arm has caught up with its leader once, after
            a start, a cleared trip or a change of who drives [rad/s].
        acceleration_rad_s2: fastest growth of that velocity [rad/s²].
        stale_leader_s: a leader older than this trips [s].
        temperature_c: a motor hotter than this trips [°C]; 70 is the STS3215's own cut-off.
        stall_current_a: current above this, held for `stall_s`, trips [A]; an STS3215 stalls at
            2.4 A (7.4 V) or 2.7 A (12 V), and motors that stall at less trip below that.
        stall_load_pct: load above this, held for `stall_s`, trips a motor that doesn't report
            its current, such as the XL430 [% of stall].
        stall_s: how long [s].
        torque_off_s: after a trip the arm holds this long, then torque goes off [s].
        lost_servo_s: a servo that is silent for longer than this trips [s].
        following_rad: a joint further than this from where it was sent should be under way: one
            that makes no way and draws no current for `following_s` trips [rad]. A joint's
            ordinary lag in fast motion is more than this, but then it moves.
        following_s: how long [s].
    """

    velocity_rad_s: float = 3.0
    align_velocity_rad_s: float = 0.6
    acceleration_rad_s2: float = 60.0
    stale_leader_s: float = 0.2
    temperature_c: float = 65.0
    stall_current_a: float = 2.0
    stall_load_pct: float = 80.0
    stall_s: float = 0.5
    torque_off_s: float = 0.1
    lost_servo_s: float = 0.1
    following_rad: float = 0.15
    following_s: float = 0.3


_LIMIT_RANGES: Final[dict[str, tuple[float, float]]] = {
    "velocity_rad_s": (0.01, 20.0),
    "align_velocity_rad_s": (0.01, 20.0),
    "acceleration_rad_s2": (0.1, 1000.0),
    "stale_leader_s": (0.005, 5.0),
    "temperature_c": (20.0, 90.0),
    "stall_current_a": (0.05, 20.0),
    "stall_load_pct": (5.0, 95.0),
    "stall_s": (0.02, 10.0),
    "torque_off_s": (0.0, 60.0),
    "lost_servo_s": (0.01, 2.0),
    "following_rad": (0.05, 1.0),
    "following_s": (0.1, 10.0),
}


type Interval = tuple[float, float]

WORKSPACE_REACH_M: Final = 2.0
"""No face of a workspace box may lie farther than this from the arm's base [m]."""
WORKSPACE_MIN_M: Final = 0.05
"""A workspace box is at least this long on every axis [m]; a smaller one is a slip of the pen."""
_JOINT_RANGE_RAD: Final = 2.0 * math.pi


@dataclass(frozen=True)
class Workspace:
    """The box that an arm's guarded points stay in: lower and upper bound per axis [m].

    In the arm's base frame: x forward, y left, z up from the surface that the arm stands on.
    """

    x: Interval
    y: Interval
    z: Interval

    def bounds_m(self) -> FloatArray:
        """Return lower and upper corner [m], shape (2, 3)."""
        return np.array([self.x, self.y, self.z]).T


def parse_safety(value: object, where: str) -> SafetyLimits:
    """Check the section `safety` of a station file; what it leaves out keeps its default."""
    value = mapping(value, f"{where}: safety", "limit: number")
    check_keys(value, _LIMIT_RANGES, f"{where}: safety")
    checked = {k: number(v, f"{where}: safety: {k}", *_LIMIT_RANGES[k]) for k, v in value.items()}
    if "velocity_rad_s" in checked:  # an arm doesn't align faster than it may move
        default_rad_s = SafetyLimits.align_velocity_rad_s
        checked.setdefault("align_velocity_rad_s", min(default_rad_s, checked["velocity_rad_s"]))
    limits = SafetyLimits(**checked)
    if limits.align_velocity_rad_s > limits.velocity_rad_s:
        raise UnusableInputError(
            f"{where}: safety: align_velocity_rad_s ({limits.align_velocity_rad_s:g}) must not be "
            f"above velocity_rad_s ({limits.velocity_rad_s:g})."
        )
    return limits


def parse_workspace(value: object, where: str) -> Workspace:
    """Check the section `workspace` of a station file."""
    place = f"{where}: workspace"
    value = mapping(value, place, "axis: [lower, upper] in m")
    check_keys(value, ("x", "y", "z"), place, ("x", "y", "z"))
    reach = WORKSPACE_REACH_M
    box = {axis: _interval(value[axis], f"{place}: {axis}", reach, "m") for axis in "xyz"}
    for axis, (low, high) in box.items():
        if high - low < WORKSPACE_MIN_M:
            raise UnusableInputError(
                f"{place}: {axis}: [{low:g}, {high:g}] must be at least {WORKSPACE_MIN_M:g} m long."
            )
    return Workspace(box["x"], box["y"], box["z"])


def parse_joint_limits(value: object, where: str) -> dict[str, Interval]:
    """Check the section `joint_limits_rad` of a station file, without knowing the robot."""
    place = f"{where}: joint_limits_rad"
    value = mapping(value, place, "joint: [lower, upper] in rad")
    return {
        str(joint): _interval(pair, f"{place}: {joint}", _JOINT_RANGE_RAD, "rad")
        for joint, pair in value.items()
    }


def _interval(value: Any, place: str, limit: float, unit: str) -> Interval:
    if not isinstance(value, list) or len(value) != 2:
        raise UnusableInputError(f"{place} must be [lower, upper] in {unit}, got {value!r}.")
    low, high = (number(entry, place, -limit, limit) for entry in value)
    if low >= high:
        raise UnusableInputError(f"{place}: the lower bound {low:g} must be below {high:g} {unit}.")
    return low, high
