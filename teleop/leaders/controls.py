"""From buttons and sticks to an intent: what is pressed now, and what a press switches.

Pure bookkeeping, without pygame: keyboard and gamepad say which `ControlAction` is pressed how far.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from gaploop.teleop.leaders.intent import Intent
from gaploop.teleop.leaders.options import FRAMES, SPEED_STEPS, CartesianOptions


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
    CLUTCH = "clutch"
    FRAME = "frame"
    SLOWER = "slower"
    FASTER = "faster"
    ESTOP = "e-stop"
    CLEAR = "clear a trip"


MOTIONS: Final = (
    ControlAction.FORWARD,
    ControlAction.BACK,
    ControlAction.LEFT,
    ControlAction.RIGHT,
    ControlAction.UP,
    ControlAction.DOWN,
    ControlAction.PITCH_UP,
    ControlAction.PITCH_DOWN,
    ControlAction.ROLL_LEFT,
    ControlAction.ROLL_RIGHT,
    ControlAction.OPEN,
    ControlAction.CLOSE,
    ControlAction.HOME,
)
"""Actions that move the arm while `HOLD` is pressed."""


class Controls:
    """What is pressed.

    Args:
        options: speed step and frame to start with.
        on_estop: called when the e-stop is pressed.
        on_clear: called when the operator clears a trip.
    """

    def __init__(
        self,
        options: CartesianOptions,
        on_estop: Callable[[], None] = lambda: None,
        on_clear: Callable[[], None] = lambda: None,
    ) -> None:
        self._amounts: dict[ControlAction, float] = {}
        self._step, self._frame = options.speed_step, options.frame
        self._clutch_in = True
        self._on_estop, self._on_clear = on_estop, on_clear

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
        if new:
            self._switch(action)

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
            clutch_in=self._clutch_in,
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

    def _switch(self, action: ControlAction) -> None:
        match action:
            case ControlAction.ESTOP:
                self.release_all()
                self._on_estop()
            case ControlAction.CLEAR:
                self.release_all()
                self._on_clear()
            case ControlAction.CLUTCH:
                self._clutch_in = not self._clutch_in
            case ControlAction.FRAME if ControlAction.HOLD not in self._amounts:
                self._frame = FRAMES[1 - FRAMES.index(self._frame)]
            case ControlAction.SLOWER:
                self.set_speed_step(self._step - 1)
            case ControlAction.FASTER:
                self.set_speed_step(self._step + 1)
            case _:
                pass
