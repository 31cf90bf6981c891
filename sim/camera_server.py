"""Cameras of a simulated scene over ZeroMQ, as LeRobot's `zmq` cameras expect them.

One message per frame, JSON: {"timestamps": {name: s}, "images": {name: base64 of a JPEG}}
(lerobot/cameras/zmq, version 0.6.1). The bus must not wait for pictures, so they are drawn in a
process of their own: it gets a copy of the model once, and the positions of all bodies through
shared memory after every step.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.types import FloatArray, Image
from gaploop.sim.plant import ScenePlant

JPEG_QUALITY = 90
_START_S = 30.0


class CameraServer:
    """Publishes pictures on 127.0.0.1; a context manager.

    Attributes:
        address: what a subscriber connects to.
    """

    def __init__(
        self,
        plant: ScenePlant,
        cameras: Mapping[str, str],
        *,
        port: int = 5555,
        size_px: Sequence[int] = (320, 240),
        fps: float = 25.0,
    ) -> None:
        """Check the settings.

        Args:
            plant: whose scene.
            cameras: name of each camera for LeRobot, to its name in the model.
            port: TCP port.
            size_px: width and height [px].
            fps: pictures a second [Hz].

        Raises:
            UnusableInputError: a setting out of range, or the port is taken.
        """
        if len(size_px) != 2 or not all(16 <= side <= 2048 for side in size_px):
            raise UnusableInputError(
                f"--camera_size must be width and height from 16 to 2048 px, got {list(size_px)}."
            )
        if not 0 < fps <= 120:
            raise UnusableInputError(f"--camera_fps must be above 0 and at most 120, got {fps:g}.")
        _check_port(port)
        self.address = f"tcp://127.0.0.1:{port}"
        self._plant = plant
        model = plant.model
        context = multiprocessing.get_context("spawn")
        self._shared = context.RawArray("d", 1 + model.nq + 7 * model.nmocap)
        self._stop, self._up = context.Event(), context.Event()
        self._model = model
        self._settings = (dict(cameras), self.address, tuple(size_px), fps)
        self._context = context
        self._process: Any = None

    def __enter__(self) -> Self:
        self._view = np.frombuffer(self._shared)
        self._publish()
        self._plant.on_advance = self._publish
        self._process = self._context.Process(
            target=_serve,
            args=(self._model, self._shared, self._settings, self._stop, self._up),
            name="cameras",
            daemon=True,
        )
        self._process.start()
        end_s = time.monotonic() + _START_S
        while not self._up.wait(0.1):
            if not self._process.is_alive() or time.monotonic() > end_s:
                self.__exit__(None, None, None)
                raise DeviceError(
                    "The cameras didn't start: no renderer. Set MUJOCO_GL=egl or osmesa, or leave "
                    "--cameras out."
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.join(5.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _publish(self) -> None:
        """Copy where everything is. A picture drawn of half a copy shows two moments 5 ms apart."""
        data, nq = self._plant.data, self._model.nq
        view = self._view
        view[0] = time.time()
        view[1 : 1 + nq] = data.qpos
        if self._model.nmocap:
            view[1 + nq :] = np.concatenate((data.mocap_pos.ravel(), data.mocap_quat.ravel()))


def _check_port(port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise UnusableInputError(
            f"--camera_port={port} can't be used: {error}. Name a free one from 1024 to 65535."
        ) from error


def _serve(
    model: Any,
    shared: Any,
    settings: tuple[dict[str, str], str, tuple[int, int], float],
    stop: Event,
    up: Event,
) -> None:
    """Draw and publish until `stop`; runs in the process of the cameras."""
    import zmq

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    cameras, address, size_px, fps = settings
    view = np.frombuffer(shared)
    painter = _Painter(model, size_px)
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        publisher.setsockopt(zmq.SNDHWM, 2)
        publisher.bind(address)
        parent = multiprocessing.parent_process()
        due_s = time.monotonic()
        while not stop.is_set() and (parent is None or parent.is_alive()):
            publisher.send_string(_message(painter, cameras, view.copy()))
            up.set()
            due_s = max(due_s + 1.0 / fps, time.monotonic())
            stop.wait(max(0.0, due_s - time.monotonic()))


def _message(painter: _Painter, cameras: Mapping[str, str], state: FloatArray) -> str:
    images = {
        name: base64.b64encode(encode_jpeg(painter.draw(camera, state))).decode("ascii")
        for name, camera in cameras.items()
    }
    stamps = dict.fromkeys(cameras, float(state[0]))
    return json.dumps({"timestamps": stamps, "images": images})


def encode_jpeg(image: Image) -> bytes:
    """Return a picture, RGB, shape (height, width, 3), as LeRobot's reader wants it.

    LeRobot 0.6.1 hands on what OpenCV decodes without swapping channels, although it calls it
    RGB; its own image server feeds OpenCV's encoder with RGB. So the channels go in swapped.
    """
    import cv2

    done, buffer = cv2.imencode(".jpg", image, [int(cv2.IMWRITE_JPEG_QUALITY), JPEG_QUALITY])
    if not done:
        raise DeviceError("OpenCV can't encode a JPEG.")
    return bytes(buffer)


class _Painter:
    """Draws a model from given positions."""

    def __init__(self, model: Any, size_px: tuple[int, int]) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model, self._data = model, mujoco.MjData(model)
        width, height = size_px
        model.vis.quality.offsamples = 0
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._renderer = mujoco.Renderer(model, height, width)

    def draw(self, camera: str, state: FloatArray) -> NDArray[np.uint8]:
        """Return the picture of a camera, RGB, shape (height, width, 3)."""
        model, data, nq = self._model, self._data, self._model.nq
        data.qpos[:] = state[1 : 1 + nq]
        if model.nmocap:
            data.mocap_pos.ravel()[:] = state[1 + nq : 1 + nq + 3 * model.nmocap]
            data.mocap_quat.ravel()[:] = state[1 + nq + 3 * model.nmocap :]
        self._mujoco.mj_kinematics(model, data)
        self._mujoco.mj_comPos(model, data)
        self._mujoco.mj_camlight(model, data)
        self._renderer.update_scene(data, camera)
        return np.asarray(self._renderer.render(), dtype=np.uint8)
