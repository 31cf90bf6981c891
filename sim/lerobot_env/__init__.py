"""The embedded cell as a gymnasium environment, for LeRobot's own evaluation.

    lerobot-eval --env.discover_packages_path=gaploop.sim.lerobot_env --env.type=so101_cell \
        --policy.path=me/pick_place_adapter --eval.n_episodes=50

The policy's own preprocessor reads the scene from the pictures. Between two goals the command
moves in a straight line, as in gaploop's own evaluation; only the safety filter is missing here.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

import gymnasium as gym
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE
from numpy.typing import NDArray

from gaploop.core.take import SUCCESS_HELD_S
from gaploop.sim.catalogue import SO101, arm_named, from_degrees, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.randomise import CellOptions, cell_arguments
from gaploop.sim.views import cell_views, read_cameras

__all__ = ["CellEnv", "CellEnvConfig"]

GYM_ID: Final = "gaploop/So101Cell-v0"
ENTRY_POINT: Final = "gaploop.sim.lerobot_env:CellEnv"
UNSEEN_SCENES: Final = 1_000_000
"""Scenes of demonstrations begin at 0, those that policies are evaluated on here."""


type GymObservation = dict[str, Any]


@EnvConfig.register_subclass("so101_cell")
@dataclass
class CellEnvConfig(CellOptions, EnvConfig):  # type: ignore[misc]
    """The embedded cell.

    Attributes:
        fps: steps per second of simulated time [Hz].
        episode_length: steps after which an attempt is over.
        first_scene: scene of seed 0; those below UNSEEN_SCENES are what demonstrations show.
        robot: the cell's arm, "so101" or "bi_so101".
    """

    fps: int = 50
    episode_length: int = 400
    first_scene: int = UNSEEN_SCENES
    robot: str = SO101.name
    features_map: dict[str, str] = field(
        default_factory=lambda: {ACTION: ACTION, "agent_pos": OBS_STATE}
    )

    def __post_init__(self) -> None:
        arm = arm_named(self.robot)
        joints = (len(arm.joint_names),)
        self.features = {
            ACTION: PolicyFeature(FeatureType.ACTION, joints),
            "agent_pos": PolicyFeature(FeatureType.STATE, joints),
        }
        for view in cell_views(read_cameras(self.cameras, "--env.cameras"), self.image_size, arm):
            (width, height), pixels = view.size_px, f"pixels/{view.name}"
            self.features[pixels] = PolicyFeature(FeatureType.VISUAL, (height, width, 3))
            self.features_map.setdefault(pixels, f"{OBS_IMAGES}.{view.name}")

    @property
    def package_name(self) -> str:
        """What LeRobot imports where the environment isn't registered."""
        return "gaploop.sim.lerobot_env"

    @property
    def gym_id(self) -> str:
        """Name in gymnasium's registry."""
        return GYM_ID

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of `CellEnv`."""
        alike = (*(f.name for f in fields(CellOptions)), "fps", "first_scene", "robot")
        return {"max_steps": self.episode_length, **{name: getattr(self, name) for name in alike}}


class CellEnv(gym.Env[GymObservation, NDArray[np.float32]]):
    """The cell, one policy frame a step.

    Observations are `agent_pos`, joint positions [°, gripper 0 to 100], shape (n_joints,), and
    `pixels`: {camera: RGB, uint8, shape (height, width, 3)}. Actions are goals in the same units as
    `agent_pos`. The reward is 1 on the step that ends in success; `info` holds `is_success`.

    The arguments are as of `CellEnvConfig`; `max_steps` is its `episode_length`.

    Raises:
        UnusableInputError: an unknown task, dimension or condition.
    """

    def __init__(self, task: str = "pick_place", *, max_steps: int = 400, **options: Any) -> None:
        config = CellEnvConfig(task=task, episode_length=max_steps, **options)
        fps = config.fps
        self._cell = SimCell(
            **cell_arguments(config, config.robot, "--env.robot"),
            conditions=config.conditions,
            image_size=config.image_size,
        )
        self.task = self.task_description = task.replace("_", " ")
        self.render_mode = "rgb_array"
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self._period_s = 1.0 / fps
        self._turns = max(1, round(self._cell.control_hz / fps))
        self._max_episode_steps = max_steps  # what lerobot-eval asks for
        self._first_scene, self._scene = config.first_scene, config.first_scene - 1
        self._step = self._succeeded_for = 0
        low, high = (to_degrees(q, self._cell.arm) for q in self._cell.joint_limits_rad.T)
        self.action_space = gym.spaces.Box(
            np.minimum(low, high).astype(np.float32), np.maximum(low, high).astype(np.float32)
        )
        pictures: dict[str, gym.Space[Any]] = {
            view.name: gym.spaces.Box(0, 255, (*view.size_px[::-1], 3), np.uint8)
            for view in self._cell.views
        }
        self.observation_space = gym.spaces.Dict(
            {
                "agent_pos": gym.spaces.Box(-np.inf, np.inf, low.shape, np.float32),
                "pixels": gym.spaces.Dict(pictures),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GymObservation, dict[str, Any]]:
        """Set up the scene of `seed`; the one after the last where it is left out."""
        super().reset(seed=seed, options=options)
        self._scene = self._scene + 1 if seed is None else self._first_scene + seed
        self._cell.reset(self._scene)
        self._goal_rad = self._cell.read().position_rad
        self._step = self._succeeded_for = 0
        return self._seen(), {"is_success": False}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[GymObservation, float, bool, bool, dict[str, Any]]:
        """Send goals [°, gripper 0 to 100], shape (n_joints,), and let one frame pass."""
        goal_rad = from_degrees(np.asarray(action, dtype=np.float64), self._cell.arm)
        before_rad, self._goal_rad = self._goal_rad, goal_rad
        for between_rad in np.linspace(before_rad, goal_rad, self._turns + 1)[1:]:
            self._cell.command(between_rad)
            self._cell.advance(self._period_s / self._turns)
        self._step += 1
        self._succeeded_for = self._succeeded_for + 1 if self._cell.success() else 0
        over = self._succeeded_for * self._period_s >= SUCCESS_HELD_S
        late = self._step >= self._max_episode_steps
        won = over or (late and self._succeeded_for > 0)
        return self._seen(), float(won), over, late and not over, {"is_success": won}

    def _seen(self) -> GymObservation:
        state = to_degrees(self._cell.read().position_rad, self._cell.arm)
        views = self._cell.views
        pictures = {view.name: self._cell.frame(view.name).image.copy() for view in views}
        return {"agent_pos": state.astype(np.float32), "pixels": pictures}

    def render(self) -> NDArray[np.uint8]:
        """Return a picture for people, from the side; RGB, shape (240, 320, 3)."""
        return self._cell.picture(320, 240)  # small: lerobot-eval asks after every step

    def close(self) -> None:
        """Take the cell down; safe to call twice."""
        self._cell.close()


if GYM_ID not in gym.registry:
    gym.register(GYM_ID, ENTRY_POINT)
