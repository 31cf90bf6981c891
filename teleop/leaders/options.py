"""Options of Cartesian control, for the command line; importing them loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice

FRAMES: Final = ("base", "tool")
SPEED_STEPS: Final = (0.1, 0.25, 0.5, 1.0)
"""Shares of the top speed that the operator steps through."""

_RANGES: Final = {
    "speed_m_s": (0.005, 0.5),
    "turn_rad_s": (0.05, 3.0),
    "gripper_s": (0.2, 10.0),
    "joint_velocity_rad_s": (0.01, 20.0),
    "acceleration_m_s2": (0.05, 10.0),
    "stale_s": (0.02, 1.0),
}


@dataclass
class CartesianOptions:
    """How keyboard and gamepad move the tool."""

    speed_m_s: float = 0.15
    """fastest motion of the tool, at the highest speed step [m/s]"""
    turn_rad_s: float = 1.2
    """fastest turn of the tool, at the highest speed step [rad/s]"""
    gripper_s: float = 1.0
    """time from closed to open, at the highest speed step [s]"""
    speed_step: int = 2
    """speed step to start with, 1 (a tenth of the speed) to 4 (all of it)"""
    frame: str = "base"
    """what forward, left and up refer to: base, or tool (forward is along the fingers)"""
    joint_velocity_rad_s: float = 2.0
    """fastest motion of any joint [rad/s]; the station's limit holds as well"""
    acceleration_m_s2: float = 0.8
    """how fast motion builds up [m/s²]; stopping is at once"""
    stale_s: float = 0.1
    """an input older than this counts as a released dead-man button [s]"""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            UnusableInputError: what is wrong, and what is valid.
        """
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UnusableInputError(f"{name} must be {low:g} to {high:g}, got {value!r}.")
        if self.speed_step not in range(1, len(SPEED_STEPS) + 1):
            raise UnusableInputError(
                f"speed_step must be 1 to {len(SPEED_STEPS)}, got {self.speed_step!r}."
            )
        if self.frame not in FRAMES:
            raise unknown_choice("frame", self.frame, FRAMES)
