"""Options of the commands that open a session, and what the dataset adds to them or refuses.

Importing this loads nothing heavy.
"""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_types
from gaploop.collect.campaign import Quota
from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder
from gaploop.core.take import TakeInfo
from gaploop.datasets import layout
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.differences import Profile, known_units, profile, require_same
from gaploop.teleop.sensors import check_sensors

if TYPE_CHECKING:
    from gaploop.collect.take import MakeRig

_AS_BEFORE: Final = "Use the cameras and --sensors of before, or record to another folder with"
DISPLAYS: Final = ("auto", "window", "terminal", "none")


@dataclass
class DriveOptions:
    """What every session has: an arm, who leads it, and the limits of its cell."""

    robot: Any = None
    """The arm, as in lerobot-record, or so101_sim, the embedded cell."""
    teleop: Any = None
    """Who leads it: a leader arm, keyboard, gamepad; scripted is the embedded cell's expert."""
    station: Path | None = None
    """station.yaml with the cell's limits and conditions; conservative ones unless given."""
    display: str = "auto"
    """window, terminal or none; auto: a window if there is a display and a person is needed."""
    json: bool = False
    """Print one JSON object."""


@dataclass
class SessionOptions(DriveOptions):
    """What every session that records has, too."""

    journal: Path | None = None
    """Folder of the episodes; beside the dataset, as <dataset.root>_journal, unless given."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """What else is recorded, at the control rate: name to
    '{port: /dev/ttyACM2, baud: 115200, channels: {fx_n: N, fy_n: N, fz_n: N}}', where lines of
    numbers arrive, or '{driver: "my_lab.tactile:Pad", options: {}}'; in the embedded cell
    '{wrist: {}, fingertips: {}}'. With observe: true policies see it, too."""
    auto_start: bool = False
    """Begin each episode when the reset is over, as lerobot-record does, not on a key; nobody is
    asked whether a plan's set-up is there."""
    consent: str = ""
    """Consent ids of the people who take part, such as c-k3v7q2mzna,c-p5xw7akq3d."""
    operator: str = ""
    """Who records, or takes over."""


def check_display(display: str) -> None:
    """Raise UnusableInputError where a session can't be shown there."""
    if display not in DISPLAYS:
        raise unknown_choice("display", display, DISPLAYS, "--display")


def check_session(config: Any) -> None:
    """Refuse options that no session can have."""
    check_display(config.display)
    embedded = config.robot.type == lerobot_types.EMBEDDED
    if config.sensors and embedded and config.robot.scene is not None:
        raise UnusableInputError(
            "--sensors go with an arm or the embedded cell; a scene file has none. Leave it out."
        )
    check_sensors(config.sensors, own=embedded)
    for name in ("dataset.num_episodes", "dataset.episode_time_s"):
        value = attrgetter(name)(config)
        if value is not None and not value > 0:
            raise UnusableInputError(f"--{name} must be above 0, got {value:g}.")
    if not 0 <= config.dataset.reset_time_s < math.inf:
        given = config.dataset.reset_time_s
        raise UnusableInputError(f"--dataset.reset_time_s must be 0 or more, got {given:g}.")


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
            new = replace(
                Profile.of_take(rig.header(TakeInfo(""))), where="the robot as set up here"
            )
        if layout.is_dataset(root):
            info = layout.read_info(root)
            have = profile(info, layout.read_episodes(info))
            require_same(have, new, f"{_AS_BEFORE} --dataset.root.")
        for folder in journal_format.take_folders(journal)[:1]:
            have = Profile.of_take(journal_format.read_header(folder))
            require_same(have, new, f"{_AS_BEFORE} --journal.")
    writable_folder(root.parent, "Folder", "--dataset.root")
    writable_folder(journal.parent, "Folder", "--journal")


def is_given(config: Any, name: str) -> bool:
    """Say whether an option such as `robot.use_degrees` was given, not left as it is."""
    found = vars(config).get("given", {})
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def go_on_with(config: Any, root: Path, journal: Path) -> None:
    """Take from the dataset that takes are added to what the options leave open.

    Those are the rate, the units, the sizes of pictures and the task; `check_targets` refuses what
    differs. A journal without a dataset stands for one.

    Raises:
        UnusableInputError: a task that the dataset doesn't hold, unless it is meant to be new.
    """
    sizes: dict[str, tuple[int, int]] = {}  # width, height
    if layout.is_dataset(root):
        info = layout.read_info(root)
        fps, units = info.fps, known_units(layout.read_episodes(info), info)
        tasks = layout.read_tasks(root / layout.TASKS) if (root / layout.TASKS).is_file() else []
        for key in info.picture_keys:
            height, width, *_ = info.features[key]["shape"]
            sizes[key.removeprefix(IMAGES)] = (width, height)
    elif folders := journal_format.take_folders(journal):
        headers = [journal_format.read_header(folder) for folder in folders]
        known, cameras = headers[-1].info, headers[-1].cameras
        fps, units, tasks = known.fps, known.units, [h.info.task for h in headers]
        sizes = {name: (spec["width"], spec["height"]) for name, spec in cameras.items()}
    else:
        return
    if config.dataset.fps is None and not hasattr(config, "policy"):
        config.dataset.fps = fps
    for group in ("robot", "teleop"):
        device = getattr(config, group)
        is_open = not is_given(config, f"{group}.use_degrees")
        if is_open and hasattr(device, "use_degrees") and units in ("deg", "m100_100"):
            device.use_degrees = units == "deg"
    for name, camera in (getattr(config.robot, "cameras", None) or {}).items():
        if name in sizes and getattr(camera, "width", 0) is None and camera.height is None:
            camera.width, camera.height = sizes[name]
    _choose_task(config, list(dict.fromkeys(tasks)), root)


def _choose_task(config: Any, tasks: Sequence[str], root: Path) -> None:
    """Take the one task that is held where none is given; refuse one that isn't held."""
    wanted, shown = config.dataset.single_task, ", ".join(f"'{task}'" for task in tasks[:5])
    if not wanted and is_given(config, "robot.task"):
        wanted = config.robot.task.replace("_", " ")
    if not tasks or wanted in tasks:
        return
    if not wanted and len(tasks) > 1:
        raise UnusableInputError(
            f"{root} holds several tasks: {shown}. Name one with --dataset.single_task, or a new "
            "one with --dataset.new_task=true beside it."
        )
    if not wanted:
        config.dataset.single_task = tasks[0]
        return
    for task in tasks:
        if _letters(task) == _letters(wanted):
            raise UnusableInputError(
                f"--dataset.single_task='{wanted}' differs from '{task}', which {root} holds, only "
                f"in case, spaces or punctuation; a policy would learn two tasks. Write '{task}'."
            )
    if not config.dataset.new_task:
        raise UnusableInputError(
            f"{root} holds {shown}; '{wanted}' would be a new task. Name one of those with "
            "--dataset.single_task, or say that it is meant: --dataset.new_task=true"
        )


def _letters(task: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", task).casefold() if c.isalnum())
