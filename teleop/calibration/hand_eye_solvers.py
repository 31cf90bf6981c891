"""Solvers of A X B = Y: OpenCV's seven closed forms, and a least-squares fit of the picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from gaploop.core.errors import GaploopError
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.geometry import inverse, mean_pose, pose, rotation_vector

REFINED: Final = "reprojection"
"""Least squares over X and Y of where the corners appear, started from a closed form."""

_PAIRS: Final = {
    "tsai": cv2.CALIB_HAND_EYE_TSAI,
    "park": cv2.CALIB_HAND_EYE_PARK,
    "horaud": cv2.CALIB_HAND_EYE_HORAUD,
    "andreff": cv2.CALIB_HAND_EYE_ANDREFF,
    "daniilidis": cv2.CALIB_HAND_EYE_DANIILIDIS,
}
_WORLDS: Final = {
    "shah": cv2.CALIB_ROBOT_WORLD_HAND_EYE_SHAH,
    "li": cv2.CALIB_ROBOT_WORLD_HAND_EYE_LI,
}
METHODS: Final = (*_PAIRS, *_WORLDS, REFINED)


class NoAnswerError(GaploopError):
    """A method gave no finite rigid motion."""


@dataclass(frozen=True)
class Equations:
    """What is known: A X B = Y in each of n pictures, and the corners behind each B.

    Attributes:
        far_mount: A, shape (n, 4, 4).
        camera_board: B, shape (n, 4, 4).
        points_m: every corner seen, in the board's frame [m], shape (m, 3).
        rays: where it was seen (x/z, y/z), distortion removed, shape (m, 2).
        picture: index of its picture, shape (m,).
        corners_m: all of the board's corners [m], shape (k, 3).
        focal_px: turns rays into pixels [px].
    """

    far_mount: FloatArray
    camera_board: FloatArray
    points_m: FloatArray
    rays: FloatArray
    picture: NDArray[np.intp]
    corners_m: FloatArray
    focal_px: float

    def take(self, keep: NDArray[np.bool_]) -> Equations:
        """Return the equations of the pictures where `keep`, shape (n,), is true."""
        corners = keep[self.picture]
        number = np.cumsum(keep) - 1
        return replace(
            self,
            far_mount=self.far_mount[keep],
            camera_board=self.camera_board[keep],
            points_m=self.points_m[corners],
            rays=self.rays[corners],
            picture=number[self.picture[corners]],
        )


def solve(
    equations: Equations,
    method: str,
    counts: NDArray[np.int64] | None = None,
    start: tuple[FloatArray, FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return X and Y, each of shape (4, 4).

    Args:
        equations: from three pictures or more.
        method: one of `METHODS`.
        counts: how often each picture counts, shape (n,); once unless given.
        start: X and Y to begin a fit with; a closed form unless given.

    Raises:
        NoAnswerError: the method gave no finite rigid motion.
    """
    if method != REFINED:
        if counts is not None:
            equations = _repeated(equations, counts)
        return _closed_form(equations, method)
    X, Y, _ = refine(equations, *(start or _first_guess(equations)), counts=counts)
    return X, Y


def _first_guess(equations: Equations) -> tuple[FloatArray, FloatArray]:
    for method in ("park", "shah", "daniilidis"):
        with contextlib.suppress(NoAnswerError):
            return _closed_form(equations, method)
    raise NoAnswerError("no closed form to start from")


def refine(
    equations: Equations,
    X: FloatArray,
    Y: FloatArray,
    *,
    counts: NDArray[np.int64] | None = None,
    more: int = 0,
    change: Callable[[Equations, FloatArray], Equations] | None = None,
    prior: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return X, Y and extra parameters that bring the corners nearest to where they were seen.

    Args:
        equations: what is known.
        X: start.
        Y: start.
        counts: how often each picture counts, shape (n,).
        more: number of extra parameters, started at 0.
        change: returns the equations for their values, shape (more,).
        prior: standard deviations that hold them near 0, shape (more,).
    """
    weight = 1.0 if counts is None else np.sqrt(counts)[equations.picture].repeat(2)

    def errors(p: FloatArray) -> FloatArray:
        given = equations if change is None else change(equations, p[12:])
        at = X @ pose(p[0:3], p[3:6]), Y @ pose(p[6:9], p[9:12])
        wrong = reprojection_px(given, *at) * weight
        held = p[12:] / prior if prior is not None else np.empty(0)
        return np.concatenate([wrong, held])

    found = least_squares(errors, np.zeros(12 + more), method="lm", max_nfev=400)
    p = np.asarray(found.x, dtype=np.float64)
    return X @ pose(p[0:3], p[3:6]), Y @ pose(p[6:9], p[9:12]), p[12:]


def reprojection_px(equations: Equations, X: FloatArray, Y: FloatArray) -> FloatArray:
    """Return where corners should appear less where they did [px], shape (2 m,)."""
    camera_board = inverse(equations.far_mount @ X) @ Y
    T = camera_board[equations.picture]
    seen = np.einsum("nij,nj->ni", T[:, :3, :3], equations.points_m) + T[:, :3, 3]
    # A board behind the camera can't be seen: far outside the picture, rather than mirrored.
    rays = seen[:, :2] / np.maximum(seen[:, 2:], 1e-3)
    return np.asarray((rays - equations.rays).ravel() * equations.focal_px)


def _repeated(equations: Equations, counts: NDArray[np.int64]) -> Equations:
    again = np.repeat(np.arange(len(counts)), counts)
    # The closed forms look at poses only, so the corners may stay as they are.
    return replace(
        equations,
        far_mount=equations.far_mount[again],
        camera_board=equations.camera_board[again],
    )


def _closed_form(equations: Equations, method: str) -> tuple[FloatArray, FloatArray]:
    A, B = equations.far_mount, equations.camera_board
    try:
        if method in _PAIRS:
            R, t = cv2.calibrateHandEye(
                list(A[:, :3, :3]),
                list(A[:, :3, 3]),
                list(B[:, :3, :3]),
                list(B[:, :3, 3]),
                method=_PAIRS[method],
            )
            X = _rigid(R, t, method)
            return X, mean_pose(A @ X @ B)
        mount_far = inverse(A)
        R_board_far, t_board_far, R_camera_mount, t_camera_mount = cv2.calibrateRobotWorldHandEye(
            list(B[:, :3, :3]),
            list(B[:, :3, 3]),
            list(mount_far[:, :3, :3]),
            list(mount_far[:, :3, 3]),
            method=_WORLDS[method],
        )
    except cv2.error as error:
        raise NoAnswerError(f"{method}: {error}") from None
    X = inverse(_rigid(R_camera_mount, t_camera_mount, method))
    return X, inverse(_rigid(R_board_far, t_board_far, method))


def _rigid(R: FloatArray, t: FloatArray, method: str) -> FloatArray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, np.ravel(t)
    good = np.isfinite(T).all() and np.linalg.det(T[:3, :3]) > 0.5
    if not good or not np.allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-2):
        raise NoAnswerError(f"{method}: no rigid motion")
    return pose(rotation_vector(T[:3, :3]), T[:3, 3])
