"""What keeps differential inverse kinematics out of trouble: constraints on each joint step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import mink
import mujoco
import numpy as np

from gaploop.core.kinematics import ArmModel, Box
from gaploop.core.types import FloatArray

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


@dataclass(frozen=True)
class _Face:
    """One face of the box: `sign` * coordinate `axis` stays below `bound_m`."""

    axis: int
    sign: float
    bound_m: float


class BoxLimit(mink.Limit):  # type: ignore[misc]
    """Every guarded point stays in the box, as linear constraints on the joint step.

    A point that is outside already may come back, but not go further out.
    """

    def __init__(self, arm: ArmModel, model: Any, box: Box) -> None:
        self._model = model
        site = model.site(arm.site_name)
        self._points = [(int(site.bodyid[0]), np.array(site.pos))]
        self._points += [(int(model.body(p.body).id), np.array(p.offset_m)) for p in arm.points]
        self._faces = [_Face(a, -1.0, -low - BOX_MARGIN_M) for a, (low, _) in enumerate(box)]
        self._faces += [_Face(a, 1.0, high - BOX_MARGIN_M) for a, (_, high) in enumerate(box)]
        self._jacobian = np.zeros((3, model.nv))
        self._arm_dofs = np.zeros(model.nv)
        self._arm_dofs[arm.dofs[:-1]] = 1.0

    def compute_qp_inequalities(self, configuration: Any, dt: float) -> Any:
        """Return the rows for points near a face."""
        del dt
        data, rows, room_m = configuration.data, [], []
        for body, offset_m in self._points:
            at_m = data.xpos[body] + data.xmat[body].reshape(3, 3) @ offset_m
            near = [f for f in self._faces if f.bound_m - f.sign * at_m[f.axis] < NEAR_M]
            if near:
                mujoco.mj_jac(self._model, data, self._jacobian, None, at_m, body)
                # The gripper's own columns stay out: only the arm may keep its fingers in.
                rows += [face.sign * self._jacobian[face.axis] * self._arm_dofs for face in near]
                # Half the way at most in one step: the rows are a linear view of curved motion.
                room_m += [max(0.5 * (f.bound_m - f.sign * at_m[f.axis]), 0.0) for f in near]
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
