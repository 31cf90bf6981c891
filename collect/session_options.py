"""Options that the commands share which open a session; importing them loads nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from gaploop.collect import lerobot_factory
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.teleop.leaders.options import CartesianOptions, ForceOptions
from gaploop.teleop.sensors import check_sensors

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
    cartesian: CartesianOptions = field(default_factory=CartesianOptions)
    force: ForceOptions = field(default_factory=ForceOptions)
    json: bool = False
    """Print one JSON object."""


@dataclass
class SessionOptions(DriveOptions):
    """What every session that records has, too."""

    journal: Path | None = None
    """Folder of the takes; beside the dataset, as <dataset.root>_journal, unless given."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """What else is recorded with an arm, at the control rate: name to
    '{port: /dev/ttyACM2, baud: 115200, channels: {fx_n: N, fy_n: N, fz_n: N}}', where lines of
    numbers arrive, or '{driver: "my_lab.tactile:Pad", options: {}}'."""
    display: str = "auto"
    """window, terminal or none; auto: a window if there is a display and a person is needed."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Other keys, pedals or gamepad buttons, such as '{"success": "b", "next": "right pad:a"}'."""
    auto_start: bool = False
    """Begin each episode when the reset is over, as lerobot-record does, not on a key; nobody is
    asked whether a plan's set-up is there."""
    consent: str = ""
    """Consent ids of the people who take part, such as c-k3v7q2mzna,c-p5xw7akq3d."""
    operator: str = ""
    """Who records, or takes over."""


def check_session(config: Any, *above_0: str) -> None:
    """Refuse options that no session can have; numbers `above_0` are this command's own."""
    if config.display not in DISPLAYS:
        raise unknown_choice("display", config.display, DISPLAYS, "--display")
    if config.sensors and config.robot.type == lerobot_factory.EMBEDDED:
        raise UnusableInputError(
            "--sensors go with an arm; the embedded cell has none. Leave it out, or choose an arm "
            "with --robot.type."
        )
    check_sensors(config.sensors)
    for name in ("dataset.num_episodes", "dataset.episode_time_s", *above_0):
        value = attrgetter(name)(config)
        if value is not None and not value > 0:
            raise UnusableInputError(f"--{name} must be above 0, got {value:g}.")
    if not 0 <= config.dataset.reset_time_s < math.inf:
        given = config.dataset.reset_time_s
        raise UnusableInputError(f"--dataset.reset_time_s must be 0 or more, got {given:g}.")
