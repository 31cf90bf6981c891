"""The MuJoCo arm behind an emulated bus, and its scene as LeRobot's zmq cameras."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from gaploop.core.arms import ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.sim.plant import CameraServer, encode_jpeg, make_plant


@pytest.mark.parametrize("name", ["so101", "koch", "openmanipulator"])
def test_an_arm_goes_where_it_is_told_and_falls_without_power(name: str) -> None:
    plant = make_plant(name)
    start = plant.read().position_rad
    goal = start.copy()
    goal[0] += 0.3
    plant.command(goal)
    plant.advance(1.5)
    np.testing.assert_allclose(plant.read().position_rad[:5], goal[:5], atol=0.12)
    plant.power(np.zeros(6))
    plant.advance(2.0)
    fallen = plant.read()
    assert np.abs(fallen.position_rad - goal).max() > 0.2
    assert not fallen.load_pct.any()
    plant.power(np.ones(6))
    plant.advance(1.5)
    assert np.abs(plant.read().position_rad - goal)[0] < 0.15


def test_a_motor_pushes_no_harder_than_it_may() -> None:
    """Torque limits weren't heeded: a grip of 2 s on the cell's cube ended in an overload."""
    for share in (0.5, 0.24):
        plant = make_plant("so101")
        plant.power(np.full(6, share))
        plant.command(plant.read().position_rad - 2.0)
        plant.advance(0.01)
        assert abs(plant.read().load_pct[0]) == pytest.approx(100.0 * share, abs=0.1)


def test_time_that_is_no_whole_step_is_carried_over() -> None:
    plant = make_plant("so101")
    begin_s = plant.data.time
    for _ in range(100):
        plant.advance(0.0013)
    assert plant.data.time - begin_s == pytest.approx(0.13, abs=plant.model.opt.timestep)


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(UnusableInputError, match="Unknown arm model"):
        make_plant("ur5")


def test_lerobots_camera_sees_the_scene_move() -> None:
    """LeRobot's own ZMQCamera reads what is served.

    Incident: on a busy machine it closed its socket beside its own thread, which still read, after
    a warm-up of 1 s, and ZeroMQ aborted the program.
    """
    from lerobot.cameras.zmq import ZMQCamera, ZMQCameraConfig

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    plant = make_plant("koch")
    with CameraServer(plant, ["top", "side"], port=port, size_px=(160, 120), fps=20.0):
        camera = ZMQCamera(
            ZMQCameraConfig(
                server_address="127.0.0.1", port=port, camera_name="side", timeout_ms=60_000
            )
        )
        camera.connect(warmup=False)
        camera.async_read(timeout_ms=60_000.0)
        before = np.asarray(camera.read())
        goal = plant.read().position_rad
        goal[0] -= 0.8
        plant.command(goal)
        plant.advance(1.5)
        for _ in range(4):
            after = np.asarray(camera.read())
        camera.stop_event.set()
        camera.thread.join(60.0)
        camera.disconnect()
    assert before.shape == (120, 160, 3)
    assert np.abs(after.astype(int) - before.astype(int)).max() > 40


def test_channels_arrive_as_they_were_drawn() -> None:
    """LeRobot hands on what OpenCV decodes, unswapped."""
    import cv2

    red = np.zeros((32, 32, 3), dtype=np.uint8)
    red[..., 0] = 250
    seen = cv2.imdecode(np.frombuffer(encode_jpeg(red), np.uint8), cv2.IMREAD_COLOR)
    assert seen[16, 16, 0] > 200
    assert seen[16, 16, 2] < 50


def test_the_camera_port_must_be_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnusableInputError, match="can't be used"):
            CameraServer(make_plant("koch"), ["top"], port=port)


@pytest.mark.parametrize("name", ["so101", "koch", "openmanipulator"])
def test_an_arm_at_its_park_pose_stays_there_without_torque(name: str) -> None:
    """The folded rest: an arm whose torque goes off there doesn't fall."""
    plant, arm = make_plant(name), ArmModel.load(name)
    q = plant.read().position_rad
    q[[0, 4]] = 0.0
    for joint, angle_rad in ARMS[name].park_rad.items():
        q[arm.joint_names.index(joint)] = angle_rad
    plant.data.qpos[plant._qpos] = q
    plant.power(np.zeros(len(q), dtype=np.bool_))
    plant.advance(2.0)
    tip_m, fallen_m = (arm.points_m(at)[0, 2] for at in (q, plant.read().position_rad))
    assert tip_m - fallen_m < 0.015
