"""A policy whose targets are smoothed before they are driven to."""

from __future__ import annotations

import math

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Policy
from gaploop.core.types import FloatArray, Observation


class SmoothedPolicy:
    """Follows a policy's targets with a first-order lag; itself a policy.

    It starts from where the arm stands, so that the first target isn't a step either. A constant
    target is approached to 63 % within `time_constant_s`; a moving one is followed that much later.

    Args:
        policy: smoothed.
        time_constant_s: above 0 [s].

    Raises:
        UnusableInputError: a time constant that isn't above 0.
    """

    def __init__(self, policy: Policy, time_constant_s: float) -> None:
        if not 0 < time_constant_s < math.inf:
            raise UnusableInputError(
                f"--smoothing.exponential_s must be above 0 s, got {time_constant_s:g}. Leave it "
                "out for no smoothing."
            )
        self._policy, self.fps = policy, policy.fps
        self.needs_scene = bool(getattr(policy, "needs_scene", False))
        self._share = -math.expm1(-1.0 / (policy.fps * time_constant_s))
        self._last: FloatArray | None = None

    def reset(self) -> None:
        """Forget the episode before."""
        self._policy.reset()
        self._last = None

    def act(self, observation: Observation) -> FloatArray:
        """Return the next smoothed joint target, in the policy's LeRobot units."""
        asked = np.asarray(self._policy.act(observation), dtype=np.float64)
        before = (
            np.asarray(observation.state, dtype=np.float64) if self._last is None else self._last
        )
        target = before + self._share * (asked - before)
        if np.isfinite(target).all():
            self._last = target
        return target
