"""Where each servo keeps what, what one step of it is worth, and its state in SI units.

Sources: ROBOTIS e-manual, pages XL330-M077-T, XL330-M288-T, XL430-W250-T, XM430-W350, XC330
("Control Table of RAM Area" and "of EEPROM Area"); Feetech, "Magnetic encoder STS servo, memory
table analysis". Names are LeRobot's. Where a factory value isn't in the table, it is what LeRobot's
users read from a 12 V STS3215. The driver needs addresses and sizes, the emulator all of it.

The whole state of a Dynamixel lies in registers 126 to 146, on every X model alike. The indirect
block would be 7 bytes shorter, but begins at 208 on the XL330 (20 bytes long) and at 224 on the
XL430, so a bus with both, such as a Koch arm's, would need two transactions.

Dynamixel registers are two's complement. Feetech's are sign and magnitude: bit 15 is the sign of
position, speed and current, bit 10 that of load (memory table; LeRobot decodes them alike). Homing
offset and drive mode work inside the servo, so what is read already contains them.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray

TICKS_PER_TURN: Final = 4096
"""Both makers' encoders (e-manual "Resolution"; Feetech: 0.087° a step)."""
RAD_PER_TICK: Final = 2.0 * math.pi / TICKS_PER_TURN


class Protocol(StrEnum):
    """How a bus talks."""

    DYNAMIXEL = "dynamixel"
    FEETECH = "feetech"


@dataclass(frozen=True, slots=True)
class ServoRegister:
    """One entry of a control table, or a span of several.

    Attributes:
        size: bytes, little-endian.
        initial: value as shipped; after power-up where it is not kept.
        low: smallest value that is taken.
        high: largest value that is taken; below `low` where nothing limits it.
        kept: survives a loss of power (EEPROM area).
        signed: two's complement.
    """

    address: int
    size: int
    name: str = ""
    initial: int = 0
    low: int = 0
    high: int = -1
    writable: bool = True
    kept: bool = False
    signed: bool = False

    @property
    def end(self) -> int:
        """Address of the byte after it."""
        return self.address + self.size

    def value_in(self, data: bytes, start: int) -> int:
        """Return its value, unsigned, in bytes that were read from address `start` on."""
        place = self.address - start
        return int.from_bytes(data[place : place + self.size], "little")


@dataclass(frozen=True, slots=True)
class Model:
    """One servo model; `current_step_a` of Present Current [A] is NaN where 126 is a load."""

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

DYNAMIXEL_FIRMWARE: Final = 52
_GAIN: Final = 16_383
_EXTENDED: Final = 1_048_575
_PROFILE: Final = 32_767


def dynamixel_registers(model: str) -> dict[str, ServoRegister]:
    """Return the control table of `model`, one of xl330-m077, xl330-m288 and xl430-w250.

    Without its indirect registers.
    """
    small = model.startswith("xl330")
    volts = (70, 35, 31, 70) if small else (140, 60, 60, 140)
    speed = {"xl330-m077": (1620, 2047), "xl330-m288": (445, 2047), "xl430-w250": (265, 1023)}
    gains = (1_600, 180, 0, 400) if small else (1_000, 100, 4_000, 640)
    who = (
        (0, 2, "Model_Number", MODELS[model].number),
        (2, 4, "Model_Information", 0),
        (6, 1, "Firmware_Version", DYNAMIXEL_FIRMWARE),
    )
    # Address, size, name, initial, least and greatest value.
    eeprom = [
        (7, 1, "ID", 1, 0, 252),
        (8, 1, "Baud_Rate", 1, 0, 6 if small else 7),
        (9, 1, "Return_Delay_Time", 250, 0, 254),
        (10, 1, "Drive_Mode", 0, 0, 13),
        (11, 1, "Operating_Mode", 3, 0, 16),
        (12, 1, "Secondary_ID", 255, 0, 255),
        (13, 1, "Protocol_Type", 2, 2 if small else 1, 22 if small else 2),
        (20, 4, "Homing_Offset", 0, -1_044_479, 1_044_479),
        (24, 4, "Moving_Threshold", 10, 0, 1_023),
        (31, 1, "Temperature_Limit", 70 if small else 72, 0, 100),
        (32, 2, "Max_Voltage_Limit", volts[0], volts[2], volts[3]),
        (34, 2, "Min_Voltage_Limit", volts[1], volts[2], volts[3]),
        (36, 2, "PWM_Limit", 885, 0, 885),
        *([(38, 2, "Current_Limit", 1_750, 0, 1_750)] if small else []),
        (44, 4, "Velocity_Limit", speed[model][0], 0, speed[model][1]),
        (48, 4, "Max_Position_Limit", 4_095, 0, 4_095),
        (52, 4, "Min_Position_Limit", 0, 0, 4_095),
        (60, 1, "Startup_Configuration", 0, 0, 3),
        *([(62, 1, "PWM_Slope", 140, 1, 255)] if small else []),
        (63, 1, "Shutdown", 53 if small else 52, 0, 255),
    ]
    ram = [
        (64, 1, "Torque_Enable", 0, 0, 1),
        (65, 1, "LED", 0, 0, 1),
        (68, 1, "Status_Return_Level", 2, 0, 2),
        (76, 2, "Velocity_I_Gain", gains[0], 0, _GAIN),
        (78, 2, "Velocity_P_Gain", gains[1], 0, _GAIN),
        (80, 2, "Position_D_Gain", gains[2], 0, _GAIN),
        (82, 2, "Position_I_Gain", 0, 0, _GAIN),
        (84, 2, "Position_P_Gain", gains[3], 0, _GAIN),
        (88, 2, "Feedforward_2nd_Gain", 0, 0, _GAIN),
        (90, 2, "Feedforward_1st_Gain", 0, 0, _GAIN),
        (98, 1, "Bus_Watchdog", 0, 0, 127),
        (100, 2, "Goal_PWM", 885, -885, 885),
        *([(102, 2, "Goal_Current", 1_750, -1_750, 1_750)] if small else []),
        (104, 4, "Goal_Velocity", 0, -2_047, 2_047),
        (108, 4, "Profile_Acceleration", 0, 0, _PROFILE),
        (112, 4, "Profile_Velocity", 0, 0, _PROFILE),
        (116, 4, "Goal_Position", 0, -_EXTENDED, _EXTENDED),
    ]
    measured = (  # address, size, name, two's complement
        (69, 1, "Registered_Instruction", False),
        (70, 1, "Hardware_Error_Status", False),
        (120, 2, "Realtime_Tick", False),
        (122, 1, "Moving", False),
        (123, 1, "Moving_Status", False),
        (124, 2, "Present_PWM", True),
        (126, 2, "Present_Current" if small else "Present_Load", True),
        (128, 4, "Present_Velocity", True),
        (132, 4, "Present_Position", True),
        (136, 4, "Velocity_Trajectory", True),
        (140, 4, "Position_Trajectory", True),
        (144, 2, "Present_Input_Voltage", False),
        (146, 1, "Present_Temperature", False),
        (147, 1, "Backup_Ready", False),
    )
    found = [
        *(ServoRegister(*row, writable=False, kept=True) for row in who),
        *(ServoRegister(*row, kept=True, signed=row[4] < 0) for row in eeprom),
        *(ServoRegister(*row, signed=row[4] < 0) for row in ram),
        *(
            ServoRegister(address, size, name, writable=False, signed=signed)
            for address, size, name, signed in measured
        ),
    ]
    return {register.name: register for register in sorted(found, key=lambda one: one.address)}


DYNAMIXEL: Final[Mapping[str, ServoRegister]] = dynamixel_registers("xl330-m288")
"""X series. On the XL430 and XC430, 126 is Present Load and 38 and 102 don't exist."""

_FEETECH_EPROM: Final = (
    (5, 1, "ID", 1, 0, 253),
    (6, 1, "Baud_Rate", 0, 0, 7),
    (7, 1, "Return_Delay_Time", 250, 0, 254),
    (8, 1, "Response_Status_Level", 1, 0, 1),
    (9, 2, "Min_Position_Limit", 0, 0, 4_095),
    (11, 2, "Max_Position_Limit", 4_095, 0, 4_095),
    (13, 1, "Max_Temperature_Limit", 70, 0, 100),
    (14, 1, "Max_Voltage_Limit", 140, 0, 254),
    (15, 1, "Min_Voltage_Limit", 40, 0, 254),
    (16, 2, "Max_Torque_Limit", 1_000, 0, 1_000),
    (18, 1, "Phase", 12, 0, 254),
    (19, 1, "Unloading_Condition", 44, 0, 254),
    (20, 1, "LED_Alarm_Condition", 47, 0, 254),
    (21, 1, "P_Coefficient", 32, 0, 254),
    (22, 1, "D_Coefficient", 32, 0, 254),
    (23, 1, "I_Coefficient", 0, 0, 254),
    (24, 2, "Minimum_Startup_Force", 16, 0, 1_000),
    (26, 1, "CW_Dead_Zone", 1, 0, 32),
    (27, 1, "CCW_Dead_Zone", 1, 0, 32),
    (28, 2, "Protection_Current", 500, 0, 2_047),
    (30, 1, "Angular_Resolution", 1, 1, 128),
    (31, 2, "Homing_Offset", 0, 0, 4_095),
    (33, 1, "Operating_Mode", 0, 0, 3),
    (34, 1, "Protective_Torque", 20, 0, 254),
    (35, 1, "Protection_Time", 200, 0, 254),
    (36, 1, "Overload_Torque", 80, 0, 254),
    (37, 1, "Velocity_closed_loop_P_proportional_coefficient", 10, 0, 254),
    (38, 1, "Over_Current_Protection_Time", 200, 0, 254),
    (39, 1, "Velocity_closed_loop_I_integral_coefficient", 10, 0, 254),
    (80, 1, "Moving_Velocity_Threshold", 3, 0, 254),
    (81, 1, "DTs", 1, 0, 254),
    (82, 1, "Velocity_Unit_factor", 1, 0, 254),
    (83, 1, "Hts", 0, 0, 254),
    (84, 1, "Maximum_Velocity_Limit", 100, 0, 254),
    (85, 1, "Maximum_Acceleration", 100, 0, 254),
    (86, 1, "Acceleration_Multiplier", 4, 0, 254),
)
"""Address, size, name, initial, least and greatest value of what is kept without power."""
_FEETECH_SRAM: Final = (
    (40, 1, "Torque_Enable", 0, 0, 128),
    (41, 1, "Acceleration", 0, 0, 254),
    (42, 2, "Goal_Position", 0, 0, -1),
    (44, 2, "Goal_Time", 0, 0, -1),
    (46, 2, "Goal_Velocity", 0, 0, -1),
    (48, 2, "Torque_Limit", 1_000, 0, 1_000),
    (55, 1, "Lock", 1, 0, 1),
)
"""The same of what isn't; a range of 0 to -1 is none."""
_FEETECH_FEEDBACK: Final = (
    (56, 2, "Present_Position"),
    (58, 2, "Present_Velocity"),
    (60, 2, "Present_Load"),
    (62, 1, "Present_Voltage"),
    (63, 1, "Present_Temperature"),
    (64, 1, "Async_Write_Flag"),
    (65, 1, "Status"),
    (66, 1, "Moving"),
    (69, 2, "Present_Current"),
    (71, 2, "Goal_Position_2"),
)
"""Address, size and name of what is only read."""
FEETECH: Final[Mapping[str, ServoRegister]] = {
    register.name: register
    for register in (
        ServoRegister(0, 1, "Firmware_Major_Version", 3, writable=False, kept=True),
        ServoRegister(1, 1, "Firmware_Minor_Version", 10, writable=False, kept=True),
        ServoRegister(2, 1, "Endianness", writable=False, kept=True),
        ServoRegister(3, 2, "Model_Number", writable=False, kept=True),
        *(ServoRegister(*row, kept=True) for row in _FEETECH_EPROM),
        *(ServoRegister(*row) for row in _FEETECH_SRAM),
        *(ServoRegister(*row, writable=False) for row in _FEETECH_FEEDBACK),
    )
}
"""STS and SMS series, as the sts3215 leaves the factory."""

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


@dataclass(frozen=True)
class Vitals:
    """How a servo is, and what it bears.

    Attributes:
        errors: bits of its own error register.
        least_v: lowest supply that it takes [V].
        most_v: highest [V].
    """

    errors: int
    temperature_c: int
    supply_v: float
    least_v: float
    most_v: float


VITAL_SPANS: Final[Mapping[Protocol, tuple[ServoRegister, ServoRegister, ServoRegister]]] = {
    Protocol.FEETECH: (STATE_SPAN[Protocol.FEETECH], ServoRegister(14, 2), FEETECH["Status"]),
    Protocol.DYNAMIXEL: (
        STATE_SPAN[Protocol.DYNAMIXEL],
        ServoRegister(32, 4),
        DYNAMIXEL["Hardware_Error_Status"],
    ),
}
"""The registers that `read_vitals` is made of: state, limits of the supply, errors."""


def read_vitals(
    protocol: Protocol, state: bytes, limits: bytes, errors: bytes, *, error: int = 0
) -> Vitals:
    """Return how a servo is, from the bytes of `VITAL_SPANS` and its replies' `error` byte."""
    table, (span, bounds, _) = TABLES[protocol], VITAL_SPANS[protocol]
    least_v, most_v = (
        VOLTAGE_STEP_V * table[name].value_in(limits, bounds.address)
        for name in ("Min_Voltage_Limit", "Max_Voltage_Limit")
    )
    bits = errors[0]
    if protocol is Protocol.FEETECH:  # a Dynamixel's byte says what was wrong with the request
        bits = (bits | error) & FEETECH_STATUS_BITS
    heat_c = table["Present_Temperature"].value_in(state, span.address)
    supply = "Present_Voltage" if protocol is Protocol.FEETECH else "Present_Input_Voltage"
    supply_v = VOLTAGE_STEP_V * table[supply].value_in(state, span.address)
    return Vitals(bits, heat_c, supply_v, least_v, most_v)


_DYNAMIXEL_BLOCK: Final = "hii8xHB"
"""Current or load, velocity, position, trajectories (not used), voltage, temperature."""
_FEETECH_BLOCK: Final = "HHHBBxBx2xH"
"""Position, velocity, load, voltage, temperature, status, current."""


class BusState(NamedTuple):
    """What the servos of one bus reported.

    Attributes:
        values: position [ticks], velocity [rad/s], current [A], load [%], temperature [°C],
            supply [V] and the joint's angle [rad], one row each, shape (7, n_servos); NaN where
            a model lacks it. Velocity is that of the angle.
        status: hardware error bits of the servo's own register, shape (n_servos,).
    """

    values: FloatArray
    status: NDArray[np.int64]

    @property
    def position_ticks(self) -> FloatArray:
        """Encoder positions as LeRobot reads them [ticks], shape (n_servos,)."""
        row: FloatArray = self.values[0]
        return row


class Decoder:
    """Decodes what one bus's servos answer, in order.

    Its methods take the frames of all servos in one piece, as they came: how many bytes are
    `around` the data of each, before it and after.
    """

    def __init__(self, protocol: Protocol, models: Sequence[str], around: tuple[int, int]) -> None:
        self.protocol = protocol
        known = [MODELS[name] for name in models]
        count = self._count = len(known)
        is_feetech = self._is_feetech = protocol is Protocol.FEETECH
        before, after = around
        block, goal = (_FEETECH_BLOCK, "H") if is_feetech else (_DYNAMIXEL_BLOCK, "i")
        self._blocks, self._places = (
            struct.Struct("<" + f"{before}x{data}{after}x" * count) for data in (block, goal)
        )
        # Where the numbers of a block are that each row of the values is made of.
        rows, width = ((0, 1, 6, 2, 4, 3, 0), 7) if is_feetech else ((2, 1, 0, 0, 4, 3, 2), 5)
        self._numbers = np.add.outer(rows, width * np.arange(count)).ravel()
        if is_feetech:  # sign and magnitude
            signs = (0x8000, 0x8000, 0x8000, 0x0400, 0, 0, 0x8000)
            self._signs = np.repeat(signs, count)
            self._magnitudes = np.repeat([(sign or 0x10000) - 1 for sign in signs], count)
        self._current_a = [model.current_step_a for model in known]
        self._load_pct = [
            math.nan if model.has_current and not is_feetech else LOAD_STEP_PCT for model in known
        ]
        self._speed_ticks_s = [FEETECH_SLOW_TICKS_S] * count
        self.set_angles([0.0] * count, [0.0] * count, [RAD_PER_TICK] * count)

    def set_angles(
        self,
        middle_ticks: Sequence[float],
        middle_rad: Sequence[float],
        rad_per_tick: Sequence[float],
    ) -> None:
        """Say what each joint's angle is [rad]: `middle_rad` at `middle_ticks`, and its slope."""
        self.angles = list(zip(middle_ticks, middle_rad, rad_per_tick, strict=True))
        """What `set_angles` was told of each joint."""
        self.set_speed_steps(self._speed_ticks_s)

    def set_speed_steps(self, ticks_s: Sequence[float]) -> None:
        """Say what a step of each Feetech servo's speed is worth [ticks/s]."""
        self._speed_ticks_s = list(ticks_s)
        middle, rad, slope = np.array(self.angles).T
        ones, nil = np.ones(self._count), np.zeros(6 * self._count)
        step = self._speed_ticks_s if self._is_feetech else DYNAMIXEL_VELOCITY_RAD_S / RAD_PER_TICK
        rows = (ones, step * slope, self._current_a, self._load_pct, ones)
        self._steps = np.concatenate([*rows, VOLTAGE_STEP_V * ones, slope])
        self._steps_back = -self._steps
        self._offsets = np.concatenate([nil, rad - middle * slope])

    def places(self, data: bytes) -> Sequence[int]:
        """Decode the servos' Present_Position [ticks], in order."""
        ticks: Sequence[int] = self._places.unpack(data)
        if not self._is_feetech:
            return ticks
        return [one if one < 0x8000 else 0x8000 - one for one in ticks]

    def decode(self, data: bytes) -> BusState:
        """Decode the servos' blocks: all of them in a few steps, for this is in every turn."""
        numbers = np.array(self._blocks.unpack(data))
        values, steps = numbers[self._numbers], self._steps
        if self._is_feetech:
            status = numbers[5::7] & FEETECH_STATUS_BITS
            steps = np.where(values & self._signs, self._steps_back, steps)
            values &= self._magnitudes
        else:
            status = np.zeros(self._count, dtype=np.int64)
        return BusState((values * steps + self._offsets).reshape(7, -1), status)


def encode_goals(protocol: Protocol, ids: Sequence[int], ticks: Iterable[float]) -> bytes:
    """Return each servo's id and goal for a sync write of Goal Position; [ticks] are rounded."""
    words: list[int] = []
    feetech = protocol is Protocol.FEETECH
    for servo_id, goal in zip(ids, ticks, strict=True):
        whole = round(goal)
        if feetech:  # sign and magnitude
            whole = min(abs(whole), 0x7FFF) | (0x8000 if whole < 0 else 0)
        words += (servo_id, whole)
    return struct.pack("<" + ("BH" if feetech else "Bi") * len(ids), *words)


def decode_position(protocol: Protocol, data: bytes) -> int:
    """Return the position [ticks] that a servo's Goal or Present Position holds."""
    if protocol is not Protocol.FEETECH:
        return int.from_bytes(data, "little", signed=True)
    whole = int.from_bytes(data, "little")
    return whole if whole < 0x8000 else 0x8000 - whole
