"""Colours and letters of every window that gaploop opens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from gaploop.teleop.leaders.sdl import pygame

INK: Final = (238, 240, 243)
DIM: Final = (176, 183, 194)
GROUND: Final = (20, 22, 26)
RED: Final = (200, 44, 44)
AMBER: Final = (190, 122, 8)
GREEN: Final = (22, 128, 66)
GREY: Final = (70, 76, 88)


@lru_cache(maxsize=128)
def letters(height_px: int) -> Any:
    """Return pygame's own font; opening it takes longer than drawing a line with it."""
    return pygame.font.Font(None, max(8, height_px))
