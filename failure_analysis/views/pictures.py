"""What a take's pictures show: photometry, camera pose, blobs, hands.

Whether the camera has moved is told by laying the first picture on the cell's usual one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import Image
from gaploop.failure_analysis.views.registration import register

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
