"""The safety filter: between every command source and every follower, and never switched off.

It looks at each request in this order. What isn't finite holds the arm; so does a request that no
hand could have made of the one before it, such as an encoder's wrap or a leader that was
re-plugged: if the leader stays there, the arm aligns with it as slowly as at a start. The request
is clamped to the joint limits, the step towards it to the velocity limit, or to the share of it
that a slowed policy has; the speed may only grow as the acceleration limit allows; where LeRobot's
`max_relative_target` is set, the goal stays that near to where the joint is; and what is left of
the step is shortened until the arm's points stay in the workspace box. The box comes last because
the clamps before it bend the path, and what was inside the box before them needn't be after;
shortening a step breaks none of the limits before it. Slowing down is never delayed: a filter that
may not stop at once overshoots what was asked, and at a joint's end that is the worse evil.

An arm that stands outside its limits at the start isn't yanked back: it may move towards them,
within the velocity limit, and never further out.

What trips it is watched on every turn, before any command goes out (`teleop.trips`). A trip
latches; only `clear`, the operator's word, ends it. The arm holds for a moment, and then `response`
says what becomes of it: it is held on, lowered, or let go (docs/teleoperate/teleoperation.md,
"However it ends").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import Any, Final, Literal

import numpy as np

from gaploop.core.arms import ARMS, model_of
from gaploop.core.errors import DeviceError, UnusableInputError, unknown_choice
from gaploop.core.messages import (
    SPEED,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
)
from gaploop.core.protocols import Follower
from gaploop.core.station import SafetyLimits, Station
from gaploop.teleop.lowering import LOWER_RAD_S, Lowering
from gaploop.teleop.trips import TripWatch
from gaploop.teleop.workspace import CAUGHT_UP_RAD, Alignment, WorkspaceGuard, apart, guards_for

CHANGED_RAD: Final = 1e-9
"""A command that differs from the request by less than this was not changed [rad]."""
OUTSIDE_MAX_RAD: Final = math.pi
"""A joint that stands further than this outside its limits has no valid calibration [rad]."""
JUMP_RAD: Final = 0.5
HAND_RAD_S: Final = 10.0
MOST_JUMP_RAD: Final = 1.5
"""A request further from the one before than `JUMP_RAD` and what a hand does in the time between
(`HAND_RAD_S`; wrists and triggers stay below [rad, rad/s]), or in any case than `MOST_JUMP_RAD`, is
a jump. At the velocity limit a smaller one is over in an instant."""
JUMP_HOLD_S: Final = 0.2
"""The arm holds until the leader has stayed for so long where it jumped to [s]: most jumps are one
bad reading."""
_ON_TIME: Final = 1e-6
"""A turn that is early or late by less than this part of a period is on time: rounding."""


class Response(Enum):
    """What becomes of the arm after a trip."""

    HOLD = "hold"
    """It stays where it is, under torque: an e-stop."""
    LOWER = "lower"
    """It is lowered to its park pose, and then its torque goes off."""
    LET_GO = "let go"
    """Torque goes off at once, damped where the servos can: who holds on makes it worse."""


_LETS_GO: Final = SafetyReason.STALL | SafetyReason.LOST_SERVO | SafetyReason.NOT_FOLLOWING


def make_safety(station: Station, follower: Follower, period_s: float) -> SafetyFilter:
    """Return the filter of an arm in its cell, for a command every `period_s` [s].

    The arm's own joint limits are narrowed by the station's.

    Raises:
        UnusableInputError: what the station says doesn't fit the robot.
    """
    joint_limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    guards = guards_for(station, follower)
    model = model_of(follower.robot_type)
    highest_a = ARMS[model].stall_current_a if model else math.inf
    stall_a = min(station.safety.stall_current_a, highest_a)
    lost_s = max(station.safety.lost_servo_s, getattr(follower, "lost_s", 0.0))
    limits = replace(station.safety, stall_current_a=stall_a, lost_servo_s=lost_s)
    grips = [k for k, name in enumerate(follower.joint_names) if "gripper" in name]
    park_rad = park_pose(station, follower)
    if speeds := sum(name.endswith(SPEED) for name in follower.joint_names):
        return DrivingFilter(
            limits, joint_limits_rad, period_s, guards, grips, park_rad, speeds=speeds
        )
    relative_rad: FloatArray | None = getattr(follower, "max_relative_rad", None)
    return SafetyFilter(
        limits, joint_limits_rad, period_s, guards, grips, relative_rad, park_rad=park_rad
    )


def park_pose(station: Station, follower: Follower) -> FloatArray | None:
    """Return where an arm is lowered to [rad], NaN for joints that stay; None where unknown.

    The station's `park_rad`, else the folded rest of the arm; of both arms of a pair.

    Raises:
        UnusableInputError: a joint that the robot hasn't got, or a pose outside its limits.
    """
    names = follower.joint_names
    limits = station.joint_limits(names, follower.joint_limits_rad)
    pose = np.full(len(names), np.nan)
    if station.park_rad:
        place = f"{station.where}: park_rad"
        for name, q in station.park_rad.items():
            if name not in names or name.endswith(SPEED):
                raise unknown_choice("joint", name, names, place)
            low, high = limits[names.index(name)].tolist()
            if not low <= q <= high:
                raise UnusableInputError(
                    f"{place}: {name}: {q:g} lies outside its limits [{low:.4g}, {high:.4g}] rad."
                )
            pose[names.index(name)] = q
        return pose
    model = model_of(follower.robot_type)
    park: Mapping[str, float] = ARMS[model].park_rad if model else {}
    for k, name in enumerate(names):
        q = park.get(name.removeprefix("left_").removeprefix("right_"), math.nan)
        pose[k] = min(max(q, limits[k, 0]), limits[k, 1]) if q == q else math.nan
    return pose if np.isfinite(pose).any() else None


class SafetyFilter:
    """Turns what a leader asks for into what the follower is sent.

    Args:
        joint_limits_rad: lower and upper limit [rad], shape (n_joints, 2), finite.
        period_s: time between two commands [s].
        guards: workspace boxes, one per arm; none where no arm model is known.
        grips: which joints hold things, and so rightly don't reach their goals.
        max_relative_rad: furthest that a goal may be from where its joint is [rad], shape
            (n_joints,); None for no such limit. A trip's hold is no goal: it has none.
        park_rad: where the arm is lowered to [rad], NaN for joints that stay; None where unknown.

    Raises:
        UnusableInputError: limits that are not finite or not in order, or a period of 0.
    """

    def __init__(
        self,
        limits: SafetyLimits,
        joint_limits_rad: FloatArray,
        period_s: float,
        guards: Sequence[WorkspaceGuard] = (),
        grips: Sequence[int] = (),
        max_relative_rad: FloatArray | None = None,
        park_rad: FloatArray | None = None,
    ) -> None:
        bounds = np.array(joint_limits_rad, dtype=np.float64)
        if bounds.ndim != 2 or bounds.shape[1] != 2 or not np.isfinite(bounds).all():
            raise UnusableInputError(
                f"Joint limits must be finite and of shape (n_joints, 2), got {bounds.tolist()}."
            )
        if (bounds[:, 0] > bounds[:, 1]).any() or not 0 < period_s < math.inf:
            raise UnusableInputError(
                "Joint limits must be [lower, upper] and the control period above 0 s, got "
                f"{bounds.tolist()} and {period_s} s."
            )
        self.limits, self.guards = limits, tuple(guards)
        self._grips, self._park_rad = tuple(grips), park_rad
        self._alignments = [
            (guard, Alignment(guard.room(bounds[guard.joints]), period_s)) for guard in self.guards
        ]
        self._low, self._high = bounds[:, 0].copy(), bounds[:, 1].copy()
        self._bounds: list[tuple[float, float]] = [(low, high) for low, high in bounds.tolist()]
        self._period_s = period_s
        self._full_rad = limits.velocity_rad_s * period_s
        self._align_rad = min(limits.align_velocity_rad_s, limits.velocity_rad_s) * period_s
        self._gain_rad = limits.acceleration_rad_s2 * period_s**2
        self._share = 1.0
        """Of `_full_rad`, what may be made use of."""
        self._relative_rad = None if max_relative_rad is None else max_relative_rad.tolist()
        self._watch = TripWatch(limits, len(bounds), grips)
        self._jumps = _Jumps()
        self.tripped = SafetyReason.NONE
        """What tripped the filter; `NONE`, which is false, where nothing did."""
        self.tripped_at_s = math.nan
        """When it tripped, on the loop's clock [s]; NaN where it didn't."""
        self._now_s = math.nan
        self._intervention = False
        self._begin(np.clip(np.zeros(len(bounds)), self._low, self._high))

    def _begin(self, q: FloatArray) -> None:
        """Be at rest at `q`, with the leader still to be caught up with."""
        q.setflags(write=False)  # who is handed a command can't change what was sent
        self._sent = q
        self._at: list[float] = q.tolist()
        self._hold = self._at
        self._last_step = [0.0] * len(q)
        self._is_outside = self._leaves_bounds(self._at)
        self._start_over()
        self._now_s = math.nan
        for guard in self.guards:
            guard.start([self._at[joint] for joint in guard.joints])

    def to_json(self) -> dict[str, Any]:
        """Return what `SafetyFilter` is made of, but for the period, for JSON."""
        return {
            "limits": asdict(self.limits),
            "joint_limits_rad": self._bounds,
            "grips": list(self._grips),
            "boxes": [
                {"model": one.model, "box": one.box.bounds_m().T.tolist(), "joints": one.joints}
                for one in self.guards
            ],
            "park_rad": None if self._park_rad is None else self._park_rad.tolist(),
        }

    @property
    def sent_rad(self) -> FloatArray:
        """What was sent last [rad], shape (n_joints,)."""
        return self._sent.copy()

    @property
    def catching_up(self) -> bool:
        """Say whether the arm still creeps towards its leader at `align_velocity_rad_s`."""
        return not self._caught_up

    @property
    def alignment(self) -> str:
        """What the arm does about a box that is in its way to its leader, or "", in words."""
        return " ".join(a.says for _, a in self._alignments if a.says) if self.catching_up else ""

    @property
    def hold_is_over(self) -> bool:
        """Say whether a trip has been held for `torque_off_s`, so that `response` is due.

        A servo that isn't heard can't be told to hold either: then it is due at once.
        """
        if not self.tripped:
            return False
        hold_s = 0.0 if self.tripped & SafetyReason.LOST_SERVO else self.limits.torque_off_s
        return self._now_s - self.tripped_at_s >= hold_s

    @property
    def response(self) -> Response:
        """What becomes of the arm after this trip; as at an orderly end where nothing tripped."""
        if self.tripped & _LETS_GO or self._watch.lets_go:
            return Response.LET_GO
        return Response.HOLD if self.tripped & SafetyReason.ESTOP else Response.LOWER

    @property
    def ill(self) -> frozenset[int]:
        """Joints to release alone: one servo is too hot, or reports an error of its own."""
        return self._watch.ill

    def reset(self, q_rad: FloatArray) -> None:
        """Start a take from measured joint positions [rad], shape (n_joints,), at rest.

        A latched trip stays latched.

        Raises:
            DeviceError: a position isn't finite, or is far outside the joint limits.
        """
        q = np.array(q_rad, dtype=np.float64)
        if q.shape != self._low.shape or not np.isfinite(q).all():
            raise DeviceError(
                f"The follower reports {q.tolist()} as joint positions; {len(self._low)} finite "
                "angles are needed to start. Check its bus and calibration."
            )
        outside = np.maximum(self._low - q, q - self._high)
        worst = int(outside.argmax())
        if outside[worst] > OUTSIDE_MAX_RAD:
            raise DeviceError(
                f"Joint {worst + 1} of the follower reports {q[worst]:.3g} rad, far outside its "
                f"limits [{self._low[worst]:.3g}, {self._high[worst]:.3g}]. Calibrate the arm."
            )
        self._begin(q)
        self._watch.reset()

    def estop(self) -> None:
        """Trip at the next turn. Safe to call from a signal handler or another thread."""
        self._watch.estop()

    def clear(self) -> None:
        """End a trip: the operator has seen to its cause. The arm stays where it was sent."""
        self._watch.clear()
        self.tripped = SafetyReason.NONE
        self.tripped_at_s = math.nan
        self._last_step = [0.0] * len(self._at)
        self._start_over()

    def _start_over(self) -> None:
        """Align slowly with the leader, wherever it is."""
        self._align(SafetyReason.NONE)
        self._jumps.forget()

    def _align(self, since: SafetyReason) -> None:
        self._caught_up, self._aligns_since = False, since
        for _, alignment in self._alignments:
            alignment.begin()

    def hold(self) -> SafeCommand:
        """Return the command that keeps the arm where it was sent last."""
        return SafeCommand(self._sent, self._sent, self.tripped)

    def watch(self, state: FollowerState, now_s: float, limp: Collection[int] = ()) -> SafetyReason:
        """Look for what is wrong with an arm that nobody leads, and return what tripped so far.

        `limp` joints have no torque: what their servos say is known.
        """
        well = state
        if limp:
            gone = np.isin(np.arange(len(state.status)), list(limp))
            # As if they did what they are told.
            well = replace(
                state,
                position_rad=np.where(gone, self._sent, state.position_rad),
                current_a=np.where(gone, np.nan, state.current_a),
                load_pct=np.where(gone, np.nan, state.load_pct),
                temperature_c=np.where(gone, np.nan, state.temperature_c),
                status=np.where(gone, 0, state.status),
            )
        cause = self._watch.cause(LeaderSample(now_s, self._sent), well, now_s, self._at)
        self._latch(cause, now_s)
        return self.tripped

    def lowering(self, limp: Collection[int] = ()) -> Lowering:
        """Return the way down from where the arm was sent last; `limp` joints have no torque."""
        limits = np.stack([self._low, self._high], axis=1)
        slowest = min(LOWER_RAD_S, self.limits.velocity_rad_s)
        return Lowering(
            self._sent,
            self._park_rad,
            limits,
            grips=self._grips,
            limp=limp,
            guards=self.guards,
            speed_rad_s=slowest,
        )

    def lower(self, q_rad: FloatArray) -> SafeCommand:
        """Return what may be sent for a goal of `lowering` [rad]: within limits and velocity.

        The workspace box is heeded by the lowering itself, as long as it goes to the park pose.
        """
        guards, self.guards = self.guards, ()
        self._share = 1.0  # whoever drove slowly: a goal that runs ahead would let the arm fall
        sent, _ = self._towards(q_rad.tolist(), 1.0)
        self.guards = guards
        return SafeCommand(np.array(q_rad), sent, self.tripped)

    def _latch(self, cause: SafetyReason, now_s: float) -> None:
        if cause and not self.tripped:
            self.tripped_at_s, self._hold = now_s, self._at
        self.tripped |= cause

    def filter(self, sample: LeaderSample, state: FollowerState, now_s: float) -> SafeCommand:
        """Return what may be sent now; `sample` may hold anything, `state` came just before."""
        # The time since the turn before, in periods: a turn that follows a late one comes early,
        # and a whole step would then be too fast.
        part = (now_s - self._now_s) / self._period_s
        self._now_s = now_s
        part = 1.0 if math.isnan(part) or abs(part - 1.0) < _ON_TIME else max(part, 0.0)
        try:
            requested = np.asarray(sample.q_rad, dtype=np.float64)
        except (TypeError, ValueError):
            requested = np.empty(0)
        if requested.shape != self._sent.shape:  # not an angle for every joint
            requested = np.full(len(self._sent), np.nan)
        self._share = min(sample.speed_share, 1.0)
        cause = self._watch.cause(sample, state, now_s, self._at)
        is_first = not self.tripped
        self._latch(cause, now_s)
        if is_first and cause & SafetyReason.STALL:
            # A stalled arm is held where it is, not where it was told to push to.
            q = state.position_rad
            near = (q > self._low - CAUGHT_UP_RAD) & (q < self._high + CAUGHT_UP_RAD)
            if near.all():
                self._hold = self._within_bounds(q.tolist())
        if self.tripped:
            sent, _ = self._towards(self._hold, part)
            return SafeCommand(requested, sent, SafetyReason.TRIPPED | self.tripped)
        if self._watch.is_deaf:  # from here on it comes slowly to wherever its leader is by then
            self._last_step = [0.0] * len(self._at)
            self._start_over()
            return SafeCommand(requested, self._sent, SafetyReason.LOST_SERVO)
        asked: list[float] = requested.tolist()
        if not all(map(math.isfinite, asked)):
            self._last_step = [0.0] * len(self._at)
            self._jumps.blind(sample.t_s)
            return SafeCommand(requested, self._sent, SafetyReason.NON_FINITE)
        if sample.intervention != self._intervention:  # somebody else drives, from elsewhere
            self._intervention = sample.intervention
            self._start_over()
        jump = self._jumps.look(asked, sample.t_s, now_s)
        if jump == "away":
            self._last_step = [0.0] * len(self._at)
            is_back = not apart(self._at, asked, CHANGED_RAD)  # where it was: nothing is changed
            reason = SafetyReason.NONE if is_back else SafetyReason.LEADER_JUMP
            return SafeCommand(requested, self._sent, reason)
        if jump == "landed":
            self._align(SafetyReason.LEADER_JUMP)
        target = self._within_bounds(asked)
        if self._caught_up:
            sent, reasons = self._towards(target, part, state.position_rad)
        else:
            sent, reasons = self._towards_leader(target, part, state.position_rad)
        if apart(self._at, asked, CHANGED_RAD):
            if apart(asked, target, CHANGED_RAD):
                reasons |= SafetyReason.JOINT_LIMIT
            if not self._caught_up:
                reasons |= self._aligns_since
            return SafeCommand(requested, sent, reasons)
        return SafeCommand(requested, sent)

    def _towards_leader(
        self, target: list[float], part: float, present: FloatArray
    ) -> tuple[FloatArray, SafetyReason]:
        """Step towards a leader that is still to be caught up with: where a box is in the way,
        round about.
        """
        was, goals = self._at, target.copy()
        most_rad = min(self._align_rad, self._share * self._full_rad) * min(part, 1.0)
        for guard, alignment in self._alignments:
            at, own = [was[j] for j in guard.joints], [target[j] for j in guard.joints]
            for joint, q in zip(guard.joints, alignment.aim(at, own, most_rad), strict=True):
                goals[joint] = q
        sent, reasons = self._towards(goals, part, present)
        for guard, alignment in self._alignments:
            at, own = ([q[j] for j in guard.joints] for q in (self._at, target))
            if alignment.came(at, own, guard.shortened, self._now_s):
                reasons |= SafetyReason.WORKSPACE
        self._caught_up = not apart(self._at, target, CAUGHT_UP_RAD)
        return sent, reasons

    def _within_bounds(self, q_rad: Sequence[float]) -> list[float]:
        pairs = zip(q_rad, self._bounds, strict=True)
        return [min(max(q, low), high) for q, (low, high) in pairs]

    def _leaves_bounds(self, q_rad: Sequence[float]) -> bool:
        pairs = zip(q_rad, self._bounds, strict=True)
        return any(not low <= q <= high for q, (low, high) in pairs)

    # Joint by joint in plain numbers: the loop wakes with cold caches, and then array arithmetic
    # on six joints takes far longer than this does.

    def _towards(
        self, target: Sequence[float], part: float, present: FloatArray | None = None
    ) -> tuple[FloatArray, SafetyReason]:
        """Step towards `target` within every limit; return also what shortened the step.

        Where joints are, `present` [rad], counts for `max_relative_target` only.
        """
        # `last_step` counts whole periods. A longer turn moves no further than a period's.
        short = min(part, 1.0)
        most_rad = self._share * self._full_rad * short
        if not self._caught_up:
            most_rad = min(most_rad, self._align_rad * short)
        gain_rad = self._gain_rad * short * short
        sent, too_fast, too_sudden = [], False, False
        for goal, at, last in zip(target, self._at, self._last_step, strict=True):
            wanted = goal - at
            step = min(max(wanted, -most_rad), most_rad)
            # Growing speed is limited, in the direction of motion; stopping and reversing start
            # at 0.
            moving = (abs(last * short) if last * step > 0 else 0.0) + gain_rad
            eased = min(max(step, -moving), moving)
            sent.append(at + eased)
            too_fast |= abs(wanted - step) > CHANGED_RAD
            too_sudden |= abs(step - eased) > CHANGED_RAD
        too_far = False
        if self._relative_rad is not None and present is not None and len(present) == len(sent):
            rows = zip(sent, present.tolist(), self._relative_rad, strict=True)
            near = [min(max(q, at - most), at + most) if at == at else q for q, at, most in rows]
            too_far, sent = apart(near, sent, CHANGED_RAD), near
        if not self._is_outside:  # an arm that stands outside comes back step by step
            sent = self._within_bounds(sent)
        reached = sent
        for guard in self.guards:
            goals = [sent[joint] for joint in guard.joints]
            allowed = guard.limit([self._at[joint] for joint in guard.joints], goals)
            if allowed is not goals:
                reached = reached.copy()
                for joint, q in zip(guard.joints, allowed, strict=True):
                    reached[joint] = q
        reasons = SafetyReason.NONE
        if too_fast:
            reasons |= SafetyReason.VELOCITY
        if too_sudden:
            reasons |= SafetyReason.ACCELERATION
        if too_far:
            reasons |= SafetyReason.RELATIVE_TARGET
        if reached is not sent:
            reasons |= SafetyReason.WORKSPACE
        steps = zip(reached, self._at, strict=True)
        self._last_step = [(q - at) / part if part > 0 else 0.0 for q, at in steps]
        if self._is_outside:
            self._is_outside = self._leaves_bounds(reached)
        self._at, self._sent = reached, np.array(reached)
        self._sent.setflags(write=False)
        return self._sent, reasons


BASE_M_S2: Final = 0.5
"""A base gains at most so much speed in a second [m/s², rad/s²]; it loses any at once."""
_STANDS: Final = (
    SafetyReason.TRIPPED
    | SafetyReason.NON_FINITE
    | SafetyReason.LEADER_JUMP
    | SafetyReason.LOST_SERVO
)


class DrivingFilter(SafetyFilter):
    """A filter of an arm on a base that drives.

    The last joints are speeds of the base. Where the arm is held, after a trip, an e-stop, a stale
    leader or a request that makes no sense, the base stands still: to hold a speed is to drive on.

    Args:
        joint_limits_rad: of the arm's joints and then of the speeds [m/s, rad/s].
        speeds: how many of the last joints are speeds.
    """

    def __init__(
        self,
        limits: SafetyLimits,
        joint_limits_rad: FloatArray,
        period_s: float,
        guards: Sequence[WorkspaceGuard] = (),
        grips: Sequence[int] = (),
        park_rad: FloatArray | None = None,
        *,
        speeds: int,
    ) -> None:
        bounds = np.asarray(joint_limits_rad, dtype=np.float64)
        self._n_arm = len(bounds) - speeds
        self._slowest, self._fastest = bounds[self._n_arm :].T
        self._base: FloatArray = np.zeros(speeds)
        self._gain = BASE_M_S2 * period_s
        park_rad = None if park_rad is None else park_rad[: self._n_arm]
        super().__init__(limits, bounds[: self._n_arm], period_s, guards, grips, park_rad=park_rad)

    @property
    def sent_rad(self) -> FloatArray:
        """What was sent last [rad], then the base's speeds, shape (n_joints,)."""
        return np.concatenate([self._sent, self._base])

    def reset(self, q_rad: FloatArray) -> None:
        """Start a take at rest, wherever the base was going."""
        self._base = np.zeros_like(self._base)
        super().reset(np.asarray(q_rad, dtype=np.float64)[: self._n_arm])

    def hold(self) -> SafeCommand:
        """Return the command that keeps the arm where it was sent last, and the base too."""
        return self._standing(super().hold())

    def watch(self, state: FollowerState, now_s: float, limp: Collection[int] = ()) -> SafetyReason:
        """Look for what is wrong with the arm; a base that stands still is well."""
        return super().watch(state.part(slice(self._n_arm)), now_s, limp)

    def lower(self, q_rad: FloatArray) -> SafeCommand:
        """Return what may be sent for a goal of the arm's lowering; the base stands still."""
        return self._standing(super().lower(q_rad))

    def _standing(self, arm: SafeCommand) -> SafeCommand:
        self._base = np.zeros_like(self._base)
        return replace(arm, requested_rad=self.sent_rad, sent_rad=self.sent_rad)

    def filter(self, sample: LeaderSample, state: FollowerState, now_s: float) -> SafeCommand:
        """Return what may be sent now; the arguments are `SafetyFilter`'s."""
        try:
            asked = np.asarray(sample.q_rad, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            asked = np.empty(0)
        own = slice(self._n_arm)
        arm = super().filter(replace(sample, q_rad=asked[own]), state.part(own), now_s)
        base, reasons = asked[self._n_arm :], arm.reasons
        if base.shape != self._base.shape or not np.isfinite(base).all():
            base, reasons = np.full_like(self._base, np.nan), reasons | SafetyReason.NON_FINITE
        if reasons & _STANDS:
            self._base = np.zeros_like(self._base)
        else:
            wanted = np.clip(base, self._slowest, self._fastest)
            if (wanted != base).any():
                reasons |= SafetyReason.VELOCITY
            # From where it goes towards what is asked: slower at once, faster bit by bit.
            start = np.where(self._base * wanted > 0, self._base, 0.0)
            slower = np.abs(wanted) <= np.abs(start)
            gained = start + np.clip(wanted - start, -self._gain, self._gain)
            if (np.abs(wanted - gained) > CHANGED_RAD).any() and not slower.all():
                reasons |= SafetyReason.ACCELERATION
            self._base = np.where(slower, wanted, gained)
        requested = np.concatenate([arm.requested_rad, base])
        return SafeCommand(requested, self.sent_rad, reasons)


class _Jumps:
    """Tells requests that no hand could have made of the ones before them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Whatever is asked next is where the leader begins."""
        self._last: Sequence[float] | None = None
        self._there: Sequence[float] | None = None
        self._since_s = self._seen_s = math.nan

    def blind(self, sampled_s: float) -> None:
        """Nothing was asked: whatever the leader did meanwhile, a hand did or it jumped.

        Where it jumped to it wasn't seen to stay, so that counts from the next reading again.
        """
        self._seen_s, self._there = sampled_s, None

    def look(
        self, asked: Sequence[float], sampled_s: float, now_s: float
    ) -> Literal["", "away", "landed"]:
        """Say what a request of finite positions [rad] tells of a jump, sampled at `sampled_s` [s].

        The leader is "away" where it isn't where it was, and hasn't stayed there long enough, and
        has "landed" once it has.
        """
        last, went_rad = self._last, HAND_RAD_S * abs(sampled_s - self._seen_s)
        most_rad, self._seen_s = min(JUMP_RAD + went_rad, MOST_JUMP_RAD), sampled_s
        if last is None or not apart(last, asked, most_rad):
            self._last, self._there = asked, None
            return ""
        if self._there is None or apart(self._there, asked, most_rad):
            self._since_s = now_s
        self._there = asked
        if now_s - self._since_s < JUMP_HOLD_S:
            return "away"
        self._last, self._there = asked, None
        return "landed"
