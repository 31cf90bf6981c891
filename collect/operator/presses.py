"""From pygame's events to names of keys and gamepad buttons, as `commands` has them."""

from __future__ import annotations

import logging
from typing import Any, Final

from gaploop.collect.operator.commands import DIGITS, NAMED_KEYS, PAD, PAD_BUTTONS, PUNCTUATION
from gaploop.teleop.leaders.sdl import controller, pygame

log = logging.getLogger(__name__)

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_KEYS: Final = {
    **{getattr(pygame, f"K_{c}"): c for c in (*_LETTERS, *DIGITS)},
    **{ord(c): c for c in PUNCTUATION},
    **{getattr(pygame, f"K_KP{c}"): c for c in DIGITS},
    **{getattr(pygame, f"K_{n.upper()}"): n for n in NAMED_KEYS},
    pygame.K_KP_ENTER: "return",
}
"""pygame's key to its name; the number pad counts as digits and Enter."""
_BUTTONS: Final = {
    getattr(pygame, f"CONTROLLER_BUTTON_{name.upper()}"): name for name in PAD_BUTTONS
}


def name_of(event: Any) -> str:
    """Return the name of the key or button that an event says was pressed, or ""."""
    if event.type == pygame.KEYDOWN:
        return str(_KEYS.get(event.key, ""))
    if event.type == pygame.CONTROLLERBUTTONDOWN and event.button in _BUTTONS:
        return PAD + _BUTTONS[event.button]
    return ""


class Pads:
    """Gamepads whose buttons are listened to; they may come and go."""

    def __init__(self) -> None:
        pygame.joystick.init()
        controller.init()
        self._pads: list[Any] = []
        self.look()

    def look(self) -> None:
        """Open every gamepad that is there."""
        known = (i for i in range(controller.get_count()) if controller.is_controller(i))
        self._pads = [controller.Controller(i) for i in known]

    def on_event(self, event: Any) -> None:
        """Look again where one came or went."""
        if event.type in (pygame.CONTROLLERDEVICEADDED, pygame.CONTROLLERDEVICEREMOVED):
            self.look()

    def close(self) -> None:
        """Let go of them; safe to call twice."""
        self._pads = []
        controller.quit()
        pygame.joystick.quit()
