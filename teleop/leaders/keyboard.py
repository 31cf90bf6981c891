"""The keyboard as an input device. Keys are taken by their place, named as on a US keyboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gaploop.teleop.leaders.controls import Action, Controls
from gaploop.teleop.leaders.panel import Panel
from gaploop.teleop.leaders.sdl import pygame
from gaploop.teleop.leaders.window import Help

KEYS: Final[Mapping[int, Action]] = {
    pygame.KSCAN_SPACE: Action.HOLD,
    pygame.KSCAN_W: Action.FORWARD,
    pygame.KSCAN_S: Action.BACK,
    pygame.KSCAN_A: Action.LEFT,
    pygame.KSCAN_D: Action.RIGHT,
    pygame.KSCAN_R: Action.UP,
    pygame.KSCAN_F: Action.DOWN,
    pygame.KSCAN_UP: Action.PITCH_UP,
    pygame.KSCAN_DOWN: Action.PITCH_DOWN,
    pygame.KSCAN_LEFT: Action.ROLL_LEFT,
    pygame.KSCAN_RIGHT: Action.ROLL_RIGHT,
    pygame.KSCAN_C: Action.CLOSE,
    pygame.KSCAN_V: Action.OPEN,
    pygame.KSCAN_H: Action.HOME,
    pygame.KSCAN_X: Action.CLUTCH,
    pygame.KSCAN_TAB: Action.FRAME,
    pygame.KSCAN_MINUS: Action.SLOWER,
    pygame.KSCAN_EQUALS: Action.FASTER,
    pygame.KSCAN_ESCAPE: Action.ESTOP,
    pygame.KSCAN_RETURN: Action.CLEAR,
}
"""Place of a key (USB HID usage) to what it does."""

SPEED_KEYS: Final[Mapping[int, int]] = {
    pygame.KSCAN_1: 1,
    pygame.KSCAN_2: 2,
    pygame.KSCAN_3: 3,
    pygame.KSCAN_4: 4,
}
"""Place of a key to the speed step it chooses."""

HELP: Final = (
    Help("Space", "hold to move"),
    Help("W  S", "forward, back"),
    Help("A  D", "left, right"),
    Help("R  F", "up, down"),
    Help("Up  Down", "finger tips up, down"),
    Help("Left  Right", "roll"),
    Help("C  V", "close, open gripper"),
    Help("Esc", "EMERGENCY STOP"),
    Help("Enter", "clear a trip"),
    Help("1 2 3 4", "speed"),
    Help("H", "back to the start"),
    Help("X", "clutch out, in"),
    Help("Tab", "frame: base, tool"),
)


class Keyboard(Panel):
    """A keyboard, while its window has the focus."""

    def __init__(
        self, controls: Controls, title: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(controls, title, HELP, "Space", now_s)
        pygame.key.set_repeat()  # off: a key held down is one press

    def on_event(self, event: Any) -> None:
        """Handle a key."""
        if event.type not in (pygame.KEYDOWN, pygame.KEYUP):
            return
        down = event.type == pygame.KEYDOWN
        if down and event.scancode in SPEED_KEYS:
            self.controls.set_speed_step(SPEED_KEYS[event.scancode])
        action = KEYS.get(event.scancode)
        if action is not None:
            (self.controls.press if down else self.controls.release)(action)
