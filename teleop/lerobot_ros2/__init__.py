"""A robot on ROS 2 topics as LeRobot devices: `--robot.type=ros2 --robot.topics=FILE`.

Joints are matched by name, whatever their order in a message. A message that is older than the one
before (late, out of order) is left out; one that is older than `stale_s` is no reading, and the
session holds as it does for any robot that doesn't answer. ROS 2 itself comes from the user's own
installation, or from the packages ros-kilted-rclpy, -sensor-msgs, -trajectory-msgs and
-rmw-fastrtps-cpp.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
from lerobot.cameras import Camera
from lerobot.robots.robot import Robot
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError
from numpy.typing import NDArray

from gaploop.teleop.lerobot_ros2.config_ros2 import (
    Ros2CameraConfig,
    Ros2Parameters,
    Ros2RobotConfig,
)

if TYPE_CHECKING:
    from gaploop.teleop.lerobot_ros2.node import TopicNode

__all__ = ["Ros2Camera", "Ros2CameraConfig", "Ros2Robot", "Ros2RobotConfig"]

log = logging.getLogger(__name__)

FIRST_S: Final = 5.0
"""The first message must come within this [s]."""
LAYOUTS: Final[Mapping[str, tuple[int, int | None]]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
}
"""ROS's names of pictures of bytes: channels, and how they become RGB."""


def _ros() -> ModuleType:
    """Return the module that imports ROS 2; ConnectionError without it."""
    try:
        from gaploop.teleop.lerobot_ros2 import node
    except ImportError as error:
        raise ConnectionError(
            f"ROS 2 isn't there ({error}). Source it (source /opt/ros/kilted/setup.bash), or "
            "pip install 'gaploop[ros2]'."
        ) from None
    return node


class Ros2Robot(Robot):  # type: ignore[misc]
    """Reads joints from one topic and sends goals on another."""

    config_class = Ros2RobotConfig
    name = "ros2"

    def __init__(self, config: Ros2RobotConfig) -> None:
        super().__init__(config)
        self.config = config
        self.cameras: dict[str, Any] = {}  # gaploop connects them by themselves
        self._p: Ros2Parameters = config.parameters
        self.name = self._p.robot_type
        self._keys = tuple(f"{name}.pos" for name in self._p.joints)
        self._scale, self._offset = np.array(self._p.scale), np.array(self._p.offset)
        self._node: TopicNode | None = None
        self._newest: tuple[float, dict[str, float]] | None = None  # taken at, on perf_counter
        self._sent_s = -np.inf
        self._first = threading.Event()
        if self._p.enable_topic:
            self.enable_torque = lambda: self._enable(True)
            self.disable_torque = lambda: self._enable(False)

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joint positions in LeRobot's units."""
        return dict.fromkeys(self._keys, float)

    action_features = observation_features
    is_calibrated = True

    @property
    def is_connected(self) -> bool:
        """Say whether its topics are subscribed to."""
        return self._node is not None

    def connect(self, calibrate: bool = True) -> None:
        """Subscribe; ConnectionError where no joint positions come, or one isn't among them."""
        del calibrate
        if self.is_connected:
            raise DeviceAlreadyConnectedError(f"{self} is connected already.")
        ros = _ros()
        node = ros.TopicNode.shared(self._p.path)
        with contextlib.ExitStack() as undo:
            undo.callback(setattr, self, "_node", None)
            undo.callback(node.leave)
            self._node, p = node, self._p
            self._first.clear()
            self._reading = node.subscribe(
                ros.JointState, p.state_topic, p.state_reliability, self._take
            )
            kind = ros.JointTrajectory if p.command_type == "trajectory" else ros.Float64MultiArray
            self._goals = node.publisher(kind, p.command_topic, p.command_reliability)
            self._switch = (
                node.publisher(ros.Bool, p.enable_topic, "reliable") if p.enable_topic else None
            )
            if not self._first.wait(FIRST_S):
                topics = [t for t, kinds in node.node.get_topic_names_and_types()
                          if "sensor_msgs/msg/JointState" in kinds]  # fmt: skip
                raise ConnectionError(
                    f"no sensor_msgs/JointState on {p.state_topic} within {FIRST_S:g} s; topics "
                    f"with one: {', '.join(topics) or 'none'}. {p.path} names the topic."
                )
            assert self._newest is not None
            missing = [name for name in p.ros_joints if name not in self._newest[1]]
            if missing:
                raise ConnectionError(
                    f"{p.state_topic} doesn't report where {', '.join(missing)} is; it has "
                    f"{', '.join(self._newest[1])}. {p.path} names the joints (ros_joints)."
                )
            undo.pop_all()

    def _take(self, message: Any) -> None:
        node = self._node
        if node is None or len(message.name) != len(message.position):
            return
        at = dict(zip(message.name, map(float, message.position), strict=True))
        self._newest = time.perf_counter() - node.age_s(message), at
        self._first.set()

    def calibrate(self) -> None:
        """Nothing to calibrate: ROS 2 gives radians and metres."""

    def configure(self) -> None:
        """Nothing to configure."""

    def get_observation(self) -> dict[str, Any]:
        """Return where the joints are; TimeoutError where that is older than `stale_s`."""
        if self._node is None or self._newest is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        taken_s, at = self._newest
        age_s = time.perf_counter() - taken_s
        if age_s > self._p.stale_s:
            raise TimeoutError(f"{self._p.state_topic} is silent: its newest is {age_s:.1f} s old")
        values = [at.get(name, np.nan) for name in self._p.ros_joints]
        return dict(zip(self._keys, (self._scale * values + self._offset).tolist(), strict=True))

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Publish goals, at most `rate_hz` of them, none in a dry run; ValueError if not finite."""
        if self._node is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        values = np.array([float(action.get(key, np.nan)) for key in self._keys])
        if not np.isfinite(values).all():
            raise ValueError(f"goals must be numbers for {', '.join(self._keys)}, got {action}")
        now_s = time.perf_counter()
        if self.config.dry_run or now_s - self._sent_s < 0.999 * self._p.period_s:
            return action
        self._sent_s = now_s
        positions = ((values - self._offset) / self._scale).tolist()
        ros = _ros()
        if self._p.command_type == "position":
            self._goals.publish(ros.Float64MultiArray(data=positions))
        else:
            point = ros.JointTrajectoryPoint(positions=positions)
            point.time_from_start.sec = int(self._p.time_from_start_s)
            point.time_from_start.nanosec = int(self._p.time_from_start_s % 1 * 1e9)
            goal = ros.JointTrajectory(joint_names=list(self._p.ros_joints), points=[point])
            self._goals.publish(goal)
        return action

    def _enable(self, on: bool) -> None:
        if self._node is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        assert self._switch is not None
        if on and self.config.dry_run:
            return
        self._switch.publish(_ros().Bool(data=on))

    def disconnect(self) -> None:
        """Send no more goals."""
        if self._node is None:
            raise DeviceNotConnectedError(f"{self} is not connected.")
        node, self._node = self._node, None
        node.node.destroy_subscription(self._reading)
        for publisher in (self._goals, self._switch):
            if publisher is not None:
                node.node.destroy_publisher(publisher)
        node.leave()


class Ros2Camera(Camera):  # type: ignore[misc]
    """Pictures on a topic, RGB."""

    config_class = Ros2CameraConfig

    def __init__(self, config: Ros2CameraConfig) -> None:
        super().__init__(config)
        self.config = config
        self.latest_timestamp: float | None = None
        self._newest: NDArray[np.uint8] | None = None
        self._node: TopicNode | None = None
        self._fresh = threading.Event()
        self._fault = "it is silent"

    @property
    def is_connected(self) -> bool:
        """Say whether its topic is subscribed to."""
        return self._node is not None

    @staticmethod
    def find_cameras() -> list[dict[str, Any]]:
        """LeRobot's search for cameras finds none on topics: `ros2 topic list` does."""
        return []

    def connect(self, warmup: bool = True) -> None:
        """Subscribe; ConnectionError where ROS 2 isn't there."""
        del warmup
        ros = _ros()
        node = ros.TopicNode.shared()
        kind = ros.Image if self.config.encoding == "raw" else ros.CompressedImage
        self._fresh.clear()
        self._node = node
        self._subscription = node.subscribe(
            kind, self.config.topic, self.config.reliability, self._take
        )

    def _take(self, message: Any) -> None:
        node = self._node
        if node is None:
            return
        try:
            image = _rgb(message, self.config.encoding)
            if image.shape[:2] != (self.height, self.width):
                raise ValueError(
                    f"it is {image.shape[1]}x{image.shape[0]}, the parameters state "
                    f"{self.width}x{self.height}"
                )
        except (ValueError, cv2.error) as error:
            self._fault = str(error)
            return
        self.latest_timestamp = time.perf_counter() - node.age_s(message)
        self._newest = image
        self._fresh.set()

    def async_read(self, timeout_ms: float = 500.0) -> NDArray[np.uint8]:
        """Wait for the next picture, (height, width, 3); TimeoutError where no good one comes."""
        if self._node is None:
            raise DeviceNotConnectedError(f"{self.config.topic} is not connected.")
        if not self._fresh.wait(timeout_ms / 1e3):
            raise TimeoutError(f"no picture on {self.config.topic}: {self._fault}")
        self._fresh.clear()
        return self.read_latest(int(1e3 * self.config.stale_s))

    read = async_read

    def read_latest(self, max_age_ms: int = 500) -> NDArray[np.uint8]:
        """Return the newest picture; TimeoutError where there is none, or it is older than that."""
        if self._newest is None or self.latest_timestamp is None:
            raise TimeoutError(f"no picture on {self.config.topic}: {self._fault}")
        age_s = time.perf_counter() - self.latest_timestamp
        if 1e3 * age_s > max_age_ms:
            raise TimeoutError(f"the newest picture on {self.config.topic} is {age_s:.1f} s old")
        return self._newest

    def disconnect(self) -> None:
        """Leave the topic."""
        if self._node is not None:
            node, self._node = self._node, None
            node.node.destroy_subscription(self._subscription)
            node.leave()


def _rgb(message: Any, encoding: str) -> NDArray[np.uint8]:
    if encoding == "compressed":
        found = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        if found is None:
            raise ValueError("it can't be decoded")
        return np.asarray(cv2.cvtColor(found, cv2.COLOR_BGR2RGB))
    if message.encoding not in LAYOUTS:
        raise ValueError(f"it is {message.encoding}; known: {', '.join(LAYOUTS)}")
    channels, conversion = LAYOUTS[message.encoding]
    rows = np.frombuffer(message.data, np.uint8)
    if message.step < channels * message.width or rows.size != message.height * message.step:
        raise ValueError("its data doesn't have the size that it states")
    rows = rows.reshape(message.height, message.step)[:, : channels * message.width]
    image = rows.reshape(message.height, message.width, channels)
    return image.copy() if conversion is None else np.asarray(cv2.cvtColor(image, conversion))
