"""What is in a picture where the board that was asked for isn't: the option that fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np

from gaploop.core.types import Image
from gaploop.teleop.calibration.board import Board, any_chessboard, dictionary, find_board


def why_not_found(board: Board, images: Iterable[Image]) -> str:
    """Say what else is in pictures where `board` wasn't found: another size, another dictionary.

    Returns:
        a sentence with the option that fixes it, or advice where nothing was recognised.
    """
    shapes = []
    for image in images:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
        if seen := _other_markers(board, grey):
            return seen
        grid = any_chessboard(grey, (3, 3))
        shapes += [grid.shape[:2]] if grid is not None else []
    if shapes:  # of a partly covered board only a part is found: the largest is the likeliest
        return _other_chessboard(board, *max(shapes, key=lambda shape: shape[0] * shape[1]))
    return (
        "No board of any kind was recognised: is it wholly lit, sharp, flat, and with a white "
        "edge around it?"
    )


def _other_chessboard(board: Board, inner_rows: int, inner_columns: int) -> str:
    rows, columns = sorted((inner_rows + 1, inner_columns + 1))
    if board.kind == "chessboard" and (rows, columns) == tuple(sorted((board.rows, board.columns))):
        return "It is there, but not clear enough: see to light and focus."
    shape = f"{columns} x {rows} squares ({columns - 1} x {rows - 1} inner corners)"
    return (
        f"A chessboard of {shape} is there instead: "
        f"--board.kind=chessboard --board.columns={columns} --board.rows={rows}. "
        "Columns and rows count squares, not inner corners."
    )


def _other_markers(board: Board, grey: Image) -> str:
    counts = {}
    for name in ("4X4_1000", "5X5_1000", "6X6_1000", "7X7_1000"):
        _, ids, _ = cv2.aruco.ArucoDetector(dictionary(name)).detectMarkers(grey)
        counts[name] = np.unique(ids) if ids is not None else np.empty(0, dtype=np.int32)
    name, ids = max(counts.items(), key=lambda item: len(item[1]))
    if len(ids) < 4:
        return ""
    bits, last = name.partition("_")[0], int(ids.max())
    if board.kind == "chessboard" or not board.dictionary.startswith(bits):
        least = next(n for n in (50, 100, 250, 1000) if last < n)
        return (
            f"Markers of another dictionary are there instead: --board.kind=charuco "
            f"--board.dictionary={bits}_{least}, or a larger one of that family."
        )
    if last >= board.columns * board.rows // 2:
        return (
            f"Marker {last} is there, and {board.columns} x {board.rows} squares end at marker "
            f"{board.columns * board.rows // 2 - 1}: the board has more squares. Count them again."
        )
    other = _other_layout(board, grey)
    if other is not None:
        return f"The board has another layout: {other.options}"
    return (
        f"Markers {ids.min()} to {last} are there, but not laid out as a {board.words}. Count the "
        "squares again: --board.columns and --board.rows."
    )


def _other_layout(board: Board, grey: Image) -> Board | None:
    """Return the layout with the same markers that is in the picture, if there is one."""
    turned = replace(board, columns=board.rows, rows=board.columns)
    for other in (replace(board, legacy=not board.legacy), turned):
        if find_board(other, grey) is not None:
            return other
    return None
