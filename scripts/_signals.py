"""Ctrl-C, SIGTERM and their like, for commands that end a piece of work in good order first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from gaploop.teleop.stopping import STOP_SIGNALS


@contextlib.contextmanager
def stoppable() -> Iterator[list[int]]:
    """Yield a list that a stop signal adds itself to; a second one interrupts at once."""
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)

    try:
        before = {s: signal.signal(s, stop) for s in STOP_SIGNALS}
    except ValueError:  # not the main thread: whoever called us minds the signals
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
