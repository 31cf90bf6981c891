"""From buttons and sticks to an intent: what is pressed now, and what a press switches.

Pure bookkeeping, without pygame: keyboard and gamepad say which `ControlAction` is pressed how far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from gaploop.teleop.leaders.options import FRAMES, SPEED_STEPS, CartesianOptions


@dataclass(frozen=True)
class Intent:
    """What the operator asks for now. Directions are shares of the top speed, in [-1, 1].

    Attributes:
        held: the dead-man button is down, the device is there, and its window has the focus.
        forward: +1 away from the base (tool frame: along the fingers).
        left: +1 to the left, seen from the base.
        up: +1 up.
        roll: +1 clockwise about the fingers, seen from the base.
        pitch: +1 finger tips up.
        gripper: +1 opens, -1 closes.
        hand: how far a hand-held device has moved and turned since the button was pressed: forward,
            left, up [m], roll and pitch [rad]; None where it doesn't tell.
    """

    held: bool = False
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
    hand: tuple[float, float, float, float, float] | None = None

    @property
    def drives(self) -> bool:
        """Say whether anything may move."""
        return self.held and self.present and self.focused


@dataclass(frozen=True)
class TimedIntent:
    """An intent, its age since the device was last asked [s], and whether the window was closed."""

    intent: Intent = field(default_factory=Intent)
    age_s: float = 0.0
    closed: bool = False


class IntentSource:
    """An input device; what it doesn't have, such as a window to share, it leaves out."""

    has_window = True
    """It has a window on this machine."""

    def latest(self) -> TimedIntent:
        """Return the newest intent; never blocks. Called by the control loop's thread."""
        raise NotImplementedError

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these when the e-stop is pressed and when a trip is cleared, in `pump`."""

    def host(self, guest: Any) -> None:
        """Let `guest` share the window; see `Panel.host`."""

    def pump(self, trip: str = "") -> None:
        """Handle what has happened; on the main thread, 30 times a second or more.

        `trip` is why the safety filter has tripped, to show it; "" where it hasn't.
        """

    def close(self) -> None:
        """Let go of the device; safe to call twice."""


class ControlAction(Enum):
    """What a key, button or stick direction means."""

    HOLD = "hold to move"
    FORWARD = "forward"
    BACK = "back"
    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    PITCH_UP = "tip up"
    PITCH_DOWN = "tip down"
    ROLL_LEFT = "roll left"
    ROLL_RIGHT = "roll right"
    OPEN = "open"
    CLOSE = "close"
    HOME = "home"
    FRAME = "frame"
    SLOWER = "slower"
    FASTER = "faster"
    ESTOP = "e-stop"
    CLEAR = "clear a trip"


MOTIONS: Final = tuple(
    action
    for action in ControlAction
    if action.name not in ("HOLD", "FRAME", "SLOWER", "FASTER", "ESTOP", "CLEAR")
)
"""Actions that move the arm while `HOLD` is pressed."""


class Controls:
    """What is pressed."""

    def __init__(self, options: CartesianOptions) -> None:
        self._amounts: dict[ControlAction, float] = {}
        self._step, self._frame = options.speed_step, options.frame
        self.listen(lambda: None, lambda: None)

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these from now on when the e-stop is pressed and when a trip is cleared."""
        self._on_estop, self._on_clear = on_estop, on_clear

    @property
    def pressed(self) -> tuple[ControlAction, ...]:
        """What is pressed now, in order of pressing."""
        return tuple(self._amounts)

    def press(self, action: ControlAction, amount: float = 1.0) -> None:
        """Take note of a press; `amount` in (0, 1] is how far a stick is pushed."""
        new = action not in self._amounts
        self._amounts[action] = min(max(amount, 0.0), 1.0)
        if not new:
            return
        match action:
            case ControlAction.ESTOP:
                self.release_all()
                self._on_estop()
            case ControlAction.CLEAR:
                self.release_all()
                self._on_clear()
            case ControlAction.FRAME if ControlAction.HOLD not in self._amounts:
                self._frame = FRAMES[1 - FRAMES.index(self._frame)]
            case ControlAction.SLOWER:
                self.set_speed_step(self._step - 1)
            case ControlAction.FASTER:
                self.set_speed_step(self._step + 1)

    def release(self, action: ControlAction) -> None:
        """Take note of a release."""
        self._amounts.pop(action, None)

    def release_all(self) -> None:
        """Forget every press: the dead-man button must be pressed anew."""
        self._amounts.clear()

    def set_speed_step(self, step: int) -> None:
        """Choose a speed step, 1 to 4."""
        self._step = min(max(step, 1), len(SPEED_STEPS))

    def intent(self, *, present: bool = True, focused: bool = True) -> Intent:
        """Return what the operator wants now."""
        amount = self._amounts.get

        def between(plus: ControlAction, minus: ControlAction) -> float:
            return amount(plus, 0.0) - amount(minus, 0.0)

        return Intent(
            held=ControlAction.HOLD in self._amounts,
            forward=between(ControlAction.FORWARD, ControlAction.BACK),
            left=between(ControlAction.LEFT, ControlAction.RIGHT),
            up=between(ControlAction.UP, ControlAction.DOWN),
            roll=between(ControlAction.ROLL_RIGHT, ControlAction.ROLL_LEFT),
            pitch=between(ControlAction.PITCH_UP, ControlAction.PITCH_DOWN),
            gripper=between(ControlAction.OPEN, ControlAction.CLOSE),
            home=ControlAction.HOME in self._amounts,
            step=self._step,
            frame=self._frame,
            present=present,
            focused=focused,
        )
