"""Devices that LeRobot finds as it finds a third party's: by their config's name."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from lerobot.cameras import Camera
from lerobot.robots.robot import Robot
from lerobot.robots.so_follower import SOFollower
from lerobot.teleoperators.teleoperator import Teleoperator

from plugin_devices.config import (
    FakeCameraConfig,
    PluginArmConfig,
    PluginLeaderConfig,
    PluginSoConfig,
)

JOINTS = ("base", "elbow")


class PluginArm(Robot):  # type: ignore[misc]
    """Jumps to every goal; reports speed and current of one joint."""

    config_class = PluginArmConfig
    name = "plugin_arm_for_tests"

    def __init__(self, config: PluginArmConfig) -> None:
        super().__init__(config)
        self.config = config
        self.at = {"base": 10.0, "elbow": -30.0}
        self.torque = self.connected = self.broken = False
        self.disconnects = 0
        if not config.lacks_switch:
            self.enable_torque = lambda: self._set(True)
            self.disable_torque = lambda: self._set(False)

    def _set(self, on: bool) -> None:
        if self.broken:
            raise ConnectionError("no answer\nfrom the arm")
        self.torque = on

    observation_features = property(lambda _: dict.fromkeys((f"{n}.pos" for n in JOINTS), float))
    action_features = observation_features
    is_connected = property(lambda self: self.connected)
    is_calibrated = True

    def connect(self, calibrate: bool = True) -> None:
        assert not calibrate
        self.connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_observation(self) -> dict[str, Any]:
        if self.broken:
            raise ConnectionError("no answer\nfrom the arm")
        return {
            **{f"{n}.pos": q for n, q in self.at.items()},
            "base.vel": 90.0,
            "elbow.current": 1.5,
        }

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise ConnectionError("no answer\nfrom the arm")
        self.at = {n: action[f"{n}.pos"] for n in JOINTS}
        return action

    def disconnect(self) -> None:
        self.connected = self.torque = False
        self.disconnects += 1


class PluginLeader(Teleoperator):  # type: ignore[misc]
    """Asks for 5 and -5 degrees."""

    config_class = PluginLeaderConfig
    name = "plugin_leader_for_tests"

    def __init__(self, config: PluginLeaderConfig) -> None:
        super().__init__(config)
        self.config = config
        self.connected = self.broken = False

    action_features = property(
        lambda self: dict.fromkeys((f"{n}.pos" for n in self.config.joints), float)
    )
    feedback_features: dict[str, Any] = {}  # noqa: RUF012
    is_connected = property(lambda self: self.connected)
    is_calibrated = True

    def connect(self, calibrate: bool = True) -> None:
        assert not calibrate
        self.connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_action(self) -> dict[str, Any]:
        if self.broken:
            raise TimeoutError("asleep")
        return {"elbow.pos": 5.0, "base.pos": -5.0}

    def send_feedback(self, feedback: dict[str, Any]) -> None: ...

    def disconnect(self) -> None:
        self.connected = False


class PluginSo(SOFollower):  # type: ignore[misc]
    """An SO-101 whose class may couple two joints."""

    config_class = PluginSoConfig
    name = "plugin_so_for_tests"

    def get_observation(self) -> dict[str, Any]:
        seen = dict(super().get_observation())
        if self.config.couples:
            seen["elbow_flex.pos"] += 20.0
        return seen


class FakeCamera(Camera):  # type: ignore[misc]
    """Gives a picture every 5 ms, taken 40 ms ago, until it stalls, dies or doesn't answer."""

    config_class = FakeCameraConfig

    def __init__(self, config: FakeCameraConfig) -> None:
        super().__init__(config)
        self.config = config
        self.connected = False
        self.taken = self.connects = 0
        self.stall, self.dead = threading.Event(), threading.Event()
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        self.latest_timestamp: float | None = None

    is_connected = property(lambda self: self.connected)

    @staticmethod
    def find_cameras() -> list[dict[str, Any]]:
        return []

    def connect(self, warmup: bool = True) -> None:
        del warmup
        if self.config.absent or self.dead.is_set():
            raise ConnectionError("No camera 0.Run `lerobot-find-cameras opencv` to find one.")
        self.connected = True
        self.connects += 1

    def read(self) -> Any:
        return self.async_read()

    def async_read(self, timeout_ms: float = 200) -> Any:
        if self.dead.is_set() or not self.connected:
            raise RuntimeError("the read thread is not running")
        self.asked.set()
        self.answers.wait()
        if self.stall.is_set():
            time.sleep(timeout_ms / 1000.0)
            raise TimeoutError("no picture")
        time.sleep(0.005)
        self.taken += 1
        self.latest_timestamp = time.perf_counter() - 0.04
        return np.full((4, 6, 3), self.taken % 256, dtype=np.uint8)

    def disconnect(self) -> None:
        self.connected = False
