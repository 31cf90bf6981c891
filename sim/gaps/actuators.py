"""What happens between a commanded joint angle and the servo: dead time, play, saturation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim.arms import SO101, CellArm
from gaploop.sim.gaps.catalog import InjectedGap
from gaploop.sim.scene import TIMESTEP_S

_COMMAND_KEYS = {"latency_s", "backlash_rad", "speed_limit_rad_s", "deaf_fraction"}


class CommandPath:
    """Turns the stream of goals into the stream of servo set points.

    Dead time, then a speed limit, then play; each is absent unless a gap asks for it.
    """

    def __init__(self, gaps: Sequence[InjectedGap], arm: CellArm) -> None:
        merged: dict[str, float] = {}
        for gap in gaps:
            merged.update(gap.parameters)
        self._latency_s = merged.get("latency_s", 0.0)
        self._play_rad = merged.get("backlash_rad", 0.0)
        self._step_rad = merged.get("speed_limit_rad_s", np.inf) * TIMESTEP_S
        self._pending: deque[tuple[float, NDArray[np.float64]]] = deque()
        n = len(arm.joint_names)
        self._goal: NDArray[np.float64] = np.zeros(n)
        self._slewed: NDArray[np.float64] = np.zeros(n)
        self._out: NDArray[np.float64] = np.zeros(n)
        self._deaf_joint = arm.main_joints[int(merged.get("deaf_joint", 0))]
        self._deaf_fraction = merged.get("deaf_fraction", 0.0)
        self._deaf_s = merged.get("deaf_s", 0.0)
        self.active = bool(_COMMAND_KEYS & merged.keys())

    def reset(self, q_rad: NDArray[np.float64], rng: np.random.Generator) -> None:
        """Start a take at rest at `q_rad` [rad]; `rng` draws which goals are missed."""
        self._pending.clear()
        self._goal, self._slewed, self._out = q_rad.copy(), q_rad.copy(), q_rad.copy()
        self._rng = rng
        self._deaf, self._deaf_until_s = bool(rng.random() < 0.5), 0.0

    def push(self, t_s: float, q_rad: NDArray[np.float64]) -> None:
        """Take note of a goal [rad], shape (n_joints,), given at `t_s` [s]."""
        self._pending.append((t_s, q_rad.copy()))

    def set_point(self, t_s: float) -> NDArray[np.float64]:
        """Set point [rad], shape (n_joints,), at `t_s` [s]; to be called once per physics step."""
        while self._pending and self._pending[0][0] <= t_s - self._latency_s + 1e-9:
            goal = self._pending.popleft()[1].copy()
            if self._is_deaf(t_s):
                goal[self._deaf_joint] = self._goal[self._deaf_joint]
            self._goal = goal
        self._slewed += np.clip(self._goal - self._slewed, -self._step_rad, self._step_rad)
        half = 0.5 * self._play_rad
        self._out = np.clip(self._out, self._slewed - half, self._slewed + half)
        return self._out

    def _is_deaf(self, t_s: float) -> bool:
        """Say whether a joint misses its goals at `t_s` [s]: a loose plug, time and again."""
        if not self._deaf_fraction:
            return False
        while t_s >= self._deaf_until_s:
            self._deaf = not self._deaf
            heard_s = self._deaf_s * (1.0 / self._deaf_fraction - 1.0)
            typical_s = self._deaf_s if self._deaf else heard_s
            self._deaf_until_s += typical_s * float(self._rng.uniform(0.5, 1.5))
        return self._deaf


def weaken_servos(model: mujoco.MjModel, gaps: Sequence[InjectedGap], arm: CellArm) -> None:
    """Lower the servos' gain or torque and raise joint friction where a gap says so.

    Friction is given for the SO-101; stronger joints get as much more.
    """
    for gap in gaps:
        p = gap.parameters
        # The gripper keeps its strength.
        for name, stall_nm in zip(arm.joint_names[:-1], arm.servos.stall_nm, strict=False):
            servo = model.actuator(name).id
            model.actuator_forcerange[servo] *= p.get("torque_factor", 1.0)
            if "gain_factor" in p:
                model.actuator_gainprm[servo, 0] *= p["gain_factor"]
                model.actuator_biasprm[servo, 1] *= p["gain_factor"]
                friction_nm = p["friction_nm"] * (stall_nm / SO101.servos.stall_nm[0])
                model.dof_frictionloss[model.joint(name).dofadr[0]] += friction_nm
