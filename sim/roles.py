"""What in a MuJoCo model is the arm, its gripper, the object, the table and the camera.

Found where there is no doubt; a few lines of YAML say the rest. Names are the model's own.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice
from gaploop.core.schema import load_yaml
from gaploop.sim.gaps.mechanism import SpecEdit, Vector
from gaploop.sim.views import Mounted

KINDS: Final = ("arm", "gripper", "object", "table", "cameras")
HINGE: Final = int(mujoco.mjtJoint.mjJNT_HINGE)
SCALAR: Final = (HINGE, int(mujoco.mjtJoint.mjJNT_SLIDE))
MUCH_LARGER: Final = 2
"""A body with several moving parts is the hand, unless one part has this many times the joints."""
LEAST_ARM: Final = 4
"""Two parts with as many joints as each other, at least so many, are two arms."""
MOST_NAMED: Final = 12
GRIPPER_WORDS: Final = ("grip", "jaw", "finger", "claw")


@dataclass(frozen=True)
class Roles:
    """Ids in one model.

    Attributes:
        arm: joints from the base to the hand; of two arms that are alike, those of both.
        gripper: joints that move the fingers.
        hands: of each hand, the geoms that hold the object.
        object: the body that is carried, or -1.
        table: what the object lies on: a body, or 0 where it is a part of the world.
        table_geoms: its geoms.
        cameras: that a policy sees by.
        measured: those of them that a calibration file describes.
        doubts: role to what is asked, for those that weren't found.
    """

    arm: tuple[int, ...] = ()
    gripper: tuple[int, ...] = ()
    hands: tuple[tuple[int, ...], ...] = ()
    object: int = -1
    table: int = -1
    table_geoms: tuple[int, ...] = ()
    cameras: tuple[int, ...] = ()
    measured: tuple[Mounted, ...] = ()
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingers(self) -> tuple[int, ...]:
        """Geoms that hold the object, of all hands."""
        return tuple(g for hand in self.hands for g in hand)

    def words(self, model: mujoco.MjModel) -> dict[str, str]:
        """Return role to the model's name for it, or to what isn't known."""
        table = ", ".join(
            model.geom(g).name or f"geom {g} of {_name(model, self.table)}"
            for g in self.table_geoms[:1]
        )
        found = {
            "arm": ", ".join(model.joint(j).name for j in self.arm),
            "gripper": ", ".join(model.joint(j).name for j in self.gripper),
            "object": _name(model, self.object) if self.object >= 0 else "",
            "table": (_name(model, self.table) if self.table > 0 else table),
            "cameras": ", ".join(
                model.camera(c).name + " as measured" * any(m.camera == c for m in self.measured)
                for c in self.cameras
            ),
        }
        return {role: self.doubts.get(role) or found[role] or "there is none" for role in KINDS}


def find_roles(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    cameras: Sequence[int] | None = None,
    file: Path | None = None,
    jaw: str = "",
    judged: Collection[str] = (),
) -> Roles:
    """Find roles in a scene that was reset; `file` says those that are in doubt.

    Args:
        data: kinematics are known; it isn't changed.
        cameras: those that the environment draws by, where it says so; () for none of the model's.
        file: roles.yaml: arm, gripper (joints), object, table (bodies, or a geom), cameras (a list,
            or each with what `Mounted.of` reads).
        jaw: the joint that a scene file names as its gripper's.
        judged: what its success is about; of several loose things that is the object.

    Raises:
        UnusableInputError: the file names what the model hasn't.
    """
    said = _read(file, model) if file else {}
    doubts = dict[str, str]()
    limbs = _arms(model)
    if jaw:
        own = model.joint(jaw).id
        limbs = (
            [limb for limb in limbs if own in (*limb[0], *limb[1])] or limbs[-1:] or [([], [], -1)]
        )
        if own not in limbs[0][1]:
            parents = model.body_parentid[model.jnt_bodyid]
            jaws = np.flatnonzero((parents == parents[own]) & np.isin(model.jnt_type, SCALAR))
            chain = [j for j in limbs[0][0] if j not in jaws]
            limbs = [(chain, list(map(int, jaws)), int(parents[own]))]
    arm = tuple(said.get("arm", [j for limb in limbs for j in _without_base(model, limb[0])]))
    gripper = tuple(said.get("gripper", [j for limb in limbs for j in limb[1]]))
    if not arm:
        doubts["arm"] = "no driven chain of joints was found: name its joints"
    fingers = _hands(
        model, {int(model.jnt_bodyid[j]) for j in gripper}, [limb[2] for limb in limbs]
    )
    if not gripper and arm and "gripper" not in said:
        doubts["gripper"] = (
            "no moving fingers were found at the end of the arm: name their joints, or [] for none"
        )
    bases = {int(model.body_rootid[model.jnt_bodyid[j]]) for j in arm}
    thing, choices = _object(model, bases)
    if thing < 0 and len(about := [name for name in choices if name in judged]) == 1:
        thing = int(model.body(about[0]).id)
    if "object" in said:
        thing = said["object"]
    elif thing < 0:
        driven = {model.actuator_trnid[a, 0] for a in motors_of(model, range(model.njnt))}
        moving = {int(b) for j, b in enumerate(model.jnt_bodyid) if j not in driven}
        moving = {b for b in moving if int(model.body_rootid[b]) not in bases}
        such = ", such as " * bool(moving) + _some([_name(model, b) for b in sorted(moving)])
        doubts["object"] = (
            f"one of {_some(choices)}"
            if choices
            else f"nothing in it moves freely: name a body{such}"
        )
    table, table_geoms = -1, tuple[int, ...]()
    if "table" in said:
        table, table_geoms = said["table"]
    elif thing >= 0:
        table, table_geoms = _below(model, data, thing)
    if not table_geoms:
        doubts["table"] = "nothing still was found below the object: name a body or geom"
    known = range(model.ncam) if cameras is None else cameras
    if "cameras" in said:
        known = said["cameras"]
    elif not known or (cameras is None and len(known) > 1):
        names = ", ".join(model.camera(c).name for c in range(model.ncam))
        doubts["cameras"] = (
            f"{names and 'one or more of '}{names or 'the model has none'}"
            if cameras is None or not names
            else f"it draws by none of {names}: where it can be given one, do so in --env.kwargs"
        )
        known = ()
    measured = said.get("measured", ())
    return Roles(arm, gripper, fingers, thing, table, table_geoms, tuple(known), measured, doubts)


def _without_base(model: mujoco.MjModel, chain: list[int]) -> list[int]:
    """Return an arm's joints from the first position servo on, where most have one: no wheels."""
    driven = [j in servo_joints(model) for j in chain]
    return chain[driven.index(True) :] if sum(driven) >= LEAST_ARM else chain


def measures_cameras(file: Path | None) -> bool:
    """Say whether a roles file describes cameras by calibration files."""
    return file is not None and isinstance(load_yaml(file, "Roles").get("cameras"), Mapping)


def _read(file: Path, model: mujoco.MjModel) -> dict[str, Any]:
    """Return role to ids."""
    said, found = load_yaml(file, "Roles"), dict[str, Any]()
    names = {
        kind: {getattr(model, kind)(i).name: i for i in range(count)}
        for kind, count in (
            ("joint", model.njnt), ("body", model.nbody), ("geom", model.ngeom),
            ("camera", model.ncam),
        )
    }  # fmt: skip

    def ids(kind: str, given: Any, role: str) -> list[int]:
        for name in (wanted := given if isinstance(given, list) else [given]):
            if name not in names[kind]:
                raise unknown_choice(kind, str(name), names[kind], f"{file}, {role}")
        return [names[kind][name] for name in wanted]

    for role, given in said.items():
        if role in ("arm", "gripper"):
            found[role] = ids("joint", given, role)
        elif role == "cameras":
            found[role] = ids("camera", list(given) if isinstance(given, Mapping) else given, role)
            if isinstance(given, Mapping):
                found["measured"] = tuple(
                    Mounted.of(model, camera, str(name), f"{file}, cameras, {name}", file.parent)
                    for name, camera in given.items()
                    if camera
                )
        elif role == "object":
            found[role] = ids("body", given, role)[0]
        elif role == "table" and given in names["geom"] and given not in names["body"]:
            found[role] = (0, (names["geom"][given],))
        elif role == "table":
            body = ids("body", given, role)[0]
            geoms = tuple(g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body)
            found[role] = (body, geoms)
        else:
            raise unknown_choice("role", str(role), KINDS, str(file))
    return found


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + f" and {more} more" * (more > 0)


def _name(model: mujoco.MjModel, body: int) -> str:
    return str(model.body(body).name) or f"body {body}"


def _is_below(model: mujoco.MjModel, body: int, above: int) -> bool:
    while body > above:
        body = int(model.body_parentid[body])
    return body == above


type Limb = tuple[list[int], list[int], int]
"""Joints of an arm and of its gripper, and the hand's body."""


def _arms(model: mujoco.MjModel) -> list[Limb]:
    """Return the arm; or two, where two that are driven have as many joints as each other."""
    scalar = [j for j in range(model.njnt) if int(model.jnt_type[j]) in SCALAR]
    root = {j: int(model.body_rootid[model.jnt_bodyid[j]]) for j in scalar}
    joint_drive = int(mujoco.mjtTrn.mjTRN_JOINT)
    driven = {
        root[int(j)]
        for j, kind in zip(model.actuator_trnid[:, 0], model.actuator_trntype, strict=True)
        if int(kind) == joint_drive and int(j) in root
    }
    welded = weld(model)
    if welded >= 0:
        driven.add(int(model.body_rootid[welded]))
    count = {r: sum(x == r for x in root.values()) for r in sorted(driven)}
    largest = [r for r in count if count[r] == max(count.values())]
    if len(largest) != 2 or count[largest[0]] < LEAST_ARM:
        largest = largest[-1:]
    return [limb for r in largest for limb in _limbs(model, r, scalar)]


def _limbs(model: mujoco.MjModel, body: int, scalar: Sequence[int]) -> list[Limb]:
    """Return the arm that begins with a body, or two on what stands there."""
    chain = list[int]()

    def joints(within: int) -> list[int]:
        return [j for j in scalar if _is_below(model, int(model.jnt_bodyid[j]), within)]

    while True:
        chain += [j for j in scalar if int(model.jnt_bodyid[j]) == body]
        children = [b for b in range(body + 1, model.nbody) if int(model.body_parentid[b]) == body]
        parts = sorted((len(joints(b)), -b) for b in children if joints(b))
        counts = [count for count, _ in parts]
        if len(parts) == 2 and counts[0] == counts[1] >= max(LEAST_ARM, len(chain) + 1):
            arms = [limb for _, b in reversed(parts) for limb in _limbs(model, -b, scalar)]
            return [(chain + arms[0][0], *arms[0][1:]), *arms[1:]]
        if not parts or (len(parts) > 1 and parts[-1][0] < MUCH_LARGER * parts[-2][0]):
            break
        body = -parts[-1][1]
    gripper = [j for b in (-b for _, b in parts) for j in joints(b)]
    hand = body
    if not gripper and chain:  # a single jaw at the end
        words = f"{model.joint(chain[-1]).name} {_name(model, int(model.jnt_bodyid[chain[-1]]))}"
        if any(word in words.lower() for word in GRIPPER_WORDS):
            gripper, hand = [chain.pop()], int(model.body_parentid[body])
    servos = servo_joints(model)  # other slides are a base's, or of what is pushed along
    return [([j for j in chain if int(model.jnt_type[j]) == HINGE or j in servos], gripper, hand)]


def _hands(
    model: mujoco.MjModel, moved: Collection[int], hands: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the geoms of fingers, hand by hand; of a hand with one jaw, its own as well."""
    groups = [{b for b in moved if _is_below(model, b, hand)} for hand in hands]
    others = {*moved}.difference(*groups)
    solid = [g for g in range(model.ngeom) if model.geom_contype[g] | model.geom_conaffinity[g]]
    found = list[tuple[int, ...]]()
    for hand, bodies in zip((*hands, -1), (*groups, others), strict=True):
        of = {g: int(model.geom_bodyid[g]) for g in solid}
        fingers = [g for g in solid if any(_is_below(model, of[g], body) for body in bodies)]
        if fingers and len(bodies) == 1 and hand >= 0:  # one jaw moves, the other is the hand's
            fingers += [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == hand]
        found += [tuple(fingers)] if fingers else []
    return tuple(found)


def weld(model: mujoco.MjModel) -> int:
    """Return the body that a mocap body pulls along, or -1."""
    for row in np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_WELD)):
        pair = int(model.eq_obj1id[row]), int(model.eq_obj2id[row])
        for mocap, other in (pair, pair[::-1]):
            if model.body_mocapid[mocap] >= 0:
                return other
    return -1


def _object(model: mujoco.MjModel, bases: Collection[int]) -> tuple[int, list[str]]:
    """Return the one body that moves freely, or -1 with the names of those that do."""
    free = [
        int(model.jnt_bodyid[j])
        for j in range(model.njnt)
        if int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_FREE)
    ]
    solid = {
        int(model.body_rootid[model.geom_bodyid[g]])
        for g in range(model.ngeom)
        if model.geom_contype[g] | model.geom_conaffinity[g]
    }
    free = [body for body in free if body not in bases and body in solid]
    return (free[0] if len(free) == 1 else -1), [_name(model, body) for body in free]


def _below(model: mujoco.MjModel, data: mujoco.MjData, thing: int) -> tuple[int, tuple[int, ...]]:
    """Return body and geoms of what stands still below a body, or (-1, ())."""
    hit = np.array([-1], dtype=np.int32)
    mujoco.mj_ray(
        model, data, data.xipos[thing], np.array([0.0, 0.0, -1.0]), None, 1, thing, hit
    )  # fmt: skip
    if hit[0] < 0:
        return -1, ()
    body = int(model.geom_bodyid[hit[0]])
    if body == 0:
        return 0, (int(hit[0]),)
    if int(model.body_weldid[body]) != 0:
        return -1, ()
    while int(model.body_parentid[body]) != 0:
        body = int(model.body_parentid[body])
    return body, tuple(
        g for g in range(model.ngeom) if int(model.body_rootid[model.geom_bodyid[g]]) == body
    )


MOST_HOLDERS: Final = 1000
"""In so many things inside an environment its model is looked for."""
STEPS: Final = 12
"""By which joint angles are found in an observation."""
MOVED_RAD: Final = 1e-3
ALIKE_RAD: Final = 1e-5
AFFINE: Final = int(mujoco.mjtBias.mjBIAS_AFFINE)
FIXED: Final = int(mujoco.mjtGain.mjGAIN_FIXED)
FOLLOWS: Final = (
    int(mujoco.mjtDyn.mjDYN_NONE), int(mujoco.mjtDyn.mjDYN_FILTER),
    int(mujoco.mjtDyn.mjDYN_FILTEREXACT),
)  # fmt: skip
"""An actuator of another kind isn't sent where: an `intvelocity` is sent how fast."""
ZERO_KEYS: Final = ("pan_rad", "lift_rad", "elbow_rad", "wrist_rad", "roll_rad")
UNLIMITED_M: Final = 0.2
"""To a radian, of a slide without limits: about what it moves the hand of the cell's arm."""
USUAL_HZ: Final = 30.0
OPAQUE: Final = 255
LEAST_PICTURE: Final = 16
"""Numbers in at least so many rows and columns are a picture, of depths for instance."""
USUAL_NAMES: Final = ("model", "data", "mj_model", "mj_data")

type Env = gym.Env[Any, Any]


@dataclass(frozen=True)
class Reading:
    """A number of an observation that is a joint's angle, or a slide's place.

    Attributes:
        path: keys to the array that it is in.
        joint: column of the arm's joints.
        per_rad: 1, or 180 / π where it is in degrees; of a slide as `Survey.per_rad`.
    """

    path: tuple[str, ...]
    index: int
    joint: int
    per_rad: float


@dataclass(frozen=True)
class Survey:
    """What was found; the joints are the arm's, then the gripper's.

    Attributes:
        data: as the environment was reset with seed 0.
        servos: actuator of each joint where all of the arm are driven by position servos, or ().
        sent: what each of those is sent: so many times where [rad], plus so much.
        readings: where the observation shows joint angles.
        zero_keys: as of `SensorPath`.
        qpos: address of each joint's angle.
        per_rad: what a radian of a gap is there: 1 of a hinge, of a slide as much of its range [m]
            as a radian is of half a turn.
        shows_pictures: whether it shows pictures, or renders any.
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    roles: Roles
    servos: tuple[int, ...]
    sent: tuple[tuple[float, float], ...]
    readings: tuple[Reading, ...]
    zero_keys: tuple[str | None, ...]
    qpos: NDArray[np.int64]
    per_rad: Vector
    shows_pictures: bool


def survey(env: Env, roles: Path | None = None) -> Survey | None:
    """Look at an environment, which is reset and moved for it; None where it has no model."""
    observation, _ = env.reset(seed=0)
    model, data = find_model(env)
    if model is None or data is None:
        return None
    shows = env.render_mode is not None or _shows_pictures(observation)
    mujoco.mj_forward(model, data)
    jaw, judged = getattr(env.unwrapped, "jaw", ""), getattr(env.unwrapped, "judged", ())
    found = find_roles(model, data, cameras_of(env, model), roles, jaw, judged)
    joints = (*found.arm, *found.gripper)
    by_joint = {int(model.actuator_trnid[a, 0]): a for a in motors_of(model, joints)}
    servos = position_servos(model)
    driven = all(by_joint.get(j) in servos for j in found.arm)
    qpos, count = np.array(model.jnt_qposadr[list(joints)], dtype=np.int64), len(found.arm)
    keys = (*ZERO_KEYS, *[""] * count)[:count] + (None,) * len(found.gripper)
    at_rest, still = copy.copy(model), copy.copy(data)
    driving = tuple(by_joint.get(j, -1) for j in joints) if driven and found.arm else ()
    per_rad = np.array([_per_rad(model, j) for j in joints])
    each = zip((servos.get(a, (1.0, 0.0)) for a in driving), per_rad, strict=False)
    sent = tuple((times * float(unit), plus) for (times, plus), unit in each)
    readings = tuple(_readings(env, data, qpos[:count], per_rad[:count]))
    return Survey(at_rest, still, found, driving, sent, readings, keys, qpos, per_rad, shows)


def _shows_pictures(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_shows_pictures, value.values()))
    return picture_of(value) is not None


def _per_rad(model: mujoco.MjModel, joint: int) -> float:
    if int(model.jnt_type[joint]) == HINGE:
        return 1.0
    range_m = float(np.ptp(model.jnt_range[joint])) * bool(model.jnt_limited[joint])
    return range_m / np.pi or UNLIMITED_M


def find_model(env: Env) -> tuple[mujoco.MjModel | None, mujoco.MjData | None]:
    """Return the model and the state that an environment holds, however deep inside.

    Attributes come first: what lies in a list or a dictionary may be a copy of them.
    """
    model: mujoco.MjModel | None = None
    data: mujoco.MjData | None = None
    for holders in ((), (Mapping, list, tuple)):
        model, data = None, None
        for holder in inside(env, holders):
            for value in _parts(holder):
                if isinstance(value, mujoco.MjModel) and model is None:
                    model = value
                elif isinstance(value, mujoco.MjData) and data is None:
                    data = value
            if model is not None and data is not None:
                return model, data
    return model, data


def inside(env: Env, holders: tuple[type, ...] = ()) -> Iterator[Any]:
    """Yield an environment and the objects that it holds, layer by layer.

    Args:
        holders: types besides objects with attributes that are looked into.
    """
    layer, seen = [env.unwrapped], set[int]()
    while layer and len(seen) < MOST_HOLDERS:
        below = list[Any]()
        for holder in layer:
            yield holder
            for value in _parts(holder):
                is_object = bool(_attributes(value)) and not callable(value)
                is_object &= not isinstance(value, ModuleType)
                is_holder = isinstance(value, holders) and len(cast("Any", value)) < MOST_HOLDERS
                if (is_object or is_holder) and id(value) not in seen:
                    seen.add(id(value))
                    below.append(value)
        layer = below


def diverged(data: mujoco.MjData) -> bool:
    """Say whether MuJoCo met NaN or huge numbers since the reset, and began anew by itself."""
    kinds = mujoco.mjtWarning
    bad = kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC
    return any(data.warning[kind].number for kind in bad)


def set_alike(there: Iterable[Any], here: Iterable[Any]) -> None:
    """Give objects inside an environment the numbers of those inside another one like it."""
    for to, of in zip(there, here, strict=False):
        theirs = _attributes(to) if type(to) is type(of) else {}
        for name, value in _attributes(of).items() if theirs else ():
            own = theirs.get(name)
            if isinstance(own, np.ndarray) and isinstance(value, np.ndarray):
                if own.shape == value.shape and own.flags.writeable:
                    np.copyto(own, value, casting="unsafe")
            elif isinstance(value, int | float) and isinstance(own, int | float):
                if name in getattr(to, "__dict__", {}):
                    vars(to)[name] = value  # past a property of that name
                else:
                    object.__setattr__(to, name, value)


def _attributes(holder: Any) -> dict[str, Any]:
    """Return what an object holds by name, in its slots and beside them."""
    found = dict[str, Any]()
    for kind in type(holder).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            called = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            if hasattr(holder, called):  # one that was never set isn't there
                found[called] = getattr(holder, called)
    return found | getattr(holder, "__dict__", {})


def _parts(holder: Any) -> Iterable[Any]:
    if isinstance(holder, Mapping):
        return holder.values()
    if isinstance(holder, list | tuple):
        return holder
    own = _attributes(holder)  # of two states the one to plan with is called otherwise
    return [own[name] for name in sorted(own, key=lambda name: name.strip("_") not in USUAL_NAMES)]


def period_of(env: Env) -> float:
    """Return the time that a step of an environment takes [s]."""
    inner = env.unwrapped
    period_s = getattr(inner, "dt", None) or getattr(inner, "control_dt", None)
    if isinstance(period_s, int | float) and period_s > 0 and find_model(env)[0] is not None:
        return float(period_s)
    return 1.0 / float(env.metadata.get("render_fps") or USUAL_HZ)


def cameras_of(env: Env, model: mujoco.MjModel) -> Sequence[int] | None:
    """Return the cameras that an environment says it draws by; None where it doesn't say.

    () is a free camera. Pictures of an observation that are called as cameras are theirs.
    """
    inner, names = env.unwrapped, [model.camera(c).name for c in range(model.ncam)]
    renderer = getattr(inner, "mujoco_renderer", None)  # gymnasium's, which falls back on "track"
    for holder in (renderer, inner):
        name = getattr(holder, "camera_name", None) or ("track" if holder is renderer else "")
        if isinstance(name, str) and name in names:
            return [names.index(name)]
        number = getattr(holder, "camera_id", None)
        if isinstance(number, int) and 0 <= number < model.ncam:
            return [number]
        if holder is not None and holder is renderer:
            return ()
    return [names.index(n) for n in _pictures_of(env.observation_space) if n in names] or None


def _pictures_of(space: gym.Space[Any], name: str = "") -> Iterator[str]:
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            yield from _pictures_of(part, str(key))
    elif isinstance(space, gym.spaces.Box) and picture_of(space.high) is not None:
        yield name


def picture_of(value: Any) -> NDArray[np.uint8] | None:
    """Return a picture as RGB, shape (height, width, 3), or None of what is none.

    It may be grey, with or without an axis for it, RGBA, or have its channels first. Four channels
    are RGBA where the last is opaque; else they may be four grey pictures in a row.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return None
    last = value[..., None] if value.ndim == 2 else value
    if last.shape[2] not in (1, 3, 4):
        last = last.transpose(1, 2, 0)
    if last.shape[2] == 1:
        return np.repeat(last, 3, axis=2)
    if last.shape[2] == 3 or (last.shape[2] == 4 and last.size and (last[..., 3] == OPAQUE).all()):
        return last[..., :3]
    return None


def shown_as(value: NDArray[np.uint8], rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an RGB picture, shape (height, width, 3), in the form of `value`: see `picture_of`."""
    first = value.ndim == 3 and value.shape[2] not in (1, 3, 4)
    channels = 1 if value.ndim == 2 else value.shape[0 if first else 2]
    if channels == 1:
        rgb = rgb.mean(axis=2, keepdims=True).round().astype(np.uint8)
    elif channels == 4:
        rgb = np.dstack([rgb, np.full_like(rgb[..., :1], OPAQUE)])
    return rgb.transpose(2, 0, 1) if first else rgb.reshape(rgb.shape[: value.ndim])


def takes_targets(env: Env, roles: Path | None = None) -> bool:
    """Say whether an environment's actions are where its joints shall be, by trying two; moves it.

    So it is where an action that is sent twice leaves the goals of the arm's position servos, and
    another one changes them.
    """
    known, space = survey(env, roles), env.action_space
    if known is None or not known.servos or not isinstance(space, gym.spaces.Box):
        return False
    servos, goals = [s for s in known.servos if s >= 0], list[Vector]()
    env.reset(seed=0)
    data = find_model(env)[1]
    assert data is not None
    space.seed(0)
    one, other = space.sample(), space.sample()
    for action in (one, one, other):
        env.step(action)
        goals.append(data.ctrl[servos].copy())
    return bool(np.allclose(goals[0], goals[1]) and not np.allclose(goals[1], goals[2]))


def numbers_in(
    observation: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    """Yield the numbers of an observation, each part as a vector with the keys to it.

    Views, of arrays and tensors; rows stand one after the other.
    """
    if isinstance(observation, tuple | list):
        observation = dict(enumerate(observation))
    if isinstance(observation, Mapping):
        for key, value in observation.items():
            yield from numbers_in(value, (*path, str(key)))
    elif isinstance(observation, bool | int | float) or hasattr(observation, "__array__"):
        rows = np.asarray(observation)
        is_picture = rows.ndim == 2 and (rows.dtype == np.uint8 or min(rows.shape) >= LEAST_PICTURE)
        if rows.dtype.kind in "biuf" and rows.ndim <= 2 and not is_picture:
            yield path, rows.reshape(-1)


def writable(observation: Any) -> Any:
    """Return a copy of an observation in which single numbers are arrays, too: shape ()."""
    if isinstance(observation, Mapping):
        return {key: writable(value) for key, value in observation.items()}
    if isinstance(observation, tuple | list):
        parts, kind = [writable(value) for value in observation], type(observation)
        return kind(*parts) if hasattr(observation, "_fields") else kind(parts)
    if isinstance(observation, bool | int | float | np.generic):
        return np.array(observation)
    return copy.deepcopy(observation)


def _readings(
    env: Env, data: mujoco.MjData, addresses: NDArray[np.int64], units: Vector
) -> Iterator[Reading]:
    """Move the arm at random and find which numbers are its joints' angles, or slides' places.

    Args:
        units: as `Survey.per_rad`, shape (n,), of the joints at `addresses`.
    """
    space = env.action_space
    if not len(addresses) or not isinstance(space, gym.spaces.Box):
        return
    rng = np.random.default_rng(0)
    low, high = (np.clip(edge, space.low, space.high) for edge in (-1.0, 1.0))  # or the nearest
    angles, seen = [], list[dict[tuple[str, ...], Vector]]()
    for _ in range(STEPS):
        observation, _, terminated, truncated, _ = env.step(
            rng.uniform(low, high).astype(space.dtype)
        )
        angles.append(data.qpos[addresses].copy())
        seen.append({p: np.asarray(v, dtype=float).copy() for p, v in numbers_in(observation)})
        if terminated or truncated:
            break
    true = np.array(angles)
    for path in seen[0]:
        shown = np.array([s[path] for s in seen])
        for joint in np.flatnonzero(np.ptp(true, axis=0) > MOVED_RAD):
            for times in (1.0, 180.0 / np.pi):
                error = np.abs(shown - true[:, joint : joint + 1] * times).max(axis=0)
                for index in np.flatnonzero(error < ALIKE_RAD * times):
                    yield Reading(path, int(index), int(joint), times * float(units[joint]))


@contextmanager
def edited_models(edits: Sequence[SpecEdit]) -> Iterator[list[mujoco.MjModel]]:
    """Have MuJoCo's compiler add bodies to what is compiled from MJCF within; yield the models."""
    made, kind, specs = list[mujoco.MjModel](), cast(Any, mujoco.MjModel), cast(Any, mujoco.MjSpec)
    usual = kind.from_xml_path, kind.from_xml_string, specs.compile

    def compiled(spec: mujoco.MjSpec) -> mujoco.MjModel:
        for edit in edits:
            edit(spec)
        made.append(usual[-1](spec))
        return made[-1]

    def from_path(filename: str, assets: Any = None) -> mujoco.MjModel:
        return compiled(mujoco.MjSpec.from_file(str(filename), assets or {}))

    def from_string(xml: str, assets: Any = None) -> mujoco.MjModel:
        return compiled(mujoco.MjSpec.from_string(xml, assets or {}))

    kind.from_xml_path, kind.from_xml_string = staticmethod(from_path), staticmethod(from_string)
    specs.compile = compiled
    try:
        yield made
    finally:
        kind.from_xml_path, kind.from_xml_string, specs.compile = usual


def motors_of(model: mujoco.MjModel, joints: Sequence[int]) -> list[int]:
    """Return the actuators that act on joints themselves."""
    kind = int(mujoco.mjtTrn.mjTRN_JOINT)
    return [
        a
        for a in range(model.nu)
        if int(model.actuator_trntype[a]) == kind and int(model.actuator_trnid[a, 0]) in joints
    ]


def servo_joints(model: mujoco.MjModel) -> list[int]:
    """Return the joints that position servos drive themselves."""
    servos = position_servos(model)
    moved = motors_of(model, range(model.njnt))
    return sorted({int(model.actuator_trnid[a, 0]) for a in moved if a in servos})


def position_servos(model: mujoco.MjModel) -> dict[int, tuple[float, float]]:
    """Return the actuators that hold a joint or tendon where they are told.

    Each with what it is sent: a times where [rad or m] plus b. Most are sent where, (1, 0).
    """
    found = dict[int, tuple[float, float]]()
    kinds = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_TENDON)
    for a in range(model.nu):
        gain, (offset, stiff) = float(model.actuator_gainprm[a, 0]), model.actuator_biasprm[a, :2]
        holds = int(model.actuator_biastype[a]) == AFFINE and stiff < 0.0 < gain
        holds &= int(model.actuator_gaintype[a]) == FIXED
        holds &= int(model.actuator_dyntype[a]) in FOLLOWS
        if holds and int(model.actuator_trntype[a]) in kinds:
            found[a] = -stiff * model.actuator_gear[a, 0] / gain, -offset / gain
    return found
