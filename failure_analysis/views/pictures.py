"""One pass over a take's pictures: photometry, camera pose, blobs, hands, repeats."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import Image
from gaploop.failure_analysis.views.register import register

NAN: Final = float("nan")
SAMPLES: Final = 24
"""Pictures looked at closely, spread over the take."""
SIZE_PX: Final = 192
"""Pictures are brought to this size, so that areas and shifts compare."""
THUMB_PX: Final = 96
SATURATED: Final = 110
"""Of 255: what has a colour of its own, unlike wood, metal and skin."""
RIGID_MATCH: Final = 0.75
"""Correlation with the background below which no camera move explains the picture."""
DIFFERS: Final = 38
"""Grey levels between a pixel and the background that make it foreground."""


@dataclass(frozen=True)
class Background:
    """The cell as the camera usually sees it at the start, without object and target.

    Attributes:
        thumbnail: RGB, shape (96, 96, 3).
    """

    thumbnail: Image

    def to_json(self) -> str:
        """Return it as base64 of a PNG."""
        done, data = cv2.imencode(".png", cv2.cvtColor(self.thumbnail, cv2.COLOR_RGB2BGR))
        return base64.b64encode(data.tobytes()).decode() if done else ""

    @classmethod
    def from_json(cls, text: str) -> Background:
        """Read what `to_json` wrote; raises ValueError where it isn't a picture."""
        raw = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
        picture: Any = cv2.imdecode(raw, cv2.IMREAD_COLOR) if len(raw) else None
        if picture is None:
            raise ValueError("background is not a PNG")
        return cls(np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), dtype=np.uint8))


@dataclass(frozen=True)
class PictureSummary:
    """What the pictures of one take say; areas and shifts in pixels of a 192 px picture.

    Attributes:
        photometry: brightness, contrast, saturation, casts, sharpness, noise, corners.
        pose: `shift_px`, `scale`, `turn_rad` against the background; empty without one.
        scene: blob counts and areas at the start, foreground share.
        hand_share: largest share of the picture that a coloured mover covers.
        repeat_share: share of consecutive pictures that are the same one.
        first: first picture, RGB, 192 px, for a background.
        examples: a few pictures for reports, evenly spread, RGB, 192 px.
    """

    photometry: dict[str, float]
    pose: dict[str, float]
    scene: dict[str, float]
    hand_share: float
    repeat_share: float
    first: Image
    examples: tuple[Image, ...]


def summarise(
    pictures: Iterator[Image], expected: int, background: Background | None
) -> PictureSummary | None:
    """Look at a take's pictures once.

    Args:
        pictures: RGB pictures in order.
        expected: how many there should be, to spread the samples; 0 if unknown.
        background: the cell's usual picture, for the camera's pose.

    Returns:
        The summary, or None where there is no picture at all.
    """
    samples, repeats, count = _sampled(pictures, expected)
    if not samples:
        return None
    first = samples[0]
    pose, aligned = _pose(first, background)
    scene = _blobs(first)
    if aligned is not None and background is not None:
        scene["foreground_share"] = _foreground(aligned, background)
    middle = len(samples) // 2
    return PictureSummary(
        photometry=_photometry(samples),
        pose=pose,
        scene=scene,
        hand_share=_hand(samples),
        repeat_share=repeats / max(count - 1, 1),
        first=first,
        examples=(first, samples[middle], samples[-1]),
    )


def background_of(firsts: list[Image]) -> Background | None:
    """Return the median of takes' first pictures: what moves between takes drops out."""
    if len(firsts) < 3:
        return None
    small = [cv2.resize(p, (THUMB_PX, THUMB_PX), interpolation=cv2.INTER_AREA) for p in firsts]
    return Background(np.median(np.stack(small), axis=0).astype(np.uint8))


def _sampled(pictures: Iterator[Image], expected: int) -> tuple[list[Image], int, int]:
    step = max(1, expected // SAMPLES)
    samples: list[Image] = []
    repeats, count = 0, 0
    last: NDArray[np.uint8] | None = None
    for count, picture in enumerate(pictures, 1):
        probe = picture[::7, ::7]
        if last is not None and float(np.mean(cv2.absdiff(probe, last))) < 0.15:
            repeats += 1
        last = probe.copy()
        if (count - 1) % step == 0 and len(samples) < 4 * SAMPLES:
            samples.append(_resized(picture))
    return samples, repeats, count


def _resized(picture: Image) -> Image:
    if picture.shape[:2] == (SIZE_PX, SIZE_PX):
        return picture
    resized = cv2.resize(picture, (SIZE_PX, SIZE_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(resized, dtype=np.uint8)


def _photometry(samples: list[Image]) -> dict[str, float]:
    chosen = samples[:3]  # before the arm comes into the picture
    rows = [_photometry_of(picture) for picture in chosen]
    values = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
    values["noise"] = _noise(samples)
    levels = [np.log2(float(np.median(p[::2, ::2])) + 1.0) for p in samples]
    values["swing_stops"] = float(np.percentile(levels, 95) - np.percentile(levels, 5))
    return values


def _photometry_of(picture: Image) -> dict[str, float]:
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float64)
    red, green, blue = (float(np.median(picture[..., k])) + 1.0 for k in range(3))
    smooth = cv2.GaussianBlur(grey, (0, 0), 0.8)
    contrast = float(smooth.std())
    edges = np.asarray(cv2.Laplacian(smooth, cv2.CV_64F))
    k = SIZE_PX // 6
    corners = np.concatenate([grey[:k, :k], grey[:k, -k:], grey[-k:, :k], grey[-k:, -k:]])
    centre = grey[2 * k : 4 * k, 2 * k : 4 * k]
    saturation = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)[..., 1]
    return {
        "brightness": float(np.median(grey)),
        "contrast": contrast,
        "clipped": float(((grey <= 3.0) | (grey >= 252.0)).mean()),
        "saturation": float(np.median(saturation)),
        "cast_red": float(np.log(red / green)),
        "cast_blue": float(np.log(blue / green)),
        "sharpness": float(np.percentile(np.abs(edges), 99) / max(contrast, 1.0)),
        "corners": float((np.median(corners) + 1.0) / (np.median(centre) + 1.0)),
    }


def _noise(samples: list[Image]) -> float:
    """Noise of one pixel [grey levels], from what changes between samples in still places."""
    greys = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY).astype(np.float64) for p in samples]
    spreads = [
        float(np.percentile(np.abs(b - a), 60)) / (0.8416 * np.sqrt(2.0))
        for a, b in itertools.pairwise(greys)
    ]
    return float(np.median(spreads)) if spreads else NAN


def _pose(first: Image, background: Background | None) -> tuple[dict[str, float], Image | None]:
    """Find how the first picture lies on the background, if it does, and lay it there."""
    if background is None:
        return {}, None
    small = np.asarray(
        cv2.resize(first, (THUMB_PX, THUMB_PX), interpolation=cv2.INTER_AREA), dtype=np.uint8
    )
    valid = cv2.dilate(_coloured(small).astype(np.uint8), np.ones((5, 5), np.uint8)) == 0
    found = register(_even(background.thumbnail), _even(small), valid.astype(np.float32))
    if found.match < RIGID_MATCH:
        return {"match": found.match}, small
    aligned = cv2.warpAffine(
        small, found.matrix(THUMB_PX), (THUMB_PX, THUMB_PX),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
    )  # fmt: skip
    pose = {
        "match": found.match,
        "shift_px": float(np.hypot(*found.shift_px)) * SIZE_PX / THUMB_PX,
        "scale": found.scale,
        "turn_rad": found.turn_rad,
    }
    return pose, np.asarray(aligned, dtype=np.uint8)


def _even(picture: Image) -> NDArray[np.float32]:
    """Grey picture with light and contrast evened out."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    flat = grey - cv2.GaussianBlur(grey, (0, 0), THUMB_PX / 8)
    return np.asarray(flat / (flat.std() + 1e-3), dtype=np.float32)


def _coloured(picture: Image) -> NDArray[np.bool_]:
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    return np.asarray((hsv[..., 1] > SATURATED) & (hsv[..., 2] > 50))


def _foreground(aligned: Image, background: Background) -> float:
    """Share of the picture that is neither background, object nor target."""
    now, usual = aligned.astype(np.float64), background.thumbnail.astype(np.float64)
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


def _blobs(picture: Image) -> dict[str, float]:
    """Blobs of the object's and target's hue at the start, largest object first."""
    hue = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)[..., 0]
    coloured = _coloured(picture)
    red = _contours(coloured & _reddish(hue), 12.0)
    blue = _contours(coloured & _blueish(hue), 60.0)
    values = {
        "object_blobs": float(len(red)),
        "object_area_px": cv2.contourArea(red[0]) if red else NAN,
        "target_area_px": cv2.contourArea(blue[0]) if blue else NAN,
        "object_aspect": NAN,
        "object_fill": NAN,
    }
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


def example_pictures(summary: PictureSummary | None) -> tuple[Image, ...]:
    """Return a few pictures for a report; empty without any."""
    return summary.examples if summary else ()
