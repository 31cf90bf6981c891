"""The servos on one bus: what they answer to the bytes they hear. Knows no port and no thread."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gaploop.teleop.emulator.dynamixel_servo import DynamixelServo
from gaploop.teleop.emulator.feetech_servo import FeetechServo
from gaploop.teleop.emulator.mechanics import Mechanics
from gaploop.teleop.emulator.servo import Servo
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.dynamixel import ALERT, ErrorCode
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame, FrameParser, Reply

_STEP_S = 0.005
_SHORTEST_S = 0.0005  # a write right after a read moves nothing worth computing
_SLOW_S = 0.02
_LONGEST_GAP_S = 0.25  # a process that was stopped for longer does not catch up


class Chain[S: Servo](ABC):
    """Servos on one wire.

    Attributes:
        servos: all of them, plugged in or not.
        now_s: time up to which they have moved [s].
    """

    def __init__(
        self, servos: Sequence[S], mechanics: Mechanics, parser: FrameParser, now_s: float = 0.0
    ) -> None:
        self.servos = tuple(servos)
        self.mechanics = mechanics
        self.now_s = now_s
        self._parser = parser
        self._slow_s = 0.0
        self._by_id: dict[int, list[S]] = {}
        self._wired: list[int] = []

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
        wired = [baud]
        wired += [
            s.memory.bytes[s.ID] << 8 | s.memory.bytes[s.BAUD] for s in self.servos if s.listening
        ]
        wired += [n for n, s in enumerate(self.servos) if s.listening]
        if wired == self._wired:
            return
        self._wired = wired
        self._by_id = {}
        for servo in self.servos:
            if servo.listening and servo.baud == baud:
                self._by_id.setdefault(servo.id, []).append(servo)

    def delay_s(self) -> float:
        """How long the servos wait before they answer [s]: the longest return delay."""
        delays = [s.memory["Return_Delay_Time"] for some in self._by_id.values() for s in some]
        return max(delays, default=0) * 2e-6

    def _all(self) -> Iterable[S]:
        return (servo for _, some in sorted(self._by_id.items()) for servo in some)

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

    def _each(self, target: int) -> Iterable[S]:
        return self._all() if target == BROADCAST_ID else self._by_id.get(target, ())

    @abstractmethod
    def _answer(self, frame: Frame) -> list[bytes]:
        """Carry out one instruction."""

    def _broken(self) -> list[bytes]:
        """Answer instructions whose checksum was wrong."""
        self._parser.corrupt_ids.clear()
        return []


class DynamixelChain(Chain[DynamixelServo]):
    """XL330 and XL430 servos, Protocol 2.0."""

    def __init__(
        self, servos: Sequence[DynamixelServo], mechanics: Mechanics, now_s: float = 0.0
    ) -> None:
        super().__init__(servos, mechanics, dynamixel.Parser(), now_s)

    def advance(self, now_s: float) -> None:
        """Let the servos move until `now_s` [s]."""
        for servo in self.servos:
            servo.now_s = now_s
        super().advance(now_s)

    def _broken(self) -> list[bytes]:
        ids, self._parser.corrupt_ids[:] = list(self._parser.corrupt_ids), []
        return [dynamixel.status(i, ErrorCode.CRC) for i in ids if i in self._by_id]

    def _answer(self, frame: Frame) -> list[bytes]:
        for some in self._by_id.values():
            for servo in some:
                servo.heard_s = self.now_s
        try:
            code = dynamixel.Instruction(frame.code)
        except ValueError:
            return self._reply(frame.id, ErrorCode.INSTRUCTION)
        match code:
            case dynamixel.Instruction.SYNC_READ:
                return self._in_turn(self._spans(frame.params))
            case dynamixel.Instruction.FAST_SYNC_READ:
                return self._fast(self._spans(frame.params))
            case dynamixel.Instruction.BULK_READ:
                return self._in_turn(self._bulk_spans(frame.params))
            case dynamixel.Instruction.SYNC_WRITE:
                self._sync_write(frame.params)
            case dynamixel.Instruction.BULK_WRITE:
                self._bulk_write(frame.params)
            case dynamixel.Instruction.STATUS:
                pass  # another servo's answer, or an echo
            case _:
                return self._single(frame, code)
        return []

    # --- one servo, or all with a broadcast ------------------------------------------------

    def _single(self, frame: Frame, code: dynamixel.Instruction) -> list[bytes]:
        answers: dict[int, list[bytes]] = {}
        for servo in self._each(frame.id):
            level = servo.memory["Status_Return_Level"]
            before = servo.id
            error, data = _carry_out(servo, code, frame.params)
            if frame.id == BROADCAST_ID and code is not dynamixel.Instruction.PING:
                continue
            asks = (dynamixel.Instruction.PING, dynamixel.Instruction.READ)
            if level == 2 or code is asks[0] or (level == 1 and code in asks):
                answers.setdefault(before, []).append(self._status(servo, error, data, before))
        self._shadow(frame, code)
        return [self._collide(some) for some in answers.values()]

    def _shadow(self, frame: Frame, code: dynamixel.Instruction) -> None:
        """Servos with this secondary id do as told, and say nothing."""
        if code is dynamixel.Instruction.WRITE and frame.id < 253 and len(frame.params) > 2:
            for servo in self._all():
                if servo.memory.bytes[12] == frame.id != servo.id:
                    _carry_out(servo, code, frame.params)

    def _status(self, servo: DynamixelServo, error: int, data: bytes, identity: int) -> bytes:
        return dynamixel.status(identity, error | (ALERT if servo.alarm else 0), data)

    def _reply(self, target: int, error: int) -> list[bytes]:
        if target == BROADCAST_ID or target not in self._by_id:
            return []
        some = [self._status(s, error, b"", target) for s in self._by_id[target]]
        return [self._collide(some)]

    # --- several servos --------------------------------------------------------------------

    def _spans(self, params: bytes) -> list[tuple[int, int, int]]:
        address, size = int.from_bytes(params[:2], "little"), int.from_bytes(params[2:4], "little")
        return [(i, address, size) for i in params[4:]]

    def _bulk_spans(self, params: bytes) -> list[tuple[int, int, int]]:
        whole = (params[n : n + 5] for n in range(0, len(params) - 4, 5))
        return [
            (p[0], int.from_bytes(p[1:3], "little"), int.from_bytes(p[3:5], "little"))
            for p in whole
        ]

    def _in_turn(self, spans: list[tuple[int, int, int]]) -> list[bytes]:
        """Each waits for the one before: after a silent one nobody answers.

        Source: ROBOTIS in DynamixelSDK issue 364.
        """
        answers: list[bytes] = []
        for identity, address, size in spans:
            some = self._by_id.get(identity)
            if not some:
                break
            replies = []
            for servo in some:
                error, data = servo.read(address, size)
                replies.append(self._status(servo, error, data, identity))
            answers.append(self._collide(replies))
        return answers

    def _fast(self, spans: list[tuple[int, int, int]]) -> list[bytes]:
        blocks: list[Reply] = []
        for identity, address, size in spans:
            some = self._by_id.get(identity)
            if not some or size > some[0].memory.table.size:
                break
            error, data = some[0].read(address, size)
            alert = ALERT if some[0].alarm else 0
            blocks.append(Reply(identity, error | alert, data.ljust(size, b"\0")))
        return [dynamixel.fast_status(blocks, len(spans))] if blocks else []

    def _sync_write(self, params: bytes) -> None:
        address, size = int.from_bytes(params[:2], "little"), int.from_bytes(params[2:4], "little")
        for n in range(4, len(params) - size, size + 1):
            for servo in self._by_id.get(params[n], ()):
                servo.write(address, params[n + 1 : n + 1 + size])

    def _bulk_write(self, params: bytes) -> None:
        n = 0
        while n + 5 <= len(params):
            address = int.from_bytes(params[n + 1 : n + 3], "little")
            size = int.from_bytes(params[n + 3 : n + 5], "little")
            data = params[n + 5 : n + 5 + size]
            if len(data) == size:
                for servo in self._by_id.get(params[n], ()):
                    servo.write(address, data)
            n += 5 + size


def _carry_out(
    servo: DynamixelServo, code: dynamixel.Instruction, params: bytes
) -> tuple[int, bytes]:
    """Do what one instruction asks of one servo; return error number and data."""
    fault, done = ErrorCode, (ErrorCode.NONE, b"")
    match code:
        case dynamixel.Instruction.PING:
            return fault.NONE, bytes(servo.memory.bytes[0:2] + servo.memory.bytes[6:7])
        case dynamixel.Instruction.READ:
            if len(params) != 4:
                return fault.DATA_LENGTH, b""
            return servo.read(
                int.from_bytes(params[:2], "little"), int.from_bytes(params[2:], "little")
            )
        case dynamixel.Instruction.WRITE | dynamixel.Instruction.REG_WRITE if len(params) < 3:
            return fault.DATA_LENGTH, b""
        case dynamixel.Instruction.WRITE:
            return servo.write(int.from_bytes(params[:2], "little"), params[2:]), b""
        case dynamixel.Instruction.REG_WRITE:
            servo.registered = (int.from_bytes(params[:2], "little"), params[2:])
            return done
        case dynamixel.Instruction.ACTION:
            if servo.registered is None:
                return fault.INSTRUCTION, b""
            registered, servo.registered = servo.registered, None
            return servo.write(*registered), b""
        case dynamixel.Instruction.REBOOT:
            servo.power_up()
            return done
        case dynamixel.Instruction.FACTORY_RESET:
            known = len(params) == 1 and servo.factory_reset(params[0])
            return (fault.NONE if known else fault.DATA_RANGE), b""
        case dynamixel.Instruction.CLEAR:
            right = params == b"\x01\x44\x58\x4c\x22"
            return (fault.NONE if right and servo.clear_turns() else fault.RESULT_FAIL), b""
    return fault.INSTRUCTION, b""


class FeetechChain(Chain[FeetechServo]):
    """STS servos."""

    def __init__(
        self, servos: Sequence[FeetechServo], mechanics: Mechanics, now_s: float = 0.0
    ) -> None:
        super().__init__(servos, mechanics, feetech.Parser(), now_s)

    def _answer(self, frame: Frame) -> list[bytes]:
        code, params = frame.code, frame.params
        if code == feetech.Instruction.SYNC_READ:
            return self._sync_read(params)
        if code == feetech.Instruction.SYNC_WRITE:
            self._sync_write(params)
            return []
        answers: dict[int, list[bytes]] = {}
        for servo in self._each(frame.id):
            before = servo.id
            level = servo.memory["Response_Status_Level"]
            data = _carry_out_feetech(servo, code, params)
            ask = code in (feetech.Instruction.PING, feetech.Instruction.READ)
            spoken_to = frame.id != BROADCAST_ID or code == feetech.Instruction.PING
            if data is not None and spoken_to and (ask or level):
                answer = feetech.status(before, servo.status, data)
                answers.setdefault(before, []).append(answer)
        return [self._collide(some) for some in answers.values()]

    def _sync_read(self, params: bytes) -> list[bytes]:
        if len(params) < 3:
            return []
        answers = []
        for identity in params[2:]:
            some = self._by_id.get(identity, ())
            replies = [
                feetech.status(identity, s.status, s.read(params[0], params[1])) for s in some
            ]
            if replies:
                answers.append(self._collide(replies))
        return answers

    def _sync_write(self, params: bytes) -> None:
        if len(params) < 2:
            return
        address, size = params[0], params[1]
        for n in range(2, len(params) - size, size + 1):
            for servo in self._by_id.get(params[n], ()):
                servo.write(address, params[n + 1 : n + 1 + size])


def _carry_out_feetech(servo: FeetechServo, code: int, params: bytes) -> bytes | None:
    """Do what one instruction asks of one servo; return its data, or None to stay silent."""
    instruction = feetech.Instruction
    if code == instruction.PING:
        return b""
    if code == instruction.READ:
        return servo.read(params[0], params[1]) if len(params) == 2 else None
    if code == instruction.WRITE and params:
        servo.write(params[0], params[1:])
        return b""
    if code == instruction.REG_WRITE and params:
        servo.registered = (params[0], params[1:])
        return b""
    if code == instruction.ACTION:
        if servo.registered is not None:
            registered, servo.registered = servo.registered, None
            servo.write(*registered)
        return b""
    if code == instruction.RESET:
        servo.factory_reset()
        return b""
    if code == instruction.REBOOT:
        servo.power_up()
        return None
    return None
