"""A policy as a command source: observations in at the policy rate, joint targets out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.collect.smoothing import lag_share, lagged
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower, Policy
from gaploop.core.types import FloatArray, LeaderSample, Observation

ROUNDING: Final = 1e-9


@dataclass
class Pace:
    """How long a policy took in a take.

    Attributes:
        asked: how often it was asked.
        total_s: how long it took in all [s].
        worst_s: longest time for one answer [s].
        waited_s: how long the arm stood because an answer wasn't there yet [s].
    """

    asked: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0
    waited_s: float = 0.0

    def took(self, duration_s: float) -> None:
        """Take note of an answer."""
        self.asked += 1
        self.total_s += duration_s
        self.worst_s = max(self.worst_s, duration_s)

    @property
    def mean_s(self) -> float:
        """Mean time for an answer [s]."""
        return self.total_s / max(self.asked, 1)


class PolicyLeader:
    """Drives a follower by a policy.

    The loop hands observations to `observe` on policy frames. Between two frames the target
    moves in a straight line, so that a policy's steps don't read as jumps of twice the speed.

    At a `speed_scale` below 1 the same targets are passed through in the same order, more slowly:
    a frame moves along that share of a policy's step, and the policy is asked when the next target
    is needed.

    Args:
        policy: answers in the follower's LeRobot units.
        follower: converts units.
        fps: policy frames per second of the loop [Hz].
        control_hz: turns of the loop per second [Hz].
        lag_s: time constant of a first-order lag by which targets are followed [s]; not if None.

    Raises:
        UnusableInputError: the policy was trained at another rate, or a lag that isn't above 0.
    """

    def __init__(
        self,
        policy: Policy,
        follower: Follower,
        fps: float,
        control_hz: float,
        lag_s: float | None = None,
    ) -> None:
        if abs(policy.fps - fps) > 1e-6:
            raise UnusableInputError(
                f"The policy was trained at {policy.fps:g} fps and the loop runs at {fps:g}. "
                f"Set --dataset.fps={policy.fps:g}."
            )
        self._policy, self._follower = policy, follower
        self._share = lag_share(lag_s, fps)
        self._turns = max(1, round(control_hz / fps))
        self._speed_scale = 1.0
        self.pace = Pace()
        """How long the policy took since it was last set anew."""
        self.reset()

    @property
    def speed_scale(self) -> float:
        """Policy steps per frame, above 0 and up to 1."""
        return self._speed_scale

    @speed_scale.setter
    def speed_scale(self, scale: float) -> None:
        if not 0 < scale <= 1:
            raise UnusableInputError(f"--speed_scale must be above 0 and up to 1, got {scale:g}.")
        self._speed_scale = scale

    def reset(self) -> None:
        """Get ready for a new take."""
        self._policy.reset()
        self._path: list[FloatArray] = []
        self._turn = 0
        self._at = 0.0  # where on the path the frame begins, in policy steps

    def start_from(self, q_rad: FloatArray) -> None:
        """Plan anew from the next observation on, and move there from `q_rad` [rad]."""
        self.reset()
        self._path = [q_rad]

    def observe(self, observation: Observation) -> None:
        """Ask the policy for its next target, if this frame needs it."""
        if len(self._path) > 1:
            self._at += self._speed_scale  # where the frame before has led, or should have
        while self._at >= 1.0 - ROUNDING and len(self._path) > 1:
            self._path.pop(0)
            self._at = max(self._at - 1.0, 0.0)
        if not self._path or not np.isfinite(self._path[-1]).all():
            self._path, self._at = [self._follower.from_units(observation.state)], 0.0
        self._turn = 0
        while self._at + self._speed_scale > len(self._path) - 1 + ROUNDING:
            start_s = time.perf_counter()
            asked = np.asarray(self._policy.act(observation), dtype=np.float64)
            self.pace.took(time.perf_counter() - start_s)
            target = self._follower.from_units(asked)
            self._path.append(lagged(self._path[-1], target, self._share))

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint target for loop time `t_s` [s].

        Raises:
            UnusableInputError: nothing has been observed yet.
        """
        if not self._path:
            raise UnusableInputError(
                "The policy hasn't seen an observation yet: give its `observe` to the loop's "
                "on_frame."
            )
        if len(self._path) == 1:
            return LeaderSample(t_s, self._path[0])
        self._turn = min(self._turn + 1, self._turns)
        at = self._at + self._speed_scale * self._turn / self._turns
        step = min(math.floor(at), len(self._path) - 2)
        start, target = self._path[step], self._path[step + 1]
        return LeaderSample(t_s, start + min(at - step, 1.0) * (target - start))

    def close(self) -> None:
        """Let go of what the policy runs in; here it is the caller's thread."""

    def done(self) -> bool:
        """Return False: a policy doesn't say when it is done."""
        return False
