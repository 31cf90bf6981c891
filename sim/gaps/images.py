"""What the camera makes of the scene: exposure, colour, focus, lens, lamps, faulty pixels."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.sim.gaps.catalog import InjectedGap

_IMAGE_KEYS = {
    "gain", "cast_strength", "defocus_fraction", "vignette", "distortion", "torn_fraction",
    "glare_level", "band_depth", "dead_fraction",
}  # fmt: skip

VEIL_LEVEL = 110.0  # grey level of stray light
DEAD_LEVEL = 12.0  # of a row that is not read out: black level and a little noise


class ImagePath:
    """Image faults of one station."""

    def __init__(self, gaps: Sequence[InjectedGap], size_px: int) -> None:
        merged: dict[str, float] = {}
        for gap in gaps:
            merged.update(gap.parameters)
        self._p = merged
        self._size_px = size_px
        self.active = bool(_IMAGE_KEYS & merged.keys())
        axis = (np.arange(size_px) + 0.5) / size_px * 2.0 - 1.0
        self._x, self._y = np.meshgrid(axis, axis)
        self.reset(np.random.default_rng(0))

    def reset(self, rng: np.random.Generator) -> None:
        """Draw what changes from take to take."""
        self._band_phase = float(rng.uniform(0.0, 2.0 * np.pi))

    def apply(
        self, image: NDArray[np.uint8], rng: np.random.Generator, t_s: float
    ) -> NDArray[np.uint8]:
        """Return the picture with the station's faults.

        Args:
            image: RGB, shape (size, size, 3).
            rng: pixel noise of this picture.
            t_s: when it was taken, since the take began [s].

        Returns:
            A new RGB image of the same shape.
        """
        if not self.active:
            return image
        picture = self._lamps(self._lens(image).astype(np.float32), t_s)
        picture = self._light(picture)
        if "torn_fraction" in self._p:
            picture = self._tear(picture, rng)
        if "dead_fraction" in self._p:
            picture = self._lose_rows(picture)
        return np.asarray(np.clip(picture + 0.5, 0, 255), dtype=np.uint8)

    def _lens(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        distortion = self._p.get("distortion", 0.0)
        if distortion:
            squeeze = 1.0 + distortion * (self._x**2 + self._y**2)
            half = 0.5 * self._size_px
            map_x = (self._x * squeeze * half + half - 0.5).astype(np.float32)
            map_y = (self._y * squeeze * half + half - 0.5).astype(np.float32)
            image = np.asarray(
                cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            )
        sigma_px = self._p.get("defocus_fraction", 0.0) * self._size_px
        if sigma_px > 0.0:
            image = np.asarray(cv2.GaussianBlur(image, (0, 0), sigma_px))
        return image

    def _lamps(self, picture: NDArray[np.float32], t_s: float) -> NDArray[np.float32]:
        """A lamp's reflection, and bands of lamps that flicker while rows are read in turn."""
        p = self._p
        out: NDArray[np.floating] = picture
        if "glare_level" in p:
            squared = (self._x - p["glare_x"]) ** 2 + (self._y - p["glare_y"]) ** 2
            spot = np.exp(-((squared / p["glare_radius"] ** 2) ** 2))  # flat within, soft edge
            out = out + p["glare_level"] * spot[..., None]
        if "band_depth" in p:
            drift = 2.0 * np.pi * p["band_drift_hz"] * t_s
            phase = np.pi * p["bands"] * self._y + self._band_phase + drift
            tint = p["band_tint_rad"] * np.array([-1.0, 0.0, 1.0])
            bright = 0.5 + 0.5 * np.cos(phase[..., None] + tint)
            out = out * (1.0 - p["band_depth"] * (1.0 - bright))
        return np.asarray(out, dtype=np.float32)

    def _light(self, picture: NDArray[np.float32]) -> NDArray[np.float32]:
        p = self._p
        out: NDArray[np.floating] = picture
        if "cast_strength" in p:
            angle = p["cast_hue_rad"] + np.array([0.0, 2.0 * np.pi / 3.0, 4.0 * np.pi / 3.0])
            tint = np.cos(angle)
            gains = np.exp(p["cast_strength"] * tint)
            veil = VEIL_LEVEL * (1.0 + 0.6 * tint)
            out = out * gains * (1.0 - p["veil"]) + p["veil"] * veil
        if "gain" in p:
            out = 255.0 * (np.clip(out * p["gain"], 0.0, 255.0) / 255.0) ** p["gamma"]
        if "vignette" in p:
            fall = p["vignette"] * np.clip((self._x**2 + self._y**2) / 1.1, 0.0, 1.0)
            out = out * (1.0 - fall)[..., None]
        return np.asarray(out, dtype=np.float32)

    def _tear(self, picture: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """Shift a band of rows, as after a lost packet, and add pixel noise."""
        torn, first, share, shift = rng.random(4)
        if torn < self._p["torn_fraction"]:
            size = self._size_px
            start = int(first * 0.6 * size)
            rows = slice(start, start + int((0.2 + 0.5 * share) * size))
            shift_px = round((2.0 * shift - 1.0) * self._p["tear_fraction"] * size)
            picture = picture.copy()
            picture[rows] = np.roll(picture[rows], shift_px, axis=1)
        noise = rng.normal(0.0, self._p["pixel_noise"], picture.shape)
        return np.asarray(picture + noise, dtype=np.float32)

    def _lose_rows(self, picture: NDArray[np.float32]) -> NDArray[np.float32]:
        """Groups of rows that the sensor doesn't read out, always the same."""
        rows = (np.arange(self._size_px) + 0.5) / self._size_px
        place = (rows / self._p["dead_period_fraction"] + self._p["dead_phase"]) % 1.0
        picture = picture.copy()
        picture[place < self._p["dead_fraction"]] = DEAD_LEVEL
        return picture
