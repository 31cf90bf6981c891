"""The weight of an emulated arm, and the table that it falls on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray

_TABLE_N_PER_M: Final = 500.0  # assumed: a finger's tip and the arm give way by some millimetres
_TABLE_N_S_PER_M: Final = 10.0


class ArmWeight:
    """Says how weight and table turn each joint of an arm whose joints move one by one.

    The masses are the model's (`core.arms`). The table is the plane z = 0 that the arm stands on;
    it holds the points that a workspace box guards: finger tips, wrist, elbow.
    """

    def __init__(self, model: str, joints: Sequence[str]) -> None:
        self._arm = ArmModel.load(model)
        names = self._arm.joint_names
        self._own = np.array([names.index(name) for name in joints], dtype=np.intp)
        self._q: FloatArray = np.zeros(len(names))
        self._v: FloatArray = np.zeros(len(names))

    def push_nm(
        self, q_rad: Sequence[float], v_rad_s: Sequence[float], *, on_table: bool = True
    ) -> list[float]:
        """Return the torque on each joint [N m] at its angle [rad] and speed [rad/s].

        With `on_table` the table holds what would fall through it.
        """
        arm, q, v = self._arm, self._q, self._v
        q[self._own], v[self._own] = q_rad, v_rad_s
        push = arm.weight_nm(q)
        heights_m = arm.points_m(q)[:, 2]
        for point in np.flatnonzero(heights_m < 0.0).tolist() if on_table else ():
            rises = arm.jacobian_m(q, point)[2]
            force = -_TABLE_N_PER_M * heights_m[point] - _TABLE_N_S_PER_M * float(rises @ v)
            push = push + rises * max(force, 0.0)
        found: list[float] = push[self._own].tolist()
        return found
