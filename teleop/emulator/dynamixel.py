"""DYNAMIXEL X servos: what their registers do, and what they answer on a bus.

Those of Koch's arms and OpenMANIPULATOR-X/OMX. Packets: ROBOTIS e-Manual, "DYNAMIXEL Protocol 2.0".
"""

import math
import struct
from typing import Final

from gaploop.teleop.emulator.joint import TICKS_PER_RAD, Drive, MotorSpec
from gaploop.teleop.emulator.servo import Chain, EmulatedServo, ServoPlan
from gaploop.teleop.servos import dynamixel
from gaploop.teleop.servos.dynamixel import ALERT, ErrorCode, Instruction
from gaploop.teleop.servos.registers import dynamixel_registers

BAUD_RATES: Final = (9_600, 57_600, 115_200, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 4_500_000)
"""Bits per second for each value of Baud_Rate."""

RAM: Final = 64
"""First address that may be written with torque on, and that a reboot forgets."""

TABLE_SIZE: Final = 168
"""Bytes that can be read; the indirect addresses behind them aren't emulated."""


# --- one servo ---------------------------------------------------------------------------------

# e-Manual, "Specifications" of each model: stall torque and current, no load speed.
MOTORS: Final = {
    "xl330-m077": MotorSpec(0.215, 1.47, 383 * math.tau / 60, 5.0, 0.0004, 0.008, 0.1),
    "xl330-m288": MotorSpec(0.52, 1.47, 103 * math.tau / 60, 5.0, 0.002, 0.02, 0.1),
    "xl430-w250": MotorSpec(
        1.4, 1.3, 57 * math.tau / 60, 11.1, 0.006, 0.04, 0.1, current_sensor=False
    ),
}
"""Inertia and friction are assumed: they give the settling times that Koch's users see."""

VELOCITY_TICKS_S: Final = 0.229 / 60 * 4096  # one unit of velocity registers
ACCELERATION_TICKS_S2: Final = 214.577 / 3600 * 4096
_PWM: Final = 885
_PRESENT: Final = 120
_GOAL: Final = 116
_FAR: Final = 1_048_575
_LIMITS: Final = {
    "Goal_PWM": "PWM_Limit",
    "Goal_Current": "Current_Limit",
    "Goal_Velocity": "Velocity_Limit",
}
_ALARM: Final = 70
_OVERLOAD_S: Final = 2.0  # assumed: the e-Manual gives no figure for "persistent"
_OVERLOAD: Final = 0.9

VOLTAGE, HEAT, ENCODER, OVERLOAD = 0x01, 0x04, 0x08, 0x20
"""Bits of Hardware_Error_Status and Shutdown."""


class OperatingMode:
    """Values of Operating_Mode that are emulated; in any other a servo follows positions, too."""

    POSITION, EXTENDED, CURRENT_POSITION = 3, 4, 5


class DynamixelServo(EmulatedServo):
    """An XL330 or XL430."""

    BAUD_RATES = BAUD_RATES

    def __init__(self, plan: ServoPlan) -> None:
        self.shut_off = False
        self.now_s = 0.0
        super().__init__(plan, dynamixel_registers(plan.model), TABLE_SIZE, MOTORS[plan.model])

    @property
    def torque(self) -> bool:
        """Whether the motor holds or moves the joint, as of the last instruction."""
        return self.powered and bool(self.memory.bytes[RAM]) and not self.shut_off

    # --- registers -------------------------------------------------------------------------

    def read(self, address: int, length: int) -> tuple[int, bytes]:
        """Return the error number and the bytes; gaps between registers read as 0."""
        if not length:
            return ErrorCode.DATA_LENGTH, b""
        if address + length > TABLE_SIZE:
            return ErrorCode.ACCESS, b""
        if address + length > _ALARM:  # it and what is measured change by themselves
            self.refresh()
        return ErrorCode.NONE, bytes(self.memory.bytes[address : address + length])

    def write(self, address: int, data: bytes) -> int:
        """Write bytes; return the error number. Nothing is written where one is not 0."""
        memory = self.memory
        if address == _GOAL and len(data) == 4:
            goal = int.from_bytes(data, "little", signed=True)
            low, high = self._range
            if low <= goal <= high:  # nothing speaks against it; it is written every few ms
                memory.bytes[_GOAL : _GOAL + 4] = data
                self.goal = float(goal)
                return ErrorCode.NONE
        if address + len(data) > TABLE_SIZE or not data:
            return ErrorCode.ACCESS if data else ErrorCode.DATA_LENGTH
        end, changes = address + len(data), dict[str, int]()
        for register in dict.fromkeys(memory.by_byte[address:end]):
            if register is None or not register.writable:
                return ErrorCode.ACCESS
            if register.address < address or register.end > end:
                return ErrorCode.DATA_LENGTH
            raw = data[register.address - address : register.end - address]
            value = int.from_bytes(raw, "little", signed=register.signed)
            name = register.name
            if register.address < RAM and memory["Torque_Enable"]:
                return ErrorCode.ACCESS
            if register.low <= register.high and not register.low <= value <= register.high:
                return ErrorCode.DATA_RANGE
            if name == "Torque_Enable" and value and self.shut_off:
                return ErrorCode.RESULT_FAIL  # a shut-down servo wants a reboot first
            if name == "Goal_Position" and self.mode == OperatingMode.POSITION:
                if not memory["Min_Position_Limit"] <= value <= memory["Max_Position_Limit"]:
                    return ErrorCode.DATA_LIMIT
            elif name in _LIMITS and abs(value) > memory[_LIMITS[name]]:
                return ErrorCode.DATA_LIMIT
            changes[name] = value
        for name, value in changes.items():
            written, was = memory.registers[name], memory[name]
            memory.store(written, value)
            if written.kept:
                memory.keep(written)
            if name == "Torque_Enable" and value and not was:
                self.hold_here()
            elif name == "Operating_Mode":
                self._reset_goals(value)
            elif name == "Drive_Mode":
                self.configure()
                self.count_turns()
            elif name == "Goal_Position":
                self.goal = float(value)
        self.configure()
        return ErrorCode.NONE

    def _reset_goals(self, mode: int) -> None:
        """Goals and gains go back where the mode changes (e-Manual, Operating Mode)."""
        memory = self.memory
        for name in ("Position_D_Gain", "Position_I_Gain", "Position_P_Gain"):
            memory[name] = memory.registers[name].initial
        memory["Goal_PWM"] = memory["PWM_Limit"]
        memory["Goal_Velocity"] = memory["Velocity_Limit"]
        if "Goal_Current" in memory.registers:
            memory["Goal_Current"] = memory["Current_Limit"]
        if mode == OperatingMode.POSITION:
            self.count_turns()

    def configure(self) -> None:
        """Take over what was written to the memory."""
        memory = self.memory
        self.mode = memory["Operating_Mode"]
        self.offset = memory["Homing_Offset"]
        self.reverse = bool(memory["Drive_Mode"] & 1)
        limits = (memory["Min_Position_Limit"], memory["Max_Position_Limit"])
        self._range = limits if self.mode == OperatingMode.POSITION else (-_FAR, _FAR)
        scale = 4096 / math.tau / 128 / _PWM
        self.joint.gain = memory["Position_P_Gain"] * scale
        self.joint.damping = memory["Position_D_Gain"] / 16 * 0.001 * 4096 / math.tau / _PWM
        self._pwm = min(memory["PWM_Limit"], abs(memory["Goal_PWM"])) / _PWM
        self._top_speed = memory["Profile_Velocity"] * VELOCITY_TICKS_S or math.inf
        self._rate = memory["Profile_Acceleration"] * ACCELERATION_TICKS_S2 or math.inf
        has_current = "Goal_Current" in memory.registers
        self._goal_current_a = memory["Goal_Current"] / 1000 if has_current else math.inf

    def carry_out(self, code: int, params: bytes, to_all: bool) -> bytes | None:
        """Do what one instruction asks of one servo; return its answer, or None for silence."""
        before, error, data = self.id, int(ErrorCode.NONE), b""
        match code:
            case Instruction.PING:
                data = bytes(self.memory.bytes[0:2] + self.memory.bytes[6:7])
            case Instruction.READ if len(params) == 4:
                error, data = self.read(_word(params, 0), _word(params, 2))
            case Instruction.WRITE if len(params) >= 3:
                error = self.write(_word(params, 0), params[2:])
            case Instruction.READ | Instruction.WRITE:
                error = ErrorCode.DATA_LENGTH
            case Instruction.REBOOT:
                self.power_up()
            case Instruction.STATUS:
                return None  # another servo's answer, or an echo
            case _:
                error = ErrorCode.INSTRUCTION
        if to_all and code != Instruction.PING:
            return None
        return self.status(before, error, data)

    def answer(self, identity: int, address: int, size: int) -> bytes:
        """Return what it says under this id to who reads several servos' registers."""
        return self.status(identity, *self.read(address, size))

    def status(self, identity: int, error: int, data: bytes) -> bytes:
        """Return an answer under this id."""
        return dynamixel.status(identity, error | (ALERT if self.alarm_bits else 0), data)

    # --- motion ----------------------------------------------------------------------------

    def shown_ticks(self) -> float:
        """Present position with offset, direction and turns as the registers ask [ticks]."""
        ticks = -self.encoder_ticks() if self.reverse else self.encoder_ticks()
        return ticks - 4096 * self.turns + self.offset

    def control(self, dt: float) -> None:
        """Move the set point by `dt` [s] and set the joint's drive."""
        joint = self.joint
        self.now_s += dt
        if not self.torque:
            joint.drive = Drive.LIMP
            return
        joint.duty_limit = self._pwm
        if self.mode == OperatingMode.CURRENT_POSITION:
            share = abs(self._goal_current_a) / joint.motor.stall_a
            emf = abs(joint.v_rad_s) / joint.motor.free_rad_s
            joint.duty_limit = min(self._pwm, share + emf)
        self.follow(dt)

    def protect(self, dt: float) -> None:
        """Check limits `dt` [s] after the last check; shut off where one is passed."""
        memory, joint = self.memory, self.joint
        tenths = round(joint.voltage_v * 10)
        alarm = self.alarm_bits
        if not memory["Min_Voltage_Limit"] <= tenths <= memory["Max_Voltage_Limit"]:
            alarm |= VOLTAGE
        if self.temperature_c > memory["Temperature_Limit"]:
            alarm |= HEAT
        stuck = abs(self.load) > _OVERLOAD and abs(joint.v_rad_s) < 0.1
        self._strained_s = self._strained_s + dt if stuck and self.torque else 0.0
        if self._strained_s > _OVERLOAD_S:
            alarm |= OVERLOAD
        self.alarm_bits = alarm
        if alarm & memory["Shutdown"] and not self.shut_off:
            self.shut_off = True
            memory["Torque_Enable"] = 0
            joint.drive = Drive.LIMP

    def power_up(self) -> None:
        """Begin as after switching on or a reboot."""
        self.shut_off = False
        super().power_up()
        self._reset_goals(self.mode)
        if self.memory["Startup_Configuration"] & 1:
            self.memory["Torque_Enable"] = 1
        self.configure()

    def refresh(self) -> None:
        """Write what is measured into the memory."""
        joint, memory = self.joint, self.memory
        sign = self.shown_direction()
        if joint.motor.current_sensor and self.forced_load is None:
            strain = round(joint.current_a * 1000 * sign)
        else:
            per_unit = joint.motor.stall_a if joint.motor.current_sensor else 1.0
            strain = round(self.load * per_unit * 1000 * sign * self.plan.direction)
        unit = TICKS_PER_RAD / VELOCITY_TICKS_S
        speed = round(joint.v_rad_s * unit * sign)
        still = abs(speed) <= memory["Moving_Threshold"]
        arrived = abs(self.shown_ticks() - self.goal) < 20
        struct.pack_into(
            "<HBBhhiiiiHB",
            memory.bytes,
            _PRESENT,
            int(self.now_s * 1000) % 32768,
            not still,
            int(arrived) | (0 if self.setpoint == self.goal else 2),
            round(joint.duty * _PWM * sign),
            max(-32768, min(32767, strain)),
            speed,
            round(self.shown_ticks()),
            round(self.setpoint_speed / VELOCITY_TICKS_S),
            round(self.setpoint),
            round(joint.voltage_v * 10),
            round(self.temperature_c),
        )
        memory.bytes[_ALARM] = self.alarm_bits


# --- servos on one bus -------------------------------------------------------------------------


class DynamixelChain(Chain):
    """XL330 and XL430 servos, Protocol 2.0.

    Each waits for the one before it: after a silent one none answers (ROBOTIS in DynamixelSDK issue
    364).
    """

    PARSER, NUMBER_BYTES, WAITS = dynamixel.Parser, 2, True

    def _broken(self) -> list[bytes]:
        ids, self._parser.corrupt_ids[:] = list(self._parser.corrupt_ids), []
        return [dynamixel.status(i, ErrorCode.CRC) for i in ids if i in self._by_id]


def _word(params: bytes, place: int) -> int:
    return int.from_bytes(params[place : place + 2], "little")
