"""Configuration of the embedded cell as an environment, registered with LeRobot by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from gaploop.sim.arms import SO101, arm_named
from gaploop.sim.scene import CAMERA_NAME

GYM_ID: Final = "gaploop/So101Cell-v0"
ENTRY_POINT: Final = "gaploop.sim.lerobot_env:CellEnv"
PIXELS: Final = f"pixels/{CAMERA_NAME}"
UNSEEN_SCENES: Final = 1_000_000
"""Scenes of demonstrations begin at 0, those that policies are evaluated on here."""


@EnvConfig.register_subclass("so101_cell")
@dataclass
class CellEnvConfig(EnvConfig):  # type: ignore[misc]
    """The embedded cell.

    Attributes:
        task: "pick_place", "pick_lift" or "stack_cube".
        fps: steps per second of simulated time [Hz].
        episode_length: steps after which an attempt is over.
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        gap_seed: draws mechanism and direction of each gap.
        conditions: background, lighting, distractors, object, camera_pose, table_height,
            grid_cell, human.
        image_size: width and height of the overhead camera's pictures [px].
        first_scene: scene of seed 0; those below UNSEEN_SCENES are what demonstrations show.
        robot: the cell's arm, "so101" or "vx300s".
    """

    task: str | None = "pick_place"
    fps: int = 50
    episode_length: int = 400
    gaps: dict[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    conditions: dict[str, Any] = field(default_factory=dict)
    image_size: int = 192
    first_scene: int = UNSEEN_SCENES
    robot: str = SO101.name
    features_map: dict[str, str] = field(
        default_factory=lambda: {
            ACTION: ACTION,
            "agent_pos": OBS_STATE,
            PIXELS: f"{OBS_IMAGES}.{CAMERA_NAME}",
        }
    )

    def __post_init__(self) -> None:
        joints = (len(arm_named(self.robot).joint_names),)
        self.features = {
            ACTION: PolicyFeature(FeatureType.ACTION, joints),
            "agent_pos": PolicyFeature(FeatureType.STATE, joints),
            PIXELS: PolicyFeature(FeatureType.VISUAL, (self.image_size, self.image_size, 3)),
        }

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
        return {
            "task": self.task,
            "fps": self.fps,
            "max_steps": self.episode_length,
            "gaps": self.gaps,
            "gap_seed": self.gap_seed,
            "conditions": self.conditions,
            "image_size": self.image_size,
            "first_scene": self.first_scene,
            "robot": self.robot,
        }
