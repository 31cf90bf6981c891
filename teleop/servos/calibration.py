"""LeRobot's arm calibrations: where their files are, whose motors they describe, and whether an arm
can be driven with one.

LeRobot keeps `calibration/<robots or teleoperators>/<device class>/<id>.json`. In version 0.4.3 it
made one class of the SO-100's and the SO-101's, so that the files of both are looked for in another
folder since, and an arm seems never to have been calibrated. To calibrate it anew would move the
zeros under every dataset and policy of that arm.

A servo's encoder counts 0 to 4095 and begins again. A joint whose travel runs across that place
shows a jump of a whole turn in the middle of a motion, and a calibration that was swept over it has
the whole turn as its range: the safety filter's limits are then no limits, and every angle is
measured from the wrong middle. A homing offset that didn't fit its register was cut, with the same
result. A joint that nobody moved while ranges were recorded has hardly any range, and LeRobot's
units are shares of it. LeRobot writes and uses all three without a word.
"""

from __future__ import annotations

import functools
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.arms import ARM_MODELS, ARMS, model_of
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.kinematics import ArmModel
from gaploop.teleop.servos.registers import TICKS_PER_TURN, Protocol

WHOLE_TURN_TICKS: Final = 3900
"""A range this wide is a whole turn: no joint of these arms with an end stop comes near it."""
UNMOVED_TICKS: Final = 40
"""A range of at most so much [ticks], 3.5°, is that of a joint that wasn't moved: hands tremble."""
NARROW: Final = 0.7
"""A range of less than this share of the joint's travel wasn't swept from end to end. A sweep to
one end gives a half; ten published calibrations of SO-101 arms have 0.81 to 1.1 of the model's."""
_LEKIWI_FULL_TURN: Final = frozenset(
    {"arm_wrist_roll", "base_left_wheel", "base_back_wheel", "base_right_wheel"}
)
FEETECH_MOST: Final = 2047
"""Feetech keeps a homing offset in 11 bits and a sign; LeRobot's half-turn homing may want more."""
DYNAMIXEL_MOST: Final = 1_044_479
DYNAMIXEL_POSITION_MODE: Final = 3
DYNAMIXEL_POSITION_MOST: Final = 1024
"""A homing offset beyond this has no effect in position mode (e-manual, "Homing Offset")."""


@dataclass(frozen=True)
class MotorRange:
    """One motor's calibration [ticks], as LeRobot writes it to the motor and to its file."""

    homing_offset: int
    range_min: int
    range_max: int

    @classmethod
    def of(cls, motor: Any) -> MotorRange:
        """Return that of a `MotorCalibration` or a mapping; KeyError or TypeError if it is none."""
        names = ("homing_offset", "range_min", "range_max")
        found = [motor[n] if isinstance(motor, Mapping) else getattr(motor, n) for n in names]
        for name, value in zip(names, found, strict=True):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
        return cls(*found)

    def other_than(self, file: MotorRange) -> str:
        """Return in what it, a motor's, differs from a file's; "" where it doesn't."""
        for name, there in vars(file).items():
            if (here := getattr(self, name)) != there:
                return f"{name} {here} in the motor, {there} in the file"
        return ""


def turns_freely(arm: str, joint: str) -> bool:
    """Say whether a joint of LeRobot's device type `arm` has no end stop, or nobody knows."""
    kind = arm.partition("_")[0]
    if kind == "lekiwi":
        return joint in _LEKIWI_FULL_TURN
    for known in ARMS.values():
        if kind != "bi" and kind in {t.partition("_")[0] for t in known.robot_types}:
            return known.full_turn is None or joint in known.full_turn
    return True


@functools.cache
def travel_ticks(arm: str) -> dict[str, float]:
    """Return how far each joint of LeRobot's device type `arm` turns, from its model [ticks].

    Empty for arms without a model; without joints that have no end stop, and without grippers,
    whose travel people change and whose angle isn't measured from the middle of their range.
    """
    name = model_of(arm)
    if name is None or not ARM_MODELS[name].model.is_installed:
        return {}
    model = ArmModel.load(name)
    spans = zip(model.joint_names, np.ptp(model.joint_limits_rad, axis=1).tolist(), strict=True)
    return {
        joint: span_rad / math.tau * TICKS_PER_TURN
        for joint, span_rad in spans
        if joint != "gripper" and not turns_freely(arm, joint)
    }


def _degrees(ticks: float) -> str:
    return f"{ticks * 360.0 / TICKS_PER_TURN:.0f}°"


def unusable(
    protocol: Protocol, arm: str, motors: Mapping[str, MotorRange], modes: Mapping[str, int]
) -> Iterator[str]:
    """Yield what keeps a calibration from being driven with, a line for each motor.

    `arm` is LeRobot's type of the device; `modes` are Operating Modes, as far as known.
    """
    last = TICKS_PER_TURN - 1
    most = FEETECH_MOST if protocol is Protocol.FEETECH else DYNAMIXEL_MOST
    for name, motor in motors.items():
        low, high, offset = motor.range_min, motor.range_max, motor.homing_offset
        is_wide = high - low >= WHOLE_TURN_TICKS and not turns_freely(arm, name)
        is_across = protocol is Protocol.FEETECH and not 0 <= low < high <= last
        if low > high:
            yield f"{name}: its range {low} to {high} is upside down"
        elif high - low <= UNMOVED_TICKS:
            yield (
                f"{name}: it wasn't moved while ranges were recorded ({low} to {high} is "
                f"{(high - low) * 360 / TICKS_PER_TURN:.1f}°)"
            )
        elif is_wide or is_across:
            yield f"{name}: its range {low} to {high} runs across the encoder's end"
        elif high - low < NARROW * (travel := travel_ticks(arm).get(name, 0)):
            # Half a range has its middle, the joint's zero, a quarter of the travel off: the
            # workspace box would then be kept by an arm that stands elsewhere.
            yield (
                f"{name}: its range {low} to {high} is {_degrees(high - low)}, but the joint has "
                f"{_degrees(travel)}: it wasn't swept from end to end"
            )
        in_position_mode = modes.get(name) == DYNAMIXEL_POSITION_MODE
        limit = (
            DYNAMIXEL_POSITION_MOST
            if protocol is Protocol.DYNAMIXEL and in_position_mode
            else most - 1
        )
        if abs(offset) > limit:
            yield f"{name}: its homing offset {offset} was cut to what the servo can hold"


FIX: Final = (
    "Calibrate it anew: every joint in the middle of its travel at the first ENTER, and each moved "
    "from end to end before the second; if an offset or the encoder's end comes back, mount that "
    "joint's horn turned by a quarter"
)
"""What to do about it."""


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


SWAP_FIX: Final = "Set the ids of both, one plugged in at a time: lerobot-setup-motors"


def _differing(
    motors: Mapping[str, tuple[int, MotorRange]], held: Mapping[int, MotorRange]
) -> dict[str, int]:
    return {name: number for name, (number, one) in motors.items() if held.get(number) != one}


def swapped_ids(
    motors: Mapping[str, tuple[int, MotorRange]], held: Mapping[int, MotorRange]
) -> tuple[str, ...]:
    """Return the two motors whose servos have each other's id, as far as a file tells; or none.

    Their calibrations moved with them. Calibrated as they are, they would answer for each other.
    """
    names = tuple(_differing(motors, held))
    if len(names) != 2:
        return ()
    (first, one), (second, two) = (motors[name] for name in names)
    return names if (held.get(first), held.get(second)) == (two, one) else ()


def differences(
    motors: Mapping[str, tuple[int, MotorRange]], held: Mapping[int, MotorRange]
) -> list[str]:
    """Return in what servos differ from a file, a line for each motor that does."""
    differ = _differing(motors, held)
    if swapped_ids(motors, held):
        both, servos = " and ".join(differ), " and ".join(map(str, differ.values()))
        return [f"{both} hold each other's: servos {servos} have swapped ids"]
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
