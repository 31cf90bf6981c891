"""Calibration boards: what is printed, and how it is found in a picture.

Columns and rows count the printed squares, for both kinds; OpenCV's "9x6 chessboard" counts
inner corners and has 10 x 7 squares. The board's frame has its origin at the outer corner of
the first square, x along the columns, y along the rows, z away from whoever looks at it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder
from gaploop.core.messages import FloatArray, Image

KINDS: Final = ("charuco", "chessboard")
WRITTEN: Final = re.compile(
    r"(?:(charuco|chessboard):)?(\d+)x(\d+):([\d.]*\d)(?::([\d.]*\d))?(?::((?:DICT_)?\dX\d_\d+))?"
)
"""A board, as `parse_board` reads it."""
DICTIONARIES: Final = tuple(
    f"{bits}X{bits}_{count}" for bits in (4, 5, 6, 7) for count in (50, 100, 250, 1000)
)
MIN_CORNERS: Final = 8
"""Fewer corners of a partly seen ChArUco board say too little about its pose."""


PAGES_MM: Final = {"A4": (210.0, 297.0), "A3": (297.0, 420.0), "letter": (215.9, 279.4)}
"""Short and long side; ISO 216 and ANSI/ASME Y14.1."""
SUFFIXES: Final = (".pdf", ".png")
QUIET_MM: Final = 8.0
"""White about the board; printers also leave some 5 mm of the page blank."""
RULER_MM: Final = 100.0
DPI: Final = 600


@dataclass(frozen=True)
class Board:
    """A printed board.

    Attributes:
        kind: `charuco` (may be partly out of the picture) or `chessboard`.
    """

    kind: str = "charuco"
    columns: int = 8
    rows: int = 6
    square_m: float = 0.028
    marker_m: float = 0.021
    dictionary: str = "4X4_50"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_choice("board", self.kind, KINDS, "--board")
        if not 3 <= self.columns <= 50 or not 3 <= self.rows <= 50:
            raise UnusableInputError(
                f"A board of {self.columns} x {self.rows} squares can't be used: give --board 3 to "
                "50 columns and rows."
            )
        if not 0.001 <= self.square_m <= 1.0:
            raise UnusableInputError(
                f"--board: a square of {self.square_m * 1e3:g} mm can't be right; 1 to 1000 mm can."
            )
        if self.kind == "chessboard":
            return
        if self.dictionary not in DICTIONARIES:
            raise unknown_choice("dictionary", self.dictionary, DICTIONARIES, "--board")
        if not 0.3 * self.square_m <= self.marker_m <= 0.95 * self.square_m:
            raise UnusableInputError(
                f"Markers of {self.marker_m * 1e3:g} mm don't go into squares of "
                f"{self.square_m * 1e3:g} mm: give --board markers of 0.3 to 0.95 of that."
            )
        have, need = int(self.dictionary.rpartition("_")[2]), self.columns * self.rows // 2
        if need > have:
            raise UnusableInputError(
                f"{self.columns} x {self.rows} squares need {need} markers, dictionary "
                f"{self.dictionary} has {have}. Give --board a larger one."
            )

    @property
    def words(self) -> str:
        """Return what the board is, for messages."""
        squares = f"{self.columns} x {self.rows} squares of {self.square_m * 1e3:g} mm"
        if self.kind == "chessboard":
            return f"chessboard of {squares}"
        return (
            f"ChArUco board of {squares}, markers {self.dictionary} of {self.marker_m * 1e3:g} mm"
        )

    @property
    def option(self) -> str:
        """Return the option that names this board on the command line; see `parse_board`."""
        text = f"--board={'chessboard:' * (self.kind == 'chessboard')}"
        text += f"{self.columns}x{self.rows}:{self.square_m * 1e3:g}"
        if self.kind == "charuco":
            text += f":{self.marker_m * 1e3:g}:{self.dictionary}"
        return text

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


@dataclass(frozen=True)
class BoardView:
    """A board as one picture shows it.

    Attributes:
        ids: which inner corners were found, shape (k,).
        corners_px: where [px], shape (k, 2); pixel centres are whole numbers.
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

    `image` is RGB, shape (h, w, 3), or grey, shape (h, w); uint8.
    """
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
    if board.kind == "charuco":
        parameters = cv2.aruco.CharucoParameters()
        parameters.tryRefineMarkers = True
        detector = cv2.aruco.CharucoDetector(charuco(board), parameters)
        corners, ids, _, _ = detector.detectBoard(grey)
        if ids is None or len(ids) < MIN_CORNERS:
            return None
        ids = np.asarray(ids, dtype=np.int64).ravel()
        columns, rows = ids % (board.columns - 1), ids // (board.columns - 1)
        if len(np.unique(columns)) < 2 or len(np.unique(rows)) < 2:  # on one line: no pose
            return None
        corners = np.asarray(corners, dtype=np.float64).reshape(-1, 2)
    else:
        wide, high = board.columns - 1, board.rows - 1
        grid = any_chessboard(grey, (wide, high))
        if grid is None or sorted(grid.shape[:2]) != sorted((wide, high)):
            return None
        if grid.shape[:2] != (high, wide):
            grid = grid.transpose(1, 0, 2)
        # x runs right of y's left hand, and the first square is black.
        right, down = grid[0, -1] - grid[0, 0], grid[-1, 0] - grid[0, 0]
        if right[0] * down[1] - right[1] * down[0] < 0:
            grid = grid[:, ::-1]
        middles = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]) / 4
        at = middles.reshape(-1, 1, 2).astype(np.float32)
        blurred = cv2.blur(grey, (3, 3))
        shades = cv2.remap(blurred, at, None, cv2.INTER_LINEAR).reshape(middles.shape[:2])
        even = np.add.outer(np.arange(shades.shape[0]), np.arange(shades.shape[1])) % 2 == 0
        if shades[even].mean() > shades[~even].mean():
            grid = grid[::-1, ::-1]
        ids, corners = np.arange(wide * high), np.ascontiguousarray(grid).reshape(-1, 2)
    # Both detectors leave some tenths of a pixel of bias. A window that reaches into a marker or
    # to the next corner pulls the corner away.
    gap = board.square_m - board.marker_m if board.kind == "charuco" else board.square_m
    half = int(np.clip(0.4 * gap / board.square_m * pdist(corners).min(), 2, 9))
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-3)
    start = corners.reshape(-1, 1, 2).astype(np.float32)
    moved = cv2.cornerSubPix(grey, start, (half, half), (-1, -1), criteria).reshape(-1, 2)
    far = np.linalg.norm(moved - corners, axis=1) > half
    corners = np.where(far[:, None], corners, moved).astype(np.float64)
    dx = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=0.125)
    dy = cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=0.125)
    steep = cv2.dilate(cv2.magnitude(dx, dy), np.ones((9, 9), np.uint8))
    at = corners.reshape(-1, 1, 2).astype(np.float32)
    sharpness = float(np.median(cv2.remap(steep, at, None, cv2.INTER_LINEAR)))
    height, width = grey.shape[:2]
    return BoardView(ids, corners, width, height, name, sharpness)


@functools.lru_cache(maxsize=32)
def charuco(board: Board) -> Any:
    """Return OpenCV's object for a ChArUco board."""
    return cv2.aruco.CharucoBoard(
        (board.columns, board.rows), board.square_m, board.marker_m, dictionary(board.dictionary)
    )


def dictionary(name: str) -> Any:
    """Return OpenCV's dictionary of markers of that name, such as `4X4_50`."""
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))


def any_chessboard(grey: Image, at_least: tuple[int, int]) -> FloatArray | None:
    """Return the corners of a chessboard of that size or larger, shape (rows, columns, 2)."""
    # Without LARGER, OpenCV takes a part of a larger board for the whole.
    flags = cv2.CALIB_CB_LARGER | cv2.CALIB_CB_NORMALIZE_IMAGE
    ok, corners, meta = cv2.findChessboardCornersSBWithMeta(grey, at_least, flags)
    if not ok or corners is None or meta is None:
        return None
    return np.asarray(corners, dtype=np.float64).reshape(*meta.shape[:2], 2)


def parse_board(text: str) -> Board:
    """Return the board that a text describes.

    Args:
        text: `8x6:28`: columns and rows of squares, side of a square [mm]; then perhaps side of a
            marker [mm] and dictionary, as in `8x6:28:21:4X4_50`; or `chessboard:10x7:25`.

    Raises:
        UnusableInputError: it can't be read, or there is no such board.
    """
    read = WRITTEN.fullmatch(text.strip())
    if read is None:
        raise UnusableInputError(
            f"--board={text} can't be read. Write columns x rows of squares and their side in mm, "
            "as 8x6:28, 8x6:28:21:4X4_50 or chessboard:10x7:25."
        )
    kind, columns, rows, square_mm, marker_mm, markers = read.groups()
    square_m = float(square_mm) * 1e-3
    marker_m = float(marker_mm) * 1e-3 if marker_mm else 0.75 * square_m
    sides = int(columns), int(rows), square_m, marker_m
    return Board(kind or "charuco", *sides, (markers or "4X4_50").removeprefix("DICT_"))


def why_not_found(board: Board, images: Iterable[Image]) -> str:
    """Say what else is in pictures without `board`, with the option that fixes it, or advise."""
    shapes = []
    for image in images:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
        counts = {}
        for name in ("4X4_1000", "5X5_1000", "6X6_1000", "7X7_1000"):
            _, ids, _ = cv2.aruco.ArucoDetector(dictionary(name)).detectMarkers(grey)
            counts[name] = np.unique(ids) if ids is not None else np.empty(0, dtype=np.int32)
        name, ids = max(counts.items(), key=lambda item: len(item[1]))
        if len(ids) < 4:  # no markers to speak of
            grid = any_chessboard(grey, (3, 3))
            shapes += [grid.shape[:2]] if grid is not None else []
            continue
        bits, last = name.partition("_")[0], int(ids.max())
        least = next(n for n in (50, 100, 250, 1000) if last < n)
        own = board.kind == "charuco" and board.dictionary.startswith(bits)
        family = board.dictionary if own else f"{bits}_{least}"
        # The layout that explains most corners: markers are numbered row by row.
        seen: list[tuple[int, int, Board]] = []
        for columns, rows in itertools.product(range(3, 16), repeat=2):
            if last < columns * rows // 2 <= last + 5:
                made = replace(
                    board, kind="charuco", columns=columns, rows=rows, dictionary=family,
                    marker_m=0.75 * board.square_m if board.kind == "chessboard" else
                    board.marker_m,
                )  # fmt: skip
                view = find_board(made, grey)
                seen += [(len(view.ids), -columns * rows, made)] if view is not None else []
        if seen:
            made = max(seen, key=lambda found: found[:2])[2]
            return (
                f"A ChArUco board of {made.columns} x {made.rows} squares is there: {made.option}, "
                "with its sizes as measured on it."
            )
        return (
            f"Markers {ids.min()} to {last} of {bits} are there, but laid out as no ChArUco board "
            "of 3 x 3 to 15 x 15 squares. Show more of the board."
        )
    if shapes:  # of a partly covered board only a part is found: the largest is the likeliest
        inner = max(shapes, key=lambda shape: shape[0] * shape[1])
        rows, columns = sorted((inner[0] + 1, inner[1] + 1))
        if board.kind == "chessboard" and [rows, columns] == sorted((board.rows, board.columns)):
            return "It is there, but not clear enough: check light and focus."
        return (
            f"A chessboard of {columns} x {rows} squares ({columns - 1} x {rows - 1} inner "
            "corners) is there instead: "
            f"--board=chessboard:{columns}x{rows}:{board.square_m * 1e3:g}. "
            "Columns and rows count squares, not inner corners."
        )
    return (
        "No board of any kind was recognised: is it wholly lit, sharp, flat, and with a white "
        "edge around it?"
    )


def write_sheet(board: Board, path: Path) -> str:
    """Draw a board in true size with a ruler to check the printer by; return the page's name.

    Args:
        path: ends in .pdf or .png (600 dpi). The page is the first of `PAGES_MM` that it fits on.

    Raises:
        UnusableInputError: another kind of file, or the board fits on no page.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UnusableInputError(f"{path} must end in {', '.join(SUFFIXES)}, such as board.pdf.")
    wide_mm, high_mm = board.columns * board.square_m * 1e3, board.rows * board.square_m * 1e3
    fitting = [
        (name, across, down)
        for name in PAGES_MM
        for across, down in (PAGES_MM[name][::-1], PAGES_MM[name])
        if wide_mm + 2 * QUIET_MM <= across and high_mm + 4 * QUIET_MM <= down
    ]
    if not fitting:
        raise UnusableInputError(
            f"A board of {wide_mm:g} x {high_mm:g} mm doesn't fit on {' or '.join(PAGES_MM)} with "
            "its white edge. Give --board smaller squares, or fewer of them."
        )
    page, across, down = fitting[0]
    writable_folder(path.parent, "Folder", "--path")

    def px(mm: float) -> int:
        return round(mm * DPI / 25.4)

    size = px(wide_mm), px(high_mm)
    if board.kind == "charuco":
        drawn = charuco(board).generateImage(size, marginSize=0, borderBits=1)
    else:
        squares = np.indices((board.rows, board.columns)).sum(axis=0) % 2
        drawn = cv2.resize((squares * 255).astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
    sheet = PIL.Image.new("L", (px(across), px(down)), 255)
    corner = (sheet.width - size[0]) // 2, (sheet.height - size[1]) // 2
    sheet.paste(PIL.Image.fromarray(drawn), corner)
    pen, font = PIL.ImageDraw.Draw(sheet), PIL.ImageFont.load_default(px(2.1))
    for mm in range(0, int(RULER_MM) + 1, 10):
        high = 1.6 if mm % 50 == 0 else 0.9
        pen.rectangle([px(10 + mm), px(down - 9 - high), px(10 + mm), px(down - 9)], fill=0)
    pen.rectangle([px(10), px(down - 9), px(10 + RULER_MM), px(down - 8.7)], fill=0)
    check = f"This bar is {RULER_MM:g} mm long: print at 100 % (actual size)."
    pen.text((px(10), px(down - 8)), f"{check}\n{board.option}", fill=0, font=font)
    # One bit a pixel: a PDF then holds it without loss.
    sheet.convert("1", dither=PIL.Image.Dither.NONE).save(path, dpi=(DPI, DPI), resolution=DPI)
    return page
