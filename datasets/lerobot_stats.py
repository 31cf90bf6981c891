"""Statistics of one episode, as LeRobot computes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from lerobot.datasets.compute_stats import get_feature_stats
from numpy.typing import NDArray

from gaploop.core.types import Image
from gaploop.datasets.check.frames import matrix
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.video import VideoRange, sample_pictures
from gaploop.datasets.whole_stats import numeric_shapes

PICTURES: Final = 10
"""Pictures of an episode that enter its image statistics."""
PIXELS: Final = 96
"""They are thinned to about this many pixels on the longer side; LeRobot thins to 150."""

type Stats = dict[str, NDArray[Any]]


def of_rows(table: pa.Table, info: DatasetInfo) -> dict[str, Stats]:
    """Return statistics, in float64, of the numbers in one episode's rows, of their last axis."""
    found: dict[str, Stats] = {}
    for name, shape in numeric_shapes(info).items():
        if name in table.column_names:
            values = matrix(table[name], int(np.prod(shape))).reshape(-1, shape[-1])
            stats = get_feature_stats(values, axis=0, keepdims=False)
            found[name] = {n: np.asarray(value).reshape(-1) for n, value in stats.items()}
            found[name]["count"] = np.array([len(table)])
    return found


def of_pictures(path: Path, start_s: float, frames: int, fps: float) -> Stats:
    """Return statistics of one episode's pictures in [0, 1], each of shape (3, 1, 1)."""
    return of_images(VideoRange(path, start_s, frames, fps)(), frames)


def of_images(images: Iterator[Image], frames: int) -> Stats:
    """Return statistics of one episode's `frames` pictures, as `of_pictures` does."""
    every = max(1, frames // PICTURES)
    kept = [p for i, p in enumerate(images) if i % every == 0]
    pictures = np.stack(kept).transpose(0, 3, 1, 2)
    step = max(1, max(pictures.shape[2:]) // PIXELS)
    stats = get_feature_stats(pictures[:, :, ::step, ::step], axis=(0, 2, 3), keepdims=True)
    return {
        name: np.asarray(value) if name == "count" else np.squeeze(value / 255.0, axis=0)
        for name, value in stats.items()
    }


def of_key_frames(path: Path) -> Stats:
    """Return statistics of a video's key frames, 0 to 255, each of shape (3,)."""
    pictures = sample_pictures(path, PICTURES)
    step = max(1, max(pictures.shape[2:]) // PIXELS)
    stats = get_feature_stats(pictures[:, :, ::step, ::step], axis=(0, 2, 3), keepdims=False)
    return {name: np.asarray(value).reshape(-1) for name, value in stats.items()}
