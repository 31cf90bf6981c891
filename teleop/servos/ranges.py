"""Is an arm's calibration one that can be driven with? What is wrong with it, in words.

A servo's encoder counts 0 to 4095 and begins again. A joint whose travel runs across that place
shows a jump of a whole turn in the middle of a motion, and a calibration that was swept over it has
the whole turn as its range: the safety filter's limits are then no limits, and every angle is
measured from the wrong middle. A homing offset that didn't fit its register was cut, with the same
result. A joint that nobody moved while ranges were recorded has hardly any range, and LeRobot's
units are shares of it. LeRobot writes and uses all three without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.arms import ARMS
from gaploop.teleop.servos.registers import TICKS_PER_TURN, Protocol

WHOLE_TURN_TICKS: Final = 3900
"""A range this wide is a whole turn: no joint of these arms with an end stop comes near it."""
UNMOVED_TICKS: Final = 40
"""A range of at most so much [ticks], 3.5°, is that of a joint that wasn't moved: hands tremble."""
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
