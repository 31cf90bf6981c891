"""Where the view goes: the whole terminal where there is one, else a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from gaploop.scripts._teleop_view import Picture, line, render

LINE_S: Final = 1.0
"""Without a terminal a line is written this often [s], and whenever the mode changes."""

type Show = Callable[[Picture], None]


@contextlib.contextmanager
def screen() -> Iterator[Show]:
    """Yield a function that shows one frame of the view on stderr."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda picture: live.update(render(picture), refresh=True)


def _lines() -> Show:
    """Return a `Show` that writes a line a second, and one at once for what is new."""
    said_s, said = -LINE_S, ""

    def show(picture: Picture) -> None:
        nonlocal said_s, said
        now_s, what = time.monotonic(), f"{picture.mode}{picture.lost}{picture.note}"
        if now_s - said_s >= LINE_S or what != said:
            said_s, said = now_s, what
            print(line(picture), file=sys.stderr, flush=True)

    return show
