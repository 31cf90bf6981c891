"""The arms that the embedded cell can have, and their joints' units; `core.arms` describes them.

`observation.state` and `action` follow LeRobot's so101_follower with use_degrees: the arm's joints
in degrees about the middle of their range, the gripper 0 (closed) to 100 (open). The MuJoCo
model's zero is the middle of the calibrated range, so arm angles map one to one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gaploop.core.arm import CellArm
from gaploop.core.arms import CELL_ARMS, DEFAULT
from gaploop.core.errors import unknown_choice

SO101: Final = CELL_ARMS[DEFAULT]


def arm_named(name: str, where: str = "--env.robot") -> CellArm:
    """Return one of `CELL_ARMS`; `where` is the option that named it, for the message.

    Raises:
        UnusableInputError: no such arm, or the package with its model isn't installed.
    """
    if name not in CELL_ARMS:
        raise unknown_choice("arm of the embedded cell", name, CELL_ARMS, where)
    arm = CELL_ARMS[name]
    arm.model.find(f"{arm.label} ({name})")
    return arm


def arm_of(robot_type: str) -> CellArm:
    """Return the arm of a recording's robot type; the default for one that the cell hasn't."""
    return next((arm for arm in CELL_ARMS.values() if arm.robot_type == robot_type), SO101)


def to_degrees(q_rad: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Return joint angles [rad], gripper last, in LeRobot's units [°, gripper 0 to 100].

    Both have shape (..., n_joints).
    """
    q = np.asarray(q_rad, dtype=np.float64)
    out = np.degrees(q)
    closed, opened = arm.grip.travel_rad
    grips = arm.grippers
    out[..., grips] = 100.0 * (q[..., grips] - closed) / (opened - closed)
    return np.asarray(out)


def from_degrees(state: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Return joint angles [rad] from LeRobot's units; inverse of `to_degrees`."""
    values = np.asarray(state, dtype=np.float64)
    out = np.radians(values)
    closed, opened = arm.grip.travel_rad
    grips = arm.grippers
    out[..., grips] = closed + (opened - closed) * values[..., grips] / 100.0
    return np.asarray(out)
