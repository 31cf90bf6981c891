"""A station's pictures as the simulated cell has them: its camera alone, with the cell's colours.

Whatever looks at pictures knows a red object and a blue target. Where a station's have other hues,
the colour circle is stretched so that they take these places and what is red or blue leaves them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import Image
from gaploop.core.station import Interval, StationScene
from gaploop.core.take import Take

THE_CELLS: Final = StationScene()
COLOURED: Final = 60
"""Of 255: what has less saturation has no hue to speak of."""


def recoloured_take(take: Take, scene: StationScene) -> Take:
    """Return a take with the station's camera alone, coloured as the simulated cell.

    Raises UnknownChoiceError where it has other cameras.
    """
    if not take.cameras:
        return take
    camera = scene.camera_among(sorted(take.cameras), f"episode {take.info.uid}")
    pictures = take.cameras[camera]

    def coloured() -> Iterator[Image]:
        return (recoloured(picture, scene) for picture in pictures())

    same = scene.hues_deg() == THE_CELLS.hues_deg()
    return replace(take, cameras={camera: pictures if same else coloured})


def recoloured(picture: Image, scene: StationScene) -> Image:
    """Return a picture with the object red and the target blue, RGB, shape (height, width, 3)."""
    if scene.hues_deg() == THE_CELLS.hues_deg():
        return picture
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    coloured = hsv[..., 1:2] > COLOURED
    hsv[..., 0] = _turned(scene.hues_deg())[hsv[..., 0]]
    return np.where(coloured, cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), picture).astype(np.uint8)


def of_hue(picture: Image, hue_deg: Interval) -> NDArray[np.bool_]:
    """Say where a picture, RGB, has a hue from and to [degree], shape (height, width)."""
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    past = (2.0 * hsv[..., 0] - hue_deg[0]) % 360.0
    here = (hsv[..., 1] > COLOURED) & (past <= (hue_deg[1] - hue_deg[0]) % 360.0)
    return np.asarray(here, dtype=np.bool_)


@cache
def _turned(hues_deg: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    """Return what becomes of each of OpenCV's hues, shape (180,)."""
    ours = THE_CELLS.hues_deg()
    along = hues_deg[0] + (2.0 * np.arange(180) - hues_deg[0]) % 360.0
    found = np.interp(along, [*hues_deg, hues_deg[0] + 360.0], [*ours, ours[0] + 360.0])
    return np.asarray(np.round(found / 2.0) % 180, dtype=np.uint8)
