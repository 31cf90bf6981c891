"""Calibration boards: what is printed, and how it is found in a picture.

Columns and rows count the printed squares, for both kinds; OpenCV's "9x6 chessboard" counts
inner corners and has 10 x 7 squares. The board's frame has its origin at the outer corner of
the first square, x along the columns, y along the rows, z away from whoever looks at it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.types import FloatArray, Image

KINDS: Final = ("charuco", "chessboard")
DICTIONARIES: Final = tuple(
    f"{bits}X{bits}_{count}" for bits in (4, 5, 6, 7) for count in (50, 100, 250, 1000)
)
MIN_CORNERS: Final = 8
"""Fewer corners of a partly seen ChArUco board say too little about its pose."""


@dataclass(frozen=True)
class Board:
    """A printed board.

    Attributes:
        kind: `charuco` (may be partly out of the picture) or `chessboard`.
        columns: squares along x.
        rows: squares along y.
        square_m: side of a square [m].
        marker_m: side of a ChArUco marker [m].
        dictionary: of the markers, such as `4X4_50`.
        legacy: ChArUco layout of OpenCV before 4.6, where the first square is white if the
            number of rows is even.
    """

    kind: str = "charuco"
    columns: int = 8
    rows: int = 6
    square_m: float = 0.028
    marker_m: float = 0.021
    dictionary: str = "4X4_50"
    legacy: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_choice("board", self.kind, KINDS, "--board.kind")
        if not 3 <= self.columns <= 50 or not 3 <= self.rows <= 50:
            raise UnusableInputError(
                f"A board of {self.columns} x {self.rows} squares can't be used: "
                "--board.columns and --board.rows must be from 3 to 50."
            )
        if not 0.001 <= self.square_m <= 1.0:
            raise UnusableInputError(
                f"A square of {self.square_m * 1e3:g} mm can't be right: --board.square_mm must be "
                "from 1 to 1000."
            )
        if self.kind == "charuco":
            self._check_markers()

    def _check_markers(self) -> None:
        if self.dictionary not in DICTIONARIES:
            raise unknown_choice("dictionary", self.dictionary, DICTIONARIES, "--board.dictionary")
        if not 0.3 * self.square_m <= self.marker_m <= 0.95 * self.square_m:
            raise UnusableInputError(
                f"Markers of {self.marker_m * 1e3:g} mm don't go into squares of "
                f"{self.square_m * 1e3:g} mm: --board.marker_mm must be 0.3 to 0.95 of that."
            )
        have, need = int(self.dictionary.rpartition("_")[2]), self.columns * self.rows // 2
        if need > have:
            raise UnusableInputError(
                f"{self.columns} x {self.rows} squares need {need} markers, dictionary "
                f"{self.dictionary} has {have}. Choose a larger one with --board.dictionary."
            )

    @property
    def words(self) -> str:
        """Return what the board is, for messages."""
        squares = f"{self.columns} x {self.rows} squares of {self.square_m * 1e3:g} mm"
        if self.kind == "chessboard":
            return f"chessboard of {squares}"
        old = ", legacy layout" if self.legacy else ""
        return (
            f"ChArUco board of {squares}, markers {self.dictionary} of "
            f"{self.marker_m * 1e3:g} mm{old}"
        )

    @property
    def options(self) -> str:
        """Return the options that name this board on the command line."""
        words = (
            f"--board.kind={self.kind} --board.columns={self.columns} --board.rows={self.rows} "
            f"--board.square_mm={self.square_m * 1e3:g}"
        )
        if self.kind == "charuco":
            words += f" --board.marker_mm={self.marker_m * 1e3:g} "
            words += f"--board.dictionary={self.dictionary}"
        return words + (" --board.legacy" if self.legacy else "")

    @property
    def corners_m(self) -> FloatArray:
        """Return the inner corners in the board's frame [m], shape (n, 3), by id."""
        x, y = np.meshgrid(np.arange(1, self.columns), np.arange(1, self.rows))
        flat = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=1)
        return np.asarray(flat * self.square_m, dtype=np.float64)

    @property
    def centre_m(self) -> FloatArray:
        """Return the board's centre in its own frame [m], shape (3,)."""
        return np.array([self.columns, self.rows, 0.0]) * self.square_m / 2

    @property
    def has_one_orientation(self) -> bool:
        """Say whether the board looks different when turned by half a turn."""
        return self.kind == "charuco" or (self.columns + self.rows) % 2 == 1


@dataclass(frozen=True)
class BoardView:
    """A board as one picture shows it.

    Attributes:
        ids: which inner corners were found, shape (k,).
        corners_px: where [px], shape (k, 2); pixel centres are whole numbers.
        width: of the picture [px].
        height: of the picture [px].
        name: of the picture's file, or "".
        sharpness: contrast of the corners' edges, in grey levels per pixel; low where blurred.
    """

    ids: NDArray[np.int64]
    corners_px: FloatArray
    width: int
    height: int
    name: str = ""
    sharpness: float = float("nan")

    def points_m(self, board: Board) -> FloatArray:
        """Return the corners seen, in the board's frame [m], shape (k, 3)."""
        return board.corners_m[self.ids]


def find_board(board: Board, image: Image, name: str = "") -> BoardView | None:
    """Find a board in a picture; None where it isn't there or too little of it is.

    Args:
        board: what to look for.
        image: RGB, shape (h, w, 3), or grey, shape (h, w); uint8.
        name: goes into the result.
    """
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
    found = _find_charuco(board, grey) if board.kind == "charuco" else _find_chessboard(board, grey)
    if found is None:
        return None
    ids, corners = found
    corners = _refined(board, grey, ids, corners)
    height, width = grey.shape[:2]
    return BoardView(ids, corners, width, height, name, _sharpness(grey, corners))


@functools.lru_cache(maxsize=32)
def charuco(board: Board) -> Any:
    """Return OpenCV's object for a ChArUco board."""
    made = cv2.aruco.CharucoBoard(
        (board.columns, board.rows), board.square_m, board.marker_m, dictionary(board.dictionary)
    )
    made.setLegacyPattern(board.legacy)
    return made


def dictionary(name: str) -> Any:
    """Return OpenCV's dictionary of markers of that name, such as `4X4_50`."""
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))


@functools.lru_cache(maxsize=32)
def _charuco_detector(board: Board) -> Any:
    parameters = cv2.aruco.CharucoParameters()
    parameters.tryRefineMarkers = True
    return cv2.aruco.CharucoDetector(charuco(board), parameters)


def _find_charuco(board: Board, grey: Image) -> tuple[NDArray[np.int64], FloatArray] | None:
    corners, ids, _, _ = _charuco_detector(board).detectBoard(grey)
    if ids is None or len(ids) < MIN_CORNERS:
        return None
    ids = np.asarray(ids, dtype=np.int64).ravel()
    columns, rows = ids % (board.columns - 1), ids // (board.columns - 1)
    if len(np.unique(columns)) < 2 or len(np.unique(rows)) < 2:  # on one line: no pose
        return None
    return ids, np.asarray(corners, dtype=np.float64).reshape(-1, 2)


def _find_chessboard(board: Board, grey: Image) -> tuple[NDArray[np.int64], FloatArray] | None:
    wide, high = board.columns - 1, board.rows - 1
    grid = any_chessboard(grey, (wide, high))
    if grid is None or sorted(grid.shape[:2]) != sorted((wide, high)):
        return None
    if grid.shape[:2] != (high, wide):
        grid = grid.transpose(1, 0, 2)
    grid = _canonical(grid, grey)
    return np.arange(wide * high, dtype=np.int64), grid.reshape(-1, 2)


def any_chessboard(grey: Image, at_least: tuple[int, int]) -> FloatArray | None:
    """Return the corners of a chessboard of that size or larger, shape (rows, columns, 2)."""
    # Without LARGER, OpenCV takes a part of a larger board for the whole.
    flags = cv2.CALIB_CB_LARGER | cv2.CALIB_CB_NORMALIZE_IMAGE
    ok, corners, meta = cv2.findChessboardCornersSBWithMeta(grey, at_least, flags)
    if not ok or corners is None or meta is None:
        return None
    return np.asarray(corners, dtype=np.float64).reshape(*meta.shape[:2], 2)


def _canonical(grid: FloatArray, grey: Image) -> FloatArray:
    """Order corners so that x runs right of y's left hand and the first square is black."""
    right, down = grid[0, -1] - grid[0, 0], grid[-1, 0] - grid[0, 0]
    if right[0] * down[1] - right[1] * down[0] < 0:
        grid = grid[:, ::-1]
    middles = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]) / 4
    at = middles.reshape(-1, 1, 2).astype(np.float32)
    shades = cv2.remap(cv2.blur(grey, (3, 3)), at, None, cv2.INTER_LINEAR).reshape(
        middles.shape[:2]
    )
    even = np.add.outer(np.arange(shades.shape[0]), np.arange(shades.shape[1])) % 2 == 0
    if shades[even].mean() > shades[~even].mean():
        grid = grid[::-1, ::-1]
    return np.ascontiguousarray(grid)


def _refined(board: Board, grey: Image, ids: NDArray[np.int64], corners: FloatArray) -> FloatArray:
    """Refine corners by their gradients: both detectors leave some tenths of a pixel of bias."""
    gap = board.square_m - board.marker_m if board.kind == "charuco" else board.square_m
    # A window that reaches into a marker or to the next corner pulls the corner away.
    half = int(np.clip(0.4 * gap / board.square_m * _spacing_px(board, ids, corners), 2, 9))
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-3)
    start = corners.reshape(-1, 1, 2).astype(np.float32)
    moved = cv2.cornerSubPix(grey, start, (half, half), (-1, -1), criteria).reshape(-1, 2)
    far = np.linalg.norm(moved - corners, axis=1) > half
    return np.where(far[:, None], corners, moved).astype(np.float64)


def _spacing_px(board: Board, ids: NDArray[np.int64], corners: FloatArray) -> float:
    """Return the smallest distance of neighbouring corners [px]."""
    place = {int(i): corner for i, corner in zip(ids, corners, strict=True)}
    wide = board.columns - 1
    steps = [
        float(np.linalg.norm(place[i] - place[j]))
        for i in place
        for j in ((i + 1,) if (i + 1) % wide else ()) + (i + wide,)
        if j in place
    ]
    return min(steps, default=8.0)


def _sharpness(grey: Image, corners: FloatArray) -> float:
    """Return the steepest edges about the corners [grey levels per px], the median over corners."""
    dx = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=0.125)
    dy = cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=0.125)
    steep = cv2.dilate(cv2.magnitude(dx, dy), np.ones((9, 9), np.uint8))
    at = corners.reshape(-1, 1, 2).astype(np.float32)
    return float(np.median(cv2.remap(steep, at, None, cv2.INTER_LINEAR)))
