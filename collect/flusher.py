"""Writes a take's rows and syncs them behind the recorder's back, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from gaploop.core.clock import utc_ns

SYNC_EVERY_S: Final = 0.25
"""What was written waits at most this long for the disk, and as long as the disk takes [s]."""
CLOCK_STEP_S: Final = 0.05
"""A wall clock that moves this far against the monotonic one was set, not slewed [s]."""


class Flusher:
    """Calls `write` whenever it is told and `write`, then `sync` every `SYNC_EVERY_S`.

    Args:
        first: done once, before anything else.
        write: writes what waits.
        syncs: each brings one stream to the disk.
        on_clock_step: told by how much the wall clock jumped [s].
        wall_ns: the wall clock [ns].
    """

    def __init__(
        self,
        first: Callable[[], None],
        write: Callable[[], None],
        syncs: Sequence[Callable[[], None]],
        on_clock_step: Callable[[float], None],
        wall_ns: Callable[[], int] = utc_ns,
    ) -> None:
        self.fault: OSError | None = None
        self._first, self._write, self._syncs = first, write, syncs
        self._on_clock_step, self._wall_ns = on_clock_step, wall_ns
        self._offset_ns = self._clock_offset_ns()
        self._due, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have what waits written soon."""
        self._due.set()

    def stop(self) -> None:
        """End the thread, after what it is doing; safe to call twice."""
        self._over.set()
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._first()
            synced_at_s = time.monotonic()
            while not self._over.is_set():
                self._due.wait(max(0.0, synced_at_s + SYNC_EVERY_S - time.monotonic()))
                self._due.clear()
                self._watch_clock()
                self._write()
                if time.monotonic() - synced_at_s >= SYNC_EVERY_S:
                    synced_at_s = time.monotonic()
                    for sync in self._syncs:
                        sync()
        except OSError as error:
            self.fault = error

    def _clock_offset_ns(self) -> int:
        return self._wall_ns() - time.monotonic_ns()

    def _watch_clock(self) -> None:
        offset_ns = self._clock_offset_ns()
        step_s = (offset_ns - self._offset_ns) * 1e-9
        self._offset_ns = offset_ns
        if abs(step_s) >= CLOCK_STEP_S:
            self._on_clock_step(step_s)
