"""Smooth tool motion for grasps from above, in polar coordinates about the pan axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm
from gaploop.sim import scene
from gaploop.sim.arms import SO101
from gaploop.sim.kinematics import ArmIk, from_polar, polar

SPEED_M_S = 0.42
ACCELERATION_M_S2 = 4.0
TURN_RAD_S = 2.6
JOINT_RAD_S = 2.8  # under the 3 rad/s that a station's safety filter allows by default
GRIPPER_RAD_S = 2.6
TURN_RAD_S2 = 30.0
APPROACH_RATE_HZ = 11.0  # speed per distance left: slows down before the goal
AZIMUTH_ARM_M = 0.20  # turns azimuth into a length, so that one speed limit serves all
TREMOR_M = 0.0006  # standard deviation of a person's hand on a leader arm; assumed
TREMOR_TIME_S = 0.25

_SPEEDS = np.array([SPEED_M_S, SPEED_M_S, SPEED_M_S, TURN_RAD_S, GRIPPER_RAD_S])
_ACCELERATIONS = np.array([ACCELERATION_M_S2] * 3 + [TURN_RAD_S2, TURN_RAD_S2])


@dataclass(frozen=True)
class ToolGoal:
    """Where the tool shall be.

    Attributes:
        xy_m: tool centre over the table, shape (2,).
        height_m: its height in the base frame.
        turn_rad: jaw angle against the arm's radial direction: about the wrist_roll angle.
        gripper_rad: opening of the gripper joint.
    """

    xy_m: NDArray[np.float64]
    height_m: float
    turn_rad: float
    gripper_rad: float


@cache
def nominal_arm(arm: CellArm = SO101) -> mujoco.MjModel:
    """The arm as designed, for kinematics; shared, must not be changed."""
    return scene.build_model(scene.SceneOptions(arm=arm))


class ToolMotion:
    """Moves a tool set point towards goals with limited speed and acceleration."""

    def __init__(self, rng: np.random.Generator, tremor: float, arm: CellArm) -> None:
        """Move `arm`; `rng` draws tremor, scaled by `tremor` (0 for none)."""
        self.ik = ArmIk(nominal_arm(arm), arm)
        self._rng = rng
        self._tremor_scale = tremor

    def reset(self, q_rad: NDArray[np.float64], speed: float) -> None:
        """Start from rest at `q_rad` [rad], gripper last, with a factor on the speed limits."""
        self._q = q_rad.copy()
        position, rotation = self.ik.tcp(q_rad)
        azimuth, radius = polar(position[:2])
        turn = float(np.arctan2(rotation[1, 0], rotation[0, 0])) - azimuth - np.pi
        turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
        self._at = np.array([azimuth * AZIMUTH_ARM_M, radius, position[2], turn, q_rad[-1]])
        self._rate = np.zeros(5)
        self._speed_factor = speed
        self._tremor = np.zeros(3)
        self.correction_m: NDArray[np.float64] = np.zeros(3)

    @property
    def position_m(self) -> NDArray[np.float64]:
        """Tool set point [m], shape (3,), in the base frame, without correction."""
        xy = from_polar(self._at[0] / AZIMUTH_ARM_M, self._at[1])
        return np.array([xy[0], xy[1], self._at[2]])

    @property
    def turn_rad(self) -> float:
        """Present jaw angle against the arm's radial direction [rad]."""
        return float(self._at[3])

    def jaw_axis(self, xy_m: NDArray[np.float64], turn_rad: float) -> NDArray[np.float64]:
        """Direction of the fixed jaw, shape (2,), for a tool at `xy_m` with `turn_rad`."""
        angle = polar(xy_m)[0] + np.pi + turn_rad
        return np.array([np.cos(angle), np.sin(angle)])

    def step(self, goal: ToolGoal, period_s: float) -> NDArray[np.float64]:
        """Move the set point for `period_s` [s] towards `goal`.

        Returns:
            Joint command [rad], gripper last.
        """
        before_at, before_q = self._at.copy(), self._q.copy()
        error = self._coordinates(goal) - self._at
        limit = _SPEEDS * self._speed_factor
        wanted = np.clip(APPROACH_RATE_HZ * error, -limit, limit)
        change = _ACCELERATIONS * period_s
        self._rate += np.clip(wanted - self._rate, -change, change)
        self._at = self._at + self._rate * period_s
        self._shake(period_s)
        q = self._joints(before_q)
        fastest = float(np.abs(q - before_q).max()) / max(period_s * JOINT_RAD_S, 1e-9)
        if fastest > 1.0:  # near the arm's edge a straight tool path asks much of the joints
            self._at = before_at + (self._at - before_at) / fastest
            self._rate /= fastest
            q = self._joints(before_q)
        limit_rad = JOINT_RAD_S * period_s
        self._q = np.clip(q, before_q - limit_rad, before_q + limit_rad)
        return self._q.copy()

    def hold(self) -> NDArray[np.float64]:
        """Stop and repeat the last joint command [rad]."""
        self._rate = np.zeros(5)
        return self._q.copy()

    def left(self, goal: ToolGoal) -> tuple[float, float, float]:
        """Distance [m], turn [rad] and opening [rad] still to go."""
        error = np.abs(self._coordinates(goal) - self._at)
        return float(np.linalg.norm(error[:3])), float(error[3]), float(error[4])

    def _coordinates(self, goal: ToolGoal) -> NDArray[np.float64]:
        azimuth, radius = polar(goal.xy_m)
        return np.array(
            [azimuth * AZIMUTH_ARM_M, radius, goal.height_m, goal.turn_rad, goal.gripper_rad]
        )

    def _shake(self, period_s: float) -> None:
        keep = np.exp(-period_s / TREMOR_TIME_S)
        kick = TREMOR_M * self._tremor_scale * np.sqrt(1.0 - keep**2)
        self._tremor = keep * self._tremor + kick * self._rng.normal(size=3)

    def _joints(self, q_start_rad: NDArray[np.float64]) -> NDArray[np.float64]:
        azimuth = self._at[0] / AZIMUTH_ARM_M
        position = self.position_m + self.correction_m + self._tremor
        arm = self.ik.solve(position, azimuth + np.pi + self._at[3], q_start_rad)
        return np.append(arm, self._at[4])
