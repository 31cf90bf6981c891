"""Which pictures to take: the board still, somewhere new; and what to show next.

Nothing here opens a camera: pictures come in with their time, and advice goes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray, Image
from gaploop.teleop.calibration.board import Board, BoardView, find_board
from gaploop.teleop.calibration.geometry import angle_rad
from gaploop.teleop.calibration.hand_eye import main_turns_deg
from gaploop.teleop.calibration.intrinsics import MIN_VIEWS, assumed_lens, coverage

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
    KNOWN = "move on: there is such a picture"
    TAKEN = "taken"


@dataclass(frozen=True)
class Advice:
    """What to do after a picture.

    Attributes:
        state: of this picture.
        view: the board in it, if it was found.
        asks: what to show the camera next, most needed first.
        taken: pictures taken so far.
        done: all that is needed has been taken.
    """

    state: PictureState
    view: BoardView | None
    asks: tuple[str, ...]
    taken: int
    done: bool


class BoardCapture:
    """Picks pictures for intrinsics.

    Args:
        board: what is shown.
        wanted: pictures to take; more are taken while something is missing, up to half as many.
        known: views of pictures taken before, to go on with.
    """

    def __init__(self, board: Board, wanted: int, known: Sequence[BoardView] = ()) -> None:
        self.board = board
        self.views: list[BoardView] = list(known)
        self._wanted = max(wanted, MIN_VIEWS)
        self._still = Stillness(STILL_PX)

    def look(self, image: Image, t_s: float) -> Advice:
        """Look at a picture, RGB of shape (h, w, 3), taken at `t_s` [s]."""
        view = find_board(self.board, image)
        state = PictureState.NO_BOARD
        if view is not None:
            still = self._still.watch(_by_id(self.board, view), t_s)
            state = PictureState.MOVING if not still else self._if_new(view)
        else:
            self._still.forget()
        return self._advice(state, view)

    def advice(self) -> Advice:
        """Return what to show next, before any picture."""
        return self._advice(PictureState.NO_BOARD, None)

    def _if_new(self, view: BoardView) -> PictureState:
        if any(not _differs(self.board, view, other) for other in self.views):
            return PictureState.KNOWN
        self.views.append(view)
        return PictureState.TAKEN

    def _advice(self, state: PictureState, view: BoardView | None) -> Advice:
        n = len(self.views)
        asks = coverage(self.board, self.views).missing() if n else ("board in the middle",)
        done = n >= self._wanted and (not asks or n >= 1.5 * self._wanted)
        return Advice(state, view, asks, n, done)


class PoseCapture:
    """Picks poses of the arm for hand-eye calibration.

    Args:
        board: what the camera sees.
        wanted: poses to take.
        known: poses of the tool taken before, each of shape (4, 4).
    """

    def __init__(self, board: Board, wanted: int, known: Sequence[FloatArray] = ()) -> None:
        self.board = board
        self.poses: list[FloatArray] = list(known)
        self._wanted = wanted
        self._still_board, self._still_arm = Stillness(STILL_PX), Stillness(float(STILL_RAD))

    def look(
        self,
        image: Image,
        q_rad: FloatArray,
        T_base_tcp: FloatArray,
        t_s: float,
        force: bool = False,
    ) -> Advice:
        """Look at a picture and the arm.

        Args:
            image: RGB, shape (h, w, 3).
            q_rad: joint positions [rad], shape (n_joints,).
            T_base_tcp: pose of the tool, shape (4, 4).
            t_s: when both were taken [s].
            force: take it even where there is a similar one; never while anything moves.
        """
        view = find_board(self.board, image)
        state = PictureState.NO_BOARD
        if view is not None:
            still = self._still_board.watch(_by_id(self.board, view), t_s)
            still = self._still_arm.watch(q_rad, t_s) and still
            state = PictureState.MOVING if not still else self._if_new(T_base_tcp, force)
        else:
            self._still_board.forget()
        return self._advice(state, view)

    def advice(self) -> Advice:
        """Return what to show next, before any picture."""
        return self._advice(PictureState.NO_BOARD, None)

    def _advice(self, state: PictureState, view: BoardView | None) -> Advice:
        n = len(self.poses)
        return Advice(state, view, self.asks(), n, n >= self._wanted)

    def asks(self) -> tuple[str, ...]:
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

    def _if_new(self, T: FloatArray, force: bool) -> PictureState:
        for other in self.poses:
            apart_m = float(np.linalg.norm(T[:3, 3] - other[:3, 3]))
            turned = float(np.degrees(angle_rad(other[:3, :3].T @ T[:3, :3])))
            if not force and apart_m < NEW_ARM_M and turned < NEW_ARM_DEG:
                return PictureState.KNOWN
        self.poses.append(T)
        return PictureState.TAKEN


class Stillness:
    """Says whether a vector of numbers has kept still.

    Args:
        most: how far the farthest entry may wander.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._anchor: FloatArray | None = None
        self._since_s = 0.0

    def watch(self, values: FloatArray, t_s: float) -> bool:
        """Take note of values, shape (k,), NaN where unknown, at `t_s` [s]; say if still."""
        anchor = self._anchor
        if anchor is None or not self._near(values, anchor):
            self._anchor, self._since_s = values.copy(), t_s
            return False
        return t_s - self._since_s >= STILL_S

    def forget(self) -> None:
        """Begin anew."""
        self._anchor = None

    def _near(self, values: FloatArray, anchor: FloatArray) -> bool:
        apart = np.abs(values - anchor)
        known = np.isfinite(apart)
        return bool(known.any() and apart[known].max() <= self._most)


def _by_id(board: Board, view: BoardView) -> FloatArray:
    """Return corners by id, flat, NaN where not seen: comparable from picture to picture."""
    flat = np.full((len(board.corners_m), 2), np.nan)
    flat[view.ids] = view.corners_px
    return flat.ravel()


def _differs(board: Board, view: BoardView, other: BoardView) -> bool:
    if (view.width, view.height) != (other.width, other.height):
        return True
    lens = assumed_lens(view.width, view.height)
    (a, _), (b, _) = lens.board_pose(board, view), lens.board_pose(board, other)
    centre = np.append(board.centre_m, 1.0)
    here, there = (a @ centre)[:3], (b @ centre)[:3]
    moved = np.linalg.norm(here[:2] / here[2] - there[:2] / there[2]) * lens.focal_px / view.width
    turned = float(np.degrees(angle_rad(a[:3, :3].T @ b[:3, :3])))
    resized = abs(np.log(here[2] / there[2]))
    return bool(moved > NEW_PLACE or turned > NEW_TILT_DEG or resized > NEW_SIZE)
