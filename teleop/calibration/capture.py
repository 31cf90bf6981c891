"""Which pictures to take: the board still, somewhere new; and what to show next.

Nothing here opens a camera: pictures come in with their time, and advice goes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray, Image
from gaploop.teleop.calibration.board import Board, BoardView, find_board
from gaploop.teleop.calibration.hand_eye import main_turns_deg
from gaploop.teleop.calibration.intrinsics import MIN_VIEWS, angle_rad, assumed_lens, coverage

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
