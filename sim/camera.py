"""The overhead camera: what it takes, when, and how it is drawn."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import CameraFrame
from gaploop.sim import scene
from gaploop.sim.gaps.mechanism import ImagePath
from gaploop.sim.layers import LayeredCamera, set_offscreen

SNAPSHOTS = 64  # captures kept for a camera that lags: two and a half seconds at 25 Hz


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
        *,
        size_px: int,
        rate_hz: float,
        latency_s: float,
    ) -> None:
        """See Cell for the arguments."""
        self._model = model
        self._data = mujoco.MjData(model)  # to draw in, so that drawing touches no physics
        self._images = images
        self._size_px = size_px
        self._latency_s = latency_s
        self._steps_per_capture = 1.0 / (rate_hz * scene.TIMESTEP_S)
        self._layers: LayeredCamera | None = None
        self._snapshots: deque[_Snapshot] = deque(maxlen=SNAPSHOTS)

    def reset(self, noise_seed: Sequence[int], data: mujoco.MjData) -> None:
        """Start a take with a capture of `data`; `noise_seed` seeds the pictures' noise."""
        self._noise_seed = list(noise_seed)
        self._images.reset(self._noise_seed)
        self._frame: tuple[int, CameraFrame] | None = None
        self._snapshots.clear()
        if self._layers is not None:
            self._layers.forget()
        self._snapshots.append(_snapshot(0, 0.0, data))

    def next_capture_step(self) -> int:
        """Physics step, counted from reset, after which the next capture is due."""
        return round((self._snapshots[-1].index + 1) * self._steps_per_capture)

    def capture(self, now_s: float, data: mujoco.MjData) -> None:
        """Take a snapshot of `data` at `now_s` [s]."""
        self._snapshots.append(_snapshot(self._snapshots[-1].index + 1, now_s, data))

    def frame(self, now_s: float) -> CameraFrame:
        """The newest picture at `now_s` [s]; drawn when first asked for."""
        snapshot = self._newest(now_s)
        if self._frame is None or self._frame[0] != snapshot.index:
            picture = self._own_layers().draw(self._at(snapshot))
            if self._images.active:
                rng = np.random.default_rng([*self._noise_seed, snapshot.index])
                picture = self._images.picture(picture, rng, snapshot.t_s)
            self._frame = (snapshot.index, CameraFrame(picture, snapshot.t_s))
        return self._frame[1]

    def picture(self, data: mujoco.MjData, width: int, height: int) -> NDArray[np.uint8]:
        """A picture for people, from the side, without faults, shape (height, width, 3)."""
        set_offscreen(self._model, width, height)
        with mujoco.Renderer(self._model, height, width) as renderer:
            renderer.update_scene(self._at(_snapshot(-1, 0.0, data)), scene.REPORT_CAMERA_NAME)
            return np.asarray(renderer.render(), dtype=np.uint8)

    def close(self) -> None:
        """Free the renderer; safe to call twice."""
        if self._layers is not None:
            self._free()
            self._layers = None

    def _newest(self, now_s: float) -> _Snapshot:
        latest_s = now_s - self._latency_s + 1e-9
        for snapshot in reversed(self._snapshots):
            if snapshot.t_s <= latest_s:
                return snapshot
        return self._snapshots[0]

    def _own_layers(self) -> LayeredCamera:
        if self._layers is None:
            self._layers = LayeredCamera(self._model, scene.CAMERA_NAME, self._size_px)
            # Not left to __del__, which at exit runs after EGL is gone.
            self._free = weakref.finalize(self, self._layers.close)
        return self._layers

    def _at(self, snapshot: _Snapshot) -> mujoco.MjData:
        """Return the data to draw from, as at a snapshot."""
        data = self._data
        data.qpos[:] = snapshot.qpos
        data.mocap_pos[:] = snapshot.mocap_pos
        data.mocap_quat[:] = snapshot.mocap_quat
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_camlight(self._model, data)
        return data


def _snapshot(index: int, t_s: float, data: mujoco.MjData) -> _Snapshot:
    return _Snapshot(index, t_s, data.qpos.copy(), data.mocap_pos.copy(), data.mocap_quat.copy())
