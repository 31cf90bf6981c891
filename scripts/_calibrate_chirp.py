"""Moves an arm through a chirp, behind the safety filter, and keeps what was sent and reported."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.core.clock import Clock
    from gaploop.core.protocols import Follower
    from gaploop.core.station import Station
    from gaploop.core.types import Tick
    from gaploop.scripts.calibrate import CalibrateFields
    from gaploop.teleop.calibration.latency import JointMotion
    from gaploop.teleop.leaders.options import MotionOptions

log = logging.getLogger(__name__)


class Kept:
    """A `TakeSink` that keeps what was sent and where the arm was."""

    def __init__(self, joint_names: tuple[str, ...]) -> None:
        self._names = joint_names
        self._ticks: list[Tick] = []

    def tick(self, tick: Tick) -> None:
        """Keep one turn; its pictures, of which there are none, too."""
        self._ticks.append(tick)

    def motion(self) -> JointMotion:
        """Return what was kept.

        Raises:
            DeviceError: nothing was.
        """
        from gaploop.core.types import NO_REPLY
        from gaploop.teleop.calibration.latency import JointMotion

        if len(self._ticks) < 2:
            raise DeviceError("The arm's loop ended before it began. Try again.")
        ticks = self._ticks
        silent = np.array([t.state.status & NO_REPLY != 0 for t in ticks])
        position = np.array([t.state.position_rad for t in ticks])
        delays = [t.latency_s for t in ticks if math.isfinite(t.latency_s)]
        return JointMotion(
            np.array([t.t_s for t in ticks]),
            np.array([t.command.sent_rad for t in ticks]),
            np.where(silent, np.nan, position),
            self._names,
            float(np.median(delays)) if delays else 0.0,
        )


def moved(config: CalibrateFields) -> JointMotion:
    """Move every joint of the robot by a chirp and return what was sent and reported.

    Raises:
        UnusableInputError: the robot, its station or the time given can't be used.
        DeviceError: the arm stopped answering, or the safety filter tripped.
    """
    from gaploop.scripts import _arms
    from gaploop.teleop.leaders.options import MotionOptions

    if not 12.0 <= config.seconds <= 600.0:
        raise UnusableInputError(
            f"--seconds={config.seconds:g}: each joint is moved for 12 to 600 s."
        )
    robot = getattr(config, "robot", None)
    station = _arms.station_for(robot, config.station)
    follower, clock = _arms.follower_of(robot, station)
    try:
        script = MotionOptions(script="chirp", seconds=config.seconds, amplitude_rad=0.15)
        return _run(follower, clock, station, script)
    finally:
        follower.close()


def _run(follower: Follower, clock: Clock, station: Station, script: MotionOptions) -> JointMotion:
    from gaploop.teleop.advice import say_reasons, say_to_do
    from gaploop.teleop.control import ControlThread
    from gaploop.teleop.leaders.make import make_motion_leader
    from gaploop.teleop.loop import CONTROL_HZ, EndReason, Rates
    from gaploop.teleop.safety import make_safety

    rates = Rates(CONTROL_HZ, CONTROL_HZ)
    leader = make_motion_leader(follower, station, script)
    leader.reset()
    kept = Kept(follower.joint_names)
    for note in leader.notes:
        log.info("%s", note)
    log.info(
        "Each joint moves to and fro, %.0f s in all. Keep clear of the arm.", leader.duration_s
    )
    safety = make_safety(station, follower, rates.period_s)
    control = ControlThread(follower, leader, safety, rates, clock=clock, sinks=(kept, leader))
    with control, control.signals() as stopped:
        control.start()
        with options.progress("Moving", math.ceil(leader.duration_s)) as advance:
            while control.alive and not control.wait(1.0):
                advance()
                if control.snapshot().tripped:
                    control.stop()
        end = control.finish()
    if stopped:
        raise KeyboardInterrupt
    if end.reason is EndReason.TRIPPED or end.tripped:
        raise DeviceError(
            f"The safety filter tripped: {say_reasons(end.tripped)}. Torque is off; "
            f"{say_to_do(end.tripped)} and repeat."
        )
    return kept.motion()
