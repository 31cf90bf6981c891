"""What both wire protocols share: a frame, and how a stream of bytes is cut into frames.

Every byte that comes in ends up either in a frame that is handed on or in `rejected_bytes`, so
that nothing a bus does goes unnoticed. A frame with a wrong checksum is given up one byte at a
time: a reply that lost its tail must not take the next servo's reply with it.
"""

import abc
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

BROADCAST_ID = 0xFE
"""The id that every servo listens to, in both protocols."""
SLACK_BYTES = 48
"""A frame may be this much longer than expected."""


class Instruction(IntEnum):
    """Instruction codes: both protocols have the same, and Dynamixel one for replies."""

    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    REBOOT = 0x08
    STATUS = 0x55
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83


class Frame(NamedTuple):
    """One packet without its header, length and checksum.

    Attributes:
        code: instruction; in a reply, 0x55 (Dynamixel) or the error byte (Feetech).
        params: what follows, without byte stuffing. A Dynamixel reply begins with the error byte.
    """

    id: int
    code: int
    params: bytes


class Reply(NamedTuple):
    """What one servo answered: its error byte, 0 where all is well, and what was read, if any."""

    id: int
    error: int
    data: bytes


class Expected(NamedTuple):
    """What a bus that is well sends in answer to a request: the replies and nothing else.

    Attributes:
        is_all_of: takes that many bytes; False where anything at all is different: an error,
            another order, noise. The data of each lies in them within the wire's `AROUND`.
    """

    length: int
    is_all_of: Callable[[bytes], bool]


def expecting(heads: Sequence[bytes], step: int, sums_hold: Callable[[bytes], bool]) -> Expected:
    """Return frames of `step` bytes that begin with `heads`, where `sums_hold` of all together."""
    mask = int.from_bytes(b"".join((b"\xff" * len(head)).ljust(step, b"\0") for head in heads))
    wanted = int.from_bytes(b"".join(head.ljust(step, b"\0") for head in heads))

    def is_all_of(received: bytes) -> bool:
        return sums_hold(received) and int.from_bytes(received) & mask == wanted

    return Expected(step * len(heads), is_all_of)


class FrameParser(abc.ABC):
    """Cuts a stream of bytes into frames.

    Attributes:
        rejected_bytes: how many belonged to no frame: noise, or part of a broken one.
        corrupt_ids: the id of each frame whose checksum was wrong, as far as it can be known.
    """

    OVERHEAD: int
    """Bytes of a reply that aren't data."""
    STUFFED = False
    """Bytes are stuffed, which makes a frame longer by a third at most."""
    max_frame_bytes = 1024

    def __init__(self) -> None:
        self.rejected_bytes = 0
        self.corrupt_ids: list[int] = []
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that may still become part of a frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes in and return the frames that are complete now."""
        self._buffer += data
        return self._cut()

    def flush(self) -> list[Frame]:
        """Nothing more is coming: return what can be saved and reject the rest."""
        frames: list[Frame] = []
        while self._buffer:
            self._reject(1)
            frames += self._cut()
        return frames

    def _cut(self) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames += frame

    def _reject(self, length: int) -> None:
        del self._buffer[:length]
        self.rejected_bytes += length

    def expect(self, size: int, count: int) -> int:
        """Get ready for `count` answers of `size` data bytes; return how many bytes they take.

        A frame may be a little longer than that and still be told from noise, not waited for.
        """
        one = self.OVERHEAD + size
        self.max_frame_bytes = one + (one // 3 if self.STUFFED else 0) + SLACK_BYTES
        return count * one

    @abc.abstractmethod
    def _next(self) -> list[Frame] | None:
        """Return the frames at the buffer's start, [] after a rejection, None to wait for more."""
