"""Which calibrated ranges can be driven with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.arms import ARMS
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.servos.calibration import MotorRange, travel_ticks, unusable
from gaploop.teleop.servos.registers import Protocol

TYPES = [kind for name in ("so101", "koch") for kind in ARMS[name].robot_types if "bi_" not in kind]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.endswith(("follower", "leader"))])
@given(swept=st.floats(0.1, 1.0), to_low=st.booleans())
def test_a_joint_that_was_not_swept_from_end_to_end_is_named(
    kind: str, swept: float, to_low: bool
) -> None:
    """Half a range was accepted in silence. Published ones have 0.81 of the model's and more."""
    plan = arm_plan("so101" if kind.startswith("so") else "koch", kind.rpartition("_")[2])
    whole = {name: MotorRange.of(kept) for name, kept in plan.calibration().items()}
    assert not list(unusable(plan.protocol, kind, whole, {}))
    travels = travel_ticks(kind)
    assert {"elbow_flex", "shoulder_lift", "wrist_flex"} <= set(travels)
    assert not {"gripper", "wrist_roll"} & set(travels)
    for joint, travel in travels.items():
        one = whole[joint]
        low, high = (
            (one.range_max - round(swept * travel), one.range_max)
            if to_low
            else (one.range_min, one.range_min + round(swept * travel))
        )
        found = list(
            unusable(plan.protocol, kind, {joint: MotorRange(one.homing_offset, low, high)}, {})
        )
        assert bool(found) is (swept < 0.7) or abs(swept - 0.7) < 0.01
        if found:
            assert found[0].startswith(f"{joint}: ")


def test_arms_without_a_model_or_with_whole_turns_are_left_alone() -> None:
    narrow = {"elbow_flex": MotorRange(0, 1000, 1500)}
    for kind in ("lekiwi", "omx_follower", "somebodys_arm"):
        assert not list(unusable(Protocol.DYNAMIXEL, kind, narrow, {}))
