"""A robot on ROS 2 topics, for tests: follows trajectories at once, and spoils its messages.

Run with a parameter file; lines on stdin spoil: `late` stamps as of a second ago, `old` repeats
an earlier stamp with other positions, `well` ends it. Every goal is printed as JSON.
"""

from __future__ import annotations

import json
import sys
import threading

import numpy as np
import rclpy
import yaml
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory


def main(path: str) -> None:
    """Publish at 50 Hz until stdin ends."""
    with open(path) as file:  # not gaploop's reader: importing it takes seconds
        said = yaml.safe_load(file)["/**"]["ros__parameters"]
    context = rclpy.Context()
    context.init()
    node = rclpy.create_node("robot", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    at = {name: 0.1 * k for k, name in enumerate(said["ros_joints"])}
    spoilt = ["well"]

    def follow(goal: JointTrajectory) -> None:
        at.update(zip(goal.joint_names, goal.points[-1].positions, strict=True))
        print(json.dumps(at), flush=True)

    def listen() -> None:
        for line in sys.stdin:
            spoilt[0] = line.strip()
        context.shutdown()

    subscription = node.create_subscription(JointTrajectory, said["command"]["topic"], follow, 1)
    joints = node.create_publisher(JointState, said["state"]["topic"], 1)
    pictures = {
        camera["topic"]: (node.create_publisher(Image, camera["topic"], 1), camera)
        for camera in said["cameras"].values()
    }
    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    first = node.get_clock().now().to_msg()
    while context.ok():
        names = sorted(at, reverse=True)  # not the order of the file
        message = JointState(name=names, position=[at[name] for name in names])
        message.header.stamp = node.get_clock().now().to_msg()
        if spoilt[0] == "late":
            message.header.stamp.sec -= 1
        if spoilt[0] == "old":
            message.header.stamp, message.position = first, [9.0] * len(names)
        joints.publish(message)
        for publisher, camera in pictures.values():
            width, height = camera["width"], camera["height"]
            picture = np.full((height, width, 3), 99, np.uint8)
            publisher.publish(
                Image(
                    height=height, width=width, encoding="bgr8", step=3 * width,
                    data=picture.tobytes(),
                )
            )  # fmt: skip
        executor.spin_once(timeout_sec=0.02)
    del subscription


if __name__ == "__main__":
    main(sys.argv[1])
