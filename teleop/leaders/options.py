"""Options of the leaders, for the command line; importing them loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import number

FRAMES: Final = ("base", "tool")
SPEED_STEPS: Final = (0.1, 0.25, 0.5, 1.0)
"""Shares of the top speed that the operator steps through."""


@dataclass
class CartesianOptions:
    """How keyboard and gamepad move the tool."""

    speed_m_s: float = 0.15
    """fastest motion of the tool, at the highest speed step [m/s]"""

    turn_rad_s: ClassVar[float] = 1.2
    """Fastest turn of the tool, at the highest speed step [rad/s]."""
    gripper_s: ClassVar[float] = 1.0
    """Time from closed to open, at the highest speed step [s]."""
    speed_step: ClassVar[int] = 2
    """Speed step to start with, 1 (a tenth of the speed) to 4 (all of it)."""
    frame: ClassVar[str] = "base"
    """What forward, left and up refer to at first: base, or tool (forward is along the fingers)."""
    joint_velocity_rad_s: ClassVar[float] = 2.0
    """Fastest motion of any joint [rad/s]; the station's limit holds as well."""
    acceleration_m_s2: ClassVar[float] = 0.8
    """How fast motion builds up [m/s²]; stopping is at once."""
    stale_s: ClassVar[float] = 0.1
    """An input older than this counts as a released dead-man button [s]."""

    def __post_init__(self) -> None:
        number(self.speed_m_s, "--cartesian.speed_m_s", 0.005, 0.5)


SCRIPTS: Final = ("chirp", "reverse", "step", "poses", "grip", "rest")
_MOTION_RANGES: Final = {
    "amplitude_rad": (0.02, 2.0),
    "seconds": (2.0, 600.0),
    "low_hz": (0.02, 5.0),
    "high_hz": (0.02, 20.0),
    "cycles": (1, 100),
    "size_m": (0.01, 0.6),
    "dwell_s": (0.0, 60.0),
    "velocity_rad_s": (0.005, 6.0),
    "acceleration_rad_s2": (0.05, 100.0),
}


@dataclass
class MotionOptions:
    """A scripted motion that logs sensors and actuators without an operator."""

    script: str = "chirp"
    """chirp (each joint swings ever faster), reverse (strokes at several speeds: backlash and
    friction), step (each joint to either side as fast as it may, and rest), poses (turn to the
    middle and either side, low and high, and rest), grip (open and close the gripper) or rest"""
    joints: list[str] = field(default_factory=list)
    """joints that chirp, reverse and step move, one after the other; all of them if left out"""
    amplitude_rad: float = 0.4
    """largest swing to either side [rad]; made smaller where limits or workspace ask for it"""
    seconds: float = 20.0
    """how long chirp moves each joint, and rest takes [s]"""
    low_hz: float = 0.1
    """frequency that chirp starts with [Hz]"""
    high_hz: float = 3.0
    """frequency that chirp ends with [Hz]"""
    speeds_rad_s: list[float] = field(default_factory=lambda: [0.2, 0.5, 1.0])
    """speeds of reverse [rad/s], in an order drawn by the seed"""
    cycles: int = 2
    """strokes there and back of reverse, for each speed"""
    size_m: float = 0.12
    """what poses lifts the tool by [m]"""
    dwell_s: float = 1.0
    """rest after each step, at each of the poses and before and after the gripper closes [s]"""
    velocity_rad_s: float = 1.5
    """fastest joint [rad/s]; the station's limit holds as well"""
    acceleration_rad_s2: float = 10.0
    """fastest change of that speed [rad/s²]; the station's limit holds as well"""
    seed: int = 0
    """draws the orders"""

    def __post_init__(self) -> None:
        if self.script not in SCRIPTS:
            raise unknown_choice("script", self.script, SCRIPTS, "--teleop.script")
        for name, (low, high) in _MOTION_RANGES.items():
            number(getattr(self, name), f"--teleop.{name}", low, high)
        if self.high_hz < self.low_hz:
            raise UnusableInputError(
                f"--teleop.high_hz ({self.high_hz:g}) must not be below --teleop.low_hz "
                f"({self.low_hz:g})."
            )
        if not self.speeds_rad_s or not all(0.01 <= v <= 6.0 for v in self.speeds_rad_s):
            raise UnusableInputError(
                f"--teleop.speeds_rad_s must be speeds of 0.01 to 6, got {self.speeds_rad_s}."
            )
