"""The safety filter: between every command source and every follower, and never switched off.

It looks at each request in this order: non-finite values hold the arm; the request is clamped
to the joint limits; the step towards it is clamped to the velocity limit; and the speed may
only grow as the acceleration limit allows. Slowing down is never delayed: a filter that may
not stop at once overshoots what was asked, and at a joint's end that is the worse evil. So
position stands above velocity and velocity above acceleration.

Stall current, a stale leader, a servo's hardware error, heat and the e-stop trip it. A trip
latches: the arm holds, torque is due to go off after a delay, and only `clear`, which is the
operator's word, ends it. A workspace box needs kinematics and is not part of this filter yet.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.station import SafetyLimits
from gaploop.core.types import FloatArray, FollowerState, LeaderSample, SafeCommand, SafetyReason

CHANGED_RAD: Final = 1e-9
"""A command that differs from the request by less than this was not changed [rad]."""


class SafetyFilter:
    """Turns what a leader asks for into what the follower is sent.

    Args:
        limits: velocity and acceleration limits and what trips.
        joint_limits_rad: lower and upper limit [rad], shape (n_joints, 2), finite.
        period_s: time between two commands [s].

    Raises:
        UnusableInputError: limits that are not finite or not in order, or a period of 0.
    """

    def __init__(self, limits: SafetyLimits, joint_limits_rad: FloatArray, period_s: float) -> None:
        bounds = np.array(joint_limits_rad, dtype=np.float64)
        if bounds.ndim != 2 or bounds.shape[1] != 2 or not np.isfinite(bounds).all():
            raise UnusableInputError(
                f"Joint limits must be finite and of shape (n_joints, 2), got {bounds.tolist()}."
            )
        if (bounds[:, 0] > bounds[:, 1]).any() or not period_s > 0:
            raise UnusableInputError(
                "Joint limits must be [lower, upper] and the control period above 0 s, got "
                f"{bounds.tolist()} and {period_s} s."
            )
        self.limits = limits
        self._low, self._high = bounds[:, 0].copy(), bounds[:, 1].copy()
        self._step_rad = limits.velocity_rad_s * period_s
        self._gain_rad = limits.acceleration_rad_s2 * period_s**2
        self._sent: FloatArray = np.clip(np.zeros(len(bounds)), self._low, self._high)
        self._last_step: FloatArray = np.zeros(len(bounds))
        self._stalled_since_s = np.full(len(bounds), np.nan)
        self._any_stalled = False
        self._estop = False
        self._trip = SafetyReason.NONE
        self._tripped_at_s = math.nan
        self._now_s = -math.inf
        self._hold: FloatArray = self._sent

    @property
    def sent_rad(self) -> FloatArray:
        """What was sent last [rad], shape (n_joints,)."""
        return self._sent.copy()

    @property
    def tripped(self) -> SafetyReason:
        """What tripped the filter; `NONE`, which is false, where nothing did."""
        return self._trip

    @property
    def torque_off_due(self) -> bool:
        """Say whether a trip has been held for as long as it should be."""
        return bool(self._trip) and self._now_s - self._tripped_at_s >= self.limits.torque_off_s

    def reset(self, q_rad: FloatArray) -> None:
        """Start a take from measured joint positions [rad], shape (n_joints,), at rest.

        A latched trip stays latched.

        Raises:
            DeviceError: a position isn't finite.
        """
        q = np.asarray(q_rad, dtype=np.float64)
        if q.shape != self._low.shape or not np.isfinite(q).all():
            raise DeviceError(
                f"The follower reports {q.tolist()} as joint positions; {len(self._low)} finite "
                "angles are needed to start. Check its bus and calibration."
            )
        self._sent = np.clip(q, self._low, self._high)
        self._hold = self._sent
        self._last_step = np.zeros(len(q))
        self._stalled_since_s[:] = np.nan
        self._any_stalled = False

    def estop(self) -> None:
        """Trip at the next turn. Safe to call from a signal handler or another thread."""
        self._estop = True

    def clear(self) -> None:
        """End a trip: the operator has seen to its cause. The arm stays where it was sent."""
        self._estop = False
        self._trip = SafetyReason.NONE
        self._tripped_at_s = math.nan
        self._stalled_since_s[:] = np.nan
        self._any_stalled = False
        self._last_step = np.zeros_like(self._sent)

    def filter(self, sample: LeaderSample, state: FollowerState, now_s: float) -> SafeCommand:
        """Return what may be sent now.

        Args:
            sample: what the leader asks for; may hold NaN or infinities.
            state: what the follower reported just before.
            now_s: time on the loop's clock [s].
        """
        self._now_s = now_s
        requested = np.asarray(sample.q_rad, dtype=np.float64)
        self._look_for_trip(sample, state, now_s)
        if self._trip:
            sent, _ = self._towards(self._hold)
            return SafeCommand(requested, sent, SafetyReason.TRIPPED | self._trip)
        if requested.shape != self._sent.shape or not np.isfinite(requested).all():
            self._last_step = np.zeros_like(self._sent)
            return SafeCommand(requested, self._sent, SafetyReason.NON_FINITE)
        sent, reasons = self._towards(requested)
        return SafeCommand(requested, sent, reasons)

    def _towards(self, requested: FloatArray) -> tuple[FloatArray, SafetyReason]:
        """Step towards `requested` within position, velocity and acceleration limits."""
        reasons = SafetyReason.NONE
        target = np.minimum(np.maximum(requested, self._low), self._high)
        wanted = target - self._sent
        step = np.minimum(np.maximum(wanted, -self._step_rad), self._step_rad)
        # Growing speed is limited, in the direction of motion; stopping and reversing start at 0.
        moving = np.where(self._last_step * step > 0, np.abs(self._last_step), 0.0) + self._gain_rad
        eased = np.minimum(np.maximum(step, -moving), moving)
        sent = np.minimum(np.maximum(self._sent + eased, self._low), self._high)
        if np.abs(sent - requested).max() > CHANGED_RAD:
            reasons |= _why(requested - target, SafetyReason.JOINT_LIMIT)
            reasons |= _why(wanted - step, SafetyReason.VELOCITY)
            reasons |= _why(step - eased, SafetyReason.ACCELERATION)
        self._last_step = sent - self._sent
        self._sent = sent
        return sent, reasons

    def _look_for_trip(self, sample: LeaderSample, state: FollowerState, now_s: float) -> None:
        cause = SafetyReason.ESTOP if self._estop else SafetyReason.NONE
        if not now_s - sample.t_s <= self.limits.stale_leader_s:
            cause |= SafetyReason.STALE_LEADER
        if state.status.any():
            cause |= SafetyReason.HARDWARE_ERROR
        if (state.temperature_c > self.limits.temperature_c).any():
            cause |= SafetyReason.OVER_TEMPERATURE
        if self._stalls(state.current_a, now_s):
            cause |= SafetyReason.STALL
        if not cause:
            return
        if not self._trip:
            self._tripped_at_s = now_s
            # A stalled arm is held where it is, not where it was told to push to.
            measured = state.position_rad
            at_place = bool(cause & SafetyReason.STALL) and np.isfinite(measured).all()
            self._hold = np.asarray(measured if at_place else self._sent, dtype=np.float64)
        self._trip |= cause

    def _stalls(self, current_a: FloatArray, now_s: float) -> bool:
        """Say whether any motor has drawn more than the stall current for long enough."""
        over = np.abs(current_a) > self.limits.stall_current_a
        if not over.any():
            if self._any_stalled:
                self._stalled_since_s[:] = np.nan
                self._any_stalled = False
            return False
        self._any_stalled = True
        new = over & np.isnan(self._stalled_since_s)
        self._stalled_since_s[new] = now_s
        self._stalled_since_s[~over] = np.nan
        return bool((now_s - self._stalled_since_s >= self.limits.stall_s).any())


def _why(difference_rad: FloatArray, reason: SafetyReason) -> SafetyReason:
    return reason if np.abs(difference_rad).max() > CHANGED_RAD else SafetyReason.NONE
