"""What one camera shows in a take, by pictures spread over it, each measured and kept small.

Samples are `PLACES` pairs of consecutive pictures. A pair tells flicker and how much changes while
the joints move as fast as recorded; its first picture is measured at full size and kept small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.datasets.video import pictures_at
from gaploop.failure_analysis.views.registration import Grey

PLACES: Final = 16
"""Of an episode at which pictures are decoded."""
WIDTH: Final = 128
HEIGHT: Final = 96
"""Size that pictures are kept at [pixels], whatever their own."""
MEASURED: Final = 640
"""Widest picture that is measured; wider ones are reduced."""
BLOCK: Final = 16
"""Side of the blocks of which the quietest tell noise [pixels]."""
CELL: Final = 8
"""Side of a cell, of a kept picture [pixels]."""
STILL: Final = 0.06
"""Stops by which a pixel's brightness may typically vary over an episode and count as still."""
SHOWN: Final = 0.05
"""Structure of a cell, root mean square, from which on it shows something [stops]."""
STANDING: Final = math.log(0.01)
"""How much the pixels of a cell change in which nothing moves [log]."""
type Alter = Callable[[Image, int], Image]
"""Changes a picture of a given row; for benchmarks."""


@dataclass(frozen=True)
class CameraSamples:
    """One camera in one take; n pictures, in order of time.

    Attributes:
        size_px: height and width as recorded.
        pictures: RGB, uint8, shape (n, HEIGHT, WIDTH, 3).
        pose: joint readings at each, shape (n, d); the share of the take gone by where none.
        has_joints: `pose` holds joints.
        measures: of each picture as recorded, shape (n,); see `measure`.
        change: how much of the picture changes until the next row [log], shape (n,).
        speed: how far each joint goes until then, shape (n, d).
        steps: how much brighter the next picture is, and how unevenly from row to row [stops],
            shape (n, 2): flicker, and its bands.
    """

    size_px: tuple[int, int]
    pictures: Image
    pose: FloatArray
    has_joints: bool
    measures: dict[str, FloatArray]
    change: FloatArray
    speed: FloatArray
    steps: FloatArray


def sample(
    take: Take, camera: str, alter: Alter | None = None, rows_until: int | None = None
) -> CameraSamples | None:
    """Look at one camera of a take, as far as row `rows_until`; None where it has no pictures."""
    n = len(take.frames) if rows_until is None else rows_until
    if n < 2 or camera not in take.cameras:
        return None
    rows = np.unique(np.linspace(0, n - 2, PLACES).astype(int))
    wanted = sorted({*rows.tolist(), *(rows + 1).tolist()})
    shown = dict(pictures_at(take.cameras[camera], wanted))
    rows = np.array([r for r in rows if r in shown and r + 1 in shown], dtype=int)
    if not len(rows):
        return None
    if alter is not None:
        shown = {row: alter(picture, row) for row, picture in shown.items()}
    size = shown[int(rows[0])].shape[:2]
    small = {row: reduced(picture) for row, picture in shown.items()}
    state = take.frames.state
    joints = state.ndim == 2 and state.shape[1] > 0 and bool(np.isfinite(state).all())
    pose = state[rows] if joints else (rows / n)[:, None]
    before = state[np.maximum(rows - 1, 0)] if joints else pose
    after = state[np.minimum(rows + 2, n - 1)] if joints else pose
    pairs = [_pair(small[int(r)], small[int(r) + 1]) for r in rows]
    told = [measure(shown[int(r)]) for r in rows]
    return CameraSamples(
        (int(size[0]), int(size[1])),
        np.stack([small[int(r)] for r in rows]),
        np.asarray(pose, dtype=np.float64),
        joints,
        {name: np.array([row[name] for row in told]) for name in told[0]},
        np.array([change for change, _, _ in pairs]),
        np.abs(after - before) / 3.0,
        np.array([[step, band] for _, step, band in pairs]),
    )


def reduced(picture: Image) -> Image:
    """Return a picture at the size that is kept."""
    if picture.shape[1] >= 4 * WIDTH:  # in two steps: averaging many pixels is slow
        half = (picture.shape[1] // 2, picture.shape[0] // 2)
        picture = np.asarray(cv2.resize(picture, half, interpolation=cv2.INTER_LINEAR))
    return np.asarray(cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA), np.uint8)


def brightness(pictures: Image) -> FloatArray:
    """Return the brightness of pictures, shape (…, 3), on a logarithmic scale [stops], (…)."""
    weights = np.array([0.299, 0.587, 0.114])
    return np.asarray(np.log2(pictures.astype(np.float64) @ weights + 4.0))


def measure(picture: Image) -> dict[str, float]:
    """Return light, colour, haze, sharpness and noise of a picture, RGB, as logarithms.

    light [stops]; red and blue to green [stops]; haze, how far the shadows are below the middle
    [stops]; sharpness, how steep strong edges are on a fine scale to how steep on a coarse one;
    noise [log grey levels] (Immerkaer 1996), in the quietest blocks.
    """
    if picture.shape[1] > MEASURED:
        size = (MEASURED, round(picture.shape[0] * MEASURED / picture.shape[1]))
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))
    grey8 = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    dark, middle = np.percentile(grey8[::3, ::3], (5.0, 50.0))
    colour = picture[::3, ::3].reshape(-1, 3)
    level = grey8[::3, ::3].reshape(-1)
    lit = colour[(level > 15) & (level < 240)]
    red, green, blue = (lit if len(lit) > 50 else colour).astype(np.float64).mean(axis=0) + 2.0
    grey = grey8.astype(np.float32)
    slopes = []
    for sigma in (0.7, 2.0):
        smooth = cv2.GaussianBlur(grey, (0, 0), sigma)
        across, down = (cv2.Sobel(smooth, cv2.CV_32F, k, 1 - k, scale=0.125) for k in (1, 0))
        slopes.append(cv2.magnitude(across, down))
    strong = slopes[1] >= np.percentile(slopes[1][::3, ::3], 95.0)
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)
    rough = np.abs(cv2.filter2D(grey, cv2.CV_32F, kernel))
    blocks = (max(1, grey.shape[1] // BLOCK), max(1, grey.shape[0] // BLOCK))
    quiet = cv2.resize(rough, blocks, interpolation=cv2.INTER_AREA)
    mean = cv2.resize(grey, blocks, interpolation=cv2.INTER_AREA)
    usable = quiet[(mean > 12) & (mean < 243)]
    sigma_grey = np.percentile(usable if usable.size else quiet, 20.0) * np.sqrt(np.pi / 2) / 6.0
    return {
        "light": float(np.log2(middle + 2.0)),
        "red": float(np.log2(red / green)),
        "blue": float(np.log2(blue / green)),
        "haze": float(np.log2((dark + 4.0) / (middle + 4.0))),
        "sharpness": float(
            np.log((slopes[0][strong].mean() + 1e-3) / (slopes[1][strong].mean() + 1e-3))
        ),
        "noise": float(np.log(sigma_grey + 0.2)),
    }


def _pair(now: Image, after: Image) -> tuple[float, float, float]:
    """Return change, brightness step and its unevenness over rows of two consecutive pictures."""
    step = brightness(after) - brightness(now)
    overall = float(np.median(step))
    apart = np.abs(step - overall)
    bands = np.median(step, axis=1) - overall
    smooth = np.convolve(np.pad(bands, 2, "edge"), np.ones(5) / 5, "valid")
    return float(np.log(apart.mean() + 1e-3)), overall, float(smooth.std())


@dataclass(frozen=True)
class TakeLook:
    """A take's pictures by cells and pixels.

    Attributes:
        levels: brightness of each cell of each picture [stops], shape (n, rows, columns).
        even: the median picture, light evened out, shape (HEIGHT, WIDTH).
        still: pixels that stand still over the take, shape (HEIGHT, WIDTH).
        edges: edges that stay where they are over the take, 0 to 1, shape (HEIGHT, WIDTH).
        motion: how much each cell's pixels change over the take [log], shape (rows, columns).
        stands: share of the cells that stand still, by their brightness or by their structure,
            which typically is more the median picture's than another, 0 to 1.
        evens: each picture, light evened out, shape (n, HEIGHT, WIDTH).
    """

    levels: FloatArray
    even: Grey
    still: NDArray[np.bool_]
    edges: Grey
    motion: FloatArray
    stands: float
    evens: Grey

    @classmethod
    def of(cls, samples: CameraSamples) -> TakeLook:
        """Return the look of a take's pictures."""
        stops = brightness(samples.pictures)
        # Exposure by what most pixels changed: an arm can turn over the median of black and white.
        change = stops - median_over(stops)
        level = stops - np.median(change, axis=(1, 2), keepdims=True)
        middle = median_over(level)
        apart = median_over(np.abs(level - middle))
        alone = median_over(np.abs(change))
        sharp = middle.astype(np.float32)
        smooth = [cv2.GaussianBlur(p.astype(np.float32), (0, 0), 1.0) for p in stops]
        evens = np.stack([p - cv2.GaussianBlur(p, (0, 0), WIDTH / 16) for p in smooth])
        return cls(
            np.stack([by_cells(p) for p in stops]),
            sharp - cv2.GaussianBlur(sharp, (0, 0), WIDTH / 16),  # slow changes of light
            apart < STILL,
            lasting_edges(samples.pictures),
            np.log(np.minimum(by_cells(apart), by_cells(alone)) + math.exp(STANDING)),
            _stands(evens, apart < STILL),
            evens,
        )


def _stands(evens: Grey, still: NDArray[np.bool_]) -> float:
    """Return `TakeLook.stands`.

    Light that an arm changes, by its shadow or a shiny table, leaves structure where it is.
    """
    middle = median_over(evens)
    shown = np.median([by_cells(p**2) for p in evens], axis=0)
    apart = np.median([by_cells((p - middle) ** 2) for p in evens], axis=0)
    there = (shown > SHOWN**2) & (apart < 0.5 * shown)
    return float(np.mean(there | (by_cells(still.astype(np.float32)) > 0.5)))


def lasting_edges(pictures: Image) -> Grey:
    """Return edges that stay over pictures, in brightness and colour: median slopes, 0 to 1."""
    logs = np.log2(pictures.astype(np.float32) + 4.0)
    grey = logs @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    square = np.zeros((HEIGHT, WIDTH), dtype=np.float32)
    for channel in (grey, logs[..., 0] - logs[..., 1], logs[..., 2] - logs[..., 1]):
        smooth = [cv2.GaussianBlur(p, (0, 0), 1.0) for p in channel]
        for k in (0, 1):
            slopes = [cv2.Sobel(p, cv2.CV_32F, 1 - k, k, scale=0.125) for p in smooth]
            square += median_over(np.array(slopes)) ** 2
    return np.asarray(np.tanh(np.sqrt(square) / 0.05), dtype=np.float32)


def median_over[N: np.floating](pictures: NDArray[N]) -> NDArray[N]:
    """Return the median picture: what `np.median` of axis 0 does, in a fifth of its time."""
    rows = np.ascontiguousarray(pictures.reshape(len(pictures), -1).T)
    rows.sort(axis=1)
    middle = rows[:, (len(pictures) - 1) // 2] / 2 + rows[:, len(pictures) // 2] / 2
    return np.asarray(middle.reshape(pictures.shape[1:]))


def by_cells(picture: NDArray[np.floating]) -> FloatArray:
    """Return the mean of each cell of a picture, shape (rows, columns)."""
    size = (WIDTH // CELL, HEIGHT // CELL)
    reduced = cv2.resize(picture.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return np.asarray(reduced, dtype=np.float64)
