"""The cameras of a simulation: what they take, when, and how it is drawn."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import CameraFrame
from gaploop.sim.conditions import FIDELITIES
from gaploop.sim.gaps.mechanism import ImagePath, SpecEdit
from gaploop.sim.traced import trace
from gaploop.sim.views import Lens, View, moves

ALL: Final = mujoco.mjtCatBit.mjCAT_ALL.value
STILL: Final = mujoco.mjtCatBit.mjCAT_STATIC.value
"""What is fixed to the world; a hand that follows a path isn't."""
MOVING: Final = mujoco.mjtCatBit.mjCAT_DYNAMIC.value
MULTISAMPLES: Final = {"shadows": 4}
"""Of each pixel, by fidelity: two cost two thirds of the frames on a CPU."""
FIDELITY: Final = "gaploop_fidelity"
"""Number of a model that says how it is drawn, a place in `FIDELITIES`."""
SHADOW_PX: Final = 2048
MOST_GEOMS: Final = 1000
MOST_SPARE: Final = 2  # graphics contexts kept by a thread

type Layer = tuple[NDArray[np.uint8], NDArray[np.float32]]
"""Colour, shape (height, width, 3), and depth, shape (height, width), larger where nearer."""


class _Spare(threading.local):
    """Graphics contexts that a thread keeps for its next cameras.

    What a context compiles before its first picture takes far longer than the picture (0.12 s), and
    a cell is built anew for every setting. Only one thread can draw with a context at a time.
    """

    def __init__(self) -> None:
        self._contexts: list[mujoco.GLContext] = []

    def take(self, width: int, height: int) -> mujoco.GLContext:
        if self._contexts:
            return self._contexts.pop()
        context = mujoco.GLContext(width, height)
        _contexts.add(context)
        _free_at_exit()
        return context

    def give_back(self, context: mujoco.GLContext) -> None:
        if len(self._contexts) < MOST_SPARE:
            self._contexts.append(context)
        else:
            context.free()


_contexts: weakref.WeakSet[mujoco.GLContext] = weakref.WeakSet()
"""All that weren't freed, of whatever thread."""
_spare = _Spare()


@cache
def _free_at_exit() -> None:
    """Have all freed before EGL ends, which asks for that with its first context."""

    def end() -> None:
        for camera in list(LayeredCamera.drawing):
            camera.close()
        for context in list(_contexts):
            context.free()

    atexit.register(end)


class LayeredCamera:
    """A camera of a model, drawn off the screen; what stands still only once a take.

    Where a CPU draws, the table with its texture and the sky cost nearly as much as the arm, and
    they don't move. So they are kept with their depth, and a picture is what moves laid over them:
    to the bit what drawing everything gives. A camera that moves itself draws everything.
    """

    drawing: ClassVar[weakref.WeakSet[LayeredCamera]] = weakref.WeakSet()
    """Those that aren't closed."""

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str | mujoco.MjvCamera,
        width: int,
        height: int,
        lens: Lens | None = None,
    ) -> None:
        """Draw `camera` of `model`, or another, `width` times `height` pixels, through `lens`."""
        self._shown_px, self._lens = (width, height), lens
        if lens is not None:
            width, height = lens.source_px
        self._model, self.size_px = model, (width, height)
        set_offscreen(model, width, height)
        self._gl = _spare.take(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, MOST_GEOMS)
        self._options = mujoco.MjvOption()
        if isinstance(camera, str):
            self._camera = mujoco.MjvCamera()
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self._camera.fixedcamid = model.camera(camera).id
            self._moves = moves(model, self._camera.fixedcamid)
        else:
            self._camera, self._moves = camera, False
        self.drawing.add(self)
        self.forget()

    def forget(self, photo: Path | None = None, *, textures: bool = False) -> None:
        """Draw everything anew, before a photo if one is given: the model may have changed.

        Textures are those of the first picture unless they are looked at again, too.
        """
        if textures:
            self._gl.make_current()
            for texture in painted(self._model):
                mujoco.mjr_uploadTexture(self._model, self._context, texture)
        self._still: Layer | None = None
        if photo is not None and self._moves:
            raise UnusableInputError(
                "A photo can't stand behind a camera that moves, such as wrist. Leave out the "
                "camera or the backdrop."
            )
        self._traced = fidelity_of(self._model) == "traced"
        if photo is not None and self._traced:
            raise UnusableInputError(
                "A photo can't stand behind a traced picture. Leave out the backdrop, or take "
                "fidelity shadows."
            )
        self._photo = photo
        self._backdrop: Backdrop | None = None
        model = self._model  # what is seen through something is drawn with it
        self._whole = (
            self._moves
            or self._traced
            or bool((model.geom_rgba[:, 3] < 1).any() or (model.mat_rgba[:, 3] < 1).any())
        )
        if model.vis.quality.shadowsize:  # what moves throws shadows on what stands still
            self._whole |= bool((model.light_castshadow & model.light_active).any())

    def draw(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Return the picture of `data`, whose kinematics are known, shape (height, width, 3)."""
        if self._whole and self._photo is None:
            return self.draw_whole(data)
        self._gl.make_current()
        if self._still is None:
            self._still = self._drawn(data, STILL)
            if self._photo is not None:
                self._backdrop = self._behind(self._still, self._photo)
        (colour, depth), (behind, behind_depth) = self._drawn(data, MOVING), self._still
        nearer = (depth > behind_depth).view(np.uint8)
        if self._backdrop is not None:
            return self._shown(self._backdrop.over(colour, depth, nearer))
        return self._shown(cv2.copyTo(colour, nearer, behind.copy()))

    def draw_whole(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Return the same without a photo, at half the cost where what stands still has changed."""
        self._gl.make_current()
        drawn = self._drawn(data, ALL)[0]
        if self._traced:
            drawn = trace(self._model, self._scene, drawn[::-1])[::-1]
        return self._shown(drawn)

    def _shown(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a picture from the top row down, bent; a graphics library counts from below."""
        upright = np.ascontiguousarray(picture[::-1])
        return upright if self._lens is None else self._lens.bent(upright)

    def close(self) -> None:
        """Free what the graphics library holds; safe to call twice."""
        if self in self.drawing:
            self.drawing.remove(self)
            self._gl.make_current()
            self._context.free()
            _spare.give_back(self._gl)

    def _behind(self, still: Layer, photo: Path) -> Backdrop:
        """Return a photo behind what stands still and was just drawn."""
        flags, kept, (colour, depth) = self._scene.flags, kept_geoms(self._model), still
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = True
        mujoco.mjr_render(self._rect, self._scene, self._context)
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = False
        seen = np.empty_like(colour)
        mujoco.mjr_readPixels(seen, None, self._rect, self._context)
        stays = np.zeros(self._scene.ngeom + 1, dtype=bool)  # 0 is where nothing is
        for geom in self._scene.geoms[: self._scene.ngeom]:
            is_geom = geom.objtype == mujoco.mjtObj.mjOBJ_GEOM
            stays[geom.segid + 1] = kept[geom.objid] if is_geom else True
        ids = seen.astype(np.int64) @ (1, 256, 65536)
        ends = self._model.vis.map.znear, self._model.vis.map.zfar
        near_m, far_m = (end * self._model.stat.extent for end in ends)
        there = read_photo(photo, *self._shown_px)  # as the lens has it
        there = there if self._lens is None else self._lens.flat(there)
        lying = there[::-1]  # the layers' rows go up
        return Backdrop(lying, colour, depth, stays[ids], (near_m, far_m))

    def _drawn(self, data: mujoco.MjData, what: int) -> Layer:
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = what != MOVING
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._camera, what, self._scene
        )
        mujoco.mjr_render(self._rect, self._scene, self._context)
        width, height = self.size_px
        colour = np.empty((height, width, 3), dtype=np.uint8)
        depth = np.empty((height, width), dtype=np.float32)
        mujoco.mjr_readPixels(colour, None if what == ALL else depth, self._rect, self._context)
        return colour, depth


def painted(model: mujoco.MjModel) -> list[int]:
    """Return the textures that randomisation changes."""
    names = [model.texture(t).name for t in range(model.ntex)]
    return [t for t, n in enumerate(names) if n == "table" or n.startswith("gaploop_")]


def fidelity_of(model: mujoco.MjModel) -> str:
    """Return how pictures of a model are drawn."""
    known = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, FIDELITY)
    return FIDELITIES[0 if known < 0 else int(model.numeric(known).data[0])]


def at_fidelity(level: str) -> SpecEdit:
    """Return what has pictures of a model drawn at a level."""

    def edit(spec: mujoco.MjSpec) -> None:
        spec.visual.quality.shadowsize = SHADOW_PX
        for light in spec.lights:
            light.castshadow = True
        spec.add_numeric(name=FIDELITY, size=1, data=[FIDELITIES.index(level)])

    return edit


def set_offscreen(model: mujoco.MjModel, width: int, height: int) -> None:
    """Make the buffer that is drawn into as large as the picture: it is resolved as a whole."""
    model.vis.quality.offsamples = MULTISAMPLES.get(fidelity_of(model), 0)
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height


@dataclass(frozen=True)
class _Snapshot:
    """The scene at a capture time; enough to draw it later."""

    index: int
    t_s: float
    qpos: NDArray[np.float64]
    mocap_pos: NDArray[np.float64]
    mocap_quat: NDArray[np.float64]


class CellCameras:
    """Takes a snapshot of the scene at each capture time and draws it only when asked."""

    def __init__(
        self,
        model: mujoco.MjModel,
        images: ImagePath,
        views: Iterable[View],
        for_people: str,
        *,
        rate_hz: float,
        delay_s: float = 0.0,
    ) -> None:
        """Take note of a cell's settings.

        Args:
            views: those that policies see by.
            for_people: the name in the model of the one that they don't.
            delay_s: from a capture until its picture is there [s]. As with a real camera, what is
                told as its time is when it came.
        """
        self._model, self._for_people = model, for_people
        self._views = {view.name: (number, view) for number, view in enumerate(views)}
        self._data = mujoco.MjData(model)  # to draw in, so that drawing touches no physics
        self._images = images
        self._steps_per_capture = 1.0 / (rate_hz * float(model.opt.timestep))
        self._drawers = dict[str, LayeredCamera]()
        self._delay_s = delay_s

    def reset(
        self,
        noise_seed: Sequence[int],
        data: mujoco.MjData,
        photo: Path | None = None,
        looks: Callable[[mujoco.MjModel, int], Path | None] | None = None,
    ) -> None:
        """Start a take with a capture of `data`.

        Args:
            noise_seed: of the pictures' noise.
            photo: what is behind the scene instead of bench and room.
            looks: gives the model the looks of a picture by its number; returns its photo.
        """
        self._photo, self._looks = photo, looks
        self._noise_seed = list(noise_seed)
        self._images.reset(self._noise_seed)
        self._frames = dict[str, tuple[int, CameraFrame]]()
        self._looked: int | None = None
        for drawer in self._drawers.values():
            drawer.forget(photo)
        self._snapshot, self._captures = _snapshot(0, -self._delay_s, data), 0
        self._coming = deque[_Snapshot]()

    def next_capture_step(self) -> int:
        """Physics step, counted from reset, after which the next capture is due."""
        return round((self._captures + 1) * self._steps_per_capture)

    def capture(self, now_s: float, data: mujoco.MjData) -> None:
        """Take a snapshot of `data` at `now_s` [s]."""
        self._captures += 1
        self._coming.append(_snapshot(self._captures, now_s, data))
        self._deliver(now_s)

    def _deliver(self, now_s: float) -> None:
        while self._coming and self._coming[0].t_s <= now_s - self._delay_s + 1e-9:
            self._snapshot = self._coming.popleft()

    def frame(self, now_s: float, camera: str) -> CameraFrame:
        """The newest picture of `camera` that is there at `now_s` [s]; drawn when asked for."""
        self._deliver(now_s)
        snapshot = self._snapshot
        if self._looks is not None and self._looked != snapshot.index:
            self._looked = snapshot.index
            self._photo = self._looks(self._model, snapshot.index)
            for drawer in self._drawers.values():
                drawer.forget(self._photo, textures=True)
        if camera not in self._frames or self._frames[camera][0] != snapshot.index:
            number, view = self._views[camera]
            picture = self._drawn(view.in_model, view.size_px, snapshot, view.lens)
            if self._images.active:
                more = [number] if number else []  # each has noise of its own
                rng = np.random.default_rng([*self._noise_seed, snapshot.index, *more])
                picture = self._images.picture(picture, rng, snapshot.t_s)
            came_s = snapshot.t_s + self._delay_s
            self._frames[camera] = (snapshot.index, CameraFrame(picture, came_s))
        return self._frames[camera][1]

    def picture(self, data: mujoco.MjData, width: int, height: int) -> NDArray[np.uint8]:
        """A picture for people, from the side, without faults, shape (height, width, 3)."""
        now = _snapshot(-1, 0.0, data)
        return self._drawn(self._for_people, (width, height), now)

    def close(self) -> None:
        """Free the renderers; safe to call twice."""
        while self._drawers:
            self._drawers.popitem()[1].close()

    def _drawn(
        self,
        camera: str,
        size_px: tuple[int, int],
        snapshot: _Snapshot,
        lens: Lens | None = None,
    ) -> NDArray[np.uint8]:
        drawn_px = size_px if lens is None else lens.source_px
        if camera in self._drawers and self._drawers[camera].size_px != drawn_px:
            self._drawers.pop(camera).close()
        if camera not in self._drawers:
            self._drawers[camera] = drawer = LayeredCamera(self._model, camera, *size_px, lens)
            drawer.forget(self._photo)
            # At exit EGL may be gone by then: see `_free_at_exit`.
            weakref.finalize(self, drawer.close).atexit = False
        data = self._data
        data.qpos[:] = snapshot.qpos
        data.mocap_pos[:] = snapshot.mocap_pos
        data.mocap_quat[:] = snapshot.mocap_quat
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_camlight(self._model, data)
        return self._drawers[camera].draw(data)


def _snapshot(index: int, t_s: float, data: mujoco.MjData) -> _Snapshot:
    return _Snapshot(index, t_s, data.qpos.copy(), data.mocap_pos.copy(), data.mocap_quat.copy())


def look_at_quat(eye_m: NDArray[np.float64], at_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orientation (w, x, y, z) of a MuJoCo camera at `eye_m` that sees `at_m` [m].

    It looks along its -z, y up.
    """
    back = (eye_m - at_m) / np.linalg.norm(eye_m - at_m)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    rotation = np.column_stack([right, np.cross(back, right), back])
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, rotation.reshape(-1))
    return quat


# -- A photo behind the scene: what surrounds arm and things is replaced, as SIMPLER does. Arm,
# things and small fixtures are kept, by MuJoCo's segmentation; their colours get the light of the
# photo, and a soft shadow falls where they touch what they stand on (Li et al., 2024, "Evaluating
# Real-World Robot Manipulation Policies in Simulation", visual matching; this is simpler: nothing
# is fitted to the arm's own look).

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
        self._ends_m, self.kept, gone = ends_m, kept, ~kept
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
