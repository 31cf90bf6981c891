"""Emulated arms whose wire, not the machine's clock, says that no answer comes."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
import time
from collections.abc import Iterator

import pytest

WITHIN_S = 60.0
"""Something that hangs is given up after this long."""


@pytest.fixture
def patient_wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let our driver give an emulated servo up only when nothing is on the wire any more.

    A servo answers within a millisecond and the driver waits for some. An emulated one answers when
    its thread is given a processor: beside busy programs arms that were well "didn't hold".
    """
    from gaploop.teleop.emulator import bus
    from gaploop.teleop.emulator.port import Port
    from gaploop.teleop.servos.port import SerialPort

    wires: dict[str, Wire] = {}

    class Wire(Port):
        """The servos' end, which counts what goes over it."""

        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            self.received = self.worked_on = self.sent = 0
            self.host: SerialPort | None = None
            self.written = self.read = 0
            wires[self.name] = self

        def receive(self) -> bytes:
            data = super().receive()
            self.received += len(data)
            return data

        def send(self, data: bytes) -> None:
            with contextlib.suppress(BlockingIOError):
                self.sent += os.write(self.fd, data)

        def is_quiet(self) -> bool:
            """Say whether all that was asked has been worked on, and every answer has arrived."""
            host = self.host
            if self.fd < 0 or host is None or host.fileno() < 0:
                return True
            waiting = array.array("i", [0])
            with contextlib.suppress(OSError):  # unplugged just now
                fcntl.ioctl(host.fileno(), termios.FIONREAD, waiting)
            return self.worked_on >= self.written and self.read + waiting[0] >= self.sent

    turn, opens, writes = bus.EmulatedBus._wait, SerialPort.open, SerialPort._write_some
    reads, waits = SerialPort.read, SerialPort.wait

    def next_turn(emulated: bus.EmulatedBus, port: Port | None) -> bool:
        if isinstance(port, Wire):
            port.worked_on = port.received  # and answered
        return turn(emulated, port)

    def wire_of(port: SerialPort) -> Wire | None:
        wire = wires.get(os.path.realpath(port.path))
        return wire if wire is not None and wire.host is port else None

    def open_and_count(port: SerialPort) -> None:
        was_open = port.is_open
        opens(port)
        wire = wires.get(os.path.realpath(port.path))
        if wire is not None and not was_open:
            wire.host, wire.written, wire.read = port, wire.received, wire.sent

    def write_some(port: SerialPort, data: bytes) -> int:
        count, wire = writes(port, data), wire_of(port)
        if wire is not None:
            wire.written += count
        return count

    def read(port: SerialPort, most: int = 4096) -> bytes:
        data, wire = reads(port, most), wire_of(port)
        if wire is not None:
            wire.read += len(data)
        return data

    def wait(port: SerialPort, timeout_s: float) -> bool:
        is_ready = waits(port, timeout_s)
        give_up_s = time.monotonic() + WITHIN_S
        while not all(wire.is_quiet() for wire in tuple(wires.values())):
            assert time.monotonic() < give_up_s, "the emulated arm hangs"
            time.sleep(0.0005)
        return is_ready or waits(port, 0.0)

    monkeypatch.setattr(bus, "Port", Wire)
    monkeypatch.setattr(bus.EmulatedBus, "_wait", next_turn)
    monkeypatch.setattr(SerialPort, "open", open_and_count)
    monkeypatch.setattr(SerialPort, "_write_some", write_some)
    monkeypatch.setattr(SerialPort, "read", read)
    monkeypatch.setattr(SerialPort, "wait", wait)
    yield
    wires.clear()
