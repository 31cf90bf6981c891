"""A serial port that waits in poll(): on a USB adapter as on a pseudo-terminal.

It is held exclusively, because two programs on one half-duplex bus garble each other, and asks
its driver for low latency, because an FTDI adapter otherwise keeps replies for 16 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

import serial

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError
from gaploop.teleop.servos.port_errors import busy_error, open_error, other_holder

BITS_PER_BYTE = 10
"""8 data bits, one start and one stop bit."""
WRITE_TIMEOUT_S = 0.05
"""A driver that takes no bytes for this long is broken: a whole request takes 1 ms [s]."""


class SerialPort:
    """One serial port.

    Args:
        path: the device, such as /dev/ttyACM0.
        baud: bits per second.
    """

    def __init__(self, path: str, baud: int = 1_000_000) -> None:
        self.path = path
        self.baud = baud
        self._serial: serial.Serial | None = None
        self._fd = -1
        self._readable: select.poll | None = None

    @property
    def is_open(self) -> bool:
        """Say whether the port is open."""
        return self._serial is not None

    @property
    def byte_s(self) -> float:
        """Time that one byte takes on the wire [s]."""
        return BITS_PER_BYTE / self.baud

    def fileno(self) -> int:
        """Return the file descriptor, -1 where the port is closed."""
        return self._fd

    def open(self) -> None:
        """Open the port and lock it; does nothing where it is open.

        Raises:
            DeviceError: no such port, not a serial port, no permission or in use: with the fix.
        """
        if self._serial is not None:
            return
        if not platform_calls.HAS_SERIAL_HANDLES:
            raise DeviceError(
                "gaploop doesn't drive arms on this system, whose serial ports can't be waited "
                "for. Use Linux or macOS."
            )
        try:
            device = serial.Serial(self.path, self.baud, timeout=0, exclusive=True)
        except platform_calls.TERMINAL_ERRORS as error:  # SerialException is an OSError
            raise open_error(self.path, error) from error
        self._serial, self._fd = device, device.fileno()
        if not os.path.realpath(self.path).startswith("/dev/pts/"):
            self._claim(device)

    def _claim(self, device: serial.Serial) -> None:
        """Keep others out who don't ask for the lock, and notice those that are in already."""
        holder = other_holder(self.path)
        if holder:
            self.close()
            raise busy_error(self.path, holder)
        platform_calls.claim_terminal(self._fd)
        with contextlib.suppress(OSError, ValueError, NotImplementedError, AttributeError):
            device.set_low_latency_mode(True)

    def set_baud(self, baud: int) -> None:
        """Change the speed [bit/s].

        Raises:
            DeviceError: the driver refuses it.
        """
        self.baud = baud
        if self._serial is not None:
            try:
                self._serial.baudrate = baud
            except platform_calls.TERMINAL_ERRORS as error:
                raise DeviceError(f"{self.path} doesn't do {baud} bit/s: {error}.") from error

    def close(self) -> None:
        """Close the port; safe to call twice."""
        device, self._serial, self._fd, self._readable = self._serial, None, -1, None
        if device is not None:
            with contextlib.suppress(*platform_calls.TERMINAL_ERRORS):
                device.close()

    def read(self, most: int = 4096) -> bytes:
        """Return up to `most` bytes of what has come in, without waiting.

        Raises:
            OSError: the device is gone.
        """
        try:
            return os.read(self._fd, most)
        except BlockingIOError:
            return b""

    def discard(self) -> int:
        """Throw away what has come in and return how many bytes that was."""
        count = 0
        while self.wait(0.0) and (data := self.read()):
            count += len(data)
        return count

    def write(self, data: bytes) -> None:
        """Hand all of `data` to the driver.

        Raises:
            OSError: the device is gone, or takes nothing for `WRITE_TIMEOUT_S`.
        """
        sent = self._write_some(data)
        if sent == len(data):
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        while sent < len(data):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000.0):
                raise TimeoutError(f"{self.path} takes no bytes")
            sent += self._write_some(data[sent:])

    def _write_some(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read; return whether there is."""
        if self.fileno() < 0:  # closed meanwhile, by who takes torque off
            return False
        if self._readable is None:
            self._readable = select.poll()
            self._readable.register(self.fileno(), select.POLLIN)
        return bool(self._readable.poll(max(timeout_s, 0.0) * 1000.0))
