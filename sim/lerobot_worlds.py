"""Any gymnasium environment by its id, and a scene of a file, as environments of LeRobot."""

import contextlib
import importlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs import make_env
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_ENV_STATE, OBS_IMAGE, OBS_IMAGES, OBS_STATE
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.take import SUCCESS_HELD_S
from gaploop.core.twin import Twin
from gaploop.sim.roles import numbers_in, picture_of, takes_targets
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.world import GymWorld, WorldSpec

logger = logging.getLogger(__name__)

USUAL_STEPS: Final = 400
ROUNDING: Final = 1e-9
CAMERA: Final = "camera"
"""How a picture is called that the environment draws without naming it."""
SCENE: Final = "environment_state"
STATES: Final = {"agent_pos": OBS_STATE, SCENE: OBS_ENV_STATE}
"""Vectors of an observation, to how LeRobot's datasets call them."""


type Made = gym.Env[Any, Any]


@EnvConfig.register_subclass("gym")
@dataclass
class GymEnvConfig(EnvConfig):  # type: ignore[misc]
    """Any gymnasium environment.

    Attributes:
        gym: its id, such as FetchPickAndPlace-v4; my_package:MyEnv-v0 imports the package first.
        kwargs: what gymnasium.make is given beside it, such as '{camera_name: corner2}'.
        episode_length: steps after which an attempt is over; the environment's own unless given.
    """

    gym: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    episode_length: int | None = None

    @property
    def called(self) -> str:
        """What people call it."""
        return self.gym

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """What gymnasium.make is given."""
        return self.kwargs

    def make(self) -> Made:
        """Make one as it is; UnusableInputError: no such id, or the environment can't be made."""
        if not self.gym:
            raise UnusableInputError("Which environment? Name it: --env.gym=ID or package:ID.")
        package, colon, _ = self.gym.partition(":")
        try:
            if colon:
                importlib.import_module(package)
            options = {"render_mode": "rgb_array", **self.kwargs}
            try:
                return gym.make(self.gym, disable_env_checker=True, **options)
            except TypeError as error:
                if "render_mode" not in str(error) or self.kwargs.get("render_mode"):
                    raise
                del options["render_mode"]
                return gym.make(self.gym, disable_env_checker=True, **options)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            absent = isinstance(error, (ImportError, gym.error.Error))
            raise UnusableInputError(
                f"--env.gym={self.gym} can't be made ({reason}). "
                + (
                    "Install its package, and write package:ID where importing the package "
                    "registers it."
                    if absent
                    else "Where an argument is wrong or missing, mend it in --env.kwargs, or in a "
                    "suite in the kwargs of its env."
                )
            ) from error


@EnvConfig.register_subclass("scene")
@dataclass
class SceneEnvConfig(GymEnvConfig):
    """A scene file (docs/start/my_simulation.md).

    Attributes:
        scene: its path.
        episode_length: steps after which an attempt is over; by the file's max_s unless given.
    """

    scene: Path | None = None

    @property
    def called(self) -> str:
        """What people call it."""
        return str(self.scene)

    def make(self) -> SceneWorld:
        """Build it; UnusableInputError where the file doesn't fit its model."""
        if self.scene is None:
            raise UnusableInputError("Which scene? Name its file: --env.scene=scene.yaml.")
        return SceneWorld(load_scene(self.scene))


def config_of(said: Mapping[str, Any], where: str) -> EnvConfig:
    """Return what a mapping says of an environment: {gym: ID}, {scene: FILE} or {type: NAME}.

    Raises:
        UnusableInputError: none of them, or an option that such an environment hasn't.
    """
    given = dict(said)
    if "model" in given:
        raise UnusableInputError(
            f"{where} is {given['model']}, an arm alone: no task can be tried in it. Evaluate in "
            "a scene with that arm: gaploop evaluate --env.type=scene --env.scene=FILE."
        )
    kind = given.pop("type", None) or next((k for k in ("gym", "scene") if k in given), "")
    known = EnvConfig.get_known_choices()
    if kind not in known:
        raise unknown_choice("environment", kind, known, where)
    if given.get("scene"):
        given["scene"] = Path(given["scene"])
    try:
        return cast(EnvConfig, known[kind](**given))
    except TypeError as error:
        raise UnusableInputError(f"{where}: {error}.") from None


def world_of(twin: Twin) -> tuple[GymEnvConfig, Path | None]:
    """Return the environment that a twin names, and its roles.yaml; as `config_of`."""
    said = dict(twin.world)
    roles = Path(said.pop("roles")) if "roles" in said else None
    made = config_of(said, f"twin of {twin.station}: world")
    return cast(GymEnvConfig, made), roles


def named_world(env: GymEnvConfig, roles: Path | None) -> dict[str, Any]:
    """Return an environment and its roles.yaml as a twin names them, for `world_of`."""
    world: dict[str, Any] = {"gym": env.gym, "kwargs": env.kwargs}
    if isinstance(env, SceneEnvConfig) and env.scene:
        world = {"scene": str(env.scene.resolve())}
    return world | ({"roles": str(roles.resolve())} if roles else {})


class GymAttempts(gym.Wrapper[Any, Any, Any, Any]):
    """A world as LeRobot's rollouts ask for it: episodes that end with success, named pictures.

    Args:
        raw: observations stay as they are, for a script that was written for the environment.
        kept: what a policy would have seen, and the action after it, is kept.
        speed_scale: share of its speed at which whoever drives gets to its targets: they are passed
            through in the same order, in more steps. An attempt gets as many more.

    Attributes:
        finished: of the last attempt that ended, where it is kept.
    """

    def __init__(
        self, world: GymWorld, max_steps: int | None, *, raw: bool = False, kept: bool = False,
        speed_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.world, self._raw, self._kept = world, raw, kept
        self.finished = list[tuple[dict[str, Any], NDArray[Any]]]()
        self._warned = False
        own = (world.unwrapped, "max_steps"), (world.env.spec, "max_episode_steps")
        known = (getattr(holder, name, None) for holder, name in own)
        usual = max_steps or next(filter(None, known), USUAL_STEPS)
        self._speed_scale, self._max_episode_steps = speed_scale, math.ceil(usual / speed_scale)
        inner: Any = world
        while speed_scale < 1 and isinstance(inner, gym.Wrapper):
            inner = inner.env
            if isinstance(inner, gym.wrappers.TimeLimit):
                inner._max_episode_steps = self._max_episode_steps
        if world.action_space.shape is None:
            raise UnusableInputError(
                f"{world.instruction} takes {world.action_space} as an action, not one vector. "
                "Give it one in a gymnasium.Wrapper of yours (action_space: a Box)."
            )
        self.metadata = {**world.metadata, "render_fps": round(1.0 / world.period_s)}
        if raw:
            self.draw(kept)
        else:
            self.observation_space = _space(self.seen(world.reset(seed=0)[0]))

    def draw(self, wanted: bool) -> None:
        """Have a scene file draw the observations that follow, or leave their pictures out."""
        if isinstance(self.world.unwrapped, SceneWorld):
            self.world.unwrapped.draws = wanted

    @property
    def task(self) -> str:
        """The present attempt's instruction."""
        return self.world.instruction

    @property
    def task_description(self) -> str:
        """The same, as LeRobot asks for it."""
        return self.world.instruction

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an attempt."""
        observation, info = self.world.reset(seed=seed, options=options)
        self._steps = self._won_for = 0
        self._target, self._at = getattr(self.world.unwrapped, "rest_action", None), 0.0
        self._frames = list[tuple[dict[str, Any], NDArray[Any]]]()
        self._last = self.named(observation) if self._kept else {}
        return self.seen(observation), {**info, "is_success": False}

    def step(self, action: Any) -> Any:
        """Pass an action on; the attempt ends once success has held."""
        target = np.asarray(action, dtype=self.action_space.dtype)
        if not np.isfinite(target).all():
            raise UnusableInputError(
                f"The policy sent {np.ravel(target).tolist()} at step {self._steps + 1}. Look at "
                "its weights, its statistics and what it is shown."
            )
        before, self._target = target if self._target is None else self._target, target
        if self._speed_scale == 1.0:
            return self._stepped(target)
        over = late = False
        while not (over or late) and self._at + self._speed_scale < 1.0 + ROUNDING:
            self._at += self._speed_scale
            between = (before + self._at * (target - before)).astype(target.dtype)
            observation, reward, over, late, info = self._stepped(between)
        self._at -= 1.0
        return observation, reward, over, late, info

    def _stepped(self, shaped: NDArray[Any]) -> Any:
        observation, reward, terminated, truncated, info = self.world.step(shaped)
        self._steps += 1
        self._won_for = self._won_for + 1 if self.world.success() else 0
        held = self._won_for * self.world.period_s >= SUCCESS_HELD_S
        late = truncated or self._steps >= self._max_episode_steps
        over = bool(terminated or held)
        won = held or (bool(terminated or late) and self._won_for > 0)
        if (over or late) and not self._warned and (silence := self.world.silence()):
            self._warned = True
            logger.warning("%s%s.", silence[0].upper(), silence[1:])
        if self._kept:
            self._frames.append((self._last, np.asarray(shaped, dtype=np.float32)))
            self._last = self.named(observation)
            if over or late:
                self.finished = self._frames
        return self.seen(observation), reward, over, late and not over, {**info, "is_success": won}

    def seen(self, observation: Any) -> Any:
        """Return an observation as whoever drives reads it."""
        return observation if self._raw else self.named(observation)

    def named(self, observation: Any) -> Any:
        """Return an observation as LeRobot reads it: `agent_pos`, `environment_state`, `pixels`.

        What the environment calls so itself stays so; its other vectors join `environment_state`,
        its other pictures `pixels`. Without pictures the state is `environment_state`, too:
        policies such as ACT and Diffusion refuse to look at nothing but an arm.
        """
        usual = {"pixels", *STATES}
        own = {k: v for k, v in observation.items() if k in usual} if _is_named(observation) else {}
        rest = {k: v for k, v in observation.items() if k not in own} if own else observation
        shown, pictures = _channels_last(own), pictures_in(rest)
        if not pictures and self.render_mode is not None and not {"pixels", SCENE} & set(own):
            pictures = pictures_in(self.world.render())
        if own and pictures:
            pictures |= pictures_in({CAMERA: shown.get("pixels", {})})
        if pictures:
            shown["pixels"] = pictures
        vectors = [v for _, v in numbers_in(rest)]
        if not own and vectors:
            shown["agent_pos"] = state_in(observation)
        elif vectors:
            shown[SCENE] = np.concatenate([shown.get(SCENE, ()), *vectors], dtype=np.float32)
        if "agent_pos" in shown and not shown.keys() & {"pixels", SCENE}:
            shown[SCENE] = np.asarray(shown["agent_pos"], dtype=np.float32)
        if not shown:
            raise UnusableInputError(
                f"{self.world.instruction} shows neither numbers nor pictures (uint8), so "
                "that a policy has nothing to go by. Show them by a gymnasium.Wrapper of yours."
            )
        return shown


def _is_named(observation: Any) -> bool:
    """Return whether an observation has the keys that LeRobot reads."""
    keys = set(observation) if isinstance(observation, Mapping) else set()
    return "agent_pos" in keys or bool(keys and keys <= {"pixels", *STATES})


def _channels_last(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: state_in(part) if key in STATES else _channels_last(part)
            for key, part in value.items()
        }
    return value if (picture := picture_of(value)) is None else picture


def state_in(observation: Any) -> NDArray[np.float32]:
    """Return all numbers of an observation; the arm first, where it is named."""
    vectors = [value for _, value in _in_order(observation)]
    return np.concatenate(vectors).astype(np.float32) if vectors else np.zeros(0, np.float32)


def columns_in(observation: Any) -> dict[tuple[str, ...], int]:
    """Return at which number of `state_in` each part of an observation begins, by its keys."""
    found, column = dict[tuple[str, ...], int](), 0
    for path, value in _in_order(observation):
        found[path], column = column, column + len(value)
    return found


def _in_order(observation: Any) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    if _is_named(observation):  # these first, as a policy is shown them
        observation = {**{k: observation[k] for k in STATES if k in observation}, **observation}
    return numbers_in(observation)


def pictures_in(observation: Any, name: str = CAMERA) -> dict[str, NDArray[np.uint8]]:
    """Return the pictures of an observation by their names."""
    if isinstance(observation, Mapping):
        found = [pictures_in(value, str(key)) for key, value in observation.items()]
        return {key: value for part in found for key, value in part.items()}
    picture = picture_of(observation)
    return {} if picture is None else {name: picture}


def _space(value: Any) -> gym.Space[Any]:
    if isinstance(value, Mapping):
        return gym.spaces.Dict({key: _space(v) for key, v in value.items()})
    if value.dtype == np.uint8:
        return gym.spaces.Box(0, 255, value.shape, np.uint8)
    return gym.spaces.Box(-np.inf, np.inf, value.shape, value.dtype)


def features_of(attempts: GymAttempts) -> tuple[dict[str, PolicyFeature], dict[str, str]]:
    """Return what a policy sees and sets, as LeRobot's `features` and `features_map`."""
    features = {ACTION: PolicyFeature(FeatureType.ACTION, attempts.action_space.shape)}
    names = {ACTION: ACTION}
    spaces: Any = attempts.observation_space
    for key, space in spaces.items():
        if isinstance(space, gym.spaces.Dict):
            for camera, picture in space.items():
                features[f"{key}/{camera}"] = PolicyFeature(FeatureType.VISUAL, picture.shape)
                names[f"{key}/{camera}"] = f"{OBS_IMAGES}.{camera}"
        elif key == "pixels":
            features[key], names[key] = PolicyFeature(FeatureType.VISUAL, space.shape), OBS_IMAGE
        elif key in STATES:
            kind = FeatureType.ENV if key == SCENE else FeatureType.STATE
            features[key] = PolicyFeature(kind, space.shape)
            names[key] = STATES[key]
    return features, names


def vectors(
    config: EnvConfig, spec: WorldSpec, *, raw: bool = False, kept: bool = False,
    speed_scale: float = 1.0,
) -> dict[str, gym.vector.SyncVectorEnv]:  # fmt: skip
    """Return an environment for each task of a configuration, with a station's gaps.

    Raises:
        UnusableInputError: slower, where nothing shows that actions are targets.
    """

    def one(made: Callable[[], Any]) -> gym.vector.SyncVectorEnv:
        return SyncVectorEnv([made], autoreset_mode=AutoresetMode.SAME_STEP)

    if isinstance(config, GymEnvConfig):
        made, length = config.make, config.episode_length
        how: dict[str, Any] = {"raw": raw, "kept": kept, "speed_scale": speed_scale}
        if speed_scale < 1:
            with contextlib.closing(made()) as tried:
                if not takes_targets(tried, spec.roles):
                    raise UnusableInputError(
                        f"--speed_scale={speed_scale:g} needs actions that are goals of position "
                        f"servos; those of {config.called} aren't, or it doesn't show it. Have it "
                        "made with such actions (--env.kwargs), or leave the speed out."
                    )
        return {"": one(lambda: GymAttempts(GymWorld(made, spec), length, **how))}
    if speed_scale < 1:
        raise UnusableInputError(
            f"--speed_scale={speed_scale:g} needs --env.gym, --env.scene or the embedded cell; "
            f"LeRobot steps --env.type={config.type} itself."
        )

    def inner(suite: str, task: int) -> gym.Env[Any, Any]:
        vector: Any = make_env(config, n_envs=1)[suite][task]
        made: Any = vector.envs[0]
        made.vector = vector  # once nobody holds it, it closes what it made
        return cast(gym.Env[Any, Any], made)

    tasks = [(suite, task) for suite, made in make_env(config, n_envs=1).items() for task in made]
    return {
        f"{suite}/{task}" if len(tasks) > 1 else "": one(
            partial(GymWorld, partial(inner, suite, task), spec)
        )
        for suite, task in tasks
    }
