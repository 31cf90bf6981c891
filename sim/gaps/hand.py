"""A person's hand in the cell: reaches in, nudges or takes the object.

The hand is a mocap body that follows a path; it pushes the object by contact, blocks the arm,
and hides what is below it from the camera. A taken object follows the hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim import look

HAND = "hand"
AWAY_M = 0.42  # distance at which the hand is out of the picture
PARKED_M = (0.0, 0.0, -1.0)
PUSH_HEIGHT_M = 0.010
LYING_HEIGHT_M = 0.004
ARM_HEIGHT_M = 0.075  # of the gripper's body while it grasps or carries
HOVER_HEIGHT_M = 0.085
FINGER_REACH_M = 0.055  # from the hand's origin to the finger tips
SPEED_M_S = 0.55  # a calm reach; people reach at 0.5 to 1 m/s
PUSH_SPEED_M_S = 0.25


@dataclass(frozen=True)
class HandVisits:
    """What a hand does in every take.

    Attributes:
        action: "reach_in", "nudge", "take", "cover_target" or "bump_arm".
        parameters: those of the mechanism of that name.
    """

    action: str
    parameters: Mapping[str, float]


CONDITIONED_VISITS: Mapping[str, HandVisits] = {
    "reach_in": HandVisits("reach_in", {"side_rad": 0.6, "stay_s": 1.5, "start_s": 0.4}),
    "nudge": HandVisits("nudge", {"side_rad": 0.6, "push_m": 0.035}),
    "take": HandVisits("take", {"side_rad": 0.6, "carry_m": 0.08}),
}
"""What the condition `human` asks for."""


def add_hand(spec: mujoco.MjSpec) -> None:
    """Add a hand with a sleeve, out of sight, to the scene."""
    body = spec.worldbody.add_body(name=HAND, pos=PARKED_M, mocap=True)
    box, capsule = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CAPSULE
    body.add_geom(type=box, size=[0.032, 0.038, 0.013], pos=[0, 0, 0.012], rgba=look.SKIN_RGBA)
    for k in range(4):
        y = -0.027 + 0.018 * k
        body.add_geom(
            type=capsule, size=[0.0085, 0, 0], rgba=look.SKIN_RGBA,
            fromto=[0.02, y, 0.012, 0.046 + 0.004 * (k in (1, 2)), y, 0.004],
        )  # fmt: skip
    body.add_geom(
        type=capsule, size=[0.009, 0, 0], fromto=[-0.01, 0.035, 0.01, 0.03, 0.05, 0.004],
        rgba=look.SKIN_RGBA,
    )  # fmt: skip
    body.add_geom(
        type=capsule, size=[0.032, 0, 0], fromto=[-0.05, 0, 0.03, -0.32, 0, 0.10],
        rgba=look.SLEEVE_RGBA, contype=0, conaffinity=0,
    )  # fmt: skip


class HandMotion:
    """Moves the hand through a take."""

    def __init__(self, model: mujoco.MjModel, visits: HandVisits) -> None:
        self._action, self._p = visits.action, visits.parameters
        self._mocap = int(model.body(HAND).mocapid[0])
        joint = model.joint("object")
        self._qpos = int(joint.qposadr[0])
        self._dof = int(joint.dofadr[0])
        self._target = int(model.body("target").id)
        self.away = True

    def reset(self, rng: np.random.Generator, data: mujoco.MjData, table_z_m: float) -> None:
        """Plan the visits of a take: when they start and what they do."""
        p = self._p
        self._table_z = table_z_m
        self._side_rad = p["side_rad"] + float(rng.normal(0.0, 0.2))
        first = p.get("start_s", 0.0) + float(rng.uniform(0.15, 0.75))
        self._starts = [first]
        if p.get("pushes", 1.0) > 1.0:
            self._starts.append(first + float(rng.uniform(1.5, 2.2)))
        self._visit = -1
        self._origin = np.zeros(3)
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
        self._hold_object(t_s, data, at)

    def position(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Where the hand is [m], shape (3,)."""
        return np.asarray(data.mocap_pos[self._mocap].copy())

    def _set(self, data: mujoco.MjData, at: NDArray[np.float64]) -> None:
        data.mocap_pos[self._mocap] = at
        yaw = self._side_rad + np.pi  # fingers point from the person into the cell
        data.mocap_quat[self._mocap] = [np.cos(yaw / 2.0), 0.0, 0.0, np.sin(yaw / 2.0)]

    def _plan(self, t_s: float, data: mujoco.MjData) -> None:
        target = self._place(data)
        inward = -np.array([np.cos(self._side_rad), np.sin(self._side_rad)])
        start = target - inward * AWAY_M
        knots_of = {
            "nudge": self._nudge, "reach_in": self._reach, "take": self._take,
            "cover_target": self._cover, "bump_arm": self._bump,
        }  # fmt: skip
        knots = knots_of[self._action](target, inward)
        self._path = [(t_s, self._point(start, knots[0][2]))]
        at = start
        for xy, speed_m_s, height_m in knots:
            before, knot = self._path[-1], self._point(xy, height_m)
            far = float(np.linalg.norm(knot - before[1]))
            self._path.append((before[0] + far / speed_m_s, knot))
            at = xy
        if self._action in ("reach_in", "cover_target"):
            last = self._path[-1]
            self._path.append((last[0] + self._p["stay_s"], last[1]))
        if self._action == "take":
            reach = -inward * FINGER_REACH_M * 0.6
            self._grip = (self._path[2][0], self._path[4][0], np.array([*-reach, -0.016]))
        leave = self._point(at - inward * AWAY_M, HOVER_HEIGHT_M)
        self._path.append((self._path[-1][0] + AWAY_M / SPEED_M_S, leave))

    def _place(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """What a visit is for: the object, or the target where the arm will be by then."""
        first = self._visit == 0 and self._action == "bump_arm"
        if first or self._action not in ("cover_target", "bump_arm"):
            return np.asarray(data.qpos[self._qpos : self._qpos + 2].copy())
        return np.asarray(data.xpos[self._target, :2].copy())

    def _point(self, xy: NDArray[np.float64], height_m: float) -> NDArray[np.float64]:
        return np.array([xy[0], xy[1], self._table_z + height_m])

    Knots = list[tuple[NDArray[np.float64], float, float]]

    def _nudge(self, target: NDArray[np.float64], inward: NDArray[np.float64]) -> Knots:
        contact = target - inward * (FINGER_REACH_M + 0.02)
        end = contact + inward * (self._p["push_m"] + 0.005)
        return [(contact, SPEED_M_S, PUSH_HEIGHT_M), (end, PUSH_SPEED_M_S, PUSH_HEIGHT_M)]

    def _reach(self, target: NDArray[np.float64], inward: NDArray[np.float64]) -> Knots:
        height_m = self._p.get("hover_m", HOVER_HEIGHT_M)
        return [(target - inward * 0.01, SPEED_M_S, height_m)]

    def _cover(self, target: NDArray[np.float64], inward: NDArray[np.float64]) -> Knots:
        at = target - inward * (FINGER_REACH_M - self._p["cover_m"])
        return [(at, SPEED_M_S, HOVER_HEIGHT_M), (at, PUSH_SPEED_M_S, LYING_HEIGHT_M)]

    def _bump(self, place: NDArray[np.float64], inward: NDArray[np.float64]) -> Knots:
        contact = place - inward * (FINGER_REACH_M + 0.03)
        end = contact + inward * (self._p["bump_m"] + 0.03)
        return [(contact, SPEED_M_S, ARM_HEIGHT_M), (end, SPEED_M_S, ARM_HEIGHT_M)]

    def _take(self, target: NDArray[np.float64], inward: NDArray[np.float64]) -> Knots:
        grasp = target - inward * FINGER_REACH_M * 0.6
        aside = np.array([-inward[1], inward[0]])
        if (target + aside * 0.05) @ (target + aside * 0.05) > target @ target:
            aside = -aside  # towards the arm, where it can still be reached
        end = grasp + aside * self._p["carry_m"]
        low = 0.016
        return [
            (grasp, SPEED_M_S, HOVER_HEIGHT_M), (grasp, SPEED_M_S, low),
            (end, PUSH_SPEED_M_S, low + 0.02), (end, SPEED_M_S, low),
            (end, SPEED_M_S, HOVER_HEIGHT_M),
        ]  # fmt: skip

    def _hold_object(self, t_s: float, data: mujoco.MjData, at: NDArray[np.float64]) -> None:
        if self._grip is None or not self._grip[0] <= t_s <= self._grip[1]:
            return
        data.qpos[self._qpos : self._qpos + 3] = at + self._grip[2] + np.array([0, 0, 0.0125])
        data.qvel[self._dof : self._dof + 6] = 0.0
