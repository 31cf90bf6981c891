"""Where a camera is on the arm or beside it, from pictures of a board at known arm poses.

Two set-ups, one equation. The camera is mounted on the tool (eye in hand) or on the base (eye
to hand); the board is fixed at the far end, on the base or on the tool. With
A = T_far_mount, X = T_mount_camera, B = T_camera_board and Y = T_far_board, A X B = Y in every
picture. OpenCV's seven closed forms and a least-squares fit of the reprojection compete; the
one that places the board best in pictures left out of its fit wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration import hand_eye_solvers as solvers
from gaploop.teleop.calibration.board import Board
from gaploop.teleop.calibration.camera_model import Intrinsics
from gaploop.teleop.calibration.geometry import (
    angle_rad,
    inverse,
    rotation_vector,
    transform,
)
from gaploop.teleop.calibration.hand_eye_model import (
    MAX_RESIDUAL_MM,
    SETUPS,
    HandEye,
    HandEyeResult,
    Residual,
    Sighting,
)
from gaploop.teleop.calibration.hand_eye_solvers import Equations

MIN_SIGHTINGS: Final = 6
"""Fewer pictures are refused; 15 to 25 are a good number."""
MIN_TURN_DEG: Final = 5.0
"""Rotation about the second axis, RMS over pairs of poses, below which is refused [deg].

With rotation about one axis alone the translation along it can't be seen (Tsai and Lenz, 1989).
"""
FOLDS: Final = 5
BOOTSTRAPS: Final = 100
"""Tells a standard deviation within 7 % (1 / sqrt(2 n))."""


def calibrate_hand_eye(
    board: Board,
    lens: Intrinsics,
    sightings: Sequence[Sighting],
    setup: str = SETUPS[0],
    *,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
) -> HandEyeResult:
    """Find where a camera is.

    Args:
        board: the board seen.
        lens: the camera's intrinsics.
        sightings: at least `MIN_SIGHTINGS`, with rotations about two axes or more.
        setup: `eye_in_hand` (camera on the tool, board fixed to the base) or `eye_to_hand`
            (camera fixed to the base, board on the tool).
        bootstraps: resamples for the covariance.
        seed: draws them.

    Raises:
        UnusableInputError: too few sightings, too little rotation, or no method has an answer.
    """
    if setup not in SETUPS:
        raise unknown_choice("set-up", setup, SETUPS, "--setup")
    _check_board(board, len(sightings))
    equations = make_equations(board, lens, sightings, setup)
    turns = check_motion(equations, sightings, setup)
    by_method = {
        method: residual
        for method in solvers.METHODS
        if (residual := _held_out(equations, method)) is not None
    }
    if not by_method:
        raise UnusableInputError(
            "No hand-eye method finds an answer. Take more pictures, with the gripper turned about "
            "two axes by 20° or more."
        )
    method = min(by_method, key=lambda name: by_method[name].board_mm)
    if by_method[method].board_mm > MAX_RESIDUAL_MM:
        bootstraps = min(bootstraps, 10)  # it will be refused: a rough idea is enough
    X, Y = solvers.solve(equations, method)
    covariance = _bootstrap(equations, method, (X, Y), bootstraps, seed)
    std = np.sqrt(np.diag(covariance))
    return HandEyeResult(
        HandEye(setup, X, Y),
        method,
        by_method[method],
        by_method,
        std[:3] * 1e3,
        np.degrees(std[3:]),
        covariance,
        (turns[0], turns[1]),
        _board_errors_mm(equations, X, Y),
        tuple(s.view.name for s in sightings),
    )


def make_equations(
    board: Board, lens: Intrinsics, sightings: Sequence[Sighting], setup: str
) -> Equations:
    """Return what the solvers need; raises UnusableInputError for pictures of another size."""
    T_base_tcp = np.array([s.T_base_tcp for s in sightings])
    far_mount = T_base_tcp if setup == SETUPS[0] else inverse(T_base_tcp)
    camera_board = np.array([lens.board_pose(board, s.view)[0] for s in sightings])
    return Equations(
        far_mount,
        camera_board,
        np.concatenate([s.view.points_m(board) for s in sightings]),
        np.concatenate([lens.straightened(s.view.corners_px) for s in sightings]),
        np.repeat(np.arange(len(sightings)), [len(s.view.ids) for s in sightings]),
        board.corners_m,
        lens.focal_px,
    )


def check_motion(
    equations: Equations, sightings: Sequence[Sighting], setup: str
) -> tuple[float, float, float]:
    """Return the rotation between poses about their three main axes, RMS [deg].

    Raises:
        UnusableInputError: it is about one axis only, or none.
    """
    about, axis = _turns(equations.far_mount)
    if about[1] < MIN_TURN_DEG:
        frame = "gripper's" if setup == SETUPS[0] else "base's"
        words = ", ".join(f"{value:.2f}" for value in axis)
        raise UnusableInputError(
            f"The gripper turned by {about[0]:.0f}° about the {frame} axis ({words}) and by "
            f"{about[1]:.1f}° about any other; 2 axes with {MIN_TURN_DEG:g}° or more are needed. "
            f"{_idle_joints(sightings)}"
        )
    return float(about[0]), float(about[1]), float(about[2])


def main_turns_deg(T: FloatArray) -> tuple[float, float, float]:
    """Return the rotation between poses, shape (n, 4, 4), about their main axes, RMS [deg]."""
    about, _ = _turns(T)
    return float(about[0]), float(about[1]), float(about[2])


def _turns(T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return rotations about the main axes [deg], largest first, and the first of the axes."""
    first, second = np.triu_indices(len(T), 1)
    turns = rotation_vector((inverse(T[first]) @ T[second])[:, :3, :3])
    values, axes = np.linalg.eigh(turns.T @ turns / len(turns))
    main = axes[:, 2] * np.sign(axes[np.argmax(np.abs(axes[:, 2])), 2])
    return np.degrees(np.sqrt(np.maximum(values[::-1], 0.0))), main


def _idle_joints(sightings: Sequence[Sighting]) -> str:
    known = [s.q_rad for s in sightings if s.q_rad is not None]
    if len(known) < len(sightings):
        return "Pitch the gripper and roll it, each by 20° or more."
    spans = np.degrees(np.ptp(np.array(known), axis=0))
    ranges = ", ".join(f"{span:.0f}°" for span in spans)
    return f"The joints moved by {ranges}: move the still ones of the wrist by 20° or more."


def _check_board(board: Board, n: int) -> None:
    if n < MIN_SIGHTINGS:
        raise UnusableInputError(
            f"The board was found at {n} poses, {MIN_SIGHTINGS} are needed and 15 to 25 are good. "
            "Take more, with the gripper turned about two axes."
        )
    if not board.has_one_orientation:
        raise UnusableInputError(
            f"A {board.words} looks the same upside down, so its pose is not known. Use one whose "
            "columns and rows add up to an odd number, or a ChArUco board."
        )


def _held_out(equations: Equations, method: str) -> Residual | None:
    """Return a method's residual in pictures left out of its fit, or None where it fails."""
    n = len(equations.far_mount)
    folds = min(FOLDS, n)
    parts = []
    for fold in range(folds):
        out = np.arange(n) % folds == fold
        try:
            X, Y = solvers.solve(equations.take(~out), method)
        except solvers.NoAnswerError:
            return None
        parts.append(_errors(equations.take(out), X, Y))
    board, centre, turn, pixels = (np.concatenate(column) for column in zip(*parts, strict=True))
    rms = [float(np.sqrt(np.mean(values**2))) for values in (board, centre, turn, pixels)]
    return Residual(rms[0] * 1e3, rms[1] * 1e3, float(np.degrees(rms[2])), rms[3])


def _errors(
    equations: Equations, X: FloatArray, Y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return per picture board [m], centre [m] and rotation [rad] errors; per corner pixels."""
    seen = equations.far_mount @ X @ equations.camera_board
    apart = transform(seen, equations.corners_m) - transform(Y, equations.corners_m)
    board = np.sqrt((apart**2).sum(axis=-1).mean(axis=-1))
    centre = np.linalg.norm(apart.mean(axis=1), axis=-1)
    turn = angle_rad(np.swapaxes(seen[:, :3, :3], -1, -2) @ Y[:3, :3])
    pixels = solvers.reprojection_px(equations, X, Y)
    return board, centre, turn, np.linalg.norm(pixels.reshape(-1, 2), axis=1)


def _board_errors_mm(equations: Equations, X: FloatArray, Y: FloatArray) -> FloatArray:
    return np.asarray(_errors(equations, X, Y)[0] * 1e3)


def _bootstrap(
    equations: Equations,
    method: str,
    fitted: tuple[FloatArray, FloatArray],
    times: int,
    seed: int,
) -> FloatArray:
    """Return the covariance of (translation [m], rotation vector [rad]), shape (6, 6)."""
    rng, n, X = np.random.default_rng(seed), len(equations.far_mount), fitted[0]
    moved = []
    for _ in range(times):
        counts = np.bincount(rng.integers(0, n, n), minlength=n)
        if (counts > 0).sum() < 4:
            continue
        try:
            again, _ = solvers.solve(equations, method, counts, fitted)
        except solvers.NoAnswerError:
            continue
        turn = rotation_vector(again[:3, :3] @ X[:3, :3].T)
        moved.append(np.concatenate([again[:3, 3] - X[:3, 3], turn]))
    if len(moved) < max(times // 2, 2):
        raise UnusableInputError(
            "The answer falls apart when a few pictures are left out. Take more, "
            "with more rotation."
        )
    return np.asarray(np.cov(np.array(moved).T))
