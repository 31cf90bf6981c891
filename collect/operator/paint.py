"""Drawing for the operator window: text that fits, panels, bars, pictures."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.types import Image
from gaploop.teleop.leaders.sdl import letters, pygame

type Colour = tuple[int, int, int]
type Box = tuple[float, float, float, float]
"""Left, top, width, height [pixels]."""

PANEL: Final = (35, 39, 46)
LINE: Final = (66, 72, 84)
BLUE: Final = (32, 92, 168)
PURPLE: Final = (120, 62, 160)
WARN: Final = (255, 186, 74)


ARROWS: Final = frozenset("→←↑↓")


@lru_cache(maxsize=1)
def _with_arrows() -> str | None:
    """Return a font file that has arrows, which pygame's own lacks; matplotlib brings one."""
    found = importlib.util.find_spec("matplotlib")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
    return str(path) if path.exists() else None


@lru_cache(maxsize=128)
def _font(height_px: int, arrows: bool = False) -> Any:
    if arrows and (path := _with_arrows()):
        return pygame.font.Font(path, round(0.72 * height_px))  # as high as pygame's own letters
    return letters(height_px)


def _font_for(words: str, height_px: int) -> Any:
    return _font(height_px, not ARROWS.isdisjoint(words))


@lru_cache(maxsize=512)
def _rendered(text: str, height_px: int, ink: Colour) -> Any:
    return _font_for(text, height_px).render(text, True, ink)


def text(
    surface: Any, words: str, height_px: float, ink: Colour, at: tuple[float, float], room_px: float
) -> float:
    """Draw words, smaller where they would be wider than `room_px`; return their width [pixels]."""
    size = max(8, round(height_px))
    wide_px = _font_for(words, size).size(words)[0]
    if wide_px > room_px > 0:
        size = max(8, int(size * room_px / wide_px))
    image = _rendered(words, size, ink)
    surface.blit(image, (round(at[0]), round(at[1])))
    return float(image.get_width())


def lines(words: str, height_px: float, room_px: float, most: int) -> list[str]:
    """Break words into at most `most` lines of `room_px`; the last one takes the rest."""
    font, found = _font_for(words, max(8, round(height_px))), [""]
    for word in words.split():
        longer = f"{found[-1]} {word}".strip()
        if font.size(longer)[0] <= room_px or not found[-1] or len(found) == most:
            found[-1] = longer
        else:
            found.append(word)
    return found


def fits(words: str, height_px: float, room_px: float, most: int) -> bool:
    """Say whether words go into `most` lines of `room_px` at their full size."""
    font = _font_for(words, max(8, round(height_px)))
    broken = lines(words, height_px, room_px, most)
    return all(font.size(line)[0] <= room_px for line in broken)


def panel(surface: Any, box: Box, colour: Colour = PANEL, radius: int = 8) -> None:
    """Fill a rectangle with round corners."""
    pygame.draw.rect(surface, colour, pygame.Rect(*map(round, box)), border_radius=radius)


def frame(surface: Any, box: Box, colour: Colour, width: int = 2) -> None:
    """Draw a rectangle's edge."""
    pygame.draw.rect(surface, colour, pygame.Rect(*map(round, box)), width, border_radius=6)


def bar(surface: Any, box: Box, share: float, colour: Colour, ground: Colour = LINE) -> None:
    """Draw a bar that is filled by `share`, 0 to 1."""
    x, y, wide, high = box
    panel(surface, box, ground, 3)
    if share > 0:
        panel(surface, (x, y, max(2.0, wide * min(1.0, share)), high), colour, 3)


def picture(surface: Any, image: Image, box: Box) -> None:
    """Draw a picture as large as fits into the box, in its middle.

    Args:
        surface: where to draw.
        image: RGB, shape (height, width, 3).
        box: where it may lie.
    """
    height, width = image.shape[:2]
    scale = min(box[2] / width, box[3] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    raw = pygame.image.frombuffer(np.ascontiguousarray(image).tobytes(), (width, height), "RGB")
    at = box[0] + (box[2] - size[0]) / 2, box[1] + (box[3] - size[1]) / 2
    surface.blit(pygame.transform.scale(raw, size), (round(at[0]), round(at[1])))
