"""Draws a camera's pictures, and what stands still only once a take.

Where a CPU draws, the table with its texture and the sky cost nearly as much as the arm, and they
don't move. So they are kept with their depth, and a picture is what moves laid over them: to the
bit what drawing everything gives.
"""

from __future__ import annotations

from typing import Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

ALL: Final = mujoco.mjtCatBit.mjCAT_ALL.value
STILL: Final = mujoco.mjtCatBit.mjCAT_STATIC.value
"""What is fixed to the world; a hand that follows a path isn't."""
MOVING: Final = mujoco.mjtCatBit.mjCAT_DYNAMIC.value
MULTISAMPLES: Final = 0  # of the renderer: two cost two thirds of the frames on a CPU
MOST_GEOMS: Final = 1000

type Layer = tuple[NDArray[np.uint8], NDArray[np.float32]]
"""Colour, shape (size, size, 3), and depth, shape (size, size), larger where nearer."""


class LayeredCamera:
    """A fixed camera of a model, drawn off the screen."""

    def __init__(self, model: mujoco.MjModel, camera: str, size_px: int) -> None:
        """Draw `camera` of `model`, `size_px` pixels wide and high."""
        self._model, self._size_px = model, size_px
        set_offscreen(model, size_px, size_px)
        self._gl = mujoco.GLContext(size_px, size_px)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        self._rect = mujoco.MjrRect(0, 0, size_px, size_px)
        self._scene = mujoco.MjvScene(model, MOST_GEOMS)
        self._options, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = model.camera(camera).id
        self.forget()

    def forget(self) -> None:
        """Draw everything anew: between takes the model may be changed."""
        self._still: Layer | None = None
        model = self._model  # what is seen through something is drawn with it
        self._whole = bool((model.geom_rgba[:, 3] < 1).any() or (model.mat_rgba[:, 3] < 1).any())

    def draw(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Return the picture of `data`, whose kinematics are known, shape (size, size, 3)."""
        self._gl.make_current()
        if self._whole:
            return _upright(self._drawn(data, ALL)[0])
        if self._still is None:
            self._still = self._drawn(data, STILL)
        (colour, depth), (behind, behind_depth) = self._drawn(data, MOVING), self._still
        nearer = (depth > behind_depth).view(np.uint8)
        return _upright(cv2.copyTo(colour, nearer, behind.copy()))

    def close(self) -> None:
        """Free what the graphics library holds."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()

    def _drawn(self, data: mujoco.MjData, what: int) -> Layer:
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = what != MOVING
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._camera, what, self._scene
        )
        mujoco.mjr_render(self._rect, self._scene, self._context)
        colour = np.empty((self._size_px, self._size_px, 3), dtype=np.uint8)
        depth = np.empty((self._size_px, self._size_px), dtype=np.float32)
        mujoco.mjr_readPixels(colour, depth, self._rect, self._context)
        return colour, depth


def _upright(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture from the top row down; a graphics library counts rows from below."""
    return np.ascontiguousarray(picture[::-1])


def set_offscreen(model: mujoco.MjModel, width: int, height: int) -> None:
    """Make the buffer that is drawn into as large as the picture: it is resolved as a whole."""
    model.vis.quality.offsamples = MULTISAMPLES
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
