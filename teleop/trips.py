"""What trips the safety filter: watched on every turn, before any command goes out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gaploop.core.station import SafetyLimits
from gaploop.core.types import NO_REPLY, FollowerState, LeaderSample, SafetyReason


class TripWatch:
    """Says what is wrong with leader and arm.

    Args:
        limits: what counts as wrong, and for how long.
        n_joints: joints of the arm.
    """

    def __init__(self, limits: SafetyLimits, n_joints: int) -> None:
        self._limits = limits
        self._shape = (n_joints,)
        self._estop = False
        self._stalled = _Lasting(n_joints)
        self._silent = _Lasting(n_joints)
        self._heard_s = math.nan

    def estop(self) -> None:
        """Trip at the next turn. Safe to call from a signal handler or another thread."""
        self._estop = True

    def clear(self) -> None:
        """Forget an e-stop and what has lasted so far."""
        self._estop = False
        self.reset()

    def reset(self) -> None:
        """Forget what has lasted so far: the loop didn't watch for a while."""
        self._stalled.forget()
        self._silent.forget()
        self._heard_s = math.nan

    def cause(self, sample: LeaderSample, state: FollowerState, now_s: float) -> SafetyReason:
        """Return what is wrong at `now_s` [s]; NONE where nothing is."""
        limits = self._limits
        cause = SafetyReason.ESTOP if self._estop else SafetyReason.NONE
        # Written so that NaN, and a time that lies ahead, count as stale.
        if not -limits.stale_leader_s <= now_s - sample.t_s <= limits.stale_leader_s:
            cause |= SafetyReason.STALE_LEADER
        if not self._is_whole(state):
            return cause | SafetyReason.HARDWARE_ERROR
        if any(state.status.tolist()):
            cause |= self._by_status(state.status, now_s)
        else:
            self._silent.forget()
            self._heard_s = now_s
        # As plain numbers: on six of them, from cold caches, array arithmetic costs far more.
        if any(heat_c > limits.temperature_c for heat_c in state.temperature_c.tolist()):
            cause |= SafetyReason.OVER_TEMPERATURE
        if self._stalled.longer_than(limits.stall_s, self._pushes(state), now_s, now_s):
            cause |= SafetyReason.STALL
        return cause

    def _is_whole(self, state: FollowerState) -> bool:
        """Say whether every array has one entry per joint: a torn report is a broken device."""
        shape = self._shape
        return (
            state.status.shape == shape
            and state.status.dtype.kind in "iu"
            and state.position_rad.shape == shape
            and state.current_a.shape == shape
            and state.load_pct.shape == shape
            and state.temperature_c.shape == shape
        )

    def _by_status(self, status: NDArray[np.int64], now_s: float) -> SafetyReason:
        cause = SafetyReason.NONE
        if (status & ~NO_REPLY).any():
            cause |= SafetyReason.HARDWARE_ERROR
        silent = [bool(bits & NO_REPLY) for bits in status.tolist()]
        heard_s = now_s if math.isnan(self._heard_s) else self._heard_s
        if self._silent.longer_than(self._limits.lost_servo_s, silent, now_s, heard_s):
            cause |= SafetyReason.LOST_SERVO
        self._heard_s = now_s
        return cause

    def _pushes(self, state: FollowerState) -> list[bool]:
        """Return which motors draw more than the stall current, or lack it and show the load."""
        most_a, most_pct = self._limits.stall_current_a, self._limits.stall_load_pct
        efforts = zip(state.current_a.tolist(), state.load_pct.tolist(), strict=True)
        return [
            abs(current_a) > most_a or (current_a != current_a and abs(load_pct) > most_pct)
            for current_a, load_pct in efforts
        ]


class _Lasting:
    """Since when something has been so, joint by joint."""

    def __init__(self, n_joints: int) -> None:
        self._never: list[float | None] = [None] * n_joints
        self._since_s = self._never

    def forget(self) -> None:
        """Start over."""
        self._since_s = self._never

    def longer_than(
        self, long_s: float, is_so: Sequence[bool], now_s: float, began_s: float
    ) -> bool:
        """Say whether any joint has been so for `long_s` [s]; what is new began at `began_s`."""
        if not any(is_so):
            self.forget()
            return False
        self._since_s = [
            (began_s if since_s is None else since_s) if so else None
            for so, since_s in zip(is_so, self._since_s, strict=True)
        ]
        return any(since_s is not None and now_s - since_s >= long_s for since_s in self._since_s)
