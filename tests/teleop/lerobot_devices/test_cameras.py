"""Cameras that stall or die keep nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lerobot.robots.so_follower import SO101FollowerConfig
from plugin_devices import FakeCamera
from plugin_devices.config import FakeCameraConfig

from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import DeviceError
from gaploop.teleop.lerobot_devices import cameras as module
from gaploop.teleop.lerobot_devices import make_cameras
from gaploop.teleop.lerobot_devices.cameras import LerobotCamera, camera_configs

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


def test_one_absent_camera_closes_the_others() -> None:
    robot = SO101FollowerConfig(
        port="/dev/null",
        cameras={
            "top": FakeCameraConfig(fps=30, width=6, height=4),
            "wrist": FakeCameraConfig(fps=30, width=6, height=4, absent=True),
        },
    )
    with pytest.raises(DeviceError, match=r"Camera 'wrist' can't be opened: No camera 0\."):
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
