"""Emulated arms, our drivers and control loops on one clock, in one thread: time is what they make.

A host's bytes go straight to the emulated servos, and its wait for an answer moves the clock on. So
a session takes as long as it has to calculate, whatever else the machine does, and the same every
time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from gaploop.core.clock import ManualClock
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.servos.port import BITS_PER_BYTE

_NEVER_S: Final = 1e6
_LOOP: Final = "control loop"


class SharedTime(ManualClock):
    """Time that goes on as loops and drivers wait.

    Attributes:
        on_sleep: called in a control loop's thread before each of its turns.
    """

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep_until(self, deadline_s: float) -> None:
        """Jump to `deadline_s` [s], or a bit further than now, so that no loop stands still."""
        super().sleep_until(max(deadline_s, self.now_s() + 1e-6))
        if threading.current_thread().name == _LOOP:
            self.on_sleep()


class DirectPort:
    """Stands where `SerialPort` does; the servos hear what is written as it is written."""

    buses: dict[str, EmulatedBus]
    clock: SharedTime

    def __init__(self, path: str, baud: int = 1_000_000) -> None:
        self.path, self.baud = path, baud
        self._bus = self.buses[path]
        self._due: deque[tuple[float, bytes]] = deque()
        self._read_fd = self._write_fd = -1

    @property
    def byte_s(self) -> float:
        """Time that one byte takes on the wire [s]."""
        return BITS_PER_BYTE / self.baud

    def fileno(self) -> int:
        """Return a file descriptor that is readable when an answer has come."""
        return self._read_fd

    def open(self) -> None:
        """Open the port, if it isn't open."""
        if self._read_fd < 0:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)

    def set_baud(self, baud: int) -> None:
        """Change the speed [bit/s]."""
        self.baud = baud

    def close(self) -> None:
        """Close the port; safe to call twice."""
        ends, self._read_fd, self._write_fd = (self._read_fd, self._write_fd), -1, -1
        for fd in ends:
            if fd >= 0:
                os.close(fd)

    def read(self, most: int = 4096) -> bytes:
        """Return what has come, without waiting."""
        try:
            return os.read(self._read_fd, most)
        except BlockingIOError:
            return b""

    def discard(self) -> int:
        """Throw away what has come in and return how many bytes that was."""
        self._arrive()
        return len(self.read())

    def write(self, data: bytes) -> None:
        """Let the servos hear bytes; OSError where the cable is pulled."""
        bus = self._bus
        with bus.lock:
            bus.move_on()
            if any(fault.fault == "unplug" for fault in bus.faults.active):
                self.clock.sleep_until(self.clock.now_s() + 0.001)  # or who tries again never ends
                raise OSError(f"{self.path} is gone")
            due_s, answer = bus.hear(data, self.baud)
        if answer:
            self._due.append((due_s, answer))

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read; return whether there is."""
        over_s = self.clock.now_s() + max(timeout_s, 0.0)
        if self._arrive():
            return True
        due_s = min((due for due, _ in self._due), default=_NEVER_S)
        self.clock.sleep_until(min(due_s, over_s))
        return self._arrive()

    def _arrive(self) -> bool:
        while self._due and self._due[0][0] <= self.clock.now_s():
            os.write(self._write_fd, self._due.popleft()[1])
            self._has_come = True
        return _readable(self._read_fd)


def _readable(fd: int) -> bool:
    import select

    return fd >= 0 and bool(select.select([fd], [], [], 0.0)[0])


@contextlib.contextmanager
def shared_time() -> Iterator[tuple[SharedTime, dict[str, EmulatedBus]]]:
    """Yield a clock, and the buses that can be opened by the names they are put in under."""
    from gaploop.teleop import control, descent
    from gaploop.teleop.lerobot_devices import arm
    from gaploop.teleop.servos import exchange, survey, torque
    from gaploop.teleop.servos import port as serial_port

    clock, buses = SharedTime(), dict[str, EmulatedBus]()
    port = type("DirectPort", (DirectPort,), {"buses": buses, "clock": clock})
    time_ = SimpleNamespace(
        monotonic=clock.now_s, sleep=lambda wait_s: clock.sleep_until(clock.now_s() + wait_s)
    )
    put: list[tuple[Any, str, Any]] = [(arm, "SerialPort", port)]
    put += [(m, "time", time_) for m in (exchange, serial_port, survey, torque, descent)]
    # A busy machine makes no loop hang here.
    put += [(control, name, _NEVER_S) for name in ("STUCK_S", "ESTOP_S")]
    with contextlib.ExitStack() as undo:
        for module, name, value in put:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield clock, buses
