"""How late a camera's pictures are: motion in the picture against motion of the joints.

Pictures change as fast as the arm in them moves. The mean change between two pictures, placed
midway between them, is correlated with the speed of the joints.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import cv2
import numpy as np
from scipy.ndimage import gaussian_filter1d

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import FloatArray, Image
from gaploop.teleop.calibration.correlation import (
    SEGMENT_S,
    Lag,
    Pieces,
    correlate,
    lag_of,
    resampled,
)
from gaploop.teleop.calibration.latency import MIN_SEGMENTS, JointMotion

MIN_CORRELATION: Final = 0.5
"""Pictures show other motion too, and some joints more than others."""
MIN_SPEED_RAD_S: Final = 0.1
STEPS: Final = 6
"""Grid points per picture: the peak lies between pictures."""


def picture_motion(images: Iterable[Image]) -> FloatArray:
    """Return the mean change from each picture to the next [grey levels], shape (n - 1,)."""
    before: Image | None = None
    changes = []
    for image in images:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        small = cv2.resize(grey, (160, 120), interpolation=cv2.INTER_AREA)
        if before is not None:
            changes.append(float(np.abs(small.astype(np.int16) - before).mean()))
        before = small
    return np.array(changes)


def camera_latency(
    t_capture_s: FloatArray, change: FloatArray, motion: JointMotion, seed: int = 0
) -> Lag:
    """Measure how late pictures are against the positions that the servos report.

    Args:
        t_capture_s: when each picture was taken, as the recorder has it [s], shape (n,).
        change: of `picture_motion`, shape (n - 1,).
        motion: the arm in the picture, on the same clock.
        seed: draws the bootstrap.

    Raises:
        UnusableInputError: too few pictures, too little motion, or no agreement.
    """
    new = np.concatenate([[True], np.diff(t_capture_s) > 1e-6])
    times, change = _of_new_pictures(t_capture_s, change, new)
    if len(times) < 10:
        raise UnusableInputError(
            f"{len(times)} different pictures tell nothing about a camera's latency. Record "
            f"{MIN_SEGMENTS * SEGMENT_S:g} s or more."
        )
    frame_s = float(np.median(np.diff(times)))
    pieces = _correlated(times, change, motion, frame_s)
    if len(pieces.driver) < MIN_SEGMENTS:
        raise UnusableInputError(
            f"The arm moved in {len(pieces.driver) * SEGMENT_S:.0f} s of the pictures, "
            f"{MIN_SEGMENTS * SEGMENT_S:g} s are needed. Move it to and fro, with pauses."
        )
    lag = lag_of(pieces, seed)
    if not lag.correlation >= MIN_CORRELATION:
        raise UnusableInputError(
            f"The pictures don't change as the arm moves (correlation "
            f"{np.nan_to_num(lag.correlation):.2f}). Is the arm in the picture, alone?"
        )
    return lag


def _of_new_pictures(
    t_s: FloatArray, change: FloatArray, new: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return when each pair of different pictures stands, and its change per second."""
    # A picture that was recorded twice changes by nothing: its change is that of the next one.
    keep = np.flatnonzero(new)
    if len(keep) < 2:
        return np.empty(0), np.empty(0)
    total = np.add.reduceat(np.append(0.0, change), keep)[1:]
    taken = t_s[keep]
    return (taken[1:] + taken[:-1]) / 2, total / np.diff(taken)


def _correlated(
    times: FloatArray, change: FloatArray, motion: JointMotion, frame_s: float
) -> Pieces:
    step_s = frame_s / STEPS
    begin, end = max(times[0], motion.t_s[0]), min(times[-1], motion.t_s[-1])
    grid_s = np.arange(begin, end, step_s)
    speed = np.zeros(len(grid_s))
    for j in range(motion.position_rad.shape[1]):
        q = resampled(motion.t_s, motion.position_rad[:, j], grid_s)
        # A change between two pictures is a mean over the time between them: so is the speed.
        speed += np.abs(np.gradient(gaussian_filter1d(q, STEPS / 2, mode="nearest"), step_s))
    seen = resampled(times, change, grid_s)

    def moving(piece: slice) -> bool:
        part = speed[piece]
        return bool(np.isfinite(part).all() and np.ptp(part) >= MIN_SPEED_RAD_S)

    return correlate(speed, seen, moving, step_s)
