"""What an arm is: everything that gaploop must know of it, as data. `core.arms` has the arms.

An arm need not have every part: one that is only emulated has no cell, one of the cell no servo
plan. Base frame: x forward, y left, z up, on the table under the base. Tool frame: z along the
fingers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import util
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray

SIX_JOINTS: Final = (
    "shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper",
)  # fmt: skip
"""The joints of LeRobot's small arms, in its order."""
PAN_AXIS_X_M: Final = 0.0388353
"""Where the first joint's axis of each arm of the cell meets the table, so that tracked scenes mean
the same: where the SO-101's does in its model."""

type Box = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
"""Lower and upper bound of x, y and z [m]."""
type Point = tuple[float, float, float]
type Rgba = tuple[float, float, float, float]


@dataclass(frozen=True)
class ModelFile:
    """A file that a Python package ships.

    Attributes:
        package: the package; it is looked for, never imported.
        path: of the file inside the package, with slashes.
    """

    package: str
    path: str
    install: str

    @property
    def is_installed(self) -> bool:
        """Whether the package is there."""
        return self._folder() is not None

    def find(self, whose: str) -> Path:
        """Return its path, or raise UnusableInputError that `whose` model isn't installed."""
        folder = self._folder()
        if folder is None:
            raise UnusableInputError(
                f"The model of the {whose} is part of {self.package}, which isn't installed. "
                f"Run: {self.install}"
            )
        return folder.joinpath(*self.path.split("/"))

    def _folder(self) -> Path | None:
        found = util.find_spec(self.package)
        places = found.submodule_search_locations if found else None
        return Path(places[0]) if places else None


@dataclass(frozen=True)
class Link:
    """Where a part hangs on the one before it: shifted, turned, then turned by its own joint.

    Attributes:
        pos_m: of its frame in the frame before it [m].
        axis: of its hinge, in its own frame.
        quat: how its frame is turned (w, x, y, z).
    """

    pos_m: Point
    axis: Point = (0.0, 0.0, 1.0)
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class GuardedPoint:
    """A point of the arm that a workspace box guards.

    Attributes:
        offset_m: where in that body's frame [m].
    """

    name: str
    body: str
    offset_m: Point = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ArmSpec:
    """An arm's geometry, for kinematics and the workspace box.

    Attributes:
        points: what a workspace box guards beside the tool centre.
        workspace_m: default box in the base frame [m]: above the table, within reach.
        gripper_percent_rad: gripper angle at 0 and at 100 of LeRobot's gripper units [rad].
            Calibrated arms span closed to open; LeRobot leaves the OMX at a whole turn.
        half_range_rad: half of each joint's range in the model [rad]: what LeRobot calls 100.
    """

    label: str
    model: ModelFile
    points: tuple[GuardedPoint, ...]
    workspace_m: Box
    gripper_percent_rad: tuple[float, float]
    half_range_rad: Mapping[str, float]

    @property
    def mjcf(self) -> Path:
        """Path of the model; raises UnusableInputError where its package isn't installed."""
        return self.model.find(self.label)


def half_ranges(*half_range_rad: float) -> dict[str, float]:
    """Return half of each joint's range [rad] by name, of an arm with `SIX_JOINTS`."""
    return dict(zip(SIX_JOINTS, half_range_rad, strict=True))


@dataclass(frozen=True)
class ServoChain:
    """The servos of an arm that can be emulated, from the base to the gripper.

    Attributes:
        protocol: what they speak: "feetech" or "dynamixel".
        models: such as sts3215, shape (n_joints,).
        first_id: of the servo at the base; the others follow.
        zero_ticks: bare encoder at each joint's zero.
        settings: registers that all have set up, such as Baud_Rate.
        inverted: joints whose servo turns the other way.
        homing_offset: LeRobot's, where it calibrates by the makers' values instead of by hand: of
            servos that turn the other way; 0 for the others.
    """

    protocol: str
    models: tuple[str, ...]
    first_id: int = 1
    zero_ticks: tuple[int, ...] = (2048,) * 6
    settings: Mapping[str, int] = field(default_factory=dict)
    inverted: frozenset[str] = frozenset()
    homing_offset: int | None = None


ASSEMBLED_TICKS: Final = (2166, 1843, 2135, 1984, 2199, 1955)
"""Encoders at the joints' zeros on an arm that somebody assembled: each is off by a bit."""


@dataclass(frozen=True)
class Servos:
    """What an arm's servos can do and report in the embedded cell, gripper last.

    Attributes:
        stall_nm: stall torque of each joint [N m], which is the model's force limit.
        nm_per_a: torque per current that a joint's servo reports [N m/A].
        current_step_a: unit of the current register [A].
        gripper_nm: torque that the gripper is limited to [N m].
        stalls_a: current from which on a station should call it a stall [A].
    """

    stall_nm: tuple[float, ...]
    nm_per_a: tuple[float, ...]
    current_step_a: float
    gripper_nm: float
    stalls_a: float

    def current_a(self, torque_nm: FloatArray) -> FloatArray:
        """Return the current that each servo would report [A], in register steps.

        `torque_nm` is at the output shafts [N m]; both have shape (n_joints,).
        """
        current_a = np.abs(torque_nm) / np.asarray(self.nm_per_a)
        return np.asarray(np.round(current_a / self.current_step_a) * self.current_step_a)


@dataclass(frozen=True)
class Grip:
    """How an arm's gripper takes hold of things.

    Attributes:
        travel_rad: gripper joint closed and open: 0 and 100 of LeRobot's units.
        shut_rad: goal that closes on whatever is there.
        empty_rad: closed further than this it holds nothing.
        fixed_jaw_x_m: inner face of the jaw that doesn't move, along the tool's x axis; None
            where both jaws move, and the tool's centre goes to the object's.
        widest_m: half width that still fits between the open jaws.
    """

    travel_rad: tuple[float, float]
    open_rad: float
    shut_rad: float
    empty_rad: float
    fixed_jaw_x_m: float | None
    widest_m: float

    def object_offset_m(self, half_m: float, clearance_m: float) -> float:
        """Return where an object's centre is along the tool's x axis before the jaws close [m]."""
        return 0.0 if self.fixed_jaw_x_m is None else self.fixed_jaw_x_m - half_m - clearance_m


@dataclass(frozen=True)
class Paint:
    """Colours that an arm of the cell is drawn in."""

    arm: Rgba
    servo: Rgba
    jaw: Rgba


@dataclass(frozen=True)
class MountedArm:
    """One arm of a pair.

    Attributes:
        prefix: what its joints, bodies and servos are called by in the pair, such as "left_".
        arm: the arm as it would be alone, in its own base frame.
        at_m: its base on the table, shape (2,); turned as the pair's frame.
    """

    prefix: str
    arm: CellArm
    at_m: tuple[float, float]


@dataclass(frozen=True)
class CellArm:
    """An arm of the embedded cell, or a pair of them.

    Attributes:
        model: the file that `load` needs.
        load: makes its `mujoco.MjSpec` from that file's path, drawn as the cell draws it: joints
            and servos by `joint_names`, its base's body "base", its hand's "gripper", and a site
            "gripperframe" whose z axis points out of the hand and whose x axis points along the
            jaws' travel. Its first, vertical axis is at `PAN_AXIS_X_M`. Of a pair all that with
            each arm's prefix.
        joint_names: order of all joint arrays, gripper last; of a pair one arm after the other.
        home_q_rad: pointing down and turned aside, so that the camera sees the whole workspace.
        zero_keys: of each joint but the gripper, the joint of the gap `zero_offset` that it has, or
            "" where the gap knows none such.
        links: from the base to the hand, one for each joint but the gripper.
        tool_m: the tool's centre in the hand's frame [m].
        spawn_centre_m: middle of the ring of places where things start, on the table.
        camera_pos_m: the overhead camera, which looks straight down.
        shade_z_m: height of what hides a part of the scene: above the arm's highest carry.
        report_eye_m: from where pictures for people are taken.
        report_at_m: what they show in their middle.
        goal_centre_m: the same of the target, where that isn't among the places of the start.
        mounted: the arms of a pair, in the order of the joints.
        relay_m: where one arm of a pair puts down what the other takes up.
    """

    name: str
    label: str
    model: ModelFile
    load: Callable[[Path, Paint], Any]
    joint_names: tuple[str, ...]
    home_q_rad: tuple[float, ...]
    finger_bodies: tuple[str, str]
    zero_keys: tuple[str, ...]
    grip: Grip
    servos: Servos
    links: tuple[Link, ...]
    tool_m: Point
    spawn_centre_m: tuple[float, float]
    camera_pos_m: Point
    camera_fovy_deg: float
    shade_z_m: float
    report_eye_m: Point
    report_at_m: Point
    goal_centre_m: tuple[float, float] | None = None
    mounted: tuple[MountedArm, ...] = ()
    relay_m: tuple[float, float] = (0.0, 0.0)

    @property
    def robot_type(self) -> str:
        """The name that recordings carry."""
        return f"{self.name}_sim"

    @cached_property
    def arms(self) -> tuple[MountedArm, ...]:
        """The arms of a pair, or the one arm."""
        return self.mounted or (MountedArm("", self, (0.0, 0.0)),)

    @cached_property
    def grippers(self) -> list[int]:
        """Columns of the grippers."""
        return [k for k, name in enumerate(self.joint_names) if name.endswith("gripper")]

    @cached_property
    def arm_columns(self) -> list[int]:
        """Columns of all joints but the grippers."""
        return [k for k, name in enumerate(self.joint_names) if not name.endswith("gripper")]

    def at_work(self, q_rad: FloatArray) -> MountedArm:
        """Return which of `arms` is further from its home, by joint positions [rad]: it works."""
        away_rad = np.abs(q_rad - np.asarray(self.home_q_rad))
        away_rad[self.grippers] = 0.0
        return max(self.arms, key=lambda side: float(away_rad[self.columns(side)].max()))

    def columns(self, side: MountedArm) -> slice:
        """Return the columns of the joints of one of `arms`."""
        before = self.arms[: self.arms.index(side)]
        start = sum(len(other.arm.joint_names) for other in before)
        return slice(start, start + len(side.arm.joint_names))

    def tool_centre_m(self, q_rad: FloatArray) -> FloatArray:
        """Return the tool's centre in the base frame [m], shape (n, 3); of one arm alone.

        `q_rad` are joint positions [rad], shape (n, n_joints), with or without the gripper.
        """
        place, turn = np.zeros((len(q_rad), 3)), np.broadcast_to(np.eye(3), (len(q_rad), 3, 3))
        for link, q in zip(self.links, q_rad.T[: len(self.links)], strict=True):
            place = place + turn @ np.asarray(link.pos_m)
            w, *xyz = link.quat
            about = np.broadcast_to(link.axis, (len(q), 3)) * np.sin(q / 2.0)[:, None]
            turn = (
                turn @ _rotation(np.array([w]), np.array([xyz])) @ _rotation(np.cos(q / 2), about)
            )
        return np.asarray(place + turn @ np.asarray(self.tool_m))

    def spec(self, paint: Paint) -> Any:
        """Return the arm alone, as a `mujoco.MjSpec` that the caller may change.

        Raises:
            UnusableInputError: the package with the model isn't installed.
        """
        return self.load(self.model.find(self.label), paint)


def _rotation(w: FloatArray, xyz: FloatArray) -> FloatArray:
    """Return rotation matrices, shape (n, 3, 3), of unit quaternions, shapes (n,) and (n, 3)."""
    x, y, z = xyz.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


@dataclass(frozen=True)
class Arm:
    """An arm that gaploop knows.

    Attributes:
        robot_types: LeRobot's types of robots and teleoperators with this arm.
        stall_current_a: no stall limit of a station is higher than this, or it would be no limit
            [A].
        full_turn: joints that LeRobot calibrates to a whole turn; None for all of them.
        park_rad: its folded rest, joint to angle [rad]: without torque it stays there. Joints that
            don't matter for that aren't named: they stay as they are.
        emulated: role ("follower", "leader") to its servos; empty where it can't be emulated.
    """

    name: str
    robot_types: tuple[str, ...] = ()
    kinematics: ArmSpec | None = None
    stall_current_a: float = math.inf
    full_turn: frozenset[str] | None = frozenset()
    park_rad: Mapping[str, float] = field(default_factory=dict)
    emulated: Mapping[str, ServoChain] = field(default_factory=dict)
    cell: CellArm | None = None
