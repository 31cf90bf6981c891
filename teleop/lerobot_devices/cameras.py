"""LeRobot's cameras as picture sources that never make anybody wait.

Each has a thread of its own that takes pictures in; `frame()` hands out the newest one with its
capture time. A camera that dies keeps its last picture, whose age tells, and is tried again: it
can stop neither the arm nor torque-off.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections import deque
from typing import Any, Final

import cv2
import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.messages import CameraFrame, Image
from gaploop.teleop.checks.cameras import video_identity
from gaploop.teleop.lerobot_devices.generic import LEROBOT_FAULTS, first_line
from gaploop.teleop.lerobot_devices.identity import Identities
from gaploop.teleop.servos.port import Usb

log = logging.getLogger(__name__)

WAIT_MS: Final = 500.0
"""A picture that takes longer is a fault [ms]."""
AGAIN_S: Final = 1.0
"""Pause before a dead camera is connected again [s]."""
FIRST_S: Final = 5.0
"""The first picture must come within this [s]."""
SAME_S: Final = 0.005
"""A class that doesn't wait for a new picture is asked again after this [s]."""
SPARSE: Final = 16
"""Two pictures are compared in every so many-th row and column first."""
MOST_COUNTED: Final = 1000
RECENT_S: Final = 2.0
"""How many pictures a camera gives is counted over this time [s]."""
STOP_S: Final = 2.0
"""A thread that hangs in its driver is left behind after this [s]; it is a daemon."""


class LerobotCamera:
    """One LeRobot camera, or DeviceError where it gives no picture. Implements `CameraSource`."""

    def __init__(
        self, name: str, camera: Any, clock: Clock, identities: Identities | None = None
    ) -> None:
        self.name = name
        self.identity: Usb | None = None
        """By what it is known again; None where nothing tells."""
        self._identities = identities or Identities()
        self.faults = 0
        self.fault = ""
        """What went wrong last, or empty."""
        self.pictures = 0
        """How many it has given so far."""
        self.same_since_s = math.nan
        """Since when every picture has been the newest one to the last bit, by its capture [s]."""
        self._camera, self._clock = camera, clock
        self._taken_at_s: deque[float] = deque(maxlen=MOST_COUNTED)
        self._began_s = math.inf
        self._newest: CameraFrame | None = None
        self._newest_depth: CameraFrame | None = None
        self.fps: float | None = None
        """Pictures a second that it was asked for or promises, where it says so [Hz]."""
        self._first, self._stop = threading.Event(), threading.Event()
        self._check_identity()
        try:
            camera.connect()
        except _faults() as error:
            place = getattr(camera, "index_or_path", 0)
            named = sys.platform == "darwin" and not str(place).isdigit()
            fix = "On macOS index_or_path is a number, not a name; " if named else ""
            raise DeviceError(
                f"Camera {name!r} can't be opened: {first_line(error)} {fix}lerobot-find-cameras "
                "lists what there is."
            ) from error
        self.fps = getattr(camera, "fps", None)
        self._thread = threading.Thread(target=self._watch, name=f"camera {name}", daemon=True)
        self._thread.start()
        if not self._first.wait(FIRST_S):
            self.close()
            raise DeviceError(f"Camera {name!r} gives no picture: {self.fault or 'it is silent'}.")

    def frame(self) -> CameraFrame:
        """Return the newest picture without waiting; after the camera died, its last."""
        assert self._newest is not None  # the first was waited for
        return self._newest

    @property
    def depth(self) -> LerobotDepth | None:
        """The camera's depth stream, where its config has `use_depth`."""
        return LerobotDepth(self) if self._newest_depth is not None else None

    def depth_frame(self) -> CameraFrame:
        """Return the newest depth picture [mm], taken with `frame`'s; as it does."""
        assert self._newest_depth is not None  # else there is no `depth`
        return self._newest_depth

    def close(self) -> None:
        """Stop the thread and disconnect; safe to call twice, never raises."""
        self._stop.set()
        self._thread.join(STOP_S)
        with contextlib.suppress(*_faults()):
            self._camera.disconnect()

    def rate_hz(self) -> float:
        """Return how many pictures a second it gave lately [Hz]; NaN before that can be told."""
        lately_s = self._clock.now_s() - RECENT_S
        if not lately_s >= self._began_s:
            return math.nan
        return sum(t_s > lately_s for t_s in tuple(self._taken_at_s)) / RECENT_S

    def _watch(self) -> None:
        stamp_s: float | None = None
        read_s = -math.inf
        while not self._stop.is_set():
            try:
                image = self._camera.async_read(timeout_ms=WAIT_MS)
                # LeRobot stamps pictures with time.perf_counter(); age is the same on any clock.
                taken_s = getattr(self._camera, "latest_timestamp", None)
                age_s = time.perf_counter() - taken_s if taken_s is not None else 0.0
                at_s = self._clock.now_s() - age_s
                image, before = np.asarray(image), self._newest
                is_same = before is not None and same_picture(before.image, image)
                waited_s, read_s = time.monotonic() - read_s, time.monotonic()
                at_once = taken_s is None and is_same and waited_s < SAME_S
                if at_once or (taken_s is not None and taken_s == stamp_s):
                    self._stop.wait(SAME_S)  # its class answers with what it has, without waiting
                    read_s = time.monotonic()
                    continue
                stamp_s = taken_s
                if getattr(self._camera, "use_depth", False):
                    depth = np.asarray(self._camera.read_latest_depth())
                    depth = np.ascontiguousarray(depth.reshape(depth.shape[:2]))
                    self._newest_depth = CameraFrame(depth, at_s)
                self._newest = CameraFrame(image, at_s)
                if not is_same:
                    self.same_since_s = at_s
                self.pictures += 1
                self._taken_at_s.append(self._clock.now_s())
                if not self._first.is_set():
                    self._began_s = self._clock.now_s()
                    self._first.set()
                self.fault = ""
            except _faults() as error:
                self._note(error)
                if isinstance(error, TimeoutError) or self._stop.wait(AGAIN_S):
                    continue
                with contextlib.suppress(*_faults()):
                    self._camera.disconnect()
                lost: tuple[type[BaseException], ...] = (DeviceError, *_faults())
                while not self._stop.is_set():
                    try:
                        self._check_identity()
                        self._camera.connect(warmup=False)
                        break
                    except lost as again:
                        self._note(again)
                        self._stop.wait(AGAIN_S)

    def _check_identity(self) -> None:
        """Raise DeviceError where the camera that has the name now isn't the one of before."""
        found = camera_identity(self._camera)
        self._identities.check_camera(self.name, found)
        self.identity = found

    def _note(self, error: BaseException) -> None:
        self.faults += 1
        if first_line(error) != self.fault:
            log.warning("camera %s: %s", self.name, first_line(error))
        self.fault = first_line(error)


class LerobotDepth:
    """The depth stream of a camera, called as LeRobot calls it. Implements `CameraSource`."""

    def __init__(self, camera: LerobotCamera) -> None:
        self.name = f"{camera.name}_depth"
        self.frame, self.close = camera.depth_frame, camera.close


def camera_identity(camera: Any) -> Usb | None:
    """Return by what a LeRobot camera can be known again; None where nothing tells."""
    if serial := getattr(camera, "serial_number", ""):  # RealSense
        return Usb(type(camera).__name__, str(serial))
    return video_identity(getattr(camera, "index_or_path", None))


def same_picture(one: Image, two: Image) -> bool:
    """Say whether two pictures are equal to the last bit; two of a real sensor never are."""
    sparse = (slice(None, None, SPARSE),) * 2
    return np.array_equal(one[sparse], two[sparse]) and np.array_equal(one, two)


def _faults() -> tuple[type[BaseException], ...]:
    """What LeRobot's cameras raise, OpenCV's own error included."""
    return (*LEROBOT_FAULTS, cv2.error)
