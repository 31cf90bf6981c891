"""When a scene's task is done: a few words about its bodies, in YAML.

success: {all: [{near: {object: cube, to: disc, within_m: 0.02}}, {released: cube}]}
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Final

import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, named_function, number
from gaploop.sim.kinematics import fold_square

type Vector = np.ndarray[Any, np.dtype[np.float64]]
type Holds = Callable[["SceneState"], bool]

FREE: Final = int(mujoco.mjtJoint.mjJNT_FREE)
FULL_SQUARE_RAD: Final = np.pi / 4.0
"""The largest yaw error that a square can have."""
HELD_N: Final = 0.2
"""A jaw that presses less is only touching [N]."""


@dataclass(frozen=True)
class Criterion:
    """How strictly a station takes `near`, and whatever a scene calls success.

    Attributes:
        tolerance_factor: on the largest distance of an object from its goal.
        goal_offset_m: where the goal lies, relative to the visible target, shape (2,).
        yaw_tolerance_rad: largest angle between the object's faces and the world's axes.
        deadline_s: latest time of the take at which it counts.
        clearance_m: smallest distance of the tool from the object.
    """

    tolerance_factor: float = 1.0
    goal_offset_m: tuple[float, float] = (0.0, 0.0)
    yaw_tolerance_rad: float = FULL_SQUARE_RAD
    deadline_s: float = math.inf
    clearance_m: float = 0.0


@dataclass(frozen=True)
class SceneState:
    """What predicates look at.

    Attributes:
        arm: bodies of the arm, by id.
        start_m: body to where it was when the episode began [m].
        since_s: when that was [s].
        hands: bodies of each hand's fingers, by id.
        tools: sites of the hands, by id.
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    arm: frozenset[int] = frozenset()
    start_m: Mapping[str, Vector] = field(default_factory=dict)
    criterion: Criterion = Criterion()
    hands: Sequence[frozenset[int]] = ()
    tools: Sequence[int] = ()
    since_s: float = 0.0

    def place_m(self, name: str) -> Vector:
        """Return where a body, or a site, is [m], shape (3,)."""
        body = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)
        if body < 0:
            return np.array(self.data.site(name).xpos)
        address, _ = self._free(body)
        if address >= 0:  # MuJoCo's own places are a step old
            return np.array(self.data.qpos[address : address + 3])
        return np.array(self.data.xpos[body])

    def yaw_rad(self, name: str) -> float:
        """Return the direction of a body's x axis [rad], or of another that lies flatter."""
        body, rotation = self.model.body(name).id, np.zeros(9)
        address, _ = self._free(body)
        quat = self.data.xquat[body] if address < 0 else self.data.qpos[address + 3 : address + 7]
        mujoco.mju_quat2Mat(rotation, quat)
        matrix = rotation.reshape(3, 3)
        flattest = int(np.argmin(np.abs(matrix[2])))
        # The x axis counts while it lies flat: it tells the longer side of a box.
        axis = matrix[:2, 0 if abs(matrix[2, 0]) < 0.5 else flattest]
        return float(np.arctan2(axis[1], axis[0]))

    def speeds(self, name: str) -> tuple[float, float]:
        """Return how fast a body moves [m/s] and turns [rad/s]."""
        body = self.model.body(name).id
        _, dof = self._free(body)
        velocity = self.data.qvel[dof : dof + 6]
        if dof < 0:
            velocity = np.roll(self.data.cvel[body], 3)  # which has the turning first
        return float(np.linalg.norm(velocity[:3])), float(np.linalg.norm(velocity[3:]))

    def tool_m(self, name: str) -> Vector:
        """Return the tool centre that is nearest to a body [m], shape (3,); far without tools."""
        if not self.tools:
            return np.full(3, np.inf)
        tools = self.data.site_xpos[list(self.tools)]
        away_m = np.linalg.norm(tools - self.place_m(name), axis=1)
        return np.array(tools[int(np.argmin(away_m))])

    def touching(self, name: str, above_n: float = -1.0) -> set[int]:
        """Return the bodies that touch a body, those that press more than `above_n` [N]."""
        data, body, force = self.data, self.model.body(name).id, np.zeros(6)
        geoms = data.contact.geom[: data.ncon]
        pairs = np.where(geoms < 0, -1, self.model.geom_bodyid[geoms])  # -1: a soft thing
        found = set[int]()
        for row in np.flatnonzero((pairs == body).any(axis=1) & (pairs >= 0).all(axis=1)):
            if above_n >= 0.0:
                mujoco.mj_contactForce(self.model, data, int(row), force)
            if abs(force[0]) > above_n:
                found.add(int(pairs[row, 1] if pairs[row, 0] == body else pairs[row, 0]))
        return found

    def satisfies(self, success: Holds) -> bool:
        """Say whether it is a success, and in time."""
        return bool(self.data.time - self.since_s <= self.criterion.deadline_s) and success(self)

    def half_height_m(self, name: str) -> float:
        """Return half the height of a body's first geom [m], as the compiler found it."""
        return float(self.model.geom_aabb[self.model.body(name).geomadr[0], 5])

    def _free(self, body: int) -> tuple[int, int]:
        """Return the addresses of a loose body's place and speed, else (-1, -1)."""
        joint = int(self.model.body_jntadr[body])
        if joint < 0 or int(self.model.jnt_type[joint]) != FREE:
            return -1, -1
        return int(self.model.jnt_qposadr[joint]), int(self.model.jnt_dofadr[joint])


def near(object_: str, to: str, within_m: float = 0.02) -> Holds:
    """Two are this close, seen from above; a station may move the goal, or ask for more."""

    def holds(s: SceneState) -> bool:
        wanted, place_m = s.criterion, s.place_m(object_)
        goal_m = s.place_m(to)[:2] + wanted.goal_offset_m
        if float(np.linalg.norm(place_m[:2] - goal_m)) > within_m * wanted.tolerance_factor:
            return False
        if wanted.yaw_tolerance_rad < FULL_SQUARE_RAD:
            off_rad = abs(fold_square(s.yaw_rad(object_)))
            if off_rad > wanted.yaw_tolerance_rad + 1e-9:
                return False
        away_m = np.linalg.norm(place_m - s.tool_m(object_)) if wanted.clearance_m else 0.0
        return bool(away_m >= wanted.clearance_m)

    return holds


def on(object_: str, of: str, within_m: float = 0.0) -> Holds:
    """One lies on another, or on a thing that is fixed to it; or is so high, within that much."""

    def holds(s: SceneState) -> bool:
        higher_m = float(s.place_m(object_)[2] - s.place_m(of)[2])
        if within_m:
            flat_m = s.half_height_m(object_) + s.half_height_m(of)
            return abs(higher_m - flat_m) < within_m
        other = s.model.body(of).id
        below = {b for b in range(s.model.nbody) if s.model.body_weldid[b] == other}
        return higher_m > 0.0 and bool(s.touching(object_) & (below | {other}))

    return holds


def inside(object_: str, of: str) -> Holds:
    """The middle of one is inside a box site of that name."""

    def holds(s: SceneState) -> bool:
        site = s.data.site(of)
        local = site.xmat.reshape(3, 3).T @ (s.place_m(object_) - site.xpos)
        return bool((np.abs(local) <= s.model.site(of).size).all())

    return holds


def lifted(object_: str, by_m: float = 0.05) -> Holds:
    """It is this much higher than when the episode began."""
    return lambda s: bool(s.place_m(object_)[2] - s.start_m[object_][2] >= by_m)


def upright(object_: str, within_deg: float = 15.0) -> Holds:
    """Its z axis points up."""
    return lambda s: bool(s.data.body(object_).xmat[8] >= np.cos(np.radians(within_deg)))


def opened(joint: str, beyond: float) -> Holds:
    """A joint is beyond a value [rad or m]."""
    return lambda s: bool(s.data.joint(joint).qpos[0] >= beyond)


def still(object_: str, below_m_s: float = 0.01, below_rad_s: float = 0.5) -> Holds:
    """It moves and turns slower than this."""

    def holds(s: SceneState) -> bool:
        moves_m_s, turns_rad_s = s.speeds(object_)
        return moves_m_s < below_m_s and turns_rad_s < below_rad_s

    return holds


def released(object_: str) -> Holds:
    """The arm doesn't touch it."""
    return lambda s: not s.touching(object_) & s.arm


def held(object_: str, above_n: float = HELD_N) -> Holds:
    """All fingers of a hand press on it."""

    def holds(s: SceneState) -> bool:
        pressing = s.touching(object_, above_n)
        return any(hand <= pressing for hand in s.hands)

    return holds


PREDICATES: Final[Mapping[str, Callable[..., Holds]]] = {
    "near": near, "on": on, "inside": inside, "lifted": lifted, "upright": upright,
    "open": opened, "still": still, "released": released, "held": held,
}  # fmt: skip
"""Name to what makes it. Its parameters are the fields, `object` the first of most."""


def parse(said: Any, model: mujoco.MjModel, where: str) -> Holds:
    """Return what a predicate of YAML says.

    Raises:
        UnusableInputError: no such predicate, body, site, joint or function.
    """
    if isinstance(said, str):
        function = named_function(said, where, "module:function of the scene's state")
        return lambda s: bool(function(s))
    if not isinstance(said, Mapping) or len(said) != 1:
        raise UnusableInputError(
            f"{where}: {said!r} must be one predicate, such as {{lifted: cube}}."
        )
    ((name, value),) = said.items()
    name = "on" if name is True else name  # as YAML reads it
    if name in ("all", "any"):
        if not isinstance(value, list) or not value:
            raise UnusableInputError(f"{where}: {name} needs a list of predicates.")
        parts = [parse(part, model, f"{where}, {name}") for part in value]
        every = all if name == "all" else any
        return lambda s: every(part(s) for part in parts)
    if name == "not":
        inner = parse(value, model, f"{where}, not")
        return lambda s: not inner(s)
    if name not in PREDICATES:
        raise unknown_choice("predicate", name, (*PREDICATES, "all", "any", "not"), where)
    where = f"{where}, {name}"
    fields = {k.rstrip("_"): p for k, p in signature(PREDICATES[name]).parameters.items()}
    given = value if isinstance(value, Mapping) else {next(iter(fields)): value}
    check_keys(given, fields, where, [k for k, p in fields.items() if p.default is p.empty])
    arguments = dict[str, Any]()
    for key, entry in given.items():
        if fields[key].annotation is float:
            arguments[fields[key].name] = number(entry, f"{where}: {key}", -1e3, 1e3)
        else:
            kind, names = _names("site" if key == "of" and name == "inside" else key, model)
            if entry not in names:
                raise unknown_choice(kind, entry, filter(None, names), where)
            arguments[fields[key].name] = entry
    return PREDICATES[name](**arguments)


def uses(said: Any, name: str) -> bool:
    """Say whether what success says has a predicate somewhere."""
    if isinstance(said, Mapping):
        return name in said or any(uses(part, name) for part in said.values())
    return isinstance(said, list) and any(uses(part, name) for part in said)


def _names(field: str, model: mujoco.MjModel) -> tuple[str, list[str]]:
    """Return what a field names, and the model's names for such."""
    bodies = [model.body(b).name for b in range(1, model.nbody)]
    sites = [model.site(s).name for s in range(model.nsite)]
    if field == "joint":
        return "joint", [model.joint(j).name for j in range(model.njnt)]
    return {"site": ("site", sites), "to": ("body or site", bodies + sites)}.get(
        field, ("body", bodies)
    )


def names_in(said: Any, role: str = "") -> Iterator[str]:
    """Yield what a criterion names, or names in this role alone, such as `object`."""
    if isinstance(said, Mapping):
        for key, part in said.items():
            yield from names_in(part, "" if key == role else role)
    elif isinstance(said, list):
        for part in said:
            yield from names_in(part, role)
    elif isinstance(said, str) and not role:
        yield said
