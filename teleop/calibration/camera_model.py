"""A calibrated camera: where a point in front of it appears in its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.geometry import pose

LENSES: Final = ("standard", "wide")
"""`standard`: OpenCV's k1 k2 p1 p2 k3; `wide`: its rational model with k4 k5 k6 besides."""


@dataclass(frozen=True)
class Intrinsics:
    """OpenCV's pinhole camera with radial and tangential distortion.

    Attributes:
        width: of the pictures [px].
        height: of the pictures [px].
        camera_matrix: focal lengths and principal point [px], shape (3, 3).
        distortion: OpenCV's coefficients, shape (5,) or (8,).
        lens: one of `LENSES`.
    """

    width: int
    height: int
    camera_matrix: FloatArray
    distortion: FloatArray
    lens: str = "standard"

    @property
    def focal_px(self) -> float:
        """Return the mean focal length [px]."""
        return float((self.camera_matrix[0, 0] + self.camera_matrix[1, 1]) / 2)

    def project(self, T_camera_board: FloatArray, points_m: FloatArray) -> FloatArray:
        """Return where points [m], shape (k, 3), appear [px], shape (k, 2)."""
        turn, _ = cv2.Rodrigues(np.ascontiguousarray(T_camera_board[:3, :3]))
        seen, _ = cv2.projectPoints(
            points_m, turn, T_camera_board[:3, 3].copy(), self.camera_matrix, self.distortion
        )
        return np.asarray(seen, dtype=np.float64).reshape(-1, 2)

    def straightened(self, pixels: FloatArray) -> FloatArray:
        """Return pixels, shape (k, 2), as rays (x/z, y/z) without distortion, shape (k, 2)."""
        criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 1e-10)
        given = np.ascontiguousarray(pixels, dtype=np.float64).reshape(-1, 1, 2)
        rays = cv2.undistortPointsIter(
            given, self.camera_matrix, self.distortion, None, None, criteria
        )
        return np.asarray(rays, dtype=np.float64).reshape(-1, 2)

    def board_pose(self, board: Board, view: BoardView) -> tuple[FloatArray, float]:
        """Return T_camera_board, shape (4, 4), and its RMS reprojection error [px].

        Raises:
            UnusableInputError: the picture has another size than the calibration's.
        """
        self.require_size(view.width, view.height, view.name or "the picture")
        points = view.points_m(board)
        # IPPE gives both poses that a flat board allows; the better one is refined (Collins and
        # Bartoli, "Infinitesimal Plane-based Pose Estimation", IJCV 2014).
        turn, shift = self._nearest_pose(points, view.corners_px)
        T = pose(turn.ravel(), shift.ravel())
        error = self.project(T, points) - view.corners_px
        return T, float(np.sqrt((error**2).sum(axis=1).mean()))

    def _nearest_pose(
        self, points: FloatArray, pixels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        centred = points - points.mean(axis=0)
        matrix, lens = self.camera_matrix, self.distortion
        _, turns, shifts, errors = cv2.solvePnPGeneric(
            centred, pixels, matrix, lens, flags=cv2.SOLVEPNP_IPPE
        )
        best = int(np.argmin(np.ravel(errors)))
        turn, shift = cv2.solvePnPRefineLM(
            centred, pixels, matrix, lens, turns[best].copy(), shifts[best].copy()
        )
        offset = pose(np.ravel(turn), np.zeros(3))[:3, :3] @ points.mean(axis=0)
        return np.asarray(turn), np.asarray(shift).ravel() - offset

    def require_size(self, width: int, height: int, where: str) -> None:
        """Check that a picture has the calibrated size.

        Raises:
            UnusableInputError: it doesn't.
        """
        if (width, height) != (self.width, self.height):
            raise UnusableInputError(
                f"{where} is {width}x{height} px, the intrinsics are for {self.width}x"
                f"{self.height}. Set the camera to that size, or calibrate its intrinsics again."
            )

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "width": self.width,
            "height": self.height,
            "lens": self.lens,
            "camera_matrix": self.camera_matrix.tolist(),
            "distortion": self.distortion.tolist(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Intrinsics:
        """Read what `to_json` wrote.

        Raises:
            UnusableInputError: entries are missing or of the wrong form.
        """
        try:
            matrix = np.array(value["camera_matrix"], dtype=np.float64).reshape(3, 3)
            lens = np.array(value["distortion"], dtype=np.float64).ravel()
            size = int(value["width"]), int(value["height"])
            name = str(value["lens"])
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where} holds no intrinsics ({error}). Run: gaploop calibrate intrinsics"
            ) from None
        return cls(*size, matrix, lens, name)
