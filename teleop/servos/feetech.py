"""Feetech's SCS packet format as the STS and SMS series speak it ("protocol 0" of its SDK).

Source: Feetech, "Communication Protocol User Manual" (FT-SCS protocol) and the vendor's FTServo
SDK. A reply has its error byte where an instruction has its code.
"""

import functools
from collections.abc import Iterable
from typing import Final

from gaploop.teleop.servos.frames import (
    BROADCAST_ID,
    Expected,
    Frame,
    FrameParser,
    Reply,
    expecting,
)
from gaploop.teleop.servos.frames import Instruction as Instruction

HEADER: Final = b"\xff\xff"
AROUND: Final = (5, 1)
"""Bytes of a reply before its data, and after: header 2, id 1, length 1, error 1; checksum 1."""


def checksum(body: bytes | bytearray | memoryview) -> int:
    """Return the complement of the sum of id, length, code and parameters."""
    return ~sum(body) & 0xFF


def frame(servo_id: int, code: int, params: bytes = b"") -> bytes:
    """Return a whole packet: an instruction, or a reply where `code` is the error byte."""
    body = bytes((servo_id, len(params) + 2, code)) + params
    return HEADER + body + bytes((checksum(body),))


def status(servo_id: int, error: int, params: bytes = b"") -> bytes:
    """Return a servo's reply."""
    return frame(servo_id, error, params)


def ping(servo_id: int) -> bytes:
    """Ask a servo, or all of them (0xFE), whether it is there."""
    return frame(servo_id, Instruction.PING)


def read(servo_id: int, address: int, size: int) -> bytes:
    """Ask one servo for `size` bytes from `address` on."""
    return frame(servo_id, Instruction.READ, bytes((address, size)))


def write(servo_id: int, address: int, data: bytes) -> bytes:
    """Tell one servo to store `data` from `address` on; it replies."""
    return frame(servo_id, Instruction.WRITE, bytes((address,)) + data)


def sync_read(address: int, size: int, ids: Iterable[int]) -> bytes:
    """Ask several servos for the same registers; each replies, in the order asked."""
    return frame(BROADCAST_ID, Instruction.SYNC_READ, bytes((address, size)) + bytes(ids))


def sync_write(address: int, size: int, id_data: bytes) -> bytes:
    """Tell servos to store `id_data`, each one's id and `size` bytes; nobody replies."""
    return frame(BROADCAST_ID, Instruction.SYNC_WRITE, bytes((address, size)) + id_data)


@functools.lru_cache
def expected(size: int, ids: tuple[int, ...]) -> Expected:
    """Return what these servos send where each has `size` data bytes and no error to tell."""
    heads = [HEADER + bytes((servo_id, size + 2, 0)) for servo_id in ids]
    step = size + sum(AROUND)
    ends, whole = range(step, step * len(heads) + 1, step), [0xFF] * len(heads)

    def sums_hold(received: bytes) -> bool:
        # The checksum makes the sum of all but the header 0xFF.
        sums = [sum(received[end - step + 2 : end]) & 0xFF for end in ends]
        return sums == whole

    return expecting(heads, step, sums_hold)


class FeetechParser(FrameParser):
    """Cuts a stream into frames; serves the host and, for instructions, an emulated servo."""

    OVERHEAD, max_frame_bytes = sum(AROUND), 259

    def _next(self) -> list[Frame] | None:
        buffer = self._buffer
        start = buffer.find(HEADER)
        if start != 0:
            # A last 0xFF may be the beginning of a header.
            keep = 1 if start < 0 and buffer.endswith(b"\xff") else 0
            self._reject(len(buffer) - keep if start < 0 else start)
            if start < 0:
                return None
        if len(buffer) < 4:
            return None
        length = buffer[3]
        total = length + 4
        if buffer[2] == 0xFF or length < 2 or total > self.max_frame_bytes:
            self._reject(1)  # with 0xFF as id, the header began one byte later
            return []
        if len(buffer) < total:
            return None
        if checksum(buffer[2 : total - 1]) != buffer[total - 1]:
            self.corrupt_ids.append(buffer[2])
            self._reject(1)
            return []
        found = Frame(buffer[2], buffer[4], bytes(buffer[5 : total - 1]))
        del buffer[:total]
        return [found]


Parser = FeetechParser
"""What both wires' modules call theirs."""


def reply_of(parsed: Frame) -> Reply | None:
    """Return what a servo's frame says."""
    return Reply(parsed.id, parsed.code, parsed.params)
