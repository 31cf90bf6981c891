"""A robot that LeRobot knows and we don't works through its own methods."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_arms import PLANS, calibration_folder
from lerobot.motors import Motor, MotorNormMode
from lerobot.motors.feetech import FeetechMotorsBus
from plugin_devices.config import PluginArmConfig, PluginLeaderConfig, PluginSoConfig

from gaploop.core.clock import ManualClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import NO_REPLY, FloatArray, SafeCommand
from gaploop.core.station import Station
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.lerobot_devices.arm import arms_of
from gaploop.teleop.lerobot_devices.generic import WINDOW_RAD, GenericFollower, GenericLeader
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.lerobot_devices.servo_arm import ServoFollower


def plugin(tmp_path: Path, **given: Any) -> GenericFollower:
    station = Station(name="test", joint_limits_rad={"base": (-1.0, 1.0)})
    follower = make_follower(
        PluginArmConfig(id="x", calibration_dir=tmp_path, **given), station, ManualClock(7.0)
    )
    assert isinstance(follower, GenericFollower)
    return follower


def test_an_arm_whose_bus_has_no_port_handler_is_left_to_its_class() -> None:
    """LeRobot 0.7's buses speak through rustypot: the driver asked for attributes that are gone."""
    bus = object.__new__(FeetechMotorsBus)
    bus.motors = {"pan": Motor(1, "sts3215", MotorNormMode.DEGREES)}
    assert arms_of(SimpleNamespace(bus=bus, action_features={"pan.pos": float})) == []
    bus.port_handler, bus.protocol_version = object(), 0
    (arm,) = arms_of(SimpleNamespace(bus=bus, action_features={"pan.pos": float}))
    assert arm[1].bus is bus


def test_it_is_read_and_moved_in_radians(tmp_path: Path) -> None:
    follower = plugin(tmp_path)
    state = follower.read()
    np.testing.assert_allclose(np.degrees(state.position_rad), [10.0, -30.0])
    assert state.velocity_rad_s[0] == pytest.approx(math.pi / 2)
    assert math.isnan(state.velocity_rad_s[1])
    assert state.current_a[1] == 1.5
    assert np.isnan(state.temperature_c).all()
    assert state.t_s == 7.0
    goal = np.radians([3.0, -20.0])
    follower.send(SafeCommand(goal, goal))
    assert follower.device.at["base"] == 10.0  # nothing moves before torque is on
    follower.torque_on()
    assert follower.device.torque
    follower.send(SafeCommand(goal, goal))
    assert follower.device.at["base"] == pytest.approx(3.0)
    np.testing.assert_allclose(follower.from_units(follower.to_units(goal)), goal)
    follower.close()
    assert not follower.device.torque
    assert follower.device.disconnects == 1


def test_limits_are_the_stations_or_a_window_around_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = plugin(tmp_path)
    assert follower.joint_limits_rad[0].tolist() == [-1.0, 1.0]
    middle = follower.joint_limits_rad[1].mean()
    assert math.degrees(middle) == pytest.approx(-30.0)
    assert np.ptp(follower.joint_limits_rad[1]) == pytest.approx(2 * WINDOW_RAD)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "elbow may move 20" in line
    assert "joint_limits_rad" in line


def test_a_robot_that_stops_answering_is_silent_not_fatal(tmp_path: Path) -> None:
    follower = plugin(tmp_path)
    follower.torque_on()
    follower.device.broken = True
    state = follower.read()
    assert (state.status & NO_REPLY).all()
    np.testing.assert_allclose(np.degrees(state.position_rad), [10.0, -30.0])
    follower.read()
    assert follower.fault_counts()["failed reads"] == 1  # one outage, however long: not 24,000
    goal = np.zeros(2)
    with pytest.raises(DeviceError, match=r"^plugin_arm_for_tests takes no goals: no answer$"):
        _send_often(follower, goal)
    with pytest.raises(DeviceError, match="power off"):
        follower.torque_off()
    assert follower.device.disconnects == 1  # the last resort was tried


def _send_often(follower: GenericFollower, goal: FloatArray) -> None:
    for _ in range(30):
        follower.send(SafeCommand(goal, goal))


def test_torque_off_without_a_switch_disconnects_and_torque_on_connects_again(
    tmp_path: Path,
) -> None:
    follower = plugin(tmp_path, lacks_switch=True)
    follower.torque_on()
    follower.torque_off()
    assert follower.device.disconnects == 1
    follower.torque_on()
    assert follower.device.connected
    follower.close()


def test_a_leader_of_any_type_leads_and_grows_old_when_it_is_silent(tmp_path: Path) -> None:
    clock, follower = ManualClock(1.0), plugin(tmp_path)
    leader = make_leader(PluginLeaderConfig(id="l", calibration_dir=tmp_path), follower, clock)
    assert isinstance(leader, GenericLeader)
    sample = leader.read(0.0)
    np.testing.assert_allclose(np.degrees(sample.q_rad), [-5.0, 5.0])
    leader.device.broken = True
    clock.sleep_until(2.0)
    assert leader.read(0.0).t_s == leader.read(0.0).t_s == 1.0
    assert leader.fault_counts() == {"failed reads": 1}
    leader.device.broken = False
    leader.read(0.0)
    leader.device.broken = True
    leader.read(0.0)
    assert leader.fault_counts() == {"failed reads": 2}
    leader.close()
    leader.close()


def test_a_leader_of_other_joints_is_refused(tmp_path: Path) -> None:
    follower = plugin(tmp_path)
    config = PluginLeaderConfig(id="l", calibration_dir=tmp_path, joints=("wrist",))
    with pytest.raises(UnusableInputError, match=r"gives wrist; plugin_arm_for_tests takes base"):
        make_leader(config, follower)


@pytest.mark.parametrize("couples", [False, True])
def test_a_third_partys_arm_on_a_known_bus(couples: bool, tmp_path: Path) -> None:
    """Its bus is driven directly where its class adds nothing to it."""
    with EmulatedBus("so101", hand="still", wire_time=False) as bus:
        folder = calibration_folder(tmp_path, "follower", PLANS["so101"]().calibration())
        config = PluginSoConfig(id="arm", calibration_dir=folder, port=bus.port, couples=couples)
        follower = make_follower(config)
        assert isinstance(follower, GenericFollower if couples else ServoFollower)
        follower.torque_on()
        with bus.lock:
            assert all(servo.memory["Torque_Enable"] for servo in bus.servos.values())
        follower.close()
        with bus.lock:
            assert not any(servo.memory["Torque_Enable"] for servo in bus.servos.values())
