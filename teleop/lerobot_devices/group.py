"""Buses that are read at once: those of the follower and, where it has any, of its leader."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from gaploop.core.clock import Clock
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import Script, run
from gaploop.teleop.servos.state import BusState

FRESH_S: Final = 0.1
"""A reading that waited for longer than this is read again [s]."""
LOCK_S: Final = 0.1
"""An exchange has its own deadline, far below this; torque-off doesn't wait longer [s]."""


class BusGroup:
    """Reads all its buses in one exchange; each reading is handed out once.

    The follower's turn reads everybody, so that the leader, asked a moment later, finds its
    reading made. A leader that is asked alone reads its own buses.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.buses: list[ServoBus] = []
        self.held = _Patience()
        """Keeps other threads off the buses for a `with` block."""
        self._made: dict[ServoBus, tuple[float, BusState]] = {}

    def add(self, buses: Sequence[ServoBus]) -> None:
        """Read these buses too."""
        with self.held:
            self.buses += buses

    def remove(self, buses: Sequence[ServoBus]) -> None:
        """Stop reading these."""
        with self.held:
            self.buses = [bus for bus in self.buses if bus not in buses]

    def read(self, buses: Sequence[ServoBus]) -> tuple[float, list[BusState]]:
        """Read every bus of the group; return when, and what `buses` say."""
        with self.held:
            return self._read(self.buses, buses)

    def take(self, buses: Sequence[ServoBus]) -> tuple[float, list[BusState]]:
        """Return what the group's last exchange read of `buses`, once; else read them now."""
        with self.held:
            made = [self._made.pop(bus, None) for bus in buses]
            found = [one for one in made if one is not None]
            if len(found) == len(buses):
                oldest_s = min(t_s for t_s, _ in found)
                if self.clock.now_s() - oldest_s <= FRESH_S:
                    return oldest_s, [state for _, state in found]
            return self._read(buses, buses)

    def _read(
        self, asked: Sequence[ServoBus], wanted: Sequence[ServoBus]
    ) -> tuple[float, list[BusState]]:
        now_s = self.clock.now_s()
        states = run([(bus.line, bus.read(now_s)) for bus in asked])
        self._made = {bus: (now_s, state) for bus, state in zip(asked, states, strict=True)}
        return now_s, [self._made.pop(bus)[1] for bus in wanted]

    def each(
        self, buses: Sequence[ServoBus], script: Callable[[ServoBus], Script[Any]]
    ) -> list[Any]:
        """Run a script on several buses at once and return their results."""
        with self.held:
            return run([(bus.line, script(bus)) for bus in buses])


class _Patience:
    """A lock that isn't waited for without end: torque must go off though a thread died with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire(timeout=LOCK_S)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it was another's all the time
            self._lock.release()
