"""pygame without its greeting on stdout, which would spoil `--json`, and without its warnings."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pkg_resources is not our user's business
    import pygame
    from pygame._sdl2 import controller

__all__ = ["controller", "pygame"]
