"""A board as a sheet to print, in true size: PDF, PNG or SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.teleop.calibration.board import Board, charuco, dictionary

PAGES_MM: Final = {
    "A4": (210.0, 297.0),
    "A3": (297.0, 420.0),
    "letter": (215.9, 279.4),
}
"""Short and long side; ISO 216 and ANSI/ASME Y14.1."""
SUFFIXES: Final = (".pdf", ".png", ".svg")
QUIET_MM: Final = 8.0
"""White about the board; printers also leave some 5 mm of the page blank."""
RULER_MM: Final = 100.0
DPI: Final = 300
_MM: Final = 1 / 25.4


def write_sheet(board: Board, path: Path, page: str = "") -> str:
    """Draw a board in true size with a ruler to check the printer by.

    Args:
        board: what to draw.
        path: ends in .pdf, .png (300 dpi) or .svg.
        page: a name in `PAGES_MM`; the first that the board fits on unless given.

    Returns:
        the page's name.

    Raises:
        UnusableInputError: another kind of file, or the board doesn't fit on the page.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UnusableInputError(f"{path} must end in {', '.join(SUFFIXES)}, such as board.pdf.")
    page, wide, high = _page(board, page)
    writable_folder(path.parent, "Folder", "--path")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide * _MM, high * _MM), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, wide), ylim=(high, 0))  # millimetres from the upper left
    axes.axis("off")
    size = board.square_m * 1e3
    left = (wide - board.columns * size) / 2
    top = (high - board.rows * size) / 2
    for x, y, w, h in _black(board):
        _rectangle(axes, left + x, top + y, w, h, "black")
    for x, y, w, h in _white(board):
        _rectangle(axes, left + x, top + y, w, h, "white")
    _footer(axes, board, wide, high)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=DPI)
    return page


def _page(board: Board, page: str) -> tuple[str, float, float]:
    wide, high = board.columns * board.square_m * 1e3, board.rows * board.square_m * 1e3
    names = [page] if page else list(PAGES_MM)
    for name in names:
        short, long = PAGES_MM[name]
        for across, down in ((long, short), (short, long)):
            if wide + 2 * QUIET_MM <= across and high + 4 * QUIET_MM <= down:
                return name, across, down
    raise UnusableInputError(
        f"A board of {wide:g} x {high:g} mm doesn't fit on {' or '.join(names)} with its white "
        "edge. Choose smaller squares with --board.square_mm, or fewer of them."
    )


def _black(board: Board) -> list[tuple[float, float, float, float]]:
    """Return black rectangles x, y, w, h [mm]: squares, and markers' outlines filled."""
    size = board.square_m * 1e3
    # OpenCV's legacy ChArUco boards with an even number of rows start with a white square.
    first = 1 if board.kind == "charuco" and board.legacy and board.rows % 2 == 0 else 0
    squares = [
        (column * size, row * size, size, size)
        for row in range(board.rows)
        for column in range(board.columns)
        if (row + column) % 2 == first
    ]
    if board.kind == "chessboard":
        return squares
    side = board.marker_m * 1e3
    return squares + [(x, y, side, side) for x, y in _markers(board)]


def _white(board: Board) -> list[tuple[float, float, float, float]]:
    """Return white rectangles x, y, w, h [mm]: runs of white bits within the markers."""
    if board.kind == "chessboard":
        return []
    words = dictionary(board.dictionary)
    side = words.markerSize + 2  # with the black border
    bit = board.marker_m * 1e3 / side
    found = []
    for number, (x, y) in zip(charuco(board).getIds().ravel(), _markers(board), strict=True):
        bits = words.generateImageMarker(int(number), side) > 127
        for row in range(side):
            edges = np.flatnonzero(np.diff(np.concatenate([[False], bits[row], [False]])))
            for begin, end in edges.reshape(-1, 2):
                found.append((x + begin * bit, y + row * bit, (end - begin) * bit, bit))
    return found


def _markers(board: Board) -> list[tuple[float, float]]:
    """Return the upper left corner of each marker [mm]."""
    points = [np.asarray(p)[:, :2].min(axis=0) * 1e3 for p in charuco(board).getObjPoints()]
    return [(float(p[0]), float(p[1])) for p in points]


def _rectangle(axes: Any, x: float, y: float, w: float, h: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), w, h, fc=colour, ec="none", lw=0, antialiased=False))


def _footer(axes: Any, board: Board, wide: float, high: float) -> None:
    y, left = high - 9.0, (wide - RULER_MM) / 2 - wide * 0.22
    left = max(left, 10.0)
    _rectangle(axes, left, y, RULER_MM, 0.3, "black")
    for mm in range(0, int(RULER_MM) + 1, 10):
        _rectangle(axes, left + mm - 0.1, y - (1.6 if mm % 50 == 0 else 0.9), 0.2, 1.6, "black")
    axes.text(
        left,
        y + 3.4,
        f"This bar is {RULER_MM:g} mm long: print at 100 % (actual size), glue to something flat.",
        fontsize=6,
        va="center",
    )
    words = board.options.replace(" --board.square_mm", "\n--board.square_mm")
    axes.text(wide - 10, y + 0.6, words, fontsize=6, ha="right", va="center", family="monospace")
