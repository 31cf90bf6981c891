"""Tracks object and target in the overhead picture: colour, shape, calibrated homography.

This is the cell's perception: what a policy sees of the scene comes from here and never from
simulator state. It is calibrated for the nominal cell, so light, camera pose, clutter and
noise break it the way they break a real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm
from gaploop.core.station import StationScene
from gaploop.core.take import TRACKED_SCENE
from gaploop.sim import scene
from gaploop.sim.catalogue import SO101
from gaploop.sim.gaps.mechanism import Values, turned
from gaploop.sim.kinematics import fold_square, polar
from gaploop.sim.recolour import THE_CELLS, recoloured

NAMES = TRACKED_SCENE
POSE: Final = "spatial_geometry.camera_pose"
BASE: Final = "spatial_geometry.base_pose"
VIEW: Final = "spatial_geometry.field_of_view"
NOTHING: Final[Mapping[str, Values]] = {}

# HSV bands in OpenCV's units (hue 0..179). Wide enough for the nominal light's shading.
OBJECT_HUES = ((0, 9), (172, 179))
TARGET_HUES = ((100, 122),)
SATURATION_MIN = 130
VALUE_MIN = 55

OCCLUDED_FRACTION = 0.8  # of the nominal area; below, the last detection is held
NOISE_AREA_FRACTION = 0.12  # blobs smaller than this are noise, not candidates
# Seen from above, a cube's outline is its top face and, where they are bright enough, the side
# faces that lean out below it; its centre is the image of a point at 0.8 of the cube's height
# (fitted over 200 seeds of the nominal cell: 0.5 leaves a radial error of 12 mm per metre).
OBJECT_PLANE_M = 0.8 * 2.0 * scene.CUBE_HALF_SIZE_M


@dataclass(frozen=True)
class TrackerCalibration:
    """What a calibrated station knows of its camera.

    Attributes:
        table_from_px: homography from pixels to the table plane [m], shape (3, 3).
        object_from_px: the same to the plane through the object's centre.
        object_area_px: area of the object in the middle of the picture.
        target_area_px: area of the target there.
        middle_m: what is in the middle of the picture [m], shape (2,).
    """

    image_size_px: int
    table_from_px: NDArray[np.float64]
    object_from_px: NDArray[np.float64]
    object_area_px: float
    target_area_px: float
    middle_m: tuple[float, float]

    @classmethod
    def nominal(
        cls, image_size_px: int = 192, task: str = "pick_place", arm: CellArm = SO101
    ) -> TrackerCalibration:
        """Calibration of the nominal cell of an arm, from the camera's design pose."""
        camera_m = arm.camera_pos_m
        table_from_px = plane_from_px(image_size_px, 0.0, arm)
        object_from_px = plane_from_px(image_size_px, OBJECT_PLANE_M, arm)
        px_per_m = 1.0 / float(np.hypot(table_from_px[0, 0], table_from_px[0, 1]))
        top_scale = camera_m[2] / (camera_m[2] - 2 * scene.CUBE_HALF_SIZE_M)
        cube_px = (2.0 * scene.CUBE_HALF_SIZE_M * px_per_m * top_scale) ** 2
        disc_px = np.pi * (scene.DISC_RADIUS_M * px_per_m) ** 2
        stacked = task == "stack_cube"
        return cls(
            image_size_px,
            table_from_px if not stacked else object_from_px,
            object_from_px,
            cube_px,
            cube_px if stacked else float(disc_px),
            camera_m[:2],
        )


def plane_from_px(
    size_px: int, height_m: float, arm: CellArm, known: Mapping[str, Values] = NOTHING
) -> NDArray[np.float64]:
    """Return the homography from pixels of the cell's camera to a level plane [m], shape (3, 3).

    The plane is `height_m` above the nominal table, pictures are `size_px` wide and high; what
    differs of the camera, and of the arm's base that places count from, is `known`, as a twin says
    it.
    """
    pose, view = known.get(POSE, {}), known.get(VIEW, {})
    place = np.asarray(arm.camera_pos_m) + [pose.get(k, 0.0) for k in ("dx_m", "dy_m", "dz_m")]
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, _turned(scene.CAMERA_QUAT, pose))
    fovy_rad = np.radians(arm.camera_fovy_deg + view.get("dfovy_deg", 0.0))
    focal_px, centre = 0.5 * size_px / np.tan(fovy_rad / 2.0), 0.5 * size_px - 0.5
    # MuJoCo's cameras look along -z, with y up; pixel centres are at whole numbers.
    ray = matrix.reshape(3, 3) @ np.array(
        [[1.0, 0.0, -centre], [0.0, -1.0, centre], [0.0, 0.0, -focal_px]]
    )
    down = height_m - place[2]
    plane = np.vstack([
        down * ray[0] + place[0] * ray[2], down * ray[1] + place[1] * ray[2], ray[2],
    ])  # fmt: skip
    if base := known.get(BASE, {}):
        mujoco.mju_quat2Mat(matrix, _turned((1.0, 0.0, 0.0, 0.0), base))
        moved = np.array([base.get(k, 0.0) for k in ("dx_m", "dy_m", "dz_m")])
        level = np.column_stack([np.eye(3)[:, :2], np.array([0.0, 0.0, height_m]) - moved])
        plane = np.vstack([(matrix.reshape(3, 3).T @ level)[:2], (0.0, 0.0, 1.0)]) @ plane
    return np.asarray(plane / plane[2, 2])


def _turned(quat: Sequence[float], values: Values) -> NDArray[np.float64]:
    return turned(quat, [values.get(k, 0.0) for k in ("droll_rad", "dpitch_rad", "dyaw_rad")])


@dataclass(frozen=True)
class Blob:
    """A coloured region.

    Attributes:
        centroid_px: column and row of its centre, shape (2,).
        area_px: its area, with the holes that lie inside its outline filled.
        yaw_px_rad: direction of its edges in the picture, modulo 90 degrees.
    """

    centroid_px: NDArray[np.float64]
    area_px: float
    yaw_px_rad: float


@dataclass(frozen=True)
class Detection:
    """What one picture shows; also a source of evidence for diagnosis.

    Attributes:
        object: the largest blob of the object's colour, or None.
        object_area_ratio: area of the object's blob over the nominal area; 0 without one.
        target_area_ratio: the same for the target.
    """

    object: Blob | None
    target: Blob | None
    object_area_ratio: float
    target_area_ratio: float


class Tracker:
    """Turns pictures into `observation.environment_state`; implements core's SceneTracker."""

    names = NAMES

    def __init__(
        self, calibration: TrackerCalibration, domain: float = 0.0, scene: StationScene = THE_CELLS
    ) -> None:
        """Use `calibration`; `domain` is passed through as the last feature (0 sim, 1 real).

        `scene` says what colours object and target have.
        """
        self.calibration = calibration
        self._scene = scene
        self.domain = domain
        self.object_fraction = OCCLUDED_FRACTION
        """Share of its nominal area from which the object counts as seen."""
        self.reset()

    @classmethod
    def nominal(
        cls,
        image_size_px: int = 192,
        domain: float = 0.0,
        task: str = "pick_place",
        arm: CellArm = SO101,
        scene: StationScene = THE_CELLS,
    ) -> Tracker:
        """Tracker of the nominal cell of an arm."""
        return cls(TrackerCalibration.nominal(image_size_px, task, arm), domain, scene)

    def reset(self) -> None:
        """Forget the scene of the take before: assume it in the middle until seen."""
        middle = np.array(self.calibration.middle_m)
        self._object_xy, self._target_xy = middle, middle
        self._yaw_rad = 0.0
        self._ever_seen = [False, False]

    def observe(self, image: NDArray[np.uint8], t_s: float = 0.0) -> NDArray[np.float64]:
        """Track the scene in a picture, RGB, shape (size, size, 3); its time isn't used.

        Returns:
            Features as in NAMES, shape (7,): azimuth and radius about the first joint's axis,
            yaw relative to the object's azimuth folded into [-45, 45) degrees, and whether
            the object was seen in this picture.
        """
        del t_s
        found = self.detect(image)
        thing, goal, known = found.object, found.target, self.calibration
        visible = thing is not None and found.object_area_ratio >= self.object_fraction
        if thing is not None and (visible or not self._ever_seen[0]):
            self._object_xy = project(known.object_from_px, thing.centroid_px)
            along_px = [np.cos(thing.yaw_px_rad), np.sin(thing.yaw_px_rad)]
            ahead = project(known.object_from_px, thing.centroid_px + along_px) - self._object_xy
            self._yaw_rad = float(np.arctan2(ahead[1], ahead[0]))
            self._ever_seen[0] = self._ever_seen[0] or visible
        whole = goal is not None and found.target_area_ratio >= OCCLUDED_FRACTION
        if goal is not None and (whole or not self._ever_seen[1]):
            self._target_xy = project(known.table_from_px, goal.centroid_px)
            self._ever_seen[1] = self._ever_seen[1] or whole
        azimuth, radius = polar(self._object_xy)
        yaw = fold_square(self._yaw_rad - azimuth)
        target = polar(self._target_xy)
        features = [azimuth, radius, yaw, *target, float(visible), self.domain]
        return np.asarray(features, dtype=np.float32).astype(np.float64)

    def detect(self, image: NDArray[np.uint8]) -> Detection:
        """Find the coloured regions of a picture, RGB; another size than calibrated is resized."""
        size = self.calibration.image_size_px
        if image.shape[0] != size or image.shape[1] != size:
            image = np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA))
        image = recoloured(image, self._scene)
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        thing = _largest(hsv, OBJECT_HUES, self.calibration.object_area_px)
        goal = _largest(hsv, TARGET_HUES, self.calibration.target_area_px)
        if thing is not None:
            # The direction of its edges: fourth harmonic of the gradient directions.
            radius = int(np.ceil(0.8 * np.sqrt(thing.area_px))) + 2
            column, row = (round(float(v)) for v in thing.centroid_px)
            rows = slice(max(0, row - radius), min(size, row + radius + 1))
            columns = slice(max(0, column - radius), min(size, column + radius + 1))
            patch = image[rows, columns].astype(np.float32)
            redness = np.clip(patch[..., 0] - np.maximum(patch[..., 1], patch[..., 2]), 0.0, None)
            redness = np.minimum(redness, 60.0)  # lit and shaded faces count alike: only outlines
            dx = cv2.Sobel(redness, cv2.CV_32F, 1, 0, ksize=3)
            dy = cv2.Sobel(redness, cv2.CV_32F, 0, 1, ksize=3)
            gradient = dx + 1j * dy
            strength = np.abs(gradient) + 1e-9
            fourth = np.sum(strength * (gradient / strength) ** 4)
            thing = replace(thing, yaw_px_rad=float(np.angle(fourth) / 4.0))
        return Detection(
            thing,
            goal,
            thing.area_px / self.calibration.object_area_px if thing else 0.0,
            goal.area_px / self.calibration.target_area_px if goal else 0.0,
        )


def _largest(
    hsv: NDArray[np.uint8], hues: tuple[tuple[int, int], ...], nominal_px: float
) -> Blob | None:
    """The largest region of some hue, if any is no noise."""
    mask = np.zeros(hsv.shape[:2], dtype=np.uint8)
    for low, high in hues:
        mask |= cv2.inRange(hsv, (low, SATURATION_MIN, VALUE_MIN), (high, 255, 255))
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    blobs = []
    for contour in contours:
        x, y, w, h = cv2.boundingRect(contour)
        if w * h < NOISE_AREA_FRACTION * nominal_px:
            continue
        filled = np.zeros((h, w), dtype=np.uint8)
        cv2.drawContours(filled, [contour], -1, 1, cv2.FILLED, offset=(-x, -y))
        moments = cv2.moments(filled, binaryImage=True)
        area = moments["m00"]
        if area < NOISE_AREA_FRACTION * nominal_px:
            continue
        centroid = np.array([x + moments["m10"] / area, y + moments["m01"] / area])
        blobs.append(Blob(centroid, float(area), 0.0))
    return max(blobs, key=lambda blob: blob.area_px, default=None)


def project(homography: NDArray[np.float64], px: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where a homography, shape (3, 3), puts a point, shape (2,)."""
    point = homography @ np.array([px[0], px[1], 1.0])
    return np.asarray(point[:2] / point[2])
