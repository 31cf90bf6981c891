"""Control tables of the DYNAMIXEL X servos of Koch's arms and OpenMANIPULATOR-X/OMX.

Addresses, initial values and ranges: ROBOTIS e-Manual, pages XL330-M288-T, XL330-M077-T and
XL430-W250-T, "Control Table of EEPROM Area" and "of RAM Area".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from gaploop.teleop.emulator.registers import ControlTable, EmulatedRegister

BAUD_RATES: Final = (9_600, 57_600, 115_200, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 4_500_000)
"""Bits per second for each value of Baud_Rate."""

RAM: Final = 64
"""First address that may be written with torque on, and that a reboot forgets."""

FIRMWARE: Final = 52  # a version that has fast sync read (it came with 45 on the X series)
_GAIN: Final = 16_383
_EXTENDED: Final = 1_048_575
_PROFILE: Final = 32_767


@functools.cache
def dynamixel_table(model: str) -> ControlTable:
    """Return the control table of `model`, one of xl330-m077, xl330-m288 and xl430-w250."""
    small = model.startswith("xl330")
    registers = [*_eeprom(model, small), *_ram(small), *_present(small), *_indirect(small)]
    return ControlTable(tuple(registers), 228 if small else 662)


def _eeprom(model: str, small: bool) -> Iterator[EmulatedRegister]:
    def kept(
        name: str, address: int, size: int, initial: int, low: int, high: int
    ) -> EmulatedRegister:
        return EmulatedRegister(name, address, size, initial, low, high, kept=True, signed=low < 0)

    number = {"xl330-m077": 1190, "xl330-m288": 1200, "xl430-w250": 1060}[model]
    volts = (70, 35, 31, 70) if small else (140, 60, 60, 140)
    speed = {"xl330-m077": (1620, 2047), "xl330-m288": (445, 2047), "xl430-w250": (265, 1023)}
    yield EmulatedRegister("Model_Number", 0, 2, number, writable=False, kept=True)
    yield EmulatedRegister("Model_Information", 2, 4, 0, writable=False, kept=True)
    yield EmulatedRegister("Firmware_Version", 6, 1, FIRMWARE, writable=False, kept=True)
    yield kept("ID", 7, 1, 1, 0, 252)
    yield kept("Baud_Rate", 8, 1, 1, 0, 6 if small else 7)
    yield kept("Return_Delay_Time", 9, 1, 250, 0, 254)
    yield kept("Drive_Mode", 10, 1, 0, 0, 13)
    yield kept("Operating_Mode", 11, 1, 3, 0, 16)
    yield kept("Secondary_ID", 12, 1, 255, 0, 255)
    yield kept("Protocol_Type", 13, 1, 2, 2 if small else 1, 22 if small else 2)
    yield kept("Homing_Offset", 20, 4, 0, -1_044_479, 1_044_479)
    yield kept("Moving_Threshold", 24, 4, 10, 0, 1_023)
    yield kept("Temperature_Limit", 31, 1, 70 if small else 72, 0, 100)
    yield kept("Max_Voltage_Limit", 32, 2, volts[0], volts[2], volts[3])
    yield kept("Min_Voltage_Limit", 34, 2, volts[1], volts[2], volts[3])
    yield kept("PWM_Limit", 36, 2, 885, 0, 885)
    if small:
        yield kept("Current_Limit", 38, 2, 1_750, 0, 1_750)
    yield kept("Velocity_Limit", 44, 4, speed[model][0], 0, speed[model][1])
    yield kept("Max_Position_Limit", 48, 4, 4_095, 0, 4_095)
    yield kept("Min_Position_Limit", 52, 4, 0, 0, 4_095)
    yield kept("Startup_Configuration", 60, 1, 0, 0, 3)
    if small:
        yield kept("PWM_Slope", 62, 1, 140, 1, 255)
    yield kept("Shutdown", 63, 1, 53 if small else 52, 0, 255)


def _ram(small: bool) -> Iterator[EmulatedRegister]:
    gains = (1_600, 180, 0, 400) if small else (1_000, 100, 4_000, 640)
    yield EmulatedRegister("Torque_Enable", 64, 1, 0, 0, 1)
    yield EmulatedRegister("LED", 65, 1, 0, 0, 1)
    yield EmulatedRegister("Status_Return_Level", 68, 1, 2, 0, 2)
    yield EmulatedRegister("Registered_Instruction", 69, 1, writable=False)
    yield EmulatedRegister("Hardware_Error_Status", 70, 1, writable=False)
    yield EmulatedRegister("Velocity_I_Gain", 76, 2, gains[0], 0, _GAIN)
    yield EmulatedRegister("Velocity_P_Gain", 78, 2, gains[1], 0, _GAIN)
    yield EmulatedRegister("Position_D_Gain", 80, 2, gains[2], 0, _GAIN)
    yield EmulatedRegister("Position_I_Gain", 82, 2, 0, 0, _GAIN)
    yield EmulatedRegister("Position_P_Gain", 84, 2, gains[3], 0, _GAIN)
    yield EmulatedRegister("Feedforward_2nd_Gain", 88, 2, 0, 0, _GAIN)
    yield EmulatedRegister("Feedforward_1st_Gain", 90, 2, 0, 0, _GAIN)
    yield EmulatedRegister("Bus_Watchdog", 98, 1, 0, 0, 127)
    yield EmulatedRegister("Goal_PWM", 100, 2, 885, -885, 885, signed=True)
    if small:
        yield EmulatedRegister("Goal_Current", 102, 2, 1_750, -1_750, 1_750, signed=True)
    yield EmulatedRegister("Goal_Velocity", 104, 4, 0, -2_047, 2_047, signed=True)
    yield EmulatedRegister("Profile_Acceleration", 108, 4, 0, 0, _PROFILE)
    yield EmulatedRegister("Profile_Velocity", 112, 4, 0, 0, _PROFILE)
    yield EmulatedRegister("Goal_Position", 116, 4, 0, -_EXTENDED, _EXTENDED, signed=True)


def _present(small: bool) -> Iterator[EmulatedRegister]:
    for name, address, size, signed in (
        ("Realtime_Tick", 120, 2, False),
        ("Moving", 122, 1, False),
        ("Moving_Status", 123, 1, False),
        ("Present_PWM", 124, 2, True),
        ("Present_Current" if small else "Present_Load", 126, 2, True),
        ("Present_Velocity", 128, 4, True),
        ("Present_Position", 132, 4, True),
        ("Velocity_Trajectory", 136, 4, True),
        ("Position_Trajectory", 140, 4, True),
        ("Present_Input_Voltage", 144, 2, False),
        ("Present_Temperature", 146, 1, False),
        ("Backup_Ready", 147, 1, False),
    ):
        yield EmulatedRegister(name, address, size, writable=False, signed=signed)


def _indirect(small: bool) -> Iterator[EmulatedRegister]:
    """XL330: 20 pairs. XL430: 56 pairs in two blocks."""
    blocks = ((1, 20, 168, 208),) if small else ((1, 28, 168, 224), (29, 28, 578, 634))
    last = 227 if small else 661
    for first, count, addresses, data in blocks:
        for n in range(count):
            yield EmulatedRegister(
                f"Indirect_Address_{first + n}", addresses + 2 * n, 2, data + n, RAM, last
            )
        for n in range(count):
            yield EmulatedRegister(f"Indirect_Data_{first + n}", data + n, 1, 0, 0, 255)
