"""Which parts of the picture and which tilts a set of board views covers, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.camera_model import Intrinsics

CELLS: Final = (6, 8)
"""Rows and columns of the grid in which corners are counted."""
REGIONS: Final = (
    ("top left", "top", "top right"),
    ("left", "middle", "right"),
    ("bottom left", "bottom", "bottom right"),
)
TILTED_DEG: Final = 15.0
"""A board tilted by less says little about the focal length (Zhang, PAMI 2000, section 4)."""
TILTED_VIEWS: Final = 6
"""How many tilted views to ask for."""
SPREAD_ON_AXIS: Final = 2
"""How many of them about each of the picture's axes."""


@dataclass(frozen=True)
class Coverage:
    """What a set of views covers.

    Attributes:
        counts: corners in each cell of the picture, shape `CELLS`.
        tilt_deg: angle between the board's normal and the line of sight [deg], shape (n,).
        about_x: tilted about the picture's horizontal axis rather than the vertical, shape (n,).
    """

    counts: NDArray[np.int64]
    tilt_deg: FloatArray
    about_x: NDArray[np.bool_]

    @property
    def share(self) -> float:
        """Return the share of cells that hold a corner."""
        return float((self.counts > 0).mean())

    def missing(self) -> tuple[str, ...]:
        """Return what to show the camera next, most needed first; empty where all is covered."""
        asks = [f"board at the {name}" for name in self.empty_regions()]
        tilted = self.tilt_deg >= TILTED_DEG
        for about_x, words in ((True, "towards or away from the camera"), (False, "left or right")):
            if (tilted & (self.about_x == about_x)).sum() < SPREAD_ON_AXIS:
                asks.append(f"board tilted {words} by 20 to 45°")
        if tilted.sum() < TILTED_VIEWS and len(asks) == 0:
            asks.append("more tilted boards")
        return tuple(asks)

    def empty_regions(self) -> tuple[str, ...]:
        """Return the names of the ninths of the picture that are less than half covered."""
        rows = np.array_split(np.arange(CELLS[0]), 3)
        columns = np.array_split(np.arange(CELLS[1]), 3)
        return tuple(
            REGIONS[i][j]
            for i, j in ((0, 0), (0, 2), (2, 0), (2, 2), (0, 1), (2, 1), (1, 0), (1, 2), (1, 1))
            if (self.counts[np.ix_(rows[i], columns[j])] > 0).mean() < 0.5
        )


def coverage(board: Board, views: Sequence[BoardView], lens: Intrinsics | None = None) -> Coverage:
    """Return what `views` cover; at least one.

    Args:
        board: the board seen.
        views: all of one picture size.
        lens: gives the tilts; a usual webcam's is assumed where nothing is known yet.
    """
    width, height = views[0].width, views[0].height
    lens = lens or assumed_lens(width, height)
    corners = np.concatenate([view.corners_px for view in views])
    edges = [(-0.5, height - 0.5), (-0.5, width - 0.5)]
    counts, _, _ = np.histogram2d(corners[:, 1], corners[:, 0], bins=CELLS, range=edges)
    tilts = [tilt(board, view, lens) for view in views]
    return Coverage(
        counts.astype(np.int64),
        np.array([t for t, _ in tilts]),
        np.array([about_x for _, about_x in tilts]),
    )


def tilt(board: Board, view: BoardView, lens: Intrinsics) -> tuple[float, bool]:
    """Return a board's tilt against the line of sight [deg], and whether it is about x."""
    T, _ = lens.board_pose(board, view)
    sight = T[:3, :3] @ board.centre_m + T[:3, 3]
    sight /= np.linalg.norm(sight)
    normal = T[:3, 2] * np.sign(T[:3, 2] @ sight)
    axis = np.cross(sight, normal)
    angle = float(np.degrees(np.arcsin(min(1.0, float(np.linalg.norm(axis))))))
    return angle, bool(abs(axis[0]) >= abs(axis[1]))


def assumed_lens(width: int, height: int) -> Intrinsics:
    """Return a usual webcam: 60° across, no distortion. For guidance, never for results."""
    focal = 0.5 * width / np.tan(np.radians(30.0))
    matrix = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return Intrinsics(width, height, matrix, np.zeros(5))
