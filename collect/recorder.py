"""Subscribes to the control loop and hands every turn to the journal."""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core.protocols import Follower
from gaploop.core.telemetry import JOINT_QUANTITIES, LOOP_CHANNELS, joint_columns
from gaploop.core.types import FloatArray, SafetyReason, Tick

_NO_SCENE: Final = np.empty(0)
_CLAMPS: Final = SafetyReason.JOINT_LIMIT | SafetyReason.VELOCITY | SafetyReason.ACCELERATION
"""Reasons that are ordinary while moving: in the rows, not worth an event each."""


def channels(follower: Follower) -> dict[str, str]:
    """Return the telemetry columns that a recorder of `follower` writes, name to unit."""
    return {**joint_columns(follower.name, follower.joint_names), **LOOP_CHANNELS}


class Recorder:
    """A `TakeSink` that writes telemetry on every turn and a frame row on every policy frame.

    Args:
        writer: the open take; its header's channels must be `channels(follower)`.
        follower: names the columns and converts to LeRobot units.
        start_s: when the take began on the loop's clock [s]; ages of pictures count from it.
    """

    def __init__(self, writer: JournalWriter, follower: Follower, start_s: float) -> None:
        self._writer, self._follower, self._start_s = writer, follower, start_s
        joints = len(follower.joint_names)
        self._row = np.empty(joints * len(JOINT_QUANTITIES) + len(LOOP_CHANNELS))
        self._joints = self._row[: -len(LOOP_CHANNELS)].reshape(joints, len(JOINT_QUANTITIES))
        self._reasons = SafetyReason.NONE
        self._intervention = False

    def tick(self, tick: Tick) -> None:
        """Write one turn.

        Raises:
            DeviceError: a picture is missing or has the wrong size.
            OSError: the disk doesn't take it.
        """
        self._events(tick)
        self._writer.telemetry(round(tick.t_s * 1e9), self._telemetry(tick))
        if tick.policy_frame:
            self._writer.frame(self._frame(tick))

    def _telemetry(self, tick: Tick) -> FloatArray:
        state, joints = tick.state, self._joints
        joints[:, 0] = _finite(tick.leader.q_rad)
        joints[:, 1] = _finite(tick.command.requested_rad)
        joints[:, 2] = tick.command.sent_rad
        joints[:, 3] = state.position_rad
        joints[:, 4] = state.velocity_rad_s
        joints[:, 5] = state.current_a
        joints[:, 6] = state.load_pct
        joints[:, 7] = state.temperature_c
        joints[:, 8] = state.voltage_v
        joints[:, 9] = state.status
        self._row[-4:] = tick.period_s, tick.lateness_s, tick.latency_s, tick.overruns
        return self._row

    def _frame(self, tick: Tick) -> FrameRow:
        to_units = self._follower.to_units
        now_s = self._start_s + tick.t_s
        scene = tick.environment_state
        return FrameRow(
            t_s=tick.t_s,
            state=to_units(tick.state.position_rad),
            action=to_units(_finite(tick.command.requested_rad)),
            sent=to_units(tick.command.sent_rad),
            environment_state=_NO_SCENE if scene is None else scene,
            intervention=tick.leader.intervention,
            safety=int(tick.command.reasons),
            camera_age_s={c: now_s - f.t_capture_s for c, f in tick.frames.items()},
            pictures={c: f.image for c, f in tick.frames.items()},
        )

    def _events(self, tick: Tick) -> None:
        reasons = tick.command.reasons & ~_CLAMPS
        if reasons != self._reasons:
            self._reasons = reasons
            self._writer.event(tick.t_s, "safety", reasons=reasons.name or "NONE")
        if tick.leader.intervention != self._intervention:
            self._intervention = tick.leader.intervention
            self._writer.event(tick.t_s, "intervention", on=self._intervention)


def _finite(q_rad: FloatArray) -> FloatArray:
    """Return `q_rad` with what isn't finite as NaN: stored records hold no infinities."""
    if np.isfinite(q_rad).all():
        return q_rad
    return np.where(np.isfinite(q_rad), q_rad, np.nan)
