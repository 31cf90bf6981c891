"""The operator's small window: the state in letters that can be read from two metres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gaploop.teleop.leaders.controls import MOTIONS, ControlAction
from gaploop.teleop.leaders.intent import Intent
from gaploop.teleop.leaders.look import AMBER, DIM, GREEN, GREY, GROUND, INK, RED, letters
from gaploop.teleop.leaders.options import SPEED_STEPS
from gaploop.teleop.leaders.sdl import pygame

SIZE_PX: Final = (1200, 730)
STATE_PX: Final = 200
"""Font of the state: capitals of 26 mm on a screen of 96 dpi, readable across a room."""
KEY_PX: Final = 46
"""Font of the rest: capitals of 6 mm; 20/20 sight reads 3 mm from two metres (ISO 8596)."""
ROW_PX: Final = 50


@dataclass(frozen=True)
class HelpLine:
    """One line of the on-screen help: keys and what they do."""

    keys: str
    does: str


@dataclass(frozen=True)
class Sign:
    """The state: a word, its colour and a line below."""

    word: str
    colour: tuple[int, int, int]
    below: str


def sign_of(intent: Intent, pressed: Sequence[ControlAction], trip: str, hold_key: str) -> Sign:
    """Return what the window says.

    Args:
        intent: what the operator asks for.
        pressed: what is pressed.
        trip: why the safety filter tripped, or "".
        hold_key: name of the dead-man button.
    """
    if not intent.present:
        return Sign("NO GAMEPAD", RED, "Plug it in again, then clear the trip.")
    if trip:
        return Sign("TRIPPED", RED, trip)
    if not intent.focused:
        return Sign("CLICK HERE", AMBER, "This window has lost the keyboard; the arm holds.")
    if not intent.clutch_in:
        return Sign("UNCOUPLED", AMBER, "The clutch is out; the arm holds.")
    if not intent.held:
        return Sign("HOLDING", GREY, f"Hold {hold_key} to move.")
    moves = [action.value for action in pressed if action in MOTIONS]
    return Sign("MOVING" if moves else "READY", GREEN, ", ".join(moves) or "Nothing asked for.")


class LeaderWindow:
    """Draws on the pygame display; belongs to the thread that made it."""

    def __init__(self, title: str, help_lines: Sequence[HelpLine]) -> None:
        pygame.font.init()
        letters.cache_clear()  # fonts don't outlive the module's end
        self._surface = pygame.display.set_mode(SIZE_PX, pygame.RESIZABLE)
        pygame.display.set_caption(title)
        self._help = tuple(help_lines)
        font = letters(KEY_PX)
        self._indent = 28 + max(font.size(line.keys)[0] for line in self._help)
        self._drawn: object = None

    def draw(self, sign: Sign, intent: Intent) -> None:
        """Draw, if anything has changed."""
        shown = (sign, intent.step, intent.frame, pygame.display.get_window_size())
        if shown == self._drawn:
            return
        self._drawn = shown
        surface = self._surface = pygame.display.get_surface()
        width, height = surface.get_size()
        scale = min(width / SIZE_PX[0], height / SIZE_PX[1])
        surface.fill(GROUND)
        band = round(248 * scale)
        pygame.draw.rect(surface, sign.colour, (0, 0, width, band))
        self._text(sign.word, STATE_PX * scale, INK, (36 * scale, 28 * scale))
        self._text(sign.below, KEY_PX * scale, INK, (42 * scale, 190 * scale))
        self._draw_speed(intent, band + round(26 * scale), scale)
        self._draw_help(band + round(112 * scale), scale)
        pygame.display.flip()

    def _draw_speed(self, intent: Intent, top: int, scale: float) -> None:
        self._text("SPEED", KEY_PX * scale, DIM, (42 * scale, top + 13 * scale))
        for index, share in enumerate(SPEED_STEPS):
            on = index < intent.step
            box = pygame.Rect(0, 0, round(108 * scale), round(58 * scale))
            box.topleft = (round((200 + 122 * index) * scale), top)
            pygame.draw.rect(self._surface, INK if on else GREY, box, border_radius=6)
            ink = GROUND if on else DIM
            self._text(f"{share:.0%}", KEY_PX * scale, ink, (box.x + 12 * scale, top + 13 * scale))
        place = (736 * scale, top + 13 * scale)
        self._text(f"FRAME  {intent.frame}", KEY_PX * scale, INK, place)

    def _draw_help(self, top: int, scale: float) -> None:
        rows = (len(self._help) + 1) // 2
        for index, line in enumerate(self._help):
            x = (42 + 610 * (index // rows)) * scale
            y = top + ROW_PX * (index % rows) * scale
            self._text(line.keys, KEY_PX * scale, INK, (x, y))
            self._text(
                line.does,
                KEY_PX * scale,
                INK if line.does.isupper() else DIM,
                (x + self._indent * scale, y),
            )

    def _text(
        self, text: str, height_px: float, ink: tuple[int, int, int], at: tuple[float, float]
    ) -> None:
        font = letters(round(height_px))
        room_px = self._surface.get_width() - at[0] - 12
        if (wide_px := font.size(text)[0]) > room_px:
            font = letters(int(height_px * room_px / wide_px))
        self._surface.blit(font.render(text, True, ink), (round(at[0]), round(at[1])))
