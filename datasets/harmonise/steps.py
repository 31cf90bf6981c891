"""What is done to a dataset's numbers to make them like another's: steps, each exact and recorded.

A step changes the joint vectors of a take (`observation.state`, `action`, `gap.sent`), and says in
words and numbers what it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.kinematics import ArmModel
from gaploop.datasets import columns

VECTORS: Final = (columns.STATE, columns.ACTION, columns.SENT)
"""Features that hold joint values."""
UNITS: Final = {
    "deg": "degrees, grippers 0 to 100, as LeRobot's SO arms",
    "m100_100": "-100 to 100 over the calibrated range, grippers 0 to 100",
    "rad": "radians, grippers too",
}
SUFFIX: Final = ".pos"
TOOL_GRIPPER: Final = "ee.gripper_pos"
"""LeRobot's name of the gripper's entry beside a pose."""

type Numbers = NDArray[np.float64]
type Vectors = Mapping[str, Vector]
"""Feature to its vector."""
POSE: Final = ("ee.x", "ee.y", "ee.z", "ee.wx", "ee.wy", "ee.wz")
EE: Final = "ee"
"""Units of a dataset in tool space: metres and radians, gripper as it was."""
LEVER_M: Final = 0.1
"""A turn of 1 rad weighs as much as a way of this [m]: about the length of a gripper."""
REACHED_M: Final = 1e-3
"""A pose is reached where what remains, turns weighed by `LEVER_M`, is below this [m]."""
_EXACT: Final = 1e-14


@dataclass(frozen=True)
class Vector:
    """One feature of one take: names of its entries, and values, shape (n_frames, n_entries)."""

    names: tuple[str, ...]
    values: Numbers


type Step = JointMapping | Suffix | Order | Units | ToTool | ToJoints
"""One conversion of a take's vectors; `kind` is what it is called in records."""


def joint(name: str) -> str:
    """Return an entry's name without LeRobot's `.pos`."""
    return name.removesuffix(SUFFIX)


def is_gripper(name: str) -> bool:
    """Say whether an entry is a gripper's, as LeRobot names them."""
    return joint(name).endswith("gripper") or name == TOOL_GRIPPER


@dataclass(frozen=True)
class JointChange:
    """What becomes of one joint: new value = sign · old value + offset, in the old units.

    Its new name is "" to leave it out.
    """

    name: str
    sign: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class JointMapping:
    """Joints renamed, turned round, shifted or left out, by their old names without `.pos`."""

    changes: Mapping[str, JointChange]
    kind: str = "joints"

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors with every joint that is named changed."""
        result = {}
        for feature, vector in vectors.items():
            names, parts = [], []
            for k, old in enumerate(vector.names):
                change = self.changes.get(joint(old), JointChange(joint(old)))
                if change.name:
                    suffix = SUFFIX if old.endswith(SUFFIX) else ""
                    names.append(joint(change.name) + suffix)
                    parts.append(change.sign * vector.values[:, k] + change.offset)
            if len(set(names)) < len(names):
                raise UnusableInputError(f"joints: two entries of {feature} get one name: {names}.")
            result[feature] = Vector(tuple(names), _columns(parts, len(vector.values)))
        return result

    @property
    def left_out(self) -> list[str]:
        """The joints that are left out."""
        return [old for old, change in self.changes.items() if not change.name]


@dataclass(frozen=True)
class Suffix:
    """LeRobot's `.pos` put behind the names of joints, or taken away."""

    present: bool
    kind: str = "suffix"

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors with other names."""
        end = SUFFIX if self.present else ""
        return {
            name: Vector(tuple(joint(n) + end for n in v.names), v.values)
            for name, v in vectors.items()
        }


@dataclass(frozen=True)
class Order:
    """Entries put in another order: feature to its names in the new one."""

    after: Mapping[str, tuple[str, ...]]
    kind: str = "order"

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors in the new order."""
        result = dict(vectors)
        for name, wanted in self.after.items():
            if name not in vectors:
                continue
            have = vectors[name].names
            if sorted(have) != sorted(wanted):
                raise UnusableInputError(
                    f"order: {name} has the entries {', '.join(have)}; name each of them once, "
                    f"got {', '.join(wanted)}."
                )
            place = [have.index(n) for n in wanted]
            result[name] = Vector(tuple(wanted), vectors[name].values[:, place])
        return result


@dataclass(frozen=True)
class Units:
    """Joint values in other units.

    Attributes:
        ranges_deg: joint to its angle [deg] at -100 and at 100, where one side is m100_100.
        gripper_rad: angle [rad] of a gripper at 0 and at 100, where one side is rad; None to
            keep its values.
    """

    source: str
    target: str
    ranges_deg: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gripper_rad: tuple[float, float] | None = None
    kind: str = "units"

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            if name not in UNITS:
                raise unknown_choice("units", name, UNITS, "units")

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors in the target's units."""
        result = {}
        needs_ranges = (self.source == "m100_100") != (self.target == "m100_100")
        for feature, vector in vectors.items():
            bodies = [joint(n) for n in vector.names if not is_gripper(n)]
            bare = [n for n in bodies if n not in self.ranges_deg]
            if needs_ranges and bare:
                raise UnusableInputError(
                    f"units: {feature} needs the angles [deg] of {', '.join(bare)} at -100 and "
                    "100. Give ranges: {joint: [low, high]}, a LeRobot calibration file, or "
                    "model."
                )
            parts = [self._entry(n, vector.values[:, k]) for k, n in enumerate(vector.names)]
            result[feature] = Vector(vector.names, _columns(parts, len(vector.values)))
        return result

    def _entry(self, name: str, values: Numbers) -> Numbers:
        if is_gripper(name):
            if self.gripper_rad is None or (self.source == "rad") == (self.target == "rad"):
                return values
            closed, opened = self.gripper_rad
            if self.target == "rad":
                return np.asarray(closed + values / 100.0 * (opened - closed))
            return np.asarray((values - closed) / (opened - closed) * 100.0)
        low, high = self.ranges_deg.get(joint(name), (-100.0, 100.0))
        degrees = values
        if self.source == "rad":
            degrees = np.degrees(values)
        elif self.source == "m100_100":
            degrees = low + (values + 100.0) / 200.0 * (high - low)
        if self.target == "rad":
            return np.asarray(np.radians(degrees))
        if self.target == "m100_100":
            return np.asarray((degrees - low) / (high - low) * 200.0 - 100.0)
        return degrees


def _columns(parts: Sequence[Numbers], rows: int) -> Numbers:
    return np.stack(parts, axis=1) if parts else np.empty((rows, 0))


# Joint space to tool space and back, through the arm's kinematics. Poses are LeRobot's: `ee.x`,
# `ee.y`, `ee.z` [m] and the rotation vector `ee.wx`, `ee.wy`, `ee.wz` [rad] of the tool centre in
# the base frame; `ee.gripper_pos` is the gripper's entry, in its units.


@dataclass(frozen=True)
class ToTool:
    """Joint positions to poses of the tool centre.

    Attributes:
        arm: name in `kinematics.ARM_MODELS`, or an MJCF file.
        units: of the joints, `deg` or `rad`.
    """

    arm: str
    units: str
    kind: str = "to_tool"

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors as poses and grippers."""
        model = ArmModel.load(self.arm)
        result = {}
        for feature, vector in vectors.items():
            have, wanted = [joint(n) for n in vector.names], model.joint_names
            strange = [n for n in have if n not in wanted and not is_gripper(n)]
            missing = [n for n in wanted if n not in have and not is_gripper(n)]
            if strange or missing:
                raise UnusableInputError(
                    f"action_space: {feature} has the joints {', '.join(have)}, the arm "
                    f"{model.name} has {', '.join(wanted)}. Rename them with joints: {{old: new}}."
                )
            places = [None if is_gripper(n) else have.index(n) for n in wanted]
            absent = np.zeros(len(vector.values))
            joints = [absent if k is None else vector.values[:, k] for k in places]
            q_rad = np.stack(joints, axis=1)
            q_rad = np.radians(q_rad) if self.units == "deg" else q_rad
            poses = np.empty((len(q_rad), 6))
            for k, q in enumerate(q_rad):
                T = model.T_base_tcp(q)
                poses[k, :3] = T[:3, 3]
                poses[k, 3:] = Rotation.from_matrix(T[:3, :3]).as_rotvec()
            grippers = [k for k, n in enumerate(vector.names) if is_gripper(n)]
            names = (*POSE, *(TOOL_GRIPPER for _ in grippers))
            values = np.concatenate([poses, vector.values[:, grippers]], axis=1)
            result[feature] = Vector(names, values)
        return result


@dataclass(frozen=True)
class ToJoints:
    """Poses of the tool centre to joint positions, by inverse kinematics from frame to frame.

    Attributes:
        arm: name in `kinematics.ARM_MODELS`, or an MJCF file.
        units: of the joints, `deg` or `rad`.
        start: joint positions of a take's first frame, in its units.
    """

    arm: str
    units: str
    start: Sequence[float]
    kind: str = "to_joints"

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors as joint positions and grippers.

        Raises:
            UnusableInputError: a pose that the arm can't reach, or no start.
        """
        model = ArmModel.load(self.arm)
        moved = [k for k, n in enumerate(model.joint_names) if not is_gripper(n)]
        start: Numbers = np.zeros(len(moved))
        if any(len(v.values) for v in vectors.values()):
            if len(self.start) != len(moved):
                raise UnusableInputError(
                    "action_space: joint positions of the first frame are needed, "
                    f"{len(moved)} of them [{self.units}] without the gripper: start: [...]"
                )
            start = np.asarray(self.start, dtype=np.float64)
            start = np.asarray(np.radians(start) if self.units == "deg" else start)
        result: dict[str, Vector] = {}
        seeds: Numbers | None = None
        # The state first: an action is near the state it was given in.
        for feature in sorted(vectors, key=lambda name: name != columns.STATE):
            vector = vectors[feature]
            missing = [n for n in POSE if n not in vector.names]
            if missing:
                raise UnusableInputError(
                    f"action_space: joint needs {', '.join(POSE)}; there is no "
                    f"{', '.join(missing)} among {', '.join(vector.names)}. Rename the entries "
                    "with joints first."
                )
            poses = vector.values[:, [vector.names.index(n) for n in POSE]]
            q, found = start, []
            for k, pose in enumerate(poses):
                q = _reach(model, pose, q if seeds is None else seeds[k], moved, k)
                found.append(q)
            q_rad = np.array(found).reshape(len(poses), len(moved))
            seeds = q_rad if feature == columns.STATE else seeds
            values = np.degrees(q_rad) if self.units == "deg" else q_rad
            own = {joint(model.joint_names[j]): values[:, i] for i, j in enumerate(moved)}
            fingers = [n for n in model.joint_names if is_gripper(n)]
            if fingers and TOOL_GRIPPER in vector.names:
                own[joint(fingers[0])] = vector.values[:, vector.names.index(TOOL_GRIPPER)]
            names = tuple(n + SUFFIX for n in own)
            result[feature] = Vector(names, np.stack([own[joint(n)] for n in names], axis=1))
        return result


def _reach(model: ArmModel, pose: Numbers, seed: Numbers, moved: list[int], frame: int) -> Numbers:
    """Return joint positions [rad] near `seed` at which the tool stands at `pose`.

    Levenberg-Marquardt (MINPACK) with a differenced Jacobian; arms have few joints.
    """
    goal_m, goal = pose[:3], Rotation.from_rotvec(pose[3:])

    def error(q: Numbers) -> Numbers:
        full = np.zeros(len(model.joint_names))
        full[moved] = q
        T = model.T_base_tcp(full)
        turn = (goal * Rotation.from_matrix(T[:3, :3]).inv()).as_rotvec()
        return np.concatenate([goal_m - T[:3, 3], LEVER_M * turn])

    method = "lm" if len(seed) <= len(pose) else "trf"  # MINPACK wants no more joints than that
    solve: Any = least_squares  # its stubs know either method, not a choice of them
    found = solve(error, seed, method=method, xtol=_EXACT, ftol=_EXACT, gtol=_EXACT)
    left_m = float(np.linalg.norm(found.fun))
    if left_m > REACHED_M:
        raise UnusableInputError(
            f"action_space: the arm {model.name} can't reach the pose of frame {frame}: "
            f"{1e3 * left_m:.1f} mm remain. Is it of another arm or base frame?"
        )
    return np.asarray(found.x)
