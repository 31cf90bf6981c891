"""What passes from one stage to the next, frozen: LeaderSample → SafeCommand → Tick → take.

Joint angles between devices are radians, in the order of the follower's `joint_names`. Only
what goes into a dataset or a policy is in the robot's own LeRobot units (see `Follower.units`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

type FloatArray = NDArray[np.float64]
type Image = NDArray[np.uint8]
"""RGB image, shape (height, width, 3)."""
DEPTH_CODEC: Final = "ffv1"
"""Depth streams are 16-bit grey [mm], encoded without loss."""


def is_depth(spec: Mapping[str, Any]) -> bool:
    """Say whether a camera of a take's header is a depth stream."""
    return spec.get("codec") == DEPTH_CODEC


NO_REPLY: Final = 1 << 15
"""Bit of `FollowerState.status`: the servo didn't answer this turn. Its position is then the last
one heard and its other readings are NaN. A servo's own status register has 8 bits, below it."""

REBOOTED: Final = 1 << 14
"""Bit of `FollowerState.status`: the servo doesn't hold though it should. It lost power for a time,
or something else took its torque or its settings. The bit stays until `torque_on` has written them
again."""


SPEED: Final = ".vel"
"""How a base's speeds are called among a follower's joints: LeKiwi's `x.vel`, `y.vel` [m/s] and
`theta.vel` [rad/s]. They stand last, and are never held: the base stands still instead."""


def feature_of(joint: str) -> str:
    """Return what LeRobot calls a joint's entry in state and action."""
    return joint if joint.endswith(SPEED) else f"{joint}.pos"


def leader_joint(joint: str) -> str:
    """Return what a leader arm calls the joint that leads this one: LeKiwi's have `arm_` before."""
    return joint.removeprefix("arm_")


class SafetyReason(IntFlag):
    """Why the safety filter changed a command; stored as a bit set in `gap.safety`."""

    NONE = 0
    NON_FINITE = 1
    JOINT_LIMIT = 2
    VELOCITY = 4
    ACCELERATION = 8
    WORKSPACE = 16
    STALL = 32
    STALE_LEADER = 64
    HARDWARE_ERROR = 128
    OVER_TEMPERATURE = 256
    ESTOP = 512
    TRIPPED = 1024
    """A latched trip holds the arm until the operator clears it."""
    LOST_SERVO = 2048
    """A servo hasn't answered for too long."""
    LEADER_JUMP = 4096
    """The leader jumped further than a hand can move it: the arm holds, then aligns slowly."""
    NOT_FOLLOWING = 8192
    """A joint doesn't go where it is sent."""
    RELATIVE_TARGET = 16384
    """The goal was further from where the joint is than LeRobot's `max_relative_target`."""


@dataclass(frozen=True)
class FollowerState:
    """What an arm's servos report; every array has shape (n_joints,), NaN where lacking.

    Attributes:
        t_s: when it was read, on the loop's clock [s].
        load_pct: drive duty or load [% of stall].
        status: hardware error bits, 0 where all is well; `NO_REPLY` where none came.
    """

    t_s: float
    position_rad: FloatArray
    velocity_rad_s: FloatArray
    current_a: FloatArray
    load_pct: FloatArray
    temperature_c: FloatArray
    voltage_v: FloatArray
    status: NDArray[np.int64]

    def part(self, joints: slice) -> FollowerState:
        """Return what some of the servos report."""
        return replace(self, **{f.name: getattr(self, f.name)[joints] for f in fields(self)[1:]})


@dataclass(frozen=True)
class LeaderSample:
    """What a command source asks for.

    Attributes:
        t_s: when it was sampled, on the loop's clock [s].
        q_rad: requested joint positions [rad], shape (n_joints,).
        intervention: a person has taken over from a policy.
        state: what the leader's own servos report, where it has any.
        speed_share: of the velocity limit, what it may make use of, above 0 and up to 1.
    """

    t_s: float
    q_rad: FloatArray
    intervention: bool = False
    state: FollowerState | None = None
    speed_share: float = 1.0


@dataclass(frozen=True)
class SafeCommand:
    """What the safety filter lets through.

    Attributes:
        requested_rad: what the source asked for [rad], shape (n_joints,); may hold NaN.
        sent_rad: what is sent [rad], shape (n_joints,); finite and inside every limit.
        reasons: why the two differ.
    """

    requested_rad: FloatArray
    sent_rad: FloatArray
    reasons: SafetyReason = SafetyReason.NONE


@dataclass(frozen=True)
class CameraFrame:
    """One picture and when it was taken.

    Attributes:
        image: RGB, uint8, shape (height, width, 3); a depth stream's: distance [mm], uint16, shape
            (height, width), 0 where it can't be told.
        t_capture_s: capture time on the loop's clock [s].
    """

    image: Image
    t_capture_s: float


@dataclass(frozen=True)
class Tick:
    """One turn of the control loop.

    Attributes:
        index: 0, 1, … since the take began.
        t_s: when the turn began, since the take began [s].
        period_s: time since the turn before [s]; NaN on the first.
        lateness_s: how late the turn began against its deadline [s].
        state: what the follower reported before the command.
        frames: newest picture of each camera; empty on turns that are not policy frames.
        environment_state: tracked scene, shape (m,), or None where nothing tracks.
        policy_frame: this turn is a policy frame, with or without cameras.
        latency_s: from the leader's sample to the goals' last byte handed to the follower [s].
        overruns: turns skipped just before this one because the loop ran late.
    """

    index: int
    t_s: float
    period_s: float
    lateness_s: float
    leader: LeaderSample
    command: SafeCommand
    state: FollowerState
    frames: Mapping[str, CameraFrame]
    environment_state: FloatArray | None = None
    policy_frame: bool = False
    latency_s: float = math.nan
    overruns: int = 0


@dataclass(frozen=True)
class Observation:
    """What a policy sees at one policy step, in the units of the dataset it was trained on.

    Attributes:
        state: `observation.state`, shape (n_joints,), the robot's LeRobot units.
        environment_state: `observation.environment_state`, shape (m,), or None.
        forces: sensor to `observation.force.<sensor>`, shape (n_channels,), in its own units.
    """

    state: FloatArray
    environment_state: FloatArray | None
    images: Mapping[str, Image]
    forces: Mapping[str, FloatArray] = field(default_factory=dict)
