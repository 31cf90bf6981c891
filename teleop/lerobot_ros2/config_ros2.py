"""A robot on ROS 2 topics, as its parameter file describes it, registered with LeRobot by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lerobot.cameras.configs import CameraConfig
from lerobot.robots.config import RobotConfig

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, mapping, number

EXAMPLE: Final = """\
# gaploop's node: ROS 2 parameters, for
# gaploop record|rollout|teleoperate --robot.type=ros2 --robot.topics=THIS_FILE.
/**:
  ros__parameters:
    robot_type: so101_follower        # as the policy's episodes name the arm
    # LeRobot's joint names in the policy's order, and the same joints as ROS calls them.
    joints: [shoulder_pan, shoulder_lift, elbow_flex, wrist_flex, wrist_roll, gripper]
    ros_joints: [joint_1, joint_2, joint_3, joint_4, joint_5, gripper_joint]
    # LeRobot's value = scale * ROS's (rad or m) + offset: degrees; a gripper from 0 to 100.
    scale: [57.29578, 57.29578, 57.29578, 57.29578, 57.29578, 57.29578]
    offset: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    state: {topic: /joint_states, reliability: best_effort}    # sensor_msgs/JointState
    command:
      topic: /arm_controller/joint_trajectory
      type: trajectory                # or position: std_msgs/Float64MultiArray in ros_joints' order
      reliability: reliable
      rate_hz: 50.0
      time_from_start_s: 0.1          # the controller gets there within this
    enable_topic: ""                  # std_msgs/Bool: true lets the drives hold, false lets go
    stale_s: 0.5                      # readings and pictures older than this are none
    cameras:                          # sensor_msgs/Image, or CompressedImage (type: compressed)
      front: {topic: /camera/image_raw, type: raw, width: 640, height: 480, fps: 30}
"""
RELIABILITY: Final = ("best_effort", "reliable")
COMMANDS: Final = ("trajectory", "position")
PICTURES: Final = ("raw", "compressed")


@CameraConfig.register_subclass("ros2")
@dataclass(kw_only=True)
class Ros2CameraConfig(CameraConfig):  # type: ignore[misc]
    """Pictures on a topic.

    Attributes:
        topic: of sensor_msgs/Image, or CompressedImage.
        encoding: raw or compressed.
        reliability: of the subscription.
        stale_s: an older picture is none [s].
    """

    topic: str
    encoding: str = "raw"
    reliability: str = "best_effort"
    stale_s: float = 0.5


@RobotConfig.register_subclass("ros2")
@dataclass(kw_only=True)
class Ros2RobotConfig(RobotConfig):  # type: ignore[misc]
    """A robot behind ROS 2 topics.

    Attributes:
        topics: the node's parameter file; help prints one to edit.
        dry_run: everything but publishing goals.
        cameras: those of the file, by name.
    """

    topics: Path
    dry_run: bool = False
    cameras: dict[str, CameraConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if str(self.topics) == "help":
            return
        self.parameters = Ros2Parameters(self.topics)
        self.cameras = {**self.parameters.cameras, **self.cameras}


class Ros2Parameters:
    """What a parameter file says; UnusableInputError where that isn't as in `EXAMPLE`."""

    def __init__(self, path: Path) -> None:
        where = f"ROS 2 parameters {path}"
        said: Any = load_yaml(path, "ROS 2 parameters")
        for key in (next(iter(said), ""), "ros__parameters"):
            said = mapping(said.get(key), f"{where}: '{key}'", "name: value")
        known: tuple[str, ...] = (
            "robot_type", "joints", "ros_joints", "scale", "offset", "state", "command",
            "enable_topic", "stale_s", "cameras",
        )  # fmt: skip
        check_keys(said, known, where, ("joints", "state", "command"))
        self.path = path
        self.robot_type = str(said.get("robot_type") or "ros2")
        self.joints = _names(said["joints"], f"{where}: 'joints'")
        self.ros_joints = _names(said.get("ros_joints", said["joints"]), f"{where}: 'ros_joints'")
        self.scale = self._numbers(said.get("scale"), 57.29577951308232, f"{where}: 'scale'")
        self.offset = self._numbers(said.get("offset"), 0.0, f"{where}: 'offset'")
        if len(self.ros_joints) != len(self.joints) or 0.0 in self.scale:
            raise UnusableInputError(
                f"{where}: 'ros_joints' and 'scale' go with 'joints' one by one, and no scale is 0."
            )
        state = mapping(said["state"], f"{where}: 'state'", "name: value")
        check_keys(state, ("topic", "reliability"), f"{where}: 'state'", ("topic",))
        self.state_topic = str(state["topic"])
        self.state_reliability = _choice(state, "reliability", RELIABILITY, where)
        goal = mapping(said["command"], f"{where}: 'command'", "name: value")
        keys = ("topic", "type", "reliability", "rate_hz", "time_from_start_s")
        check_keys(goal, keys, f"{where}: 'command'", ("topic",))
        self.command_topic = str(goal["topic"])
        self.command_type = _choice(goal, "type", COMMANDS, where)
        self.command_reliability = _choice(goal, "reliability", RELIABILITY[::-1], where)
        self.period_s = 1.0 / number(goal.get("rate_hz", 50.0), f"{where}: rate_hz", 1.0, 1e3)
        self.time_from_start_s = number(
            goal.get("time_from_start_s", 0.1), f"{where}: time_from_start_s", 0.0, 10.0
        )
        self.enable_topic = str(said.get("enable_topic") or "")
        self.stale_s = number(said.get("stale_s", 0.5), f"{where}: stale_s", 0.01, 60.0)
        cameras = mapping(said.get("cameras"), f"{where}: 'cameras'", "name: {topic: ...}")
        self.cameras: dict[str, CameraConfig] = {}
        known = ("topic", "type", "width", "height", "fps", "reliability")
        for name, value in cameras.items():
            place = f"{where}: camera {name}"
            camera = mapping(value, place, "name: value")
            check_keys(camera, known, place, ("topic", "width", "height", "fps"))
            width, height, fps = (
                int(number(camera[key], f"{place}: {key}", 1, 10_000))
                for key in ("width", "height", "fps")
            )
            self.cameras[str(name)] = Ros2CameraConfig(
                topic=str(camera["topic"]),
                encoding=_choice(camera, "type", PICTURES, place),
                reliability=_choice(camera, "reliability", RELIABILITY, place),
                stale_s=self.stale_s,
                width=width,
                height=height,
                fps=fps,
            )

    def _numbers(self, value: Any, default: float, where: str) -> list[float]:
        given = [default] * len(self.joints) if value is None else value
        if not isinstance(given, list) or len(given) != len(self.joints):
            raise UnusableInputError(f"{where} must be {len(self.joints)} numbers, got {value!r}.")
        return [number(v, where, -1e6, 1e6) for v in given]


def _names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(set(map(str, value))) != len(value):
        raise UnusableInputError(f"{where} must be a list of different names, got {value!r}.")
    return tuple(map(str, value))


def _choice(said: Mapping[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    value = str(said.get(key, choices[0]))
    if value not in choices:
        raise unknown_choice(key, value, choices, where)
    return value
