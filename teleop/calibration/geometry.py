"""Rigid motions as 4x4 matrices: the little that calibration needs."""

from __future__ import annotations

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.messages import FloatArray


def pose(rotation_vector_rad: FloatArray, translation_m: FloatArray) -> FloatArray:
    """Return a pose, shape (4, 4), from a rotation vector [rad] and a translation [m], (3,)."""
    T = np.eye(4)
    # A tenth of the time of SciPy's Rotation, and fits call this some 10,000 times.
    T[:3, :3] = cv2.Rodrigues(np.ascontiguousarray(rotation_vector_rad, dtype=np.float64))[0]
    T[:3, 3] = np.ravel(translation_m)
    return T


def inverse(T: FloatArray) -> FloatArray:
    """Return the inverse of poses, shape (..., 4, 4)."""
    return np.asarray(np.linalg.inv(T))


def rotation_vector(R: FloatArray) -> FloatArray:
    """Return the rotation vectors [rad], shape (..., 3), of rotation matrices, (..., 3, 3)."""
    vectors = Rotation.from_matrix(R.reshape(-1, 3, 3)).as_rotvec()
    return np.asarray(vectors, dtype=np.float64).reshape(R.shape[:-1])


def angle_rad(R: FloatArray) -> FloatArray:
    """Return the rotation angles [rad], shape (...), of rotation matrices, (..., 3, 3)."""
    return np.asarray(np.linalg.norm(rotation_vector(R), axis=-1))


def transform(T: FloatArray, points_m: FloatArray) -> FloatArray:
    """Apply poses, shape (..., 4, 4), to points, shape (k, 3); returns shape (..., k, 3)."""
    turned = points_m @ np.swapaxes(T[..., :3, :3], -1, -2)
    return np.asarray(turned + T[..., None, :3, 3])


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
    T[:3, :3] = Rotation.from_matrix(R).as_matrix()
    return T
