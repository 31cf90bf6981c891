"""A photo behind a MuJoCo scene: what surrounds arm and things is replaced, as SIMPLER does.

Arm, things and small fixtures are kept, by MuJoCo's segmentation; their colours get the light of
the photo, and a soft shadow falls where they touch what they stand on (Li et al., 2024,
"Evaluating Real-World Robot Manipulation Policies in Simulation", visual matching; this is simpler:
nothing is fitted to the arm's own look).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError

LARGE_M: Final = 0.15
"""A fixture with a larger bounding sphere is a part of the room; a smaller one is a target."""
LIGHT: Final = (0.6, 1.4)
"""Least and greatest factor on a colour: a photo of a dark table doesn't mean a dark room."""
BRIGHT_PERCENTILE: Final = 95.0
SHADOW_FRACTION: Final = 0.45
"""Of the photo's light, right where something touches it."""
SHADOW_HEIGHT_M: Final = 0.02
"""Over which the shadow of what is above it fades."""
COARSER: Final = 4  # a shadow is soft: it is drawn from every fourth pixel

type Picture = NDArray[np.uint8]


def read_photo(path: Path, width: int, height: int) -> Picture:
    """Return the middle of a photo in the shape of a picture, RGB, shape (height, width, 3)."""
    photo = cv2.imread(str(path))
    if photo is None:
        raise UnusableInputError(f"Backdrop {path}: it can't be read as a picture. Replace it.")
    tall, wide = photo.shape[:2]
    scale = min(wide / width, tall / height)
    w, h = max(1, round(width * scale)), max(1, round(height * scale))
    x, y = (wide - w) // 2, (tall - h) // 2
    cut = cv2.resize(photo[y : y + h, x : x + w], (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(cut[..., ::-1], dtype=np.uint8)


def kept_geoms(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Return which geoms stay before a photo, shape (ngeom,): what moves, and small fixtures."""
    roots = model.body_rootid[model.jnt_bodyid]
    moving = np.zeros(model.nbody, dtype=bool)
    moving[roots] = True
    moving[model.body_rootid[model.body_mocapid >= 0]] = True
    moving[0] = False
    small = (model.geom_rbound > 0) & (model.geom_rbound < LARGE_M)
    return np.asarray(moving[model.body_rootid[model.geom_bodyid]] | small)


class Backdrop:
    """One episode's photo, as one camera has it; all pictures are RGB, shape (height, width, 3)."""

    def __init__(
        self,
        photo: Picture,
        still: Picture,
        depth: NDArray[np.float32],
        kept: NDArray[np.bool_],
        ends_m: tuple[float, float],
    ) -> None:
        """Put a photo behind what stands still.

        Args:
            still: what stands still, as drawn.
            depth: of it, shape (height, width), 1 at the near plane and 0 at the far one.
            kept: which of its pixels stay, shape (height, width).
            ends_m: distances of the near and the far plane [m].
        """
        self._ends_m, gone = ends_m, ~kept
        drawn = still[gone] if gone.any() else still.reshape(-1, 3)
        light, wanted = (
            np.percentile(p.reshape(-1, 3), BRIGHT_PERCENTILE, axis=0) for p in (drawn, photo)
        )
        factors = np.clip(wanted / np.maximum(light, 1.0), *LIGHT)
        ramp = np.arange(256)[:, None] * factors
        self._light = np.clip(ramp + 0.5, 0, 255).astype(np.uint8)[None]
        self._far_m = self._metres(depth[::COARSER, ::COARSER])
        self.still = np.where(kept[..., None], self.lit(still), photo)

    def lit(self, picture: Picture) -> Picture:
        """Return what was drawn, in the photo's light."""
        return np.asarray(cv2.LUT(picture, self._light), dtype=np.uint8)

    def over(self, colour: Picture, depth: NDArray[np.float32], nearer: Picture) -> Picture:
        """Return what moves, lit and with its shadow, over the photo; `nearer` is its mask."""
        step = COARSER
        low = nearer[::step, ::step]
        gap_m = self._far_m - self._metres(depth[::step, ::step])
        touch = cv2.exp(np.minimum(gap_m / -SHADOW_HEIGHT_M, 0.0)) * low
        touch = cv2.blur(touch, (3, 3), borderType=cv2.BORDER_REPLICATE)  # twice: a soft edge
        shade = 255.0 * (1.0 - SHADOW_FRACTION * cv2.blur(touch, (3, 3)))
        ground, (x, y, w, h) = self.still.copy(), cv2.boundingRect(nearer)
        if not w:  # nothing that moves is seen
            return ground
        top, left = max(0, y // step - 3), max(0, x // step - 3)
        below, right = -(-(y + h) // step) + 3, -(-(x + w) // step) + 3
        part = shade[top:below, left:right].astype(np.uint8)
        there = ground[top * step : below * step, left * step : right * step]
        wide = cv2.resize(cv2.cvtColor(part, cv2.COLOR_GRAY2RGB), None, fx=step, fy=step)
        cv2.multiply(there, wide[: there.shape[0], : there.shape[1]], there, scale=1.0 / 255.0)
        inside = np.s_[y : y + h, x : x + w]
        ground[inside] = cv2.copyTo(self.lit(colour[inside]), nearer[inside], ground[inside])
        return ground

    def _metres(self, depth: NDArray[np.float32]) -> NDArray[np.float32]:
        near, far = self._ends_m
        return np.asarray(near * far / (near + depth * (far - near)), dtype=np.float32)
