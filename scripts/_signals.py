"""Ctrl-C and SIGTERM for commands that end a piece of work in good order first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stoppable() -> Iterator[list[int]]:
    """Yield a list that SIGINT or SIGTERM adds itself to; a second one interrupts at once."""
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)

    try:
        before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever called us minds the signals
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
