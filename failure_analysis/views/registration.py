"""How one picture lies on another, by shift, turn, scale and, if asked, a lens's bend."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

COARSE_TO_FINE_PX: Final = (4.0, 2.0, 1.0)
"""Smoothing of the pictures, so that far moves are found first."""
STEPS: Final = 12
GOOD_MATCH: Final = 0.95
SHIFTS_PX: Final = np.arange(-12.0, 13.0, 4.0)
TURNS_RAD: Final = (-0.12, -0.06, 0.0, 0.06, 0.12)
STARTS: Final = 3
"""The best of a grid of shifts and turns to start from, where a start at rest doesn't match."""
LEAST_COMMON: Final = 0.2
"""Share of what counts in a picture that has to be in the other to compare."""
TIMES: Final = 2.0
"""No picture is laid on another at more than this times its size, in its middle or corners, nor at
less than the inverse: what is nearly plain matches a small part of anything."""
type Grey = NDArray[np.float32]


@dataclass(frozen=True)
class Similarity:
    """How a picture lies on the reference: its correlation once aligned, size and turn.

    `shift_px` is that of the picture's middle (right, down), shape (2,). `bend` is how much farther
    out its corners lie than by size alone, as a share, through another lens; 0 unless asked for.
    """

    match: float
    shift_px: NDArray[np.float64]
    scale: float
    turn_rad: float
    bend: float = 0.0

    def matrix(self, size_px: int | tuple[int, int]) -> NDArray[np.float64]:
        """Return the 2×3 matrix from reference pixels to picture pixels, of that width, height."""
        a, b = self.scale * np.cos(self.turn_rad), self.scale * np.sin(self.turn_rad)
        middle = 0.5 * (np.asarray(size_px) - 1) * np.ones(2)
        linear = np.array([[a, -b], [b, a]])
        return np.column_stack([linear, self.shift_px + middle - linear @ middle])


NOWHERE: Final = Similarity(-1.0, np.zeros(2), 1.0, 0.0)
"""Of a picture that lies nowhere on the other."""


def register(
    fixed: Grey,
    moving: Grey,
    valid: Grey,
    counts: NDArray[np.bool_] | None = None,
    good: float = GOOD_MATCH,
) -> Similarity:
    """Find the similarity that lays `moving` on `fixed`, from several starts if need be.

    Both of shape (rows, columns), evened out to zero mean and unit spread; `valid` is 1 where the
    picture shows background, `counts` says which pixels of `fixed` do; a start at rest that matches
    as well as `good` is enough.
    """
    counts = np.ones(fixed.shape, dtype=bool) if counts is None else counts
    best = refine(fixed, moving, valid, counts, np.zeros(4))
    if best.match >= good:
        return best
    # The few shifts and turns of a coarse grid that match best, at half the size.
    reference, picture, there = (
        p[::2, ::2] for p in (_smooth(fixed, 3.0), _smooth(moving, 3.0), valid)
    )
    known, size = counts[::2, ::2], (reference.shape[1], reference.shape[0])
    flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    ranked = []
    for turn_rad, right, down in itertools.product(TURNS_RAD, SHIFTS_PX, SHIFTS_PX):
        matrix = Similarity(0.0, 0.5 * np.array([right, down]), 1.0, turn_rad).matrix(size)
        warped = cv2.warpAffine(picture, matrix, size, flags=flags)
        inside = (cv2.warpAffine(there, matrix, size, flags=flags) > 0.5) & known
        match = _correlation(np.asarray(warped), reference, inside, known)
        ranked.append((match, turn_rad, right, down))
    starts = [
        np.array([np.cos(turn) - 1.0, np.sin(turn), right, down])
        for _, turn, right, down in sorted(ranked, reverse=True)[:STARTS]
    ]
    found = [refine(fixed, moving, valid, counts, start) for start in starts]
    return max([best, *found], key=lambda similarity: similarity.match)


def match_at_rest(fixed: Grey, moving: Grey, counts: NDArray[np.bool_]) -> float:
    """Return how well two pictures match as they lie; see `register`."""
    reference, picture = (_smooth(p, COARSE_TO_FINE_PX[-1]) for p in (fixed, moving))
    return _correlation(picture, reference, counts, counts)


def refine(
    fixed: Grey,
    moving: Grey,
    valid: Grey,
    counts: NDArray[np.bool_],
    start: NDArray[np.float64],
) -> Similarity:
    """Refine a start by Gauss-Newton on grey differences with Cauchy weights, coarse to fine.

    Forward additive (Baker and Matthews 2004). What moved by itself, such as the arm, loses weight.
    A start is scale·cos - 1, scale·sin, shift right, shift down, and the lens's bend where it is to
    be found, too.
    """
    rows, columns = fixed.shape
    row, column = np.mgrid[:rows, :columns].astype(np.float32)
    right_of, below = 0.5 * (columns - 1), 0.5 * (rows - 1)
    x, y = column - right_of, row - below
    out = (x**2 + y**2) / (right_of**2 + below**2)
    px = np.array([right_of, right_of, 1.0, 1.0, right_of])[: len(start)]
    q, match = start.copy(), -1.0
    for sigma in COARSE_TO_FINE_PX:
        reference, picture = (_smooth(p, sigma) for p in (fixed, moving))
        slopes = [cv2.Sobel(picture, cv2.CV_32F, i, 1 - i, ksize=3) / 8.0 for i in (1, 0)]
        for _ in range(STEPS):
            far = 1 + q[0] + (q[4] * out if len(q) > 4 else 0.0)
            u = (far * x - q[1] * y + q[2] + right_of).astype(np.float32)
            v = (q[1] * x + far * y + q[3] + below).astype(np.float32)
            warped, right, down = (_warp(p, u, v) for p in (picture, *slopes))
            inside = (_warp(valid, u, v, cv2.BORDER_CONSTANT) > 0.9) & counts
            if inside.sum() < columns:
                return NOWHERE
            error = warped - reference
            match = _correlation(warped, reference, inside, counts)
            spread = 1.4826 * float(np.median(np.abs(error[inside]))) + 1e-3
            weight = (inside / (1 + (error / (2.5 * spread)) ** 2)).reshape(-1, 1)
            grows = right * x + down * y
            parts = (grows, down * x - right * y, right, down, grows * out)[: len(q)]
            jacobian = np.stack(parts, axis=-1).reshape(-1, len(q)).astype(np.float64)
            normal = jacobian.T @ (weight * jacobian)
            slope = jacobian.T @ (weight[:, 0] * error.reshape(-1))
            damped = normal + 1e-3 * np.diag(np.diag(normal)) + 1e-9 * np.eye(len(q))
            step = np.linalg.solve(damped, slope)
            q -= step
            if np.abs(step * px).max() < 0.01:
                break
    scale, turn_rad = float(np.hypot(1 + q[0], q[1])), float(np.arctan2(q[1], 1 + q[0]))
    bend = float(sum(q[4:]))
    sizes = scale, scale + bend
    if min(sizes) < 1.0 / TIMES or max(sizes) > TIMES:
        return NOWHERE
    return Similarity(match, q[2:4].copy(), scale, turn_rad, bend)


def _correlation(
    one: Grey, other: Grey, inside: NDArray[np.bool_], counts: NDArray[np.bool_]
) -> float:
    """Return the correlation inside the mask; -1 where there is too little to compare."""
    if inside.sum() < LEAST_COMMON * counts.sum():
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
