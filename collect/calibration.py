"""Taking pictures to calibrate with: the operator is told what to show next, until all is there."""

import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from gaploop.collect import lerobot_factory, lerobot_types
from gaploop.collect.operator.keys import SPACE, keys
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import append_line, sha256, writable_folder
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import CameraFrame, FloatArray, Image
from gaploop.core.protocols import CameraSource, Follower
from gaploop.teleop.calibration import store
from gaploop.teleop.calibration.board import Board, BoardView, find_board
from gaploop.teleop.calibration.hand_eye import main_turns_deg
from gaploop.teleop.calibration.intrinsics import MIN_VIEWS, angle_rad, assumed_lens, coverage
from gaploop.teleop.lerobot_devices.make import camera_configs, connect_cameras
from gaploop.teleop.stopping import stoppable

STILL_S: Final = 0.4
"""The board must have been still for this long [s]: no motion blur, no rolling shutter."""
STILL_PX: Final = 0.8
"""Corners of a still board wander by less [px]."""
STILL_RAD: Final = np.radians(0.4)
"""A still arm's joints wander by less [rad]: encoders step by 0.09°."""
NEW_PLACE: Final = 0.08
"""A picture is new if the board's centre moved by this share of the picture's width, …"""
NEW_TILT_DEG: Final = 10.0
"""… or it is turned by this much, …"""
NEW_SIZE: Final = 0.2
"""… or it is larger or smaller by this share."""
NEW_ARM_DEG: Final = 8.0
"""A pose of the arm is new if the tool is turned by this much, or …"""
NEW_ARM_M: Final = 0.03
"""… moved by this much [m]."""
GOOD_TURN_DEG: Final = 10.0
"""Rotation about the second axis worth having, RMS over pairs of poses [deg]."""


class PictureState(StrEnum):
    """What a picture is good for."""

    NO_BOARD = "no board"
    MOVING = "hold still"
    KNOWN = "move on: such a picture is taken already"
    TAKEN = "taken"


@dataclass(frozen=True)
class Advice:
    """What to do after a picture; `missing` is what to show the camera next, most needed first."""

    state: PictureState
    view: BoardView | None
    missing: tuple[str, ...]
    taken: int
    done: bool


class BoardCapture:
    """Picks pictures for intrinsics, going on from the views `known`.

    While something is missing more than `wanted` are taken, up to half as many.
    """

    def __init__(self, board: Board, wanted: int, known: Sequence[BoardView] = ()) -> None:
        self.board = board
        self.views: list[BoardView] = list(known)
        self._wanted = max(wanted, MIN_VIEWS)
        self._still = Stillness(STILL_PX)

    def look(self, image: Image, t_s: float) -> Advice:
        """Look at a picture, RGB of shape (h, w, 3), taken at `t_s` [s]."""
        view = find_board(self.board, image)
        if view is None:
            self._still.forget()
            return self.advice()
        if not self._still.watch(_by_id(self.board, view), t_s):
            return self.advice(PictureState.MOVING, view)
        lens, centre = assumed_lens(view.width, view.height), np.append(self.board.centre_m, 1.0)
        T = lens.board_pose(self.board, view)[0]
        here = (T @ centre)[:3]
        for other in self.views:
            if (view.width, view.height) != (other.width, other.height):
                continue
            T_other = lens.board_pose(self.board, other)[0]
            there = (T_other @ centre)[:3]
            apart = np.linalg.norm(here[:2] / here[2] - there[:2] / there[2])
            moved = apart * lens.focal_px / view.width
            turned = np.degrees(angle_rad(T[:3, :3].T @ T_other[:3, :3]))
            resized = abs(np.log(here[2] / there[2]))
            if not (moved > NEW_PLACE or turned > NEW_TILT_DEG or resized > NEW_SIZE):
                return self.advice(PictureState.KNOWN, view)
        self.views.append(view)
        return self.advice(PictureState.TAKEN, view)

    def advice(
        self, state: PictureState = PictureState.NO_BOARD, view: BoardView | None = None
    ) -> Advice:
        """Return what to show next, after a picture or before any."""
        n = len(self.views)
        asks = coverage(self.board, self.views).missing() if n else ("board in the middle",)
        done = n >= self._wanted and (not asks or n >= 1.5 * self._wanted)
        return Advice(state, view, asks, n, done)


class PoseCapture:
    """Picks poses of the arm for hand-eye calibration; `known` ones, (4, 4), were taken before."""

    def __init__(self, board: Board, wanted: int, known: Sequence[FloatArray] = ()) -> None:
        self.board = board
        self.poses: list[FloatArray] = list(known)
        self._wanted = wanted
        self._still = Stillness(1.0)

    def look(
        self,
        image: Image,
        q_rad: FloatArray,
        T_base_tcp: FloatArray,
        t_s: float,
        force: bool = False,
    ) -> Advice:
        """Look at a picture (h, w, 3), the joints [rad] and the tool's pose (4, 4) at `t_s` [s].

        `force` takes it where there is a similar one, too; never while anything moves.
        """
        view = find_board(self.board, image)
        if view is None:
            self._still.forget()
            return self.advice()
        both = np.concatenate([_by_id(self.board, view) / STILL_PX, q_rad / STILL_RAD])
        if not self._still.watch(both, t_s):
            return self.advice(PictureState.MOVING, view)
        poses = np.array(self.poses).reshape(-1, 4, 4)
        apart_m = np.linalg.norm(poses[:, :3, 3] - T_base_tcp[:3, 3], axis=1)
        turned_rad = angle_rad(np.swapaxes(poses[:, :3, :3], 1, 2) @ T_base_tcp[:3, :3])
        near = (apart_m < NEW_ARM_M) & (np.degrees(turned_rad) < NEW_ARM_DEG)
        if near.any() and not force:
            return self.advice(PictureState.KNOWN, view)
        self.poses.append(T_base_tcp)
        return self.advice(PictureState.TAKEN, view)

    def advice(
        self, state: PictureState = PictureState.NO_BOARD, view: BoardView | None = None
    ) -> Advice:
        """Return what to do next, after a picture or before any."""
        n = len(self.poses)
        return Advice(state, view, self.missing(), n, n >= self._wanted)

    def missing(self) -> tuple[str, ...]:
        """Return which rotations are still missing."""
        if len(self.poses) < 3:
            return ("first poses, the board wholly in the picture",)
        (first, second, _), _ = main_turns_deg(np.array(self.poses))
        if second < GOOD_TURN_DEG:
            return (
                f"turn the gripper about another axis (so far {first:.0f}° and {second:.0f}°): "
                "roll it, pitch it",
            )
        return ()


class Stillness:
    """Says whether numbers have kept still: none of them wandered by more than `most`."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._anchor: FloatArray | None = None
        self._since_s = 0.0

    def watch(self, values: FloatArray, t_s: float) -> bool:
        """Take note of values, shape (k,), NaN where unknown, at `t_s` [s]; say if still."""
        if self._anchor is not None:
            apart = np.abs(values - self._anchor)
            if np.isfinite(apart).any() and np.nanmax(apart) <= self._most:
                return t_s - self._since_s >= STILL_S
        self._anchor, self._since_s = values.copy(), t_s
        return False

    def forget(self) -> None:
        """Begin anew."""
        self._anchor = None


def _by_id(board: Board, view: BoardView) -> FloatArray:
    """Return corners by id, flat, NaN where not seen: comparable from picture to picture."""
    flat = np.full((len(board.corners_m), 2), np.nan)
    flat[view.ids] = view.corners_px
    return flat.ravel()


# -- telling the operator what to show next -------------------------------------------------------


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
    known = store.find_boards(board, store.image_files(folder))[0] if is_begun else ()
    capture = BoardCapture(board, PICTURES, known)

    def look(frame: CameraFrame, _forced: bool) -> Advice:
        advice = capture.look(frame.image, frame.t_capture_s)
        if advice.state is PictureState.TAKEN:
            store.write_image(folder / next(names), frame.image)
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
    before = store.read_poses(folder, arm) if (folder / store.POSES).is_file() else {}
    capture = PoseCapture(board, wanted, [T_base_tcp for T_base_tcp, _ in before.values()])
    names, _ = _free_names(folder)

    def look(frame: CameraFrame, forced: bool) -> Advice:
        q = follower.read().position_rad
        advice = capture.look(frame.image, q, arm.T_base_tcp(q), frame.t_capture_s, forced)
        if advice.state is PictureState.TAKEN:
            name = next(names)
            store.write_image(folder / name, frame.image)
            append_line(folder / store.POSES, store.joints_row(name, follower.joint_names, q))
        return advice

    _guide(camera, look, capture.advice(), wanted, folder)


@contextlib.contextmanager
def limp_arm(robot: Any, station: Path | None, *, keep: bool) -> Iterator[Follower]:
    """Yield the robot of `--robot.*`, torque off.

    Results hold only for as long as the file of lerobot-calibrate stays as it is: its hash is
    kept in the calibration beside the file `station`, to `keep` them.
    """
    follower, _ = lerobot_factory.follower_of(robot, lerobot_types.station_for(robot, station))
    with contextlib.closing(follower):
        follower.torque_off()
        yield follower
    path = getattr(getattr(follower, "device", None), "calibration_fpath", None)
    if keep and path is not None and Path(path).is_file():
        values = {"file": str(path), "sha256": sha256(Path(path))}
        store.save_part(
            store.calibration_path(station), ("arms", "follower", "calibration"), values
        )


@contextlib.contextmanager
def one_camera(given: Any, name: str, robot: Any = None) -> Iterator[CameraSource]:
    """Yield the camera of `--camera.*`, or the one of that name on the robot.

    Raises:
        UnusableInputError: neither is there.
    """
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
    taken = {p.name for p in folder.iterdir() if p.suffix.lower() in store.IMAGE_SUFFIXES}
    names = (f"{number:03d}.png" for number in itertools.count())
    return (name for name in names if name not in taken), bool(taken)


@contextlib.contextmanager
def _screen(wanted: int, folder: Path) -> Iterator[Show]:
    """Yield a function that shows what is missing, by a picture's advice and its size [px].

    On a terminal with a map of where corners were; else a line now and then.
    """

    def line(advice: Advice) -> str:
        asks = f"; next: {advice.missing[0]}" if advice.missing else ""
        of_wanted = f" of {wanted}" if advice.taken < wanted else ""
        return f"{advice.taken}{of_wanted} pictures, {advice.state.value}{asks}"

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
