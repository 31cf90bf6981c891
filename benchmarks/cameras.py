"""Pictures that say their number, cameras that take them in real time, and an arm that obeys."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.messages import (
    CameraFrame,
    FloatArray,
    FollowerState,
    Image,
    LeaderSample,
    SafeCommand,
    Tick,
)
from gaploop.teleop.emulator.arms import JOINTS

WIDTH: Final = 640
HEIGHT: Final = 480
BITS: Final = 20
"""Numbers up to a million: five hours at 50 Hz."""
_CELL: Final = 32
_TRAVEL: Final = 64
CAMERAS: Final = ("top", "wrist")


def texture(seed: int) -> Image:
    """Return a scene to film, larger than a picture: smooth shapes with fine grain."""
    draw = np.random.default_rng(seed)
    size = (HEIGHT + _TRAVEL, WIDTH + _TRAVEL, 3)
    coarse = draw.integers(0, 200, (size[0] // 32 + 1, size[1] // 32 + 1, 3))
    smooth = coarse.repeat(32, axis=0).repeat(32, axis=1)[: size[0], : size[1]]
    return (smooth + draw.integers(0, 40, size)).astype(np.uint8)


def barcode(number: int, scene: Image) -> Image:
    """Return a picture of a moving scene with `number` in black and white squares on top."""
    x, y = number % _TRAVEL, (number // 2) % _TRAVEL
    picture = scene[y : y + HEIGHT, x : x + WIDTH].copy()
    bits = np.array([(number >> i) & 1 for i in range(BITS)], dtype=np.uint8) * 215 + 20
    picture[:_CELL, : BITS * _CELL] = bits.repeat(_CELL)[None, :, None]
    return picture


def read_barcode(picture: Image) -> int:
    """Return the number that `barcode` drew."""
    row = picture[4 : _CELL - 4, : BITS * _CELL].mean(axis=(0, 2))
    cells = row.reshape(BITS, _CELL)[:, 4:-4].mean(axis=1)
    return sum(1 << i for i, mean in enumerate(cells) if mean > 127)


def read_barcodes(video: Path) -> list[int]:
    """Return the numbers of a video's pictures, in order, up to where it can't be read."""
    import av

    found: list[int] = []
    with contextlib.suppress(av.FFmpegError), av.open(str(video)) as container:
        for frame in container.decode(video=0):
            found.append(read_barcode(frame.to_ndarray(format="rgb24")))
    return found


class NumberedCamera:
    """A `CameraSource` that takes numbered pictures at its own pace, in its own thread."""

    def __init__(self, name: str, fps: float, seed: int) -> None:
        self.name = name
        self.numbers: dict[float, int] = {}
        """Capture time [s] to number."""
        self.drawing_s = 0.0
        """Processor time that making up the pictures took [s]."""
        self.unplugged = threading.Event()
        """Set: it takes no pictures, and its last one stays."""
        self._fps, self._scene, self._over = fps, texture(seed), threading.Event()
        self._newest = self._take(0)
        self._thread = threading.Thread(target=self._run, name=f"camera {name}", daemon=True)

    def frame(self) -> CameraFrame:
        """Return the newest picture."""
        return self._newest

    def _take(self, number: int) -> CameraFrame:
        now_s = time.monotonic()
        self.numbers[now_s] = number
        return CameraFrame(barcode(number, self._scene), now_s)

    def _run(self) -> None:
        start_s, number = time.monotonic(), 0
        while not self._over.wait(max(0.0, start_s + (number + 1) / self._fps - time.monotonic())):
            number = max(number + 1, int((time.monotonic() - start_s) * self._fps))
            if self.unplugged.is_set():
                continue
            began_s = time.thread_time()
            self._newest = self._take(number)
            self.drawing_s += time.thread_time() - began_s

    def start(self) -> None:
        """Begin to film."""
        self._thread.start()

    def stop(self) -> None:
        """End filming."""
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def filming(fps: float, names: Sequence[str] = CAMERAS) -> Iterator[tuple[NumberedCamera, ...]]:
    """Yield cameras that film while the block runs."""
    cameras = tuple(NumberedCamera(name, fps, seed) for seed, name in enumerate(names))
    for camera in cameras:
        camera.start()
    try:
        yield cameras
    finally:
        for camera in cameras:
            camera.stop()


class StillFollower:
    """A `Follower` that is where it was told to be."""

    name, robot_type, units = "follower", "so101_follower", "deg"
    joint_names: tuple[str, ...] = JOINTS
    joint_limits_rad: FloatArray = np.tile([-3.0, 3.0], (len(JOINTS), 1))

    def __init__(self) -> None:
        self._q_rad: FloatArray = np.zeros(len(JOINTS))

    def read(self) -> FollowerState:
        """Return where the arm is."""
        zero = np.zeros(len(JOINTS))
        return FollowerState(
            time.monotonic(), self._q_rad, zero, zero, zero, zero, zero, zero.astype(np.int64)
        )

    def send(self, command: SafeCommand) -> None:
        """Go there."""
        if not np.isfinite(command.sent_rad).all():
            raise DeviceError("The bench's arm was told to go nowhere.")
        self._q_rad = command.sent_rad

    def torque_on(self) -> None:
        """Do nothing."""

    def torque_off(self) -> None:
        """Do nothing."""

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert [rad], shape (6,), to degrees."""
        return np.degrees(q_rad)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert degrees, shape (6,), to [rad]."""
        return np.radians(values)

    def close(self) -> None:
        """Do nothing."""


class Wave:
    """A `Leader` that asks for slow waves."""

    def reset(self) -> None:
        """Do nothing."""

    def read(self, t_s: float) -> LeaderSample:
        """Return a pose [rad] for loop time `t_s` [s]."""
        return LeaderSample(t_s, 0.3 * np.sin(t_s + np.arange(len(JOINTS))))

    def done(self) -> bool:
        """Never."""
        return False


class ExpectedPictures:
    """A `TakeSink` that notes which pictures each frame row should stand beside."""

    def __init__(self, cameras: tuple[NumberedCamera, ...]) -> None:
        self.rows: dict[float, dict[str, int]] = {}
        """Take time of the row [s] to camera to number."""
        self._cameras = {camera.name: camera for camera in cameras}

    def tick(self, tick: Tick) -> None:
        """Note a frame row."""
        if tick.policy_frame:
            self.rows[tick.t_s] = {
                name: self._cameras[name].numbers[frame.t_capture_s]
                for name, frame in tick.frames.items()
            }
