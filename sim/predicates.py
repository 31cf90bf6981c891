"""When a scene's task is done: a few words about its bodies, in YAML.

success: {all: [{near: {object: cube, to: disc, within_m: 0.02}}, {released: cube}]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.named_function import named_function
from gaploop.core.schema import check_keys, number

type Vector = np.ndarray[Any, np.dtype[np.float64]]
type Holds = Callable[["SceneState"], bool]


@dataclass(frozen=True)
class SceneState:
    """What predicates look at.

    Attributes:
        arm: bodies of the arm, by id.
        start_m: body to where it was when the episode began [m].
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    arm: frozenset[int]
    start_m: Mapping[str, Vector]

    def place_m(self, name: str) -> Vector:
        """Return where a body, or a site, is [m], shape (3,)."""
        body = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)
        if body >= 0:
            return np.asarray(self.data.xpos[body])
        return np.asarray(self.data.site(name).xpos)

    def touches(self, name: str, others: frozenset[int]) -> bool:
        """Say whether a body touches one of others."""
        body = self.model.body(name).id
        pairs = self.model.geom_bodyid[self.data.contact.geom[: self.data.ncon]]
        return any(
            (a == body and int(b) in others) or (b == body and int(a) in others) for a, b in pairs
        )


def near(object_: str, to: str, within_m: float = 0.02) -> Holds:
    """Two are this close, seen from above."""
    return lambda s: float(np.linalg.norm((s.place_m(object_) - s.place_m(to))[:2])) <= within_m


def on(object_: str, of: str) -> Holds:
    """One lies on another, or on a thing that is fixed to it."""

    def holds(s: SceneState) -> bool:
        other = s.model.body(of).id
        below = frozenset(b for b in range(s.model.nbody) if s.model.body_weldid[b] == other)
        higher = s.place_m(object_)[2] > s.place_m(of)[2]
        return bool(higher) and s.touches(object_, below | {other})

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


def still(object_: str, below_m_s: float = 0.01) -> Holds:
    """It moves slower than this."""
    return lambda s: bool(np.linalg.norm(s.data.body(object_).cvel[3:]) < below_m_s)


def released(object_: str) -> Holds:
    """The arm doesn't touch it."""
    return lambda s: not s.touches(object_, s.arm)


PREDICATES: Final[Mapping[str, Callable[..., Holds]]] = {
    "near": near, "on": on, "inside": inside, "lifted": lifted, "upright": upright,
    "open": opened, "still": still, "released": released,
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
        if fields[key].annotation == "float":
            arguments[fields[key].name] = number(entry, f"{where}: {key}", -1e3, 1e3)
        else:
            kind, names = _names("site" if key == "of" and name == "inside" else key, model)
            if entry not in names:
                raise unknown_choice(kind, entry, filter(None, names), where)
            arguments[fields[key].name] = entry
    return PREDICATES[name](**arguments)


def _names(field: str, model: mujoco.MjModel) -> tuple[str, list[str]]:
    """Return what a field names, and the model's names for such."""
    bodies = [model.body(b).name for b in range(1, model.nbody)]
    sites = [model.site(s).name for s in range(model.nsite)]
    if field == "joint":
        return "joint", [model.joint(j).name for j in range(model.njnt)]
    return {"site": ("site", sites), "to": ("body or site", bodies + sites)}.get(
        field, ("body", bodies)
    )
