"""An emulated servo bus: arms that need no hardware, over a real serial port."""

from gaploop.teleop.emulator.arms import ArmPlan, arm_plan, koch, openmanipulator, so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault, parse_faults
from gaploop.teleop.emulator.servo import ServoPlan

__all__ = [
    "ArmPlan",
    "EmulatedBus",
    "Fault",
    "ServoPlan",
    "arm_plan",
    "koch",
    "openmanipulator",
    "parse_faults",
    "so101",
]
