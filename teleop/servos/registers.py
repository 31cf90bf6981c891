"""Where each servo keeps what, and what one step of it is worth.

Sources: ROBOTIS e-manual, pages XL330-M077-T, XL330-M288-T, XL430-W250-T, XM430-W350, XC330
("Control Table of RAM Area" and "of EEPROM Area"); Feetech, "Magnetic encoder STS servo, memory
table analysis". Names are the manuals'.

The whole state of a Dynamixel lies in registers 126 to 146, on every X model alike. The indirect
block would be 7 bytes shorter, but begins at 208 on the XL330 (20 bytes long) and at 224 on the
XL430, so a bus with both, such as a Koch arm's, would need two transactions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TICKS_PER_TURN: Final = 4096
"""Both makers' encoders (e-manual "Resolution"; Feetech: 0.087° a step)."""
RAD_PER_TICK: Final = 2.0 * math.pi / TICKS_PER_TURN


class Protocol(StrEnum):
    """How a bus talks."""

    DYNAMIXEL = "dynamixel"
    FEETECH = "feetech"


@dataclass(frozen=True, slots=True)
class ServoRegister:
    """One entry of a control table: first byte's address and number of bytes."""

    address: int
    size: int

    @property
    def end(self) -> int:
        """Address of the byte after it."""
        return self.address + self.size

    def value_in(self, data: bytes, start: int) -> int:
        """Return its value, unsigned, in bytes that were read from address `start` on."""
        place = self.address - start
        return int.from_bytes(data[place : place + self.size], "little")


DYNAMIXEL: Final[Mapping[str, ServoRegister]] = {
    "Model_Number": ServoRegister(0, 2),
    "Firmware_Version": ServoRegister(6, 1),
    "ID": ServoRegister(7, 1),
    "Baud_Rate": ServoRegister(8, 1),
    "Return_Delay_Time": ServoRegister(9, 1),
    "Drive_Mode": ServoRegister(10, 1),
    "Operating_Mode": ServoRegister(11, 1),
    "Homing_Offset": ServoRegister(20, 4),
    "Current_Limit": ServoRegister(38, 2),
    "Max_Position_Limit": ServoRegister(48, 4),
    "Min_Position_Limit": ServoRegister(52, 4),
    "Torque_Enable": ServoRegister(64, 1),
    "Hardware_Error_Status": ServoRegister(70, 1),
    "Velocity_I_Gain": ServoRegister(76, 2),
    "Velocity_P_Gain": ServoRegister(78, 2),
    "Position_D_Gain": ServoRegister(80, 2),
    "Position_I_Gain": ServoRegister(82, 2),
    "Position_P_Gain": ServoRegister(84, 2),
    "Goal_PWM": ServoRegister(100, 2),
    "Goal_Current": ServoRegister(102, 2),
    "Goal_Velocity": ServoRegister(104, 4),
    "Profile_Acceleration": ServoRegister(108, 4),
    "Profile_Velocity": ServoRegister(112, 4),
    "Goal_Position": ServoRegister(116, 4),
    "Present_PWM": ServoRegister(124, 2),
    "Present_Current": ServoRegister(126, 2),
    "Present_Velocity": ServoRegister(128, 4),
    "Present_Position": ServoRegister(132, 4),
    "Present_Input_Voltage": ServoRegister(144, 2),
    "Present_Temperature": ServoRegister(146, 1),
}
"""X series. On the XL430 and XC430, 126 is Present Load and 38 and 102 don't exist."""

FEETECH: Final[Mapping[str, ServoRegister]] = {
    "Firmware_Major_Version": ServoRegister(0, 1),
    "Firmware_Minor_Version": ServoRegister(1, 1),
    "Model_Number": ServoRegister(3, 2),
    "ID": ServoRegister(5, 1),
    "Baud_Rate": ServoRegister(6, 1),
    "Return_Delay_Time": ServoRegister(7, 1),
    "Min_Position_Limit": ServoRegister(9, 2),
    "Max_Position_Limit": ServoRegister(11, 2),
    "Phase": ServoRegister(18, 1),
    "Homing_Offset": ServoRegister(31, 2),
    "Operating_Mode": ServoRegister(33, 1),
    "Torque_Enable": ServoRegister(40, 1),
    "Acceleration": ServoRegister(41, 1),
    "Goal_Position": ServoRegister(42, 2),
    "Goal_Velocity": ServoRegister(46, 2),
    "Torque_Limit": ServoRegister(48, 2),
    "Lock": ServoRegister(55, 1),
    "Present_Position": ServoRegister(56, 2),
    "Present_Velocity": ServoRegister(58, 2),
    "Present_Load": ServoRegister(60, 2),
    "Present_Voltage": ServoRegister(62, 1),
    "Present_Temperature": ServoRegister(63, 1),
    "Status": ServoRegister(65, 1),
    "Moving": ServoRegister(66, 1),
    "Present_Current": ServoRegister(69, 2),
}
"""STS and SMS series."""

TABLES: Final[Mapping[Protocol, Mapping[str, ServoRegister]]] = {
    Protocol.DYNAMIXEL: DYNAMIXEL,
    Protocol.FEETECH: FEETECH,
}

STATE_SPAN: Final[Mapping[Protocol, ServoRegister]] = {
    Protocol.DYNAMIXEL: ServoRegister(126, 21),
    Protocol.FEETECH: ServoRegister(56, 15),
}
"""The registers that hold all of a servo's state but, on a Dynamixel, its hardware error."""

IDENTITY_SPAN: Final = ServoRegister(0, 7)
"""The registers of either maker that hold firmware and model number."""


@dataclass(frozen=True, slots=True)
class Model:
    """One servo model.

    Attributes:
        name: as LeRobot writes it.
        number: what its Model Number register holds.
        protocol: what it speaks.
        current_step_a: worth of one step of Present Current [A]; NaN where 126 is a load.
    """

    name: str
    number: int
    protocol: Protocol
    current_step_a: float

    @property
    def has_current(self) -> bool:
        """Say whether it measures its current."""
        return math.isfinite(self.current_step_a)


_DXL, _STS = Protocol.DYNAMIXEL, Protocol.FEETECH
MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        Model("xl330-m077", 1190, _DXL, 0.001),
        Model("xl330-m288", 1200, _DXL, 0.001),
        Model("xc330-t181", 1210, _DXL, 0.001),
        Model("xc330-t288", 1220, _DXL, 0.001),
        Model("xl430-w250", 1060, _DXL, math.nan),
        Model("xc430-w150", 1070, _DXL, math.nan),
        Model("xm430-w350", 1020, _DXL, 0.00269),
        Model("xm540-w270", 1120, _DXL, 0.00269),
        Model("xh540-w150", 1110, _DXL, 0.00269),
        Model("sts3215", 777, _STS, 0.0065),
        Model("sts3250", 2825, _STS, 0.0065),
        Model("sm8512bl", 11272, _STS, 0.0065),
    )
}
"""Models whose state block is known, by name."""

MODEL_NAMES: Final[Mapping[int, str]] = {model.number: name for name, model in MODELS.items()}

DYNAMIXEL_VELOCITY_RAD_S: Final = 0.229 * 2.0 * math.pi / 60.0
"""One step of Present Velocity: 0.229 rev/min, every X model."""
FEETECH_SLOW_TICKS_S: Final = 1.0
FEETECH_FAST_TICKS_S: Final = 50.0
"""One step of Present Velocity [ticks/s]: 0.0146 rev/min where bit 2 of Phase is set, as it leaves
the factory on an STS3215 (Phase 28 or 12), and 0.732 rev/min where it isn't."""
FEETECH_PHASE_FINE_SPEED: Final = 0x04
LOAD_STEP_PCT: Final = 0.1
VOLTAGE_STEP_V: Final = 0.1
FEETECH_STATUS_BITS: Final = 0b0010_1111
"""Bits of register 65 that mean something: voltage, encoder, temperature, current, overload."""

DYNAMIXEL_ERRORS: Final[Mapping[int, str]] = {
    0x01: "input voltage",
    0x04: "overheating",
    0x08: "motor encoder",
    0x10: "electrical shock",
    0x20: "overload",
}
"""Bits of register 70, e-manual "Hardware Error Status"."""
FEETECH_ERRORS: Final[Mapping[int, str]] = {
    0x01: "supply voltage",
    0x02: "magnetic encoder",
    0x04: "overheating",
    0x08: "overcurrent",
    0x20: "overload",
}
"""Bits of register 65, memory table "Servo Status"."""


def describe_error(protocol: Protocol, bits: int) -> str:
    """Return the hardware errors in a status byte in words, such as `overheating, overload`."""
    names = DYNAMIXEL_ERRORS if protocol is Protocol.DYNAMIXEL else FEETECH_ERRORS
    words = [name for bit, name in names.items() if bits & bit]
    unknown = bits & ~sum(names)
    return ", ".join(words + ([f"0x{unknown:02x}"] if unknown else [])) or "none"


def read_identity(protocol: Protocol, data: bytes) -> tuple[int, str]:
    """Return model number and firmware version, such as `3.10`, from `IDENTITY_SPAN`'s bytes."""
    table = TABLES[protocol]
    names: tuple[str, ...] = ("Firmware_Version",)
    if protocol is Protocol.FEETECH:
        names = ("Firmware_Major_Version", "Firmware_Minor_Version")
    firmware = ".".join(str(table[name].value_in(data, 0)) for name in names)
    return table["Model_Number"].value_in(data, 0), firmware


def read_supply_v(protocol: Protocol, data: bytes) -> float:
    """Return the supply voltage [V] from `STATE_SPAN`'s bytes."""
    name = "Present_Voltage" if protocol is Protocol.FEETECH else "Present_Input_Voltage"
    return VOLTAGE_STEP_V * TABLES[protocol][name].value_in(data, STATE_SPAN[protocol].address)
