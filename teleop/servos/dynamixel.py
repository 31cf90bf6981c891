"""Dynamixel Protocol 2.0 on the wire.

Source: ROBOTIS e-manual, "DYNAMIXEL Protocol 2.0" (emanual.robotis.com/docs/en/dxl/protocol2),
and the layout that ROBOTIS' own DynamixelSDK 4 reads for fast sync read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import fastcrc

from gaploop.teleop.servos.frames import (
    BROADCAST_ID,
    SLACK_BYTES,
    Expected,
    Frame,
    FrameParser,
    Reply,
)

HEADER: Final = b"\xff\xff\xfd\x00"
ALERT: Final = 0x80
"""Bit of the error byte: register 70, Hardware Error Status, isn't 0."""
_STUFFED: Final = (b"\xff\xff\xfd", b"\xff\xff\xfd\xfd")
_OVERHEAD: Final = 10  # header 4, id 1, length 2, instruction 1, CRC 2
_FAST_OVERHEAD: Final = 4  # error 1, id 1, CRC 2, of each servo in a fast reply


class Instruction(IntEnum):
    """Instruction codes of the e-manual's section "Instruction"."""

    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    REBOOT = 0x08
    STATUS = 0x55
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83
    FAST_SYNC_READ = 0x8A


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


def crc16(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the CRC-16 (polynomial 0x8005, most significant bit first), going on from `crc`."""
    return fastcrc.crc16.umts(data, crc)


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


def fast_status(blocks: Sequence[Reply], ids_asked: int | None = None) -> bytes:
    """Return the one packet that several servos build together in a fast sync read.

    Each servo adds error, id, data and the CRC of everything before; the first also sends the
    header, whose length counts on all that were asked. Where fewer answer than `ids_asked`,
    the packet ends early. It isn't stuffed.
    """
    count = len(blocks) if ids_asked is None else ids_asked
    size = len(blocks[0].data) + _FAST_OVERHEAD if blocks else 0
    length = 1 + size * count
    head = bytes((BROADCAST_ID, length & 0xFF, length >> 8, Instruction.STATUS))
    packet = bytearray(HEADER + head)
    for block in blocks:
        packet += bytes((block.error, block.id)) + block.data
        packet += crc16(packet).to_bytes(2, "little")
    return bytes(packet)


def ping(servo_id: int) -> bytes:
    """Ask a servo, or all of them (0xFE), for model number and firmware."""
    return frame(servo_id, Instruction.PING)


def read(servo_id: int, address: int, size: int) -> bytes:
    """Ask one servo for `size` bytes from `address` on."""
    return frame(servo_id, Instruction.READ, _span(address, size))


def write(servo_id: int, address: int, data: bytes) -> bytes:
    """Tell one servo to store `data` from `address` on; it replies."""
    return frame(servo_id, Instruction.WRITE, address.to_bytes(2, "little") + data)


def sync_read(address: int, size: int, ids: Iterable[int], fast: bool = False) -> bytes:
    """Ask several servos for the same registers; each replies, or all in one fast packet."""
    code = Instruction.FAST_SYNC_READ if fast else Instruction.SYNC_READ
    return frame(BROADCAST_ID, code, _span(address, size) + bytes(ids))


def sync_write(address: int, size: int, id_data: bytes) -> bytes:
    """Tell servos to store `id_data`, each one's id and `size` bytes; nobody replies."""
    return frame(BROADCAST_ID, Instruction.SYNC_WRITE, _span(address, size) + id_data)


def _span(address: int, size: int) -> bytes:
    return address.to_bytes(2, "little") + size.to_bytes(2, "little")


def expected(size: int, ids: Sequence[int], fast: bool) -> Expected:
    """Return what these servos send where each has `size` data bytes and no error to tell."""
    if fast:
        starts = [bytes((0, servo_id)) for servo_id in ids]
        length = 1 + len(ids) * (size + _FAST_OVERHEAD)
        heads = [HEADER + bytes((BROADCAST_ID, length & 0xFF, length >> 8, Instruction.STATUS))]
        heads = [heads[0] + starts[0], *starts[1:]]
    else:
        length = size + 4
        tail = bytes((length & 0xFF, length >> 8, Instruction.STATUS, 0))
        heads = [HEADER + bytes((servo_id,)) + tail for servo_id in ids]

    def data_of(received: bytes) -> bytes | None:
        data, crc, start = [], 0, 0
        for head in heads:
            end = start + len(head) + size
            if not received.startswith(head, start):
                return None
            data.append(received[end - size : end])
            # In a fast packet each CRC also covers what the servos before have sent.
            crc = crc16(received[start:end], crc if fast else 0)
            given = received[end : end + 2]
            if crc != int.from_bytes(given, "little"):
                return None
            crc, start = crc16(given, crc), end + 2
        return b"".join(data)

    return Expected(sum(len(head) + size + 2 for head in heads), data_of)


class Parser(FrameParser):
    """Cuts a stream into frames; serves the host and, for instructions, an emulated servo.

    Attributes:
        fast_size: data bytes of each servo in the fast reply that is expected, or None. A fast
            reply is handed on as one status frame per servo, whole or as far as it came; one of
            another length is an earlier request's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fast_size: int | None = None
        self.fast_count: int | None = None

    def expect(self, size: int, count: int, fast: bool) -> int:
        """Get ready for `count` answers of `size` data bytes; return how many bytes they take."""
        self.fast_size, self.fast_count = size if fast else None, count
        one, all_fast = _OVERHEAD + 1 + size, 8 + count * (size + _FAST_OVERHEAD)
        # Stuffing makes a reply longer by a third at most; a fast one isn't stuffed.
        longest = max(all_fast if fast else 0, one + one // 3)
        self.max_frame_bytes = longest + SLACK_BYTES
        return all_fast if fast else count * one

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
            saved = self._salvage()
            if not saved:
                self.corrupt_ids.append(buffer[4])
                self._reject(1)
            return saved
        servo_id, code = buffer[4], buffer[7]
        params = bytes(buffer[8 : total - 2])
        if self.fast_size is not None and servo_id == BROADCAST_ID and code == Instruction.STATUS:
            if not self._is_expected():
                self.unexpected += 1
                self._accept(total)
                return []
            blocks = _fast_blocks(bytes(buffer[8:total]), self.fast_size)
            self._accept(total)
            return blocks
        if _STUFFED[1] in params:
            params = params.replace(_STUFFED[1], _STUFFED[0])
        self._accept(total)
        return [Frame(servo_id, code, params)]

    def _is_expected(self) -> bool:
        """Say whether the fast reply at the buffer's start is as long as the one asked for."""
        length = self._buffer[5] | self._buffer[6] << 8
        size, count = self.fast_size, self.fast_count
        if size is None or count is None:
            return size is not None
        return length == 1 + count * (size + _FAST_OVERHEAD)

    def _salvage(self) -> list[Frame]:
        """Return the servos of a cut or damaged fast reply that came before the damage."""
        buffer, size = self._buffer, self.fast_size
        if size is None or not buffer.startswith(HEADER + bytes((BROADCAST_ID,))):
            return []
        if len(buffer) < 8 or buffer[7] != Instruction.STATUS or not self._is_expected():
            return []
        step, end, crc = size + _FAST_OVERHEAD, 8, crc16(buffer[:8])
        while len(buffer) >= end + step:
            crc = crc16(buffer[end : end + step - 2], crc)
            given = buffer[end + step - 2 : end + step]
            if crc != given[0] | given[1] << 8:
                break
            crc, end = crc16(given, crc), end + step
        if end == 8:
            return []
        blocks = _fast_blocks(bytes(buffer[8:end]), size)
        self._accept(end)
        return blocks


def _fast_blocks(body: bytes, size: int) -> list[Frame]:
    step = size + _FAST_OVERHEAD
    return [
        Frame(body[k + 1], Instruction.STATUS, body[k : k + 1] + body[k + 2 : k + 2 + size])
        for k in range(0, len(body) - step + 1, step)
    ]


def reply_of(parsed: Frame) -> Reply | None:
    """Return what a servo's frame says, or None where it isn't a reply (an echo, say)."""
    if parsed.code != Instruction.STATUS or not parsed.params:
        return None
    return Reply(parsed.id, parsed.params[0], parsed.params[1:])
