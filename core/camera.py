"""A camera as `gaploop calibrate` measured it: what it writes, read without what measures it.

{"schema": "gaploop.calibration.v1", "id": "sha256:…",
 "content": {"cameras": {"wrist": {"intrinsics": {…}, "hand_eye": {…}}}, …}, …}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray

SCHEMA: Final = "gaploop.calibration.v1"
IN_HAND: Final = "eye_in_hand"
SETUPS: Final = (IN_HAND, "eye_to_hand")
LARGEST_PX: Final = 8192


@dataclass(frozen=True)
class MeasuredCamera:
    """OpenCV's pinhole camera, and where it is.

    Attributes:
        width, height: of its pictures [px].
        matrix: camera matrix [px], shape (3, 3); the middle of the first pixel is at (0, 0).
        distortion: OpenCV's coefficients, shape (5,) or (8,).
        T_mount_camera: its pose, shape (4, 4) [m], x right, y down, z into the picture; None where
            nobody measured it.
        in_hand: its mount is the tool frame, else the base frame.
    """

    width: int
    height: int
    matrix: FloatArray
    distortion: FloatArray
    T_mount_camera: FloatArray | None = None
    in_hand: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read a camera's part of a calibration file, `{"intrinsics", "hand_eye"}`."""
        lens = read_intrinsics(value.get("intrinsics"), f"{where}.intrinsics")
        if "hand_eye" not in value:
            return cls(*lens)
        return cls(*lens, *read_hand_eye(value["hand_eye"], f"{where}.hand_eye"))


def read_measured(path: Path, camera: str) -> dict[str, Any]:
    """Return a camera's part of a calibration file, checked, with the file's `id`.

    Raises:
        UnusableInputError: no such file or camera, or it has no intrinsics.
    """
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is no {SCHEMA}. Make one with gaploop calibrate intrinsics."
        )
    try:
        known = dict(value["content"].get("cameras", {}))
        found = {k: v for k, v in known.get(camera, {}).items() if k in ("intrinsics", "hand_eye")}
    except DAMAGE as error:
        raise UnusableInputError(f"{path} is not whole ({error}). Restore it.") from None
    if "intrinsics" not in found:
        raise UnusableInputError(
            f"{path} has no intrinsics of camera '{camera}' (cameras in it: "
            f"{', '.join(known) or 'none'}). Give the camera its name there, or run: "
            f"gaploop calibrate intrinsics FOLDER --camera_name={camera}"
        )
    MeasuredCamera.from_json(found, f"{path}: cameras.{camera}")
    return {"id": str(value.get("id", "")), **found}


def read_intrinsics(value: Any, where: str) -> tuple[int, int, FloatArray, FloatArray]:
    """Return width, height [px], camera matrix (3, 3) and distortion of a calibration file."""
    try:
        matrix = np.array(value["camera_matrix"], dtype=np.float64).reshape(3, 3)
        lens = np.array(value["distortion"], dtype=np.float64).ravel()
        width, height = int(value["width"]), int(value["height"])
    except DAMAGE as error:
        raise UnusableInputError(
            f"{where} holds no intrinsics ({error}). Run: gaploop calibrate intrinsics"
        ) from None
    sound = np.isfinite(matrix).all() and np.isfinite(lens).all() and matrix[2, 2] == 1.0
    sound = sound and matrix[0, 0] > 0 and matrix[1, 1] > 0 and lens.size in (4, 5, 8)
    if not sound or not (0 < width <= LARGEST_PX and 0 < height <= LARGEST_PX):
        raise UnusableInputError(
            f"{where} is no pinhole camera of OpenCV. Run: gaploop calibrate intrinsics"
        )
    return width, height, matrix, lens


def read_hand_eye(value: Any, where: str) -> tuple[FloatArray, bool]:
    """Return T_mount_camera (4, 4) of a calibration file, and whether the tool is the mount."""
    if not isinstance(value, Mapping):
        raise UnusableInputError(f"{where} holds no camera's place. Calibrate it again.")
    setup = value.get("setup")
    if setup not in SETUPS:
        raise unknown_choice("set-up", setup, SETUPS, where)
    return checked_pose(value.get("T_mount_camera"), f"{where}: T_mount_camera"), setup == IN_HAND


def checked_pose(value: object, where: str) -> FloatArray:
    """Return `value` as a pose, (4, 4); UnusableInputError where it is no finite rigid motion."""
    try:
        T = np.array(value, dtype=np.float64)
    except DAMAGE:
        T = np.empty(0)
    if T.shape != (4, 4) or not np.isfinite(T).all():
        raise UnusableInputError(f"{where} must be a 4x4 matrix of numbers, row by row.")
    R = T[:3, :3]
    rigid = np.allclose(R @ R.T, np.eye(3), atol=1e-3) and np.linalg.det(R) > 0
    if not rigid or not np.allclose(T[3], (0, 0, 0, 1), atol=1e-9):
        raise UnusableInputError(
            f"{where} isn't a rigid motion: its upper left 3x3 must be a rotation and its last "
            "row 0 0 0 1. Is it transposed?"
        )
    u, _, vt = np.linalg.svd(R)  # the nearest rotation
    T[:3, :3] = u @ vt
    return T
