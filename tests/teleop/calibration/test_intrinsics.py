"""Intrinsics against cameras of known truth, and what is refused."""

from __future__ import annotations

import functools
from dataclasses import replace

import cv2
import numpy as np
import pytest
from calibration_makers import CHARUCO, Picture, camera, render, spread_poses

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView, find_board
from gaploop.teleop.calibration.intrinsics import (
    MAX_RMS_PX,
    MIN_VIEWS,
    Intrinsics,
    IntrinsicsResult,
    calibrate_intrinsics,
)


@functools.lru_cache(maxsize=8)
def rendered(board: Board, width: int = 640, height: int = 480, n: int = 10) -> list[BoardView]:
    """Return the views of `n` rendered pictures."""
    lens = camera(width, height)
    found = []
    for i, T in enumerate(spread_poses(board, lens, n)):
        view = find_board(board, render(board, lens, T, Picture(seed=i)), f"{i:03d}.png")
        found += [view] if view is not None else []
    return found


def ideal(
    board: Board, lens: Intrinsics, poses: list[FloatArray], noise_px: float = 0.05
) -> list[BoardView]:
    """Return views without pictures: corners projected, with noise."""
    rng = np.random.default_rng(0)
    views = []
    for i, T in enumerate(poses):
        pixels = lens.project(T, board.corners_m)
        pixels = pixels + rng.normal(0, noise_px, pixels.shape)
        inside = ((pixels > 0) & (pixels < (lens.width, lens.height))).all(axis=1)
        ids = np.flatnonzero(inside)
        views.append(BoardView(ids, pixels[ids], lens.width, lens.height, f"{i:03d}.png"))
    return views


def worst_ray_px(found: Intrinsics, truth: Intrinsics, edge: float = 0.0) -> float:
    """Return how far the two disagree about where rays appear, but for an edge (a share) [px]."""
    x, y = np.meshgrid(
        np.linspace(edge, 1 - edge, 9) * (truth.width - 1),
        np.linspace(edge, 1 - edge, 9) * (truth.height - 1),
    )
    pixels = np.stack([x.ravel(), y.ravel()], axis=1)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 1e-10)
    flat = cv2.undistortPointsIter(
        pixels.reshape(-1, 1, 2), truth.camera_matrix, truth.distortion, None, None, criteria
    ).reshape(-1, 2)
    rays = np.column_stack([flat, np.ones(len(pixels))])
    return float(np.linalg.norm(found.project(np.eye(4), rays) - pixels, axis=1).max())


def check_against_truth(result: IntrinsicsResult, truth: Intrinsics) -> None:
    K, K_true = result.intrinsics.camera_matrix, truth.camera_matrix
    for i in (0, 1):
        assert K[i, i] == pytest.approx(K_true[i, i], rel=0.005)
    assert K[0, 2] == pytest.approx(K_true[0, 2], abs=0.005 * truth.width)
    assert K[1, 2] == pytest.approx(K_true[1, 2], abs=0.005 * truth.width)
    assert worst_ray_px(result.intrinsics, truth) < 0.005 * truth.width
    # In small pictures a marker's bit is three pixels wide, and corners are less sharp.
    assert result.rms_px < (0.15 if truth.width >= 640 else 0.25)
    assert result.held_out_px < (0.2 if truth.width >= 640 else 0.3)
    assert not result.refusals()


def test_intrinsics_of_a_rendered_camera_within_half_a_percent() -> None:
    result = calibrate_intrinsics(CHARUCO, rendered(CHARUCO))
    check_against_truth(result, camera())
    assert not result.hurting
    # The truth lies within what the standard deviations say.
    K, K_true = result.intrinsics.camera_matrix, camera().camera_matrix
    for name, found, true in (
        ("fx", K[0, 0], K_true[0, 0]),
        ("fy", K[1, 1], K_true[1, 1]),
        ("cx", K[0, 2], K_true[0, 2]),
        ("cy", K[1, 2], K_true[1, 2]),
    ):
        assert abs(found - true) < 5 * result.std[name] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("size", [(320, 240), (1280, 720)])
def test_intrinsics_of_other_picture_sizes(size: tuple[int, int]) -> None:
    result = calibrate_intrinsics(CHARUCO, rendered(CHARUCO, *size, 20))
    check_against_truth(result, camera(*size))


@pytest.mark.slow
def test_a_wide_lens_is_told_from_a_standard_one() -> None:
    """A barrel of the rational model's kind: the standard lens can't follow it to the corners."""
    matrix = np.array([[330.0, 0, 318], [0, 331, 243], [0, 0, 1]])
    barrel = np.array([0.9, 0.15, 0.0005, -0.0004, 0.002, 1.35, 0.42, 0.02])
    lens = Intrinsics(640, 480, matrix, barrel, "wide")
    poses = spread_poses(CHARUCO, lens, 14)
    views = ideal(CHARUCO, lens, poses)
    wide = calibrate_intrinsics(CHARUCO, views, "wide")
    standard = calibrate_intrinsics(CHARUCO, views)
    assert len(wide.intrinsics.distortion) == 8
    assert wide.rms_px < min(0.1, standard.rms_px)
    assert wide.held_out_px < standard.held_out_px
    assert worst_ray_px(wide.intrinsics, lens, 0.15) < 2.0


def test_the_picture_that_hurts_is_named() -> None:
    """One bent or moved picture pulled the focal length by a percent while RMS still passed."""
    views = list(rendered(CHARUCO))
    rng = np.random.default_rng(1)
    corners = views[4].corners_px
    bent = corners + 2.5 * np.sin(corners[:, ::-1] / 45) + rng.normal(0, 0.2, corners.shape)
    views[4] = replace(views[4], corners_px=bent)
    with_it = calibrate_intrinsics(CHARUCO, views)
    assert [h.name for h in with_it.hurting] == [views[4].name]
    assert with_it.hurting[0].held_out_px > 5 * with_it.hurting[0].others_px
    without = calibrate_intrinsics(CHARUCO, [*views[:4], *views[5:]])
    assert not without.hurting
    assert worst_ray_px(without.intrinsics, camera()) < worst_ray_px(with_it.intrinsics, camera())
    check_against_truth(without, camera())


def test_more_than_half_a_pixel_is_refused() -> None:
    lens = camera()
    views = ideal(CHARUCO, lens, spread_poses(CHARUCO, lens, 11), noise_px=0.6)
    result = calibrate_intrinsics(CHARUCO, views)
    assert result.rms_px > MAX_RMS_PX
    (line,) = result.refusals()
    assert "above 0.5" in line


def test_boards_that_were_never_tilted_are_refused() -> None:
    """Flat-on boards fit at any focal length: the RMS is perfect and the answer worthless."""
    lens = camera()
    poses = []
    for i in range(12):
        T = np.eye(4)
        T[:3, 3] = (-0.11 + 0.02 * (i % 4), -0.08 + 0.02 * (i // 4), 0.45)
        poses.append(T)
    result = calibrate_intrinsics(CHARUCO, ideal(CHARUCO, lens, poses, 0.1))
    assert result.rms_px < 0.2
    assert abs(result.intrinsics.focal_px / lens.focal_px - 1) > 0.003
    assert any("tilted" in line for line in result.refusals())
    assert any("tilted" in ask for ask in result.coverage.missing())


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(UnusableInputError, match=f"{MIN_VIEWS} are needed"):
        calibrate_intrinsics(CHARUCO, rendered(CHARUCO)[: MIN_VIEWS - 1])


def test_a_picture_of_another_size_is_named() -> None:
    views = list(rendered(CHARUCO))
    views[3] = replace(views[3], width=1280, height=720)
    with pytest.raises(UnusableInputError, match=r"003\.png \(1280x720\)"):
        calibrate_intrinsics(CHARUCO, views)


def test_intrinsics_do_not_fit_another_picture_size() -> None:
    view = replace(rendered(CHARUCO)[0], width=320, height=240)
    with pytest.raises(UnusableInputError, match="320x240"):
        camera().board_pose(CHARUCO, view)


def test_coverage_says_what_is_missing() -> None:
    lens = camera()
    upper = [T for T in spread_poses(CHARUCO, lens, 30) if (T @ [*CHARUCO.centre_m, 1.0])[1] < 0.01]
    result = calibrate_intrinsics(CHARUCO, ideal(CHARUCO, lens, upper))
    asks = result.coverage.missing()
    assert "board at the bottom left" in asks
    assert "board at the bottom right" in asks
    assert not any("top" in ask for ask in asks)


def test_the_pose_of_a_board_is_exact_without_noise() -> None:
    lens = camera()
    for T in spread_poses(CHARUCO, lens, 6):
        (view,) = ideal(CHARUCO, lens, [T], 0.0)
        found, rms_px = lens.board_pose(CHARUCO, view)
        assert rms_px < 1e-3
        assert np.abs(found - T).max() < 1e-5
        assert cv2.Rodrigues(found[:3, :3])[0] == pytest.approx(
            cv2.Rodrigues(T[:3, :3])[0], abs=1e-4
        )
