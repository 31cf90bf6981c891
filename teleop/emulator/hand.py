"""The hand of a simulated person: holds an arm, moves it for calibration, or leads with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from gaploop.core.errors import unknown_choice
from gaploop.teleop.emulator.joint import Drive
from gaploop.teleop.emulator.servo import EmulatedServo

HANDS: Final = ("none", "still", "rest", "middle_then_ranges", "wave")
UNHELD: Final = ("none", "rest", "middle_then_ranges")
"""With these a follower begins folded, as it lies without power. `rest` lays it down there and lets
go of it; `middle_then_ranges` takes hold only of an arm that has to be calibrated."""

_REACH_RAD_S: Final = 3.0
_WAVE_SHARE: Final = 0.08
"""Of half a joint's range: every arm then stays off the table and inside its workspace box."""
_WAVE_S: Final = (5.0, 6.1, 7.3, 4.7, 6.7, 5.3)
_INSIDE_RAD: Final = 0.01  # a sweep presses against the stops but not past them
_CENTRED_TICKS: Final = 40
_LAID_RAD: Final = 0.02


class ManualHand:
    """Moves the joints that it holds: all limp ones of a follower, every one of a leader.

    `rest_rad` is where a follower lies without anybody's help [rad].
    """

    def __init__(
        self,
        servos: Sequence[EmulatedServo],
        mode: str = "still",
        leads: bool = False,
        rest_rad: Sequence[float] | None = None,
    ) -> None:
        self.servos, self.leads = tuple(servos), leads
        self._middle = [(s.joint.low_rad + s.joint.high_rad) / 2 for s in self.servos]
        self._at = [s.joint.q_rad for s in self.servos]
        self._pose = list(self._at)
        self._rest = self._at if rest_rad is None else rest_rad
        self._since_s = self._now_s = 0.0
        self.sweep_s = 6.0
        self.mode = "still"
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        """Begin another motion; UnknownChoiceError for an unknown one."""
        if mode not in HANDS:
            raise unknown_choice("hand", mode, HANDS)
        self.mode = mode
        self._since_s = self._now_s

    def pose(self, q_rad: Sequence[float]) -> None:
        """Go to a pose [rad] and stay."""
        self._pose = list(q_rad)
        self.mode = "pose"

    def update(self, now_s: float) -> None:
        """Move on to `now_s` [s] since the start."""
        dt, self._now_s = max(0.0, now_s - self._now_s), now_s
        at_s = self._now_s - self._since_s
        goals: Sequence[float] | None = None  # nobody holds the joints
        match self.mode:
            case "still":
                goals = self._at
            case "pose":
                goals = self._pose
            case "rest":
                goals = self._rest
                lies = all(
                    abs(at - goal) < _LAID_RAD for at, goal in zip(self._at, goals, strict=True)
                )
                if lies or any(servo.joint.drive is not Drive.LIMP for servo in self.servos):
                    goals = None
                    self.set_mode("none")
            case "wave":  # smoothly about the middle, each joint at its own pace
                goals = [
                    middle + math.sin(at_s * math.tau / _WAVE_S[n % len(_WAVE_S)]) * half_rad
                    for n, (middle, half_rad) in enumerate(self._ranges(_WAVE_SHARE))
                ]
            case "middle_then_ranges":
                # Hold the middle until it is written down, as a homing offset that makes it read as
                # half a turn; then sweep until the ranges are, as limits narrower than a turn.
                goals, memories = self._middle, [servo.memory for servo in self.servos]
                pairs = zip(self.servos, self._middle, strict=True)
                if any(
                    not servo.memory["Homing_Offset"]
                    or abs(servo.shown_ticks_at(middle_rad) - 2047) > _CENTRED_TICKS
                    for servo, middle_rad in pairs
                ):
                    self._since_s = self._now_s
                elif any(
                    m["Max_Position_Limit"] - m["Min_Position_Limit"] < 4000 for m in memories
                ):
                    self.set_mode("wave" if self.leads else "rest")
                else:
                    phase = math.sin(at_s * math.tau / self.sweep_s)
                    ways = self._ranges(1.0)
                    goals = [middle + phase * (half_rad + _INSIDE_RAD) for middle, half_rad in ways]
        reach = _REACH_RAD_S * dt
        for n, servo in enumerate(self.servos):
            joint = servo.joint
            held = goals is not None and (self.leads or joint.drive is Drive.LIMP)
            if goals is None or not held:
                joint.hand_rad = None
                self._at[n] = joint.q_rad
                continue
            goal = min(max(goals[n], joint.low_rad), joint.high_rad)
            self._at[n] += max(-reach, min(reach, goal - self._at[n]))
            joint.hand_rad = self._at[n]

    def _ranges(self, share: float) -> Iterator[tuple[float, float]]:
        """Yield each joint's middle [rad], and so much of half its range [rad]."""
        for servo, middle in zip(self.servos, self._middle, strict=True):
            yield middle, share * (servo.joint.high_rad - servo.joint.low_rad) / 2
