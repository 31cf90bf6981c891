"""The keyboard as an input device. Keys are taken by their place, named as on a US keyboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gaploop.teleop.leaders.controls import ControlAction, Controls
from gaploop.teleop.leaders.panel import LeaderPanel
from gaploop.teleop.leaders.sdl import pygame

KEYS: Final[Mapping[int, ControlAction]] = {
    pygame.KSCAN_SPACE: ControlAction.HOLD,
    pygame.KSCAN_W: ControlAction.FORWARD,
    pygame.KSCAN_S: ControlAction.BACK,
    pygame.KSCAN_A: ControlAction.LEFT,
    pygame.KSCAN_D: ControlAction.RIGHT,
    pygame.KSCAN_R: ControlAction.UP,
    pygame.KSCAN_F: ControlAction.DOWN,
    pygame.KSCAN_UP: ControlAction.PITCH_UP,
    pygame.KSCAN_DOWN: ControlAction.PITCH_DOWN,
    pygame.KSCAN_LEFT: ControlAction.ROLL_LEFT,
    pygame.KSCAN_RIGHT: ControlAction.ROLL_RIGHT,
    pygame.KSCAN_C: ControlAction.CLOSE,
    pygame.KSCAN_V: ControlAction.OPEN,
    pygame.KSCAN_H: ControlAction.HOME,
    pygame.KSCAN_X: ControlAction.CLUTCH,
    pygame.KSCAN_TAB: ControlAction.FRAME,
    pygame.KSCAN_MINUS: ControlAction.SLOWER,
    pygame.KSCAN_EQUALS: ControlAction.FASTER,
    pygame.KSCAN_ESCAPE: ControlAction.ESTOP,
    pygame.KSCAN_RETURN: ControlAction.CLEAR,
}
"""Place of a key (USB HID usage) to what it does."""

SPEED_KEYS: Final[Mapping[int, int]] = {pygame.KSCAN_1 + n: 1 + n for n in range(4)}
"""Place of a key to the speed step it chooses."""

HELP: Final = {
    "Space": "hold to move",
    "W  S": "forward, back",
    "A  D": "left, right",
    "R  F": "up, down",
    "Up  Down": "finger tips up, down",
    "Left  Right": "roll",
    "C  V": "close, open gripper",
    "Esc": "EMERGENCY STOP",
    "Enter": "clear a trip",
    "1 2 3 4": "speed",
    "H": "back to the start",
    "X": "clutch out, in",
    "Tab": "frame: base, tool",
}


class Keyboard(LeaderPanel):
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
