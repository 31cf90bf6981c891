"""Our conversions are LeRobot's own, and turn back into themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lerobot.motors import Motor, MotorCalibration, MotorNormMode
from lerobot.motors.dynamixel import DynamixelMotorsBus
from lerobot.motors.feetech import FeetechMotorsBus

from gaploop.core.kinematics import ARM_MODELS
from gaploop.teleop.lerobot_devices.arm import JointUnits, joined, joint_units

MODES = st.sampled_from(list(MotorNormMode))
RANGES = st.tuples(st.integers(0, 2000), st.integers(2001, 4095))


@st.composite
def buses(draw: st.DrawFn) -> Any:
    """A LeRobot bus of either maker with a calibration; never connected."""
    feetech = draw(st.booleans())
    names = ("shoulder_pan", "elbow_flex", "gripper")
    model = "sts3215" if feetech else "xl330-m288"
    motors = {name: Motor(k + 1, model, draw(MODES)) for k, name in enumerate(names)}
    calibration = {}
    for k, name in enumerate(names):
        low, high = draw(RANGES)
        calibration[name] = MotorCalibration(k + 1, draw(st.integers(0, 1)), 0, low, high)
    kind = FeetechMotorsBus if feetech else DynamixelMotorsBus
    return kind("/dev/null", motors, calibration)


@given(buses(), st.lists(st.integers(-200, 4300), min_size=3, max_size=3))
def test_normalised_values_are_lerobots(bus: Any, ticks: list[int]) -> None:
    units = joint_units(bus, "unknown")
    theirs = bus._normalize({k + 1: tick for k, tick in enumerate(ticks)})
    ours = units.ticks_to_units(np.array(ticks, dtype=float))
    np.testing.assert_allclose(ours, list(theirs.values()), rtol=0, atol=1e-9)


@given(buses(), st.lists(st.floats(-130, 130), min_size=3, max_size=3))
def test_goals_are_lerobots_but_for_its_rounding_down(bus: Any, values: list[float]) -> None:
    units = joint_units(bus, "unknown")
    theirs = list(bus._unnormalize({k + 1: value for k, value in enumerate(values)}).values())
    ours = units.units_to_ticks(np.array(values))
    for exact, whole in zip(ours, theirs, strict=True):
        assert whole in {int(exact - 1e-6), int(exact + 1e-6)}


@given(buses(), st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), st.booleans())
def test_angles_turn_back_into_themselves(bus: Any, share: list[float], known: bool) -> None:
    units = joint_units(bus, "so101_follower" if known else "unknown")
    low, high = units.joint_limits_rad.T
    q_rad = low + np.array(share) * (high - low)
    np.testing.assert_allclose(units.ticks_to_rad(units.rad_to_ticks(q_rad)), q_rad, atol=1e-9)
    there = units.ticks_to_units(units.rad_to_ticks(q_rad))
    back = units.ticks_to_rad(units.units_to_ticks(there))
    np.testing.assert_allclose(back, q_rad, atol=1e-6)


def _so101(drive_mode: int = 0) -> JointUnits:
    motors = {
        "wrist_roll": Motor(5, "sts3215", MotorNormMode.DEGREES),
        "gripper": Motor(6, "sts3215", MotorNormMode.RANGE_0_100),
    }
    calibration = {
        "wrist_roll": MotorCalibration(5, 0, 0, 0, 4095),
        "gripper": MotorCalibration(6, drive_mode, 0, 2000, 3000),
    }
    return joint_units(FeetechMotorsBus("/dev/null", motors, calibration), "so101_follower")


@pytest.mark.parametrize("drive_mode", [0, 1])
def test_a_known_gripper_is_closed_where_its_model_is(drive_mode: int) -> None:
    units = _so101(drive_mode)
    closed, opened = ARM_MODELS["so101"].gripper_percent_rad
    for percent, angle in ((0.0, closed), (100.0, opened)):
        ticks = units.units_to_ticks(np.array([0.0, percent]))
        assert units.ticks_to_rad(ticks)[1] == pytest.approx(angle)


def test_zero_is_the_middle_of_the_calibrated_range_and_a_turn_has_4096_ticks() -> None:
    units = _so101()
    assert units.ticks_to_rad(np.array([2047.5, 2500.0]))[0] == 0.0
    quarter = units.ticks_to_rad(np.array([2047.5 + 1024, 2500.0]))[0]
    assert quarter == pytest.approx(np.pi / 2)
    assert units.label == "deg"


def test_two_arms_keep_their_own_conversions() -> None:
    both = joined([_so101(0), _so101(1)], ["left_", "right_"])
    assert both.names == ("left_wrist_roll", "left_gripper", "right_wrist_roll", "right_gripper")
    values = both.ticks_to_units(np.array([2047.5, 2000.0, 2047.5, 2000.0]))
    assert values.tolist() == [0.0, 0.0, 0.0, 100.0]
