"""What an operator wants, as an input device last said it; a whole, unchanging snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Intent:
    """What the operator asks for now. Directions are shares of the top speed, in [-1, 1].

    Attributes:
        held: the dead-man button is down, the device is there, and its window has the focus.
        clutch_in: the operator hasn't uncoupled the arm.
        forward: +1 away from the base (tool frame: along the fingers).
        left: +1 to the left, seen from the base.
        up: +1 up.
        roll: +1 clockwise about the fingers, seen from the base.
        pitch: +1 finger tips up.
        gripper: +1 opens, -1 closes.
        home: go back to where the session began.
        step: speed step, 1 to 4.
        frame: "base" or "tool".
        present: the device is there.
        focused: its window has the focus.
    """

    held: bool = False
    clutch_in: bool = True
    forward: float = 0.0
    left: float = 0.0
    up: float = 0.0
    roll: float = 0.0
    pitch: float = 0.0
    gripper: float = 0.0
    home: bool = False
    step: int = 2
    frame: str = "base"
    present: bool = True
    focused: bool = True

    @property
    def drives(self) -> bool:
        """Say whether anything may move."""
        return self.held and self.clutch_in and self.present and self.focused


@dataclass(frozen=True)
class Heard:
    """An intent and how old it is.

    Attributes:
        age_s: since the device was last asked [s].
        closed: the operator has closed the window.
    """

    intent: Intent = field(default_factory=Intent)
    age_s: float = 0.0
    closed: bool = False


class IntentSource(Protocol):
    """An input device."""

    def heard(self) -> Heard:
        """Return the newest intent; never blocks. Called by the control loop's thread."""
        ...

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these when the e-stop is pressed and when a trip is cleared, in `pump`."""
        ...

    def host(self, guest: Any) -> None:
        """Let `guest` share the window; see `Panel.host`."""
        ...

    def pump(self, trip: str = "") -> None:
        """Handle what has happened; on the main thread, 30 times a second or more.

        Args:
            trip: why the safety filter has tripped, to show it; "" where it hasn't.
        """
        ...

    def close(self) -> None:
        """Let go of the device; safe to call twice."""
        ...
