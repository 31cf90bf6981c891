"""Groups of options that several commands share, and what they print with.

Options keep LeRobot's names, so that `--dataset.repo_id`, `--policy.path` and the like mean
the same as in `lerobot-record` and `lerobot-train`. Nothing heavy is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.labels import check_dimensions
from gaploop.core.progress import console as console
from gaploop.core.progress import loading
from gaploop.core.progress import progress as progress
from gaploop.core.station import SIM_STATION
from gaploop.core.twin import as_yaml
from gaploop.datasets.hub.target import check_repo_id
from gaploop.datasets.hub.target import is_script as is_script
from gaploop.scripts._output import as_lines as as_lines
from gaploop.scripts._output import counted as counted
from gaploop.scripts._output import emit as emit
from gaploop.scripts._output import jsonable as jsonable
from gaploop.scripts._output import keep as keep
from gaploop.scripts._output import machine as machine
from gaploop.scripts._output import print_error as print_error

if TYPE_CHECKING:
    from gaploop.collect.remote_policy import RemotePolicy
    from gaploop.finetune.lerobot_policy import ActPolicy


def required[T](given: T | None, ask: str) -> T:
    """Return what an option was given.

    Raises:
        UnusableInputError: it was given nothing; `ask` says what is wanted, and how it is named.
    """
    if not given:
        raise UnusableInputError(ask)
    return given


@dataclass
class DatasetFolder:
    """Which dataset, for commands that read one."""

    root: Path | None = None
    """Folder of the dataset or journal."""

    def folder(self) -> Path:
        """Return `root`; UnusableInputError without."""
        return required(self.root, "Which dataset? Name its folder with --dataset.root=DIR.")


@dataclass
class DatasetEpisodes(DatasetFolder):
    """Which dataset, and which episodes of it."""

    episodes: list[int] | None = None
    """Only these episodes, such as '[0, 3]'."""


@dataclass
class PublishedDataset(DatasetFolder):
    """Which dataset to publish to."""

    repo_id: str = "local/gaploop"
    """Name on the Hub, such as me/pick_place."""
    push_to_hub: bool = False
    """Push to the Hub afterwards; see gaploop push --help."""
    private: bool | None = None
    """With push_to_hub: make a new repository private."""

    def __post_init__(self) -> None:
        if self.push_to_hub:
            check_repo_id(self.repo_id, "--dataset.repo_id")


@dataclass
class DatasetOptions(PublishedDataset):
    """Which dataset, and what to record into it."""

    single_task: str = ""
    """The instruction, in words; that of the dataset unless given."""
    new_task: bool = False
    """single_task is another one than the dataset holds so far."""
    num_episodes: int = 20
    """How many episodes to record."""
    episode_time_s: float | None = 60.0
    """Longest time of one episode [s]."""
    fps: float | None = None
    """Frames a second; the dataset's, else the robot's own rate unless given [Hz]."""


@dataclass
class PolicyFolder:
    """Which policy."""

    path: str = ""
    """Folder of a policy or an adapter; base names the one that ships with gaploop."""

    def required(self) -> str:
        """Return `path`; UnusableInputError without."""
        return required(self.path, "Which policy? Name its folder with --policy.path=DIR.")


@dataclass
class PolicyOptions(PolicyFolder):
    """Which policy, how fast it is meant to run, and on what."""

    fps: float | None = None
    """Frames a second that it was trained at [Hz], where neither its gaploop.json nor the dataset
    that its train_config.json names states it."""
    device: str = "auto"
    """Where it computes, such as cuda or cpu; auto: the best there is."""
    threads: int = 1
    """Processor threads that it computes with."""
    format: str = ""
    """Number format or runtime: bf16, fp16, int8, int8_ao, int4, compile, onnx, openvino or
    tensorrt; fp32 unless given. gaploop doctor --policy.path times them."""

    def loading(self) -> dict[str, Any]:
        """Return what `load_policy` takes beside the path."""
        if self.threads < 1:
            raise UnusableInputError(f"--policy.threads={self.threads} must be at least 1.")
        return {k: getattr(self, k) for k in ("fps", "device", "threads", "format")}


@dataclass
class WorldOptions:
    """A simulation of yours."""

    scene: Path | None = None
    """scene.yaml (docs/start/my_simulation.md)."""
    gym: str = ""
    """Id of a gymnasium environment, such as FetchPickAndPlace-v4, or package:ID."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What gymnasium.make is given beside the id."""


@dataclass
class DrivingPolicy(PolicyOptions):
    """Which policy, here or on another machine."""

    path: str = ""
    """Folder of a policy or an adapter; base names the one that ships with gaploop;
    remote://host:port one that gaploop serve policy lends there, with what that printed in
    GAPLOOP_LINK_TOKEN."""

    @property
    def is_remote(self) -> bool:
        """Whether it is on another machine."""
        return self.path.startswith("remote://")

    def load(self, task: str = "") -> tuple[ActPolicy | RemotePolicy, str]:
        """Load the policy, or connect to where it is served; return it and its id."""
        loaded: ActPolicy | RemotePolicy
        if self.is_remote:
            from gaploop.collect.remote_policy import RemotePolicy
            from gaploop.teleop.link import TOKEN_VARIABLE

            served = RemotePolicy(self.path, os.environ.get(TOKEN_VARIABLE, ""), task)
            loaded = served
            id_ = served.card.id
        else:
            path = self.required()
            with loading(f"policy {path}"):
                from gaploop.finetune.lerobot_policy import load_policy, policy_id

            loaded, id_ = load_policy(path, task=task, **self.loading()), policy_id(path)
        return loaded, id_


def journal_beside(root: Path, journal: Path | None) -> Path:
    """Return the folder of a dataset's episodes: the one that is given, or else the one beside
    it."""
    root = root.absolute()
    return (journal or root.with_name(f"{root.name}_journal")).absolute()


def require_action(action: str, known: Sequence[str], command: str) -> None:
    """Check what a command is to do.

    Raises:
        UnusableInputError: nothing, or none of what it can do.
    """
    if not action:
        raise UnusableInputError(f"gaploop {command} what? One of: {', '.join(known)}.")
    if action not in known:
        raise unknown_choice("action", action, known)


@dataclass
class StationCell:
    """What the embedded cell is made like, instead of nominal."""

    twin: Path | None = None
    """station_twin.yaml of gaploop identify: the cell is as that station was measured."""
    randomise: str = ""
    """Draw every episode's cell anew: BG (background), LT (light), TD (texture, distractors), CP
    (camera pose), TH (table height), several as BG+LT, visual, dynamics, all; looks (lamps with
    shadows, textures, colours, distractors), CD (contact, drives); a file of ranges; twin: what the
    twin leaves open. all:0.5 draws from half of the ranges; settings follow, as in
    looks,every=frame,textures=DIR (docs/train/looks.md). help prints a file to edit."""
    gaps_module: str = ""
    """A Python module with gap mechanisms of your own: my_lab.gaps (docs/diagnose/gaps.md)."""


def show_file(device: Any) -> bool:
    """Print the file that `--env.*` or `--robot.*` asks for by `help`; say whether it does."""
    if getattr(device, "randomise", "") == "help":
        from gaploop.sim.randomise import EVERYTHING, preset

        print(as_yaml(preset(EVERYTHING)), end="")
        return True
    if str(getattr(device, "topics", "")) == "help":
        from gaploop.teleop.lerobot_ros2.config_ros2 import EXAMPLE

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
    cameras: dict[str, Any] = field(default_factory=dict)
    """What the policy sees by, such as '{overhead: {}, wrist: {}}', or as measured:
    '{front: {calibration: station.calibration.json}}'."""
    robot: str = "so101"
    """The cell's arm: so101, or bi_so101, a pair of them. Other arms: --env.scene."""

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
