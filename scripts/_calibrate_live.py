"""The parts of `gaploop calibrate` that look through a camera: guided taking of pictures."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect.operator.keys import SPACE, keys
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, writable_folder
from gaploop.scripts._calibrate_map import capture_screen
from gaploop.scripts._signals import stoppable

if TYPE_CHECKING:
    from gaploop.core.kinematics import ArmModel
    from gaploop.core.protocols import CameraSource, Follower
    from gaploop.core.types import CameraFrame
    from gaploop.scripts.calibrate import CalibrateFields
    from gaploop.teleop.calibration.board import Board
    from gaploop.teleop.calibration.capture import Advice

log = logging.getLogger(__name__)

STALLED_S: Final = 5.0
"""A camera without a new picture for this long is gone [s]."""
PAUSE_S: Final = 0.005
POSES: Final = "poses.jsonl"


def take_board_pictures(config: CalibrateFields, board: Board, folder: Path) -> None:
    """Take pictures of a board into `folder` until the lens is covered, or Ctrl-C.

    Raises:
        DeviceError: the camera can't be opened or stops giving pictures.
    """
    from gaploop.teleop.calibration.capture import BoardCapture, PictureState
    from gaploop.teleop.calibration.sightings import image_files, write_image

    writable_folder(folder, "Folder", "--path")
    known = _views_in(board, folder)
    capture = BoardCapture(board, config.images, known)
    names = _free_names({p.name for p in image_files(folder)} if known else _names_in(folder))

    def look(frame: CameraFrame, _forced: bool) -> Advice:
        advice = capture.look(frame.image, frame.t_capture_s)
        if advice.state is PictureState.TAKEN:
            write_image(folder / next(names), frame.image)
        return advice

    with _camera(config) as camera:
        _guide(camera, look, capture.advice(), config.images, folder)


def take_poses(config: CalibrateFields, board: Board, folder: Path, arm: ArmModel) -> None:
    """Take pictures and the arm's joints into `folder`; the arm is limp and moved by hand.

    Raises:
        DeviceError: the camera or the arm stops answering.
    """
    writable_folder(folder, "Folder", "--path")
    with limp_arm(config) as follower, _camera(config) as camera:
        log.info("The arm is limp: hold it. Move it, keep still for half a second, move on.")
        collect_poses(camera, follower, arm, board, folder, config.images)


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
    from gaploop.teleop.calibration.capture import PictureState, PoseCapture
    from gaploop.teleop.calibration.sightings import joints_row, read_poses, write_image

    if follower.joint_names != arm.joint_names:
        raise UnusableInputError(
            f"The robot has joints {', '.join(follower.joint_names)}, the {arm.name} model "
            f"{', '.join(arm.joint_names)}. Name its model with --arm_model."
        )
    before = read_poses(folder, arm) if (folder / POSES).is_file() else []
    capture = PoseCapture(board, wanted, [row.T_base_tcp for row in before])
    names = _free_names(_names_in(folder))

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
def limp_arm(config: CalibrateFields) -> Iterator[Follower]:
    """Yield the robot of `--robot.*`, torque off."""
    from gaploop.scripts._arms import follower_of, station_for

    robot = getattr(config, "robot", None)
    follower, _ = follower_of(robot, station_for(robot, config.station))
    try:
        follower.torque_off()
        yield follower
    finally:
        follower.close()


@contextlib.contextmanager
def _camera(config: CalibrateFields) -> Iterator[CameraSource]:
    """Yield the camera of `--camera.*`, or the one of that name on the robot."""
    from lerobot.cameras import make_cameras_from_configs

    from gaploop.teleop.lerobot_devices.cameras import LerobotCamera, camera_configs

    name = config.camera_name
    given = getattr(config, "camera", None)
    if given is None:
        known = camera_configs(getattr(config, "robot", None))
        given = known.get(name)
        if given is None:
            raise UnusableInputError(
                f"No camera {name!r}: give --camera.type=opencv --camera.index_or_path=0, or one "
                f"of the robot's own with --camera_name (it has: {', '.join(known) or 'none'})."
            )
    (made,) = make_cameras_from_configs({name: given}).values()
    camera = LerobotCamera(name, made, MonotonicClock())
    try:
        yield camera
    finally:
        camera.close()


def one_picture(config: CalibrateFields) -> CameraFrame:
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
    from gaploop.core.errors import DeviceError

    advice, seen_s, new_at_s = first, float("nan"), time.monotonic()
    with stoppable() as stopped, keys() as pressed, capture_screen(wanted, folder) as show:
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
    log.info(
        "%d pictures in %s%s.",
        advice.taken,
        folder,
        "; stopped, the same command goes on from there" if stopped else "",
    )


def _views_in(board: Board, folder: Path) -> list[Any]:
    from gaploop.teleop.calibration.sightings import find_boards, image_files

    if not _names_in(folder):
        return []
    return list(find_boards(board, image_files(folder)).views)


def _names_in(folder: Path) -> set[str]:
    from gaploop.teleop.calibration.sightings import IMAGE_SUFFIXES

    return {p.name for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES}


def _free_names(taken: set[str]) -> Iterator[str]:
    number = 0
    while True:
        name = f"{number:03d}.png"
        number += 1
        if name not in taken:
            yield name
