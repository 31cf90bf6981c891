"""The Koch v1.1: a follower of XL430 and XL330-M288, a leader of XL330-M077."""

from typing import Final

from gaploop.core import arm

SETTINGS: Final = {"Baud_Rate": 3, "Return_Delay_Time": 0}

ARM: Final = arm.Arm(
    name="koch",
    robot_types=("koch_follower", "koch_leader"),
    kinematics=arm.ArmSpec(
        label="Koch v1.1",
        model=arm.ModelFile("gaploop", "core/arms/koch.xml", "pip install gaploop"),
        points=(
            arm.GuardedPoint("fixed finger tip", "gripper", (-0.0693, 0.0105, 0.0)),
            arm.GuardedPoint("moving finger tip", "moving_finger", (-0.056, 0.0113, -0.014)),
            arm.GuardedPoint("wrist", "wrist", (0.0, 0.0131, 0.0)),
            arm.GuardedPoint("elbow", "lower_arm", (0.0, 0.0144, 0.0)),
        ),
        workspace_m=((-0.15, 0.32), (-0.28, 0.28), (-0.005, 0.36)),
        gripper_percent_rad=(-0.032, 1.6),
        half_range_rad=arm.half_ranges(2.2, 1.085, 1.51, 2.0, 3.14, 0.816),
    ),
    stall_current_a=1.3,  # an XL330 stalls at 1.47 A and 5 V (ROBOTIS' sheet)
    full_turn=frozenset({"shoulder_pan", "wrist_roll"}),
    park_rad={"shoulder_lift": 1.085, "elbow_flex": 1.51, "wrist_flex": 0.1},
    emulated={
        "follower": arm.ServoChain(
            protocol="dynamixel",
            models=("xl430-w250",) * 2 + ("xl330-m288",) * 4,
            zero_ticks=arm.ASSEMBLED_TICKS,
            settings=SETTINGS,
        ),
        "leader": arm.ServoChain(
            protocol="dynamixel",
            models=("xl330-m077",) * 6,
            zero_ticks=arm.ASSEMBLED_TICKS,
            settings=SETTINGS,
            inverted=frozenset({"elbow_flex"}),  # KochLeader inverts its Drive_Mode
        ),
    },
)
