"""Feetech STS servos on one bus (Feetech, "Communication Protocol User Manual")."""

from __future__ import annotations

from collections.abc import Sequence

from gaploop.teleop.emulator.chain import Chain
from gaploop.teleop.emulator.feetech_servo import FeetechServo
from gaploop.teleop.emulator.mechanics import Mechanics
from gaploop.teleop.servos import feetech
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame


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
