"""pygame without its greeting on stdout, which would spoil `--json`, and without its warnings."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
# Drawn by the processor: a window with an OpenGL context of its own keeps MuJoCo from rendering
# in the same thread (EGL_BAD_ACCESS), and a control room's PC need not have a GPU.
os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pkg_resources is not our user's business
    import pygame
    from pygame._sdl2 import controller

__all__ = ["controller", "pygame"]
