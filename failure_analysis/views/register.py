"""Lays one picture on another by shift, turn and scale: has the camera moved?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

type Grey = NDArray[np.float32]

COARSE_TO_FINE_PX: Final = (4.0, 2.0, 1.0)
"""Smoothing of the pictures, so that far moves are found first."""
STEPS: Final = 12


@dataclass(frozen=True)
class Similarity:
    """How a picture lies on the reference.

    Attributes:
        match: correlation of the two once aligned, -1 to 1.
        shift_px: shift of the picture's middle (right, down) [px], shape (2,).
        scale: size of the picture's content against the reference's.
        turn_rad: its turn.
    """

    match: float
    shift_px: NDArray[np.float64]
    scale: float
    turn_rad: float

    def matrix(self, size_px: int) -> NDArray[np.float64]:
        """Return the 2×3 matrix from reference pixels to picture pixels, of `size_px` squares."""
        a, b = self.scale * np.cos(self.turn_rad), self.scale * np.sin(self.turn_rad)
        middle = 0.5 * (size_px - 1) * np.ones(2)
        linear = np.array([[a, -b], [b, a]])
        return np.column_stack([linear, self.shift_px + middle - linear @ middle])


GOOD_MATCH: Final = 0.95
SHIFTS_PX: Final = np.arange(-12.0, 13.0, 4.0)
TURNS_RAD: Final = (-0.12, -0.06, 0.0, 0.06, 0.12)
STARTS: Final = 3
"""The best of a grid of shifts and turns to start from, where a start at rest doesn't match."""


def register(fixed: Grey, moving: Grey, valid: Grey) -> Similarity:
    """Find the similarity that lays `moving` on `fixed`, from several starts if need be.

    Args:
        fixed: reference, evened out to zero mean and unit spread, shape (n, n).
        moving: the picture, likewise.
        valid: 1 where the picture shows background, 0 elsewhere, shape (n, n).
    """
    best = _refine(fixed, moving, valid, np.zeros(4))
    if best.match < GOOD_MATCH:
        found = [_refine(fixed, moving, valid, q) for q in _starts(fixed, moving, valid)]
        best = max([best, *found], key=lambda similarity: similarity.match)
    return best


def _starts(fixed: Grey, moving: Grey, valid: Grey) -> list[NDArray[np.float64]]:
    """Return the few shifts and turns of a coarse grid that match best, as parameters."""
    n = len(fixed)
    reference, picture = _smooth(fixed, 3.0), _smooth(moving, 3.0)
    ranked = []
    for turn_rad in TURNS_RAD:
        for right in SHIFTS_PX:
            for down in SHIFTS_PX:
                shift = np.array([right, down])
                matrix = Similarity(0.0, shift, 1.0, turn_rad).matrix(n)
                flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
                warped = cv2.warpAffine(picture, matrix, (n, n), flags=flags)
                inside = cv2.warpAffine(valid, matrix, (n, n), flags=flags) > 0.5
                match = _correlation(np.asarray(warped), reference, inside)
                ranked.append((match, turn_rad, right, down))
    ranked.sort(reverse=True)
    return [
        np.array([np.cos(turn) - 1.0, np.sin(turn), right, down])
        for _, turn, right, down in ranked[:STARTS]
    ]


def _refine(fixed: Grey, moving: Grey, valid: Grey, start: NDArray[np.float64]) -> Similarity:
    """Refine a start by Gauss-Newton on grey differences with Cauchy weights, coarse to fine.

    Forward additive (Baker and Matthews 2004). What moved by itself, such as the arm, loses weight.
    """
    n = len(fixed)
    row, column = np.mgrid[:n, :n].astype(np.float32)
    middle = 0.5 * (n - 1)
    x, y = column - middle, row - middle
    q = start.copy()  # scale·cos - 1, scale·sin, shift right, shift down
    match = -1.0
    for sigma in COARSE_TO_FINE_PX:
        reference, picture = (_smooth(p, sigma) for p in (fixed, moving))
        slopes = [cv2.Sobel(picture, cv2.CV_32F, i, 1 - i, ksize=3) / 8.0 for i in (1, 0)]
        for _ in range(STEPS):
            u = ((1 + q[0]) * x - q[1] * y + q[2] + middle).astype(np.float32)
            v = (q[1] * x + (1 + q[0]) * y + q[3] + middle).astype(np.float32)
            warped, right, down = (_warp(p, u, v) for p in (picture, *slopes))
            inside = _warp(valid, u, v, cv2.BORDER_CONSTANT) > 0.9
            if inside.sum() < n:
                return Similarity(-1.0, np.zeros(2), 1.0, 0.0)
            error = warped - reference
            match = _correlation(warped, reference, inside)
            step = _step(error, right, down, x, y, inside)
            q -= step
            if np.abs(step[2:]).max() < 0.01 and np.abs(step[:2]).max() * middle < 0.01:
                break
    return Similarity(
        match, q[2:].copy(), float(np.hypot(1 + q[0], q[1])), float(np.arctan2(q[1], 1 + q[0]))
    )


def _step(
    error: Grey, right: Grey, down: Grey, x: Grey, y: Grey, inside: NDArray[np.bool_]
) -> NDArray[np.float64]:
    spread = 1.4826 * float(np.median(np.abs(error[inside]))) + 1e-3
    weight = (inside / (1 + (error / (2.5 * spread)) ** 2)).reshape(-1, 1)
    columns = (right * x + down * y, down * x - right * y, right, down)
    jacobian = np.stack(columns, axis=-1).reshape(-1, 4).astype(np.float64)
    normal = jacobian.T @ (weight * jacobian)
    slope = jacobian.T @ (weight[:, 0] * error.reshape(-1))
    return np.asarray(
        np.linalg.solve(normal + 1e-3 * np.diag(np.diag(normal)) + 1e-9 * np.eye(4), slope)
    )


def _correlation(one: Grey, other: Grey, inside: NDArray[np.bool_]) -> float:
    """Return the correlation inside the mask; -1 where there is too little to compare."""
    if inside.sum() < 0.2 * inside.size:
        return -1.0
    a, b = one[inside].astype(np.float64), other[inside].astype(np.float64)
    if a.std() < 1e-6 or b.std() < 1e-6:
        return -1.0
    return float(np.corrcoef(a, b)[0, 1])


def _smooth(picture: Grey, sigma: float) -> Grey:
    smooth = cv2.GaussianBlur(picture, (0, 0), sigma)
    return np.asarray(smooth / (smooth.std() + 1e-6), dtype=np.float32)


def _warp(picture: Grey, u: Grey, v: Grey, border: int = cv2.BORDER_REFLECT) -> Grey:
    warped = cv2.remap(picture, u, v, cv2.INTER_LINEAR, borderMode=border)
    return np.asarray(warped, dtype=np.float32)
