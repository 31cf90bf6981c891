"""One emulated arm in a process of its own for `benchmarks loop`, with a tap on its wire.

    python -m benchmarks.loop_arm MODEL ROLE LINK LOG

Prints `ready` when the port is there. When stdin closes it writes LOG: an int64 array of
[time ns on the machine's monotonic clock, kind], kind 0 where a host asked for positions of the
servos among other readings, 1 where it set their goals, and 2 where it asked for positions alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.emulator.servo import Chain
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.frames import Frame
from gaploop.teleop.servos.registers import TABLES, Protocol

FIFO_PRIORITY: Final = 60
"""Above the control loop of either program, as the arm is another computer in truth."""
READ: Final = 0
GOAL: Final = 1
PLACE: Final = 2


class Tap:
    """Stands before the servos and notes when each request came."""

    def __init__(self, chain: Chain, protocol: Protocol) -> None:
        self._chain, self._protocol = chain, protocol
        self._wire = feetech if protocol is Protocol.FEETECH else dynamixel
        self._heard: list[tuple[int, bytes]] = []

    def hear(self, data: bytes, baud: int) -> list[bytes]:
        """Note the time and pass the bytes on."""
        self._heard.append((time.monotonic_ns(), data))
        return self._chain.hear(data, baud)

    def __getattr__(self, name: str) -> object:
        return getattr(self._chain, name)

    def events(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Return time [ns] and kind of every request for positions and every write of goals."""
        parser = self._wire.Parser()
        found = [
            (at_ns, kind)
            for at_ns, data in self._heard
            for frame in parser.feed(data)
            if (kind := self._kind(frame)) is not None
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def _kind(self, frame: Frame) -> int | None:
        code = frame.code
        width = 1 if self._protocol is Protocol.FEETECH else 2
        address = int.from_bytes(frame.params[:width], "little")
        size = int.from_bytes(frame.params[width : 2 * width], "little")
        table = TABLES[self._protocol]
        if code == self._wire.Instruction.SYNC_WRITE and address == table["Goal_Position"].address:
            return GOAL
        place = table["Present_Position"]
        if (
            code != self._wire.Instruction.SYNC_READ
            or not address <= place.address < address + size
        ):
            return None
        return PLACE if size == place.size else READ


def be_prompt() -> None:
    """Answer on time where rights allow: real servos don't wait for the host's scheduler."""
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))


def main(model: str, role: str, link: str, log: str) -> None:
    """Serve the arm until stdin closes."""
    be_prompt()  # the thread that serves takes it over
    with EmulatedBus(
        model, role=role, link=Path(link), hand="wave" if role == "leader" else "still"
    ) as bus:
        tap = Tap(bus.chain, bus.plan.protocol)
        with bus.lock:
            bus.chain = tap  # type: ignore[assignment]
        print("ready", flush=True)
        sys.stdin.read()
    np.save(log, tap.events())


if __name__ == "__main__":
    main(*sys.argv[1:5])
