"""Fits the simulated cell's camera, light and object to pictures of a station.

A lamp's flicker is found first, and taken out (`flicker`). Then pictures in which the arm stood
still are compared with the nominal simulation drawn with the same joints, in this order, each step
with what the ones before it found:

1. Geometry from the arm's silhouette, which neither light nor table enter: the camera's pose, or
   joints whose zeros are off, whichever explains it; both where neither does alone. An arm that was
   screwed on elsewhere looks like another camera: it was, where the table shows no other camera.
2. Light and lens, pixel by pixel: exposure, colour cast and veil, defocus.
3. From the object's area: its size.
4. What lies about that the simulation hasn't got (`things`).
5. The hand, pixel by pixel where it is seen, since much of it may be as light as the table: whether
   it is bent.
6. Whether readings wander (`wander`).

Intervals are of 90 %, from how the views scatter (a sandwich with a view as a cluster), and never
narrower than `FINEST`, what the method can tell. Where the pictures don't resemble the simulation,
as in a room that it doesn't know, nothing is excited.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation
from scipy.stats import t as student

from gaploop.core.arm import CellArm
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.core.twin import TwinParameter
from gaploop.sim import scene
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.gaps import Parameter, all_mechanisms, put_into
from gaploop.sim.gaps.mechanism import Appliers, Values
from gaploop.sim.identification.flicker import FLICKER, steadied
from gaploop.sim.identification.stills import (
    SETTLED,
    Still,
    most_different,
    recorded,
    stills_of,
)
from gaploop.sim.identification.things import CLUTTER, SIMILAR, THINGS, count_things
from gaploop.sim.identification.wander import DRIFT, Wander, wander_of
from gaploop.sim.recalibration import CAST, EXPOSURE, ZEROS, ColourCorrection
from gaploop.sim.scene import set_free_body
from gaploop.sim.tracker import BASE, POSE, Blob, Tracker, project

BLUR: Final = "visual_domain.blur"
SIZE: Final = "object_property.size"
HAND: Final = "spatial_geometry.bent_hand"

FINEST: Final[Mapping[str, float]] = {
    f"{POSE}.dx_m": 0.002, f"{POSE}.dy_m": 0.002, f"{POSE}.dz_m": 0.003,
    f"{POSE}.droll_rad": 0.006, f"{POSE}.dpitch_rad": 0.006, f"{POSE}.dyaw_rad": 0.006,
    **{f"{ZEROS}.{joint}_rad": 0.01 for joint in ("pan", "lift", "elbow", "wrist")},
    f"{ZEROS}.roll_rad": 0.03,
    f"{EXPOSURE}.gain": 0.04, f"{EXPOSURE}.gamma": 0.03,
    f"{CAST}.cast_strength": 0.03, f"{CAST}.cast_hue_rad": 0.05, f"{CAST}.veil": 0.02,
    f"{BLUR}.defocus_fraction": 0.006,
    f"{BASE}.dx_m": 0.002, f"{BASE}.dy_m": 0.002, f"{BASE}.dz_m": 0.003,
    f"{BASE}.droll_rad": 0.006, f"{BASE}.dpitch_rad": 0.006, f"{BASE}.dyaw_rad": 0.006,
    f"{HAND}.aside_rad": 0.01, f"{HAND}.forward_rad": 0.015,
    f"{SIZE}.size_factor": 0.05, f"{SIZE}.density_factor": 0.5,
    f"{SIMILAR}.count": 0.9, f"{CLUTTER}.count": 0.9,
    f"{FLICKER}.depth": 0.02, f"{FLICKER}.bands": 0.03, f"{FLICKER}.drift_hz": 0.02,
    f"{FLICKER}.lag_rad": 0.08,
}  # fmt: skip
"""Half width of the narrowest interval: errors that all views share, such as of the video's codec
and of pixels, don't show in how they scatter. Measured on nominal cells
(docs/teleoperate/probe.md)."""
LEAST_OVERLAP: Final = 0.6
"""Of the silhouettes, drawn over seen; below, the pictures don't resemble the simulation."""
MOST_OFF_LEVELS: Final = 12.0
"""Median difference of drawn and seen pixels; above, light and lens can't be told [levels]."""
KINDS: Final = 6
"""Kinds of residuals whose common errors are independent: of two tones in three colours."""
COMMON_LEVELS: Final = 1.0
"""By how much all pixels of a tone may be off: levels are rounded some times on their way."""
COARSE_VIEWS: Final = 4
COARSE_PX: Final = 5.0
FINER: Final = ((3.0, 8), (1.5, 8), (0.8, 12))
"""Blur of silhouettes [px], and steps at most: drawn edges make many small valleys, and another
renderer's make them where a blurred fit doesn't lead."""
RIVAL: Final = 3.0
"""What costs more than so many times the other, coarsely, isn't looked at more closely."""
LOST: Final = 10.0
"""A view that costs as much, coarsely, is of something else."""
VIEWS: Final = 8
"""Views that geometry is fitted on: a picture is drawn some hundred times."""
ONE_POSE_RAD, FEW_POSES = 0.05, 4
"""Views whose joints differ by less show one pose [rad]; so few poses don't average out what is off
in how they are drawn."""
DRAWN_ALIKE: Final = 0.2
"""Cost of a view of the simulation's own renderer."""
CONFIDENCE: Final = 0.90
FEW_VIEWS: Final = 8
"""Degrees of freedom by which intervals of all parameters together are wider than each."""

type Point = tuple[float, float] | FloatArray
AWAY_M: Final = (9.0, 9.0)
"""Where what isn't to be seen is put [m]."""
_KEPT: Final = ("cam_pos", "cam_quat", "body_pos", "body_quat", "geom_size")

type Residuals = Callable[[FloatArray], Sequence[FloatArray]]
"""What is off in each view, for parameters in units of what a step changes, shape (n,)."""
type Views = Sequence[tuple[Still, Image]]


class CellRenderer:
    """The compiled nominal cell, drawn as its camera sees an arm that stands still.

    Parameters are put into it for each square picture.
    """

    def __init__(self, arm: CellArm, size_px: int) -> None:
        self._arm, self._size_px = arm, size_px
        self._model = scene.build_model(scene.SceneOptions(arm=arm))
        self._data = mujoco.MjData(self._model)
        self._nominal = {name: getattr(self._model, name).copy() for name in _KEPT}
        self._qpos = [int(self._model.joint(name).qposadr[0]) for name in arm.joint_names]
        self._camera = LayeredCamera(self._model, scene.CAMERA_NAME, size_px, size_px)

    def draw(
        self,
        q_rad: FloatArray,
        parameters: Mapping[str, Values],
        target_m: Point = AWAY_M,
        object_m: Point = AWAY_M,
        object_yaw_rad: float = 0.0,
    ) -> Image:
        """Return what the lens is shown, RGB, shape (size, size, 3).

        Args:
            q_rad: where the joints read [rad], shape (n_joints,).
            parameters: "dimension.mechanism" to values, as of `SimCell`; what they do to pictures
                is for `develop`.
            target_m: where the disc lies [m].
            object_m: where the object lies [m].
            object_yaw_rad: how it is turned.
        """
        model, data = self._model, self._data
        for name, values in self._nominal.items():
            getattr(model, name)[:] = values
        on = self._put(parameters)
        on.model.put_on(model)
        half_m = on.model.options.thing.half_size_m
        model.geom("object").size[:] = half_m
        table_z_m = float(model.body("table").pos[2])
        model.body("target").pos[:] = [*target_m, table_z_m + scene.DISC_HALF_HEIGHT_M]
        mujoco.mj_resetData(model, data)
        data.qpos[self._qpos] = q_rad - on.sensors.offset(0.0, q_rad)
        scene.settle_gears(model, data)
        place_m = np.array([*object_m, table_z_m + half_m[2]])
        set_free_body(model, data, "object", place_m, object_yaw_rad)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        return self._camera.draw_whole(data)

    def develop(self, picture: Image, parameters: Mapping[str, Values]) -> Image:
        """Return a picture through lens, exposure and readout."""
        return self._put(parameters).images.picture(picture, np.random.default_rng(0), 0.0)

    def _put(self, parameters: Mapping[str, Values]) -> Appliers:
        on = scene.cell_appliers(scene.SceneOptions(arm=self._arm))
        put_into(on, (), parameters)
        return on

    def close(self) -> None:
        """Free the renderer."""
        self._camera.close()


@dataclass(frozen=True)
class _Fit:
    """Least squares over views: parameters, half widths of their intervals, and robust cost."""

    x: FloatArray
    half: FloatArray
    cost: float


def _fitted(
    residuals: Residuals,
    x: FloatArray,
    off: float,
    tries: int,
    prior: float = 0.1,
    enough: float = 1e-4,
    common: float = 0.0,
) -> _Fit:
    """Fit parameters near 0 by robust least squares, with central differences of half a unit.

    Args:
        off: a residual beyond this counts less (soft L1).
        tries: steps at most.
        prior: how much one unit away from 0 costs.
        enough: a step that betters the cost by less, relatively, is the last.
        common: an error that like residuals of all views share.
    """
    n = len(x)

    def together(x: FloatArray) -> FloatArray:
        return np.concatenate([*residuals(x), prior * x])

    def jacobian(x: FloatArray) -> FloatArray:
        steps = 0.5 * np.eye(n)
        return np.stack([together(x + step) - together(x - step) for step in steps], 1)

    end = least_squares(
        together, x, jacobian, loss="soft_l1", f_scale=off, max_nfev=tries, ftol=enough, xtol=1e-3
    )
    slopes, each = jacobian(end.x), [np.asarray(r) for r in residuals(end.x)]
    together_now = np.concatenate([*each, prior * end.x])
    weights = 1.0 / np.sqrt(1.0 + (together_now / off) ** 2)
    inverse = np.linalg.pinv(slopes.T @ (weights[:, None] * slopes))
    scores = weights[:, None] * slopes * together_now[:, None]
    ends = np.cumsum([len(r) for r in each])
    by_view = np.array([part.sum(axis=0) for part in np.split(scores[: ends[-1]], ends[:-1])])
    views = max(2, len(each))
    scatter = by_view.T @ by_view * views / (views - 1)
    # What neighbouring pixels share counts as one in nine: for few views scatter says little.
    alone = 9.0 * np.median(together_now[: ends[-1]] ** 2)
    alone += common**2 * ends[-1] / KINDS
    variance = np.diag(inverse @ scatter @ inverse) + alone * np.diag(inverse)
    spread = np.sqrt(variance.clip(0.0))  # a pseudo-inverse's may be below 0 by rounding
    half = student.ppf(0.5 + CONFIDENCE / 2.0, views - 1) * spread
    return _Fit(end.x, np.asarray(half), float(end.cost))


@dataclass(frozen=True)
class _Estimate:
    """A parameter's value and the half width of its interval."""

    value: float
    half: float


type _Found = dict[str, _Estimate]


def _parameters(found: _Found) -> dict[str, dict[str, float]]:
    """Return what was found as `SimCell(parameters=…)` takes it."""
    values: dict[str, dict[str, float]] = {}
    for name, estimate in found.items():
        mechanism, _, parameter = name.rpartition(".")
        values.setdefault(mechanism, {})[parameter] = estimate.value
    return values


def _shifted(found: _Found, names: Sequence[str], by: FloatArray) -> _Found:
    """Return what was found with some of it, or what wasn't found yet, elsewhere."""
    before = [found[name].value if name in found else 0.0 for name in names]
    return found | {
        name: _Estimate(_within(name, was + float(shift)), 0.0)
        for name, was, shift in zip(names, before, by, strict=True)
    }


def _differing(found: _Found) -> _Found:
    """Return the mechanisms of which something differs from nominal: what the twin puts in."""
    off = {
        name.rpartition(".")[0]
        for name, estimate in found.items()
        if abs(estimate.value - _spec(name).nominal) > max(estimate.half, FINEST[name])
    }
    return {name: e for name, e in found.items() if name.rpartition(".")[0] in off}


def _standing_out(found: _Found) -> set[str]:
    """Return the mechanisms that differ by more than chance explains among all that were measured.

    Of thirty intervals of 90 % three miss the nominal value of a nominal cell; so the largest
    deviation counts by an interval that all of them together leave in one of ten (Bonferroni).
    """
    wider = float(
        student.ppf(1.0 - (1.0 - CONFIDENCE) / 2.0 / max(len(found), 1), FEW_VIEWS)
        / student.ppf(0.5 + CONFIDENCE / 2.0, FEW_VIEWS)
    )
    return {
        name.rpartition(".")[0]
        for name, estimate in found.items()
        if abs(estimate.value - _spec(name).nominal) > max(wider * estimate.half, FINEST[name])
    }


def _spec(name: str) -> Parameter:
    key, _, parameter = name.rpartition(".")
    return all_mechanisms()[key].parameter(parameter)


def fit_scene(takes: Sequence[Take], arm: CellArm, jitter_rad: float = 0.0) -> list[TwinParameter]:
    """Return what pictures tell of a station's camera, light, object and wandering joints.

    Of a probe's takes, or any others in which the arm is seen; the more poses the better. Their
    first camera must be the one that looks down. `jitter_rad` is the standard deviation of readings
    from one to the next.
    """
    stills = stills_of(takes, arm)
    if not stills:
        why = "no pictures of an arm that stands still with joints in known units"
        return [row for lamp in (False, True) for row in _rows({}, why, {}, of_lamp=lamp)]
    height, width = stills[0].view.shape[:2]
    every = [still for still in stills if still.pictures.shape[1:3] == (height, width)]
    stills, waves = steadied(most_different(every), CONFIDENCE)
    flicker = {f"{FLICKER}.{name}": _Estimate(*told) for name, told in waves.items()}
    source = f"pictures: {len(stills)} views"
    why = (
        "no lamp flickers" if flicker else f"{source}: too few, or shade, to tell a lamp's flicker"
    )
    lamp = _rows(flicker, source, {FLICKER: why}, of_lamp=True)
    every = stills if waves.get("depth", (0.0, 0.0))[0] else every
    return [*_still_scene(stills, arm, source, every, jitter_rad), *lamp]


def _still_scene(
    stills: Sequence[Still], arm: CellArm, source: str, every: Sequence[Still], jitter_rad: float
) -> list[TwinParameter]:
    height, width = stills[0].view.shape[:2]
    if height != width:
        why = f"pictures of {width}x{height} aren't the simulated camera's, which are square"
        return _rows({}, why, {})
    views = [(still, still.view) for still in stills]
    with contextlib.closing(CellRenderer(arm, width)) as studio:
        geometry, overlap = _geometry(studio, views[:VIEWS], arm, {})
        if overlap < LEAST_OVERLAP:
            why = "the pictures don't resemble the simulation: of the arm's silhouette only "
            return _rows({}, f"{why}{overlap:.0%} is where it is drawn", {})
        light, off_levels = _light(studio, views, geometry, arm)
        defocus = light[f"{BLUR}.defocus_fraction"]
        if off_levels <= MOST_OFF_LEVELS and defocus.value > 2.0 * defocus.half + DEFOCUS_UNIT:
            # What is out of focus has another outline: compared with what is drawn alike.
            geometry, _ = _geometry(studio, views[:VIEWS], arm, _parameters(_differing(light)))
            light, off_levels = _light(studio, views, geometry, arm)
        dark = off_levels > MOST_OFF_LEVELS
        why_dark = f"drawn and seen pixels differ by {off_levels:.0f} levels in any light"
        things = {} if dark else _things(studio, views, geometry, light)
        several = things.get(SIMILAR, 0.0) > 0.0
        size = {} if dark or several else _size(studio, views, geometry, light, arm)
        hand = {} if dark or arm.mounted else _hand(studio, views[:VIEWS], geometry, light, arm)
        wander = _wander(studio, every, geometry, arm, jitter_rad)
    untold = dict.fromkeys(("visual_domain", SIZE, HAND, *THINGS), why_dark) if dark else {}
    untold |= {SIZE: "several things look like the object"} if several else {}
    if wander and wander.drift_rad:
        geometry, hand, things = {}, {}, {}
        untold |= dict.fromkeys((POSE, BASE, ZEROS, HAND, *THINGS), WANDERS)
    counts = {f"{name}.count": _Estimate(count, 0.0) for name, count in things.items()}
    found = geometry | ({} if dark else light) | size | hand | counts
    return [*_rows(found, source, untold), *_wander_rows(wander, arm)]


WANDERS: Final = "the joints' readings wander, so that the arm's outline tells no place or zero"


def _wander(
    studio: CellRenderer, stills: Sequence[Still], geometry: _Found, arm: CellArm, jitter_rad: float
) -> Wander | None:
    names = [f"{ZEROS}.{key}" for key in arm.zero_keys if key]
    known = _differing(geometry) if _standing_out(geometry) else {}

    def draw(still: Still, zeros_rad: FloatArray) -> Image:
        return studio.draw(still.q_rad, _parameters(_shifted(known, names, zeros_rad)))

    finest = np.array([FINEST[name] for name in names])
    return wander_of(stills, draw, _silhouette, finest, jitter_rad) if names else None


def _wander_rows(wander: Wander | None, arm: CellArm) -> list[TwinParameter]:
    if wander is None:
        return []
    columns = zip(arm.arm_columns, arm.zero_keys, strict=True)
    turning = [arm.joint_names[k] for k, key in columns if key]
    joint = "" if wander.joint is None else turning[wander.joint]
    source = f"pictures: one pose in {wander.takes} episodes"
    return [
        TwinParameter(DRIFT, "rad", 0.0, wander.drift_rad, wander.interval, True, source, joint)
    ]


# -- 1. geometry ---------------------------------------------------------------------------------


_UNIT: Final = {
    "dx_m": 0.003, "dy_m": 0.003, "dz_m": 0.005, "droll_rad": 0.006, "dpitch_rad": 0.006,
    "dyaw_rad": 0.01, "roll_rad": 0.03,
}  # fmt: skip
_ZERO_UNIT_RAD: Final = 0.01
"""What moves the picture by about a pixel."""


def _geometry(
    studio: CellRenderer, views: Views, arm: CellArm, light: Mapping[str, Values]
) -> tuple[_Found, float]:
    """Return where the camera is or the joints' zeros are, and how well silhouettes overlap."""
    pose = [f"{POSE}.{name}" for name in ("dx_m", "dy_m", "dz_m")]
    pose += [f"{POSE}.{name}" for name in ("droll_rad", "dpitch_rad", "dyaw_rad")]
    zeros = [f"{ZEROS}.{key}" for key in arm.zero_keys if key]

    def drawn(names: Sequence[str], x: FloatArray, views: Views = views) -> list[Image]:
        given = zip(names, x * _units(names), strict=True)
        values = _parameters({n: _Estimate(_within(n, value), 0.0) for n, value in given})
        plain = [studio.draw(still.q_rad, values) for still, _ in views]
        return [studio.develop(picture, light) for picture in plain] if light else plain

    def fit(names: Sequence[str], x: FloatArray, blur_px: float, tries: int, views: Views) -> _Fit:
        seen = [_silhouette(view, blur_px) for _, view in views]

        def residuals(x: FloatArray) -> list[FloatArray]:
            now = [_silhouette(picture, blur_px) for picture in drawn(names, x, views)]
            return [
                np.asarray((a - b).ravel(), dtype=np.float64)
                for a, b in zip(now, seen, strict=True)
            ]

        return _fitted(residuals, x, 0.1, tries, prior=0.02)

    few, fits = views[:COARSE_VIEWS], []
    coarse = [fit(names, np.zeros(len(names)), COARSE_PX, 12, few) for names in (pose, zeros)]
    least = min(each.cost for each in coarse)
    for names, begun in zip((pose, zeros), coarse, strict=True):
        x = begun.x
        for blur_px, tries in FINER if begun.cost < RIVAL * least < LOST * len(few) else ():
            x = fit(names, x, blur_px, tries, few).x
        fits.append((fit(names, x, 1.5, 8, views), names))
    # Where both explain it, the camera: it is moved more easily than a joint's zero.
    best, names = fits[0] if fits[0][0].cost < ALIKE * fits[1][0].cost else fits[1]
    if best.cost > SURE_COST * len(views):
        start = dict(zip(names, best.x, strict=True))
        both = fit(
            [*pose, *zeros], np.array([start.get(n, 0.0) for n in (*pose, *zeros)]), 1.5, 5, views
        )
        if both.cost < BETTER * best.cost:
            best, names = both, [*pose, *zeros]
    overlaps = []
    for (_, view), picture in zip(views, drawn(names, best.x), strict=True):
        seen, now = _silhouette(view, 0.8) > 0.5, _silhouette(picture, 0.8) > 0.5
        overlaps.append(float((seen & now).sum() / max(1, (seen | now).sum())))

    def estimates(fit: _Fit, names: Sequence[str]) -> _Found:
        units, coarser = _units(names), _coarser(best.cost, views)
        least = [coarser * FINEST[name] for name in names]
        rows = zip(names, fit.x * units, np.maximum(fit.half * units, least), strict=True)
        return {n: _Estimate(_within(n, value), half) for n, value, half in rows}

    found, overlap = estimates(best, names), float(np.median(overlaps))
    if names == pose and not arm.mounted and overlap >= LEAST_OVERLAP:
        base = [name.replace(POSE, BASE) for name in pose]
        alike = _base_for(best.x * _units(pose), arm) / _units(base)
        fits.append((fit(base, alike, 1.5, 8, views), base))
        if _table_stays(studio, views, found, light):
            found = estimates(*fits[-1])
    others = {k: v for fit, n in fits for k, v in estimates(fit, n).items()} | found
    if all(abs(e.value) <= max(e.half, FINEST[name]) for name, e in others.items()):
        found = others  # nothing differs, whichever of them is asked
    return found, overlap


def _base_for(pose: FloatArray, arm: CellArm) -> FloatArray:
    """Return how an arm was moved that the camera, unmoved, sees as if moved itself.

    Both as (dx, dy, dz [m], roll, pitch, yaw [rad]), shape (6,).
    """
    turn = Rotation.from_euler("xyz", pose[3:]).inv()
    camera_m = np.asarray(arm.camera_pos_m)
    return np.concatenate([camera_m - turn.apply(camera_m + pose[:3]), turn.as_euler("xyz")])


def _table_stays(
    studio: CellRenderer, views: Views, pose: _Found, light: Mapping[str, Values]
) -> bool:
    """Say whether the table is where an unmoved camera sees it, though the arm isn't.

    How much of the camera's motion the table beside the arm shows is fitted: all of it where the
    camera was moved, nothing where the arm was. A table that shows neither, or that is unlike the
    simulation's, doesn't tell.
    """

    clear = max(abs(e.value) / FINEST[name] for name, e in pose.items())
    if clear <= 2.0:
        return False

    def drawn(share: float, q_rad: FloatArray) -> Image:
        moved = {name: _Estimate(share * e.value, 0.0) for name, e in pose.items()}
        picture = studio.draw(q_rad, _parameters(moved))
        return studio.develop(picture, light) if light else picture

    shown = [[drawn(share, still.q_rad) for still, _ in views] for share in (0.0, 0.5, 1.0)]
    shown.append([_matched(view, like) for (_, view), like in zip(views, shown[-1], strict=True)])
    levels = np.array([[_halved(picture) for picture in each] for each in shown], dtype=float)
    # The arm is what is dark, and what isn't where it is in most views.
    dark = np.array([[_silhouette(picture, 3.0) for picture in each] for each in shown])
    moves = np.abs(levels - np.median(levels, axis=1, keepdims=True)).max(axis=-1)
    covered = (dark > ARM_SHARE) | (moves > ARM_LEVELS)
    covered[-1] |= np.ptp(levels[-1], axis=-1) > COLOURED_LEVELS
    is_bare = [cv2.blur(each.astype(np.float32), (5, 5)) == 0.0 for each in covered.any(axis=0)]
    bare = [
        (still.q_rad, seen.mean(axis=-1), table)
        for (still, _), seen, table in zip(views, levels[-1], is_bare, strict=True)
    ]

    def residuals(tenths: FloatArray) -> list[FloatArray]:
        share = 0.1 * float(tenths[0])
        off = [(_halved(drawn(share, q)).mean(axis=2) - seen)[table] for q, seen, table in bare]
        return [each - each.mean() for each in off if each.size]

    def square(tenths: FloatArray) -> float:
        return sum(float((each**2).sum()) for each in residuals(tenths))

    there = sum(float(seen[table].var()) * table.sum() for _, seen, table in bare if table.any())
    start = min((np.array([float(k)]) for k in range(-3, 14)), key=square)
    end = _fitted(residuals, start, 8.0, 12, prior=0.0, common=COMMON_LEVELS)
    share, half = 0.1 * float(end.x[0]), max(0.1 * float(end.half[0]), 1.0 / clear)
    return square(end.x) < 0.5 * there and abs(share) < half < 1.0 - share


ARM_SHARE, ARM_LEVELS, COLOURED_LEVELS = 0.05, 20.0, 100.0
"""How dark a pixel of the table is at most, how unlike most views, how far apart its colours."""


def _within(name: str, value: float) -> float:
    """Return a value within what its parameter may be; a fit to another room leaves it."""
    return min(max(value, _spec(name).low), _spec(name).high)


def _coarser(cost: float, views: Views) -> float:
    """Return how many times coarser than `FINEST` the arm's outline tells camera and zeros.

    Another renderer draws a pose's edges elsewhere, in all views of it alike, and a fit makes up
    for that: in Drake's pictures of one pose zeros came out up to 2.4° off.
    """
    first: list[FloatArray] = []
    for still, _ in views:
        q_rad = still.q_rad[:-1]
        if all(np.abs(q - q_rad).max() >= ONE_POSE_RAD for q in first):
            first.append(q_rad)
    unlike = math.sqrt(cost / (DRAWN_ALIKE * len(views)))
    return max(1.0, unlike) if len(first) < FEW_POSES else 1.0


ALIKE: Final = 1.03
SURE_COST: Final = 4.0
"""A view that costs less is explained; else camera and zeros may both be off."""
BETTER: Final = 0.8


def _units(names: Iterable[str]) -> FloatArray:
    return np.array([_UNIT.get(name.rpartition(".")[2], _ZERO_UNIT_RAD) for name in names])


TABLE_LEVEL: Final = 0.85
"""Of the middle level; what is lighter is no part of the arm's silhouette."""


def _silhouette(picture: Image, blur_px: float) -> NDArray[np.float32]:
    """Return how much of each pixel is arm, from 0 to 1, of a picture half as wide, blurred.

    The arm is what is dark in all colours, once the table in the middle of all is called white: so
    neither exposure nor cast matter, nor do red and blue things. What is nearly as light as the
    table is called the table: where little of the arm is seen, the grain of wood would be told
    from a white gripper instead.
    """
    half = _halved(picture)
    white = np.maximum(np.median(half.reshape(-1, 3), axis=0), 1.0)
    bright = np.max([half[..., k] / white[k] for k in range(3)], axis=0).astype(np.float32)
    bright = np.minimum(bright, TABLE_LEVEL)
    levels = np.clip(bright * 255.0, 0, 255).astype(np.uint8)
    threshold, _ = cv2.threshold(levels, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    if not np.ptp(levels):  # a fit has led out of the picture
        return np.zeros_like(bright)
    is_dark = levels <= threshold
    dark, light = float(np.median(bright[is_dark])), float(np.median(bright[~is_dark]))
    share = np.clip((light - bright) / max(light - dark, 1e-3), 0.0, 1.0)
    return np.asarray(cv2.GaussianBlur(share, (0, 0), 0.5 * blur_px))


# -- 2. light ------------------------------------------------------------------------------------

_SIMPLER: Final = ((5,), (0, 1, 5), (2, 3, 4, 5))
"""Focus alone, with exposure, with the cast: numbers of what `_light_values` takes."""
AS_GOOD: Final = 1.1
_LIGHT_UNITS: Final = np.array([0.05, 0.05, 0.04, 0.04, 0.02, 1.0])


def _light(
    studio: CellRenderer, views: Views, geometry: _Found, arm: CellArm
) -> tuple[_Found, float]:
    """Return exposure, cast and defocus, and how far pixels are off with them [levels]."""
    where, bases = _parameters(_differing(geometry)), []
    for still, view in views:
        plain = studio.draw(still.q_rad, where)
        place = _places(studio, still, _matched(view, plain), where, arm)
        bases.append(studio.draw(still.q_rad, where, *place))
    # Half as wide: as much is told by a quarter of the pixels, and a blur is a share of the width.
    bases = [_halved(base) for base in bases]
    seen = [_halved(view).astype(np.float64) for _, view in views]
    pairs = zip(seen, bases, strict=True)
    ratio = float(
        np.median([float(np.median(a)) / max(1.0, float(np.median(b))) for a, b in pairs])
    )

    def fit_of(active: Sequence[int]) -> tuple[_Fit, FloatArray, FloatArray, float]:
        """Return a fit of some of the numbers, all of them, their half widths, and what is off."""

        def whole(x: FloatArray) -> FloatArray:
            every = np.zeros(6)
            every[list(active)] = x
            return every

        def residuals(x: FloatArray) -> list[FloatArray]:
            values = _light_values(whole(x) * _LIGHT_UNITS)
            now = [studio.develop(base, values) for base in bases]
            return [(a - b).ravel() for a, b in zip(now, seen, strict=True)]

        start = np.zeros(6)
        start[0] = math.log(max(ratio, 0.05)) / _LIGHT_UNITS[0]
        start[5] = 2.0  # of less than half a pixel nothing is seen
        fit = _fitted(residuals, start[list(active)], 8.0, 25, enough=1e-6, common=COMMON_LEVELS)
        off = float(np.median(np.abs(np.concatenate(residuals(fit.x)))))
        return fit, whole(fit.x) * _LIGHT_UNITS, whole(fit.half) * _LIGHT_UNITS, off

    # Exposure and cast do nearly the same to a picture: one of them, where it explains as much.
    fit, x_all, half_all, off = fit_of(range(6))
    x, half = x_all, half_all
    for active in _SIMPLER:
        simpler, x_now, half_now, off_now = fit_of(active)
        if simpler.cost < AS_GOOD * fit.cost:
            left_out = np.setdiff1d(range(5), active)
            half_now[left_out] = np.abs(x_all[left_out]) + half_all[left_out]
            x, half, off = x_now, half_now, off_now
            break
    values = _light_values(x)
    strength = values[CAST]["cast_strength"]
    aside = float(np.hypot(*half[2:4]))
    found = {
        f"{EXPOSURE}.gain": _Estimate(values[EXPOSURE]["gain"], float(math.exp(x[0]) * half[0])),
        f"{EXPOSURE}.gamma": _Estimate(values[EXPOSURE]["gamma"], float(math.exp(x[1]) * half[1])),
        f"{CAST}.cast_strength": _Estimate(strength, aside),
        f"{CAST}.veil": _Estimate(values[CAST]["veil"], float(half[4])),
        f"{BLUR}.defocus_fraction": _Estimate(
            values[BLUR]["defocus_fraction"], _defocus(x[5] + half[5]) - _defocus(x[5])
        ),
    }
    if strength > max(aside, FINEST[f"{CAST}.cast_strength"]):
        hue = _Estimate(values[CAST]["cast_hue_rad"], min(math.pi, aside / strength))
        found[f"{CAST}.cast_hue_rad"] = hue
    return found, off


def _light_values(x: FloatArray) -> dict[str, dict[str, float]]:
    gain, gamma, east, north, veil, defocus = (float(v) for v in x)
    return {
        EXPOSURE: {
            "gain": float(np.clip(math.exp(gain), 0.02, 50.0)),
            "gamma": float(np.clip(math.exp(gamma), 0.2, 5.0)),
        },
        CAST: {
            "cast_hue_rad": math.atan2(north, east),
            "cast_strength": min(math.hypot(east, north), 2.0),
            "veil": min(max(veil, 0.0), 1.0),
        },
        BLUR: {"defocus_fraction": _defocus(defocus)},
    }


def _defocus(x: float) -> float:
    """Return the blur [of the width] for a number whose steps all change pictures alike."""
    x = max(x, 0.0)
    return min(DEFOCUS_UNIT * (math.sqrt(x) if x < 1.0 else 0.5 * (x + 1.0)), 0.3)


DEFOCUS_UNIT: Final = 0.006


def _halved(picture: Image) -> Image:
    return np.asarray(cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))


def _matched(view: Image, like: Image) -> Image:
    """Return a picture with each colour's levels spread as in another, as if in the same light."""
    shares = np.linspace(0.0, 1.0, 65)
    out = np.empty_like(view)
    for channel in range(3):
        have = np.quantile(view[..., channel], shares)
        want = np.quantile(like[..., channel], shares)
        grow = np.arange(len(have)) * 1e-6  # np.interp wants them to increase
        out[..., channel] = np.interp(view[..., channel], have + grow, want)
    return out


# -- 3. the hand ---------------------------------------------------------------------------------

_BEND_UNIT_RAD: Final = 0.02
_BENT: Final = (-6.0, -3.0, 0.0, 3.0, 6.0)
"""From where bends are looked for, in these units."""
HAND_LEVELS: Final = 15.0
"""A pixel that any bend changes by more is one of the hand's."""


def _hand(
    studio: CellRenderer, views: Views, geometry: _Found, light: _Found, arm: CellArm
) -> _Found:
    """Return how the hand is bent, beyond what the rest of the arm's outline says clearly.

    Zeros of its joints move it, too: both are fitted together, and nothing is told of the hand
    where they alone explain it nearly as well.
    """
    known = _differing(geometry) if _standing_out(geometry) else {}
    where, lit = _parameters(known), _parameters(_differing(light))
    bends = [f"{HAND}.aside_rad", f"{HAND}.forward_rad"]
    zeros = [f"{ZEROS}.{key}" for key in arm.zero_keys if key]
    places = [
        _places(studio, still, _matched(view, studio.draw(still.q_rad, where)), where, arm)
        for still, view in views
    ]

    def drawn(x: Sequence[float] | FloatArray, names: Sequence[str] = bends) -> list[FloatArray]:
        values = _parameters(_shifted(known, names, _BEND_UNIT_RAD * np.asarray(x)))
        bare = zip(views, places, strict=True)
        pictures = [studio.draw(still.q_rad, values, *place) for (still, _), place in bare]
        return [_halved(studio.develop(picture, lit)).astype(np.float64) for picture in pictures]

    straight, seen = drawn((0.0, 0.0)), [_halved(view).astype(np.float64) for _, view in views]
    far = [drawn(end) for end in ((_BENT[0], 0), (_BENT[-1], 0), (0, _BENT[0]), (0, _BENT[-1]))]
    is_hand = [
        np.max([np.abs(bent[k] - straight[k]).max(axis=-1) for bent in far], axis=0) > HAND_LEVELS
        for k in range(len(views))
    ]

    def residuals(x: FloatArray, names: Sequence[str], blur_px: float = 0.0) -> list[FloatArray]:
        off = [now - was for now, was in zip(drawn(x, names), seen, strict=True)]
        off = [cv2.GaussianBlur(o, (0, 0), blur_px) for o in off] if blur_px else off
        return [o[mask].ravel() for o, mask in zip(off, is_hand, strict=True) if mask.any()]

    def fit(names: Sequence[str], start: FloatArray) -> _Fit:
        coarse = _fitted(lambda x: residuals(x, names, 2.0), start, 8.0, 12)
        return _fitted(lambda x: residuals(x, names), coarse.x, 8.0, 12, common=COMMON_LEVELS)

    if not any(mask.any() for mask in is_hand):
        return {}
    starts = [np.array(start) for start in itertools.product(_BENT, _BENT)]
    start = min(starts, key=lambda x: sum(float(np.abs(r).sum()) for r in residuals(x, bends)))
    end = fit(bends, start)
    if (np.abs(end.x) * _BEND_UNIT_RAD > FINEST[bends[0]]).any():
        alone = fit(zeros, np.zeros(len(zeros)))
        end = fit([*bends, *zeros], np.append(end.x, np.zeros(len(zeros))))
        if end.cost > BETTER * alone.cost:
            return {}
    rows = zip(bends, end.x * _BEND_UNIT_RAD, end.half * _BEND_UNIT_RAD, strict=False)
    return {name: _Estimate(_within(name, value), half) for name, value, half in rows}


# -- what else lies about --------------------------------------------------------------------------


def _things(
    studio: CellRenderer, views: Views, geometry: _Found, light: _Found
) -> dict[str, float]:
    """Return how many things lie about that the simulation hasn't got."""
    where, lit = (_parameters(_differing(found)) for found in (geometry, light))
    return count_things(
        views,
        lambda still: studio.develop(studio.draw(still.q_rad, where), lit),
        lambda picture: _silhouette(picture, 1.5),
        ColourCorrection(lit),
    )


# -- 4. the object's size --------------------------------------------------------------------------

_AREA_OFF: Final = 0.05
"""By how much, relatively, the area of an object scatters from pixels alone."""
_TURNS: Final = 3
"""A larger object is nearer to the camera, too: drawn anew with what was found, it is right."""


def _size(
    studio: CellRenderer, views: Views, geometry: _Found, light: _Found, arm: CellArm
) -> _Found:
    """Return the object's size, from what it covers where it is seen whole."""
    tracker = Tracker.nominal(len(views[0][1]), arm=arm)
    where, lit = _parameters(geometry), _parameters(light)
    seen, cleared = [], ColourCorrection(lit)
    for still, view in views:
        clear = cleared(view)
        thing = tracker.detect(clear).object
        if still.part != HELD and thing is not None:
            arm_px = _silhouette(studio.draw(still.q_rad, where), 1.5)
            if _is_free(thing, arm_px):
                place = _places(studio, still, clear, where, arm)
                seen.append((still, thing.area_px, place))
    if len({still.uid for still, _, _ in seen}) < 2:
        return {}
    size, by_take = 1.0, dict[str, list[float]]()
    for _ in range(_TURNS):
        values = where | {SIZE: {"size_factor": size}}
        drawn = [studio.draw(still.q_rad, values, *place) for still, _, place in seen]
        pictures = recorded([studio.develop(picture, lit) for picture in drawn], SETTLED)
        by_take = {}
        for (still, area_px, _), picture in zip(seen, pictures, strict=True):
            if (now := tracker.detect(cleared(picture)).object) is not None:
                off = 0.5 * math.log(area_px / now.area_px)
                by_take.setdefault(still.uid, []).append(off)
        if len(by_take) < 2:
            return {}
        # An object that lies as before errs as before: takes count, not views.
        takes = [float(np.median(offs)) for offs in by_take.values()]
        size = float(np.clip(size * math.exp(np.median(takes)), 0.2, 4.0))
    n, spread = len(takes), max(0.5 * _AREA_OFF, float(np.std(takes)))
    half = size * float(student.ppf(0.5 + CONFIDENCE / 2.0, n - 1)) * spread / math.sqrt(n)
    return {f"{SIZE}.size_factor": _Estimate(size, half)}


def _is_free(blob: Blob, arm_px: NDArray[np.float32]) -> bool:
    """Say whether a blob is seen whole: the arm, of half the picture's size, keeps clear of it."""
    rows, columns = np.indices(arm_px.shape)
    radius_px = 0.5 * (CLEAR * math.sqrt(blob.area_px / math.pi) + 4.0)
    column, row = 0.5 * blob.centroid_px
    near = np.hypot(rows - row, columns - column) < radius_px
    inside = radius_px < min(row, column, *(np.array(arm_px.shape) - (row, column)))
    return bool(inside and arm_px[near].max(initial=0.0) < 0.3)


CLEAR: Final = 1.5
"""The arm is this many radii away from a blob that is seen whole."""
HELD: Final = "grip object"
"""The part of a probe in which the object is in the jaws."""


def _places(
    studio: CellRenderer, still: Still, clear: Image, where: Mapping[str, Values], arm: CellArm
) -> tuple[FloatArray, FloatArray, float]:
    """Return where disc and object lie [m], and how the object is turned [rad].

    So that they are drawn where they are seen, in a view in nominal light (`clear`); out of sight
    where they aren't.
    """
    tracker = Tracker.nominal(len(clear), arm=arm)
    known, found = tracker.calibration, tracker.detect(clear)
    goals = [found.target, found.object]
    to_m = [known.table_from_px, known.object_from_px]
    pairs = zip(to_m, goals, strict=True)
    at = [np.array(AWAY_M) if b is None else project(h, b.centroid_px) for h, b in pairs]
    yaw_rad = -math.pi / 2.0 - (found.object.yaw_px_rad if found.object else 0.0)
    for _ in range(2):
        now = tracker.detect(studio.draw(still.q_rad, where, at[0], at[1], yaw_rad))
        for k, (seen, drawn) in enumerate(zip(goals, (now.target, now.object), strict=True)):
            if seen is not None and drawn is not None:
                a, b = (project(to_m[k], blob.centroid_px) for blob in (seen, drawn))
                at[k] = at[k] + a - b
    return at[0], at[1], yaw_rad


def _rows(
    found: _Found, source: str, why: Mapping[str, str], *, of_lamp: bool = False
) -> list[TwinParameter]:
    """Return every parameter of the scene: told from `source`, or not, and `why` not.

    `why` is by mechanism or dimension; without one `source` says it.
    """
    rows, differing = [], _standing_out(found)
    for name in FINEST:
        key, spec = name.rpartition(".")[0], _spec(name)
        if (key == FLICKER) != of_lamp:
            continue
        unit, nominal = spec.unit, spec.nominal
        if name in found:
            value = float(np.clip(found[name].value, spec.low, spec.high))
            half = max(found[name].half, FINEST[name])
            ends = (value - half, value + half)
            if key not in differing:
                ends = (min(ends[0], nominal), max(ends[1], nominal))
            rows.append(TwinParameter(name, unit, nominal, value, ends, True, source))
        else:
            ends = (-math.inf, math.inf)
            untold = _UNTOLD if found else {}
            said = why.get(key) or why.get(key.partition(".")[0]) or untold.get(key, source)
            rows.append(TwinParameter(name, unit, nominal, nominal, ends, False, said))
    return rows


_UNTOLD: Final = {
    BASE: "the camera's pose or the joints' zeros explain the arm's silhouette; that its base was "
    "moved instead, the table beside it doesn't show",
    HAND: "the zeros of the arm's joints explain how its hand lies",
    ZEROS: "the camera's pose or the base's explains the arm's silhouette",
    POSE: "the joints' zeros or the base's pose explain the arm's silhouette",
}
