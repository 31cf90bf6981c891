"""The servos on one bus: what they answer to the bytes they hear. Knows no port and no thread."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gaploop.teleop.emulator.joint import JointMechanics
from gaploop.teleop.emulator.servo import EmulatedServo
from gaploop.teleop.servos.frames import BROADCAST_ID, Frame, FrameParser

_STEP_S = 0.005
_SHORTEST_S = 0.0005  # a write right after a read moves nothing worth computing
_SLOW_S = 0.02
_LONGEST_GAP_S = 0.25  # a process that was stopped for longer does not catch up


class Chain[S: EmulatedServo](ABC):
    """Servos on one wire, plugged in or not, that have moved up to `now_s` [s]."""

    PARSER: type[FrameParser]

    def __init__(self, servos: Sequence[S], mechanics: JointMechanics) -> None:
        self.servos = tuple(servos)
        self.mechanics = mechanics
        self.now_s = 0.0
        self._parser = self.PARSER()
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

    @abstractmethod
    def _answer(self, frame: Frame) -> list[bytes]:
        """Carry out one instruction."""

    def _broken(self) -> list[bytes]:
        """Answer instructions whose checksum was wrong."""
        self._parser.corrupt_ids.clear()
        return []
