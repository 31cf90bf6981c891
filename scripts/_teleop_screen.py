"""Where the view goes: the whole terminal where there is one, else a line now and then."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from gaploop.scripts._teleop_view import TeleopScreen, line, render

LINE_S: Final = 1.0
"""Without a terminal a line is written this often [s], and whenever the mode changes."""

EARLY_S: Final = 0.05
KEPT_LOGS: Final = 1000

type Show = Callable[[TeleopScreen], None]


@contextlib.contextmanager
def screen() -> Iterator[Show]:
    """Yield a function that shows one frame of the view on stderr."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with _logs_kept(), Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda picture: live.update(render(picture), refresh=True)


@contextlib.contextmanager
def _logs_kept() -> Iterator[None]:
    """Keep log lines off the screen; write them when the terminal is itself again."""
    root = logging.getLogger()
    before, kept = root.handlers[:], logging.handlers.MemoryHandler(KEPT_LOGS, logging.CRITICAL)
    root.handlers[:] = [kept]
    try:
        yield
    finally:
        root.handlers[:] = before
        for record in kept.buffer:
            root.handle(record)


def _lines() -> Show:
    """Return a `Show` that writes a line a second, and one at once for what is new."""
    said_s, said = -LINE_S, ""

    def show(picture: TeleopScreen) -> None:
        nonlocal said_s, said
        now_s, what = time.monotonic(), f"{picture.mode}{picture.lost}{picture.note}"
        if now_s - said_s >= LINE_S - EARLY_S or what != said:
            said_s, said = now_s, what
            print(line(picture), file=sys.stderr, flush=True)

    return show
