"""Boards are found where they are, and a wrong one is told from a right one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from calibration_makers import CHARUCO, camera, render

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Image
from gaploop.teleop.calibration.board import (
    DPI,
    Board,
    BoardView,
    find_board,
    why_not_found,
    write_sheet,
)
from gaploop.teleop.calibration.store import read_image

LENS = camera()


def facing(board: Board, roll_rad: float = 0.0) -> FloatArray:
    """Return T_camera_board of a board in the middle of the picture."""
    T = np.eye(4)
    T[:3, :3] = (
        cv2.Rodrigues(np.array([0.3, 0.2, 0.0]))[0]
        @ cv2.Rodrigues(np.array([0.0, 0.0, roll_rad]))[0]
    )
    T[:3, 3] = np.array([0, 0, 1.9 * board.columns * board.square_m]) - T[:3, :3] @ board.centre_m
    return T


def seen(board: Board, image: Image) -> BoardView:
    view = find_board(board, image)
    assert view is not None
    return view


@pytest.mark.members(2)
@pytest.mark.parametrize("roll_rad", [0.0, 1.5, 3.1, -2.0])
def test_corners_are_where_the_rays_say_also_turned(roll_rad: float) -> None:
    T = facing(CHARUCO, roll_rad)
    view = seen(CHARUCO, render(CHARUCO, LENS, T))
    truth = LENS.project(T, view.points_m(CHARUCO))
    assert np.abs(view.corners_px - truth).max() < 0.3
    assert np.sqrt(np.mean((view.corners_px - truth) ** 2)) < 0.08


def test_a_charuco_board_half_out_of_the_picture_is_still_found() -> None:
    T = facing(CHARUCO)
    T[0, 3] += 0.2
    view = seen(CHARUCO, render(CHARUCO, LENS, T))
    assert 8 <= len(view.ids) < len(CHARUCO.corners_m)
    assert np.abs(view.corners_px - LENS.project(T, view.points_m(CHARUCO))).max() < 0.3


def test_an_empty_picture_holds_no_board() -> None:
    wall = np.full((480, 640, 3), 120, dtype=np.uint8)
    assert find_board(CHARUCO, wall) is None
    assert "calibrate board" in why_not_found(CHARUCO, [wall])


def test_a_hint_names_the_option_that_fixes() -> None:
    image = render(CHARUCO, LENS, facing(CHARUCO))
    other = Board(dictionary="5X5_100")
    assert find_board(other, image) is None
    assert "4X4_50" in why_not_found(other, [image])
    assert "8 x 6 squares is there: --board=" in why_not_found(Board(columns=6), [image])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": 2}, "3 to 50 columns"),
        ({"square_m": 0.0}, "1 to 1000 mm"),
        ({"marker_m": 0.03}, "0.3 to 0.95"),
        ({"dictionary": "4X4_51"}, "4X4_50"),
        ({"columns": 12, "rows": 12}, "larger one"),
    ],
)
def test_boards_that_cannot_be_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UnusableInputError, match=re.escape(says)):
        Board(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("board", [CHARUCO, Board(dictionary="6X6_250")], ids=lambda b: b.words)
def test_a_printed_sheet_has_true_size(board: Board, tmp_path: Path) -> None:
    """A board a few percent off makes every distance wrong by as much, and nothing shows it."""
    path = tmp_path / "board.png"
    assert write_sheet(board, path) in ("A4", "A3")
    half = cv2.resize(read_image(path), None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)
    view = seen(board, np.asarray(half, dtype=np.uint8))
    assert len(view.ids) == len(board.corners_m)
    order = np.argsort(view.ids)
    across = view.corners_px[order].reshape(board.rows - 1, board.columns - 1, 2)
    px_per_m = DPI / 0.0254 / 4
    steps = np.diff(across[..., 0], axis=1) / px_per_m
    assert np.abs(steps.mean() - board.square_m) < 1e-5
    assert np.abs(np.diff(across[..., 1], axis=0).mean() / px_per_m - board.square_m) < 1e-5


def test_a_pdf_has_the_size_of_its_page(tmp_path: Path) -> None:
    path = tmp_path / "board.pdf"
    assert write_sheet(CHARUCO, path) == "A4"
    box = re.search(rb"/MediaBox\s*\[([^\]]*)\]", path.read_bytes())
    assert box is not None
    wide, high = (float(v) / 72 * 25.4 for v in box.group(1).split()[2:])
    assert (wide, high) == pytest.approx((297.0, 210.0), abs=0.1)


def test_a_board_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="doesn't fit"):
        write_sheet(replace(CHARUCO, square_m=0.1, marker_m=0.07), tmp_path / "board.pdf")
    with pytest.raises(UnusableInputError, match=r"\.pdf"):
        write_sheet(CHARUCO, tmp_path / "board.docx")
