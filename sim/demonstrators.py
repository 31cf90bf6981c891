"""What drives the arm of a scene file by itself: its waypoints, or demonstrations carried over.

A demonstration that a person recorded keeps its place relative to the things that it handles.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import check_keys, number
from gaploop.core.take import SUCCESS_HELD_S
from gaploop.sim.kinematics import fold_square
from gaploop.sim.predicates import names_in
from gaploop.sim.scene_file import require_known
from gaploop.sim.scene_world import SceneWorld

WAYPOINT_KEYS: Final = ("to", "offset_m", "gripper", "speed_m_s", "pause_s", "jaw_deg", "follows")
SPEED_M_S: Final = 0.2
MOVED_M, MOVED_RAD = 2e-4, 2e-3
"""What moves or turns less from one frame to the next rests."""
PAUSE_S: Final = 0.3
"""After a waypoint, for the arm to arrive [s]; likewise the time that a gripper gets."""
LATE_S: Final = 3.0
"""An arm that still moves then gets so much more [s]."""


class Demonstrator:
    """Drives a scene along its waypoints; a new one for every episode.

    The tool goes in straight lines and points down, its jaws along the nearest side of what it
    goes to; an arm that is still on its way is waited for. A place is looked up when its waypoint
    begins; a waypoint that `follows` looks again at every frame, and is over when tool and body
    have rested for its `pause_s`.
    """

    def __init__(self, world: SceneWorld) -> None:
        """Read the waypoints; UnusableInputError for what the scene hasn't."""
        scene, where = world.asked, f"Scene {world.scene.path}, demonstrator"
        if not scene.demonstrator:
            raise UnusableInputError(f"{where}: it has no waypoints. Add a list of them.")
        check_keys(scene.gripper, ("joint", "open", "closed"), f"{where}: gripper")
        self._world, self._where, self._points = world, where, scene.demonstrator
        self._ik, self._columns = world.arm_ik(where)
        self._goal, self._angles = world.angles(), world.angles()
        self._moved = np.where(world.servos.units < 1.0, MOVED_RAD, MOVED_M)
        self._index, self._left_s = -1, 0.0
        self._tool, rotation = self._ik.tcp(self._goal[self._columns])
        self._target = self._tool.copy()
        self._jaw_rad = float(np.arctan2(rotation[1, 0], rotation[0, 0]))
        self._speed_m_s, self._pause_s, self._follows = SPEED_M_S, PAUSE_S, False
        self.done = False
        """The last waypoint was reached."""
        self.off_m = list[float]()
        """How far the tool was from each waypoint when the next one began."""

    def __call__(self, _observation: Any) -> NDArray[np.float32]:
        """Return the next action."""
        period_s, before = self._world.period_s, self._angles
        self._angles = self._world.angles()
        rests = bool((np.abs(self._angles - before) <= self._moved).all())
        if self._follows and self._aim():
            self._left_s = self._pause_s
        away = self._target - self._tool
        far = float(np.linalg.norm(away))
        if far <= 1e-9:
            self._left_s -= period_s
            if self._left_s <= 0.0 and (rests or self._left_s <= -LATE_S):
                self._next()
        if far > 1e-9 or self._follows:
            self._tool += away * min(1.0, self._speed_m_s * period_s / max(far, 1e-9))
            arm = self._ik.solve(self._tool, self._jaw_rad, self._goal[self._columns], 6)
            self._goal[self._columns] = arm
        return self._world.action_of(self._goal)

    def _next(self) -> None:
        """Begin the next waypoint; the last one is held."""
        points, at_m = self._points, self._world.data.site(self._world.scene.tool.site).xpos
        if self._index >= 0 and not self.done:
            self.off_m.append(float(np.linalg.norm(at_m - self._target)))
        if self._index + 1 >= len(points):
            self.done = True
            return
        self._index += 1
        point, where = points[self._index], f"{self._where} {self._index + 1}"
        check_keys(point, WAYPOINT_KEYS, where)
        gripper = self._world.scene.gripper
        if "gripper" in point:
            if point["gripper"] not in ("open", "closed") or point["gripper"] not in gripper:
                raise UnusableInputError(f"{where}: give gripper: open or closed, as gripper says.")
            self._goal[self._world.servos.gripper] = gripper[point["gripper"]]
        self._pause_s = number(point.get("pause_s", PAUSE_S), f"{where}, pause_s", 0.0, 60.0)
        self._left_s, self._follows = self._pause_s, bool(point.get("follows"))
        self._speed_m_s = number(
            point.get("speed_m_s", SPEED_M_S), f"{where}, speed_m_s", 1e-3, 10.0
        )
        if "to" not in point:
            return
        world = self._world
        bodies = [world.model.body(b).name for b in range(1, world.model.nbody)]
        sites = [world.model.site(s).name for s in range(world.model.nsite)]
        require_known("body or site", [point["to"]], bodies + sites, where)
        offset = [
            number(v, f"{where}, offset_m", -10.0, 10.0) for v in point.get("offset_m", [0] * 3)
        ]
        self._to, self._is_body, self._offset_m = point["to"], point["to"] in bodies, offset
        self._aim()
        self._jaw_rad += np.radians(number(point.get("jaw_deg", 0.0), where, -360.0, 360.0))

    def _aim(self) -> bool:
        """Look up where the waypoint is; say whether it has moved."""
        before = self._target
        self._target = self._world.state.place_m(self._to) + self._offset_m
        turn_rad = 0.0
        if self._is_body:
            turn_rad = fold_square(self._world.state.yaw_rad(self._to) - self._jaw_rad)
            self._jaw_rad += turn_rad
        moved_m = float(np.linalg.norm(self._target - before))
        return moved_m > MOVED_M or abs(turn_rad) > MOVED_RAD


# -- demonstrations carried over to where things are now ------------------------------------------

AT_IT_M: Final = 0.12
"""A gripper that opens or closes no further than this from a thing does so at it."""
TOUCHED_M: Final = 0.005
"""What has moved so far was touched."""
CARRIED_M: Final = 0.02
"""What moves further than this, and less in the hand, is carried."""
FAST_RAD_S: Final = 2.0
ENTERED, LEFT = 0.2, 0.8
"""Shares of a part's way over the table: until the first one thing is gone by, from the second on
the next one."""


@dataclass(frozen=True)
class Part:
    """A stretch of a demonstration, up to where the gripper moves, or something is moved.

    Attributes:
        start, end: its frames.
        thing: at what it ends, as its place among `things_of`; None for a place in the world.
        at_m, yaw_rad: where that was when the part began.
    """

    start: int
    end: int
    thing: int | None = None
    at_m: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    yaw_rad: float = 0.0


@dataclass(frozen=True)
class Demonstration:
    """A demonstration that was recorded in a scene file, replayed to see where things were.

    Attributes:
        goals: of the joints [rad, m], shape (n, n_joints), one for each frame.
        tool_m, turns: the tool's places that they ask for, (n, 3), and rotations, (n, 3, 3).
        succeeded: the replay did, too.
    """

    uid: str
    goals: NDArray[np.float64]
    tool_m: NDArray[np.float64]
    turns: NDArray[np.float64]
    parts: Sequence[Part]
    succeeded: bool


def things_of(world: SceneWorld) -> list[str]:
    """Return the bodies and sites that the present episode's success is about, in its order."""
    model = world.model
    sites = {model.site(s).name for s in range(model.nsite)}
    bodies = {model.body(b).name for b in range(1, model.nbody)}
    joints = {
        model.joint(j).name: model.body(int(model.jnt_bodyid[j])).name for j in range(model.njnt)
    }

    found = (
        joints.get(n, n) for n in names_in(world.asked.success) if n in bodies | sites | {*joints}
    )
    return [*dict.fromkeys(found)] or [p.body for p in world.scene.reset]


def place_of(world: SceneWorld, thing: str) -> tuple[NDArray[np.float64], float]:
    """Return where a body or site is [m] and its direction about the vertical [rad]."""
    if mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_BODY, thing) >= 0:
        return world.state.place_m(thing), world.state.yaw_rad(thing)
    turn = world.data.site(thing).xmat
    return world.state.place_m(thing), float(np.arctan2(turn[3], turn[0]))


def show(world: SceneWorld, uid: str, seed: int, goals: NDArray[np.float64]) -> Demonstration:
    """Replay what was sent in a take, on the scene of its seed, and note where things were.

    Args:
        world: of the file that it was recorded in.
        goals: of the joints [rad, m], shape (n, n_joints).
    """
    world.reset(seed=seed)
    things = things_of(world)
    ik, columns = world.arm_ik(f"Scene {world.scene.path}, replay")
    tools = [ik.tcp(goal[columns]) for goal in goals]
    places, held, won = list[list[tuple[NDArray[np.float64], float]]](), 0, False
    tips = list[NDArray[np.float64]]()
    rest = np.repeat(goals[-1:], round(1.0 / world.period_s), axis=0)
    for goal in np.concatenate([goals, rest]):
        places.append([place_of(world, thing) for thing in things])
        tips.append(world.data.site(world.scene.tool.site).xpos.copy())
        world.step(world.action_of(goal))
        held = held + 1 if world.success() else 0
        won = won or held * world.period_s >= SUCCESS_HELD_S
    at_m = np.array([[at for at, _ in row] for row in places]).reshape(len(places), -1, 3)
    away_m = np.linalg.norm(at_m - np.array(tips)[:, None], axis=2)
    gone = (np.linalg.norm(at_m - at_m[0], axis=2) > TOUCHED_M)[: len(goals)]
    touched = [int(gone[:, k].argmax()) for k in np.flatnonzero(gone.any(axis=0))]
    parts, edges = list[Part](), {0, len(goals), *_moments(world, goals), *touched}
    for start, end in pairwise(sorted(edges)):
        moved_m = np.linalg.norm(at_m[end] - at_m[start], axis=1)
        carried = (moved_m > CARRIED_M) & (np.abs(away_m[end] - away_m[start]) < CARRIED_M)
        near_m = away_m[start : end + 1].min(axis=0) if end == len(goals) else away_m[end]
        near_m = np.where(carried, np.inf, near_m)
        if near_m.size and near_m.min() < AT_IT_M:
            thing = int(near_m.argmin())
            parts.append(Part(start, end, thing, *places[start][thing]))
        else:
            parts.append(Part(start, end))
    tool_m, turns = (np.array(part) for part in zip(*tools, strict=True))
    return Demonstration(uid, goals, tool_m, turns, parts, won)


def _moments(world: SceneWorld, goals: NDArray[np.float64]) -> list[int]:
    """Return the frames in which the gripper's goals go past the middle of their way."""
    gripper = goals[:, world.servos.gripper]
    if world.servos.gripper < 0 or np.ptp(gripper) < 0.1 * np.ptp(
        world.limits[world.servos.gripper]
    ):
        return []
    share, found = (gripper - gripper.min()) / np.ptp(gripper), list[int]()
    high = share[0] > 0.5
    for frame, now in enumerate(share):
        if now < 0.35 if high else now > 0.65:
            high = not high
            found.append(frame)
    return found


def _turned_rad(world: SceneWorld, thing: str, turn_rad: float) -> float:
    """Return the least turn [rad] after which a thing looks as after `turn_rad`."""
    body = mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_BODY, thing)
    whole = 2.0 * np.pi
    if body >= 0 and int(world.model.body_geomnum[body]) == 1:
        geom = int(world.model.body_geomadr[body])
        kind, (x_m, y_m, _) = int(world.model.geom_type[geom]), world.model.geom_size[geom]
        if kind == int(mujoco.mjtGeom.mjGEOM_BOX):
            whole = np.pi / 2.0 if abs(x_m - y_m) < 0.05 * x_m else np.pi
        elif kind != int(mujoco.mjtGeom.mjGEOM_MESH):
            return 0.0
    return float((turn_rad + whole / 2.0) % whole - whole / 2.0)


@dataclass(frozen=True)
class Carried:
    """Where what was near a thing goes, now that the thing is elsewhere: turned, then shifted.

    Attributes:
        from_m, to_m: of the thing.
        turn_rad: about the vertical.
    """

    from_m: NDArray[np.float64]
    to_m: NDArray[np.float64]
    turn_rad: float = 0.0

    def __call__(self, at_m: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where a place goes [m], shape (3,)."""
        return np.asarray(self.to_m + _about_z(self.turn_rad) @ (at_m - self.from_m))

    @property
    def cost_m(self) -> float:
        """How far things have moved; a turn by 1 rad counts as 5 cm."""
        return float(np.linalg.norm(self.to_m - self.from_m)) + 0.05 * abs(self.turn_rad)


def _about_z(turn_rad: float) -> NDArray[np.float64]:
    cos, sin = np.cos(turn_rad), np.sin(turn_rad)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


NOWHERE: Final = Carried(np.zeros(3), np.zeros(3))


class Replayed:
    """Drives a scene as a recorded demonstration did; a new one for every episode.

    After MimicGen's idea (Mandlekar et al. 2023): each part of the demonstration keeps its place
    relative to the thing at which it ends. On the way over the table from one thing to the next the
    tool goes by the one less and by the other more; it goes no faster than it was shown, or than
    waypoints do. The demonstration whose things have moved least is taken. Where nothing has moved,
    it is replayed as it was sent.
    """

    def __init__(self, world: SceneWorld, shown: Sequence[Demonstration]) -> None:
        """Choose one for the present episode."""
        self._world, self._things = world, things_of(world)
        self._ik, self._columns = world.arm_ik(f"Scene {world.scene.path}, replay")
        self.shown = min(shown, key=self._cost_m)
        self._part, self._before = 0, NOWHERE
        self._left = deque[NDArray[np.float64]]()
        self._goal = self.shown.goals[0].copy()
        self._at_m, self._turn_rad = self.shown.tool_m[0], 0.0
        self.done = False
        """All of it was replayed."""

    def __call__(self, _observation: Any) -> NDArray[np.float32]:
        """Return the next action; the last one is held."""
        while not self._left and self._part < len(self.shown.parts):
            part = self.shown.parts[self._part]
            after = self._carried(part) or (self._before if self._is_last else NOWHERE)
            self._left.extend(self._goals(part, self._before, after))
            self._part, self._before = self._part + 1, after
        if self._left:
            self._goal = self._left.popleft()
        self.done = not self._left and self._part == len(self.shown.parts)
        return self._world.action_of(self._goal)

    @property
    def _is_last(self) -> bool:
        return self._part == len(self.shown.parts) - 1

    def _cost_m(self, shown: Demonstration) -> float:
        return sum(found.cost_m for part in shown.parts if (found := self._carried(part)))

    def _carried(self, part: Part) -> Carried | None:
        """Return where a part goes by where its thing is now; None where it has none."""
        if part.thing is None:
            return None
        thing = self._things[part.thing]
        at_m, yaw_rad = place_of(self._world, thing)
        return Carried(part.at_m, at_m, _turned_rad(self._world, thing, yaw_rad - part.yaw_rad))

    def _goals(self, part: Part, before: Carried, after: Carried) -> Iterator[NDArray[np.float64]]:
        """Yield the joints' goals [rad, m] of a part, one for each frame."""
        shown, goal, period_s = self.shown, self._goal.copy(), self._world.period_s
        is_same = before.cost_m < 1e-9 and after.cost_m < 1e-9
        over_m = np.diff(shown.tool_m[part.start : part.end, :2], axis=0, prepend=np.nan)
        way_m = np.cumsum(np.nan_to_num(np.linalg.norm(over_m, axis=1)))
        for frame, gone_m in enumerate(way_m, part.start):
            share = (gone_m / max(way_m[-1], 1e-9) - ENTERED) / (LEFT - ENTERED)
            share = min(max(share, 0.0), 1.0)
            share *= share * (3.0 - 2.0 * share)
            there = shown.tool_m[frame]
            at_m, from_m = (1.0 - share) * before(there) + share * after(there), self._at_m
            turn_rad = (1.0 - share) * before.turn_rad + share * after.turn_rad
            most_m = float(np.linalg.norm(there - shown.tool_m[max(frame - 1, 0)]))
            most_m, most_rad = max(most_m, SPEED_M_S * period_s), FAST_RAD_S * period_s
            far = float(np.linalg.norm(at_m - from_m)) / most_m
            count = math.ceil(max(far, abs(turn_rad - self._turn_rad) / most_rad, 1.0) - 1e-6)
            for part_way in () if is_same else np.arange(1, count + 1) / count:
                turn = _about_z(self._turn_rad + (turn_rad - self._turn_rad) * part_way)
                place = from_m + (at_m - from_m) * part_way
                arm = self._ik.reach(place, turn @ shown.turns[frame], goal[self._columns], 6)
                goal = (shown.goals[frame] if part_way == 1.0 else goal).copy()
                goal[self._columns] = arm
                yield goal
            if is_same:
                goal = shown.goals[frame]
                yield goal
            self._at_m, self._turn_rad = at_m, turn_rad
        self._goal = goal
