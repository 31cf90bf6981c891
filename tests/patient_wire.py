"""Emulated arms whose wire, not the machine's clock, says that no answer comes.

A servo answers within a millisecond, so hosts wait for some. An emulated one answers when its
thread and the kernel's behind the pseudo-terminal are given a processor: beside busy programs, arms
that were well "didn't hold". Here hosts in this process give up only when nothing is on the wire.

With `loop_time` arms, our driver and control loops live on one clock, too. It goes on as a loop
waits for its next turn and as the driver waits for an answer that doesn't come: no turn is late, no
leader stale and no servo silent because the machine is busy, and nothing waits in real time.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import math
import os
import termios
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gaploop.core.clock import ManualClock

if TYPE_CHECKING:
    from gaploop.core.messages import Tick
    from gaploop.core.protocols import TakeSink
    from gaploop.teleop.emulator.bus import EmulatedBus
    from gaploop.teleop.servos.port import SerialPort

WITHIN_S = 120.0
"""Something that hangs is given up after this long."""
IDLE_S = 0.001
"""An emulated arm that isn't asked anything looks at its clock so often [s]."""
INSTANT_S = 1e-6
"""Who has waited until his time is up finds it up [s]."""


class LoopTime(ManualClock):
    """Time that goes on as control loops take their turns.

    Attributes:
        on_turn: called after each turn, in the loop's thread, when all subscribers have had it.
    """

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.on_turn: Callable[[], None] = lambda: None
        self.heard: list[tuple[str, list[int]]] = []
        """Each subscriber's class, and how many turns it has had."""
        self.wires: dict[str, Traffic] = {}
        """What drivers wait for: terminal to its traffic."""

    def takes(self) -> list[int]:
        """Return how many turns have been recorded of each take."""
        return [turns[0] for name, turns in tuple(self.heard) if name == "Recorder"]

    def sleep_until(self, deadline_s: float) -> None:
        if threading.current_thread().name == "control loop":
            self.on_turn()
        super().sleep_until(deadline_s)


class Traffic:
    """What has gone over one arm's wire [bytes], and who listens at the host's end."""

    def __init__(self) -> None:
        self.written = self.received = self.worked_on = self.sent = self.read = 0
        self.servos_fd: Callable[[], int] = lambda: -1
        self.rests = True
        """The servos' thread waits for something to do."""
        self.due_s: Callable[[], float | None] = lambda: None
        """When the next answer goes out that is held up [s]."""
        self.host: object = None
        self.host_fd: Callable[[], int] = lambda: -1

    def opened(self, host: object, fd: Callable[[], int]) -> None:
        """Count from here on: what an earlier host hadn't read is thrown away."""
        self.host, self.host_fd = host, fd
        self.written, self.read = self.received, self.sent

    def waiting(self) -> int:
        """Return how many bytes the host can read."""
        count = array.array("i", [0])
        with contextlib.suppress(OSError):  # unplugged just now
            fcntl.ioctl(self.host_fd(), termios.FIONREAD, count)
        return count[0]

    def is_quiet(self, now_s: float = -math.inf) -> bool:
        """Say whether all that was asked has been worked on, and every answer has arrived.

        Args:
            now_s: answers that are held up until then have gone out, too [s].
        """
        if self.servos_fd() < 0 or self.host_fd() < 0:
            return True
        due_s = self.due_s()
        if (due_s is not None and due_s <= now_s) or not self.rests:
            return False
        return self.worked_on >= self.written and self.read + self.waiting() >= self.sent


def _watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Traffic]:
    """Return terminal to its traffic, of the emulated arms that start from now on."""
    from gaploop.teleop.emulator import bus
    from gaploop.teleop.emulator.bus import PseudoTerminal

    wires: dict[str, Traffic] = {}

    class Watched(PseudoTerminal):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.traffic = wires[self.name] = Traffic()
            self.traffic.servos_fd = lambda: self.fd

        def receive(self) -> bytes:
            data = super().receive()
            self.traffic.received += len(data)
            return data

        def send(self, data: bytes) -> None:
            with contextlib.suppress(BlockingIOError):
                self.traffic.sent += os.write(self.fd, data)

    turn = bus.EmulatedBus._wait

    def next_turn(emulated: EmulatedBus, port: PseudoTerminal | None) -> bool:
        if not isinstance(port, Watched):
            return turn(emulated, port)
        traffic, late = port.traffic, emulated._late
        traffic.due_s = lambda: next((due_s for due_s, _ in tuple(late)), None)
        traffic.worked_on, traffic.rests = traffic.received, True  # and answered
        try:
            return turn(emulated, port)
        finally:
            traffic.rests = False

    monkeypatch.setattr(bus, "PseudoTerminal", Watched)
    monkeypatch.setattr(bus.EmulatedBus, "_wait", next_turn)
    return wires


def _be_patient(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> dict[str, Traffic]:
    """Let our own driver wait for all that is on the wires, and on `clock` for what is late."""
    from gaploop.teleop.servos.port import SerialPort

    wires = _watched(monkeypatch)
    opens, writes = SerialPort.open, SerialPort._write_some
    reads, waits = SerialPort.read, SerialPort.wait
    opened: dict[SerialPort, Traffic] = {}

    def wire_of(port: SerialPort) -> Traffic:
        wire = opened.get(port)
        return wire if wire is not None and wire.host is port else Traffic()

    def open_(port: SerialPort) -> None:
        was_open = port.fileno() >= 0
        opens(port)
        if not was_open and (wire := wires.get(os.path.realpath(port.path))) is not None:
            wire.opened(port, port.fileno)
            opened[port] = wire

    def write_some(port: SerialPort, data: bytes) -> int:
        count = writes(port, data)
        wire_of(port).written += count
        return count

    def read(port: SerialPort, most: int = 4096) -> bytes:
        data = reads(port, most)
        wire_of(port).read += len(data)
        return data

    def be_quiet(*some: Traffic) -> None:
        give_up_s = time.monotonic() + WITHIN_S
        now_s = clock.now_s()
        while not all(wire.is_quiet(now_s) for wire in some or tuple(wires.values())):
            assert time.monotonic() < give_up_s, "the emulated arm hangs"
            time.sleep(0.0005)

    def wait(port: SerialPort, timeout_s: float) -> bool:
        over_s = clock.now_s() + timeout_s + INSTANT_S
        while True:
            be_quiet(*([wire_of(port)] if timeout_s == 0.0 else []))  # asked just for a look
            if waits(port, 0.0):
                return True
            if (now_s := clock.now_s()) >= over_s:
                return False
            late_s = [wire.due_s() for wire in tuple(wires.values())]
            clock.sleep_until(min([over_s, *(s for s in late_s if s is not None and s > now_s)]))

    for name, function in (
        ("open", open_),
        ("_write_some", write_some),
        ("read", read),
        ("wait", wait),
    ):
        monkeypatch.setattr(SerialPort, name, function)
    return wires


@pytest.fixture
def loop_time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    """Return the time of emulated arms and of what drives them; only they make it go on.

    A loop goes on to its next turn as soon as all subscribers have had the last one. Who takes
    long isn't slow: not a loop that is given no processor, nor a person with a key to press again.
    """
    from gaploop.collect import lerobot_factory
    from gaploop.collect.operator import keys
    from gaploop.teleop import control, descent
    from gaploop.teleop.emulator import bus
    from gaploop.teleop.lerobot_devices import make
    from gaploop.teleop.lowering import Lowering
    from gaploop.teleop.servos import exchange, port, survey, torque

    clock = LoopTime()
    for module, name in (
        (lerobot_factory, "PacedClock"),
        (control, "PacedClock"),
        (bus, "MonotonicClock"),
        (make, "MonotonicClock"),
    ):
        monkeypatch.setattr(module, name, lambda: clock)
    time_ = SimpleNamespace(
        monotonic=clock.now_s, sleep=lambda wait_s: clock.sleep_until(clock.now_s() + wait_s)
    )
    for module in (exchange, port, survey, torque):
        monkeypatch.setattr(module, "time", time_)

    class Heeded(control.Mailbox):
        """Keeps the loop waiting until the subscriber has had its turn."""

        def __init__(self, sink: TakeSink) -> None:
            self.given, self.taken = 0, [0]

            def take(tick: Tick) -> None:
                sink.tick(tick)
                self.taken[0] += 1

            super().__init__(SimpleNamespace(tick=take))
            self.name = type(sink).__name__
            clock.heard.append((self.name, self.taken))

        def tick(self, tick: Tick) -> None:
            if self._closed:
                return
            self.given += 1
            super().tick(tick)
            while self.taken[0] < self.given and not self._failed and self._thread.is_alive():
                time.sleep(0.0002)

    class HeededSpan(control.Span):
        """Keeps the loop waiting until whoever takes turns asks for the next one."""

        def __init__(self, *given: Any) -> None:
            self.given, self.handed, self.taken = 0, 0, [0]
            super().__init__(*given)
            clock.heard.append(("Recorder", self.taken))

        def deliver(self, tick: Tick) -> None:
            super().deliver(tick)
            self.given += 1
            while self.taken[0] < self.given and self.reason is None:
                time.sleep(0.0002)

        def next(self) -> Tick | None:
            self.taken[0] = self.handed
            tick = super().next()
            self.handed += tick is not None
            return tick

    # How an arm is lowered, and falls, is for other tests: here it rests where it is driven to.
    monkeypatch.setattr(Lowering, "rests", lambda *_: True)
    monkeypatch.setattr(descent, "FALLS_S", 0.0)
    monkeypatch.setattr(control, "Mailbox", Heeded)
    monkeypatch.setattr(control, "Span", HeededSpan)
    monkeypatch.setattr(control, "SPAN_LOOK_S", 0.0002)
    monkeypatch.setattr(control, "LINGER_S", 0.0)
    monkeypatch.setattr(bus, "IDLE_S", IDLE_S)
    for module, name in ((control, "STUCK_S"), (control, "ESTOP_S"), (keys, "AGAIN_S")):
        monkeypatch.setattr(module, name, WITHIN_S)
    clock.wires = _be_patient(monkeypatch, clock)
    return clock


@pytest.fixture
def until(loop_time: ManualClock) -> Callable[[Callable[[], object]], None]:
    """Return a function that lets `loop_time` go on until something is true."""

    def go_on(is_so: Callable[[], object]) -> None:
        give_up_s = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < give_up_s, "waited in vain"
            loop_time.sleep_until(loop_time.now_s() + 0.005)
            time.sleep(IDLE_S)  # so that the arms, which look at the time so often, come along

    return go_on


@pytest.fixture
def patient_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the servo makers' SDKs, which LeRobot uses, give up only when nothing is on the wire."""
    import dynamixel_sdk
    import scservo_sdk

    wires = _watched(monkeypatch)

    def patient(handler_type: Any) -> None:
        opens, writes = handler_type.setupPort, handler_type.writePort
        reads, is_over = handler_type.readPort, handler_type.isPacketTimeout

        def wire_of(handler: Any) -> Traffic:
            wire = wires.get(os.path.realpath(handler.port_name))
            return wire if wire is not None and wire.host is handler else Traffic()

        def open_(handler: Any, cflag_baud: int) -> bool:
            is_open = bool(opens(handler, cflag_baud))
            if (wire := wires.get(os.path.realpath(handler.port_name))) is not None:
                wire.opened(handler, lambda: handler.ser.fd if handler.ser.is_open else -1)
            return is_open

        def write(handler: Any, packet: Any) -> int:
            count = int(writes(handler, packet))
            wire_of(handler).written += count
            return count

        def read(handler: Any, length: int) -> Any:
            data = reads(handler, length)
            wire_of(handler).read += len(data)
            return data

        def time_is_up(handler: Any) -> bool:
            wire = wire_of(handler)
            if not wire.is_quiet() or wire.waiting():  # in this order: it may come meanwhile
                return False
            return bool(is_over(handler))

        for name, function in (
            ("setupPort", open_),
            ("writePort", write),
            ("readPort", read),
            ("isPacketTimeout", time_is_up),
        ):
            monkeypatch.setattr(handler_type, name, function)

    patient(dynamixel_sdk.PortHandler)
    patient(scservo_sdk.PortHandler)


@pytest.fixture
def patient_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what reads through pyserial, such as the doctor, wait for all that is on the wire."""
    import serial

    wires = _watched(monkeypatch)
    Serial: Any = serial.Serial
    opens, writes, reads = Serial.open, Serial.write, Serial.read
    forgets = Serial.reset_input_buffer

    def wire_of(port: Any) -> Traffic:
        wire = wires.get(os.path.realpath(port.port))
        return wire if wire is not None and wire.host is port else Traffic()

    def open_(port: Any) -> None:
        opens(port)
        if (wire := wires.get(os.path.realpath(port.port))) is not None:
            wire.opened(port, lambda: port.fd if port.is_open else -1)

    def write(port: Any, data: bytes) -> int:
        count = int(writes(port, data))
        wire_of(port).written += count
        return count

    def read(port: Any, size: int = 1) -> bytes:
        wire, data = wire_of(port), b""
        while len(data) < size:
            was_quiet = wire.is_quiet()
            more = bytes(reads(port, size - len(data)))
            wire.read += len(more)
            data += more
            if was_quiet and not more:
                break
        return data

    def forget(port: Any) -> None:
        wire_of(port).read += wire_of(port).waiting()
        forgets(port)

    for name, function in (
        ("open", open_),
        ("write", write),
        ("read", read),
        ("reset_input_buffer", forget),
    ):
        monkeypatch.setattr(Serial, name, function)
