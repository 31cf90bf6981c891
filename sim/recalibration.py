"""What a twin says of camera, table, joint zeros and light, taken out of what a policy gets.

A tracker that was calibrated for the nominal cell projects every detection along the wrong ray once
the camera has moved. Which ray it was follows from what it said, so that its poses can be put right
without its pictures; readings and goals of a joint whose zero is off differ by that zero. Exposure
and colour cast change each level of a picture into another, and most of them back again; bands of
a lamp that flickers are taken out of what comes of that.
"""

import colorsys
from collections.abc import Mapping, Sequence
from typing import Final

import cv2
import numpy as np

from gaploop.core.arm import CellArm
from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import StationScene
from gaploop.sim import tracker
from gaploop.sim.catalogue import SO101, to_degrees
from gaploop.sim.conditions import OBJECT_RGBA, TARGET_RGBA
from gaploop.sim.gaps.mechanism import Values
from gaploop.sim.identification.flicker import CUT_OFF, FLICKER, FlickerFilter
from gaploop.sim.kinematics import fold_square, from_polar, polar
from gaploop.sim.recolour import THE_CELLS, recoloured

TABLE: Final = "spatial_geometry.table_height"
ZEROS: Final = "spatial_geometry.zero_offset"
EXPOSURE: Final = "visual_domain.exposure"
CAST: Final = "visual_domain.colour_cast"
READ: Final = (tracker.POSE, tracker.VIEW, TABLE, ZEROS, tracker.BASE)
"""Mechanisms that recalibrating takes out of poses, readings and goals."""
LIGHT: Final = (EXPOSURE, CAST, FLICKER)
"""Mechanisms that it takes out of pictures."""
YAW_STEP_M: Final = 1e-3


class Recalibration:
    """Corrects a tracked scene, joint readings and goals of an arm of the cell at its task.

    `known` is `READ` to their values, as a twin has them; what isn't there is nominal.
    """

    def __init__(
        self, known: Mapping[str, Values], arm: CellArm = SO101, task: str = "pick_place"
    ) -> None:
        before = tracker.TrackerCalibration.nominal(task=task, arm=arm)
        size_px, table_m = before.image_size_px, known.get(TABLE, {}).get("table_m", 0.0)
        target_m = tracker.OBJECT_PLANE_M if task == "stack_cube" else 0.0
        # From where the nominal tracker puts a thing to where it is, on its plane.
        self._object, self._target = (
            tracker.plane_from_px(size_px, height_m + table_m, arm, known) @ np.linalg.inv(nominal)
            for height_m, nominal in (
                (tracker.OBJECT_PLANE_M, before.object_from_px),
                (target_m, before.table_from_px),
            )
        )
        zeros = known.get(ZEROS, {})
        still = np.zeros(len(arm.joint_names))
        zero_rad = still.copy()
        zero_rad[arm.arm_columns] = [zeros.get(key, 0.0) for key in arm.zero_keys]
        self.zero = to_degrees(zero_rad, arm) - to_degrees(still, arm)
        """What each joint reads too much, in LeRobot's units [°, gripper 0 to 100]."""

    def scene(self, tracked: FloatArray) -> FloatArray:
        """Return where things are, for what the nominal tracker said; both as `tracker.NAMES`."""
        azimuth, radius, yaw, target_azimuth, target_radius, *rest = (float(v) for v in tracked)
        seen = from_polar(azimuth, radius)
        edge = YAW_STEP_M * np.array([np.cos(yaw + azimuth), np.sin(yaw + azimuth)])
        place, ahead = (tracker.project(self._object, xy) for xy in (seen, seen + edge))
        place_azimuth, place_radius = polar(place)
        turned = float(np.arctan2(*(ahead - place)[::-1]))
        target = polar(tracker.project(self._target, from_polar(target_azimuth, target_radius)))
        values = [place_azimuth, place_radius, fold_square(turned - place_azimuth), *target, *rest]
        return np.asarray(values, dtype=np.float64)


class ColourCorrection:
    """Takes exposure and colour cast out of pictures, and the bands that are told with one.

    A level that was cut off lay somewhere above what it says: half way to the top is taken. Where
    that changes the hue of object or target, they get their own back. `light` is `LIGHT` to their
    values, as a twin has them; what isn't there is nominal.
    """

    def __init__(self, light: Mapping[str, Values]) -> None:
        exposure, cast = light.get(EXPOSURE, {}), light.get(CAST, {})
        angle = cast.get("cast_hue_rad", 0.0) + np.array([0.0, 2.0, 4.0]) * np.pi / 3.0
        tint, veil = np.cos(angle), cast.get("veil", 0.0)
        gains = np.exp(cast.get("cast_strength", 0.0) * tint) * (1.0 - veil)
        linear = 255.0 * (np.arange(256.0)[:, None] / 255.0) ** (1.0 / exposure.get("gamma", 1.0))
        plain = linear / exposure.get("gain", 1.0) - veil * 110.0 * (1.0 + 0.6 * tint)
        self._open = np.maximum(plain / gains, 0.0)
        least = np.minimum(self._open, 255.0)
        self._levels = np.clip(least + 0.5, 0, 255).astype(np.uint8)
        self._levels[-1] = 0.5 * (least[-1] + 255.0)
        self._scene = StationScene(
            object_hue_deg=_moved(THE_CELLS.object_hue_deg, OBJECT_RGBA, least, self._levels),
            target_hue_deg=_moved(THE_CELLS.target_hue_deg, TARGET_RGBA, least, self._levels),
        )

    def __call__(self, view: Image, bands: FlickerFilter | None = None) -> Image:
        """Return a picture, shape (H, W, 3), as it is in nominal light, without a lamp's bands."""
        if bands is None:
            return recoloured(np.asarray(cv2.LUT(view, self._levels[None])), self._scene)
        # Light that bands darken may be brighter than a level can say.
        steady = bands(cv2.LUT(view, self._open[None]), self._open[int(CUT_OFF)])
        return recoloured(np.clip(steady + 0.5, 0, 255).astype(np.uint8), self._scene)


def _moved(
    hues_deg: tuple[float, float], rgba: Sequence[float], least: FloatArray, levels: Image
) -> tuple[float, float]:
    """Return where a colour's hues are once pictures of it are cleared [degree]."""
    true = 255.0 * np.array(rgba[:3])
    seen = [min(int(np.searchsorted(least[:, c], true[c])), 255) for c in range(3)]
    if max(seen) < 255:
        return hues_deg
    back = [levels[seen[c], c] / 255.0 for c in range(3)]
    now, was = (360.0 * colorsys.rgb_to_hsv(*rgb)[0] for rgb in (back, rgba[:3]))
    turn = (now - was + 180.0) % 360.0 - 180.0
    return (hues_deg[0] + turn) % 360.0, (hues_deg[1] + turn) % 360.0
