"""Servos on a pseudo-terminal, byte for byte, with a hook that may spoil what they answer."""

from __future__ import annotations

import os
import select
import threading
import tty
from collections.abc import Callable, Iterable
from typing import ClassVar

from patient_wire import Traffic

from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame, Reply
from gaploop.teleop.servos.registers import DYNAMIXEL as DXL
from gaploop.teleop.servos.registers import FEETECH, MODELS, Protocol, ServoRegister


class FakeServos:
    """A bus of servos; `with` starts and stops its thread.

    Attributes:
        memory: each servo's control table, by id.
        dead: servos that don't answer.
        errors: error byte of each servo's answers.
        spoil: called with the bytes about to be sent; what it returns is sent.
        chained: a servo in a sync read waits for the one before it, as Dynamixels do.
        seen: every instruction that came in.
        wires: where who waits for answers looks whether any are under way.
    """

    wires: ClassVar[dict[str, Traffic]] = {}

    def __init__(self, protocol: Protocol, models: dict[int, str]) -> None:
        self.protocol = protocol
        self.memory: dict[int, bytearray] = {i: bytearray(256) for i in models}
        self.dead: set[int] = set()
        self.errors: dict[int, int] = {}
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self.chained = protocol is Protocol.DYNAMIXEL
        self.seen: list[Frame] = []
        table = DXL if protocol is Protocol.DYNAMIXEL else FEETECH
        self.table = table
        for servo_id, name in models.items():
            self.put(servo_id, "Model_Number", MODELS[name].number)
            self.put(servo_id, "ID", servo_id)
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self.path = os.ttyname(self._slave)
        self._parser = dynamixel.Parser() if self.chained else feetech.Parser()
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._traffic = self.wires[self.path] = Traffic()
        self._traffic.servos_fd = lambda: self._master

    def __enter__(self) -> FakeServos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake_in, b"x")
        self._thread.join()
        for fd in (self._master, self._slave, self._wake_in, self._wake_out):
            os.close(fd)

    def put(self, servo_id: int, name: str, value: int) -> None:
        register: ServoRegister = self.table[name]
        raw = (value & (256**register.size - 1)).to_bytes(register.size, "little")
        self.memory[servo_id][register.address : register.address + register.size] = raw

    def get(self, servo_id: int, name: str) -> int:
        register: ServoRegister = self.table[name]
        raw = self.memory[servo_id][register.address : register.address + register.size]
        return int.from_bytes(raw, "little")

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake_out in ready:
                return
            data = os.read(self._master, 4096)
            self._traffic.received += len(data)
            if answer := self.reply(data):
                self.say(answer)
            self._traffic.worked_on = self._traffic.received

    def say(self, answer: bytes) -> None:
        """Send bytes to the host."""
        self._traffic.sent += os.write(self._master, answer)

    def reply(self, data: bytes) -> bytes:
        """Return what the servos answer to `data`, spoiled."""
        out = b""
        for frame in self._parser.feed(data):
            self.seen.append(frame)
            answer = self._answer(frame)
            out += self.spoil(answer) if answer else b""
        return out

    def _answer(self, frame: Frame) -> bytes:
        if self.protocol is Protocol.DYNAMIXEL:
            return self._dynamixel(frame)
        return self._feetech(frame)

    def _those(self, target: int) -> Iterable[int]:
        return [i for i in self.memory if target in (i, BROADCAST_ID) and i not in self.dead]

    def _dynamixel(self, frame: Frame) -> bytes:
        code, params = frame.code, frame.params
        if code == dynamixel.Instruction.PING:
            return b"".join(
                dynamixel.status(i, self.errors.get(i, 0), bytes(self.memory[i][:2]) + b"\x2d")
                for i in self._those(frame.id)
            )
        address = params[0] | params[1] << 8
        if code == dynamixel.Instruction.READ:
            size = params[2] | params[3] << 8
            return b"".join(
                dynamixel.status(r.id, r.error, r.data)
                for r in self._read(self._those(frame.id), address, size)
            )
        if code == dynamixel.Instruction.WRITE:
            ids = list(self._those(frame.id))
            for i in ids:
                self.memory[i][address : address + len(params) - 2] = params[2:]
            return b"".join(dynamixel.status(i, self.errors.get(i, 0)) for i in ids)
        size = params[2] | params[3] << 8
        if code == dynamixel.Instruction.SYNC_WRITE:
            self._store_all(address, size, params[4:])
            return b""
        if code == dynamixel.Instruction.SYNC_READ:
            replies = self._read(params[4:], address, size, chained=self.chained)
            return b"".join(dynamixel.status(r.id, r.error, r.data) for r in replies)
        return b""

    def _feetech(self, frame: Frame) -> bytes:
        code, params = frame.code, frame.params
        if code == feetech.Instruction.SYNC_READ:
            replies = self._read(params[2:], params[0], params[1])
        elif code == feetech.Instruction.SYNC_WRITE:
            self._store_all(params[0], params[1], params[2:])
            return b""
        elif code == feetech.Instruction.READ:
            replies = self._read(self._those(frame.id), params[0], params[1])
        else:
            if code == feetech.Instruction.WRITE:
                for i in self._those(frame.id):
                    self.memory[i][params[0] : params[0] + len(params) - 1] = params[1:]
            replies = [Reply(i, self.errors.get(i, 0), b"") for i in self._those(frame.id)]
        return b"".join(feetech.status(r.id, r.error, r.data) for r in replies)

    def _read(
        self, ids: Iterable[int], address: int, size: int, chained: bool = False
    ) -> list[Reply]:
        replies = []
        for i in ids:
            if i not in self.memory or i in self.dead:
                if chained:
                    break
                continue
            data = bytes(self.memory[i][address : address + size])
            replies.append(Reply(i, self.errors.get(i, 0), data))
        return replies

    def _store_all(self, address: int, size: int, id_data: bytes) -> None:
        for k in range(0, len(id_data), size + 1):
            i = id_data[k]
            if i in self.memory and i not in self.dead:
                self.memory[i][address : address + size] = id_data[k + 1 : k + 1 + size]
