"""Tells a robot that answers from memory from one that is there.

Some classes go on serving the last state they heard after the robot behind them has died: LeRobot's
LeKiwi client, a bridge, a simulator's client. Nothing raises, so nothing seems wrong.

- Where the class keeps the newest message, that is what tells: the same object again is nothing
  new, whatever an arm at rest reports. LeRobot's CAN buses keep one for each motor, and go on with
  that of a motor that is dead.
- Otherwise only the readings can tell. An arm at rest with quiet encoders repeats itself to the
  last bit, and so does one that holds a weight, or pushes with one joint on what doesn't give. So
  not one reading may have changed while the goals moved where no arm could have stayed: two joints
  off by more than `off_rad` after that much of travel, or one that is sent back to where it has
  just been, or that was sent past on both sides of where it says it is. A gripper that holds
  something and the speeds of a base aren't asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray

REACTION_S: Final = 0.3
"""No arm needs longer to show that it has begun to move [s]; 0.19 s was the slowest of those
measured (a Piper, from rest)."""
NEWS_S: Final = 0.1
"""A class that keeps its newest message has heard nothing for so long: it is silent [s]. Three
messages of LeKiwi's 30 a second."""
FORGET_RAD_S: Final = 0.2
"""Where a joint has been counts as free for a while: that range shrinks towards it [rad/s]."""
SEVERAL: Final = 2
"""So many joints at once aren't blocked without one reading of the arm that changes."""
_NEWEST: Final = ("last_remote_state", "_lowstate")
"""Where classes keep the newest message: LeKiwi's client and those made after it; Unitree's G1."""


_NEWEST_OF_MOTORS: Final = "_last_known_states"
"""Where LeRobot's CAN buses (Damiao, RobStride) keep the newest answer of each motor."""


class NewestMessages:
    """When a class that keeps its newest messages has heard them: they are made anew each time."""

    def __init__(self, device: Any, joints: Sequence[str]) -> None:
        self._device, self._joints = device, joints
        self._messages: list[Any] = [None] * len(joints)
        self._heard_s: FloatArray = np.full(len(joints), np.nan)

    def heard_s(self, now_s: float, *, is_new: bool = False) -> FloatArray | None:
        """Return when each joint's was heard [s], shape (n_joints,); None where none is kept.

        Args:
            is_new: what is read isn't what it was, though the message may be the same object.
        """
        device, by_motor = self._device, dict[str, Any]()
        found = (getattr(device, name, None) for name in _NEWEST)
        whole = next((message for message in found if message is not None), None)
        for side in ("", "left_", "right_"):
            bus = getattr(getattr(device, f"{side}arm", device if not side else None), "bus", None)
            states: Mapping[str, Any] = getattr(bus, _NEWEST_OF_MOTORS, {})
            by_motor |= {f"{side}{motor}": state for motor, state in states.items()}
        messages = [by_motor.get(joint, whole) for joint in self._joints]
        if all(message is None for message in messages):
            return None
        for k, (message, before) in enumerate(zip(messages, self._messages, strict=True)):
            if message is None or message is not before or (is_new and message is whole):
                self._heard_s[k] = now_s
        self._messages = messages
        return self._heard_s


class SilenceWatch:
    """Watches what a robot reports against where it is sent.

    Args:
        names: of all its joints, as its class calls them.
        joints: places of those that go where they are sent, grippers left out.
        off_rad: a joint this far from where it was sent should be under way [rad].
    """

    def __init__(
        self, device: Any, names: Sequence[str], joints: Sequence[int], off_rad: float
    ) -> None:
        self._newest, self._joints = NewestMessages(device, names), np.asarray(joints, np.intp)
        self._off_rad, self._n = off_rad, len(names)
        self._readings = b""
        self._since_s = self._changed_s = math.nan
        self._been: FloatArray = np.full((2, len(joints)), np.nan)
        self._is_dry = bool(getattr(getattr(device, "config", None), "dry_run", False))
        self.forget()

    def forget(self) -> None:
        """Nothing was sent so far, or the arm isn't held any more."""
        self._goals: FloatArray | None = None

    def sent(self, goals_rad: FloatArray) -> None:
        """Take note of goals, shape (n_joints,) [rad]."""
        goals = goals_rad[self._joints]
        if self._goals is None:
            self._goals = np.stack([goals, goals, goals])
        else:
            low, high, _ = self._goals
            self._goals = np.stack([np.minimum(low, goals), np.maximum(high, goals), goals])

    def silent(self, q_rad: FloatArray, readings: bytes, now_s: float) -> NDArray[np.bool_]:
        """Say whose `readings`, with the positions `q_rad` [rad], are memory and no answer.

        Returns shape (n_joints,).
        """
        heard_s = self._newest.heard_s(now_s, is_new=readings != self._readings)
        if heard_s is not None:
            self._readings = readings
            return np.asarray(now_s - heard_s >= NEWS_S)
        return np.full(self._n, self._stays(q_rad, readings, now_s))

    def _stays(self, q_rad: FloatArray, readings: bytes, now_s: float) -> bool:
        """Say whether nothing has changed though the goals moved where no arm could have stayed."""
        q, off_rad = q_rad[self._joints], self._off_rad
        if readings != self._readings:
            forgotten = FORGET_RAD_S * (now_s - self._changed_s)
            lowest, highest = self._been + np.array([[forgotten], [-forgotten]])
            self._been = np.stack([np.fmin(lowest, q), np.fmax(highest, q)])
            self._readings, self._changed_s, self._since_s = readings, now_s, math.nan
            self.forget()
        if self._goals is None:
            return False
        low, high, goal = self._goals
        moved = (high - low > off_rad) & (np.abs(goal - q) > off_rad)
        lowest, highest = self._been
        up = (goal - q > off_rad) & ((q - low > off_rad) | (highest - q > off_rad))
        down = (q - goal > off_rad) & ((high - q > off_rad) | (q - lowest > off_rad))
        free = up | down
        if self._is_dry or (np.count_nonzero(moved) < SEVERAL and not free.any()):
            self._since_s = math.nan
            return False
        if math.isnan(self._since_s):
            self._since_s = now_s
        return now_s - self._since_s >= REACTION_S
