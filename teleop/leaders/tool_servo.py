"""Moves the tool by small steps: differential inverse kinematics with mink.

Each step solves a quadratic programme: the tool follows its target, position before orientation,
within joint limits, joint speeds and the workspace box. Arms of five joints can't hold every
orientation. What the arm can't do is forgotten at once: along directions that the Jacobian
doesn't reach the target is put back to where the tool is, so that nothing winds up, neither at
the edge of the workspace nor in a singularity.
"""

from __future__ import annotations

from typing import Final

import mink
import numpy as np

from gaploop.core.kinematics import ArmModel, Box, kinematic_model
from gaploop.core.types import FloatArray
from gaploop.teleop.leaders.tool_limits import LEVER_M, SCALE, BoxLimit, StretchLimit

AT_LIMIT_RAD: Final = 0.01
"""A joint nearer its limit than this has come to its end [rad]."""
YIELD_S: Final = 0.1
"""Where a joint has come to its end, the orientation held until then is given up in this time [s]:
a gripper that points down tilts so that the arm can still be raised."""
UNREACHED_M: Final = 0.006
"""Directions that gain less than this count as out of reach [m/rad]."""
POSITION_SHARE: Final = 0.02
"""How much position gives way, against orientation, where not both can be had."""
LEAD_M: Final = 0.01
"""How far the tool may be off its target [m]; along axes that it is asked to move on, one step."""
LEAD_RAD: Final = 0.1
"""The same of its orientation [rad]."""
DAMPING: Final = 1e-4
"""[m²/rad²], of the squared joint step: motion fades out towards a singularity instead of
speeding up. 0.2 % of what an arm's length of lever weighs."""


class ToolServo:
    """Joint angles that follow a tool moved by twists.

    Args:
        arm: its kinematics.
        limits_rad: joint limits [rad], shape (n_joints, 2), gripper last.
        velocity_rad_s: fastest motion of any joint [rad/s].
        box: workspace in the base frame for every guarded point of the arm, or None.
    """

    def __init__(
        self,
        arm: ArmModel,
        limits_rad: FloatArray,
        velocity_rad_s: float,
        box: Box | None = None,
    ) -> None:
        self._arm, self._limits_rad = arm, np.array(limits_rad, dtype=np.float64)
        model = kinematic_model(arm.mjcf)
        names = arm.joint_names
        for name, (low, high) in zip(names, self._limits_rad, strict=True):
            model.joint(name).range[:] = low, high
        self._dofs = arm.dofs[:-1]
        self._configuration = mink.Configuration(model)
        self._site = arm.site_name
        self._task = mink.FrameTask(self._site, "site", 1.0, LEVER_M / 3, lm_damping=1e-6)
        posture_cost = np.zeros(model.nv)
        posture_cost[self._dofs] = 1e-4  # decides only what the tool leaves open
        self._posture = mink.PostureTask(model, posture_cost)
        self._limits = [
            mink.ConfigurationLimit(model, gain=0.5),
            mink.VelocityLimit(model, dict.fromkeys(names[:-1], velocity_rad_s)),
            StretchLimit(arm, model),
        ]
        if box is not None:
            self._limits.append(BoxLimit(arm, model, box))
        self._yield = np.diag([POSITION_SHARE] * 3 + [1.0] * 3)
        self._q_rad: FloatArray = np.zeros(len(names))

    @property
    def q_rad(self) -> FloatArray:
        """Joint angles asked for now [rad], shape (n_joints,)."""
        return self._q_rad.copy()

    @property
    def T_base_tcp(self) -> FloatArray:  # noqa: N802
        """Pose of the tool asked for now, shape (4, 4)."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self._tool()
        return pose

    def reset(self, q_rad: FloatArray) -> None:
        """Go on from joint positions [rad], shape (n_joints,); the tool's target is there."""
        low, high = self._limits_rad.T
        self._q_rad = np.clip(np.asarray(q_rad, dtype=np.float64), low, high)
        self._configuration.update(self._arm.qpos(self._q_rad))
        self._posture.set_target_from_configuration(self._configuration)
        self._turn_m, self._at_m = self._tool()

    def set_gripper(self, angle_rad: float) -> None:
        """Set the gripper's angle [rad]; it is clipped to its limits."""
        low, high = self._limits_rad[-1]
        self._q_rad[-1] = min(max(angle_rad, low), high)
        self._configuration.update(self._arm.qpos(self._q_rad))

    def step(self, twist: FloatArray, duration_s: float) -> FloatArray:
        """Move the tool's target and follow it for one step.

        Args:
            twist: linear [m/s] and angular [rad/s] velocity in the base frame, shape (6,).
            duration_s: length of the step [s], above 0.

        Returns:
            Joint angles [rad], shape (n_joints,), inside the limits.
        """
        moves = twist * duration_s
        self._at_m = self._at_m + moves[:3]
        self._turn_m = _rotation(moves[3:]) @ self._turn_m
        target = np.eye(4)
        target[:3, :3], target[:3, 3] = self._turn_m, self._at_m
        self._task.set_target(mink.SE3.from_matrix(target))
        self._follow(duration_s)
        self._pull_back(moves, duration_s)
        return self.q_rad

    def _follow(self, duration_s: float) -> None:
        try:
            velocity = mink.solve_ik(
                self._configuration,
                [self._task, self._posture],
                duration_s,
                solver="daqp",
                damping=DAMPING,
                limits=self._limits,
            )
        except mink.NoSolutionFound:
            return  # hold; the target is pulled back to here
        step = np.asarray(velocity)[self._dofs] * duration_s
        if not np.isfinite(step).all():
            return
        low, high = self._limits_rad.T
        q = self._q_rad.copy()
        q[:-1] += step
        self._q_rad = np.clip(q, low, high)
        self._configuration.update(self._arm.qpos(self._q_rad))

    def _tool(self) -> tuple[FloatArray, FloatArray]:
        data = self._configuration.data
        site = data.site(self._site)
        return site.xmat.reshape(3, 3).copy(), site.xpos.copy()

    def _pull_back(self, moves: FloatArray, duration_s: float) -> None:
        """Forget what the arm couldn't do: beyond its reach, or against a limit or the box."""
        turned, at_m = self._tool()
        error = np.empty(6)
        error[:3] = turned.T @ (self._at_m - at_m)
        error[3:] = _turn_of(turned.T @ self._turn_m) * LEVER_M
        jacobian = self._configuration.get_frame_jacobian(self._site, "site")[:, self._dofs]
        kept = self._reachable(error, jacobian * SCALE)
        if self._is_at_limit():
            kept[3:] *= np.exp(-duration_s / YIELD_S)
        self._at_m = at_m + _no_further(turned @ kept[:3], moves[:3], LEAD_M)
        turn = _no_further(kept[3:] / LEVER_M, turned.T @ moves[3:], LEAD_RAD)
        self._turn_m = turned @ _rotation(turn)

    def _is_at_limit(self) -> bool:
        low, high = self._limits_rad[:-1].T
        q = self._q_rad[:-1]
        return bool(np.minimum(q - low, high - q).min() < AT_LIMIT_RAD)

    def _reachable(self, error: FloatArray, jacobian: FloatArray) -> FloatArray:
        """Drop the part of `error` along directions that the Jacobian doesn't reach."""
        directions, gains, _ = np.linalg.svd(jacobian)
        lost = directions[:, int((gains > UNREACHED_M).sum()) :]
        if lost.shape[1] == 0:
            return error
        give = self._yield @ lost
        return np.asarray(error - give @ np.linalg.solve(lost.T @ give, lost.T @ error))


def _no_further(error: FloatArray, moves: FloatArray, lead: float) -> FloatArray:
    """Cut `error` to `lead`, and on axes that were to move to the step that was asked for."""
    step = np.abs(moves)
    most = np.where(step > 1e-9, step, lead)
    cut = np.minimum(np.maximum(error, -most), most)
    return np.asarray(cut * min(1.0, lead / max(float(np.sqrt(cut @ cut)), 1e-12)))


def _rotation(turn_rad: FloatArray) -> FloatArray:
    """Rotation matrix of a rotation vector [rad], shape (3,) (Rodrigues' formula)."""
    angle = float(np.sqrt(turn_rad @ turn_rad))
    x, y, z = turn_rad
    skew = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    if angle < 1e-9:
        return np.asarray(np.eye(3) + skew)
    a, b = np.sin(angle) / angle, (1.0 - np.cos(angle)) / angle**2
    return np.asarray(np.eye(3) + a * skew + b * (skew @ skew))


def _turn_of(rotation: FloatArray) -> FloatArray:
    """Rotation vector [rad], shape (3,), of a rotation matrix by less than half a turn."""
    axis = np.array(
        [
            rotation[2, 1] - rotation[1, 2],
            rotation[0, 2] - rotation[2, 0],
            rotation[1, 0] - rotation[0, 1],
        ]
    )
    sine = 0.5 * float(np.sqrt(axis @ axis))
    cosine = 0.5 * (float(np.trace(rotation)) - 1.0)
    if sine < 1e-9:
        return 0.5 * axis
    return np.asarray(axis * (0.5 * np.arctan2(sine, cosine) / sine))
