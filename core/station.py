"""`station.yaml`: a cell's name, what can be set up in it, the arm's limits, what recording costs.

A limit is always a finite number within a range: "no limit" can't be said.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core import schema
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import Domain


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
        torque_off_s: after a trip the arm holds this long before it is let go of or lowered [s];
            not after a lost servo.
        lost_servo_s: a servo that is silent for longer than this trips [s]; a robot that is driven
            through its class after 0.4 s at least.
        following_rad: a joint further than this from where it was sent should be under way: one
            that makes no way and draws no current for `following_s` trips [rad]. A joint's
            ordinary lag in fast motion is more than this, but then it moves.
        gripper_torque_pct: a gripper pushes with at most this much of what its servo can
            [% of its torque, current or PWM limit].
    """

    velocity_rad_s: float = schema.ranged(3.0, 0.01, 20.0)
    align_velocity_rad_s: float = schema.ranged(0.6, 0.01, 20.0)
    acceleration_rad_s2: float = schema.ranged(60.0, 0.1, 1000.0)
    stale_leader_s: float = schema.ranged(0.2, 0.005, 5.0)
    temperature_c: float = schema.ranged(65.0, 20.0, 90.0)
    stall_current_a: float = schema.ranged(2.0, 0.05, 20.0)
    stall_load_pct: float = schema.ranged(80.0, 5.0, 95.0)
    stall_s: float = schema.ranged(0.5, 0.02, 10.0)
    torque_off_s: float = schema.ranged(0.1, 0.0, 60.0)
    lost_servo_s: float = schema.ranged(0.1, 0.01, 2.0)
    following_rad: float = schema.ranged(0.15, 0.05, 1.0)
    following_s: float = schema.ranged(0.3, 0.1, 10.0)
    gripper_torque_pct: float = schema.ranged(50.0, 5.0, 100.0)


type Interval = tuple[float, float]

WORKSPACE_REACH_M: Final = 2.0
"""No face of a workspace box may lie farther than this from the arm's base [m]."""
WORKSPACE_MIN_M: Final = 0.05
"""A workspace box is at least this long on every axis [m]; a smaller one is a slip of the pen."""
_JOINT_RANGE_RAD: Final = 2.0 * math.pi


def _interval(value: Any, place: str, limit: float, unit: str) -> Interval:
    low, high = schema.pair(value, place, -limit, limit, f"[lower, upper] in {unit}")
    if low >= high:
        raise UnusableInputError(f"{place}: the lower bound {low:g} must be below {high:g} {unit}.")
    return low, high


def _side(value: Any, place: str) -> Interval:
    low, high = _interval(value, place, WORKSPACE_REACH_M, "m")
    if high - low < WORKSPACE_MIN_M:
        raise UnusableInputError(
            f"{place}: [{low:g}, {high:g}] must be at least {WORKSPACE_MIN_M:g} m long."
        )
    return low, high


@dataclass(frozen=True)
class Workspace:
    """The box that an arm's guarded points stay in: lower and upper bound per axis [m].

    In the arm's base frame: x forward, y left, z up from the surface that the arm stands on.
    """

    x: Interval = field(metadata={"read": _side})
    y: Interval = field(metadata={"read": _side})
    z: Interval = field(metadata={"read": _side})

    def bounds_m(self) -> FloatArray:
        """Return lower and upper corner [m], shape (2, 3)."""
        return np.array([self.x, self.y, self.z]).T


def _filled(form: str) -> Callable[[Any, str], str]:
    """Return a function that reads text that isn't empty, `form` in messages."""

    def read(value: Any, place: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise UnusableInputError(f"{place} must be {form}, got {value!r}.")
        return value

    return read


@dataclass(frozen=True)
class Costs:
    """Times and rates of a station; what is None is measured from takes, or assumed.

    Attributes:
        reset_s: from the end of a take to the start of the next of the same set-up [s].
        setup_s: what a change of set-up adds to that [s].
        rate_per_hour: operator and station [`currency` per hour].
    """

    take_s: float | None = schema.ranged(None, 0.1, 36_000.0)
    reset_s: float | None = schema.ranged(None, 0.0, 36_000.0)
    setup_s: float | None = schema.ranged(None, 0.0, 36_000.0)
    rate_per_hour: float | None = schema.ranged(None, 0.0, 1e6)
    currency: str = schema.read_with(_filled("a name such as EUR"), "EUR")


NAMED_CONDITIONS: Final = ("background", "lighting", "object", "human")
"""Conditions whose values are names that the station file defines."""


COLOURS: Final[Mapping[str, Interval]] = {
    "red": (344.0, 18.0), "yellow": (40.0, 70.0), "green": (80.0, 160.0),
    "cyan": (165.0, 195.0), "blue": (200.0, 244.0), "magenta": (270.0, 330.0),
}  # fmt: skip
"""Hues from and to on the colour circle [degree]."""


def _hues(value: Any, place: str) -> Interval:
    if isinstance(value, list) and len(value) == 2:
        return schema.pair(value, place, 0.0, 360.0)
    if isinstance(value, str) and value in COLOURS:
        return COLOURS[value]
    raise unknown_choice("colour", value, (*COLOURS, "[from, to] of its hue in degrees"), place)


def _scene(value: Any, place: str) -> StationScene:
    given = schema.mapping(value, place, "camera: name, object: colour, target: colour")
    schema.check_keys(given, ("camera", "object", "target"), place)
    scene = StationScene(
        schema.text(given.get("camera", ""), f"{place}: camera"),
        _hues(given.get("object", "red"), f"{place}: object"),
        _hues(given.get("target", "blue"), f"{place}: target"),
        object_is_stated="object" in given,
    )
    if list(scene.hues_deg()) != sorted(scene.hues_deg()):
        raise UnusableInputError(
            f"{place}: object and target have hues in common ({scene.object_hue_deg} and "
            f"{scene.target_hue_deg} degrees). Give them different colours, or narrower ranges."
        )
    return scene


@dataclass(frozen=True)
class StationScene:
    """Where pictures show the scene, and what colours object and target have there.

    Attributes:
        camera: its name; "" for the first.
        object_hue_deg: from and to on the colour circle [degree]; may pass 360.
        target_hue_deg: likewise.
        object_is_stated: the station's file says so; else its colour is the embedded cell's.
    """

    camera: str = ""
    object_hue_deg: Interval = COLOURS["red"]
    target_hue_deg: Interval = COLOURS["blue"]
    object_is_stated: bool = False

    def hues_deg(self) -> tuple[float, float, float, float]:
        """Return both, object first, going round once from where the object's begins [degree]."""
        first = self.object_hue_deg[0]
        ends = (*self.object_hue_deg[1:], *self.target_hue_deg)
        low, high, last = (first + (end - first) % 360.0 for end in ends)
        return first, low, high, last

    def camera_among(self, names: Sequence[str], where: str) -> str:
        """Return the camera to look at, one of some, or raise UnknownChoiceError."""
        if self.camera and self.camera not in names:
            raise unknown_choice("camera", self.camera, names or ("(none)",), where)
        return self.camera or names[0]


def _safety(value: Any, place: str) -> SafetyLimits:
    limits = schema.read_as(SafetyLimits, value, place)
    if "align_velocity_rad_s" not in (value or ()):  # an arm doesn't align faster than it may move
        slowest = min(limits.align_velocity_rad_s, limits.velocity_rad_s)
        return replace(limits, align_velocity_rad_s=slowest)
    if limits.align_velocity_rad_s > limits.velocity_rad_s:
        raise UnusableInputError(
            f"{place}: align_velocity_rad_s ({limits.align_velocity_rad_s:g}) must not be above "
            f"velocity_rad_s ({limits.velocity_rad_s:g})."
        )
    return limits


def _conditions(value: Any, place: str) -> dict[str, tuple[str, ...]]:
    given = schema.mapping(value, place, "condition: [name, …]")
    schema.check_keys(given, NAMED_CONDITIONS, place)
    for name, names in given.items():
        if not isinstance(names, list):  # nothing is no list, either
            raise UnusableInputError(f"{place}: {name} must be a list of names.")
    return {name: schema.texts(names, f"{place}: {name}", "names") for name, names in given.items()}


def _grid(value: Any, place: str) -> tuple[int, int]:
    is_pair = isinstance(value, list) and len(value) == 2
    if not is_pair or not all(isinstance(n, int) and n > 0 for n in value):
        raise UnusableInputError(f"{place} must be [rows, columns], got {value!r}.")
    return value[0], value[1]


def _joint_limits(value: Any, place: str) -> dict[str, Interval]:
    given = schema.mapping(value, place, "joint: [lower, upper] in rad")
    return {
        str(j): _interval(limits, f"{place}: {j}", _JOINT_RANGE_RAD, "rad")
        for j, limits in given.items()
    }


def _angles(value: Any, place: str) -> dict[str, float]:
    given = schema.mapping(value, place, "joint: angle in rad")
    return {
        str(j): schema.number(q, f"{place}: {j}", -_JOINT_RANGE_RAD, _JOINT_RANGE_RAD)
        for j, q in given.items()
    }


@dataclass(frozen=True)
class Station:
    """One cell: its name, its domain, the values its conditions may take, its limits.

    Attributes:
        conditions: for each of `NAMED_CONDITIONS`, the names that can be set up here.
        grid: rows and columns of the placement grid.
        robot_model: name of an arm model or path of an MJCF file; "" for the robot type's own.
        workspace: box that the arm stays in; None for the arm model's own box.
        joint_limits_rad: joint to [lower, upper] [rad], within the robot's own limits.
        park_rad: joint to where it rests without torque [rad]; joints that aren't named stay where
            they are. Empty for the arm's own, folded.
        scene: where pictures show object and target, and in what colours.
    """

    name: str = field(metadata={"read": schema.word})
    domain: Domain = Domain.REAL
    conditions: Mapping[str, tuple[str, ...]] = schema.read_with(_conditions, default_factory=dict)
    grid: tuple[int, int] = schema.read_with(_grid, (3, 3))
    safety: SafetyLimits = schema.read_with(_safety, SafetyLimits())
    robot_model: str = schema.read_with(
        _filled("the name of an arm model or the path of an MJCF file"), ""
    )
    workspace: Workspace | None = schema.read_with(partial(schema.read_as, Workspace), None)
    joint_limits_rad: Mapping[str, Interval] = schema.read_with(_joint_limits, default_factory=dict)
    where: str = schema.not_in_file("the station")
    costs: Costs = Costs()
    scene: StationScene = schema.read_with(_scene, StationScene())
    park_rad: Mapping[str, float] = schema.read_with(_angles, default_factory=dict)

    def joint_limits(self, joint_names: Sequence[str], own_rad: FloatArray) -> FloatArray:
        """Return the robot's own joint limits [rad], narrowed where the station says so.

        `own_rad` and the result are lower and upper limits, shape (n_joints, 2).

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
            elif name == "distractors":
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 20:
                    raise UnusableInputError(
                        f"{place} must be a whole number from 0 to 20, got {value!r}."
                    )
            elif name == "table_height":
                schema.number(value, place, -0.2, 0.2)
            elif name == "camera_pose":
                if not isinstance(value, list | tuple) or len(value) != 6:
                    raise UnusableInputError(
                        f"{place} must be [dx, dy, dz, droll, dpitch, dyaw], got {value!r}."
                    )
                for entry in value:
                    schema.number(entry, place, -math.pi, math.pi)
            elif name == "grid_cell":
                is_pair = isinstance(value, list | tuple) and len(value) == 2
                if not is_pair or not all(
                    isinstance(v, int) and 0 <= v < n for v, n in zip(value, self.grid, strict=True)
                ):
                    raise UnusableInputError(
                        f"{place} must be [row, column] within {self.grid}, got {value!r}."
                    )
            elif not isinstance(value, str | int | float):
                raise UnusableInputError(f"{place} must be text or a number, got {value!r}.")


SIM_STATION: Final = Station(
    name="so101_cell",
    domain=Domain.SIM,
    conditions={
        "background": ("wood", "grey", "white", "dark", "cloth"),
        "lighting": ("nominal", "dim", "bright", "warm", "cold", "side"),
        "object": (
            *("red_cube", "small_cube", "large_cube", "huge_cube", "heavy_cube"),
            *("long_box", "cylinder"),
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


def load_station(path: Path) -> Station:
    """Read and check a station file.

    What only the robot knows, such as its own joint limits, is checked by `Station.joint_limits`.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    where = str(path)
    station = schema.read_as(Station, schema.load_yaml(path, "Station file"), where)
    beside = path.parent / station.robot_model
    is_file = station.robot_model and os.path.isfile(beside)
    return replace(
        station, where=where, robot_model=str(beside) if is_file else station.robot_model
    )


def scene_station(path: Path) -> Station:
    """Return the station of a scene file: as the embedded cell's, without its workspace."""
    return replace(SIM_STATION, name=path.stem, workspace=None)
