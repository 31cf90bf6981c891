"""A robot on ROS 2 topics is a LeRobot robot: joints by name, late is silent, nothing in a dry run.

What needs ROS 2 itself is skipped where it isn't there; `make test-ros2` has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import NO_REPLY, SafeCommand
from gaploop.core.station import Station
from gaploop.scripts.cli import main
from gaploop.teleop.lerobot_devices.make import make_cameras, make_follower
from gaploop.teleop.lerobot_ros2 import Ros2RobotConfig, _rgb
from gaploop.teleop.lerobot_ros2.config_ros2 import EXAMPLE, Ros2Parameters

FILE = Path(__file__).parent / "robot_process.py"
NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
STATION = Station(name="ros", joint_limits_rad=dict.fromkeys(NAMES, (-2.0, 2.0)))


@pytest.fixture
def parameters(tmp_path: Path) -> Path:
    path = tmp_path / "arm.yaml"
    path.write_text(
        EXAMPLE.replace("width: 640, height: 480", "width: 64, height: 48").replace(
            "0.5  ", "0.4  "
        )
    )
    return path


BAD = [
    (("joints: [shoulder_pan", "joints: [gripper"), "list of different names"),
    (("ros_joints: [joint_1, ", "ros_joints: ["), "one by one"),
    (("scale: [57.29578, ", "scale: ["), "'scale' must be 6 numbers"),
    (("type: trajectory", "type: twist"), "Unknown type 'twist'"),
    (("rate_hz: 50.0", "rate_hz: 0"), "rate_hz: 0 must be a number from 1 to 1000"),
    (("stale_s", "stale"), "Unknown key 'stale'"),
    (("topic: /camera/image_raw, ", ""), "'topic' is missing"),
    (("ros__parameters", "parameters"), "'ros__parameters' must be|'joints' is missing"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_parameter_file_that_says_something_else_is_one_line(
    change: tuple[str, str], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(EXAMPLE.replace(*change))
    assert path.read_text() != EXAMPLE
    with pytest.raises(UnusableInputError, match=words):
        Ros2Parameters(path)


def test_the_example_is_printed_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = ["rollout", "--robot.type=ros2"]
    assert main([*rollout, "--robot.topics=help"]) == 0
    assert capsys.readouterr().out == EXAMPLE
    assert main(rollout) == 2
    assert "--robot.topics" in capsys.readouterr().err
    assert main(["ros2", "arm.yaml"]) == 2
    assert "--robot.topics=arm.yaml" in capsys.readouterr().err


def picture(encoding: str, channels: int, step: int = 0) -> Any:
    rows = np.arange(2 * (step or 3 * channels), dtype=np.uint8)
    return SimpleNamespace(
        width=3, height=2, encoding=encoding, step=step or 3 * channels, data=rows.tobytes()
    )


def test_pictures_become_rgb_whatever_their_layout() -> None:
    rgb = _rgb(picture("rgb8", 3), "raw")
    np.testing.assert_array_equal(_rgb(picture("bgr8", 3), "raw"), rgb[..., ::-1])
    assert _rgb(picture("mono8", 1), "raw").shape == (2, 3, 3)
    assert _rgb(picture("rgba8", 4), "raw")[0, 1].tolist() == [4, 5, 6]
    assert _rgb(picture("rgb8", 3, step=12), "raw")[1, 0].tolist() == [12, 13, 14]  # padded rows
    for bad, words in (
        (picture("16UC1", 2), "known: rgb8"),
        (SimpleNamespace(**{**vars(picture("rgb8", 3)), "height": 3}), "size that it states"),
    ):
        with pytest.raises(ValueError, match=words):
            _rgb(bad, "raw")
    with pytest.raises(ValueError, match="decoded"):
        _rgb(SimpleNamespace(data=b"no picture"), "compressed")


@pytest.fixture
def robot(parameters: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    pytest.importorskip("rclpy")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_DOMAIN_ID", str(os.getpid() % 100))
    pipe = subprocess.PIPE
    command = [sys.executable, str(FILE), str(parameters)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def tell(robot: subprocess.Popen[str], words: str) -> None:
    assert robot.stdin is not None
    robot.stdin.write(f"{words}\n")


def until(holds: Callable[[], bool], within_s: float = 20.0) -> bool:
    end_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.02)
    return holds()


def test_joints_go_by_name_and_a_node_that_is_killed_is_silent(
    robot: subprocess.Popen[str], parameters: Path, tmp_path: Path
) -> None:
    config = Ros2RobotConfig(topics=parameters, id="x", calibration_dir=tmp_path)
    follower = make_follower(config, STATION)
    try:
        assert follower.robot_type == "so101_follower"
        q_rad = follower.read().position_rad
        np.testing.assert_allclose(q_rad, 0.1 * np.arange(6), atol=1e-6)
        (camera,) = make_cameras(config)
        assert camera.frame().image.shape == (48, 64, 3)
        camera.close()
        follower.torque_on()
        goal = q_rad + 0.01

        def arrived() -> bool:
            follower.send(SafeCommand(goal, goal))  # as a loop does; some are left out (rate_hz)
            return bool(np.allclose(follower.read().position_rad, goal, atol=1e-6))

        assert until(arrived)
        for spoil in ("late", "old"):  # of a second ago, or older than what came before
            tell(robot, spoil)
            assert until(lambda: bool((follower.read().status & NO_REPLY).all()))
            np.testing.assert_allclose(follower.read().position_rad, goal, atol=1e-6)
            tell(robot, "well")
            assert until(lambda: not (follower.read().status & NO_REPLY).any())
        robot.kill()
        assert until(lambda: bool((follower.read().status & NO_REPLY).all()))
    finally:
        follower.close()


def test_a_dry_run_publishes_nothing(
    robot: subprocess.Popen[str], parameters: Path, tmp_path: Path
) -> None:
    config = Ros2RobotConfig(topics=parameters, dry_run=True, id="x", calibration_dir=tmp_path)
    follower = make_follower(config, STATION)
    try:
        follower.torque_on()
        for _ in range(20):
            follower.send(SafeCommand(np.zeros(6), np.zeros(6)))
            time.sleep(0.02)
        assert follower.read().position_rad[5] == pytest.approx(0.5)
    finally:
        follower.close()
    robot.kill()
    assert robot.stdout is not None
    assert robot.stdout.read() == ""


def test_what_is_not_there_is_named(
    robot: subprocess.Popen[str], parameters: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yaml"
    for old, new, words in (
        ("joint_1", "joint_9", "doesn't report where joint_9 is; it has"),
        (
            "/joint_states",
            "/joints",
            "no sensor_msgs/JointState on /joints.*with one: /joint_states",
        ),
    ):
        wrong.write_text(parameters.read_text().replace(old, new))
        config = Ros2RobotConfig(topics=wrong, id="x", calibration_dir=tmp_path)
        with pytest.raises(DeviceError, match=words):
            make_follower(config, STATION)
    assert robot.poll() is None


def test_joints_go_on_while_others_leave_their_topics(
    robot: subprocess.Popen[str], parameters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that was left at the wrong moment ended the thread that hears all others."""
    from rclpy.exceptions import InvalidHandle

    from gaploop.teleop.lerobot_ros2.node import TopicNode

    config = Ros2RobotConfig(topics=parameters, id="x", calibration_dir=tmp_path)
    follower, node = make_follower(config, STATION), TopicNode.shared()
    listen, left = node._executor.spin_once, [3]

    def in_the_middle(**given: float) -> None:
        if left[0]:
            left[0] -= 1
            raise InvalidHandle("cannot use Destroyable because destruction was requested")
        listen(**given)

    try:
        monkeypatch.setattr(node._executor, "spin_once", in_the_middle)
        assert until(lambda: not left[0])
        time.sleep(0.5)  # longer than stale_s: what was heard before is no reading any more
        assert not (follower.read().status & NO_REPLY).any()
        assert robot.poll() is None
    finally:
        node.leave()
        follower.close()


def test_a_policy_drives_and_attempts_are_recorded(
    robot: subprocess.Popen[str], parameters: Path, tmp_path: Path, picture_policy: Path
) -> None:
    arguments = [
        "rollout", "--robot.type=ros2", f"--robot.topics={parameters}", "--take_over=never",
        f"--policy.path={picture_policy}",
        f"--dataset.root={tmp_path / 'runs'}", "--dataset.num_episodes=1",
        "--dataset.episode_time_s=2", "--display=none", "--speed_scale=1", "--policy.fps=30",
        "--json",
    ]  # fmt: skip
    assert main(arguments) == 0
    robot.kill()
    assert robot.stdout is not None
    goals = [json.loads(line) for line in robot.stdout.read().splitlines()]
    assert len(goals) > 5
    assert max(abs(g["joint_1"]) for g in goals) <= np.radians(20.0) + 1e-6  # no station: a window
    info = json.loads((tmp_path / "runs" / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 1
    assert "observation.images.front" in info["features"]
