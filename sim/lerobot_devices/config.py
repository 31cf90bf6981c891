"""Configurations of the embedded devices, registered with LeRobot by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.sim.arms import SO101

DEFAULT_CELL = "default"


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
        fps: actions per second of simulated time; each send_action advances 1 / fps.
        seed: of the first scene; each reset takes the next one.
        cell: name under which the cell is shared with the scripted teleoperator.
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
    fps: float = 50.0
    seed: int = 0
    cell: str = DEFAULT_CELL
    model: str = SO101.name
    twin: Path | None = None
    randomise: str = ""
    gaps_module: str = ""
    scene: Path | None = None


@TeleoperatorConfig.register_subclass("scripted")
@dataclass(kw_only=True)
class ScriptedConfig(TeleoperatorConfig):  # type: ignore[misc]
    """The scripted teleoperator of an embedded cell in the same process.

    Attributes:
        sees: "scene" (a person) or "tracker" (camera tracker and nominal sizes).
        seed: draws its habits.
        retries: attempts after the first; None for the default of `sees`.
        pause_s: how long it rests after an attempt before it sets up the next scene [s].
        cell: name of the cell, as in So101SimConfig.
        model: its arm, as in So101SimConfig.
    """

    sees: str = "scene"
    seed: int = 0
    retries: int | None = None
    pause_s: float = 0.4
    cell: str = DEFAULT_CELL
    model: str = SO101.name
