"""Keys of a leader that has a window of its own, beside those of the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import SafetyReason
from gaploop.scripts._keys import SPACE, Keys
from gaploop.teleop.advice import GONE

PUMP_S: Final = 0.02
"""The window's events are handled this often [s]; an input of 0.1 s counts as let go of."""


class WindowKeys(Keys):
    """The terminal's keys, while the leader's window is kept alive.

    Clearing a trip in the window counts as `c`, so there, too, it takes two presses; its
    emergency stop counts as the space bar.

    Args:
        terminal: keys of the terminal, if there is one.
        leader: a leader with `pump` and `listen`.
        estop: called at once when the window's e-stop is pressed.
    """

    def __init__(self, terminal: Keys, leader: Any, estop: Callable[[], None]) -> None:
        super().__init__()
        self._terminal, self._leader, self._estop = terminal, leader, estop
        self._trip = ""
        self._pressed: list[str] = []
        leader.listen(self._stopped, lambda: self._pressed.append("c"))

    @classmethod
    def of(cls, terminal: Keys, leader: Leader, estop: Callable[[], None]) -> Keys:
        """Return the terminal's keys, with the window's where the leader has one."""
        return cls(terminal, leader, estop) if hasattr(leader, "pump") else terminal

    def presses(self, timeout_s: float) -> list[str]:
        """Handle the window's events and return what was pressed within `timeout_s` [s]."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._leader.pump(self._trip)
            pressed, self._pressed = self._pressed, []
            left_s = until_s - time.monotonic()
            wait_s = 0.0 if pressed else min(PUMP_S, max(left_s, 0.0))
            pressed += self._terminal.presses(wait_s)
            if pressed or left_s <= 0.0:
                return sorted(pressed, key=lambda name: name != SPACE)

    def say(self, trip: str) -> None:
        """Show in the window why the arm has tripped; "" where it hasn't."""
        self._trip = trip

    @property
    def clear_words(self) -> str:
        """How a trip is cleared in the window."""
        return "press Enter or Start twice"

    def gone(self, reasons: SafetyReason) -> SafetyReason:
        """Return after which of `reasons` the devices must be connected anew."""
        return reasons & gone_of(self._leader)

    @property
    def works(self) -> bool:
        """A window has keys, whether or not there is a terminal."""
        return True

    def _stopped(self) -> None:
        self._estop()
        self._pressed.append(SPACE)


def gone_of(leader: Leader | None) -> SafetyReason:
    """Return after a trip by what the devices must be connected anew.

    A window's input that was old, such as a gamepad's that was pulled out, recovers by itself.
    """
    return GONE & ~SafetyReason.STALE_LEADER if hasattr(leader, "pump") else GONE


def subscribers(leader: Leader | None) -> tuple[TakeSink, ...]:
    """Return the leader, if it wants to know what became of what it asked for."""
    sink: Any = leader
    return (sink,) if callable(getattr(leader, "tick", None)) else ()
