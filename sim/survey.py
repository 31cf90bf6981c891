"""What is inside somebody's gymnasium environment: model, roles, drives, joint angles."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim.gaps.mechanism import Vector
from gaploop.sim.gaps.world_model import motors_of
from gaploop.sim.roles import Roles, find_roles
from gaploop.sim.scene import SpecEdit

DEEPEST: Final = 4
"""How far inside an environment its model is looked for."""
STEPS: Final = 12
"""By which joint angles are found in an observation."""
MOVED_RAD: Final = 1e-3
ALIKE_RAD: Final = 1e-5
AFFINE: Final = int(mujoco.mjtBias.mjBIAS_AFFINE)
ZERO_KEYS: Final = ("pan_rad", "lift_rad", "elbow_rad", "wrist_rad", "roll_rad")
USUAL_HZ: Final = 30.0

type Env = gym.Env[Any, Any]


@dataclass(frozen=True)
class Reading:
    """A number of an observation that is a joint's angle.

    Attributes:
        path: keys to the array that it is in.
        joint: column of the arm's joints.
        per_rad: 1, or 180 / π where it is in degrees.
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
        readings: where the observation shows joint angles.
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    roles: Roles
    servos: tuple[int, ...]
    readings: tuple[Reading, ...]
    joint_names: tuple[str, ...] = ()
    grippers: list[int] = field(default_factory=list)
    arm_columns: list[int] = field(default_factory=list)
    zero_keys: tuple[str, ...] = ()

    @property
    def qpos(self) -> NDArray[np.int64]:
        """Address of each joint's angle."""
        joints = (*self.roles.arm, *self.roles.gripper)
        return np.array([self.model.jnt_qposadr[j] for j in joints], dtype=np.int64)


def survey(env: Env, roles: Path | None = None) -> Survey | None:
    """Look at an environment, which is reset and moved for it; None where it has no model."""
    env.reset(seed=0)
    model, data = find_model(env)
    if model is None or data is None:
        return None
    mujoco.mj_forward(model, data)
    found = find_roles(model, data, camera_of(env, model), roles)
    joints = (*found.arm, *found.gripper)
    by_joint = {int(model.actuator_trnid[a, 0]): a for a in motors_of(model, joints)}
    driven = all(
        j in by_joint and int(model.actuator_biastype[by_joint[j]]) == AFFINE for j in found.arm
    )
    at_rest, still = copy.copy(model), copy.copy(data)
    addresses = np.array([model.jnt_qposadr[j] for j in joints], dtype=np.int64)
    count = len(found.arm)
    names = [model.joint(j).name or f"joint {j}" for j in joints]
    return Survey(
        at_rest,
        still,
        found,
        tuple(by_joint.get(j, -1) for j in joints) if driven and found.arm else (),
        tuple(_readings(env, data, addresses[:count])),
        tuple(names),
        list(range(count, len(joints))),
        list(range(count)),
        (*ZERO_KEYS, *[""] * count)[:count],
    )


def find_model(env: Env) -> tuple[mujoco.MjModel | None, mujoco.MjData | None]:
    """Return the model and the state that an environment holds, however deep inside."""
    model: mujoco.MjModel | None = None
    data: mujoco.MjData | None = None
    layer, seen = [env.unwrapped], set[int]()
    for _ in range(DEEPEST):
        inside = list[Any]()
        for holder in layer:
            for value in getattr(holder, "__dict__", {}).values():
                if isinstance(value, mujoco.MjModel) and model is None:
                    model = value
                elif isinstance(value, mujoco.MjData) and data is None:
                    data = value
                elif hasattr(value, "__dict__") and not callable(value) and id(value) not in seen:
                    seen.add(id(value))
                    inside.append(value)
        if model is not None and data is not None:
            break
        layer = inside
    return model, data


def period_of(env: Env) -> float:
    """Return the time that a step of an environment takes [s]."""
    inner = env.unwrapped
    period_s = getattr(inner, "dt", None) or getattr(inner, "control_dt", None)
    if isinstance(period_s, int | float) and period_s > 0 and find_model(env)[0] is not None:
        return float(period_s)
    return 1.0 / float(env.metadata.get("render_fps") or USUAL_HZ)


def camera_of(env: Env, model: mujoco.MjModel) -> int | None:
    """Return the camera that an environment says it draws by; None where it doesn't say.

    -1 is a free camera.
    """
    inner, names = env.unwrapped, [model.camera(c).name for c in range(model.ncam)]
    renderer = getattr(inner, "mujoco_renderer", None)  # gymnasium's, which falls back on "track"
    for holder in (renderer, inner):
        name = getattr(holder, "camera_name", None) or ("track" if holder is renderer else "")
        if isinstance(name, str) and name in names:
            return names.index(name)
        number = getattr(holder, "camera_id", None)
        if isinstance(number, int) and 0 <= number < model.ncam:
            return number
        if holder is not None and holder is renderer:
            return -1
    return None


def numbers_in(
    observation: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    """Yield the vectors of an observation, each with the keys to it."""
    if isinstance(observation, Mapping):
        for key, value in observation.items():
            yield from numbers_in(value, (*path, str(key)))
    elif isinstance(observation, np.ndarray) and observation.ndim == 1:
        yield path, observation


def _readings(env: Env, data: mujoco.MjData, addresses: NDArray[np.int64]) -> Iterator[Reading]:
    """Move the arm at random and find which numbers are its joints' angles."""
    space = env.action_space
    if not len(addresses) or not isinstance(space, gym.spaces.Box):
        return
    rng = np.random.default_rng(0)
    low, high = np.maximum(space.low, -1.0), np.minimum(space.high, 1.0)
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
            for per_rad in (1.0, 180.0 / np.pi):
                error = np.abs(shown - true[:, joint : joint + 1] * per_rad).max(axis=0)
                for index in np.flatnonzero(error < ALIKE_RAD * per_rad):
                    yield Reading(path, int(index), int(joint), per_rad)


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
