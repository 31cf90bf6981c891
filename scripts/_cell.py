"""The embedded cell as options: `--env.*`, and what `--robot.*` shares with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaploop.core.labels import check_dimensions
from gaploop.core.station import SIM_STATION


@dataclass
class StationCell:
    """What the embedded cell is made like, instead of nominal."""

    twin: Path | None = None
    """station_twin.yaml of gaploop identify: the cell is as that station was measured."""
    randomise: str = ""
    """Draw every episode's cell anew: BG (background), LT (light), TD (texture, distractors), CP
    (camera pose), TH (table height), several as BG+LT, visual, dynamics, all; a file of ranges;
    twin: what the twin leaves open. all:0.5 draws from half of the ranges. help prints a file to
    edit."""
    gaps_module: str = ""
    """A Python module with gap mechanisms of your own: my_lab.gaps (docs/diagnose/gaps.md)."""


def show_file(device: Any) -> bool:
    """Print the file that `--env.*` or `--robot.*` asks for by `help`; say whether it does."""
    if getattr(device, "randomise", "") == "help":
        from gaploop.core.twin import as_yaml
        from gaploop.sim.randomise import preset

        print(as_yaml(preset("all")), end="")
        return True
    if str(getattr(device, "topics", "")) == "help":
        from gaploop.teleop.lerobot_ros2.config import EXAMPLE

        print(EXAMPLE, end="")
        return True
    return False


@dataclass
class EnvOptions(StationCell):
    """The embedded cell: its task, what is injected into it, what is set up in it."""

    task: str = "pick_place"
    """pick_place, pick_lift or stack_cube."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Gap dimension to severity from 0 to 1, such as '{"contact_dynamics": 0.6}'."""
    gap_seed: int = 0
    """Draws mechanism and direction of each gap."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """What is set up, such as '{"distractors": 4}'."""
    robot: str = "so101"
    """The cell's arm: so101, or vx300s (a ViperX 300 S; its meshes are gym-aloha's)."""

    def __post_init__(self) -> None:
        # A mechanism may follow its dimension, as in object_property.size; the cell knows which.
        check_dimensions({k.partition(".")[0]: v for k, v in self.gaps.items()}, "--env.gaps")
        SIM_STATION.check_conditions(self.conditions, "--env.conditions")

    def cell(self) -> dict[str, Any]:
        """Return all but the conditions as arguments of what makes a cell, such as `SimCell`."""
        from gaploop.sim.randomise import cell_arguments

        return cell_arguments(self, self.robot, "--env.robot")


def cell_words(task: str, robot: str) -> str:
    """Return the options of a cell with this task and arm, where they aren't the usual ones."""
    told = {"task": task, "robot": robot}.items()
    return "".join(f" --env.{n}={v}" for n, v in told if v != getattr(EnvOptions, n))
