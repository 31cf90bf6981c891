"""The ChArUco board: how it is printed, and how it is found in a picture.

Columns and rows count the printed squares. The board's frame has its origin at the outer corner of
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

WRITTEN: Final = re.compile(
    r"(?:charuco:)?(\d+)x(\d+):([\d.]*\d)(?::([\d.]*\d))?(?::((?:DICT_)?\dX\d_\d+))?"
)
"""A board, as `parse_board` reads it."""
DICTIONARIES: Final = tuple(
    f"{bits}X{bits}_{count}" for bits in (4, 5, 6, 7) for count in (50, 100, 250, 1000)
)
MIN_CORNERS: Final = 8
"""Fewer corners of a partly seen board say too little about its pose."""
PAGES_MM: Final = {"A4": (210.0, 297.0), "A3": (297.0, 420.0), "letter": (215.9, 279.4)}
"""Short and long side; ISO 216 and ANSI/ASME Y14.1."""
SUFFIXES: Final = (".pdf", ".png")
QUIET_MM: Final = 8.0
"""White about the board; printers also leave some 5 mm of the page blank."""
RULER_MM: Final = 100.0
DPI: Final = 600


@dataclass(frozen=True)
class Board:
    """A printed ChArUco board; it may be partly out of the picture."""

    columns: int = 8
    rows: int = 6
    square_m: float = 0.028
    marker_m: float = 0.021
    dictionary: str = "4X4_50"

    def __post_init__(self) -> None:
        if not 3 <= self.columns <= 50 or not 3 <= self.rows <= 50:
            raise UnusableInputError(
                f"A board of {self.columns} x {self.rows} squares can't be used: give --board 3 to "
                "50 columns and rows."
            )
        if not 0.001 <= self.square_m <= 1.0:
            raise UnusableInputError(
                f"--board: a square of {self.square_m * 1e3:g} mm can't be right; 1 to 1000 mm can."
            )
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
        return (
            f"ChArUco board of {self.columns} x {self.rows} squares of {self.square_m * 1e3:g} mm, "
            f"markers {self.dictionary} of {self.marker_m * 1e3:g} mm"
        )

    @property
    def option(self) -> str:
        """Return the option that names this board on the command line; see `parse_board`."""
        sides = f"{self.square_m * 1e3:g}:{self.marker_m * 1e3:g}"
        return f"--board={self.columns}x{self.rows}:{sides}:{self.dictionary}"

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
    """

    ids: NDArray[np.int64]
    corners_px: FloatArray
    width: int
    height: int
    name: str = ""

    def points_m(self, board: Board) -> FloatArray:
        """Return the corners seen, in the board's frame [m], shape (k, 3)."""
        return board.corners_m[self.ids]


def parse_board(text: str) -> Board:
    """Return the board that a text describes.

    Args:
        text: `8x6:28`: columns and rows of squares, side of a square [mm]; then perhaps side of a
            marker [mm] and dictionary, as in `8x6:28:21:4X4_50`.

    Raises:
        UnusableInputError: it can't be read, or there is no such board.
    """
    read = WRITTEN.fullmatch(text.strip())
    if read is None:
        raise UnusableInputError(
            f"--board={text} can't be read. Write columns x rows of squares and their side in mm, "
            "as 8x6:28 or 8x6:28:21:4X4_50; gaploop calibrate board prints one."
        )
    columns, rows, square_mm, marker_mm, markers = read.groups()
    square_m = float(square_mm) * 1e-3
    marker_m = float(marker_mm) * 1e-3 if marker_mm else 0.75 * square_m
    dictionary = (markers or "4X4_50").removeprefix("DICT_")
    return Board(int(columns), int(rows), square_m, marker_m, dictionary)


@functools.lru_cache(maxsize=32)
def charuco(board: Board) -> Any:
    """Return OpenCV's object for a board."""
    return cv2.aruco.CharucoBoard(
        (board.columns, board.rows), board.square_m, board.marker_m, dictionary(board.dictionary)
    )


def dictionary(name: str) -> Any:
    """Return OpenCV's dictionary of markers of that name, such as `4X4_50`."""
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, f"DICT_{name}"))


def find_board(board: Board, image: Image, name: str = "") -> BoardView | None:
    """Find a board in a picture; None where it isn't there or too little of it is.

    `image` is RGB, shape (h, w, 3), or grey, shape (h, w); uint8.
    """
    grey = _grey(image)
    parameters = cv2.aruco.CharucoParameters()
    parameters.tryRefineMarkers = True
    found, numbers, _, _ = cv2.aruco.CharucoDetector(charuco(board), parameters).detectBoard(grey)
    if numbers is None or len(numbers) < MIN_CORNERS:
        return None
    ids = np.asarray(numbers, dtype=np.int64).ravel()
    columns, rows = ids % (board.columns - 1), ids // (board.columns - 1)
    if len(np.unique(columns)) < 2 or len(np.unique(rows)) < 2:  # on one line: no pose
        return None
    corners: FloatArray = np.asarray(found, dtype=np.float64).reshape(-1, 2)
    # The detector leaves some tenths of a pixel of bias. A window that reaches into a marker pulls
    # the corner away.
    gap = 1.0 - board.marker_m / board.square_m
    half = int(np.clip(0.4 * gap * pdist(corners).min(), 2, 9))
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-3)
    start = corners.reshape(-1, 1, 2).astype(np.float32)
    moved = cv2.cornerSubPix(grey, start, (half, half), (-1, -1), criteria).reshape(-1, 2)
    far = np.linalg.norm(moved - corners, axis=1) > half
    corners = np.where(far[:, None], corners, moved).astype(np.float64)
    height, width = grey.shape[:2]
    return BoardView(ids, corners, width, height, name)


def why_not_found(board: Board, images: Iterable[Image]) -> str:
    """Say which other board is in pictures without `board`, with the option for it, or advise."""
    for grey in map(_grey, images):
        found = {}
        for family in ("4X4_1000", "5X5_1000", "6X6_1000", "7X7_1000"):
            _, ids, _ = cv2.aruco.ArucoDetector(dictionary(family)).detectMarkers(grey)
            found[family] = np.unique(ids) if ids is not None else np.empty(0, dtype=np.int32)
        family, ids = max(found.items(), key=lambda item: len(item[1]))
        if len(ids) < 4:  # no markers to speak of
            continue
        bits, last = family.partition("_")[0], int(ids.max())
        if not board.dictionary.startswith(bits):
            least = next(n for n in (50, 100, 250, 1000) if last < n)
            board = replace(board, columns=3, rows=3, dictionary=f"{bits}_{least}")
        # The layout that explains most corners: markers are numbered row by row.
        seen: list[tuple[int, int, Board]] = []
        for columns, rows in itertools.product(range(3, 16), repeat=2):
            if last < columns * rows // 2 <= last + 5:
                made = replace(board, columns=columns, rows=rows)
                view = find_board(made, grey)
                seen += [(len(view.ids), -columns * rows, made)] if view is not None else []
        if not seen:
            return (
                f"Markers {ids.min()} to {last} of {bits} are there, but laid out as no ChArUco "
                "board of 3 x 3 to 15 x 15 squares. Show more of the board."
            )
        made = max(seen, key=lambda one: one[:2])[2]
        return (
            f"A ChArUco board of {made.columns} x {made.rows} squares is there: {made.option}, "
            "with its sizes as measured on it."
        )
    return (
        "No ChArUco board was recognised: is it wholly lit, sharp, flat, and with a white edge "
        "around it? To print one: gaploop calibrate board board.pdf"
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
    drawn = charuco(board).generateImage(size, marginSize=0, borderBits=1)
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


def _grey(image: Image) -> Image:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
