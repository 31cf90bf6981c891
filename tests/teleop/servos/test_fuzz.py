"""10,000 spoiled replies: no hang, no crash, every fault counted."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from fake_servos import FakeServos

from gaploop.core.messages import NO_REPLY
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.bus import PROBE_TURNS, ServoBus
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import Protocol

ARMS = {
    Protocol.FEETECH: dict.fromkeys(range(1, 7), "sts3215"),
    Protocol.DYNAMIXEL: {1: "xl430-w250", 2: "xl430-w250", 3: "xl330-m288", 4: "xl330-m288"},
}


class Spoiler:
    """Spoils what servos answer in one way after another."""

    def __init__(self, protocol: Protocol, seed: int) -> None:
        self._wire = dynamixel if protocol is Protocol.DYNAMIXEL else feetech
        self._draw = random.Random(seed)
        self.spoiled = 0
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._cut,
            self._flip,
            self._noise_only,
            self._noise_before,
            self._noise_inside,
            self._other_id,
            self._wrong_size,
            self._twice,
            self._nothing,
            self._headers,
            self._long_length,
        )

    def __call__(self, data: bytes) -> bytes:
        self.spoiled += 1
        return self._ways[self.spoiled % len(self._ways)](data)

    def _some(self, most: int) -> bytes:
        return self._draw.randbytes(self._draw.randrange(1, most))

    def _cut(self, data: bytes) -> bytes:
        return data[: self._draw.randrange(len(data))]

    def _flip(self, data: bytes) -> bytes:
        k = self._draw.randrange(len(data))
        return data[:k] + bytes((data[k] ^ 1 << self._draw.randrange(8),)) + data[k + 1 :]

    def _noise_only(self, _: bytes) -> bytes:
        return self._some(200)

    def _noise_before(self, data: bytes) -> bytes:
        return self._some(20) + data

    def _noise_inside(self, data: bytes) -> bytes:
        k = self._draw.randrange(len(data))
        return data[:k] + self._some(8) + data[k:]

    def _other_id(self, data: bytes) -> bytes:
        return self._wire.status(self._draw.randrange(20, 200), 0, bytes(15)) + data

    def _wrong_size(self, data: bytes) -> bytes:
        return self._wire.status(1, 0, self._draw.randbytes(self._draw.randrange(30))) + data

    def _twice(self, data: bytes) -> bytes:
        return data + data

    def _nothing(self, _: bytes) -> bytes:
        return b""

    def _headers(self, _: bytes) -> bytes:
        return bytes(self._draw.choice((0xFF, 0xFD, 0x00, 0x55, 0x01)) for _ in range(80))

    def _long_length(self, data: bytes) -> bytes:
        return data[:5] + b"\xff\x7f" + data[7:]


class Impatient(BusLine):
    """The fake answers at once or never, so nothing is waited for."""

    @property
    def wait_s(self) -> float:
        return 0.0


class AtOnce(SerialPort):
    """A port whose other end answers while the request is being written: 10,000 take seconds."""

    def __init__(self, fake: FakeServos) -> None:
        super().__init__("pipe", baud=10**12)
        self._fake = fake
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)

    def fileno(self) -> int:
        return self._out

    def read(self, most: int = 4096) -> bytes:
        try:
            return os.read(self._out, most)
        except BlockingIOError:
            return b""

    def write(self, data: bytes) -> None:
        answer = self._fake.reply(data)
        if answer:
            os.write(self._in, answer)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_spoiled_replies_neither_hang_nor_crash_and_all_count(protocol: Protocol) -> None:
    replies = 1000
    with FakeServos(protocol, ARMS[protocol]) as fake:
        port = AtOnce(fake)
        line = Impatient(port, protocol)
        bus = ServoBus(line, list(ARMS[protocol]), list(ARMS[protocol].values()))
        for servo_id in bus.ids:
            fake.put(servo_id, "Present_Position", 2000 + servo_id)
        spoiler = Spoiler(protocol, seed=7)
        fake.spoil = spoiler
        try:
            while spoiler.spoiled < replies:
                _one_read(bus, line)
        finally:
            port.close()


@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_same_on_a_pseudo_terminal(protocol: Protocol) -> None:
    with FakeServos(protocol, ARMS[protocol]) as fake:
        port = SerialPort(fake.path)
        port.open()
        line = BusLine(port, protocol)
        bus = ServoBus(line, list(ARMS[protocol]), list(ARMS[protocol].values()))
        spoiler = Spoiler(protocol, seed=8)
        fake.spoil = spoiler
        while spoiler.spoiled < 100:
            _one_read(bus, line)
        fake.spoil = lambda data: data
        for _ in range(PROBE_TURNS):  # whatever came before, a healthy bus is heard again
            (state,) = run([(line, bus.read(0.0))])
        assert not state.status.any()
        port.close()


def _one_read(bus: ServoBus, line: BusLine) -> None:
    before = asdict(line.faults)
    (state,) = run([(line, bus.read(0.0))])
    assert 0.0 < line.deadline_s - line._sent_s < 0.5, "what comes moves no deadline"
    silent = state.status & NO_REPLY != 0
    assert np.isnan(state.values[1:6, silent]).all()
    assert line.parser.waiting_bytes == 0
    # A servo that was missing before and still is goes on being one incident.
    assert asdict(line.faults) != before or silent.any()
