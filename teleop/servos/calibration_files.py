"""LeRobot's calibration files: where they are, where they were, and whose motors they describe.

LeRobot keeps `calibration/<robots or teleoperators>/<device class>/<id>.json`. In version 0.4.3 it
made one class of the SO-100's and the SO-101's, so that the files of both are looked for in another
folder since, and an arm seems never to have been calibrated. To calibrate it anew would move the
zeros under every dataset and policy of that arm.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.teleop.servos.ranges import MotorRange

FORMER: Final[Mapping[str, str]] = {
    "so100_follower": "so_follower",
    "so101_follower": "so_follower",
    "so100_follower_end_effector": "so_follower",
    "so100_leader": "so_leader",
    "so101_leader": "so_leader",
}
"""LeRobot's former folders (huggingface/lerobot#2763), each with today's."""
KINDS: Final = ("robots", "teleoperators")
_FIRST_FORMAT: Final = {"homing_offset", "drive_mode", "start_pos", "end_pos", "motor_names"}
"""Keys of a calibration of LeRobot 0.1: each holds a list, an entry for every motor."""


def arm_folder() -> Path:
    """Return where LeRobot keeps arm calibrations, by the same variables as LeRobot."""
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    home = Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot"))
    return Path(os.environ.get("HF_LEROBOT_CALIBRATION", home / "calibration")).expanduser()


def usual_folder() -> Path:
    """Return where LeRobot keeps arm calibrations without any of its variables."""
    return Path("~/.cache/huggingface/lerobot/calibration").expanduser()


def kept_motors(file: Path) -> dict[str, tuple[int, MotorRange]]:
    """Return each motor of a calibration file, with its id and its calibration.

    Raises:
        UnusableInputError: why the file is none that LeRobot can use.
    """
    motors = read_json(file)
    if isinstance(motors, Mapping) and set(motors) >= _FIRST_FORMAT:
        raise UnusableInputError(
            f"{file} is a calibration of LeRobot 0.1, whose angles were others: zero was the arm "
            "stretched out, not the middle of each joint's range. LeRobot doesn't read it any more"
        )
    found = {}
    try:
        for name, motor in motors.items():
            number = motor["id"]
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"id must be a whole number, got {number!r}")
            found[str(name)] = number, MotorRange.of(motor)
    except DAMAGE as error:
        raise UnusableInputError(f"{file} is no calibration that LeRobot can read") from error
    return found


def all_files(roots: Iterable[Path]) -> list[Path]:
    """Return every calibration file in LeRobot's folders, those of today's classes first."""
    files = {
        file: None
        for root in dict.fromkeys(roots)
        for kind in KINDS
        for file in sorted(root.glob(f"{kind}/*/*.json"))
    }
    return sorted(files, key=lambda file: file.parent.name in FORMER)


def agrees(motors: Mapping[str, tuple[int, MotorRange]], held: Mapping[int, MotorRange]) -> bool:
    """Say whether a file has all these servos, and each holds what the file says of it."""
    kept = dict(motors.values())
    return bool(held) and all(kept.get(servo_id) == one for servo_id, one in held.items())


def differences(
    motors: Mapping[str, tuple[int, MotorRange]], held: Mapping[int, MotorRange]
) -> list[str]:
    """Return in what servos differ from a file, a line for each motor that does.

    Two that hold each other's calibration have swapped ids: it moves with the servo.
    """
    differ = {name: number for name, (number, one) in motors.items() if held.get(number) != one}
    if len(differ) == 2:
        (one, first), (two, second) = differ.items()
        if held.get(first) == motors[two][1] and held.get(second) == motors[one][1]:
            words = f"servos {first} and {second} have swapped ids, set them: lerobot-setup-motors"
            return [f"{one} and {two} hold each other's: {words}"]
    return [
        f"{name}: {held[i].other_than(motors[name][1])}" if i in held else f"{name}: no servo {i}"
        for name, i in differ.items()
    ]


def place_today(file: Path, root: Path) -> Path:
    """Return where LeRobot looks for a calibration today, in its folder `root`."""
    kind, arm = file.parent.parent.name, file.parent.name
    return root / kind / FORMER.get(arm, arm) / file.name


def bring_over(file: Path, to: Path) -> str:
    """Return the command that copies a calibration file, with the folder made where it lacks."""
    made = "" if to.parent.is_dir() else f"mkdir -p {shlex.quote(str(to.parent))} && "
    return f"{made}cp {shlex.quote(str(file))} {shlex.quote(str(to))}"


def put_away(file: Path) -> str:
    """Return the command that moves a file aside that LeRobot would stumble over."""
    return f"mv {shlex.quote(str(file))} {shlex.quote(f'{file}.old')}"
