"""When a person takes over from a policy, and when they hand back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import numpy as np

from gaploop.core.types import FloatArray, Observation


class Wish(Enum):
    """What the person wants."""

    TAKE_OVER = "take over"
    HAND_BACK = "hand back"


class TakeOver(Protocol):
    """Says when to switch; asked on every policy frame and, if it watches, on every turn."""

    watches_person: bool
    """Whether `motion` wants to see the leader while the policy drives."""

    def reset(self, speed_scale: float, /) -> None:
        """Get ready for a new attempt, in which the policy drives at that share of its speed."""
        ...

    def switched(self, person_drives: bool, /) -> None:
        """Take note of a switch, whoever asked for it."""
        ...

    def frame(self, observation: Observation, person_drives: bool, /) -> Wish | None:
        """Look at a policy frame."""
        ...

    def motion(self, t_s: float, q_rad: FloatArray, person_drives: bool, /) -> Wish | None:
        """Look at the leader's pose [rad], shape (n_joints,), at loop time `t_s` [s]."""
        ...


class OnRequest:
    """Only when asked, by a key."""

    watches_person = False

    def reset(self, _speed_scale: float, /) -> None:
        """Get ready for a new attempt."""

    def switched(self, _person_drives: bool, /) -> None:
        """Take note of a switch."""

    def frame(self, _observation: Observation, _person_drives: bool, /) -> Wish | None:
        """Look at a policy frame."""
        return None

    def motion(self, _t_s: float, _q_rad: FloatArray, _person_drives: bool, /) -> Wish | None:
        """Look at the leader's pose."""
        return None


class OnMotion(OnRequest):
    """When the leader is moved; back again when it has rested.

    Args:
        threshold_rad: moved means further than this within `window_s` [rad].
        hand_back_s: hands back after the leader has rested this long [s]; never if None.
        window_s: how far back to look [s].
    """

    watches_person = True

    def __init__(
        self, threshold_rad: float, hand_back_s: float | None = None, window_s: float = 0.5
    ) -> None:
        self._threshold_rad, self._hand_back_s = threshold_rad, hand_back_s
        self._window_s = window_s
        self._seen: deque[tuple[float, FloatArray]] = deque()
        self._moved_s: float | None = None

    def reset(self, _speed_scale: float, /) -> None:
        """Get ready for a new attempt."""
        self.switched(False)

    def switched(self, _person_drives: bool, /) -> None:
        """Look from here on."""
        self._seen.clear()
        self._moved_s = None

    def motion(self, t_s: float, q_rad: FloatArray, person_drives: bool, /) -> Wish | None:
        """Look at the leader's pose [rad], shape (n_joints,), at loop time `t_s` [s]."""
        if not np.isfinite(q_rad).all():
            return None
        if self._moved_s is None:
            self._moved_s = t_s
        self._seen.append((t_s, q_rad))
        while self._seen[0][0] < t_s - self._window_s:
            self._seen.popleft()
        if np.abs(q_rad - self._seen[0][1]).max() > self._threshold_rad:
            self._moved_s = t_s
            return None if person_drives else Wish.TAKE_OVER
        if not person_drives or self._hand_back_s is None:
            return None
        rested_s = t_s - self._moved_s
        return Wish.HAND_BACK if rested_s >= self._hand_back_s else None


class OnStall(OnRequest):
    """When the arm has stood still, or the attempt takes too long: for runs without a person.

    Args:
        fps: policy frames per second [Hz].
        from_units: LeRobot units to joint angles [rad].
        stall_s: taken over after the arm has stood still this long [s].
        late_s: taken over after the policy has driven this long without success [s].
        hand_back_s: handed back after this long [s]; never if None.
        still_rad: an arm whose joints stay within this stands still [rad].
    """

    def __init__(
        self,
        fps: float,
        from_units: Callable[[FloatArray], FloatArray],
        *,
        stall_s: float,
        late_s: float,
        hand_back_s: float | None = None,
        still_rad: float = 0.02,
    ) -> None:
        self._from_units, self._still_rad = from_units, still_rad
        self._stall, self._late = _frames(stall_s, fps), _frames(late_s, fps)
        self._hand_back = None if hand_back_s is None else _frames(hand_back_s, fps)
        self.reset(1.0)

    def reset(self, speed_scale: float, /) -> None:
        """Get ready for a new attempt; a slow policy is given that much longer."""
        self._slower = 1.0 / speed_scale
        self.switched(False)

    def switched(self, _person_drives: bool, /) -> None:
        """Count from here on."""
        self._frames = self._still = 0
        self._stands_rad: FloatArray | None = None

    def frame(self, observation: Observation, person_drives: bool, /) -> Wish | None:
        """Look at a policy frame."""
        self._frames += 1
        if person_drives:
            is_over = self._hand_back is not None and self._frames > self._hand_back
            return Wish.HAND_BACK if is_over else None
        q_rad = self._from_units(observation.state)
        if self._stands_rad is None or np.abs(q_rad - self._stands_rad).max() > self._still_rad:
            self._stands_rad, self._still = q_rad, 0
        self._still += 1
        is_due = max(self._still / self._stall, self._frames / self._late) > self._slower
        return Wish.TAKE_OVER if is_due else None


def _frames(duration_s: float, fps: float) -> int:
    return max(1, round(duration_s * fps))
