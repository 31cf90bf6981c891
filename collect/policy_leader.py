"""A policy as a command source: observations in at the policy rate, joint targets out."""

from __future__ import annotations

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower, Policy
from gaploop.core.types import FloatArray, LeaderSample, Observation


class PolicyLeader:
    """Drives a follower by a policy.

    The loop hands observations to `observe` on policy frames. Between two frames the target
    moves in a straight line, so that a policy's steps don't read as jumps of twice the speed.

    Args:
        policy: answers in the follower's LeRobot units.
        follower: converts units.
        fps: policy frames per second of the loop [Hz].
        control_hz: turns of the loop per second [Hz].

    Raises:
        UnusableInputError: the policy was trained at another rate.
    """

    def __init__(self, policy: Policy, follower: Follower, fps: float, control_hz: float) -> None:
        if abs(policy.fps - fps) > 1e-6:
            raise UnusableInputError(
                f"The policy was trained at {policy.fps:g} fps and the loop runs at {fps:g}. "
                f"Set --dataset.fps={policy.fps:g}."
            )
        self._policy, self._follower = policy, follower
        self._turns = max(1, round(control_hz / fps))
        self.reset()

    def reset(self) -> None:
        """Get ready for a new take."""
        self._policy.reset()
        self._target: FloatArray | None = None
        self._from: FloatArray = np.empty(0)
        self._turn = 0

    def observe(self, observation: Observation) -> None:
        """Ask the policy for its next target."""
        asked = np.asarray(self._policy.act(observation), dtype=np.float64)
        target = self._follower.from_units(asked)
        start = self._target
        if start is None or not np.isfinite(start).all():
            start = self._follower.from_units(observation.state)
        self._from = start
        self._target, self._turn = target, 0

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint target for loop time `t_s` [s].

        Raises:
            UnusableInputError: nothing has been observed yet.
        """
        if self._target is None:
            raise UnusableInputError(
                "The policy hasn't seen an observation yet: give its `observe` to the loop's "
                "on_frame."
            )
        self._turn = min(self._turn + 1, self._turns)
        share = self._turn / self._turns
        return LeaderSample(t_s, self._from + share * (self._target - self._from))

    def done(self) -> bool:
        """Return False: a policy doesn't say when it is done."""
        return False
