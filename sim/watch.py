"""Watches object and target: the privileged state that success is judged by."""

from __future__ import annotations

import mujoco
import numpy as np

from gaploop.sim.kinematics import TCP_SITE, fold_square
from gaploop.sim.tasks import TaskState

HELD_FORCE_N = 0.2  # a jaw that presses less is only touching


class Watch:
    """Reads the object's and the target's state out of MuJoCo's."""

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        half_height_m: float,
        finger_bodies: tuple[str, str],
    ) -> None:
        self._model = model
        self._data = data
        self._half_height_m = half_height_m
        self._object = model.body("object").id
        self._target = model.body("target").id
        self._qpos = int(model.joint("object").qposadr[0])
        self._dof = int(model.joint("object").dofadr[0])
        self._tool = model.site(TCP_SITE).id
        self._fingers = [model.body(name).id for name in finger_bodies]
        self._force = np.zeros(6)

    def state(self, table_z_m: float) -> TaskState:
        """The state now, with the table top at `table_z_m` [m]."""
        velocity = self._data.qvel[self._dof : self._dof + 6]
        position = self._data.qpos[self._qpos : self._qpos + 3].copy()
        return TaskState(
            object_pos_m=position,
            object_yaw_rad=fold_square(self.object_yaw_rad()),
            object_rest_z_m=table_z_m + self._half_height_m,
            object_half_height_m=self._half_height_m,
            speed_m_s=float(np.linalg.norm(velocity[:3])),
            turn_rad_s=float(np.linalg.norm(velocity[3:])),
            target_pos_m=self._data.xpos[self._target].copy(),
            held=self._held(),
            t_s=float(self._data.time),
            tool_distance_m=float(np.linalg.norm(position - self._data.site_xpos[self._tool])),
        )

    def object_yaw_rad(self) -> float:
        """Direction of the object's x axis [rad], or of another that lies flatter."""
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, self._data.qpos[self._qpos + 3 : self._qpos + 7])
        matrix = rotation.reshape(3, 3)
        flattest = int(np.argmin(np.abs(matrix[2])))
        # The x axis counts while it lies flat: it tells the longer side of a box.
        axis = matrix[:2, 0 if abs(matrix[2, 0]) < 0.5 else flattest]
        return float(np.arctan2(axis[1], axis[0]))

    def _held(self) -> bool:
        pressing = set()
        contacts = self._data.contact
        bodies = self._model.geom_bodyid[contacts.geom[: self._data.ncon]]
        for row in np.flatnonzero((bodies == self._object).any(axis=1)):
            first, second = int(bodies[row, 0]), int(bodies[row, 1])
            other = first if second == self._object else second
            if other not in self._fingers:
                continue
            mujoco.mj_contactForce(self._model, self._data, int(row), self._force)
            if abs(self._force[0]) > HELD_FORCE_N:
                pressing.add(other)
        return len(pressing) == len(self._fingers)
