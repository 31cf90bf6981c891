"""What a take's pictures show: photometry, camera pose, blobs, hands; and samples of one camera.

Whether the camera has moved is told by laying the first picture on the cell's usual one by shift,
turn and scale (`register`).

A camera's samples are `PLACES` pairs of consecutive pictures, spread over the whole take. A pair
tells flicker and how much changes while the joints move as fast as recorded; its first picture is
measured at full size and kept small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.datasets.video import pictures_at

SAMPLES: Final = 24
"""Pictures looked at closely, spread over the episode."""
SIZE_PX: Final = 192
"""Pictures are brought to this size, so that areas and shifts compare."""
THUMB_PX: Final = 96
SATURATED: Final = 110
"""Of 255: what has a colour of its own, unlike wood, metal and skin."""
RIGID_MATCH: Final = 0.75
"""Correlation with the background below which no camera move explains the picture."""
DIFFERS: Final = 38
"""Grey levels between a pixel and the background that make it foreground."""


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

type Grey = NDArray[np.float32]


def picture_png(picture: Image) -> bytes:
    """Return an RGB picture, shape (height, width, 3), as PNG."""
    done, data = cv2.imencode(".png", cv2.cvtColor(np.asarray(picture), cv2.COLOR_RGB2BGR))
    return data.tobytes() if done else b""


def picture_of(png: bytes) -> Image:
    """Read what `picture_png` returned; raises ValueError where it isn't a picture."""
    raw = np.frombuffer(png, dtype=np.uint8)
    picture: Any = cv2.imdecode(raw, cv2.IMREAD_COLOR) if len(raw) else None
    if picture is None:
        raise ValueError("background is not a PNG")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), dtype=np.uint8)


@dataclass(frozen=True)
class PictureSummary:
    """What the pictures of one take say, by name; areas and shifts are those of a 192 px picture.

    Light and noise; the camera's pose, where there is a background; blobs and foreground at the
    start; the largest share that a coloured mover covers. The first picture and a few examples,
    evenly spread, are RGB of 192 px.
    """

    values: dict[str, float]
    first: Image
    examples: tuple[Image, ...]


def summarise(
    pictures: Iterator[Image], expected: int, background: Image | None
) -> PictureSummary | None:
    """Look once at a take's RGB pictures, in order; None without any.

    So many as are expected spread the samples, 0 if unknown; the camera's pose is that against the
    cell's usual picture.
    """
    step = max(1, expected // SAMPLES)
    samples = [squared(p) for p in itertools.islice(pictures, 0, 4 * SAMPLES * step, step)]
    if not samples:
        return None
    first = samples[0]
    values = {**photometry(samples), **_blobs(first), "hand_share": _hand(samples)}
    if background is not None:
        small = squared(first, THUMB_PX)
        valid = cv2.dilate(_coloured(small).astype(np.uint8), np.ones((5, 5), np.uint8)) == 0
        found = register(_even(background), _even(small), valid.astype(np.float32))
        values["match"] = found.match
        if found.match >= RIGID_MATCH:  # the first picture lies on the background: lay it there
            aligned = cv2.warpAffine(
                small, found.matrix(THUMB_PX), (THUMB_PX, THUMB_PX),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
            )  # fmt: skip
            small = np.asarray(aligned, dtype=np.uint8)
            values["shift_px"] = float(np.hypot(*found.shift_px)) * SIZE_PX / THUMB_PX
            values |= {"scale": found.scale, "turn_rad": found.turn_rad}
        values["foreground_share"] = _foreground(small, background)
    return PictureSummary(values, first, (first, samples[len(samples) // 2], samples[-1]))


def background_of(firsts: list[Image]) -> Image | None:
    """Return the cell as its camera usually sees it at the start, RGB, shape (96, 96, 3).

    The median of takes' first pictures: what moves between takes drops out.
    """
    if len(firsts) < 3:
        return None
    small = np.stack([squared(p, THUMB_PX) for p in firsts])
    return np.asarray(np.median(small, axis=0), dtype=np.uint8)


def squared(picture: Image, size_px: int = SIZE_PX) -> Image:
    """Return a picture brought to `size_px` a side."""
    if picture.shape[:2] == (size_px, size_px):
        return picture
    resized = cv2.resize(picture, (size_px, size_px), interpolation=cv2.INTER_AREA)
    return np.asarray(resized, dtype=np.uint8)


def photometry(samples: Sequence[Image]) -> dict[str, float]:
    """Return light, colour, sharpness and noise of pictures of 192 px, in order of time."""
    rows = []
    for picture in samples[:3]:  # before the arm comes into the picture
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float64)
        red, green, blue = (float(np.median(picture[..., k])) + 1.0 for k in range(3))
        smooth = cv2.GaussianBlur(grey, (0, 0), 0.8)
        contrast = float(smooth.std())
        edges = np.asarray(cv2.Laplacian(smooth, cv2.CV_64F))
        k = SIZE_PX // 6
        corners = np.concatenate([grey[:k, :k], grey[:k, -k:], grey[-k:, :k], grey[-k:, -k:]])
        centre = grey[2 * k : 4 * k, 2 * k : 4 * k]
        saturation = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)[..., 1]
        rows.append({
            "brightness": float(np.median(grey)),
            "contrast": contrast,
            "saturation": float(np.median(saturation)),
            "cast_red": float(np.log(red / green)),
            "cast_blue": float(np.log(blue / green)),
            "sharpness": float(np.percentile(np.abs(edges), 99) / max(contrast, 1.0)),
            "corners": float((np.median(corners) + 1.0) / (np.median(centre) + 1.0)),
        })  # fmt: skip
    values = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
    # Noise of one pixel [grey levels], from what changes between samples in still places.
    greys = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY).astype(np.float64) for p in samples]
    spreads = [
        float(np.percentile(np.abs(b - a), 60)) / (0.8416 * np.sqrt(2.0))
        for a, b in itertools.pairwise(greys)
    ]
    values["noise"] = float(np.median(spreads)) if spreads else np.nan
    levels = [np.log2(float(np.median(p[::2, ::2])) + 1.0) for p in samples]
    values["swing_stops"] = float(np.percentile(levels, 95) - np.percentile(levels, 5))
    return values


def _even(picture: Image) -> NDArray[np.float32]:
    """Grey picture with light and contrast evened out."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    flat = grey - cv2.GaussianBlur(grey, (0, 0), THUMB_PX / 8)
    return np.asarray(flat / (flat.std() + 1e-3), dtype=np.float32)


def _coloured(picture: Image) -> NDArray[np.bool_]:
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    return np.asarray((hsv[..., 1] > SATURATED) & (hsv[..., 2] > 50))


def _foreground(aligned: Image, background: Image) -> float:
    """Share of the picture that is neither background, object nor target."""
    now, usual = aligned.astype(np.float64), background.astype(np.float64)
    gain = (np.median(usual, axis=(0, 1)) + 1.0) / (np.median(now, axis=(0, 1)) + 1.0)
    differs = np.abs(now * gain - usual).max(axis=2) > 1.6 * DIFFERS
    hue = cv2.cvtColor(aligned, cv2.COLOR_RGB2HSV)[..., 0]
    known = _coloured(aligned) & (_reddish(hue) | _blueish(hue))
    known = cv2.dilate(known.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    left = cv2.morphologyEx(
        (differs & ~known).astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), np.uint8)
    )
    edge = THUMB_PX // 24
    return float(left[edge:-edge, edge:-edge].mean())


def _reddish(hue: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray((hue <= 20) | (hue >= 165))


def _blueish(hue: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray((hue >= 98) & (hue <= 128))


def coloured_outlines(picture: Image) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]:
    """Return what has the object's hue and what the target's, in a picture of 192 px.

    Outlines as OpenCV gives them, largest first.
    """
    hue = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)[..., 0]
    coloured = _coloured(picture)
    red = _contours(coloured & _reddish(hue), 12.0)
    return red, _contours(coloured & _blueish(hue), 60.0)


def _blobs(picture: Image) -> dict[str, float]:
    """Blobs of the object's and target's hue at the start, largest object first."""
    red, blue = coloured_outlines(picture)
    values = {
        "object_blobs": float(len(red)),
        "object_area_px": cv2.contourArea(red[0]) if red else np.nan,
        "target_area_px": cv2.contourArea(blue[0]) if blue else np.nan,
        "object_aspect": np.nan,
        "object_fill": np.nan,
    }
    values["area_ratio"] = values["object_area_px"] / values["target_area_px"]
    if red:
        (_, (width, height), _) = cv2.minAreaRect(red[0])
        long, short = max(width, height) + 1.0, min(width, height) + 1.0
        values["object_aspect"] = float(long / short)
        area = cv2.contourArea(red[0]) + 0.5 * cv2.arcLength(red[0], True) + 1.0
        values["object_fill"] = float(area / (long * short))
    return values


def _contours(mask: NDArray[np.bool_], least_px: float) -> list[NDArray[np.int32]]:
    found, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    large = [np.asarray(c) for c in found if cv2.contourArea(c) >= least_px]
    return sorted(large, key=cv2.contourArea, reverse=True)


def _hand(samples: list[Image]) -> float:
    """Largest share of a picture that something new, skin-toned covers.

    New against the take's median picture; skin-toned: more red than green than blue, some
    saturation, yet less than object and target have.
    """
    usual = np.median(np.stack(samples), axis=0).astype(np.int16)
    largest = 0.0
    for picture in samples:
        differs = np.abs(picture.astype(np.int16) - usual).max(axis=2) > DIFFERS
        red, green, blue = (picture[..., k].astype(np.float64) for k in range(3))
        spread = (red - blue) / (red + 1.0)
        tone = (green - blue) / np.maximum(red - blue + 1.0, 1.0)
        skin = (red > 90) & (spread > 0.22) & (spread < 0.60) & (tone < 0.52) & (tone > 0.15)
        mask = cv2.morphologyEx(
            (differs & skin).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)
        )
        largest = max(largest, float(mask.mean()))
    return largest


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
                return Similarity(-1.0, np.zeros(2), 1.0, 0.0)
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
    scale, turn_rad = np.hypot(1 + q[0], q[1]), np.arctan2(q[1], 1 + q[0])
    return Similarity(match, q[2:4].copy(), float(scale), float(turn_rad), float(sum(q[4:])))


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


def example_pictures(summary: PictureSummary | None) -> tuple[Image, ...]:
    """Return a few pictures for a report; empty without any."""
    return summary.examples if summary else ()


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


def sample(take: Take, camera: str, alter: Alter | None = None) -> CameraSamples | None:
    """Look at one camera of a take; None where it has no pictures."""
    n = len(take.frames)
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
