"""What every emulated servo has: a memory, an encoder on a joint, power, a moving set point; and
the chain of them on one bus: what they answer to the bytes they hear. Knows no port and no thread.

Its control table (`servos.registers`) says what is at which address of the memory, what it holds at
power-up, and what it takes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gaploop.teleop.emulator.joint import TICKS_PER_RAD, Drive, Joint, JointMechanics, MotorSpec
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame, FrameParser, Instruction
from gaploop.teleop.servos.registers import ServoRegister

_STEP_S = 0.005
_SHORTEST_S = 0.0005  # a write right after a read moves nothing worth computing
_SLOW_S = 0.02
_LONGEST_GAP_S = 0.25  # a process that was stopped for longer does not catch up


class Memory:
    """The bytes of one servo, its registers by name and by byte, and what survives a power loss.

    `size` bytes can be read from address 0.
    """

    def __init__(
        self, registers: Mapping[str, ServoRegister], size: int, settings: Mapping[str, int]
    ) -> None:
        self.registers, self.bytes = registers, bytearray(size)
        self.by_byte: list[ServoRegister | None] = [None] * size
        for register in registers.values():
            self.by_byte[register.address : register.end] = [register] * register.size
            self.store(register, settings.get(register.name, register.initial))
        self._kept = bytearray(self.bytes)

    def store(self, register: ServoRegister, value: int) -> None:
        """Set a register without any check; too large a value wraps, as in the firmware."""
        raw = (value % (1 << 8 * register.size)).to_bytes(register.size, "little")
        self.bytes[register.address : register.end] = raw

    def __getitem__(self, name: str) -> int:
        register = self.registers[name]
        raw = self.bytes[register.address : register.end]
        return int.from_bytes(raw, "little", signed=register.signed)

    def __setitem__(self, name: str, value: int) -> None:
        self.store(self.registers[name], value)

    def keep(self, register: ServoRegister) -> None:
        """Make the present value of a register survive a loss of power."""
        here = slice(register.address, register.end)
        self._kept[here] = self.bytes[here]

    def power_up(self) -> None:
        """Take back what was kept; the rest begins with its initial value."""
        for register in self.registers.values():
            if register.kept:
                here = slice(register.address, register.end)
                self.bytes[here] = self._kept[here]
            else:
                self.store(register, register.initial)


@dataclass(frozen=True)
class ServoPlan:
    """One servo of an arm.

    Attributes:
        zero_ticks: bare encoder at the joint's zero.
        direction: 1 where ticks grow with the joint angle, else -1.
        full_turn: LeRobot calibrates it to a whole turn.
    """

    name: str
    id: int
    model: str
    zero_ticks: int
    low_rad: float
    high_rad: float
    direction: int = 1
    full_turn: bool = False
    settings: Mapping[str, int] = field(default_factory=dict)


def approach(
    at: float, speed: float, goal: float, top_speed: float, rate: float, dt: float
) -> tuple[float, float]:
    """Move a set point [ticks] towards `goal` for `dt` [s] with a trapezoidal profile.

    `top_speed` [ticks/s] and `rate`, the acceleration [ticks/s²], may be infinite. Returns set
    point and speed afterwards.
    """
    distance = goal - at
    if not distance and not speed:
        return at, 0.0
    if math.isinf(rate):
        reach = top_speed * dt
        if abs(distance) <= reach:
            return goal, 0.0
        return at + math.copysign(reach, distance), math.copysign(top_speed, distance)
    # The fastest speed from which the goal can still be braked for, one step ahead.
    brake = math.sqrt(rate * rate * dt * dt / 4 + 2 * rate * abs(distance)) - rate * dt / 2
    wanted = math.copysign(min(top_speed, brake), distance)
    change = max(-rate * dt, min(rate * dt, wanted - speed))
    speed += change
    step = speed * dt
    if abs(distance) <= abs(step) + 1e-9 and abs(speed) <= rate * dt * 1.5:
        return goal, 0.0
    return at + step, speed


class EmulatedServo(ABC):
    """One servo on the bus.

    Attributes:
        forced_load: overrides the simulated load, as a share of stall.
        reverse: the registers turn round what the encoder counts.
        slip_ticks: the encoder reads so much more than it did when it was mounted.
    """

    BAUD_RATES: tuple[int, ...]

    def __init__(
        self, plan: ServoPlan, registers: Mapping[str, ServoRegister], size: int, motor: MotorSpec
    ) -> None:
        self.plan, self.model = plan, plan.model
        self.joint = Joint(motor, plan.low_rad, plan.high_rad)
        self.memory = Memory(registers, size, {"ID": plan.id, **plan.settings})
        self.powered = self.connected = True
        self.forced_temperature_c: float | None = None
        self.forced_load: float | None = None
        self.slip_ticks = 0
        self.alarm_bits = 0
        self.reverse = False
        self.setpoint = self.setpoint_speed = self.goal = 0.0
        self.turns = 0
        self._strained_s = 0.0
        self._top_speed = self._rate = math.inf
        """Of the set point [ticks/s, ticks/s²]."""
        self.power_up()

    @property
    def id(self) -> int:
        """The id that it answers to."""
        return self.memory["ID"]

    @property
    def baud(self) -> int:
        """The bit rate that it hears and answers at [bit/s]."""
        return self.BAUD_RATES[self.memory["Baud_Rate"]]

    @property
    def listening(self) -> bool:
        """Whether it is there at all."""
        return self.powered and self.connected

    @property
    def position_ticks(self) -> int:
        """Present_Position as a host reads it [ticks]."""
        return round(self.shown_ticks())

    @property
    @abstractmethod
    def torque(self) -> bool:
        """Whether the motor holds or moves the joint, as of the last instruction."""

    @property
    def temperature_c(self) -> float:
        """Temperature that it measures [°C]."""
        forced = self.forced_temperature_c
        return self.joint.temperature_c if forced is None else forced

    @property
    def load(self) -> float:
        """Load that it measures, as a share of stall, positive in its own direction."""
        if self.forced_load is not None:
            return self.forced_load
        return self.joint.duty * self.plan.direction

    def encoder_ticks(self) -> float:
        """What the bare encoder says, turns counted on beyond one [ticks]."""
        zero_ticks = self.plan.zero_ticks + self.slip_ticks
        return zero_ticks + self.plan.direction * self.joint.q_rad * TICKS_PER_RAD

    @abstractmethod
    def shown_ticks(self) -> float:
        """Present position with offset, direction and turns as the registers ask [ticks]."""

    def shown_ticks_at(self, q_rad: float) -> float:
        """Return what would be shown [ticks] with the joint at `q_rad` [rad], by this turn."""
        away = (q_rad - self.joint.q_rad) * TICKS_PER_RAD
        return self.shown_ticks() + away * self.shown_direction()

    def shown_direction(self) -> int:
        """1 where shown ticks grow with the joint angle, else -1."""
        return -self.plan.direction if self.reverse else self.plan.direction

    def count_turns(self) -> None:
        """Forget whole turns: the encoder knows only where within one it is."""
        ticks = self.encoder_ticks() * self.shown_direction() * self.plan.direction
        self.turns = math.floor(ticks / 4096)

    @abstractmethod
    def write(self, address: int, data: bytes) -> object:
        """Write bytes, as a host does."""

    @abstractmethod
    def carry_out(self, code: int, params: bytes, to_all: bool) -> bytes | None:
        """Do what an instruction, perhaps to all, asks; return its answer, or None for silence."""

    @abstractmethod
    def answer(self, identity: int, address: int, size: int) -> bytes:
        """Return what it says under this id to who reads several servos' registers."""

    @abstractmethod
    def refresh(self) -> None:
        """Write what is measured into the memory."""

    @abstractmethod
    def control(self, dt: float) -> None:
        """Move the set point by `dt` [s] and set the joint's drive."""

    def follow(self, dt: float) -> None:
        """Move the set point on by `dt` [s], and let the motor follow it."""
        self.joint.drive = Drive.POSITION
        self.setpoint, self.setpoint_speed = approach(
            self.setpoint, self.setpoint_speed, self.goal, self._top_speed, self._rate, dt
        )
        away = (self.setpoint - self.shown_ticks()) * self.shown_direction()
        self.joint.goal_rad = self.joint.q_rad + away / TICKS_PER_RAD

    @abstractmethod
    def protect(self, dt: float) -> None:
        """Check limits `dt` [s] after the last check; shut off where one is passed."""

    @abstractmethod
    def configure(self) -> None:
        """Take over what was written to the memory."""

    def hold_here(self) -> None:
        """Make the present position the goal."""
        self.goal = self.setpoint = self.shown_ticks()
        self.setpoint_speed = 0.0
        self.memory["Goal_Position"] = round(self.goal)

    def power_down(self) -> None:
        """Lose power: silent and limp."""
        self.powered = False
        self.joint.drive = Drive.LIMP

    def power_up(self) -> None:
        """Begin as after switching on: what isn't kept has its initial value, torque is off."""
        self.memory.power_up()
        self.powered = True
        self.alarm_bits = 0
        self.joint.drive = Drive.LIMP
        self._strained_s = 0.0
        self.turns = 0
        self.configure()
        self.count_turns()
        self.hold_here()


class Chain:
    """Servos on one wire, plugged in or not, that have moved up to `now_s` [s]."""

    PARSER: type[FrameParser]
    NUMBER_BYTES: int
    """Of an address and of a size in a packet."""
    WAITS: bool
    """Of several that are read, each answers once it has heard the one before it."""

    def __init__(self, servos: Sequence[EmulatedServo], mechanics: JointMechanics) -> None:
        self.servos = tuple(servos)
        self.mechanics = mechanics
        self.now_s = 0.0
        self._parser = self.PARSER()
        self._slow_s = 0.0
        self._by_id: dict[int, list[EmulatedServo]] = {}

    def advance(self, now_s: float) -> None:
        """Let the servos move until `now_s` [s]."""
        if now_s - self.now_s < _SHORTEST_S:
            return
        gap_s = min(now_s - self.now_s, _LONGEST_GAP_S)
        self.now_s = now_s
        steps = math.ceil(gap_s / _STEP_S - 1e-9)
        for _ in range(steps):
            for servo in self.servos:
                servo.control(gap_s / steps)
            self.mechanics.advance(gap_s / steps)
        self._slow_s += gap_s
        if self._slow_s >= _SLOW_S:
            self.mechanics.settle(self._slow_s)
            for servo in self.servos:
                if servo.powered:
                    servo.protect(self._slow_s)
            self._slow_s = 0.0

    def hear(self, data: bytes, baud: int) -> list[bytes]:
        """Take bytes that were sent at `baud` [bit/s]; return each servo's answer in order."""
        answers: list[bytes] = []
        self.rewire(baud)
        if not self._by_id:
            return answers  # nobody hears this bit rate
        for frame in self._parser.feed(data):
            answers += self._broken()
            answers += self._answer(frame)
            self.rewire(baud)
        answers += self._broken()
        return answers

    def silence(self) -> None:
        """Nothing came for a while: what was begun will not be ended."""
        self._parser.flush()
        self._parser.corrupt_ids.clear()

    def rewire(self, baud: int) -> None:
        """Find out again who hears what at this bit rate [bit/s]."""
        self._by_id = {}
        for servo in self.servos:
            if servo.listening and servo.baud == baud:
                self._by_id.setdefault(servo.id, []).append(servo)

    def delay_s(self) -> float:
        """How long the servos wait before they answer [s]: the longest return delay."""
        delays = [s.memory["Return_Delay_Time"] for some in self._by_id.values() for s in some]
        return max(delays, default=0) * 2e-6

    def _collide(self, answers: list[bytes]) -> bytes:
        """Two servos that drive the wire at once: it is low where either pulls it low.

        They never begin at the same bit, so the second is taken one byte late.
        """
        if len(answers) == 1:
            return answers[0]
        late = [b"\xff" * n + answer for n, answer in enumerate(answers)]
        size = max(len(answer) for answer in late)
        mixed = bytearray(b"\xff" * size)
        for answer in late:
            for n, byte in enumerate(answer):
                mixed[n] &= byte
        return bytes(mixed)

    def _each(self, target: int) -> Iterable[EmulatedServo]:
        if target != BROADCAST_ID:
            return self._by_id.get(target, ())
        return (servo for _, some in sorted(self._by_id.items()) for servo in some)

    def _single(self, frame: Frame) -> list[bytes]:
        """One servo is spoken to, or all with a broadcast; two may have the id."""
        answers: dict[int, list[bytes]] = {}
        for servo in self._each(frame.id):
            before = servo.id
            answer = servo.carry_out(frame.code, frame.params, frame.id == BROADCAST_ID)
            if answer is not None:
                answers.setdefault(before, []).append(answer)
        return [self._collide(some) for some in answers.values()]

    def _sync_write(self, address: int, size: int, id_data: bytes) -> None:
        """Let servos store `size` bytes from `address` on: in `id_data` each one's id and bytes."""
        for n in range(0, len(id_data) - size, size + 1):
            for servo in self._by_id.get(id_data[n], ()):
                servo.write(address, id_data[n + 1 : n + 1 + size])

    def _answer(self, frame: Frame) -> list[bytes]:
        """Carry out one instruction."""
        if frame.code not in (Instruction.SYNC_READ, Instruction.SYNC_WRITE):
            return self._single(frame)
        width, params = self.NUMBER_BYTES, frame.params
        address = int.from_bytes(params[:width], "little")
        size = int.from_bytes(params[width : 2 * width], "little")
        if frame.code == Instruction.SYNC_WRITE:
            self._sync_write(address, size, params[2 * width :])
            return []
        answers = list[bytes]()
        for identity in params[2 * width :]:
            if some := self._by_id.get(identity):
                answers.append(self._collide([s.answer(identity, address, size) for s in some]))
            elif self.WAITS:
                break
        return answers

    def _broken(self) -> list[bytes]:
        """Answer instructions whose checksum was wrong."""
        self._parser.corrupt_ids.clear()
        return []
