"""What a person sees while pictures are taken: a map of the picture, and what is missing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gaploop.teleop.calibration.capture import Advice

WIDE: Final = 48
HIGH: Final = 16
"""Characters of the map; a character is about twice as high as wide."""
LINE_S: Final = 2.0
"""Without a terminal a line is written this often [s], and for every picture."""

type Show = Callable[[Advice, int, int], None]


@contextlib.contextmanager
def capture_screen(wanted: int, folder: Path) -> Iterator[Show]:
    """Yield a function that shows an advice about a picture of a width and height [px]."""
    if not sys.stderr.isatty():
        yield _lines(wanted)
        return
    from rich.console import Console
    from rich.live import Live

    seen: list[list[int]] = [[0] * WIDE for _ in range(HIGH)]
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(advice: Advice, width: int, height: int) -> None:
            live.update(_panel(advice, width, height, seen, wanted, folder), refresh=True)

        yield show


def _lines(wanted: int) -> Show:
    said_s, taken = -LINE_S, -1

    def show(advice: Advice, _width: int, _height: int) -> None:
        nonlocal said_s, taken
        now_s = time.monotonic()
        if now_s - said_s >= LINE_S or advice.taken != taken:
            said_s, taken = now_s, advice.taken
            print(_line(advice, wanted), file=sys.stderr, flush=True)

    return show


def _line(advice: Advice, wanted: int) -> str:
    asks = f"; next: {advice.asks[0]}" if advice.asks else ""
    return f"{advice.taken} of {wanted} pictures, {advice.state.value}{asks}"


def _panel(
    advice: Advice, width: int, height: int, seen: list[list[int]], wanted: int, folder: Path
) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    now = _cells(advice, width, height)
    if advice.state.value == "taken":
        for row, column in now:
            seen[row][column] += 1
    picture = Text()
    for row in range(HIGH):
        for column in range(WIDE):
            mark, style = _mark((row, column) in now, seen[row][column])
            picture.append(mark, style)
        picture.append("\n")
    colour = {"taken": "bold green", "hold still": "yellow", "no board": "red"}
    state = Text(_line(advice, wanted), colour.get(advice.state.value, "cyan"))
    asks = Text("\n".join(f"  still missing: {ask}" for ask in advice.asks[:4]), "dim")
    title = f"{folder}: Ctrl-C ends and keeps what was taken"
    return Group(Panel(picture, title=title, width=WIDE + 4), state, asks)


def _cells(advice: Advice, width: int, height: int) -> set[tuple[int, int]]:
    if advice.view is None:
        return set()
    corners = advice.view.corners_px
    rows = (corners[:, 1] / height * HIGH).astype(int).clip(0, HIGH - 1)
    columns = (corners[:, 0] / width * WIDE).astype(int).clip(0, WIDE - 1)
    return set(zip(rows.tolist(), columns.tolist(), strict=True))


def _mark(now: bool, count: int) -> tuple[str, str]:
    if now:
        return "#", "bold white"
    return ("·", "dim") if count == 0 else ("o", "green")
