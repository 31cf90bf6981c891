"""Arms of which one motor's calibration is wrong, as people have left them."""

from __future__ import annotations

from dataclasses import replace

from gaploop.teleop.emulator.arms import ArmPlan
from gaploop.teleop.emulator.feetech import sign_magnitude
from gaploop.teleop.servos.calibration import DYNAMIXEL_MOST, FEETECH_MOST
from gaploop.teleop.servos.registers import Protocol

FAULTS = {
    "straddles": "its horn stands so that its travel runs across the encoder's end; the sweep over "
    "it left the whole turn as its range, in motor and file",
    "saturated": "the homing offset that it needs didn't fit, and was cut, in motor and file",
    "differs": "the motor holds another homing offset than the file",
}


def faulty(plan: ArmPlan, name: str, fault: str) -> tuple[ArmPlan, dict[str, dict[str, int]]]:
    """Return an arm that is calibrated so, and LeRobot's calibration file of it."""
    assert fault in ("", *FAULTS)
    held, kept = plan.calibrated(), plan.calibration()
    (servo,) = (s for s in held.servos if s.name == name)
    own, feetech, settings = kept[name], plan.protocol is Protocol.FEETECH, dict(servo.settings)
    if fault == "straddles":
        own |= {"range_min": 0, "range_max": 4095}
        settings |= {"Min_Position_Limit": 0, "Max_Position_Limit": 4095}
        servo = replace(servo, zero_ticks=servo.zero_ticks + 2048)
    if fault == "saturated":
        own["homing_offset"] = FEETECH_MOST if feetech else DYNAMIXEL_MOST
    offset = own["homing_offset"] + 150 * (fault == "differs")
    settings["Homing_Offset"] = sign_magnitude(offset, 11) if feetech else offset
    return held.with_servo(name, settings=settings, zero_ticks=servo.zero_ticks), kept
