"""Time as a dependency, so that loops run on the wall clock, in simulation, or in a test."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time [s] and a way to wait for an absolute deadline."""

    def now_s(self) -> float:
        """Return monotonic time [s]; only differences have meaning."""

    def sleep_until(self, deadline_s: float) -> None:
        """Return at `deadline_s` [s] of this clock, or at once if it has passed."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic()

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until the absolute deadline [s]."""
        remaining_s = deadline_s - time.monotonic()
        if remaining_s > 0:
            time.sleep(remaining_s)


class ManualClock:
    """A clock that moves only when it is slept on: time in tests. Threads may share it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._lock = threading.Lock()

    def now_s(self) -> float:
        """Return the time reached so far [s]."""
        return self._now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Jump to `deadline_s` [s]; never backwards."""
        with self._lock:
            self._now_s = max(self._now_s, deadline_s)


def utc_ns() -> int:
    """Return wall-clock time [ns since 1970, UTC]: it says when, and never measures how long."""
    return time.time_ns()
