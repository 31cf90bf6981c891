"""What `--robot.type=so101_sim` and `--teleop.type=scripted` say; `collect.rig` builds the cell.

Plain LeRobot rolls policies out in the cell by `lerobot_env`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.core.arms import DEFAULT


@RobotConfig.register_subclass("so101_sim")
@dataclass(kw_only=True)
class So101SimConfig(RobotConfig):  # type: ignore[misc]
    """The embedded cell.

    Attributes:
        task: "pick_place", "pick_lift" or "stack_cube".
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        gap_seed: draws mechanism and direction of each gap.
        conditions: background, lighting, distractors, object, camera_pose, table_height,
            grid_cell, human.
        image_size: width and height of the overhead camera's pictures [px].
        camera_hz: pictures per second of that camera.
        camera_latency_s: age of a picture when it becomes available [s].
        seed: of the first scene; each reset takes the next one.
        model: which arm, "so101" or "vx300s".
        twin: station_twin.yaml: the cell is as that station was measured.
        randomise: what every scene's cell is drawn from, such as all; as of gaploop record.
        gaps_module: a Python module with gap mechanisms of your own.
        scene: scene.yaml: a scene of your own instead (docs/start/my_simulation.md); of the options
            only gaps, gap_seed and conditions mean anything there.
    """

    task: str = "pick_place"
    gaps: dict[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    conditions: dict[str, Any] = field(default_factory=dict)
    image_size: int = 192
    camera_hz: float = 25.0
    camera_latency_s: float = 0.0
    seed: int = 0
    model: str = DEFAULT
    twin: Path | None = None
    randomise: str = ""
    gaps_module: str = ""
    scene: Path | None = None


@TeleoperatorConfig.register_subclass("scripted")
@dataclass(kw_only=True)
class ScriptedConfig(TeleoperatorConfig):  # type: ignore[misc]
    """The scripted person of the embedded cell, or the demonstrator of a scene file."""
