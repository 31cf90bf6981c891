"""What `gaploop record` refuses before anything moves or is written."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder
from gaploop.datasets import layout
from gaploop.datasets.differences import Profile, require_same
from gaploop.scripts._arms import EMBEDDED, EXPERT, robot_of
from gaploop.teleop.sensors import check_sensors

if TYPE_CHECKING:
    from gaploop.collect.session import MakeRig, Quota

DISPLAYS: Final = ("auto", "window", "terminal", "none")


def check_wanted_sensors(config: Any) -> None:
    """Refuse sensors that can't be connected, or that the embedded cell doesn't have."""
    if config.sensors and config.robot.type == EMBEDDED:
        raise UnusableInputError(
            "--sensors go with an arm; the embedded cell has none. Leave it out, or choose an arm "
            "with --robot.type."
        )
    check_sensors(config.sensors)


def check_options(config: Any) -> None:
    """Refuse options that don't fit each other, or values out of range."""
    check_display(config.display)
    check_wanted_sensors(config)
    robot_of(config)
    if config.robot.type != EMBEDDED and config.teleop.type == EXPERT:
        raise UnusableInputError(
            f"--teleop.type={EXPERT} drives the embedded cell only. For an arm choose a leader "
            "with --teleop.type: so101_leader, keyboard, gamepad, motion, …"
        )
    if config.policy.path and (config.robot.type != EMBEDDED or config.teleop.type != EXPERT):
        raise UnusableInputError(
            "--policy.path lets a policy drive the embedded cell. With an arm, or where a person "
            "can take over, use gaploop rollout."
        )
    if config.policy.path and config.plan is not None:
        raise UnusableInputError(
            "--plan asks for demonstrations and --policy.path for rollouts. Give one of the two."
        )
    check_numbers(config)
    if math.isinf(config.dataset.reset_time_s):
        raise UnusableInputError("--dataset.reset_time_s must be finite, got inf.")
    if config.publish_every < 1:
        raise UnusableInputError(f"--publish_every must be 1 or more, got {config.publish_every}.")


def check_numbers(config: Any, *above_0: str) -> None:
    """Refuse numbers of a session that are out of range, options `above_0` among them."""
    for name in ("dataset.num_episodes", "dataset.episode_time_s", *above_0):
        value = attrgetter(name)(config)
        if value is not None and not value > 0:
            raise UnusableInputError(f"--{name} must be above 0, got {value:g}.")
    for name in ("dataset.reset_time_s", "reconnect_s"):
        value = attrgetter(name)(config)
        if not value >= 0:
            raise UnusableInputError(f"--{name} must be 0 or more, got {value:g}.")


def check_display(display: str) -> None:
    """Refuse a display that there isn't."""
    if display not in DISPLAYS:
        raise unknown_choice("display", display, DISPLAYS, "--display")


def check_targets(make_rig: MakeRig, quotas: Sequence[Quota], root: Path, journal: Path) -> None:
    """Refuse what could not be published before anything is recorded or made."""
    if journal.is_relative_to(root) or root.is_relative_to(journal):
        raise UnusableInputError(
            f"Journal {journal} and dataset {root} lie inside each other. Keep them side by side."
        )
    if root.exists() and not layout.is_dataset(root) and any(root.iterdir()):
        raise UnusableInputError(
            f"{root} exists and is not a LeRobot dataset. Name another with --dataset.root."
        )
    for quota in {quota.key: quota for quota in quotas}.values():
        with contextlib.closing(make_rig(quota.conditions)) as rig:
            new = replace(Profile.of_take(rig.header("")), where="the robot as set up here")
        if layout.is_dataset(root):
            have = Profile.of_dataset(layout.read_info(root))
            require_same(have, new, "Record to another folder with --dataset.root.")
        for folder in journal_format.take_folders(journal)[:1]:
            have = Profile.of_take(journal_format.read_header(folder))
            require_same(have, new, "Record to another folder with --journal.")
    writable_folder(root.parent, "Folder", "--dataset.root")
    writable_folder(journal.parent, "Folder", "--journal")
