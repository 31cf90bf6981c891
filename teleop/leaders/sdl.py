"""pygame without its greeting on stdout, which would spoil `--json`, and without its warnings.

And the colours and letters of every window that gaploop opens.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from typing import Any, Final

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
# Drawn by the processor: a window with an OpenGL context of its own keeps MuJoCo from rendering
# in the same thread (EGL_BAD_ACCESS), and a control room's PC need not have a GPU.
os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pkg_resources is not our user's business
    import pygame
    from pygame._sdl2 import controller

__all__ = ["controller", "pygame"]

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
