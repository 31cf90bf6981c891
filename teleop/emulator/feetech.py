"""Feetech STS servos: what their registers do, and what they answer on a bus.

Packets: Feetech, "Communication Protocol User Manual".
"""

import math
import struct
from dataclasses import replace
from typing import Final

from gaploop.teleop.emulator.joint import TICKS_PER_RAD, Drive, MotorSpec
from gaploop.teleop.emulator.servo import Chain, EmulatedServo, ServoPlan
from gaploop.teleop.servos import feetech
from gaploop.teleop.servos.feetech import Instruction
from gaploop.teleop.servos.registers import FEETECH, MODELS

BAUD_RATES: Final = (1_000_000, 500_000, 250_000, 128_000, 115_200, 76_800, 57_600, 38_400)
"""Bits per second for each value of Baud_Rate."""

TABLE_SIZE: Final = 87
SRAM: Final = 40
"""First address that is never kept without power."""

# --- one servo ---------------------------------------------------------------------------------

# Feetech's sheets: C018, 12 V, 30 kg cm, 2.7 A, 45 rev/min; STS3250, 12 V, 50 kg cm, 75 rev/min.
MOTORS: Final = {
    "sts3215": MotorSpec(2.94, 2.7, 45 * math.tau / 60, 12.0, 0.028, 0.052, 0.035),
    "sts3250": MotorSpec(4.9, 4.0, 75 * math.tau / 60, 12.0, 0.03, 0.06, 0.035),
}
"""Inertia and friction of the STS3215: TheRobotStudio's SO-101 MJCF, class sts3215."""

# 1.04 N m bend an STS3215 with its factory P of 32 by 25 ticks (SO-ARM100, issue 134).
_DUTY_PER_RAD_PER_P: Final = 1.04 / 2.94 / (25 / TICKS_PER_RAD) / 32
_DUTY_S_PER_RAD_PER_D: Final = 0.0075  # assumed: settles without ringing at the factory's P and D
_PRESENT: Final = 56
_GOAL: Final = 42
CURRENT_STEP_A: Final = 0.0065

VOLTAGE, ENCODER, HEAT, CURRENT, OVERLOAD = 0x01, 0x02, 0x04, 0x08, 0x20
"""Bits of Status, of Unloading_Condition, and of the error byte of every reply."""


def sign_magnitude(value: int, sign_bit: int) -> int:
    """Encode a number with its sign in bit `sign_bit`, cut to what fits."""
    magnitude = min(abs(value), (1 << sign_bit) - 1)
    return magnitude | (value < 0) << sign_bit


def from_sign_magnitude(raw: int, sign_bit: int) -> int:
    """Decode what `sign_magnitude` encodes."""
    magnitude = raw & (1 << sign_bit) - 1
    return -magnitude if raw >> sign_bit & 1 else magnitude


class FeetechServo(EmulatedServo):
    """An STS3215 or STS3250."""

    BAUD_RATES = BAUD_RATES

    def __init__(self, plan: ServoPlan) -> None:
        self.limited = False
        """Overloaded: the torque is down to Protective_Torque until a new command."""
        self._over_current_s = 0.0
        settings = {**plan.settings, "Model_Number": MODELS[plan.model].number}
        super().__init__(replace(plan, settings=settings), FEETECH, TABLE_SIZE, MOTORS[plan.model])

    @property
    def torque(self) -> bool:
        """Whether the motor holds or moves the joint, as of the last instruction."""
        return self.powered and self.memory.bytes[SRAM] in (1, 2)

    # --- registers -------------------------------------------------------------------------

    def read(self, address: int, length: int) -> bytes:
        """Return the bytes; what is beyond the table reads as 0."""
        if address + length > _PRESENT:
            self.refresh()
        return bytes(self.memory.bytes[address : address + length]).ljust(length, b"\0")

    def write(self, address: int, data: bytes) -> None:
        """Write bytes; read-only ones stay, and what is out of range is cut to it."""
        memory = self.memory
        if address == _GOAL and len(data) == 2:  # written every few ms
            memory.bytes[_GOAL : _GOAL + 2] = data
            self._new_goal(from_sign_magnitude(data[0] | data[1] << 8, 15))
            return
        end = min(address + len(data), TABLE_SIZE)
        if address >= end:
            return
        image = bytearray(memory.bytes)
        image[address:end] = data[: end - address]
        for register in dict.fromkeys(memory.by_byte[address:end]):
            if register is None or not register.writable:
                continue
            value = int.from_bytes(image[register.address : register.end], "little")
            if register.low <= register.high:
                value = max(register.low, min(register.high, value))
            name = register.name
            if name == "Torque_Enable":
                if value == 1 and memory["Torque_Enable"] != 1:
                    self.hold_here()
                self.limited = False
            memory[name] = value
            if name == "Max_Torque_Limit":
                memory["Torque_Limit"] = value
            elif name == "Goal_Position":
                self._new_goal(from_sign_magnitude(value, 15))
            if register.kept and not memory["Lock"]:
                memory.keep(register)
        self.configure()

    def _new_goal(self, ticks: int) -> None:
        """Feetech's own examples move a servo without writing 40: a goal switches torque on."""
        memory = self.memory
        if memory.bytes[SRAM] != 1:
            self.hold_here()
            memory["Goal_Position"] = sign_magnitude(ticks, 15)
            memory["Torque_Enable"] = 1
        if self.limited and (ticks - self.shown_ticks()) * self.joint.duty <= 0:
            self.limited = False  # backing off ends the protection
        low, high = self._range
        self.goal = float(ticks if low == high == 0 else max(low, min(high, ticks)))

    def configure(self) -> None:
        """Take over what was written to the memory."""
        memory = self.memory
        self.offset = from_sign_magnitude(memory["Homing_Offset"], 11)
        self.reverse = bool(memory["Phase"] & 0x80)
        self.joint.gain = memory["P_Coefficient"] * _DUTY_PER_RAD_PER_P
        self.joint.damping = memory["D_Coefficient"] * _DUTY_S_PER_RAD_PER_D
        self._limit = memory["Torque_Limit"] / 1000
        self._range = (memory["Min_Position_Limit"], memory["Max_Position_Limit"])
        fastest = memory["Maximum_Velocity_Limit"] * 50.0
        asked = abs(from_sign_magnitude(memory["Goal_Velocity"], 15))
        self._top_speed = min(fastest, asked or fastest)
        ceiling = memory["Maximum_Acceleration"] or 254
        self._rate = min(memory["Acceleration"] or 254, ceiling) * 100.0

    def carry_out(self, code: int, params: bytes, to_all: bool) -> bytes | None:
        """Do what one instruction asks of one servo; return its answer, or None for silence."""
        before, data = self.id, b""
        match code:
            case Instruction.PING:
                to_all = False
            case Instruction.READ if len(params) == 2:
                data = self.read(params[0], params[1])
            case Instruction.WRITE if params:
                self.write(params[0], params[1:])
            case Instruction.REBOOT:
                self.power_up()
                return None
            case _:
                return None
        return None if to_all else feetech.status(before, self.alarm_bits, data)

    def answer(self, identity: int, address: int, size: int) -> bytes:
        """Return what it says under this id to who reads several servos' registers."""
        return feetech.status(identity, self.alarm_bits, self.read(address, size))

    # --- motion ----------------------------------------------------------------------------

    def shown_ticks(self) -> float:
        """Present position with offset, direction and turns as the registers ask [ticks]."""
        ticks = self.encoder_ticks()
        ticks = (-ticks if self.reverse else ticks) - self.offset
        shown = ticks % 4096
        return 0.0 if shown >= 4095.5 else shown

    def hold_here(self) -> None:
        """Make the present position the goal."""
        super().hold_here()
        self.memory["Goal_Position"] = sign_magnitude(round(self.goal), 15)

    def control(self, dt: float) -> None:
        """Move the set point by `dt` [s] and set the joint's drive."""
        joint, enable = self.joint, self.memory.bytes[SRAM]
        if not self.powered or not enable:
            joint.drive = Drive.LIMP
            return
        if enable == 2:
            joint.drive = Drive.DAMP
            return
        limit = self.memory["Protective_Torque"] / 100 if self.limited else 1.0
        joint.duty_limit = min(self._limit, limit)
        self.follow(dt)

    def protect(self, dt: float) -> None:
        """Check limits `dt` [s] after the last check; shut off where one is passed."""
        memory, joint = self.memory, self.joint
        status = 0
        if not memory["Min_Voltage_Limit"] <= joint.voltage_v * 10 <= memory["Max_Voltage_Limit"]:
            status |= VOLTAGE
        if self.temperature_c > memory["Max_Temperature_Limit"]:
            status |= HEAT
        over = abs(self.load) * 100 > memory["Overload_Torque"] and self.torque
        self._strained_s = self._strained_s + dt if over and abs(joint.v_rad_s) < 0.2 else 0.0
        if self._strained_s > memory["Protection_Time"] / 100:
            self.limited = True
        current_a = abs(self.load) * joint.motor.stall_a if self.forced_load else joint.current_a
        over = abs(current_a) > memory["Protection_Current"] * CURRENT_STEP_A
        self._over_current_s = self._over_current_s + dt if over else 0.0
        if self._over_current_s > memory["Over_Current_Protection_Time"] / 100:
            status |= CURRENT
        if self.limited:
            status |= OVERLOAD
        self.alarm_bits = status
        if status & ~OVERLOAD & memory["Unloading_Condition"]:
            memory["Torque_Enable"] = 0

    def power_up(self) -> None:
        """Begin as after switching on: Torque_Limit is Max_Torque_Limit, the lock is on."""
        self.limited = False
        self._over_current_s = 0.0
        super().power_up()
        self.memory["Torque_Limit"] = self.memory["Max_Torque_Limit"]
        self.configure()

    def refresh(self) -> None:
        """Write what is measured into the memory."""
        joint, memory = self.joint, self.memory
        sign = self.shown_direction()
        load = round(self.load * 1000 * sign * self.plan.direction)
        current_a = joint.current_a * sign
        if self.forced_load is not None:
            current_a = self.load * joint.motor.stall_a
        moving = abs(joint.v_rad_s) > 0.02 and joint.drive is not Drive.LIMP
        struct.pack_into(
            "<HHHBBxBBxxHH",
            memory.bytes,
            _PRESENT,
            sign_magnitude(round(self.shown_ticks()), 15),
            sign_magnitude(round(joint.v_rad_s * TICKS_PER_RAD * sign), 15),
            sign_magnitude(load, 10),
            max(0, min(255, round(joint.voltage_v * 10))),
            max(0, min(255, round(self.temperature_c))),
            self.alarm_bits,
            moving or self.setpoint != self.goal,
            sign_magnitude(round(current_a / CURRENT_STEP_A), 15),
            sign_magnitude(round(self.goal), 15),
        )


# --- servos on one bus -------------------------------------------------------------------------


class FeetechChain(Chain):
    """STS servos."""

    PARSER, NUMBER_BYTES, WAITS = feetech.Parser, 1, False
