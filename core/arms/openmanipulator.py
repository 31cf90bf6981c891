"""ROBOTIS' OMX-F (ids 11 to 16) and OMX-L (ids 1 to 6), as LeRobot drives them."""

from math import pi
from typing import Final

from gaploop.core import arm

SETTINGS: Final = {"Baud_Rate": 3, "Return_Delay_Time": 0}

ARM: Final = arm.Arm(
    name="openmanipulator",
    robot_types=("omx_follower", "omx_leader"),
    kinematics=arm.ArmSpec(
        label="OpenMANIPULATOR OMX-F",
        model=arm.ModelFile("gaploop", "core/arms/openmanipulator.xml", "pip install gaploop"),
        points=(
            arm.GuardedPoint("moving finger tip", "moving_finger", (0.0724, -0.0091, 0.0)),
            arm.GuardedPoint("geared finger tip", "geared_finger", (0.0724, 0.0092, 0.0)),
            arm.GuardedPoint("wrist", "wrist"),
            arm.GuardedPoint("elbow", "lower_arm"),
        ),
        workspace_m=((-0.20, 0.40), (-0.35, 0.35), (-0.005, 0.45)),
        gripper_percent_rad=(-pi, pi),
        half_range_rad=arm.half_ranges(3.1416, 1.763, 1.623, 1.92, 3.1416, 0.5),
    ),
    stall_current_a=1.3,  # an XL330 stalls at 1.47 A and 5 V (ROBOTIS' sheet)
    full_turn=None,
    park_rad={"shoulder_lift": -1.868, "elbow_flex": 1.675, "wrist_flex": 1.6},
    emulated={
        "follower": arm.ServoChain(
            protocol="dynamixel",
            models=("xl430-w250",) * 3 + ("xl330-m288",) * 3,
            first_id=11,
            settings=SETTINGS,
            homing_offset=100,
        ),
        "leader": arm.ServoChain(
            protocol="dynamixel",
            models=("xl330-m288",) * 5 + ("xl330-m077",),
            settings=SETTINGS,
            inverted=frozenset({"gripper"}),  # OmxLeader inverts its Drive_Mode
            homing_offset=100,
        ),
    },
)
