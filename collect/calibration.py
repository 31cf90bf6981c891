"""Taking pictures to calibrate with: the operator is told what to show next, until all is there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from gaploop.collect import lerobot_factory
from gaploop.collect.operator.keys import SPACE, keys
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import append_line, sha256, writable_folder
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import CameraFrame
from gaploop.core.protocols import CameraSource, Follower
from gaploop.teleop.calibration.board import Board
from gaploop.teleop.calibration.capture import Advice, BoardCapture, PictureState, PoseCapture
from gaploop.teleop.calibration.store import (
    IMAGE_SUFFIXES,
    POSES,
    calibration_path,
    find_boards,
    image_files,
    joints_row,
    read_poses,
    save_part,
    write_image,
)
from gaploop.teleop.stopping import stoppable

log = logging.getLogger(__name__)

PICTURES: Final = 20
"""How many are taken of a board."""
STALLED_S: Final = 5.0
"""A camera without a new picture for this long is gone [s]."""
PAUSE_S: Final = 0.005
MAP: Final = (48, 16)
"""Columns and rows of characters; a character is about twice as high as wide."""
LINE_S: Final = 2.0
"""Without a terminal a line is written this often [s], and for every picture."""

type Show = Callable[[Advice, int, int], None]


def take_board_pictures(camera: CameraSource, board: Board, folder: Path) -> None:
    """Take pictures of a board into `folder` until the lens is covered, or Ctrl-C.

    Raises:
        DeviceError: the camera stops giving pictures.
    """
    writable_folder(folder, "Folder", "--path")
    names, is_begun = _free_names(folder)
    known = find_boards(board, image_files(folder))[0] if is_begun else ()
    capture = BoardCapture(board, PICTURES, known)

    def look(frame: CameraFrame, _forced: bool) -> Advice:
        advice = capture.look(frame.image, frame.t_capture_s)
        if advice.state is PictureState.TAKEN:
            write_image(folder / next(names), frame.image)
        return advice

    _guide(camera, look, capture.advice(), PICTURES, folder)


def take_poses(
    camera: CameraSource,
    follower: Follower,
    arm: ArmModel,
    board: Board,
    folder: Path,
    wanted: int = PICTURES,
) -> None:
    """Add pictures and joints to `folder` until there are `wanted` new poses, or Ctrl-C.

    The arm is limp, and moved by hand.

    Raises:
        DeviceError: the camera or the arm stops answering.
        UnusableInputError: the arm has other joints than its model, or the folder's poses.
    """
    writable_folder(folder, "Folder", "--path")
    if follower.joint_names != arm.joint_names:
        raise UnusableInputError(
            f"The robot has joints {', '.join(follower.joint_names)}, the {arm.name} model "
            f"{', '.join(arm.joint_names)}. Name its model with --arm_model."
        )
    before = read_poses(folder, arm) if (folder / POSES).is_file() else {}
    capture = PoseCapture(board, wanted, [T_base_tcp for T_base_tcp, _ in before.values()])
    names, _ = _free_names(folder)

    def look(frame: CameraFrame, forced: bool) -> Advice:
        q = follower.read().position_rad
        advice = capture.look(frame.image, q, arm.T_base_tcp(q), frame.t_capture_s, forced)
        if advice.state is PictureState.TAKEN:
            name = next(names)
            write_image(folder / name, frame.image)
            append_line(folder / POSES, joints_row(name, follower.joint_names, q))
        return advice

    _guide(camera, look, capture.advice(), wanted, folder)


@contextlib.contextmanager
def limp_arm(robot: Any, station: Path | None, *, keep: bool) -> Iterator[Follower]:
    """Yield the robot of `--robot.*`, torque off.

    Results hold only for as long as the file of lerobot-calibrate stays as it is: its hash is
    kept in the calibration beside the file `station`, to `keep` them.
    """
    follower, _ = lerobot_factory.follower_of(robot, lerobot_factory.station_for(robot, station))
    with contextlib.closing(follower):
        follower.torque_off()
        yield follower
    path = getattr(getattr(follower, "device", None), "calibration_fpath", None)
    if keep and path is not None and Path(path).is_file():
        values = {"file": str(path), "sha256": sha256(Path(path))}
        save_part(calibration_path(station), ("arms", "follower", "calibration"), values)


@contextlib.contextmanager
def one_camera(given: Any, name: str, robot: Any = None) -> Iterator[CameraSource]:
    """Yield the camera of `--camera.*`, or the one of that name on the robot.

    Raises:
        UnusableInputError: neither is there.
    """
    from gaploop.teleop.lerobot_devices.cameras import camera_configs
    from gaploop.teleop.lerobot_devices.make import connect_cameras

    if given is None:
        known = camera_configs(robot)
        if name not in known:
            raise UnusableInputError(
                f"No camera {name!r}: give --camera.type=opencv --camera.index_or_path=0, or one "
                f"of the robot's own with --camera_name (it has: {', '.join(known) or 'none'})."
            )
        given = known[name]
    (camera,) = connect_cameras({name: given})
    with contextlib.closing(camera):
        yield camera


def _guide(
    camera: CameraSource,
    look: Callable[[CameraFrame, bool], Advice],
    advice: Advice,
    wanted: int,
    folder: Path,
) -> None:
    """Show the way until all is taken or Ctrl-C; keeps whatever was taken."""
    seen_s, new_at_s = float("nan"), time.monotonic()
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
                log.info("%s", line(advice))

        yield say
        return
    columns, rows = MAP
    covered = np.zeros((rows, columns), dtype=bool)
    colours = {
        PictureState.TAKEN: "bold green",
        PictureState.MOVING: "yellow",
        PictureState.NO_BOARD: "red",
    }
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(advice: Advice, width: int, height: int) -> None:
            now = np.zeros_like(covered)
            if advice.view is not None:
                at = (advice.view.corners_px / (width, height) * MAP).astype(int)
                x, y = at.clip(0, (columns - 1, rows - 1)).T
                now[y, x] = True
            if advice.state is PictureState.TAKEN:
                covered[now] = True
            picture = Text()
            for row in range(rows):
                for column in range(columns):
                    mark = ("o", "green") if covered[row, column] else ("·", "dim")
                    picture.append(*(("#", "bold white") if now[row, column] else mark))
                picture.append("\n")
            title = f"{folder}: Ctrl-C ends and keeps what was taken"
            panel = Panel(picture, title=title, width=columns + 4)
            state = Text(line(advice), colours.get(advice.state, "cyan"))
            asks = Text("\n".join(f"  still missing: {ask}" for ask in advice.missing[:4]), "dim")
            live.update(Group(panel, state, asks), refresh=True)

        yield show
