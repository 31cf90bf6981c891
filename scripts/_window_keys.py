"""Keys of a leader that has a window of its own, beside those of the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import SafetyReason
from gaploop.scripts._keys import Keys
from gaploop.teleop.advice import GONE

PUMP_S: Final = 0.02
"""The window's events are handled this often [s]; an input of 0.1 s counts as let go of."""


class WindowKeys(Keys):
    """The terminal's keys, while the leader's window is kept alive.

    Clearing a trip in the window counts as `c`, so there, too, it takes two presses.

    Args:
        terminal: keys of the terminal, if there is one.
        leader: a leader with `pump` and `listen`.
        estop: called at once when the window's e-stop is pressed.
    """

    def __init__(self, terminal: Keys, leader: Any, estop: Callable[[], None]) -> None:
        super().__init__(None)
        self._terminal, self._leader = terminal, leader
        self._trip = ""
        self._cleared = False
        leader.listen(estop, self._clear)

    @classmethod
    def of(cls, terminal: Keys, leader: Leader, estop: Callable[[], None]) -> Keys:
        """Return the terminal's keys, with the window's where the leader has one."""
        return cls(terminal, leader, estop) if hasattr(leader, "pump") else terminal

    def wait(self, timeout_s: float) -> str:
        """Handle the window's events and return the next key within `timeout_s` [s]."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._leader.pump(self._trip)
            if self._cleared:
                self._cleared = False
                return "c"
            left_s = until_s - time.monotonic()
            if left_s <= 0.0:
                return ""
            if key := self._pause(min(PUMP_S, left_s)):
                return key

    def say(self, trip: str) -> None:
        """Show in the window why the arm has tripped; "" where it hasn't."""
        self._trip = trip.replace("; then c, c", "; then Enter or Start, twice")

    def gone(self, reasons: SafetyReason) -> SafetyReason:
        """Return after which of `reasons` the devices must be connected anew."""
        return reasons & gone_of(self._leader)

    @property
    def works(self) -> bool:
        """A window has keys, whether or not there is a terminal."""
        return True

    def _pause(self, duration_s: float) -> str:
        if self._terminal.works:
            return self._terminal.wait(duration_s)
        time.sleep(duration_s)
        return ""

    def _clear(self) -> None:
        self._cleared = True


def gone_of(leader: Leader | None) -> SafetyReason:
    """Return after a trip by what the devices must be connected anew.

    A window's input that was old, such as a gamepad's that was pulled out, recovers by itself.
    """
    return GONE & ~SafetyReason.STALE_LEADER if hasattr(leader, "pump") else GONE


def subscribers(leader: Leader | None) -> tuple[TakeSink, ...]:
    """Return the leader, if it wants to know what became of what it asked for."""
    sink: Any = leader
    return (sink,) if callable(getattr(leader, "tick", None)) else ()
