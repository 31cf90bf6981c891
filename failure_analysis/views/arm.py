"""Where the tool is, for arms whose kinematics are known here: those of the embedded cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gaploop.core.types import FloatArray

if TYPE_CHECKING:
    from gaploop.core.arm import CellArm
    from gaploop.sim.kinematics import ArmIk


@dataclass(frozen=True)
class ToolPath:
    """Tool centre over time, in the base frame.

    Attributes:
        t_s: times [s], shape (n,).
        read_m: by the joint readings [m], shape (n, 3).
        sent_m: by the commands [m], shape (n, 3).
    """

    t_s: FloatArray
    read_m: FloatArray
    sent_m: FloatArray

    def at(self, t_s: float) -> FloatArray:
        """Return the tool by the readings at a time [m], shape (3,)."""
        return np.array([np.interp(t_s, self.t_s, self.read_m[:, k]) for k in range(3)])


def tool_path(
    t_s: FloatArray, read_rad: FloatArray, sent_rad: FloatArray, joints: Sequence[str]
) -> ToolPath | None:
    """Return the tool's path, or None for an arm that isn't known here.

    Args:
        t_s: times [s], shape (n,).
        read_rad: joint readings [rad], shape (n, n_joints).
        sent_rad: joint commands [rad], shape (n, n_joints).
        joints: joint names, which tell the arm.
    """
    read, sent = tool_places(read_rad, joints), tool_places(sent_rad, joints)
    return None if read is None or sent is None else ToolPath(t_s, read, sent)


def tool_places(q_rad: FloatArray, joints: Sequence[str]) -> FloatArray | None:
    """Return the tool centre at joint positions, or None for an arm that isn't known here.

    Args:
        q_rad: joint positions [rad], shape (n, n_joints).
        joints: joint names, which tell the arm.

    Returns:
        Places in the base frame [m], shape (n, 3).
    """
    from gaploop.sim.arms import arm_with_joints  # here: MuJoCo takes a moment to import

    known = arm_with_joints(tuple(joints))
    if known is None:
        return None
    arm = _kinematics(known)
    return np.array([arm.tcp(row)[0] for row in q_rad]).reshape(-1, 3)


@cache
def _kinematics(arm: CellArm) -> ArmIk:
    from gaploop.sim.kinematics import ArmIk
    from gaploop.sim.scene import SceneOptions, build_model

    return ArmIk(build_model(SceneOptions(arm=arm)), arm)
