"""A person's hand in a scene: in the cell it nudges or takes, in a scene file it hands over.

Both are mocap bodies. In the cell the hand follows a path; it pushes the object by contact, blocks
the arm, and hides what is below it from the camera. A taken object follows the hand.

As the robot's partner in a scene file it gives a thing, or takes one; the body's origin is on the
open palm, where the thing lies. It comes to a drawn place, from a drawn direction, at a drawn time;
it may draw back once, and may turn the thing while it holds it out. It doesn't follow the robot,
and a robot that pushes it moves nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import number, ranged, read_as, read_with
from gaploop.sim.conditions import SKIN_RGBA, SLEEVE_RGBA
from gaploop.sim.predicates import SceneState, held, released

HAND = "gaploop_hand"
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


def add_hand(spec: mujoco.MjSpec) -> None:
    """Add a hand with a sleeve, out of sight, to the scene."""
    body = spec.worldbody.add_body(name=HAND, pos=PARKED_M, mocap=True)
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
        self._visits = visits
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
        return np.asarray(data.mocap_pos[self._mocap].copy())

    def _set(self, data: mujoco.MjData, at: NDArray[np.float64]) -> None:
        data.mocap_pos[self._mocap] = at
        yaw = self._side_rad + np.pi  # fingers point from the person into the cell
        data.mocap_quat[self._mocap] = [np.cos(yaw / 2.0), 0.0, 0.0, np.sin(yaw / 2.0)]

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


type Pose = NDArray[np.float64]
"""x, y, z [m] and yaw [rad], shape (4,)."""

SPANS: Final = ("x_m", "y_m", "z_m", "yaw_deg", "after_s", "speed_m_s")
"""What each episode draws, in this order."""
FAR_M: Final = 100.0
BACK_M: Final = 0.08
"""By how much a hand that hesitates draws back."""
TURN_DEG: Final = (30.0, 80.0)
TURN_S: Final = 0.5
TAKEN_S: Final = 0.2
"""How long the other one must have the thing before a hand lets go, or closes [s]."""
CLEAR_M: Final = 0.02
"""How far a hand that gave drops before it leaves."""


def triple(value: Any, where: str) -> NDArray[np.float64]:
    """Return a place [m], shape (3,), as a scene file gives it."""
    if not isinstance(value, list) or len(value) != 3:
        raise UnusableInputError(f"{where}: give [x, y, z] in m, not {value!r}.")
    return np.array([number(v, where, -FAR_M, FAR_M) for v in value])


def span_within(low: float, high: float) -> Callable[[Any, str], tuple[float, float]]:
    """Return a function that reads lowest and highest, or one number for both."""

    def read(value: Any, where: str) -> tuple[float, float]:
        ends = value if isinstance(value, list) else [value, value]
        if len(ends) != 2:
            raise UnusableInputError(f"{where}: give a number or [low, high], not {value!r}.")
        return number(ends[0], where, low, high), number(ends[1], where, low, high)

    return read


@dataclass(frozen=True)
class Partner:
    """What a hand does in every episode; spans are lowest and highest, drawn by its seed.

    Attributes:
        hand: the mocap body.
        gives: the loose body that it gives to the robot, or "" where it `takes` one.
        hesitates: share of episodes in which it draws back once; `turns` likewise.
    """

    hand: str
    comes_from_m: Pose = field(metadata={"read": triple})
    x_m: tuple[float, float] = read_with(span_within(-FAR_M, FAR_M))
    y_m: tuple[float, float] = read_with(span_within(-FAR_M, FAR_M))
    z_m: tuple[float, float] = read_with(span_within(-FAR_M, FAR_M))
    gives: str = ""
    takes: str = ""
    yaw_deg: tuple[float, float] = read_with(span_within(-360.0, 360.0), (-60.0, 60.0))
    after_s: tuple[float, float] = read_with(span_within(-360.0, 360.0), (0.2, 1.5))
    speed_m_s: tuple[float, float] = read_with(span_within(0.01, 360.0), (0.2, 0.4))
    hesitates: float = ranged(0.5, 0.0, 1.0)
    turns: float = ranged(0.5, 0.0, 1.0)

    @property
    def thing(self) -> str:
        """The loose body that changes hands."""
        return self.gives or self.takes


def read_partner(said: Any, where: str) -> Partner:
    """Read `partner` of a scene file; UnusableInputError where it isn't one."""
    partner = read_as(Partner, said, where)
    if bool(partner.gives) == bool(partner.takes):
        raise UnusableInputError(f"{where}: give one of gives and takes, the name of a body.")
    return partner


class PartnerMotion:
    """Moves a hand through an episode, and the thing while the hand holds it."""

    def __init__(self, partner: Partner, model: mujoco.MjModel, where: str) -> None:
        """Find hand and thing in the model; UnusableInputError where they aren't there."""
        bodies = [model.body(b) for b in range(1, model.nbody)]
        mocap = {b.name: int(b.mocapid[0]) for b in bodies if b.mocapid[0] >= 0}
        loose = {
            b.name: b for b in bodies
            if b.jntnum[0] == 1 and model.jnt_type[b.jntadr[0]] == mujoco.mjtJoint.mjJNT_FREE
        }  # fmt: skip
        for name, known, what in ((partner.hand, mocap, "mocap body"), (partner.thing, loose,
                                                                        "loose body")):  # fmt: skip
            if name not in known:
                raise unknown_choice(what, name, known, f"{where}, partner")
        self._partner, self._mocap = partner, mocap[partner.hand]
        body = loose[partner.thing]
        self._qpos = int(model.jnt_qposadr[body.jntadr[0]])
        self._dof = int(model.jnt_dofadr[body.jntadr[0]])
        self._high_m = float(model.geom_aabb[body.geomadr[0], 5])
        self._given, self._let_go = held(partner.thing), released(partner.thing)

    def plan(self, rng: np.random.Generator) -> str:
        """Draw what the hand does in an episode; return it in words."""
        partner = self._partner
        drawn = {key: float(rng.uniform(*getattr(partner, key))) for key in SPANS}
        self._speed_m_s = drawn["speed_m_s"]
        at = np.array([drawn["x_m"], drawn["y_m"], drawn["z_m"], np.radians(drawn["yaw_deg"])])
        self._home = np.append(partner.comes_from_m, at[3])
        self._path = [(0.0, self._home), (max(0.0, drawn["after_s"]), self._home)]
        self._go(at)
        words = ["gives" if partner.gives else "takes"]
        if rng.random() < partner.hesitates:
            words.append("hesitates")
            away = self._home[:3] - at[:3]
            back = np.append(at[:3] + BACK_M * away / max(np.linalg.norm(away), BACK_M), at[3])
            self._wait(float(rng.uniform(0.1, 0.6)))
            self._go(back)
            self._wait(float(rng.uniform(0.3, 0.8)))
            self._go(at)
        if rng.random() < partner.turns:
            words.append("turns")
            turn_rad = np.radians(rng.uniform(*TURN_DEG)) * rng.choice([-1.0, 1.0])
            self._wait(float(rng.uniform(0.1, 0.8)))
            self._path.append((self._path[-1][0] + TURN_S, np.append(at[:3], at[3] + turn_rad)))
        return ", ".join(words)

    def reset(self, rng: np.random.Generator, data: mujoco.MjData) -> None:
        """Draw what the hand does, and put it where it comes from."""
        self.plan(rng)
        self._carries, self._since_s, self._over = bool(self._partner.gives), np.inf, False
        self._on_palm = np.array([0.0, 0.0, self._high_m, 0.0])
        self.step(data)

    def step(self, data: mujoco.MjData) -> None:
        """Put the hand where it is now; to be called before every physics step."""
        times, poses = zip(*self._path, strict=True)
        now = np.array([np.interp(data.time, times, axis) for axis in np.stack(poses, axis=1)])
        data.mocap_pos[self._mocap], data.mocap_quat[self._mocap] = now[:3], _quat(now[3])
        self._now = now
        if self._carries:
            thing = now + self._on_palm
            data.qpos[self._qpos : self._qpos + 7] = [*thing[:3], *_quat(thing[3])]
            data.qvel[self._dof : self._dof + 6] = 0.0

    def notice(self, state: SceneState) -> None:
        """See once a frame whether the thing has changed hands, and leave if so."""
        partner, t_s = self._partner, state.data.time
        hand = state.model.body(partner.hand).id
        if partner.gives:
            if self._carries and state.touching(partner.thing) & state.arm:
                self._carries, self._path = False, [(t_s, self._now)]  # it lies there, and waits
            has = self._given(state)
        else:
            has = self._let_go(state) and hand in state.touching(partner.thing)
        self._since_s = min(self._since_s, t_s) if has else np.inf
        if self._over or t_s - self._since_s < TAKEN_S:
            return
        self._over, self._carries = True, not partner.gives
        if self._carries:
            place = state.data.qpos[self._qpos : self._qpos + 3]
            yaw = state.yaw_rad(partner.thing) - self._now[3]
            self._on_palm = np.append(place - self._now[:3], yaw)
        self._path = [(t_s, self._now)]
        if partner.gives:
            self._go(self._now - [0.0, 0.0, CLEAR_M, 0.0])
        self._wait(0.3)
        self._go(np.append(self._home[:3], self._now[3]))

    def _go(self, to: Pose) -> None:
        before_s, before = self._path[-1]
        far_m = float(np.linalg.norm(to[:3] - before[:3]))
        self._path.append((before_s + max(far_m / self._speed_m_s, 1e-3), to))

    def _wait(self, duration_s: float) -> None:
        self._path.append((self._path[-1][0] + duration_s, self._path[-1][1]))


def _quat(yaw_rad: float) -> list[float]:
    return [float(np.cos(yaw_rad / 2.0)), 0.0, 0.0, float(np.sin(yaw_rad / 2.0))]
