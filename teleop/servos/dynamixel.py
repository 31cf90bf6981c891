"""Dynamixel Protocol 2.0 on the wire.

Source: ROBOTIS e-manual, "DYNAMIXEL Protocol 2.0" (emanual.robotis.com/docs/en/dxl/protocol2).
"""

import functools
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import fastcrc

from gaploop.teleop.servos.frames import (
    BROADCAST_ID,
    Expected,
    Frame,
    FrameParser,
    Reply,
    expecting,
)
from gaploop.teleop.servos.frames import Instruction as Instruction

HEADER: Final = b"\xff\xff\xfd\x00"
ALERT: Final = 0x80
"""Bit of the error byte: register 70, Hardware Error Status, isn't 0."""
_STUFFED: Final = (b"\xff\xff\xfd", b"\xff\xff\xfd\xfd")
AROUND: Final = (9, 2)
"""Bytes of a reply before its data, and after: header 4, id 1, length 2, 0x55, error 1; CRC 2."""


class ErrorCode(IntEnum):
    """Low 7 bits of the error byte, e-manual section "Error"."""

    NONE = 0
    RESULT_FAIL = 1
    INSTRUCTION = 2
    CRC = 3
    DATA_RANGE = 4
    DATA_LENGTH = 5
    DATA_LIMIT = 6
    ACCESS = 7


crc16 = fastcrc.crc16.umts
"""The CRC-16 of some bytes (polynomial 0x8005, most significant bit first)."""


def frame(servo_id: int, instruction: int, params: bytes = b"") -> bytes:
    """Return a whole packet, stuffed and with its CRC."""
    body = bytes((instruction,)) + params
    if _STUFFED[0] in body:
        body = body.replace(*_STUFFED)
    length = len(body) + 2
    packet = HEADER + bytes((servo_id, length & 0xFF, length >> 8)) + body
    return packet + crc16(packet).to_bytes(2, "little")


def status(servo_id: int, error: int, params: bytes = b"") -> bytes:
    """Return a servo's reply."""
    return frame(servo_id, Instruction.STATUS, bytes((error,)) + params)


def ping(servo_id: int) -> bytes:
    """Ask a servo, or all of them (0xFE), for model number and firmware."""
    return frame(servo_id, Instruction.PING)


def read(servo_id: int, address: int, size: int) -> bytes:
    """Ask one servo for `size` bytes from `address` on."""
    return frame(servo_id, Instruction.READ, _span(address, size))


def write(servo_id: int, address: int, data: bytes) -> bytes:
    """Tell one servo to store `data` from `address` on; it replies."""
    return frame(servo_id, Instruction.WRITE, address.to_bytes(2, "little") + data)


def sync_read(address: int, size: int, ids: Iterable[int]) -> bytes:
    """Ask several servos for the same registers; each replies, in the order asked."""
    return frame(BROADCAST_ID, Instruction.SYNC_READ, _span(address, size) + bytes(ids))


def sync_write(address: int, size: int, id_data: bytes) -> bytes:
    """Tell servos to store `id_data`, each one's id and `size` bytes; nobody replies."""
    return frame(BROADCAST_ID, Instruction.SYNC_WRITE, _span(address, size) + id_data)


def _span(address: int, size: int) -> bytes:
    return address.to_bytes(2, "little") + size.to_bytes(2, "little")


@functools.lru_cache
def expected(size: int, ids: tuple[int, ...]) -> Expected:
    """Return what these servos send where each has `size` data bytes and no error to tell."""
    length = size + 4
    tail = bytes((length & 0xFF, length >> 8, Instruction.STATUS, 0))
    heads = [HEADER + bytes((servo_id,)) + tail for servo_id in ids]
    step = sum(AROUND) + size
    crcs = struct.Struct("<" + f"{step - 2}xH" * len(heads))
    ends = range(step - 2, step * len(heads), step)

    def sums_hold(received: bytes) -> bool:
        found = [crc16(received[end - step + 2 : end]) for end in ends]
        return tuple(found) == crcs.unpack(received)

    return expecting(heads, step, sums_hold)


class DynamixelParser(FrameParser):
    """Cuts a stream into frames; serves the host and, for instructions, an emulated servo."""

    OVERHEAD, STUFFED = sum(AROUND), True

    def _next(self) -> list[Frame] | None:
        buffer = self._buffer
        start = buffer.find(HEADER)
        if start != 0:
            # Keep what may be the beginning of a header.
            keep = 0
            if start < 0:
                keep = next((k for k in (3, 2, 1) if buffer.endswith(HEADER[:k])), 0)
                start = len(buffer) - keep
            self._reject(start)
            if keep or not buffer:
                return None
        if len(buffer) < 7:
            return None
        length = buffer[5] | buffer[6] << 8
        total = length + 7
        if length < 3 or total > self.max_frame_bytes:
            self._reject(1)
            return []
        if len(buffer) < total:
            return None
        if crc16(buffer[: total - 2]) != buffer[total - 2] | buffer[total - 1] << 8:
            self.corrupt_ids.append(buffer[4])
            self._reject(1)
            return []
        servo_id, code = buffer[4], buffer[7]
        params = bytes(buffer[8 : total - 2])
        if _STUFFED[1] in params:
            params = params.replace(_STUFFED[1], _STUFFED[0])
        del buffer[:total]
        return [Frame(servo_id, code, params)]


Parser = DynamixelParser
"""What both wires' modules call theirs."""


def reply_of(parsed: Frame) -> Reply | None:
    """Return what a servo's frame says, or None where it isn't a reply (an echo, say)."""
    if parsed.code != Instruction.STATUS or not parsed.params:
        return None
    return Reply(parsed.id, parsed.params[0], parsed.params[1:])
