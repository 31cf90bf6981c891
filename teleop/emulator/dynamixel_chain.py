"""DYNAMIXEL servos on one bus (ROBOTIS e-Manual, "DYNAMIXEL Protocol 2.0")."""

from __future__ import annotations

from collections.abc import Sequence

from gaploop.teleop.emulator.chain import Chain
from gaploop.teleop.emulator.dynamixel_servo import DynamixelServo
from gaploop.teleop.emulator.mechanics import Mechanics
from gaploop.teleop.servos import dynamixel
from gaploop.teleop.servos.dynamixel import ALERT, ErrorCode
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame, Reply


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
