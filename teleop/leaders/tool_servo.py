"""Moves the tool by small steps: differential inverse kinematics with mink.

Each step solves a quadratic programme: the tool follows its target, position before orientation,
within joint limits, joint speeds and the workspace box. Arms of five joints can't hold every
orientation. What the arm can't do is forgotten at once: along directions that the Jacobian
doesn't reach the target is put back to where the tool is, so that nothing winds up, neither at
the edge of the workspace nor in a singularity.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import mink
import mujoco
import numpy as np

from gaploop.core.kinematics import ArmModel, Box, kinematic_model
from gaploop.core.messages import FloatArray

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
LEVER_M: Final = 0.1
"""One radian of the tool counts as this much position [m/rad], about the length of a gripper."""
SCALE: Final = np.array([1.0, 1.0, 1.0, LEVER_M, LEVER_M, LEVER_M])[:, None]
"""Makes rows of the Jacobian comparable [m/rad]."""
STRETCHED_M: Final = 0.012
"""The arm stays away from poses where some motion of the tool gains less than this per radian of
joint motion [m/rad]. It keeps the elbow some 15° from straight, which costs 1 % of the reach; past
straight the elbow would bend the other way, and pulling back would run into its limit."""
STRETCHED_NEAR_M: Final = 0.025
"""Below this the arm is watched for it [m/rad]."""
NEAR_M: Final = 0.03
"""Faces of the workspace box nearer than this become constraints [m]."""
BOX_MARGIN_M: Final = 0.001
"""Kept off the box, so that the safety filter behind has nothing to do [m]."""
_DIFFERENCE_RAD: Final = 1e-4


class ToolServo:
    """Joint angles that follow a tool moved by twists.

    `box` is the workspace of every guarded point of the arm in the base frame, or None.
    """

    def __init__(
        self, arm: ArmModel, limits_rad: FloatArray, velocity_rad_s: float, box: Box | None = None
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
        """Move the tool's target by a twist, (6,), in the base frame [m/s, rad/s], and follow it.

        `duration_s` is above 0. Returns joint angles [rad], shape (n_joints,), inside the limits.
        """
        low, high = self._limits_rad.T
        moves = twist * duration_s
        self._at_m = self._at_m + moves[:3]
        self._turn_m = mink.SO3.exp(moves[3:]).as_matrix() @ self._turn_m
        target = np.eye(4)
        target[:3, :3], target[:3, 3] = self._turn_m, self._at_m
        self._task.set_target(mink.SE3.from_matrix(target))
        with contextlib.suppress(mink.NoSolutionFound):  # hold; the target is pulled back to here
            velocity = mink.solve_ik(
                self._configuration,
                [self._task, self._posture],
                duration_s,
                solver="daqp",
                damping=DAMPING,
                limits=self._limits,
            )
            step = np.asarray(velocity)[self._dofs] * duration_s
            if np.isfinite(step).all():
                q = self._q_rad.copy()
                q[:-1] += step
                self._q_rad = np.clip(q, low, high)
                self._configuration.update(self._arm.qpos(self._q_rad))
        # What the arm couldn't do is forgotten: beyond its reach, or against a limit or the box.
        turned, at_m = self._tool()
        error = np.empty(6)
        error[:3] = turned.T @ (self._at_m - at_m)
        error[3:] = mink.SO3.from_matrix(turned.T @ self._turn_m).log() * LEVER_M
        jacobian = self._configuration.get_frame_jacobian(self._site, "site")[:, self._dofs]
        # Directions that the Jacobian doesn't reach are dropped, position before orientation.
        directions, gains, _ = np.linalg.svd(jacobian * SCALE)
        lost = directions[:, int((gains > UNREACHED_M).sum()) :]
        give = self._yield @ lost
        kept = error - give @ np.linalg.solve(lost.T @ give, lost.T @ error)
        q = self._q_rad[:-1]
        if np.minimum(q - low[:-1], high[:-1] - q).min() < AT_LIMIT_RAD:
            kept[3:] *= np.exp(-duration_s / YIELD_S)
        self._at_m = at_m + _no_further(turned @ kept[:3], moves[:3], LEAD_M)
        turn = _no_further(kept[3:] / LEVER_M, turned.T @ moves[3:], LEAD_RAD)
        self._turn_m = turned @ mink.SO3.exp(turn).as_matrix()
        return self.q_rad

    def _tool(self) -> tuple[FloatArray, FloatArray]:
        data = self._configuration.data
        site = data.site(self._site)
        return site.xmat.reshape(3, 3).copy(), site.xpos.copy()


def _no_further(error: FloatArray, moves: FloatArray, lead: float) -> FloatArray:
    """Cut `error` to `lead`, and on axes that were to move to the step that was asked for."""
    step = np.abs(moves)
    most = np.where(step > 1e-9, step, lead)
    cut = np.minimum(np.maximum(error, -most), most)
    return np.asarray(cut * min(1.0, lead / max(float(np.sqrt(cut @ cut)), 1e-12)))


class BoxLimit(mink.Limit):  # type: ignore[misc]
    """Every guarded point stays in the box, as linear constraints on the joint step.

    A point that is outside already may come back, but not go further out.
    """

    def __init__(self, arm: ArmModel, model: Any, box: Box) -> None:
        self._model = model
        site = model.site(arm.site_name)
        self._points = [(int(site.bodyid[0]), np.array(site.pos))]
        self._points += [(int(model.body(p.body).id), np.array(p.offset_m)) for p in arm.points]
        # Of each face axis, sign and bound: sign * coordinate stays below it.
        self._faces = [(a, -1.0, -low - BOX_MARGIN_M) for a, (low, _) in enumerate(box)]
        self._faces += [(a, 1.0, high - BOX_MARGIN_M) for a, (_, high) in enumerate(box)]
        self._jacobian = np.zeros((3, model.nv))
        self._arm_dofs = np.zeros(model.nv)
        self._arm_dofs[arm.dofs[:-1]] = 1.0

    def compute_qp_inequalities(self, configuration: Any, dt: float) -> Any:
        """Return the rows for points near a face."""
        del dt
        data, rows, room_m = configuration.data, [], []
        for body, offset_m in self._points:
            at_m = data.xpos[body] + data.xmat[body].reshape(3, 3) @ offset_m
            left_m = [
                (axis, sign, bound_m - sign * at_m[axis]) for axis, sign, bound_m in self._faces
            ]
            near = [face for face in left_m if face[2] < NEAR_M]
            if near:
                mujoco.mj_jac(self._model, data, self._jacobian, None, at_m, body)
                # The gripper's own columns stay out: only the arm may keep its fingers in.
                rows += [sign * self._jacobian[axis] * self._arm_dofs for axis, sign, _ in near]
                # Half the way at most in one step: the rows are a linear view of curved motion.
                room_m += [max(0.5 * away_m, 0.0) for *_, away_m in near]
        return mink.Constraint(np.array(rows), np.array(room_m)) if rows else mink.Constraint()


class StretchLimit(mink.Limit):  # type: ignore[misc]
    """The Jacobian's least gain stays above `STRETCHED_M`; where it isn't, it may only grow."""

    def __init__(self, arm: ArmModel, model: Any) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._site = model.site(arm.site_name).id
        self._dofs = arm.dofs[:-1]
        self._jacobian = np.zeros((6, model.nv))

    def compute_qp_inequalities(self, configuration: Any, dt: float) -> Any:
        """Return one row where the arm is nearly stretched."""
        del dt
        gain_m = self._gain(configuration.q)
        if gain_m > STRETCHED_NEAR_M:
            return mink.Constraint()
        row, q = np.zeros((1, self._model.nv)), configuration.q.copy()
        for dof in self._dofs:
            address = self._model.jnt_qposadr[self._model.dof_jntid[dof]]
            q[address] += _DIFFERENCE_RAD
            row[0, dof] = (gain_m - self._gain(q)) / _DIFFERENCE_RAD
            q[address] -= _DIFFERENCE_RAD
        return mink.Constraint(row, np.array([max(0.5 * (gain_m - STRETCHED_M), 0.0)]))

    def _gain(self, qpos: FloatArray) -> float:
        model, data, jacobian = self._model, self._data, self._jacobian
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._site)
        return float(np.linalg.svd(jacobian[:, self._dofs] * SCALE, compute_uv=False)[-1])
