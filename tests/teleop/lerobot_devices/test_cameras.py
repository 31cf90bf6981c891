"""Cameras that stall or die keep nobody waiting."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.robots.so_follower import SO101FollowerConfig
from plugin_devices import FakeCamera
from plugin_devices.config import FakeCameraConfig

from gaploop.core.clock import ManualClock, MonotonicClock
from gaploop.core.errors import DeviceError
from gaploop.teleop.checks.cameras import too_slow
from gaploop.teleop.lerobot_devices import make as module
from gaploop.teleop.lerobot_devices.make import LerobotCamera, camera_configs, make_cameras

WITHIN_S = 120.0
"""Something that hangs is given up after this long."""


def until(true: Callable[[], Any]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def open_camera() -> tuple[LerobotCamera, FakeCamera]:
    fake = FakeCamera(FakeCameraConfig(fps=200, width=6, height=4))
    return LerobotCamera("top", fake, MonotonicClock()), fake


def test_pictures_carry_the_time_they_were_taken_at() -> None:
    camera, _ = open_camera()
    first = camera.frame()
    assert first.image.shape == (4, 6, 3)
    assert time.monotonic() - first.t_capture_s >= 0.04
    until(lambda: camera.frame().t_capture_s > first.t_capture_s)
    camera.close()
    camera.close()


def test_a_stalled_camera_keeps_nobody_waiting() -> None:
    camera, fake = open_camera()
    fake.stall.set()
    until(lambda: camera.faults > 0)
    last = camera.frame()
    fake.answers.clear()
    fake.asked.clear()
    assert fake.asked.wait(WITHIN_S)
    for _ in range(1000):  # whoever waited for the camera now would wait for ever
        assert camera.frame() is last
    assert time.monotonic() - last.t_capture_s > 0.04
    fake.answers.set()
    camera.close()


def test_a_camera_that_dies_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    camera, fake = open_camera()
    fake.dead.set()
    until(lambda: camera.fault)
    last = camera.frame().t_capture_s
    fake.dead.clear()
    until(lambda: camera.frame().t_capture_s > last)
    assert fake.connects == 2
    assert not camera.fault
    camera.close()
    assert not fake.connected


class Usb:
    """`cv2.VideoCapture` of a camera whose cable can be pulled: reads fail, nothing new opens."""

    pulled, opened = threading.Event(), 0

    def __init__(self, *_where: object) -> None:
        self.is_gone = self.pulled.is_set()
        self.is_open = not self.is_gone
        type(self).opened += self.is_open

    def isOpened(self) -> bool:  # noqa: N802  (OpenCV's name)
        return self.is_open  # a handle stays open when its device is gone

    def read(self) -> tuple[bool, Any]:
        time.sleep(0.005)
        self.is_gone |= self.pulled.is_set()
        return not self.is_gone, np.zeros((4, 6, 3), dtype=np.uint8)

    def get(self, what: int) -> float:
        return {3: 6.0, 4: 4.0, 5: 30.0}.get(what, 0.0)

    def set(self, *_value: float) -> bool:
        return True

    def release(self) -> None:
        self.is_open = False


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pulled_cable_is_survived_through_lerobots_own_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread's traceback, thirty lines, went over what the operator saw."""
    import cv2
    from lerobot.cameras.opencv import OpenCVCamera, OpenCVCameraConfig

    monkeypatch.setattr(cv2, "VideoCapture", Usb)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    usb = OpenCVCamera(OpenCVCameraConfig(0, fps=30, width=6, height=4, warmup_s=0))
    camera = LerobotCamera("top", usb, MonotonicClock())
    for plugged in (1, 2):  # and once more
        Usb.pulled.set()
        until(lambda: camera.fault)
        tried = camera.faults
        until(lambda tried=tried: camera.faults > tried + 2)  # type: ignore[misc]
        last = camera.frame().t_capture_s
        Usb.pulled.clear()
        until(lambda last=last: camera.frame().t_capture_s > last)  # type: ignore[misc]
        assert Usb.opened == 1 + plugged
        assert not camera.fault
    camera.close()


def test_a_cameras_name_is_refused_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVFoundation, as OpenCV uses it, knows cameras by number only."""
    from lerobot.cameras.opencv import OpenCVCamera, OpenCVCameraConfig

    monkeypatch.setattr(module.sys, "platform", "darwin")
    usb = OpenCVCamera(OpenCVCameraConfig(Path("FaceTime HD Camera")))
    with pytest.raises(DeviceError, match=r"'top' can't be opened: .*On macOS .* is a number"):
        LerobotCamera("top", usb, MonotonicClock())


def test_one_absent_camera_closes_the_others() -> None:
    robot = SO101FollowerConfig(
        port="/dev/null",
        cameras={
            "top": FakeCameraConfig(fps=30, width=6, height=4),
            "wrist": FakeCameraConfig(fps=30, width=6, height=4, absent=True),
        },
    )
    with pytest.raises(DeviceError, match=r"'wrist' can't be opened: No camera 0\. lerobot-find-"):
        make_cameras(robot)
    assert not [t for t in threading.enumerate() if t.name == "camera top"]
    del robot.cameras["wrist"]
    (camera,) = make_cameras(robot)
    assert camera.name == "top"
    camera.close()


def test_the_cameras_of_two_arms_keep_lerobots_names() -> None:
    from lerobot.robots.bi_so_follower import BiSOFollowerConfig
    from lerobot.robots.so_follower import SOFollowerConfig

    one = FakeCameraConfig(fps=30, width=6, height=4)
    robot = BiSOFollowerConfig(
        left_arm_config=SOFollowerConfig(port="a", cameras={"wrist": one}),
        right_arm_config=SOFollowerConfig(port="b", cameras={"wrist": one}),
        cameras={"top": one},
    )
    assert list(camera_configs(robot)) == ["top", "left_wrist", "right_wrist"]


class DepthCamera(FakeCamera):  # type: ignore[misc]
    """As LeRobot's RealSense with `use_depth`: millimetres, shape (height, width, 1)."""

    use_depth = True

    def read_latest_depth(self) -> Any:
        return np.full((4, 6, 1), 40_000, dtype=np.uint16)


def test_a_depth_stream_comes_with_its_cameras_pictures() -> None:
    colour_only, _ = open_camera()
    assert colour_only.depth is None
    colour_only.close()
    fake = DepthCamera(FakeCameraConfig(fps=200, width=6, height=4))
    camera = LerobotCamera("top", fake, MonotonicClock())
    depth = camera.depth
    assert depth is not None
    assert depth.name == "top_depth"  # as LeRobot's robots call it
    picture = depth.frame().image
    assert picture.shape == (4, 6)
    assert picture.dtype == np.uint16
    assert (picture == 40_000).all()
    camera.close()


class SteppedCamera(FakeCamera):  # type: ignore[misc]
    """Gives a picture when the test says so; the same time or bits again where it says that."""

    def __init__(self, fps: int = 30) -> None:
        super().__init__(FakeCameraConfig(fps=fps, width=6, height=4))
        self.fps = fps
        self.go, self.given = threading.Semaphore(1), threading.Semaphore(0)
        self.stamp_s: float | None = None
        self.shade = 0

    def async_read(self, timeout_ms: float = 200) -> Any:
        if not self.go.acquire(timeout=timeout_ms / 1000.0):
            raise TimeoutError
        self.given.release()
        self.latest_timestamp = self.stamp_s
        return np.full((4, 6, 3), self.shade, dtype=np.uint8)

    def give(self) -> None:
        """Let it answer once more, and wait until it was asked for another after that."""
        self.given.acquire(timeout=WITHIN_S)
        self.go.release()


@pytest.mark.parametrize(
    ("gives_hz", "fps", "says"), [(8, 30, "8 of 30"), (8, 10, ""), (30, 30, "")]
)
def test_what_a_camera_gives_is_counted(gives_hz: int, fps: int, says: str) -> None:
    """One gave 8 of the 30 pictures a second asked for, and nothing was said."""
    clock, fake = ManualClock(), SteppedCamera(fps)
    camera = LerobotCamera("top", fake, clock)
    assert math.isnan(camera.rate_hz())
    for n in range(1, 2 * gives_hz + 1):
        clock.sleep_until(n / gives_hz)
        fake.shade = n
        fake.give()
        until(lambda n=n: camera.pictures == n + 1)
    assert camera.rate_hz() == pytest.approx(gives_hz, abs=0.6)
    assert (says in too_slow(camera, camera.rate_hz(), 30.0)) if says else True
    assert bool(too_slow(camera, camera.rate_hz(), 30.0)) == bool(says)
    camera.close()


@pytest.mark.parametrize("stamp_s", [None, 5.0])
def test_a_picture_handed_out_again_is_no_new_one(
    stamp_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that answers at once with what it has would never grow stale."""
    monkeypatch.setattr(module, "SAME_S", 1e9)  # whatever takes less is at once
    clock, fake = ManualClock(), SteppedCamera()
    fake.stamp_s = stamp_s
    camera = LerobotCamera("top", fake, clock)
    monkeypatch.setattr(camera._stop, "wait", lambda _s=0.0: False)
    first = camera.frame()
    clock.sleep_until(3.0)
    for _ in range(3):
        fake.give()
    assert camera.frame() is first
    assert camera.pictures == 1
    fake.stamp_s, fake.shade = None if stamp_s is None else 6.0, 9
    fake.give()
    until(lambda: camera.pictures == 2)
    assert camera.same_since_s == camera.frame().t_capture_s
    camera.close()
