"""The command `gaploop teleoperate`."""

import math
import sys
from dataclasses import dataclass
from typing import Final

from gaploop.collect import lerobot_types
from gaploop.collect.lerobot_types import kind
from gaploop.collect.session_options import DriveOptions, check_display
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options
from gaploop.teleop.loop import DurationSpread, Rates

RARE = ("fps",)
EXAMPLE: Final = """\
gaploop teleoperate --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=white \\
    --teleop.type=so101_leader --teleop.port=/dev/ttyACM1 --teleop.id=blue
gaploop teleoperate --robot.type=koch_follower --robot.port=./follower --robot.id=koch \\
    --teleop.type=koch_leader --teleop.port=./leader --teleop.id=koch --teleop_time_s=60 --json
gaploop teleoperate --robot.type=so101_sim --teleop.type=keyboard
gaploop teleoperate --robot.type=so101_sim --teleop.type=browser
gaploop teleoperate --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=white \\
    --teleop.type=remote --teleop.address=192.168.1.20:8440
gaploop teleoperate --robot.type=so101_sim --teleop.type=motion --teleop.script=poses
"""

POSITIONAL: Final = ()
DEVICES: Final = {"robot": "", "teleop": ""}
CONTROL_HZ: Final = 200.0
FASTEST_HZ: Final = 1000.0
DRAW_FPS: Final = 20.0
"""Cameras are looked at about this often [Hz]."""


@dataclass
class TeleoperateConfig(DriveOptions):
    """Drive an arm by a leader, a keyboard or a script; nothing is recorded.

    The safety filter stands between leader and arm. After a trip the arm is lowered, or let go of;
    `c`, pressed twice, continues from where it then is. Space is the emergency stop: it holds the
    arm. q lowers it and leaves; pressed again, either lets go of it at once. Without a terminal
    a line a second is written instead, and a trip ends the program with exit code 1. What was lost
    (a cable, a servo's power) is waited for; nothing need be restarted.
    """

    fps: float = CONTROL_HZ
    """Turns of the control loop per second [Hz]."""
    teleop_time_s: float | None = None
    """End after this time of driving [s]."""


def run(config: TeleoperateConfig) -> int:
    """Drive until it is over.

    Returns:
        1 where it ended in a trip, 2 where a device failed, 128 + the signal where one came.
    """
    if options.show_file(config.robot):
        return 0
    from gaploop.collect.session import TAKEN, Session

    control_hz = float(config.fps)
    if not 1 <= control_hz <= FASTEST_HZ:
        raise UnusableInputError(f"--fps must be from 1 to {FASTEST_HZ:g} Hz, got {control_hz:g}.")
    max_s = math.inf if config.teleop_time_s is None else float(config.teleop_time_s)
    if not max_s > 0:
        raise UnusableInputError(f"--teleop_time_s must be above 0, got {max_s:g}.")
    check_display(config.display)
    leads = kind(config.teleop)
    interface = config.display
    if interface == "auto":  # nothing is asked that needs more than a terminal
        interface = "terminal" if sys.stdin.isatty() or leads in TAKEN else "none"
    station = lerobot_types.station_for(config.robot, config.station)
    rates = Rates(control_hz, control_hz / max(1, round(control_hz / DRAW_FPS)))
    session = Session(config, station, leads=leads, rates=rates, interface=interface)
    end = session.drive(max_s)
    devices, statistics = session.arms, session.arms.statistics
    assert statistics is not None, "there is a connection"
    figures, realtime, faults = statistics.figures(), devices.realtime, devices.faults
    summary = {
        "robot": kind(config.robot),
        "teleop": leads,
        "ended": end.why,
        "trip": end.trip,
        "failed": end.failed,
        "control_hz": control_hz,
        "realtime": realtime,
        "reconnected": end.reconnected,
        "bus_faults": devices.bus_faults,
        "faults": faults,
        **options.jsonable(figures),
    }
    summary["trips"] = [
        {"t_s": t.t_s, "reasons": str(t.reason.name).lower().split("|"), "joints": t.joints}
        for t in figures.trips
    ]
    lines = [
        f"{session.title}: {figures.duration_s:.1f} s at {figures.rate_hz:.1f} Hz, "
        f"{figures.missed} of {figures.turns + figures.missed} turns missed, "
        f"{len(figures.trips)} trips.",
        f"period error {_say(figures.period_error)}; leader to follower {_say(figures.latency)}",
    ]
    if realtime is not None and not realtime.granted:
        lines.append(realtime.hint)
    options.emit(config.json, summary, "\n".join(lines))
    for line in filter(None, (*faults, end.trip, end.failed)):
        print(f"gaploop teleoperate: {line}", file=sys.stderr)
    if end.signals:
        return 128 + end.signals[0]
    if end.trip:
        return 1
    return UnusableInputError.exit_code if end.failed else 0


def _say(spread: DurationSpread) -> str:
    p50, p99, most = (1e3 * s for s in (spread.p50_s, spread.p99_s, spread.max_s))
    return f"p50 {p50:.2f}, p99 {p99:.2f}, max {most:.2f} ms"
