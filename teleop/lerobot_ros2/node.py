"""The node behind a robot's topics; importing this imports ROS 2."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import rclpy
from rclpy.exceptions import InvalidHandle
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

__all__ = [
    "Bool", "CompressedImage", "Float64MultiArray", "Image", "JointState", "JointTrajectory",
    "JointTrajectoryPoint", "TopicNode",
]  # fmt: skip


class TopicNode:
    """A node in a thread of its own, for a robot and its cameras."""

    _shared: ClassVar[TopicNode | None] = None

    def __init__(self, path: Path | None) -> None:
        self.users = 0
        self.context = rclpy.Context()
        self.context.init(["--ros-args", "--params-file", str(path)] if path else [])
        self.node = rclpy.create_node(
            "gaploop",
            context=self.context,
            allow_undeclared_parameters=True,
            automatically_declare_parameters_from_overrides=True,
        )
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="ros2", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls, path: Path | None = None) -> TopicNode:
        """Return this process's node, begun with a parameter file; `leave` it when done."""
        cls._shared = cls._shared or cls(path)
        cls._shared.users += 1
        return cls._shared

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            while self.context.ok():
                # Another thread may leave a topic just now: all others go on.
                with contextlib.suppress(InvalidHandle):
                    self._executor.spin_once(timeout_sec=0.1)

    def subscribe(
        self, kind: Any, topic: str, reliability: str, take: Callable[[Any], None]
    ) -> Any:
        """Call `take` with each message, newest only, that isn't older than the one before."""
        newest = [0]

        def in_order(message: Any) -> None:
            stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            if stamp and stamp <= newest[0]:
                return
            newest[0] = stamp
            take(message)

        return self.node.create_subscription(kind, topic, in_order, _quality(reliability))

    def publisher(self, kind: Any, topic: str, reliability: str) -> Any:
        """Return a publisher of the newest message only."""
        return self.node.create_publisher(kind, topic, _quality(reliability))

    def age_s(self, message: Any) -> float:
        """How long ago a message was stamped [s]; 0 where it isn't, or by a clock that is ahead."""
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        now = self.node.get_clock().now().nanoseconds
        return max(0.0, (now - stamp) / 1e9) if stamp else 0.0

    def leave(self) -> None:
        """End the node once nobody uses it any more."""
        self.users -= 1
        if self.users:
            return
        type(self)._shared = None
        self.context.shutdown()
        self._thread.join(2.0)
        self._executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()


def _quality(reliability: str) -> Any:
    policy = (
        ReliabilityPolicy.RELIABLE if reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT
    )
    return QoSProfile(depth=1, reliability=policy)
