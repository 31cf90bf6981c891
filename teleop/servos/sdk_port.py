"""A port handler for dynamixel_sdk and scservo_sdk that waits in poll() instead of spinning.

The SDKs' own handler opens the port with timeout 0 and asks it for bytes as fast as it can until
a reply is complete, so a set-up call costs as much processor time as the servo takes to answer.
The method names are the SDKs'.
"""

from __future__ import annotations

# ruff: noqa: N802  (the SDKs' names)
import time
from typing import Final

from gaploop.core.errors import DeviceError
from gaploop.teleop.servos.port import SerialPort

TIMEOUT_MARGIN_MS: Final = 500.0
"""How long a servo may take beyond the bytes' own time [ms]. LeRobot gives 50 ms and asks once,
which a busy machine misses (stalls of 380 ms were measured on one); set-up waits for this long only
where nobody answers."""


class PollPortHandler:
    """Stands where the SDKs' `PortHandler` does; the open port is shared with the exchange."""

    def __init__(self, port: SerialPort) -> None:
        self.port = port
        self.is_open = False
        self.is_using = False
        self.packet_start_time = 0.0
        self.packet_timeout = 0.0

    @property
    def baudrate(self) -> int:
        """Bits per second."""
        return self.port.baud

    def openPort(self) -> bool:
        """Open the port, where it isn't."""
        self.port.open()
        self.port.discard()
        self.is_open = True
        return True

    def closePort(self) -> None:
        """Close the port."""
        self.port.close()
        self.is_open = False

    def clearPort(self) -> None:
        """Throw away what has come in: it answers no request that is about to be sent."""
        self.port.discard()

    def setBaudRate(self, baudrate: int) -> bool:
        """Change the speed [bit/s]; say whether the driver takes it."""
        try:
            self.port.set_baud(baudrate)
        except DeviceError:
            return False
        return True

    def getBaudRate(self) -> int:
        """Return bits per second."""
        return self.port.baud

    def readPort(self, length: int) -> bytes:
        """Return up to `length` bytes, waiting for the first as long as the packet may take."""
        if length <= 0:
            return b""
        left_ms = self.packet_timeout - self.getTimeSinceStart()
        # Once the time is up the SDK still asks for what has come; and it decides when to stop.
        if not self.port.wait(max(left_ms, 0.0) / 1000.0):
            return b""
        return self.port.read(length)

    def writePort(self, packet: bytes | list[int]) -> int:
        """Send a packet and return its length."""
        data = bytes(packet)
        self.port.write(data)
        return len(data)

    def setPacketTimeout(self, packet_length: int) -> None:
        """Begin to wait for a packet of `packet_length` bytes."""
        bytes_ms = self.port.byte_s * 1000.0 * (packet_length + 3)
        self.setPacketTimeoutMillis(bytes_ms + TIMEOUT_MARGIN_MS)

    def setPacketTimeoutMillis(self, msec: float) -> None:
        """Begin to wait for `msec` [ms]."""
        self.packet_start_time = self.getCurrentTime()
        self.packet_timeout = msec

    def isPacketTimeout(self) -> bool:
        """Say whether the time is up."""
        if self.getTimeSinceStart() > self.packet_timeout:
            self.packet_timeout = 0.0
            return True
        return False

    def getCurrentTime(self) -> float:
        """Return the monotonic time [ms]."""
        return time.monotonic() * 1000.0

    def getTimeSinceStart(self) -> float:
        """Return how long has been waited [ms]."""
        return self.getCurrentTime() - self.packet_start_time
