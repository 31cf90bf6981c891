"""Ctrl-C, SIGTERM and a closed terminal, for commands that end a piece of work in order first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from gaploop.teleop.stopping import STOP_SIGNALS


@contextlib.contextmanager
def stoppable(message: str = "") -> Iterator[list[int]]:
    """Yield a list that a signal to stop adds itself to; a second one interrupts at once.

    Args:
        message: what is being finished, told on stderr as soon as the first one comes.
    """
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)
        if message and sys.__stderr__ is not None:
            # Not by `print`, whose lock the interrupted line may hold.
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.__stderr__.fileno(), f"\r\n{message}\n".encode())

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
