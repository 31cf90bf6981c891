"""Where an attended session is shown and its keys are heard: a window, a terminal, or nowhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect.devices import LoopMonitor
from gaploop.collect.operator.commands import Command
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.keys import SPACE, keys
from gaploop.collect.operator.view import Shown, Tone, look
from gaploop.collect.scene_setup import sketch_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gaploop.teleop.leaders.panel import Sign


DRAW_S: Final = 0.066
"""A window is drawn this often [s]."""
TURN_S: Final = 0.01
LINE_S: Final = 5.0

type Turn = Callable[[], None]
"""Hears keys and shows how things stand; returns after some 10 ms."""


def chosen_display(asked: str, has_window: bool) -> str:
    """Return where to show: the window if there is a display, else the terminal if there is one.

    A leader that has a window of its own tells that there is a display.
    """
    if asked != "auto":
        return asked
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    if has_window or any(os.environ.get(name) for name in names) or sys.platform == "darwin":
        return "window"
    return "terminal" if sys.stdin.isatty() and sys.stderr.isatty() else "none"


@contextlib.contextmanager
def window(
    console: OperatorConsole, monitor: Callable[[], LoopMonitor | None], leader: Any, title: str
) -> Iterator[Turn]:
    """Yield the turns of the operator's window, which a leader that has to be pumped may share.

    Raises DeviceError where there is no display.
    """
    from gaploop.collect.operator.window import OperatorWindow, Pads

    shown = OperatorWindow(title)
    has_window = leader is not None and leader.has_window
    guest = _Guest(console, monitor, shown, has_window)
    with contextlib.ExitStack() as cleanup:
        # Whoever is at the terminal instead can't do anything there but stop the arm.
        cleanup.enter_context(keys()).listen(console.safety.estop)
        if leader is not None:
            _listen(leader, console)
        if has_window:
            leader.host(guest)
        else:
            cleanup.callback(shown.close)
            guest.pads = Pads()
            cleanup.callback(guest.pads.close)

        def turn() -> None:
            if leader is not None:
                leader.pump(console.seen().loop.trip)
            if not has_window:
                guest.turn()
            time.sleep(TURN_S)

        yield turn


def _listen(leader: Any, console: OperatorConsole) -> None:
    """Have the keys that a leader's own window needs for itself do here what they do anywhere."""
    leader.listen(lambda: console.command(Command.ESTOP), lambda: console.command(Command.CLEAR))


class _Guest:
    """Draws the window and hears its events, alone or as the guest of a leader's panel."""

    def __init__(
        self,
        console: OperatorConsole,
        monitor: Callable[[], LoopMonitor | None],
        shown: Any,
        shares: bool,
    ) -> None:
        self.pads: Any = None
        self._console, self._monitor, self._window, self._shares = console, monitor, shown, shares
        self._drawn_s = 0.0

    def turn(self) -> None:
        from gaploop.collect.operator.window import name_of
        from gaploop.teleop.leaders.sdl import pygame

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
        from gaploop.collect.operator.window import name_of
        from gaploop.teleop.leaders.sdl import pygame

        if event.type in (pygame.QUIT, pygame.WINDOWCLOSE):
            self._console.leave()
            return False
        if self.pads is not None:
            self.pads.on_event(event)
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
        watching = self._monitor()
        pictures: Mapping[str, Any] = {} if watching is None else watching.pictures
        self._window.draw(look(self._console.seen()), pictures, leader)


@contextlib.contextmanager
def terminal(console: OperatorConsole, leader: Any = None) -> Iterator[Turn]:
    """Yield the turns of the terminal's view; a leader's own window is kept alive beside it."""
    from rich.console import Console as Rich
    from rich.live import Live

    rich = Rich(stderr=True)
    with keys() as pressed, Live(console=rich, auto_refresh=False, screen=rich.is_terminal) as live:
        if leader is not None:
            _listen(leader, console)
        # A space is the emergency stop here even where a leader's window has another use for it.
        stops = {SPACE} if console.keys.command(SPACE) is None else set[str]()
        stops |= set(console.keys.keys.get(Command.ESTOP, ()))
        pressed.listen(console.safety.estop, stops)
        drawn_s = 0.0

        def turn() -> None:
            nonlocal drawn_s
            console.hear(pressed.presses(TURN_S), stops)
            if pressed.lost:
                console.leave()
            seen = console.seen()
            if leader is not None:
                leader.pump(seen.loop.trip)
            if time.monotonic() - drawn_s >= 2 * DRAW_S:
                drawn_s = time.monotonic()
                live.update(render(look(seen), rich.width), refresh=True)

        yield turn


@contextlib.contextmanager
def nowhere(console: OperatorConsole, say: Callable[[str], None]) -> Iterator[Turn]:
    """Yield turns that only say a line now and then: nobody is asked anything."""
    said_s, said = 0.0, ""

    def turn() -> None:
        nonlocal said_s, said
        shown = look(console.seen())
        if shown.word != said or time.monotonic() - said_s > LINE_S:
            said_s, said = time.monotonic(), shown.word
            say(line(shown))
        time.sleep(5 * TURN_S)

    yield turn


_TONES: Final = {
    Tone.RECORD: "bold white on red",
    Tone.GO: "bold white on green",
    Tone.ASK: "bold white on blue",
    Tone.WAIT: "bold black on yellow",
    Tone.ALARM: "bold white on red",
    Tone.PERSON: "bold white on magenta",
    Tone.IDLE: "bold black on white",
}
_BAR: Final = 24


def render(shown: Shown, wide: int = 80) -> RenderableType:
    """Return the view for Rich, for a terminal of so many columns."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    head = f"{shown.word}   {shown.clock}".rstrip()
    parts: list[RenderableType] = [
        Padding(Text(head.center(wide - 2)), (1, 1), style=_TONES[shown.tone]),
        Text(shown.below, style="bold"),
    ]
    parts += [Text(words, style=style) for words, style in _lines(shown)]
    return Group(*parts)


def _lines(shown: Shown) -> Iterator[tuple[str, str]]:
    if shown.share == shown.share:
        yield _bar(shown.share), ""
    yield f"{shown.count}   {shown.loop}", "yellow" if shown.trouble else ""
    if shown.driving:
        yield shown.driving, ""
    if shown.choices:
        yield "", ""
        yield shown.question, "bold"
    for choice in shown.choices:
        mark = ">" if choice.marked else " "
        words = f" {mark} {choice.key:>6}  {choice.words}"
        words += "  (suggested)" if choice.suggested else ""
        yield words, "reverse" if choice.marked else ""
    if shown.setup.words:
        yield f"set-up: {shown.setup.words}", ""
        if sketch := sketch_text(shown.setup.conditions, shown.setup.grid):
            yield sketch, "dim"
    for bar in shown.bars:
        share = bar.have / bar.wanted if bar.wanted else 1.0
        yield f"{_bar(share)} {bar.have}/{bar.wanted} {bar.name}", "green" if share >= 1 else ""
    for row in shown.rows:
        yield f"{'>' if row.pointed else ' '} {row.number:>3}  {row.words}", ""
    if shown.note:
        yield shown.note, "bold yellow"
    yield " · ".join(f"{hint.key}: {hint.does}" for hint in shown.hints), "dim"


def _bar(share: float) -> str:
    done = round(_BAR * min(1.0, max(0.0, share)))
    return "█" * done + "░" * (_BAR - done)


def line(shown: Shown) -> str:
    """Return the view as one line, for logs."""
    parts = (
        *(shown.word.lower(), shown.clock, shown.below, shown.count),
        *(shown.loop, shown.driving, shown.note),
    )
    return " · ".join(part for part in parts if part)
