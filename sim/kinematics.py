"""Inverse kinematics of arms, mostly for grasps from above.

Damped least squares over all six rows (Nakamura and Hanafusa 1986) between the joints' limits. With
five joints, or one at its limit, not all can be had: a small weight of the turn has the tilt give
way to the place.
"""

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import PAN_AXIS_X_M, SIX_JOINTS

__all__ = ["PAN_AXIS_X_M", "TCP_SITE", "ArmIk", "fold_square", "from_polar", "polar"]

TCP_SITE = "gripperframe"
ORIENTATION_WEIGHT_M = 0.04  # 1 rad of tilt counts as 4 cm: position is kept, tilt gives way
DAMPING = 1e-5  # [m^2]; small against the squared row norms (about 1e-2 m^2)
STEP_LIMIT_RAD = 0.25  # per iteration: keeps the linearisation honest


class ArmIk:
    """Joint angles that put the gripper somewhere, pointing down."""

    def __init__(
        self,
        model: mujoco.MjModel,
        joints: Sequence[str] = SIX_JOINTS[:-1],
        site: str = TCP_SITE,
    ) -> None:
        """Use `model` for its kinematics only.

        Args:
            joints: of the arm without its gripper, from the base on.
            site: the tool's centre; its z axis points out of the hand.
        """
        self._model = model
        self._data = mujoco.MjData(model)
        self._site = model.site(site).id
        names = tuple(joints)
        self._n = len(names)
        self._qpos = [int(model.joint(name).qposadr[0]) for name in names]
        self._dofs = [int(model.joint(name).dofadr[0]) for name in names]
        known = [model.joint(name) for name in names]
        limits = [joint.range if joint.limited[0] else (-np.pi, np.pi) for joint in known]
        self._low, self._high = np.array(limits).T
        self._jacp = np.zeros((3, model.nv))
        self._jacr = np.zeros((3, model.nv))

    def solve(
        self,
        position_m: NDArray[np.float64],
        jaw_angle_rad: float,
        q_start_rad: NDArray[np.float64],
        iterations: int = 3,
    ) -> NDArray[np.float64]:
        """Find arm angles [rad], inside the limits, shape (n_arm,), for a gripper that points down.

        Args:
            position_m: wanted tool centre in the base frame [m], shape (3,).
            jaw_angle_rad: direction of the tool's x axis (towards the fixed jaw) about the
                vertical [rad].
            q_start_rad: where to start from [rad], with or without the gripper.
            iterations: steps of the solver.
        """
        cos, sin = np.cos(jaw_angle_rad), np.sin(jaw_angle_rad)
        wanted = np.array([[cos, sin, 0.0], [sin, -cos, 0.0], [0.0, 0.0, -1.0]])
        return self.reach(position_m, wanted, q_start_rad, iterations)

    def reach(
        self,
        position_m: NDArray[np.float64],
        wanted: NDArray[np.float64],
        q_start_rad: NDArray[np.float64],
        iterations: int = 3,
    ) -> NDArray[np.float64]:
        """Find the same for any rotation matrix of the tool, shape (3, 3)."""
        q = np.array(q_start_rad[: self._n], dtype=np.float64)
        error, jacobian = np.empty(6), np.empty((6, self._n))
        step, work = np.zeros(self._n), np.zeros((self._n, self._n + 7))
        for _ in range(iterations):
            self._place(q)
            rotation = self._data.site_xmat[self._site].reshape(3, 3)
            # Half the sum of the cross products of the axes, written out: np.cross is slow.
            skew = wanted @ rotation.T
            turn = 0.5 * np.array(
                [skew[2, 1] - skew[1, 2], skew[0, 2] - skew[2, 0], skew[1, 0] - skew[0, 1]]
            )
            mujoco.mj_jacSite(self._model, self._data, self._jacp, self._jacr, self._site)
            error[:3] = position_m - self._data.site_xpos[self._site]
            error[3:] = ORIENTATION_WEIGHT_M * turn
            jacobian[:3] = self._jacp[:, self._dofs]
            jacobian[3:] = ORIENTATION_WEIGHT_M * self._jacr[:, self._dofs]
            normal = jacobian.T @ jacobian + DAMPING * np.eye(self._n)
            low, high = self._low - q, self._high - q
            mujoco.mju_boxQP(step, work, None, normal, -jacobian.T @ error, low, high)
            step *= min(1.0, STEP_LIMIT_RAD / (float(np.abs(step).max()) + 1e-12))
            q = np.clip(q + step, self._low, self._high)
        return q

    def tcp(self, q_rad: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return position [m] and rotation matrix of the tool centre in the base frame.

        `q_rad` are joint positions [rad], with or without the gripper.
        """
        self._place(q_rad)
        rotation = self._data.site_xmat[self._site].reshape(3, 3)
        return self._data.site_xpos[self._site].copy(), rotation.copy()

    def _place(self, q_rad: NDArray[np.float64]) -> None:
        self._data.qpos[self._qpos] = q_rad[: self._n]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)


def polar(xy_m: NDArray[np.float64]) -> tuple[float, float]:
    """Azimuth [rad] and radius [m] of a table point about the first joint's axis."""
    dx, dy = float(xy_m[0]) - PAN_AXIS_X_M, float(xy_m[1])
    return float(np.arctan2(dy, dx)), float(np.hypot(dx, dy))


def from_polar(azimuth_rad: float, radius_m: float) -> NDArray[np.float64]:
    """Table point [m], shape (2,), from azimuth [rad] and radius [m] about the pan axis."""
    return np.array([PAN_AXIS_X_M + radius_m * np.cos(azimuth_rad), radius_m * np.sin(azimuth_rad)])


def fold_square(angle_rad: float) -> float:
    """Fold an angle into [-45, 45) degrees: a square looks the same every 90 degrees."""
    quarter = np.pi / 2.0
    return float((angle_rad + quarter / 2.0) % quarter - quarter / 2.0)
