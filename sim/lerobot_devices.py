"""What `--robot.type=so101_sim` and `--teleop.type=scripted` say; `collect.rig` builds the cell.

Plain LeRobot rolls policies out in the cell by `lerobot_env`.
"""

from dataclasses import dataclass
from pathlib import Path

from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.core.arms import DEFAULT
from gaploop.sim.randomise import CellOptions


@RobotConfig.register_subclass("so101_sim")
@dataclass(kw_only=True)
class So101SimConfig(CellOptions, RobotConfig):  # type: ignore[misc]
    """The embedded cell.

    Attributes:
        camera_hz: pictures per second of each camera.
        seed: of the first scene; each reset takes the next one.
        model: which arm, "so101" or "bi_so101".
        scene: scene.yaml: a scene of your own instead (docs/start/my_simulation.md); of the options
            only gaps, gap_seed and conditions mean anything there.
    """

    camera_hz: float = 25.0
    seed: int = 0
    model: str = DEFAULT
    scene: Path | None = None

    def __post_init__(self) -> None:
        """Ask nothing of the cameras: LeRobot's check is of real ones."""


@TeleoperatorConfig.register_subclass("scripted")
@dataclass(kw_only=True)
class ScriptedConfig(TeleoperatorConfig):  # type: ignore[misc]
    """The scripted person of the embedded cell, or the demonstrator of a scene file."""
