"""The operator's window. Capitals of the state are 25 mm high on a screen of 96 dpi."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.collect.operator.console import OperatorConsole, listen_to
from gaploop.collect.operator.keys import DIGITS, Command, keys
from gaploop.collect.operator.terminal import DRAW_S, TURN_S, Turn
from gaploop.collect.operator.view import Shown, Tone, look
from gaploop.core.messages import Image
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.leaders import panel
from gaploop.teleop.leaders.panel import INK, letters, pygame

if TYPE_CHECKING:
    from gaploop.collect.devices import SessionDevices
    from gaploop.teleop.leaders.panel import Sign

log = logging.getLogger(__name__)

SIZE_PX: Final = (1280, 800)
STATE_PX: Final = 190
"""Font of the state: readable across a room."""
WORDS_PX: Final = 46
"""Capitals of 6 mm; 20/20 sight reads 3 mm from two metres (ISO 8596)."""
SMALL_PX: Final = 30
"""For what is read at the desk: names of set-ups, key hints."""
BAND_PX: Final = 264
EDGE_PX: Final = 24
SIDE_PX: Final = 470
"""Width of the right column."""
ASKED_SHARE: Final = 0.66
"""Share of the left side that a question and its answers take."""
HINTS_PX: Final = 104

type Colour = tuple[int, int, int]
type Box = tuple[float, float, float, float]
"""Left, top, width, height [pixels]."""

PANEL: Final = (35, 39, 46)
LINE: Final = (66, 72, 84)
BLUE: Final = (32, 92, 168)
PURPLE: Final = (120, 62, 160)
WARN: Final = (255, 186, 74)
ARROWS: Final = frozenset("→←↑↓")

_TONES: Final = {
    Tone.RECORD: panel.RED,
    Tone.GO: panel.GREEN,
    Tone.ASK: BLUE,
    Tone.WAIT: panel.AMBER,
    Tone.ALARM: panel.RED,
    Tone.PERSON: PURPLE,
    Tone.IDLE: panel.GREY,
}
_OUTCOMES: Final = {
    Outcome.SUCCESS: (72, 190, 112),
    Outcome.FAILURE: (240, 104, 96),
    Outcome.DISCARDED: panel.DIM,
    Outcome.INTERRUPTED: WARN,
    Outcome.UNLABELLED: WARN,
}


class OperatorWindow:
    """Draws what the operator sees; belongs to the thread that made it.

    Raises DeviceError where there is no display.
    """

    def __init__(self, title: str) -> None:
        panel.open_display(title, SIZE_PX, "Use --display=terminal. ")
        pygame.key.set_repeat()  # off: a key held down is one press
        self._scale = 1.0
        self._surface: Any = None

    def draw(self, shown: Shown, pictures: Mapping[str, Image], leader: str = "") -> None:
        """Draw everything, with each camera's newest picture, RGB, and a leader's state, or ""."""
        self._surface = pygame.display.get_surface()
        width, height = self._surface.get_size()
        scale = self._scale = min(width / SIZE_PX[0], height / SIZE_PX[1])
        self._surface.fill(panel.GROUND)
        self._band(shown, width, leader)
        top, bottom = BAND_PX * scale, height - HINTS_PX * scale
        edge, side = EDGE_PX * scale, SIDE_PX * scale
        left = (edge, top + edge / 2, width - side - 3 * edge, bottom - top - edge / 2)
        if shown.choices:
            # Beside them what the cameras see: the arm follows its leader on.
            x, y, wide, high = left
            share = ASKED_SHARE if pictures else 1.0
            self._question(shown, (x, y, share * wide, high))
            if pictures:
                rest = (x + share * wide + edge / 2, y, (1 - share) * wide - edge / 2, high)
                self._pictures(pictures, rest, columns=1)
        else:
            self._pictures(pictures, left, columns=1 if len(pictures) == 1 else 2)
        self._side(shown, (width - side - edge, top + edge / 2, side, bottom - top - edge / 2))
        top, wide = bottom + 8 * scale, width - 2 * edge
        if shown.note:
            self._text(shown.note, SMALL_PX, WARN, (edge, top), wide)
        for n, hint in enumerate(shown.hints):
            at_x, at_y = edge + (n % 3) * wide / 3, top + (34 + n // 3 * 32) * scale
            key = self._text(hint.key, SMALL_PX, WARN, (at_x, at_y), wide / 3)
            self._text(hint.does, SMALL_PX, panel.DIM, (at_x + key + 12, at_y), wide / 3 - key - 18)
        pygame.display.flip()

    def close(self) -> None:
        """Close the window; safe to call twice."""
        pygame.display.quit()

    def _text(
        self, words: str, size: float, ink: Colour, at: tuple[float, float], room_px: float
    ) -> float:
        """Draw words, smaller where they would be wider than `room_px`; return their width."""
        height_px = max(8, round(size * self._scale))
        wide_px = _font_for(words, height_px).size(words)[0]
        if wide_px > room_px > 0:
            height_px = max(8, int(height_px * room_px / wide_px))
        image = _rendered(words, height_px, ink)
        self._surface.blit(image, (round(at[0]), round(at[1])))
        return float(image.get_width())

    def _band(self, shown: Shown, width: int, leader: str) -> None:
        """Draw the state, the clock and the line below, readable from two metres."""
        scale, surface = self._scale, self._surface
        edge = 36 * scale
        fill_panel(surface, (0, 0, width, BAND_PX * scale), _TONES[shown.tone], 0)
        room = room_all = width - 2 * edge
        if shown.clock:
            clock_wide = 330 * scale
            self._text(
                shown.clock, STATE_PX, INK, (width - edge - clock_wide, 26 * scale), clock_wide
            )
            room -= clock_wide + edge
        self._text(shown.word, STATE_PX, INK, (edge, 26 * scale), room)
        top = 158 * scale
        words = shown.below if not leader else f"{shown.below}  [{leader}]"
        size, (lines, fits) = WORDS_PX, broken_lines(words, WORDS_PX * scale, room_all, 2)
        if not fits:
            size, (lines, _) = 34, broken_lines(words, 34 * scale, room_all, 3)
        for n, line in enumerate(lines):
            self._text(line, size, INK, (edge, top + 0.96 * size * n * scale), room_all)
        if shown.share == shown.share:
            box = (0.0, (BAND_PX - 12) * scale, float(width), 12 * scale)
            red, green, blue = _TONES[shown.tone]
            draw_bar(surface, box, shown.share, INK, (red // 2, green // 2, blue // 2))

    def _question(self, shown: Shown, box: Box) -> None:
        x, y, wide, high = box
        self._text(shown.question, WORDS_PX, INK, (x, y + 4), wide)
        top, columns = y + 56 * self._scale, 1 if len(shown.choices) <= 6 else 2
        rows = -(-len(shown.choices) // columns)
        step = min((high - 60 * self._scale) / rows, 92 * self._scale)
        cell_wide, cell_high = wide / columns - 10, step - 8 * self._scale
        indent = 52 * self._scale
        size = min(WORDS_PX, 0.62 * cell_high / self._scale)
        font = letters(max(8, round(size * self._scale)))
        widest = max(font.size(choice.words)[0] for choice in shown.choices)
        size *= min(1.0, (cell_wide - indent - 10) / widest)  # one size for all of them
        for n, choice in enumerate(shown.choices):
            left = x + (wide / columns) * (n // rows)
            cell = (left, top + step * (n % rows), cell_wide, cell_high)
            fill_panel(self._surface, cell, BLUE if choice.marked else PANEL)
            drop = cell[1] + (cell_high - 0.7 * size * self._scale) / 2
            key = self._text(choice.key, size, WARN, (left + 14, drop), 0.3 * cell_wide)
            place = left + max(28 + key, indent)
            self._text(choice.words, size, INK, (place, drop), left + cell_wide - place - 10)

    def _pictures(self, pictures: Mapping[str, Image], box: Box, columns: int) -> None:
        x, y, wide, high = box
        if not pictures:
            fill_panel(self._surface, box)
            self._text("no picture yet", SMALL_PX, panel.DIM, (x + 20, y + 20), wide)
            return
        rows = -(-len(pictures) // columns)
        for n, (name, image) in enumerate(pictures.items()):
            cell = (
                x + (n % columns) * wide / columns,
                y + (n // columns) * high / rows,
                wide / columns - 6,
                high / rows - 6,
            )
            fill_panel(self._surface, cell)
            draw_picture(self._surface, image, cell)
            self._text(name, SMALL_PX, WARN, (cell[0] + 10, cell[1] + 8), cell[2])

    def _side(self, shown: Shown, box: Box) -> None:
        """Draw counts, quotas, the set-up and the last takes."""
        x, y, wide, high = box
        scale, bottom = self._scale, y + high
        self._text(shown.count, WORDS_PX, INK, (x, y), wide)
        ink = WARN if shown.trouble else panel.DIM
        self._text(shown.loop, SMALL_PX, ink, (x, y + 40 * scale), wide)
        if shown.driving:
            self._text(shown.driving, SMALL_PX, INK, (x, y + 72 * scale), wide)
            y += 32 * scale
        y += 76 * scale
        if shown.setup:
            self._text("SET-UP", SMALL_PX - 6, panel.DIM, (x, y), wide)
            lines, _ = broken_lines(shown.setup, SMALL_PX * scale, wide, 3)
            for n, line in enumerate(lines):
                self._text(line, SMALL_PX, INK, (x, y + (22 + 30 * n) * scale), wide)
            y += (36 + 30 * len(lines)) * scale
        rows_high = 34 * scale * max(1, len(shown.rows)) + 34 * scale
        room = bottom - y - rows_high
        for bar in shown.bars[: max(0, int(room // (40 * scale)))]:
            share = bar.have / bar.wanted if bar.wanted else 1.0
            self._text(
                f"{bar.name}  {bar.have}/{bar.wanted}", SMALL_PX - 4, panel.DIM, (x, y), wide
            )
            colour = _OUTCOMES[Outcome.SUCCESS] if share >= 1 else BLUE
            draw_bar(self._surface, (x, y + 22 * scale, wide, 10 * scale), share, colour)
            y += 40 * scale
        if not shown.rows:
            return
        self._text("LAST EPISODES", SMALL_PX - 6, panel.DIM, (x, bottom - rows_high), wide)
        for n, row in enumerate(shown.rows):
            top = bottom - rows_high + (26 + 34 * n) * scale
            self._text(str(row.number), SMALL_PX, panel.DIM, (x, top), 40 * scale)
            ink, place = _OUTCOMES[row.outcome], x + 48 * scale
            self._text(row.words, SMALL_PX, ink, (place, top), wide - 48 * scale)


# -- drawing: text that fits, panels, bars, pictures --------------------------------------------


@lru_cache(maxsize=128)
def _font(height_px: int, arrows: bool) -> Any:
    """Return a font; with arrows, which pygame's own lacks, the one that matplotlib brings."""
    found = importlib.util.find_spec("matplotlib") if arrows else None
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
        if path.exists():
            return pygame.font.Font(str(path), round(0.72 * height_px))  # as high as pygame's own
    return letters(height_px)


def _font_for(words: str, height_px: int) -> Any:
    return _font(height_px, not ARROWS.isdisjoint(words))


@lru_cache(maxsize=512)
def _rendered(text: str, height_px: int, ink: Colour) -> Any:
    return _font_for(text, height_px).render(text, True, ink)


def broken_lines(words: str, height_px: float, room_px: float, most: int) -> tuple[list[str], bool]:
    """Break words into at most `most` lines of `room_px`; the last one takes the rest.

    Returns them, and whether they fit at their full size.
    """
    font, found = _font_for(words, max(8, round(height_px))), [""]
    for word in words.split():
        longer = f"{found[-1]} {word}".strip()
        if font.size(longer)[0] <= room_px or not found[-1] or len(found) == most:
            found[-1] = longer
        else:
            found.append(word)
    return found, all(font.size(line)[0] <= room_px for line in found)


def fill_panel(surface: Any, box: Box, colour: Colour = PANEL, radius: int = 8) -> None:
    """Fill a rectangle with round corners."""
    pygame.draw.rect(surface, colour, pygame.Rect(*map(round, box)), border_radius=radius)


def draw_bar(surface: Any, box: Box, share: float, colour: Colour, ground: Colour = LINE) -> None:
    """Draw a bar that is filled by `share`, 0 to 1."""
    x, y, wide, high = box
    fill_panel(surface, box, ground, 3)
    if share > 0:
        fill_panel(surface, (x, y, max(2.0, wide * min(1.0, share)), high), colour, 3)


def draw_picture(surface: Any, image: Image, box: Box) -> None:
    """Draw a picture, RGB, shape (height, width, 3), as large as fits into the box's middle."""
    height, width = image.shape[:2]
    scale = min(box[2] / width, box[3] / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    raw = pygame.image.frombuffer(np.ascontiguousarray(image).tobytes(), (width, height), "RGB")
    at = box[0] + (box[2] - size[0]) / 2, box[1] + (box[3] - size[1]) / 2
    surface.blit(pygame.transform.scale(raw, size), (round(at[0]), round(at[1])))


_KEYS: Final = {
    **{getattr(pygame, f"K_{c}"): c for c in ascii_lowercase + DIGITS},
    **{getattr(pygame, f"K_KP{c}"): c for c in DIGITS},
    **{getattr(pygame, f"K_{n.upper()}"): n for n in ("right", "left", "up", "down", "space")},
    pygame.K_RETURN: "return",
    pygame.K_KP_ENTER: "return",
}
"""pygame's key to its name; the number pad counts as digits and Enter."""


def name_of(event: Any) -> str:
    """Return the name of the key that an event says was pressed, or ""."""
    return str(_KEYS.get(event.key, "")) if event.type == pygame.KEYDOWN else ""


# -- who hears its events ------------------------------------------------------------------------


@contextlib.contextmanager
def window(console: OperatorConsole, devices: SessionDevices, title: str) -> Iterator[Turn]:
    """Yield the turns of the operator's window, which a leader that has to be pumped may share.

    Raises DeviceError where there is no display.
    """
    shown, leader = OperatorWindow(title), devices.window
    has_window = leader is not None and leader.has_window
    guest = _Guest(console, devices, shown, has_window)
    with contextlib.ExitStack() as cleanup:
        # Whoever is at the terminal instead can't do anything there but stop the arm.
        cleanup.enter_context(keys()).listen(console.safety.estop)
        if leader is not None:
            listen_to(leader, console)
        if has_window:
            leader.host(guest)
        else:
            cleanup.callback(shown.close)

        def turn() -> None:
            if leader is not None:
                leader.pump(console.seen().loop.trip)
            if not has_window:
                guest.turn()
            time.sleep(TURN_S)

        yield turn


class _Guest:
    """Draws the window and hears its events, alone or as the guest of a leader's panel."""

    def __init__(
        self,
        console: OperatorConsole,
        devices: SessionDevices,
        shown: Any,
        shares: bool,
    ) -> None:
        self._console, self._devices, self._window, self._shares = console, devices, shown, shares
        self._drawn_s = 0.0

    def turn(self) -> None:
        events = pygame.event.get()
        self._console.hear(filter(None, map(name_of, events)))
        for event in events:
            if not name_of(event):
                self.on_event(event, False)
        if time.monotonic() - self._drawn_s >= DRAW_S:
            self._drawn_s = time.monotonic()
            self._draw("")

    def on_event(self, event: Any, held: bool) -> bool:
        """Take an event; True keeps it from the leader, whose keys count while it is `held`."""
        if event.type in (pygame.QUIT, pygame.WINDOWCLOSE):
            self._console.leave()
            return False
        name = name_of(event)
        if not name or held:
            return False
        is_accept = self._console.keys.command(name) is Command.ACCEPT
        if self._shares and is_accept and self._console.seen().state.prompt is None:
            return False  # Enter clears a trip there
        return self._console.key(name)

    def draw(self, sign: Sign) -> None:
        is_said = bool(self._console.seen().loop.trip)  # in the band already
        words = f"{sign.word.lower()}: {sign.below}" if sign.below else sign.word.lower()
        self._draw("" if is_said else words)

    def _draw(self, leader: str) -> None:
        statistics = self._devices.statistics
        pictures: Mapping[str, Any] = {} if statistics is None else statistics.pictures
        self._window.draw(look(self._console.seen()), pictures, leader)
