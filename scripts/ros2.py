"""The command `gaploop ros2`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.collect.lerobot_registry import registries
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options, rollout

EXAMPLE: Final = """\
gaploop ros2 --example > arm.yaml
gaploop ros2 arm.yaml --policy.path=USER/my_policy --dry_run --dataset.root=runs
gaploop ros2 arm.yaml --policy.path=USER/my_policy --dataset.root=runs --station=station.yaml
"""
POSITIONAL: Final = "topics"


@dataclass
class Ros2Config:
    """Drive a robot on ROS 2 topics with a policy, and record what it does.

    Images and joint states in, joint trajectories or position commands out, as a ROS 2 parameter
    file states. The safety filter is in the path, joints are matched by name, stale input holds the
    robot, and attempts go into a journal with labels as gaploop rollout's do. Everything else
    (a person who takes over, speed, factors) is gaploop rollout's: --robot.type=ros2
    --robot.topics=FILE; so are gaploop record and teleoperate.

    ROS 2 comes from your own installation (source it first), or from pip install 'gaploop[ros2]'.
    """

    topics: Path | None = None
    """The node's parameter file: topics, joints, units, rate, cameras."""
    example: bool = False
    """Print such a file and end."""
    dry_run: bool = False
    """Do everything but publish goals."""
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    dataset: rollout.RolloutDataset = field(default_factory=rollout.RolloutDataset)
    station: Path | None = None
    """station.yaml with joint limits; without it no joint leaves 20° around its start."""
    speed_scale: float | None = None
    """Share of its speed at which the policy drives; as of gaploop rollout."""
    display: str = "auto"
    """window, terminal or none; auto: a window if there is a display and a person is needed."""
    journal: Path | None = None
    """Folder of the takes; beside the dataset, as <dataset.root>_journal, unless given."""
    json: bool = False
    """Print one JSON object."""


def run(config: Ros2Config) -> int:
    """Drive and record; as gaploop rollout."""
    from gaploop.teleop.lerobot_ros2.config import EXAMPLE as PARAMETERS

    if config.example:
        print(PARAMETERS, end="")
        return 0
    if config.topics is None:
        raise UnusableInputError(
            "Which topics? gaploop ros2 FILE --policy.path=DIR; --example prints a FILE."
        )
    robot = registries()[0].get_choice_class("ros2")(topics=config.topics, dry_run=config.dry_run)
    options_of_rollout = rollout.RolloutConfig(
        robot=robot,
        policy=rollout.RolloutPolicyOptions(**vars(config.policy)),
        dataset=config.dataset,
        station=config.station,
        take_over="never",
        speed_scale=config.speed_scale,
        display=config.display,
        journal=config.journal,
        json=config.json,
    )
    return rollout.run(options_of_rollout)
