"""Subscribers that can neither block nor stop the control loop."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Final

from gaploop.core.protocols import TakeSink
from gaploop.core.types import Tick
from gaploop.teleop.stopping import CleanupStep

CAPACITY: Final = 400
"""Turns that a mailbox holds: two seconds at 200 Hz, or a disk that hiccups."""
LINGER_S: Final = 0.02
"""A subscriber that has taken everything looks again after this [s]. To be woken for each turn
would cost it and the loop a tenth of a millisecond of processor time a turn."""
DRAIN_S: Final = 10.0
"""A subscriber has this long to work off its mailbox at the end [s]."""


class Mailbox:
    """A `TakeSink` that hands every turn to another one, in a thread of its own.

    Delivering never waits. A turn that finds the mailbox full is lost and counted; a subscriber
    that raises gets no more turns, and `fault` says why.

    Args:
        sink: the subscriber.
        capacity: turns that may wait.
    """

    def __init__(self, sink: TakeSink, capacity: int = CAPACITY) -> None:
        self.name = type(sink).__name__
        self.lost = 0
        self.fault = ""
        self._sink, self._capacity = sink, capacity
        self._waiting: SimpleQueue[Tick | None] = SimpleQueue()
        self._failed = False
        self._closed = False
        self._thread = threading.Thread(target=self._drain, name=f"sink {self.name}", daemon=True)
        self._thread.start()

    def tick(self, tick: Tick) -> None:
        """Deliver a turn, or lose and count it; never waits and never raises."""
        if self._failed or self._closed:
            return
        if self._waiting.qsize() >= self._capacity:
            self.lost += 1
        else:
            self._waiting.put(tick)

    def close(self, within_s: float = DRAIN_S) -> None:
        """Wait until everything delivered was taken; safe to call twice.

        A subscriber that takes longer than `within_s` [s] is given up, and what still waits
        counts as lost.
        """
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive() and not self._failed:
            self._failed = True
            self.lost += max(self._waiting.qsize() - 1, 0)
            self.fault = f"{self.name} didn't take its turns within {within_s:g} s of the end"

    def faults(self) -> tuple[str, ...]:
        """Return a line for each thing that went wrong."""
        lost = f"{self.name} was too slow and lost {self.lost} turns"
        return (*((self.fault,) if self.fault else ()), *((lost,) if self.lost else ()))

    def _drain(self) -> None:
        while (tick := self._waiting.get()) is not None and not self._failed:
            with CleanupStep() as attempt:
                self._sink.tick(tick)
            if attempt.error is not None:
                self._failed = True
                self.fault = f"{self.name} at {tick.t_s:.3f} s: {attempt.error!r}"
            if self._waiting.empty() and not self._closed:
                time.sleep(LINGER_S)
