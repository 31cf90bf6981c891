"""Writes a take's rows and syncs them behind the recorder's back, in two threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from gaploop.collect.streams import WRITE_EVERY_S
from gaploop.core.clock import utc_ns
from gaploop.teleop.stopping import CleanupStep, one_line

log = logging.getLogger(__name__)

SYNC_EVERY_S: Final = 0.25
"""What was written waits at most this long for the disk, and as long as the disk takes [s]."""
AFTER_S: Final = 0.02
"""What isn't urgent waits this long for the take to begin: it would hold the interpreter [s]."""
CLOCK_STEP_S: Final = 0.05
"""A wall clock that moves this far against the monotonic one was set, not slewed [s]."""


class Flusher:
    """Calls `write` when told and every `WRITE_EVERY_S`, and `syncs` every `SYNC_EVERY_S`.

    Args:
        first: done once, before anything else, `AFTER_S` after the start.
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
        self.fault: Exception | None = None
        """What ended one of the threads: from then on nothing is brought to the disk."""
        self._first, self._write, self._syncs = first, write, syncs
        self._on_clock_step, self._wall_ns = on_clock_step, wall_ns
        self._offset_ns = self._clock_offset_ns()
        self._due, self._over = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for name, loop in (
                ("journal", self._keep_writing),
                ("journal sync", self._keep_syncing),
            )
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have what waits written soon."""
        self._due.set()

    def stop(self) -> None:
        """End both threads, after what they are doing; safe to call twice."""
        self._over.set()
        self._due.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, loop: Callable[[], None]) -> None:
        with CleanupStep() as attempt:
            loop()
        if attempt.error is not None:
            log.warning("The journal's thread ended (%s).", one_line(attempt.error))
            self.fault = attempt.error

    def _keep_writing(self) -> None:
        self._over.wait(AFTER_S)
        self._first()
        while not self._over.is_set():
            self._due.wait(WRITE_EVERY_S)
            self._due.clear()
            self._watch_clock()
            self._write()

    def _keep_syncing(self) -> None:
        """Sync apart from writing: a disk that takes its time must not hold the rows up."""
        while not self._over.wait(SYNC_EVERY_S):
            for sync in self._syncs:
                sync()

    def _clock_offset_ns(self) -> int:
        """Return wall less monotonic time, of three looks the one between which least time went by.

        Beside busy programs the thread may be put off between its looks at the two clocks.
        """
        looks = []
        for _ in range(3):
            before_ns, wall_ns, after_ns = time.monotonic_ns(), self._wall_ns(), time.monotonic_ns()
            looks.append((after_ns - before_ns, wall_ns - before_ns))
        return min(looks)[1]

    def _watch_clock(self) -> None:
        offset_ns = self._clock_offset_ns()
        step_s = (offset_ns - self._offset_ns) * 1e-9
        self._offset_ns = offset_ns
        if abs(step_s) >= CLOCK_STEP_S:
            self._on_clock_step(step_s)
