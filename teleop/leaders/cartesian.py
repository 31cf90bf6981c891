"""A leader that turns what an operator wants into joint angles: the tool moves, the arm follows.

Nothing moves unless the dead-man button is held: without it `read` returns the same joint angles
for ever, whatever else is pressed. Releasing it stops at once; only starting is gradual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel, Box
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.leaders.controls import Intent, IntentSource
from gaploop.teleop.leaders.options import SPEED_STEPS, CartesianOptions
from gaploop.teleop.leaders.tool_servo import ToolServo

LONGEST_STEP_S: Final = 0.04
"""A loop that stood still doesn't make up for it in one leap [s]."""
APART_RAD: Final = 0.15
"""Where what is sent is further than this from what was asked, the asking goes back to it [rad]."""
HOME_RAD_S: Final = 1.0
"""Fastest joint on the way home, at the highest speed step [rad/s]."""
STOOD_STILL_S: Final = 0.25
"""A loop that asks nothing for this long has stood still, as after a trip: the arm may have sunk,
and is asked where it is [s]."""
BEHIND: Final = np.array([0.05, 0.05, 0.05, 0.2, 0.2])
"""The tool is no further behind a hand than this [m, m, m, rad, rad]: what a hand does faster than
the arm may move isn't made up for."""
OVER_AXIS_M: Final = 0.03
"""Nearer the base's vertical axis than this, "sideways" stays what it was [m]."""


@dataclass(frozen=True)
class _Followed:
    """What the loop last said: what it sent and where the arm is."""

    sent_rad: FloatArray
    position_rad: FloatArray
    limp: bool

    @property
    def rad(self) -> FloatArray:
        """Where the arm should go on from: where it is, if it isn't where it was sent [rad]."""
        here = self.position_rad
        if not np.isfinite(here).all():
            return self.sent_rad
        off = np.abs(here - self.sent_rad)[:-1].max() > APART_RAD
        return here if self.limp or off else self.sent_rad


class CartesianLeader:
    """Drives an arm's tool by an input device. A `Leader`; also a `TakeSink` of the loop's ticks.

    Attach it to the loop that it leads, so that it learns what is really sent; without that it
    goes by what it asked for.

    Args:
        limits_rad: the follower's joint limits [rad], shape (n_joints, 2), gripper last.
        start: returns the follower's joint positions [rad]; called by `reset`.
        joint_velocity_rad_s: fastest motion of any joint [rad/s].
    """

    def __init__(
        self,
        arm: ArmModel,
        limits_rad: FloatArray,
        source: IntentSource,
        start: Callable[[], FloatArray],
        options: CartesianOptions,
        box: Box | None = None,
        joint_velocity_rad_s: float = CartesianOptions.joint_velocity_rad_s,
    ) -> None:
        self._limits_rad = common_limits(arm, limits_rad)
        self._servo = ToolServo(arm, self._limits_rad, joint_velocity_rad_s, box)
        self._source, self._start, self._options = source, start, options
        # Where nobody pumps, the input grows old and the arm stops.
        self.listen, self.host = source.listen, source.host
        self.pump = source.pump
        self.close: Callable[[], object] = source.close
        self.has_window = source.has_window
        self._home_rad: FloatArray | None = None
        self._followed: _Followed | None = None
        self._sideways = np.array([0.0, 1.0, 0.0])
        self._hand: FloatArray = np.zeros(5)
        """Where a hand-held device was when the tool was where it is now."""
        self._q_rad: FloatArray = np.zeros(len(arm.joint_names))
        self._ease = 0.0
        self._driving = False
        self._last_s: float | None = None

    def reset(self) -> None:
        """Get ready for a take: ask for the pose that the arm is in; DeviceError without one."""
        self._stay()
        self._last_s = None
        if self._home_rad is None:
            self._home_rad = self._q_rad.copy()

    def keep_open(self) -> Callable[[], object]:
        """Outlive the arm: `close` does nothing any more; return what closes the input device."""
        closes = self.close
        self.close = _nothing
        return closes

    def lead(self, start: Callable[[], FloatArray]) -> None:
        """Lead the arm as it is connected now; `start` returns its joint positions [rad]."""
        self._start = start

    def tick(self, tick: Tick) -> None:
        """Take note of what was sent; called from any thread."""
        limp = bool(tick.command.reasons & SafetyReason.TRIPPED)
        self._followed = _Followed(tick.command.sent_rad, tick.state.position_rad, limp)

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s].

        The sample is as old as the input: a device that is gone or isn't heard any more trips
        the safety filter.
        """
        heard = self._source.latest()
        fresh = heard.age_s <= self._options.stale_s
        since_s = 0.0 if self._last_s is None else t_s - self._last_s
        self._last_s = t_s
        if since_s > STOOD_STILL_S:
            self._stay()
        self._move(heard.intent if fresh else Intent(), min(since_s, LONGEST_STEP_S))
        return LeaderSample(t_s - (0.0 if fresh else heard.age_s), self._q_rad)

    def done(self) -> bool:
        """Say whether the operator has closed the window."""
        return self._source.latest().closed

    def _stay(self) -> None:
        q = np.array(self._start(), dtype=np.float64)
        if q.shape != self._q_rad.shape or not np.isfinite(q).all():
            raise DeviceError(
                f"The follower reports {q.tolist()} as joint positions. Check its bus."
            )
        self._q_rad, self._followed = q, None
        self._driving, self._ease = False, 0.0

    def _move(self, intent: Intent, duration_s: float) -> None:
        followed = self._followed
        if not intent.drives:
            self._driving, self._ease = False, 0.0
            if followed is not None and followed.limp:
                self._q_rad = followed.rad.copy()  # after a trip: stay where the arm has sunk to
            return
        apart = followed is not None and (
            followed.limp or np.abs(self._q_rad - followed.sent_rad).max() > 2 * APART_RAD
        )
        if apart or not self._driving:  # start from where the arm is, without a jump
            if followed is not None:
                self._q_rad = followed.rad.copy()
            self._servo.reset(self._q_rad)
            self._driving, self._ease = True, 0.0
            self._hand = np.array(intent.hand or np.zeros(5))
        if duration_s <= 0.0:
            return
        top = self._options
        self._ease = min(1.0, self._ease + top.acceleration_m_s2 / top.speed_m_s * duration_s)
        share = self._ease * SPEED_STEPS[intent.step - 1]
        if intent.home and self._home_rad is not None:
            away = self._home_rad - self._servo.q_rad
            furthest = max(float(np.abs(away).max()), 1e-12)
            part = min(1.0, HOME_RAD_S * share * duration_s / furthest)
            self._servo.reset(self._servo.q_rad + away * part)
            self._q_rad = self._servo.q_rad
            return
        wanted = [intent.forward, intent.left, intent.up, intent.roll, intent.pitch]
        if intent.hand is not None:  # the tool comes after a device in a hand, scaled by the step
            scale = SPEED_STEPS[intent.step - 1]
            most = np.array([top.speed_m_s] * 3 + [top.turn_rad_s] * 2) * (scale * duration_s)
            behind = scale * (np.array(intent.hand) - self._hand)
            shares = np.clip(behind, -BEHIND, BEHIND) / most
            for some in (shares[:3], shares[3:]):
                some /= max(1.0, float(np.linalg.norm(some)))
            left = np.clip(behind - self._ease * shares * most, -BEHIND, BEHIND)
            self._hand = np.array(intent.hand) - left / scale
            wanted = shares.tolist()
        forward, aside, up, roll, pitch = wanted
        pose = self._servo.T_base_tcp
        fingers, at_m = pose[:3, 2], pose[:3, 3]
        radius = float(np.hypot(at_m[0], at_m[1]))
        if radius > OVER_AXIS_M:
            self._sideways = np.array([-at_m[1] / radius, at_m[0] / radius, 0.0])
        axes = np.eye(3)
        if intent.frame == "tool":
            axes = np.array([fingers, self._sideways, np.cross(fingers, self._sideways)])
        linear = forward * axes[0] + aside * axes[1] + up * axes[2]
        angular = roll * fingers - pitch * self._sideways
        twist = np.empty(6)
        twist[:3] = linear / max(1.0, float(np.linalg.norm(linear))) * top.speed_m_s
        twist[3:] = angular / max(1.0, float(np.linalg.norm(angular))) * top.turn_rad_s
        self._servo.step(twist * share, duration_s)
        closed, opened = self._limits_rad[-1]
        way = (opened - closed) / top.gripper_s * (intent.gripper * share * duration_s)
        if way:
            self._servo.set_gripper(float(self._servo.q_rad[-1]) + way)
        self._q_rad = self._servo.q_rad


def _nothing() -> None:
    """Close nothing."""


def common_limits(arm: ArmModel, limits_rad: FloatArray) -> FloatArray:
    """Return limits that model and follower allow [rad], (n, 2); UnusableInputError without any."""
    limits = np.asarray(limits_rad, dtype=np.float64)
    if limits.shape != arm.joint_limits_rad.shape:
        raise UnusableInputError(
            f"The arm has {len(limits)} joints, its model '{arm.name}' {len(arm.joint_names)}: "
            f"{', '.join(arm.joint_names)}. Name the right model in the station file."
        )
    low = np.maximum(limits[:, 0], arm.joint_limits_rad[:, 0])
    high = np.minimum(limits[:, 1], arm.joint_limits_rad[:, 1])
    for name, a, b in zip(arm.joint_names, low, high, strict=True):
        if not a < b:
            raise UnusableInputError(
                f"Joint {name}: its limits and those of the model '{arm.name}' don't overlap. "
                "Recalibrate the arm with lerobot-calibrate."
            )
    return np.column_stack([low, high])
