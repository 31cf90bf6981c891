"""Time as a dependency (the wall clock, simulation, a test), and turns that begin on time.

Real-time scheduling where the system grants it, and a quiet interpreter: measured with the loop's
own thread beside two video encoders, without real-time rights one turn in a hundred began 4 to 5 ms
late, with them 0.05 ms.
"""

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from gaploop.core import platform_calls


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


# -- turns on time -----------------------------------------------------------------------------

FIFO_PRIORITY: Final = 50
"""Above everything ordinary, below the kernel's own threads and watchdogs (1 to 99)."""
SWITCH_INTERVAL_S: Final = 0.0005
"""Another Python thread hands the interpreter over within this [s]; Python's default is 5 ms."""
COLLECT_EVERY_S: Final = 1.0
"""Young garbage is collected this often [s], while the loop waits anyway."""
COLLECT_SPARE_S: Final = 0.002
"""Only when at least this is left before the next turn [s]; it takes some 0.1 ms."""

HOW_TO_GRANT: Final = (
    "No real-time rights: expect some turns to begin up to 5 ms late. Grant them: "
    f'echo "$USER - rtprio {FIFO_PRIORITY}" | sudo tee /etc/security/limits.d/90-gaploop.conf, '
    "then log in again. Or, for this shell only: sudo prlimit --rtprio=50 --pid $$"
)
NEEDS_LINUX: Final = "Real-time scheduling needs Linux: expect some turns to begin late."


@dataclass(frozen=True)
class Realtime:
    """Whether a thread runs with real-time priority, and a line on how to grant it, else ""."""

    granted: bool
    hint: str = ""


def raise_priority() -> Realtime:
    """Give the calling thread real-time priority (SCHED_FIFO) and exact timers if allowed.

    What the thread starts runs at ordinary priority again.
    """
    if not platform_calls.HAS_REALTIME:
        return Realtime(False, NEEDS_LINUX)
    platform_calls.exact_timers()
    granted = platform_calls.realtime(FIFO_PRIORITY, hand_down=False)
    return Realtime(granted, "" if granted else HOW_TO_GRANT)


def realtime_rights() -> Realtime:
    """Return whether a control loop would get real-time priority here, without taking it."""
    found: list[Realtime] = []
    probe = threading.Thread(target=lambda: found.append(raise_priority()), name="rights probe")
    probe.start()
    probe.join()
    return found[0]


@contextlib.contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Keep garbage collection and other Python threads from delaying a turn.

    What exists now is never collected while this lasts; what comes later is collected by
    `PacedClock` in its waits.
    """
    interval_s, was_enabled = sys.getswitchinterval(), gc.isenabled()
    gc.collect(1)  # all generations take half a second where PyTorch is loaded
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class PacedClock(MonotonicClock):
    """The machine's monotonic clock; collects young garbage in waits that have time to spare."""

    def __init__(self) -> None:
        self._collect_at_s = time.monotonic() + COLLECT_EVERY_S

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until the absolute deadline [s]."""
        now_s = time.monotonic()
        if now_s >= self._collect_at_s and deadline_s - now_s > COLLECT_SPARE_S:
            gc.collect(0)
            now_s = time.monotonic()
            self._collect_at_s = now_s + COLLECT_EVERY_S
        if deadline_s > now_s:
            time.sleep(deadline_s - now_s)
