"""A person's hand in the cell: reaches in, nudges or takes the object.

The hand is a mocap body that follows a path; it pushes the object by contact, blocks the arm,
and hides what is below it from the camera. A taken object follows the hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim.conditions import SKIN_RGBA, SLEEVE_RGBA

HAND = "gaploop_hand"  # other scenes have hands
AWAY_M = 0.42  # distance at which the hand is out of the picture
PARKED_M = (0.0, 0.0, -1.0)
PUSH_HEIGHT_M = 0.010
HOVER_HEIGHT_M = 0.085
FINGER_REACH_M = 0.055  # from the hand's origin to the finger tips
SPEED_M_S = 0.55  # a calm reach; people reach at 0.5 to 1 m/s
PUSH_SPEED_M_S = 0.25


type Knot = tuple[NDArray[np.float64], float, float]
"""Where on the table the hand goes [m], shape (2,), how fast [m/s], and how high [m]."""


@dataclass(frozen=True)
class HandVisits:
    """What a hand does in every take.

    Attributes:
        side_rad: where the person stands, about the cell.
        knots: from what the visit is for, shape (2,), and the direction into the cell, shape (2,),
            to the places that the hand goes to in turn.
        start_s: it comes this long after the take's begin, at least.
        visits: how often it comes, 1 or 2.
        stay_s: how long it stays at the last place.
        of_target: number of the visit from which on it is for the target; the ones before are for
            the object.
        takes: it carries the object from the third to the fifth place.
    """

    side_rad: float
    knots: Callable[[NDArray[np.float64], NDArray[np.float64]], Sequence[Knot]]
    start_s: float = 0.0
    visits: int = 1
    stay_s: float = 0.0
    of_target: int = 2
    takes: bool = False


def add_hand(spec: mujoco.MjSpec, mocap: bool = True) -> None:
    """Add a hand with a sleeve, out of sight, to the scene.

    Without `mocap` it is a body of the world that is put elsewhere, for scenes whose owner counts
    on all mocap bodies being his.
    """
    body = spec.worldbody.add_body(name=HAND, pos=PARKED_M, mocap=mocap)
    box, capsule = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CAPSULE
    body.add_geom(type=box, size=[0.032, 0.038, 0.013], pos=[0, 0, 0.012], rgba=SKIN_RGBA)
    for k in range(4):
        y = -0.027 + 0.018 * k
        body.add_geom(
            type=capsule, size=[0.0085, 0, 0], rgba=SKIN_RGBA,
            fromto=[0.02, y, 0.012, 0.046 + 0.004 * (k in (1, 2)), y, 0.004],
        )  # fmt: skip
    body.add_geom(
        type=capsule, size=[0.009, 0, 0], fromto=[-0.01, 0.035, 0.01, 0.03, 0.05, 0.004],
        rgba=SKIN_RGBA,
    )  # fmt: skip
    body.add_geom(
        type=capsule, size=[0.032, 0, 0], fromto=[-0.05, 0, 0.03, -0.32, 0, 0.10],
        rgba=SLEEVE_RGBA, contype=0, conaffinity=0,
    )  # fmt: skip


class HandMotion:
    """Moves the hand through a take."""

    def __init__(self, model: mujoco.MjModel, visits: HandVisits, thing: int, target: int) -> None:
        """Visit a body that moves freely, `thing`, or `target`, another; both are ids."""
        self._visits, self._model = visits, model
        self._mocap = int(model.body(HAND).mocapid[0])
        joint = int(model.body_jntadr[thing])
        self._qpos, self._dof = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
        self._target = target
        self.away = True

    def reset(self, rng: np.random.Generator, data: mujoco.MjData, table_z_m: float) -> None:
        """Plan the visits of a take: when they start and what they do."""
        visits = self._visits
        self._table_z = table_z_m
        self._side_rad = visits.side_rad + float(rng.normal(0.0, 0.2))
        first = visits.start_s + float(rng.uniform(0.15, 0.75))
        self._starts = [first]
        if visits.visits > 1:
            self._starts.append(first + float(rng.uniform(1.5, 2.2)))
        self._visit = -1
        self._path: list[tuple[float, NDArray[np.float64]]] = []
        self._grip: tuple[float, float, NDArray[np.float64]] | None = None
        self.away = True
        self._set(data, np.asarray(PARKED_M))

    def update(self, t_s: float, data: mujoco.MjData) -> None:
        """Move the hand to where it is at `t_s` [s]; to be called before every physics step."""
        following = self._visit + 1
        if following < len(self._starts) and t_s >= self._starts[following]:
            self._visit = following
            self._plan(t_s, data)
        if not self._path or t_s >= self._path[-1][0]:
            if not self.away:
                self._set(data, np.asarray(PARKED_M))
            self.away = True
            return
        self.away = False
        times = np.array([t for t, _ in self._path])
        points = np.array([p for _, p in self._path])
        at = np.array([np.interp(t_s, times, points[:, k]) for k in range(3)])
        self._set(data, at)
        if self._grip is not None and self._grip[0] <= t_s <= self._grip[1]:
            data.qpos[self._qpos : self._qpos + 3] = at + self._grip[2] + np.array([0, 0, 0.0125])
            data.qvel[self._dof : self._dof + 6] = 0.0

    def position(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Where the hand is [m], shape (3,)."""
        return np.asarray(self._place(data)[0].copy())

    def _set(self, data: mujoco.MjData, at: NDArray[np.float64]) -> None:
        place, turn = self._place(data)
        place[:] = at
        yaw = self._side_rad + np.pi  # fingers point from the person into the cell
        turn[:] = [np.cos(yaw / 2.0), 0.0, 0.0, np.sin(yaw / 2.0)]

    def _place(self, data: mujoco.MjData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._mocap >= 0:
            return data.mocap_pos[self._mocap], data.mocap_quat[self._mocap]
        body = self._model.body(HAND).id
        return self._model.body_pos[body], self._model.body_quat[body]

    def _plan(self, t_s: float, data: mujoco.MjData) -> None:
        visits = self._visits
        inward = -np.array([np.cos(self._side_rad), np.sin(self._side_rad)])
        target = data.qpos[self._qpos : self._qpos + 2].copy()
        if self._visit >= visits.of_target:
            target = data.xpos[self._target, :2].copy()
        knots = visits.knots(target, inward)

        def point(xy: NDArray[np.float64], height_m: float) -> NDArray[np.float64]:
            return np.array([xy[0], xy[1], self._table_z + height_m])

        path = [(t_s, point(target - inward * AWAY_M, knots[0][2]))]
        for xy, speed_m_s, height_m in knots:
            before, knot = path[-1], point(xy, height_m)
            far = float(np.linalg.norm(knot - before[1]))
            path.append((before[0] + far / speed_m_s, knot))
        if visits.stay_s:
            path.append((path[-1][0] + visits.stay_s, path[-1][1]))
        if visits.takes:
            reach = -inward * FINGER_REACH_M * 0.6
            self._grip = (path[2][0], path[4][0], np.array([*-reach, -0.016]))
        leave = point(knots[-1][0] - inward * AWAY_M, HOVER_HEIGHT_M)
        path.append((path[-1][0] + AWAY_M / SPEED_M_S, leave))
        self._path = path
