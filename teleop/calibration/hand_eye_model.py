"""What a hand-eye calibration is made of and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import BoardView
from gaploop.teleop.calibration.geometry import checked_pose, inverse

SETUPS: Final = ("eye_in_hand", "eye_to_hand")
MAX_RESIDUAL_MM: Final = 5.0
"""A calibration that places the board worse than this in held-out pictures is refused [mm]."""
OUTLIER_TIMES: Final = 3.0
"""A picture this many times worse than the median one is named."""


@dataclass(frozen=True)
class Sighting:
    """One pose of the arm and what the camera saw there.

    Attributes:
        T_base_tcp: pose of the tool, shape (4, 4).
        view: the board in the picture.
        q_rad: joint positions [rad], shape (n_joints,), or None where only the pose is known.
    """

    T_base_tcp: FloatArray
    view: BoardView
    q_rad: FloatArray | None = None


@dataclass(frozen=True)
class Residual:
    """How far predictions lie from what was seen.

    Attributes:
        board_mm: distance of the board's corners from where they should be, RMS [mm].
        translation_mm: of its centre alone, RMS [mm].
        rotation_deg: of its orientation, RMS [deg].
        pixels: the same seen by the camera, RMS over corners [px].
    """

    board_mm: float
    translation_mm: float
    rotation_deg: float
    pixels: float


@dataclass(frozen=True)
class HandEye:
    """Where a camera is.

    Attributes:
        setup: `eye_in_hand` or `eye_to_hand`.
        T_mount_camera: the camera on the tool, or on the base; shape (4, 4).
        T_far_board: the board on the base, or on the tool; shape (4, 4).
    """

    setup: str
    T_mount_camera: FloatArray
    T_far_board: FloatArray

    @property
    def name(self) -> str:
        """Return what `T_mount_camera` is called: `T_tcp_camera` or `T_base_camera`."""
        return "T_tcp_camera" if self.setup == SETUPS[0] else "T_base_camera"

    def T_camera_board(self, T_base_tcp: FloatArray) -> FloatArray:  # noqa: N802
        """Return where the board must appear, shape (..., 4, 4), for poses of the tool."""
        far_mount = T_base_tcp if self.setup == SETUPS[0] else inverse(T_base_tcp)
        return np.asarray(inverse(far_mount @ self.T_mount_camera) @ self.T_far_board)

    def T_base_camera(self, T_base_tcp: FloatArray) -> FloatArray:  # noqa: N802
        """Return the camera's pose on the base, shape (4, 4), for a pose of the tool."""
        on_tool = self.setup == SETUPS[0]
        return T_base_tcp @ self.T_mount_camera if on_tool else self.T_mount_camera

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> HandEye:
        """Read what `HandEyeResult.to_json` wrote; UnusableInputError where it isn't that."""
        if not isinstance(value, Mapping):
            raise UnusableInputError(f"{where} holds no camera's place. Calibrate it again.")
        setup = value.get("setup")
        if setup not in SETUPS:
            raise unknown_choice("set-up", setup, SETUPS, where)
        mount = checked_pose(value.get("T_mount_camera"), f"{where}: T_mount_camera")
        return cls(setup, mount, checked_pose(value.get("T_far_board"), f"{where}: T_far_board"))


@dataclass(frozen=True)
class HandEyeResult:
    """A hand-eye calibration and everything that says how far to trust it.

    Attributes:
        hand_eye: the camera's place.
        method: which of `hand_eye_solvers.METHODS` placed held-out boards best.
        held_out: residual in pictures left out of the fit, k-fold.
        by_method: held-out residual of every method that gave an answer.
        std_mm: standard deviation of the camera's position along x, y, z of its mount [mm].
        std_deg: of its orientation about them [deg].
        covariance: of (translation [m], rotation vector [rad]), shape (6, 6), by bootstrap.
        turn_deg: rotation between poses about the two main axes, RMS [deg].
        errors_mm: board error of each picture under the final fit [mm].
        names: of the pictures.
        explanations: what would explain a large residual.
    """

    hand_eye: HandEye
    method: str
    held_out: Residual
    by_method: Mapping[str, Residual]
    std_mm: FloatArray
    std_deg: FloatArray
    covariance: FloatArray
    turn_deg: tuple[float, float]
    errors_mm: FloatArray
    names: tuple[str, ...]
    explanations: tuple[str, ...] = ()

    def refusals(self) -> tuple[str, ...]:
        """Return why this calibration must not be used, with its fix; empty where fine."""
        if self.held_out.board_mm <= MAX_RESIDUAL_MM:
            return ()
        hints = " ".join(self.explanations) or (
            "Check that the board could not move, that its size is as printed, and that the arm's "
            "own calibration is right (lerobot-calibrate)."
        )
        return (
            f"The board is misplaced by {self.held_out.board_mm:.1f} mm in held-out pictures, "
            f"above {MAX_RESIDUAL_MM:g}. {hints}",
        )

    def outliers(self) -> tuple[tuple[str, float], ...]:
        """Return pictures that fit far worse than the others, with their error [mm]."""
        limit = max(OUTLIER_TIMES * float(np.median(self.errors_mm)), 0.5)
        found = [(n, float(e)) for n, e in zip(self.names, self.errors_mm, strict=True)]
        return tuple(sorted((f for f in found if f[1] > limit), key=lambda f: -f[1]))

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "setup": self.hand_eye.setup,
            "T_mount_camera": self.hand_eye.T_mount_camera.tolist(),
            "T_far_board": self.hand_eye.T_far_board.tolist(),
            "method": self.method,
            "held_out_mm": self.held_out.board_mm,
            "held_out_translation_mm": self.held_out.translation_mm,
            "held_out_rotation_deg": self.held_out.rotation_deg,
            "held_out_px": self.held_out.pixels,
            "std_mm": self.std_mm.tolist(),
            "std_deg": self.std_deg.tolist(),
            "covariance": self.covariance.tolist(),
            "images": len(self.names),
        }
