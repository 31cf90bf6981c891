"""Memory table of Feetech's STS servos.

Addresses, initial values and ranges: Feetech, "STS series memory table" (SMS & STS), and LeRobot's
motors/feetech/tables.py, whose names are used. Where a factory value isn't in the table, it is
what LeRobot's users read from a 12 V STS3215.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from gaploop.teleop.emulator.registers import ControlTable, EmulatedRegister

BAUD_RATES: Final = (1_000_000, 500_000, 250_000, 128_000, 115_200, 76_800, 57_600, 38_400)
"""Bits per second for each value of Baud_Rate."""

SRAM: Final = 40
"""First address that is never kept without power."""

MODEL_NUMBERS: Final = {"sts3215": 777, "sts3250": 2825}
FIRMWARE: Final = (3, 10)


@functools.cache
def feetech_table(model: str) -> ControlTable:
    """Return the memory table of `model`, sts3215 or sts3250."""
    registers = [*_eprom(MODEL_NUMBERS[model]), *_sram(), *_feedback(), *_factory()]
    return ControlTable(tuple(registers), 87)


def _eprom(number: int) -> Iterator[EmulatedRegister]:
    for name, address, size, value in (
        ("Firmware_Major_Version", 0, 1, FIRMWARE[0]),
        ("Firmware_Minor_Version", 1, 1, FIRMWARE[1]),
        ("Endianness", 2, 1, 0),
        ("Model_Number", 3, 2, number),
    ):
        yield EmulatedRegister(name, address, size, value, writable=False, kept=True)
    for name, address, size, initial, low, high in (
        ("ID", 5, 1, 1, 0, 253),
        ("Baud_Rate", 6, 1, 0, 0, 7),
        ("Return_Delay_Time", 7, 1, 250, 0, 254),
        ("Response_Status_Level", 8, 1, 1, 0, 1),
        ("Min_Position_Limit", 9, 2, 0, 0, 4_095),
        ("Max_Position_Limit", 11, 2, 4_095, 0, 4_095),
        ("Max_Temperature_Limit", 13, 1, 70, 0, 100),
        ("Max_Voltage_Limit", 14, 1, 140, 0, 254),
        ("Min_Voltage_Limit", 15, 1, 40, 0, 254),
        ("Max_Torque_Limit", 16, 2, 1_000, 0, 1_000),
        ("Phase", 18, 1, 12, 0, 254),
        ("Unloading_Condition", 19, 1, 44, 0, 254),
        ("LED_Alarm_Condition", 20, 1, 47, 0, 254),
        ("P_Coefficient", 21, 1, 32, 0, 254),
        ("D_Coefficient", 22, 1, 32, 0, 254),
        ("I_Coefficient", 23, 1, 0, 0, 254),
        ("Minimum_Startup_Force", 24, 2, 16, 0, 1_000),
        ("CW_Dead_Zone", 26, 1, 1, 0, 32),
        ("CCW_Dead_Zone", 27, 1, 1, 0, 32),
        ("Protection_Current", 28, 2, 500, 0, 2_047),
        ("Angular_Resolution", 30, 1, 1, 1, 128),
        ("Homing_Offset", 31, 2, 0, 0, 4_095),
        ("Operating_Mode", 33, 1, 0, 0, 3),
        ("Protective_Torque", 34, 1, 20, 0, 254),
        ("Protection_Time", 35, 1, 200, 0, 254),
        ("Overload_Torque", 36, 1, 80, 0, 254),
        ("Velocity_closed_loop_P_proportional_coefficient", 37, 1, 10, 0, 254),
        ("Over_Current_Protection_Time", 38, 1, 200, 0, 254),
        ("Velocity_closed_loop_I_integral_coefficient", 39, 1, 10, 0, 254),
    ):
        yield EmulatedRegister(name, address, size, initial, low, high, kept=True)


def _sram() -> Iterator[EmulatedRegister]:
    yield EmulatedRegister("Torque_Enable", 40, 1, 0, 0, 128)
    yield EmulatedRegister("Acceleration", 41, 1, 0, 0, 254)
    yield EmulatedRegister("Goal_Position", 42, 2, 0)
    yield EmulatedRegister("Goal_Time", 44, 2, 0)
    yield EmulatedRegister("Goal_Velocity", 46, 2, 0)
    yield EmulatedRegister("Torque_Limit", 48, 2, 1_000, 0, 1_000)
    yield EmulatedRegister("Lock", 55, 1, 1, 0, 1)


def _feedback() -> Iterator[EmulatedRegister]:
    for name, address, size in (
        ("Present_Position", 56, 2),
        ("Present_Velocity", 58, 2),
        ("Present_Load", 60, 2),
        ("Present_Voltage", 62, 1),
        ("Present_Temperature", 63, 1),
        ("Async_Write_Flag", 64, 1),
        ("Status", 65, 1),
        ("Moving", 66, 1),
        ("Present_Current", 69, 2),
        ("Goal_Position_2", 71, 2),
    ):
        yield EmulatedRegister(name, address, size, writable=False)


def _factory() -> Iterator[EmulatedRegister]:
    for name, address, initial in (
        ("Moving_Velocity_Threshold", 80, 3),
        ("DTs", 81, 1),
        ("Velocity_Unit_factor", 82, 1),
        ("Hts", 83, 0),
        ("Maximum_Velocity_Limit", 84, 100),
        ("Maximum_Acceleration", 85, 100),
        ("Acceleration_Multiplier", 86, 4),
    ):
        yield EmulatedRegister(name, address, 1, initial, 0, 254, kept=True)
