"""Subscribes to the control loop and hands every turn to the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from gaploop.collect.journal import FrameRow
from gaploop.core.errors import DeviceError
from gaploop.core.messages import FloatArray, FollowerState, SafetyReason, Tick
from gaploop.core.protocols import Follower, Leader, SensorSource
from gaploop.core.telemetry import JOINT_QUANTITIES, LOOP_CHANNELS, joint_columns

_CLAMPS: Final = (
    SafetyReason.JOINT_LIMIT
    | SafetyReason.VELOCITY
    | SafetyReason.ACCELERATION
    | SafetyReason.RELATIVE_TARGET
)
"""Reasons that are ordinary while moving: in the rows, not worth an event each."""
_ASKED: Final = ("leader_rad", "requested_rad", "sent_rad")
"""Quantities of the arm that is commanded; the others are what servos report, in this order."""
_REPORTED: Final = (
    "position_rad",
    "velocity_rad_s",
    "current_a",
    "load_pct",
    "temperature_c",
    "voltage_v",
    "status",
)
LEADER: Final = "leader"
"""Prefix of the telemetry columns of a leader's own servos."""


def servo_joints(leader: Leader | None) -> tuple[str, ...]:
    """Return the joints of a leader's own servos, whose readings are in its samples' `state`."""
    return tuple(getattr(leader, "servo_joints", ()))


def channels(
    follower: Follower, sensors: Sequence[SensorSource] = (), leader: Leader | None = None
) -> dict[str, str]:
    """Return the telemetry columns that a recorder writes, name to unit.

    A leader with servos of its own names their joints as `servo_joints`.
    """
    names = joint_columns(follower.name, follower.joint_names)
    names |= {
        f"{LEADER}.{joint}.{quantity}": JOINT_QUANTITIES[quantity]
        for joint in servo_joints(leader)
        for quantity in _REPORTED
    }
    for sensor in sensors:
        names |= sensor.channels
    return {**names, **LOOP_CHANNELS}


class TakeWriter(Protocol):
    """What a recorder hands a take to: a `JournalWriter`, or memory."""

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Take note of something that happened at `t_s` [s]."""

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Take a row of `channels` at `t_ns` [ns]; the array is used again for the next."""

    def frame(self, row: FrameRow) -> None:
        """Take a policy frame."""


class Recorder:
    """A `TakeSink` that writes telemetry on every turn and a frame row on every policy frame.

    The writer's header has the channels of `channels`. A sensor that fails is null in the record,
    from one event to the next, and doesn't end the take.
    """

    def __init__(
        self,
        writer: TakeWriter,
        follower: Follower,
        sensors: Sequence[SensorSource] = (),
        leader: Leader | None = None,
    ) -> None:
        self.fault = ""
        """Why nothing is written any more."""
        self._writer, self._follower = writer, follower
        self._sensors = [_Sensor(sensor, writer) for sensor in sensors]
        arm = len(follower.joint_names) * len(JOINT_QUANTITIES)
        servos = len(servo_joints(leader)) * len(_REPORTED)
        self._row = np.full(len(channels(follower, sensors, leader)), np.nan)
        self._joints = self._row[:arm].reshape(-1, len(JOINT_QUANTITIES))
        self._leader = self._row[arm : arm + servos].reshape(-1, len(_REPORTED))
        self._measured = self._row[arm + servos : -len(LOOP_CHANNELS)]
        self._reasons = SafetyReason.NONE
        self._intervention = False

    def tick(self, tick: Tick) -> None:
        """Write one turn.

        Raises:
            DeviceError: a picture is missing or has the wrong size, the encoder died, or the
                disk doesn't take the take. `fault` says so too, and the take should end.
        """
        try:
            reasons, intervention = tick.command.reasons & ~_CLAMPS, tick.leader.intervention
            if reasons != self._reasons:
                self._reasons = reasons
                self._writer.event(tick.t_s, "safety", reasons=reasons.name or "NONE")
            if intervention != self._intervention:
                self._intervention = intervention
                self._writer.event(tick.t_s, "intervention", on=intervention)
            joints = self._joints
            joints[:, 0] = _finite(tick.leader.q_rad)
            joints[:, 1] = _finite(tick.command.requested_rad)
            joints[:, 2] = tick.command.sent_rad
            _fill(joints[:, len(_ASKED) :], tick.state)
            if len(self._leader):
                self._leader[:] = np.nan
                if tick.leader.state is not None:
                    _fill(self._leader, tick.leader.state)
            start = 0
            for sensor in self._sensors:
                width = len(sensor.names)
                self._measured[start : start + width] = sensor.read(tick.t_s)
                start += width
            self._row[-4:] = tick.period_s, tick.lateness_s, tick.latency_s, tick.overruns
            self._writer.telemetry(round(tick.t_s * 1e9), self._row)
            if tick.policy_frame:
                to_units = self._follower.to_units
                now_s = tick.state.t_s  # what a picture is as old as: it stands beside this state
                scene, pictures = tick.environment_state, tick.frames.items()
                row = FrameRow(
                    t_s=tick.t_s,
                    state=to_units(tick.state.position_rad),
                    action=to_units(_finite(tick.command.requested_rad)),
                    sent=to_units(tick.command.sent_rad),
                    environment_state=np.empty(0) if scene is None else scene,
                    intervention=tick.leader.intervention,
                    safety=int(tick.command.reasons),
                    camera_age_s={c: max(now_s - f.t_capture_s, 0.0) for c, f in pictures},
                    pictures={c: f.image for c, f in pictures},
                )
                self._writer.frame(row)
        except DeviceError as error:
            self.fault = str(error)
            raise


class _Sensor:
    """A sensor whose failing is an event and not the take's end."""

    def __init__(self, sensor: SensorSource, writer: TakeWriter) -> None:
        self.names = tuple(sensor.channels)
        self._sensor, self._writer = sensor, writer
        self._is_failing = False

    def read(self, t_s: float) -> list[float]:
        values: Mapping[str, float] = {}
        why = ""
        try:
            values = self._sensor.read()
        except (DeviceError, OSError) as error:
            why = str(error)
        if bool(why) != self._is_failing:
            self._is_failing = bool(why)
            self._writer.event(t_s, "sensor", channels=self.names, ok=not why, why=why)
        found = (float(values.get(name, np.nan)) for name in self.names)
        return [value if np.isfinite(value) else np.nan for value in found]


def _fill(block: FloatArray, state: FollowerState) -> None:
    """Write what servos report into the columns of `_REPORTED`, shape (n_joints, 7)."""
    for column, quantity in enumerate(_REPORTED):
        block[:, column] = getattr(state, quantity)


def _finite(q_rad: FloatArray) -> FloatArray:
    """Return `q_rad` with what isn't finite as NaN: stored records hold no infinities."""
    if np.isfinite(q_rad).all():
        return q_rad
    return np.where(np.isfinite(q_rad), q_rad, np.nan)
