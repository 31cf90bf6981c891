"""A person's hand as the robot's partner in a scene file: it gives a thing, or takes one.

The hand is a mocap body of the scene, its origin on the open palm, where the thing lies. It comes
to a drawn place, from a drawn direction, at a drawn time; it may draw back once, and may turn the
thing while it holds it out. It doesn't follow the robot, and a robot that pushes it moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, mapping, number
from gaploop.sim.predicates import SceneState, held, released

type Pose = NDArray[np.float64]
"""x, y, z [m] and yaw [rad], shape (4,)."""

KEYS: Final = ("hand", "gives", "takes", "comes_from_m", "x_m", "y_m", "z_m", "yaw_deg",
               "after_s", "speed_m_s", "hesitates", "turns")  # fmt: skip
BACK_M: Final = 0.08
"""By how much a hand that hesitates draws back."""
TURN_DEG: Final = (30.0, 80.0)
TURN_S: Final = 0.5
TAKEN_S: Final = 0.2
"""How long the other one must have the thing before a hand lets go, or closes [s]."""
CLEAR_M: Final = 0.02
"""How far a hand that gave drops before it leaves."""


@dataclass(frozen=True)
class Partner:
    """What a hand does in every episode; spans are lowest and highest, drawn by its seed.

    Attributes:
        hand: the mocap body.
        thing: the loose body that changes hands.
        gives: from the hand to the robot; otherwise the other way.
        hesitates: share of episodes in which it draws back once; `turns` likewise.
    """

    hand: str
    thing: str
    gives: bool
    comes_from_m: Pose
    spans: Mapping[str, tuple[float, float]]
    hesitates: float
    turns: float


def read_partner(said: Any, where: str) -> Partner:
    """Read `partner` of a scene file; UnusableInputError where it isn't one."""
    said = mapping(said, where, "hand, gives or takes, x_m, y_m, z_m")
    check_keys(said, KEYS, where, ("hand", "x_m", "y_m", "z_m", "comes_from_m"))
    if ("gives" in said) == ("takes" in said):
        raise UnusableInputError(f"{where}: give one of gives and takes, the name of a body.")
    defaults = {"yaw_deg": [-60, 60], "after_s": [0.2, 1.5], "speed_m_s": [0.2, 0.4]}
    spans = dict[str, tuple[float, float]]()
    for key in ("x_m", "y_m", "z_m", *defaults):
        ends = said.get(key, defaults.get(key))
        ends = ends if isinstance(ends, list) else [ends, ends]
        if len(ends) != 2:
            raise UnusableInputError(f"{where}, {key}: give a number or [low, high].")
        low = 0.01 if key == "speed_m_s" else -360.0
        spans[key] = (
            number(ends[0], f"{where}, {key}", low, 360.0),
            number(ends[1], f"{where}, {key}", low, 360.0),
        )
    origin = said["comes_from_m"]
    if not isinstance(origin, list) or len(origin) != 3:
        raise UnusableInputError(f"{where}, comes_from_m: give [x, y, z] in m.")
    shares = [number(said.get(k, 0.5), f"{where}, {k}", 0.0, 1.0) for k in ("hesitates", "turns")]
    return Partner(
        str(said["hand"]),
        str(said.get("gives") or said.get("takes")),
        "gives" in said,
        np.array([number(v, f"{where}, comes_from_m", -10.0, 10.0) for v in origin]),
        spans,
        *shares,
    )


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
        drawn = {key: float(rng.uniform(*span)) for key, span in partner.spans.items()}
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
        self._carries, self._since_s, self._over = self._partner.gives, np.inf, False
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
