"""The overhead camera: what it takes, when, and how it is drawn."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import CameraFrame
from gaploop.sim.backdrop import Backdrop, kept_geoms, read_photo
from gaploop.sim.gaps.mechanism import ImagePath

ALL: Final = mujoco.mjtCatBit.mjCAT_ALL.value
STILL: Final = mujoco.mjtCatBit.mjCAT_STATIC.value
"""What is fixed to the world; a hand that follows a path isn't."""
MOVING: Final = mujoco.mjtCatBit.mjCAT_DYNAMIC.value
MULTISAMPLES: Final = 0  # of the renderer: two cost two thirds of the frames on a CPU
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
    """A fixed camera of a model, drawn off the screen; what stands still only once a take.

    Where a CPU draws, the table with its texture and the sky cost nearly as much as the arm, and
    they don't move. So they are kept with their depth, and a picture is what moves laid over them:
    to the bit what drawing everything gives.
    """

    drawing: ClassVar[weakref.WeakSet[LayeredCamera]] = weakref.WeakSet()
    """Those that aren't closed."""

    def __init__(
        self, model: mujoco.MjModel, camera: str | mujoco.MjvCamera, width: int, height: int
    ) -> None:
        """Draw `camera` of `model`, or another, `width` times `height` pixels."""
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
        else:
            self._camera = camera
        self.drawing.add(self)
        self.forget()

    def forget(self, photo: Path | None = None) -> None:
        """Draw everything anew, before a photo if one is given: the model may have changed."""
        self._still: Layer | None = None
        self._photo = photo
        self._backdrop: Backdrop | None = None
        model = self._model  # what is seen through something is drawn with it
        self._whole = bool((model.geom_rgba[:, 3] < 1).any() or (model.mat_rgba[:, 3] < 1).any())

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
            return _upright(self._backdrop.over(colour, depth, nearer))
        return _upright(cv2.copyTo(colour, nearer, behind.copy()))

    def draw_whole(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Return the same without a photo, at half the cost where what stands still has changed."""
        self._gl.make_current()
        return _upright(self._drawn(data, ALL)[0])

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
        lying = read_photo(photo, *self.size_px)[::-1]  # the layers' rows go up
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


def _upright(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture from the top row down; a graphics library counts rows from below."""
    return np.ascontiguousarray(picture[::-1])


def set_offscreen(model: mujoco.MjModel, width: int, height: int) -> None:
    """Make the buffer that is drawn into as large as the picture: it is resolved as a whole."""
    model.vis.quality.offsamples = MULTISAMPLES
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height


@dataclass(frozen=True)
class _Snapshot:
    """The scene at a capture time; enough to draw it later."""

    index: int
    t_s: float
    qpos: NDArray[np.float64]
    mocap_pos: NDArray[np.float64]
    mocap_quat: NDArray[np.float64]


class OverheadCamera:
    """Takes a snapshot of the scene at each capture time and draws it only when asked."""

    def __init__(
        self,
        model: mujoco.MjModel,
        images: ImagePath,
        cameras: tuple[str, str],
        *,
        size_px: int,
        rate_hz: float,
        delay_s: float = 0.0,
    ) -> None:
        """Take note of a cell's settings.

        Args:
            cameras: the one that looks down, and the one for people, by their names in the model.
            size_px: width and height.
            delay_s: from a capture until its picture is there [s]. As with a real camera, what is
                told as its time is when it came.
        """
        self._model, self._names = model, cameras
        self._data = mujoco.MjData(model)  # to draw in, so that drawing touches no physics
        self._images = images
        self._size_px = size_px
        self._steps_per_capture = 1.0 / (rate_hz * float(model.opt.timestep))
        self._drawers = dict[str, LayeredCamera]()
        self._delay_s = delay_s

    def reset(
        self, noise_seed: Sequence[int], data: mujoco.MjData, photo: Path | None = None
    ) -> None:
        """Start a take with a capture of `data`.

        Args:
            noise_seed: of the pictures' noise.
            photo: what is behind the scene instead of bench and room.
        """
        self._photo = photo
        self._noise_seed = list(noise_seed)
        self._images.reset(self._noise_seed)
        self._frame: tuple[int, CameraFrame] | None = None
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

    def frame(self, now_s: float) -> CameraFrame:
        """The newest picture that is there at `now_s` [s]; drawn when first asked for."""
        self._deliver(now_s)
        snapshot = self._snapshot
        if self._frame is None or self._frame[0] != snapshot.index:
            picture = self._drawn(self._names[0], (self._size_px,) * 2, snapshot)
            if self._images.active:
                rng = np.random.default_rng([*self._noise_seed, snapshot.index])
                picture = self._images.picture(picture, rng, snapshot.t_s)
            came_s = snapshot.t_s + self._delay_s
            self._frame = (snapshot.index, CameraFrame(picture, came_s))
        return self._frame[1]

    def picture(self, data: mujoco.MjData, width: int, height: int) -> NDArray[np.uint8]:
        """A picture for people, from the side, without faults, shape (height, width, 3)."""
        now = _snapshot(-1, 0.0, data)
        return self._drawn(self._names[1], (width, height), now)

    def close(self) -> None:
        """Free the renderers; safe to call twice."""
        while self._drawers:
            self._drawers.popitem()[1].close()

    def _drawn(
        self, camera: str, size_px: tuple[int, int], snapshot: _Snapshot
    ) -> NDArray[np.uint8]:
        if camera in self._drawers and self._drawers[camera].size_px != size_px:
            self._drawers.pop(camera).close()
        if camera not in self._drawers:
            self._drawers[camera] = drawer = LayeredCamera(self._model, camera, *size_px)
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
