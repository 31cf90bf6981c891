"""A stretch of code that Ctrl-C and SIGTERM wait for."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block is over; only the main thread gets any."""
    came: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    try:
        before = {s: signal.signal(s, later) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)
