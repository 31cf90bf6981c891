"""The command `gaploop probe`."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_factory
from gaploop.collect.lerobot_factory import EMBEDDED, kind
from gaploop.collect.operator.keys import keys
from gaploop.collect.setup_words import sketch_text, words
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.protocols import Follower, Leader
from gaploop.core.station import Station
from gaploop.core.vocabulary import TakeKind
from gaploop.scripts import options
from gaploop.sim.arms import arm_named
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import Stopped, disconnect, stoppable

if TYPE_CHECKING:
    from gaploop.collect.devices import Arms
    from gaploop.collect.probe import ProbeEnd, ProbePart
    from gaploop.collect.session import SessionSpec

RARE = ("fps", "reconnect_s", "seed")
EXAMPLE: Final = """\
gaploop probe --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=white \\
    --robot.cameras='{top: {type: opencv, index_or_path: 0, width: 640, height: 480, fps: 30}}' \\
    --journal=recordings/probe --station=station.yaml
gaploop probe --robot.type=so101_sim --robot.gaps='{"spatial_geometry": 0.7}' --journal=probe
gaploop probe --robot.type=so101_follower --robot.port=/dev/ttyACM0 --dry_run
"""
POSITIONAL: Final = ("journal",)
DEVICES: Final = {"robot": "so101_sim"}
FPS: Final = 30.0
"""Frames a second of an arm, as in gaploop record [Hz]."""
LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed while the operator is waited for [s]."""


@dataclass
class ProbeConfig:
    """Check a station in three minutes, without a policy: what its twin is fitted to.

    The arm rests, shows itself in some poses, moves each joint slowly back and forth, then faster
    and faster, then in steps to either side, and closes the gripper on nothing. Then you put the
    object into the jaws and into two cells of the placement grid (Enter continues, s skips it).
    Begin with the arm in the middle of its workspace, the gripper above what lies on the table.
    Space is the emergency stop. A trip ends the part; Ctrl-C keeps what is done, and --resume
    does the rest. In the embedded cell all of it runs by itself. Nothing learns from these takes.
    """

    robot: Any = None
    """The arm, with its cameras."""
    journal: Path | None = None
    """Folder that the takes go into, a take for each part."""
    station: Path | None = None
    """station.yaml with the cell's name, limits and placement grid."""
    object: bool = True
    """Do the parts with the object; false where nobody can put it in place."""
    dry_run: bool = False
    """List the parts, their seconds and what they measure, and move nothing."""
    resume: bool = False
    """Do what the journal's probe left out."""
    fps: float | None = None
    """Frames a second; 30 on an arm, 50 in the embedded cell [Hz]."""
    reconnect_s: float = 60.0
    """How long to wait for an arm or a camera that was lost [s]."""
    seed: int = 0
    """Draws the scenes of the embedded cell."""
    operator: str = ""
    """Who is there."""
    json: bool = False
    """Print {"journal", "parts", "seconds", "untold", "trip", "interrupted", "evidence"}."""


def run(config: ProbeConfig) -> int:
    """Probe; 1 where a part tripped or its motion doesn't fit, 128 + the signal."""
    from gaploop.collect.probe import LONGEST_S, planned_s, probe_cell
    from gaploop.collect.session import SessionSpec

    station = lerobot_factory.session_station(config.robot, config.station)
    if config.dry_run:
        name = station.robot_model or model_of(kind(config.robot))
        if not name:
            raise UnusableInputError(
                f"gaploop probe needs a model of the arm and none is known for "
                f"{kind(config.robot)}. Name one in the station file as robot_model."
            )
        arm = ArmModel.load(name)
        parts = _parts(config, station, arm.joint_names)
        seconds = planned_s(parts, arm)
        total_s = sum(seconds.values())
        rows = [{"name": p.name, "seconds": seconds[p.name], "tells": p.tells} for p in parts]
        lines = [f"{seconds[p.name]:5.1f} s  {p.name:22s} {p.tells}" for p in parts]
        lines.append(f"{total_s:5.1f} s  in all, without the operator's time.")
        options.emit(config.json, {"parts": rows, "seconds": total_s}, "\n".join(lines))
        return 0
    if config.journal is None:
        raise UnusableInputError("Where do the takes go? Name a folder with --journal=DIR.")
    spec = SessionSpec(
        config.journal.absolute(),
        "probe",
        TakeKind.PROBE,
        max_s=LONGEST_S,
        seed=config.seed,
        operator=config.operator,
        resume=config.resume,
    )
    with stoppable("Stopping: what is done is kept. --resume does the rest.") as stopped:
        if config.robot.type == EMBEDDED:
            from gaploop.scripts._sessions import embedded

            parts = _parts(config, station, arm_named(config.robot.model).joint_names)
            with options.progress("Probing", len(parts)) as advance:
                end = probe_cell(
                    parts,
                    spec,
                    functools.partial(embedded, config.robot, config.fps),
                    stop=lambda: bool(stopped),
                    on_part=lambda _end: advance(),
                )
        else:
            end = _arm(config, station, spec, stopped)
    return _report(config, station, end, stopped)


def _arm(config: ProbeConfig, station: Station, spec: SessionSpec, stopped: Stopped) -> ProbeEnd:
    from gaploop.collect.devices import ArmDevices, Arms
    from gaploop.collect.probe import arm_leader, probe_arm

    def connect() -> Arms:
        with contextlib.ExitStack() as undo:
            follower, clock = lerobot_factory.follower_of(config.robot, station)
            undo.callback(disconnect, follower)
            cameras = lerobot_factory.cameras_of(config.robot, clock, station)
            undo.callback(disconnect, *cameras)
            calibration = lerobot_factory.calibration_of(config.station, follower)
            undo.pop_all()
        return Arms(follower, None, cameras, clock, calibration=calibration)

    def drives(follower: Follower, *_: object) -> Leader:
        return arm_leader(follower, station)

    def ask(part: ProbePart) -> str:
        """Have the operator put the object in place; say why that can't be, or ""."""
        if not pressed.works:
            return "nobody is at a terminal to put the object in place"
        if part.conditions:
            what = words(part.conditions, station.grid)
            _say(f"Put the {what}.\n{sketch_text(part.conditions, station.grid)}")
        else:
            _say(
                "Be ready to hold the object between the jaws: they open, wait two seconds, "
                "close on it and open again. Hold it by its end, and catch it."
            )
        _say("Enter continues, s skips it.")
        while not stopped:
            heard = pressed.presses(LOOK_S)
            if "return" in heard:
                return ""
            if "s" in heard or not pressed.works:
                return "the operator left it out"
        return "stopped"

    with contextlib.ExitStack() as stack:
        devices = ArmDevices(
            connect,
            station,
            Rates.near(config.fps or FPS),
            shared=drives,
            is_watched=False,
            patience_s=config.reconnect_s,
        )
        stack.callback(devices.close)
        stopped.again = devices.leave
        pressed = stack.enter_context(keys())
        pressed.listen(devices.estop)
        parts = _parts(config, station, devices.arms.follower.joint_names)
        devices.start()
        end = probe_arm(
            parts,
            spec,
            devices,
            ask=ask,
            stop=lambda: bool(stopped),
            on_part=lambda now: _say(f"{now.part.name}: {now.why or 'done'}"),
            patience_s=config.reconnect_s,
        )
        pressed.deaf()
        try:
            devices.finish()
        except DeviceError:
            if not end.trip:
                raise
    return end


def _parts(config: ProbeConfig, station: Station, joints: Sequence[str]) -> list[ProbePart]:
    from gaploop.collect.probe import parts_of

    parts = parts_of(joints, station.grid)
    return [part for part in parts if config.object or not part.needs_object]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(config: ProbeConfig, station: Station, end: ProbeEnd, stopped: Sequence[int]) -> int:
    lacking = [now for now in end.parts if not now.done]
    evidence = lerobot_factory.evidence_of(config.robot, station)
    cameras = config.robot.type == EMBEDDED or bool(getattr(config.robot, "cameras", None))
    untold = list(end.untold)
    if not config.object:
        untold.append("the object's size, width and weight")
    if not cameras:
        untold.append("everything that pictures tell: the robot has no cameras")
    seconds = sum(now.duration_s for now in end.parts)
    summary = {
        "journal": config.journal,
        "evidence": evidence,
        "seconds": seconds,
        "parts": [
            {
                "name": now.part.name,
                "done": now.done,
                "why": now.why,
                "uid": now.uid,
                "seconds": now.duration_s,
            }
            for now in end.parts
        ],
        "untold": untold,
        "interrupted": end.interrupted,
        "reconnected": end.reconnected,
        "trip": end.trip,
    }
    lines = [
        f"{len(end.parts) - len(lacking)} of {len(end.parts)} parts in {config.journal}, "
        f"{seconds:.0f} s of motion ({evidence})."
    ]
    for why in dict.fromkeys(now.why for now in lacking):
        lines.append(f"  {', '.join(now.part.name for now in lacking if now.why == why)}: {why}")
    lines += [f"Untold: {'; '.join(untold)}."] if untold else []
    if lacking:
        lines.append("Do the rest with the same command and --resume.")
    options.emit(config.json, summary, "\n".join(lines))
    if end.trip:
        _say(f"gaploop probe: {end.trip}")
    if stopped:
        return 128 + stopped[0]
    return int(bool(end.trip) or any(not now.by_choice for now in lacking))
