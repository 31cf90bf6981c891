"""Laws of the wire: what is packed comes out again, and no byte goes unaccounted for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.frames import FrameParser, Reply

IDS = st.integers(0, 0xFC)
# Byte stuffing only shows on bytes that look like headers, so draw those often.
PARAMS = st.lists(st.sampled_from([0x00, 0x55, 0xFD, 0xFF]) | st.integers(0, 255), max_size=60)


def test_packets_are_the_manuals_own() -> None:
    """ROBOTIS e-manual, "DYNAMIXEL Protocol 2.0": its own examples."""
    assert dynamixel.ping(1) == bytes.fromhex("fffffd000103000119 4e")
    assert dynamixel.sync_read(132, 4, (1, 2)) == bytes.fromhex("fffffd00fe0900828400040001 02cefa")
    goals = bytes([1, 0x96, 0, 0, 0, 2, 0xAA, 0, 0, 0])
    assert dynamixel.sync_write(116, 4, goals) == bytes.fromhex(
        "fffffd00fe110083740004000196000000 02aa0000008287"
    )
    bulk = bytes([1, 144, 0, 2, 0, 2, 146, 0, 1, 0])
    assert dynamixel.frame(0xFE, 0x92, bulk) == bytes.fromhex(
        "fffffd00fe0d0092019000020002920001001a05"
    )
    assert dynamixel.status(2, 0, b"\x1f\x08\x00\x00") == bytes.fromhex(
        "fffffd00020800550 01f080000babe".replace(" ", "")
    )
    # Feetech's protocol manual: ping of servo 1 and its reply.
    assert feetech.ping(1) == bytes.fromhex("ffff010201fb")
    assert feetech.status(1, 0) == bytes.fromhex("ffff010200fc")


@given(st.lists(st.tuples(IDS, PARAMS), min_size=1, max_size=5), st.data())
def test_what_is_sent_in_any_pieces_is_received(
    packets: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    for wire, parser in ((dynamixel, dynamixel.Parser()), (feetech, feetech.Parser())):
        stream = b"".join(wire.status(i, 0, bytes(params)) for i, params in packets)
        cut = data.draw(st.integers(0, len(stream)))
        frames = parser.feed(stream[:cut]) + parser.feed(stream[cut:])
        replies = [wire.reply_of(frame) for frame in frames]
        assert replies == [Reply(i, 0, bytes(params)) for i, params in packets]
        assert parser.rejected_bytes == parser.waiting_bytes == 0


@pytest.mark.parametrize("make", [dynamixel.Parser, feetech.Parser])
@given(noise=st.binary(max_size=300) | PARAMS.map(bytes))
def test_every_byte_is_accepted_or_rejected(
    make: type[dynamixel.Parser | feetech.Parser], noise: bytes
) -> None:
    parser: FrameParser = make()
    frames = parser.feed(noise) + parser.flush()
    assert parser.waiting_bytes == 0
    assert (parser.rejected_bytes == len(noise)) == (not frames)
    assert parser.rejected_bytes <= len(noise)


def test_a_truncated_reply_does_not_take_the_next_ones_with_it() -> None:
    for wire, make in ((dynamixel, dynamixel.Parser), (feetech, feetech.Parser)):
        good = [wire.status(i, 0, bytes([i] * 15)) for i in (1, 2, 3)]
        parser: FrameParser = make()
        frames = parser.feed(good[0] + good[1][:9] + good[2]) + parser.flush()
        assert [frame.id for frame in frames] == [1, 3]
        assert parser.rejected_bytes == 9


@given(
    st.lists(st.tuples(IDS, st.binary(min_size=21, max_size=21)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2),
    st.sampled_from(["feetech", "dynamixel"]),
)
def test_what_is_taken_as_a_whole_is_what_the_parser_would_have_found(
    servos: list[tuple[int, bytes]], spoilt: list[tuple[int, int]], kind: str
) -> None:
    """The short way for a bus that is well lets nothing through that the long way wouldn't."""
    ids = [servo_id for servo_id, _ in servos]
    parser: FrameParser
    if kind == "feetech":
        sent = b"".join(feetech.status(i, 0, data) for i, data in servos)
        expected, parser, reply_of = (
            feetech.expected(21, tuple(ids)),
            feetech.Parser(),
            feetech.reply_of,
        )
    else:
        expected, parser = dynamixel.expected(21, tuple(ids)), dynamixel.Parser()
        reply_of = dynamixel.reply_of
        sent = b"".join(dynamixel.status(i, 0, data) for i, data in servos)
    received = bytearray(sent)
    for place, change in spoilt:
        received[place % len(received)] ^= change
    before, after = (feetech if kind == "feetech" else dynamixel).AROUND
    is_whole = len(received) == expected.length and expected.is_all_of(bytes(received))
    frames = parser.feed(bytes(received)) + parser.flush()
    replies = [reply_of(frame) for frame in frames]
    if is_whole:
        starts = range(before, len(received), before + 21 + after)
        data = [bytes(received[start : start + 21]) for start in starts]
        assert replies == [Reply(i, 0, one) for i, one in zip(ids, data, strict=True)]
    if received == sent and len(sent) == expected.length:
        assert is_whole
