"""Counts what lies about at a station that the simulated cell hasn't got.

A picture of an arm that stands still is compared with the bare table, drawn as the station's camera
sees it. Of what is new and keeps clear of the arm, what has the object's colour is the object and
its likes; what has neither its colour nor the target's is clutter. The arm and its shadow hide
things and add none, so the fullest pictures count; most episodes have to show something.
"""

import colorsys
from collections.abc import Callable, Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import Image
from gaploop.sim.conditions import OBJECT_RGBA, TARGET_RGBA
from gaploop.sim.identification.stills import Still

SIMILAR: Final = "environmental_complexity.similar"
CLUTTER: Final = "environmental_complexity.clutter"
THINGS: Final[tuple[str, ...]] = (SIMILAR, CLUTTER)
NEW_LEVELS: Final = 40.0
"""A pixel that differs by more from the bare table shows something else."""
LEAST_SHARE: Final = 0.0007
"""Of a picture, that the smallest thing covers."""
MOST_SHARE: Final = 0.08
"""Of a picture, that the largest one covers: where more differs it isn't things."""
CLEAR_SHARE: Final = 0.045
"""Of its width, by which a thing keeps clear of the arm."""
ALIKE_DEG: Final = 25.0
COLOURED: Final = 80
"""Least saturation of what has a colour, 0 to 255."""
FULLEST: Final = 0.8
"""Quantile over pictures."""
MOST: Final = 0.6
"""Share of episodes that show something."""

type Counts = tuple[int, int]
"""Of things with the object's colour, and of those with neither's."""


def count_things(
    views: Sequence[tuple[Still, Image]],
    bare: Callable[[Still], Image],
    silhouette: Callable[[Image], NDArray[np.float32]],
    clear: Callable[[Image], Image],
) -> dict[str, float]:
    """Return how many of the object's likes, and how much clutter, lie about, by mechanism.

    Empty where the object itself isn't seen, or the pictures differ in other ways.

    Args:
        bare: returns the table and the arm without things, in the station's light.
        silhouette: returns where the arm is, 0 to 1, in a picture half as wide.
        clear: takes the station's light out of a picture.
    """
    if not views:
        return {}
    by_take = dict[str, list[Counts]]()
    for still, view in views:
        drawn = bare(still)
        counts = _counted(clear(view), clear(drawn), silhouette(drawn))
        if counts is not None:
            by_take.setdefault(still.uid, []).append(counts)
    if len(by_take) < MOST * len({still.uid for still, _ in views}):
        return {}
    fullest = np.array([np.max(counts, axis=0) for counts in by_take.values()])
    if np.mean(fullest[:, 0] > 0) < MOST:
        return {}
    found = {SIMILAR: fullest[:, 0] - 1, CLUTTER: fullest[:, 1]}
    return {
        name: float(round(np.quantile(counts, FULLEST))) if np.mean(counts > 0) >= MOST else 0.0
        for name, counts in found.items()
    }


def _counted(view: Image, drawn: Image, arm: NDArray[np.float32]) -> Counts | None:
    width = view.shape[1]
    now, bare = (
        cv2.GaussianBlur(picture.astype(np.float32), (0, 0), width / 192.0)
        for picture in (view, drawn)
    )
    by_arm = (cv2.resize(arm, view.shape[1::-1]) > 0.2).astype(np.uint8)
    reach = 2 * round(0.5 * CLEAR_SHARE * width) + 1
    is_clear = cv2.dilate(by_arm, np.ones((reach, reach), np.uint8)) == 0
    new = ((np.abs(now - bare).max(axis=2) > NEW_LEVELS) & is_clear).astype(np.uint8)
    count, of, stats, _ = cv2.connectedComponentsWithStats(new)
    if stats[1:, cv2.CC_STAT_AREA].max(initial=0) > MOST_SHARE * new.size:
        return None
    hsv = cv2.cvtColor(view, cv2.COLOR_RGB2HSV)
    alike = other = 0
    for k in range(1, count):
        if stats[k, cv2.CC_STAT_AREA] < LEAST_SHARE * new.size:
            continue
        pixels = hsv[of == k]
        hue_rad = np.angle(np.exp(1j * np.radians(2.0 * pixels[:, 0])).mean())
        coloured = bool(np.median(pixels[:, 1]) > COLOURED)
        if coloured and _near(float(np.degrees(hue_rad)), OBJECT_RGBA):
            alike += 1
        elif not (coloured and _near(float(np.degrees(hue_rad)), TARGET_RGBA)):
            other += 1
    return alike, other


def _near(hue_deg: float, rgba: Sequence[float]) -> bool:
    of_deg = 360.0 * colorsys.rgb_to_hsv(*rgba[:3])[0]
    return abs((hue_deg - of_deg + 180.0) % 360.0 - 180.0) < ALIKE_DEG
