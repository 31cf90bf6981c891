"""The parts of `gaploop calibrate` with devices: guided taking of pictures, a chirp of the arm."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from gaploop.collect import lerobot_factory
from gaploop.collect.operator.keys import SPACE, keys
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import append_line, writable_folder
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import NO_REPLY, CameraFrame, Tick
from gaploop.core.protocols import CameraSource, Follower
from gaploop.scripts import options
from gaploop.scripts.calibrate import CalibrateConfig
from gaploop.teleop.advice import say_reasons, say_to_do
from gaploop.teleop.calibration.board import Board
from gaploop.teleop.calibration.capture import Advice, BoardCapture, PictureState, PoseCapture
from gaploop.teleop.calibration.latency import JointMotion
from gaploop.teleop.calibration.sightings import (
    IMAGE_SUFFIXES,
    find_boards,
    image_files,
    joints_row,
    read_poses,
    write_image,
)
from gaploop.teleop.control import ControlThread
from gaploop.teleop.leaders.make import make_motion_leader
from gaploop.teleop.leaders.options import MotionOptions
from gaploop.teleop.loop import CONTROL_HZ, EndReason, Rates
from gaploop.teleop.safety import make_safety
from gaploop.teleop.stopping import stoppable

log = logging.getLogger(__name__)

PICTURES: Final = 20
"""How many are taken of a board."""
STALLED_S: Final = 5.0
"""A camera without a new picture for this long is gone [s]."""
PAUSE_S: Final = 0.005
POSES: Final = "poses.jsonl"
WIDE: Final = 48
HIGH: Final = 16
"""Characters of the map; a character is about twice as high as wide."""
LINE_S: Final = 2.0
"""Without a terminal a line is written this often [s], and for every picture."""

JOINT_S: Final = 20.0
"""How long each joint is moved for latency [s]."""

type Show = Callable[[Advice, int, int], None]


def take_board_pictures(config: CalibrateConfig, board: Board, folder: Path) -> None:
    """Take pictures of a board into `folder` until the lens is covered, or Ctrl-C.

    Raises:
        DeviceError: the camera can't be opened or stops giving pictures.
    """
    writable_folder(folder, "Folder", "--path")
    names, is_begun = _free_names(folder)
    known = find_boards(board, image_files(folder)).views if is_begun else ()
    capture = BoardCapture(board, PICTURES, known)

    def look(frame: CameraFrame, _forced: bool) -> Advice:
        advice = capture.look(frame.image, frame.t_capture_s)
        if advice.state is PictureState.TAKEN:
            write_image(folder / next(names), frame.image)
        return advice

    with _camera(config) as camera:
        _guide(camera, look, capture.advice(), PICTURES, folder)


def take_poses(config: CalibrateConfig, board: Board, folder: Path, arm: ArmModel) -> None:
    """Take pictures and the arm's joints into `folder`; the arm is limp and moved by hand.

    Raises:
        DeviceError: the camera or the arm stops answering.
    """
    writable_folder(folder, "Folder", "--path")
    with limp_arm(config) as follower, _camera(config) as camera:
        log.info("The arm is limp: hold it. Move it, keep still for half a second, move on.")
        collect_poses(camera, follower, arm, board, folder, PICTURES)


def collect_poses(
    camera: CameraSource,
    follower: Follower,
    arm: ArmModel,
    board: Board,
    folder: Path,
    wanted: int,
) -> None:
    """Add pictures and joints to `folder` until there are `wanted` new poses, or Ctrl-C.

    Raises:
        DeviceError: the camera or the arm stops answering.
        UnusableInputError: the arm has other joints than its model, or the folder's poses.
    """
    if follower.joint_names != arm.joint_names:
        raise UnusableInputError(
            f"The robot has joints {', '.join(follower.joint_names)}, the {arm.name} model "
            f"{', '.join(arm.joint_names)}. Name its model with --arm_model."
        )
    before = read_poses(folder, arm) if (folder / POSES).is_file() else []
    capture = PoseCapture(board, wanted, [row.T_base_tcp for row in before])
    names, _ = _free_names(folder)

    def look(frame: CameraFrame, forced: bool) -> Advice:
        q = follower.read().position_rad
        T = arm.T_base_tcp(q)
        advice = capture.look(frame.image, q, T, frame.t_capture_s, forced)
        if advice.state is PictureState.TAKEN:
            name = next(names)
            write_image(folder / name, frame.image)
            append_line(folder / POSES, joints_row(name, follower.joint_names, q))
        return advice

    _guide(camera, look, capture.advice(), wanted, folder)


@contextlib.contextmanager
def limp_arm(config: CalibrateConfig) -> Iterator[Follower]:
    """Yield the robot of `--robot.*`, torque off."""
    follower, _ = lerobot_factory.follower_of(
        config.robot, lerobot_factory.station_for(config.robot, config.station)
    )
    with contextlib.closing(follower):
        follower.torque_off()
        yield follower


@contextlib.contextmanager
def _camera(config: CalibrateConfig) -> Iterator[CameraSource]:
    """Yield the camera of `--camera.*`, or the one of that name on the robot."""
    from lerobot.cameras import make_cameras_from_configs

    from gaploop.teleop.lerobot_devices.cameras import LerobotCamera, camera_configs

    name, given = config.camera_name, config.camera
    if given is None:
        known = camera_configs(config.robot)
        lacks = (
            f"No camera {name!r}: give --camera.type=opencv --camera.index_or_path=0, or one "
            f"of the robot's own with --camera_name (it has: {', '.join(known) or 'none'})."
        )
        given = options.required(known.get(name), lacks)
    (made,) = make_cameras_from_configs({name: given}).values()
    with contextlib.closing(LerobotCamera(name, made, MonotonicClock())) as camera:
        yield camera


def one_picture(config: CalibrateConfig) -> CameraFrame:
    """Return one picture of the camera; waits for the exposure to settle."""
    with _camera(config) as camera:
        time.sleep(0.5)
        return camera.frame()


def _guide(
    camera: CameraSource,
    look: Callable[[CameraFrame, bool], Advice],
    first: Advice,
    wanted: int,
    folder: Path,
) -> None:
    """Show the way until all is taken or Ctrl-C; keeps whatever was taken."""
    advice, seen_s, new_at_s = first, float("nan"), time.monotonic()
    with stoppable() as stopped, keys() as pressed, _screen(wanted, folder) as show:
        while not stopped and not advice.done:
            forced = not {"return", SPACE}.isdisjoint(pressed.presses(0.0))
            frame = camera.frame()
            if frame.t_capture_s == seen_s and not forced:
                if time.monotonic() - new_at_s > STALLED_S:
                    raise DeviceError(
                        f"Camera {camera.name!r} stopped giving pictures. {advice.taken} are in "
                        f"{folder}; check its cable and go on with the same command."
                    )
                time.sleep(PAUSE_S)
                continue
            seen_s, new_at_s = frame.t_capture_s, time.monotonic()
            advice = look(frame, forced)
            show(advice, frame.image.shape[1], frame.image.shape[0])
    goes_on = "; stopped, the same command goes on from there" if stopped else ""
    log.info("%d pictures in %s%s.", advice.taken, folder, goes_on)


def _free_names(folder: Path) -> tuple[Iterator[str], bool]:
    """Return names for pictures that are to come, and whether some are there already."""
    taken = {p.name for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES}
    names = (f"{number:03d}.png" for number in itertools.count())
    return (name for name in names if name not in taken), bool(taken)


@contextlib.contextmanager
def _screen(wanted: int, folder: Path) -> Iterator[Show]:
    """Yield a function that shows what is missing, by a picture's advice and its size [px].

    On a terminal with a map of where corners were; else a line now and then.
    """

    def line(advice: Advice) -> str:
        asks = f"; next: {advice.missing[0]}" if advice.missing else ""
        return f"{advice.taken} of {wanted} pictures, {advice.state.value}{asks}"

    if not sys.stderr.isatty():
        said_s, taken = -LINE_S, -1

        def say(advice: Advice, _width: int, _height: int) -> None:
            nonlocal said_s, taken
            now_s = time.monotonic()
            if now_s - said_s >= LINE_S or advice.taken != taken:
                said_s, taken = now_s, advice.taken
                print(line(advice), file=sys.stderr, flush=True)

        yield say
        return
    covered = np.zeros((HIGH, WIDE), dtype=bool)
    colours = {
        PictureState.TAKEN: "bold green",
        PictureState.MOVING: "yellow",
        PictureState.NO_BOARD: "red",
    }
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(advice: Advice, width: int, height: int) -> None:
            now = np.zeros_like(covered)
            if advice.view is not None:
                share = advice.view.corners_px / (width, height)
                columns, rows = (share * (WIDE, HIGH)).astype(int).clip(0, (WIDE - 1, HIGH - 1)).T
                now[rows, columns] = True
            if advice.state is PictureState.TAKEN:
                covered[now] = True
            picture = Text()
            for row in range(HIGH):
                for column in range(WIDE):
                    mark = ("o", "green") if covered[row, column] else ("·", "dim")
                    picture.append(*(("#", "bold white") if now[row, column] else mark))
                picture.append("\n")
            title = f"{folder}: Ctrl-C ends and keeps what was taken"
            panel = Panel(picture, title=title, width=WIDE + 4)
            state = Text(line(advice), colours.get(advice.state, "cyan"))
            asks = Text("\n".join(f"  still missing: {ask}" for ask in advice.missing[:4]), "dim")
            live.update(Group(panel, state, asks), refresh=True)

        yield show


class _TakeInMemory:
    """A `TakeSink` that keeps every turn; its pictures, of which there are none, too."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)


def chirp_motion(config: CalibrateConfig) -> JointMotion:
    """Move every joint of the robot by a chirp, behind the safety filter.

    Raises:
        UnusableInputError: the robot or its station can't be used.
        DeviceError: the arm stopped answering, or the safety filter tripped.
    """
    station = lerobot_factory.station_for(config.robot, config.station)
    follower, clock = lerobot_factory.follower_of(config.robot, station)
    with contextlib.ExitStack() as on_exit:
        on_exit.callback(follower.close)
        script = MotionOptions(script="chirp", seconds=JOINT_S, amplitude_rad=0.15)
        rates = Rates(CONTROL_HZ, CONTROL_HZ)
        leader = make_motion_leader(follower, station, script)
        leader.reset()
        log.info(
            "Each joint swings back and forth, %.0f s. Keep clear of the arm.", leader.duration_s
        )
        kept, safety = _TakeInMemory(), make_safety(station, follower, rates.period_s)
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
    ticks = kept.ticks
    if len(ticks) < 2:
        raise DeviceError("The arm's loop ended before it began. Try again.")
    silent = np.array([t.state.status & NO_REPLY != 0 for t in ticks])
    delays = [t.latency_s for t in ticks if math.isfinite(t.latency_s)]
    return JointMotion(
        np.array([t.t_s for t in ticks]),
        np.array([t.command.sent_rad for t in ticks]),
        np.where(silent, np.nan, np.array([t.state.position_rad for t in ticks])),
        follower.joint_names,
        float(np.median(delays)) if delays else 0.0,
    )
