"""Makes a failure happen on purpose: one way at a time, in an otherwise normal attempt.

Each way stands between a leader and the arm, or changes the cell's physics while the attempt runs.
What it leads to is for the oracle to say: an arm that is blocked may still grasp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import mujoco
import numpy as np

from gaploop.core.errors import unknown_choice
from gaploop.core.messages import FloatArray, LeaderSample
from gaploop.core.protocols import Leader
from gaploop.sim.cell import SimCell
from gaploop.sim.kinematics import TCP_SITE, from_polar, polar
from gaploop.sim.scene import DISTRACTOR_PREFIX

SHUT_RAD: Final = 0.30
WALL_HALF_M: Final = (0.050, 0.012, 0.090)
"""Radial, across, height: taller than the tool travels."""
WALL_KG: Final = 30.0  # stays where it is
CLEAR_RAD: Final = 0.7  # less turns than this leave no room for an obstacle between
SKITTLE_KG: Final = 1.0  # gives way, but not at once


@dataclass(frozen=True)
class Way:
    """One way to fail.

    Attributes:
        says: what is done.
        after_shut: it begins after the gripper closed, else after the attempt began.
        delay_s: earliest and latest begin after that [s].
        conditions: what the cell must have for it.
    """

    says: str
    after_shut: bool
    delay_s: tuple[float, float]
    obstacle: bool = False


WAYS: Final[dict[str, Way]] = {
    "hang": Way("the commands stop changing", False, (0.3, 1.0)),
    "hang_holding": Way("the commands stop changing while the object is held", True, (0.5, 0.9)),
    "shake": Way("two joints are commanded to shake", False, (0.3, 1.0)),
    "shake_holding": Way("two joints are commanded to shake in transport", True, (0.5, 0.8)),
    "hunt": Way("the servos lose their damping", False, (0.3, 1.0)),
    "sag": Way("lift and elbow lose their torque", False, (0.3, 1.0)),
    "sag_holding": Way("lift and elbow lose their torque in transport", True, (0.5, 0.8)),
    "block": Way("a heavy wall stands in the way", False, (0.0, 0.0), obstacle=True),
    "knock": Way("the arm runs into a skittle and then stops", False, (0.0, 0.0), obstacle=True),
    "aside": Way("the gripper closes beside the object", False, (0.0, 0.0)),
    "grease": Way("the finger pads lose their friction", True, (0.5, 0.9)),
    "let_go": Way("the gripper opens on the way", True, (0.5, 0.9)),
    "misplace": Way("the object is put down beside its goal", True, (0.4, 0.4)),
    "dither": Way("the arm wanders to and fro above the table", False, (0.4, 1.0)),
    "late": Way("the arm sets off so late that time runs out", False, (5.2, 6.2)),
    "estop": Way("a person presses the stop", False, (0.3, 2.5)),
}


class Provoked:
    """A leader that fails in one way; implements core's `Leader`.

    Args:
        leader: who drives otherwise.
        cell: the cell, as built: its physics are put back to that before every take. For a way that
            needs an obstacle one distractor is set up in it.
        way: one of `WAYS`.
        seed: draws when and how.
        estop: presses the stop.

    Raises:
        UnknownChoiceError: another way.
    """

    def __init__(
        self,
        leader: Leader,
        cell: SimCell,
        way: str,
        seed: int = 0,
        estop: Callable[[], None] = lambda: None,
    ) -> None:
        if way not in WAYS:
            raise unknown_choice("way to fail", way, WAYS)
        self.leader = leader
        self._cell, self._way, self._estop = cell, way, estop
        self._rng = np.random.default_rng([seed, 41])
        model = cell.model
        self._nominal = {
            name: getattr(model, name).copy()
            for name in ("actuator_gainprm", "actuator_biasprm", "geom_friction", "dof_damping")
        }

    def reset(self) -> None:
        """Get ready for a new take in a cell that has been reset."""
        for name, values in self._nominal.items():
            getattr(self._cell.model, name)[:] = values
        self.leader.reset()
        way = WAYS[self._way]
        self._delay_s = float(self._rng.uniform(*way.delay_s))
        self._shut_s = self._start_s = np.nan
        self._held: FloatArray | None = None
        self._sign = 1.0 if self._rng.random() < 0.5 else -1.0
        self._size = float(self._rng.uniform(0.8, 1.2))
        self._hz = float(self._rng.uniform(2.5, 5.0))
        self._joints = self._rng.choice(4, 2, replace=False)  # pan, lift, elbow and wrist_flex
        if way.obstacle:
            self._place_obstacle()

    def done(self) -> bool:
        """Say whether the leader is done; one whose commands were taken away never is."""
        return self._held is None and self.leader.done()

    def read(self, t_s: float) -> LeaderSample:
        """Return the command for loop time `t_s` [s]."""
        if self._way == "late" and t_s < self._delay_s:
            return LeaderSample(t_s, self._first(self._cell.read().position_rad))
        if self._way == "late":
            self._held = None
        sample = self.leader.read(t_s)
        if np.isnan(self._shut_s) and sample.q_rad[-1] < SHUT_RAD:
            self._shut_s = t_s
        since_s = (self._shut_s if WAYS[self._way].after_shut else 0.0) + self._delay_s
        if np.isnan(self._start_s) and t_s >= since_s and self._way != "late":
            self._start_s = t_s
            self._begin()
        if np.isnan(self._start_s):
            return sample
        return replace(sample, q_rad=self._bent(sample.q_rad, t_s - self._start_s))

    def _first(self, q_rad: FloatArray) -> FloatArray:
        """Return the first command that came, `q_rad` [rad] where none did."""
        self._held = q_rad.copy() if self._held is None else self._held
        return self._held

    def _begin(self) -> None:
        """Change the cell's physics, where the way asks for it."""
        model = self._cell.model
        names = self._cell.joint_names[:4]
        drives = [model.actuator(n).id for n in names[1:3]]
        if self._way == "hunt":
            servos = [model.actuator(n).id for n in names]
            model.actuator_biasprm[servos, 2] = 0.0
            model.dof_damping[model.jnt_dofadr[model.actuator_trnid[servos, 0]]] *= 0.05
        elif self._way.startswith("sag"):
            model.actuator_gainprm[drives, 0] *= 1e-3
            model.actuator_biasprm[drives, 1] *= 1e-3
        elif self._way == "grease":
            bodies = [model.body(name).id for name in self._cell.arm.finger_bodies]
            model.geom_friction[np.isin(model.geom_bodyid, bodies), 0] = 0.002
        elif self._way == "estop":
            self._estop()

    def _bent(self, q_rad: FloatArray, elapsed_s: float) -> FloatArray:
        """Return what is commanded instead of `q_rad` [rad], so long after the beginning [s]."""
        q, way = q_rad.copy(), self._way
        if way.startswith("hang") or (way == "knock" and self._touched()):
            return self._first(q)
        if way.startswith("shake"):
            q[self._joints] += 0.05 * self._size * np.sin(2 * np.pi * self._hz * elapsed_s)
        elif way == "aside" and not elapsed_s > self._shut_s + 1.0:
            q[0] += 0.16 * self._sign * self._size
        elif way == "misplace" and q[-1] < SHUT_RAD:
            q[0] += 0.25 * self._sign * self._size * min(elapsed_s / 0.6, 1.0)
        elif way == "let_go":
            q[-1] = self._cell.arm.grip.open_rad
        elif way == "dither":
            q = self._first(q).copy()
            q[0] += 0.25 * self._size * np.sin(2.2 * elapsed_s)
            q[3] += 0.10 * self._size * np.sin(1.3 * elapsed_s)
        return q

    def _touched(self) -> bool:
        """Say whether the skittle has been pushed."""
        data, joint = self._cell.data, self._cell.model.joint(f"{DISTRACTOR_PREFIX}0")
        at = data.qpos[int(joint.qposadr[0]) : int(joint.qposadr[0]) + 2]
        return bool(np.linalg.norm(at - self._obstacle_m) > 0.030) or self._held is not None

    def _place_obstacle(self) -> None:
        """Put the distractor between the arm's start and the object, as wall or skittle."""
        model, data = self._cell.model, self._cell.data
        body, geom = model.body(f"{DISTRACTOR_PREFIX}0").id, model.geom(f"{DISTRACTOR_PREFIX}0").id
        mass_kg = WALL_KG if self._way == "block" else SKITTLE_KG
        half = np.asarray(WALL_HALF_M)
        model.geom_size[geom] = half
        model.geom_rbound[geom] = np.linalg.norm(half)
        model.geom_aabb[geom, 3:] = half
        model.body_mass[body] = mass_kg
        model.body_inertia[body] = mass_kg / 3.0 * (half @ half - half**2)
        middle, radius = self._on_the_way()
        self._obstacle_m = from_polar(middle, radius)
        before = data.qpos.copy(), data.qvel.copy()
        mujoco.mj_setConst(model, data)  # contacts are as stiff as the masses it knows
        data.qpos[:], data.qvel[:] = before
        joint = model.joint(f"{DISTRACTOR_PREFIX}0")
        at = int(joint.qposadr[0])
        height_m = float(model.body("table").pos[2]) + half[2]
        data.qpos[at : at + 3] = [*self._obstacle_m, height_m]
        data.qpos[at + 3 : at + 7] = [np.cos(middle / 2), 0.0, 0.0, np.sin(middle / 2)]
        data.qvel[int(joint.dofadr[0]) : int(joint.dofadr[0]) + 6] = 0.0
        mujoco.mj_forward(model, data)

    def _on_the_way(self) -> tuple[float, float]:
        """Return azimuth [rad] and radius [m] of a place between the arm and where it goes."""
        data = self._cell.data
        places = [data.site(TCP_SITE).xpos, data.body("object").xpos, data.body("target").xpos]
        start, item, goal = (polar(place[:2]) for place in places)
        leg = (start, item) if abs(start[0] - item[0]) > CLEAR_RAD else (item, goal)
        return 0.5 * (leg[0][0] + leg[1][0]), 0.5 * (leg[0][1] + leg[1][1])
