"""Tool poses and gripper widths, as UMI's replay buffers hold them, from a dataset's columns.

Keys and units are those of real-stanford/universal_manipulation_interface
(`07_generate_replay_buffer.py`): `robot<i>_eef_pos` [m], `robot<i>_eef_rot_axis_angle` [rad],
`robot<i>_gripper_width` [m], `robot<i>_demo_start_pose` and `_demo_end_pose` (n, 6), the same in
every row of an episode. `action` is absolute [pos, rot, width] per robot, as its sampler makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.spatial.transform import Rotation

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel, model_of
from gaploop.core.types import FloatArray
from gaploop.datasets import columns
from gaploop.datasets.formats.model import About, Outgoing, Recording

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "eef_pos": ("x_m", "y_m", "z_m"),
    "eef_rot_axis_angle": ("rx_rad", "ry_rad", "rz_rad"),
    "gripper_width": ("width_m",),
}
"""Part of a robot's state to what its entries are called."""
UNITS: Final = "m, rad"
_TIPS: Final = "finger tip"


def part_names(robot: int) -> list[str]:
    """Return the names of one robot's seven entries of state and action."""
    return [f"robot{robot}_{part}.{name}" for part, names in PARTS.items() for name in names]


@dataclass(frozen=True)
class PoseOf:
    """Makes UMI's arrays of an episode.

    Attributes:
        robots: how many.
        to_pose: from state or action, shape (n, width), to poses, shape (n, 7 robots).
    """

    robots: int
    to_pose: Callable[[FloatArray], FloatArray]

    @property
    def widths(self) -> dict[str, int]:
        """Array to its width."""
        found = {"action": 7 * self.robots}
        for robot in range(self.robots):
            found |= {f"robot{robot}_{part}": len(names) for part, names in PARTS.items()}
            found |= {f"robot{robot}_demo_start_pose": 6, f"robot{robot}_demo_end_pose": 6}
        return found

    def __call__(self, episode: Recording) -> dict[str, FloatArray]:
        """Return the arrays of an episode, one row per frame."""
        state = self.to_pose(episode.columns[columns.STATE])
        arrays = {"action": self.to_pose(episode.columns[columns.ACTION])}
        for robot in range(self.robots):
            mine = state[:, 7 * robot : 7 * robot + 7]
            arrays |= {
                f"robot{robot}_eef_pos": mine[:, :3],
                f"robot{robot}_eef_rot_axis_angle": mine[:, 3:6],
                f"robot{robot}_gripper_width": mine[:, 6:],
                f"robot{robot}_demo_start_pose": np.repeat(mine[:1, :6], len(mine), axis=0),
                f"robot{robot}_demo_end_pose": np.repeat(mine[-1:, :6], len(mine), axis=0),
            }
        return arrays


def pose_of(out: Outgoing) -> PoseOf:
    """Return what makes UMI's arrays of a dataset.

    Raises:
        UnusableInputError: the dataset holds neither poses nor joints of a known arm in known
            units; what is missing is said.
    """
    about = out.about
    if columns.STATE not in about.features:
        raise UnusableInputError(f"{out.root} has no {columns.STATE}; UMI needs the tool's pose.")
    names = _names(about)
    robots = len(names) // 7
    if names == [n for robot in range(robots) for n in part_names(robot)] and robots:
        return PoseOf(robots, lambda values: values)
    units = {str(row["gap_units"]) for row in out.rows}
    model = model_of(about.robot_type)
    if units != {"deg"} or model is None:
        raise UnusableInputError(
            f"{out.root}: UMI wants tool poses [m, rad] and gripper widths [m]. They can be made "
            f"from joints in degrees of {', '.join(ARM_MODELS)}; this is robot type "
            f"'{about.robot_type or 'unknown'}' in units '{', '.join(sorted(units)) or 'unknown'}'."
            " Export it with --format=diffusion_policy, or convert it to poses first."
        )
    return PoseOf(1, _kinematics(out, model, [n.removesuffix(".pos") for n in names]))


def _names(about: About) -> list[str]:
    names = about.features[columns.STATE].get("names")
    if isinstance(names, Mapping):
        names = next(iter(names.values()), None)
    return [str(n) for n in names] if isinstance(names, list | tuple) else []


def _kinematics(out: Outgoing, model: str, joints: list[str]) -> Callable[[FloatArray], FloatArray]:
    arm, spec = ArmModel.load(model), ARM_MODELS[model]
    if set(joints) != set(arm.joint_names):
        raise UnusableInputError(
            f"{out.root}: its joints ({', '.join(joints)}) are not those of the {spec.says} "
            f"({', '.join(arm.joint_names)}), so there is no tool pose to compute. Export it with "
            "--format=diffusion_policy."
        )
    tips = [i for i, name in enumerate(arm.point_names) if name.endswith(_TIPS)]
    order = [joints.index(name) for name in arm.joint_names]
    closed_rad, open_rad = spec.gripper_percent_rad

    def to_pose(values: FloatArray) -> FloatArray:
        # LeRobot: joints in degrees, the gripper, last, in percent of its range.
        q_rad = np.radians(values[:, order].astype(np.float64))
        q_rad[:, -1] = closed_rad + values[:, order[-1]] / 100 * (open_rad - closed_rad)
        poses = np.empty((len(values), 7))
        for k, q in enumerate(q_rad):
            tcp, points = arm.T_base_tcp(q), arm.points_m(q)
            poses[k, :3] = tcp[:3, 3]
            poses[k, 3:6] = Rotation.from_matrix(tcp[:3, :3]).as_rotvec()
            poses[k, 6] = np.linalg.norm(points[tips[0]] - points[tips[1]])
        return poses.astype(np.float32)

    return to_pose
