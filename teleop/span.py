"""A stretch of a running loop, handed to subscribers as if the loop ran for them alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import SafetyReason, Tick
from gaploop.teleop.loop import EndReason, LoopEnd
from gaploop.teleop.mailbox import Mailbox

_LOOK_EVERY_S: Final = 0.005


class LoopSpan:
    """Subscribes to a running loop; hands its turns on, counted and timed from its own start.

    Args:
        leader: asked whether it is done.
        start_s: when the span begins, in the time of the loop's ticks [s].
        max_s: how long it may last [s].
        period_s: time between two turns [s].
        sinks: subscribers, each behind a mailbox.
    """

    def __init__(
        self,
        leader: Leader,
        start_s: float,
        max_s: float,
        period_s: float,
        sinks: Iterable[TakeSink],
    ) -> None:
        self._leader, self._start_s, self._period_s = leader, start_s, period_s
        self._last_s = max_s - 1.5 * period_s
        self._boxes = tuple(Mailbox(sink) for sink in sinks)
        self._turns = self._frames = self._missed = 0
        self._t_s = 0.0
        self._tripped = SafetyReason.NONE
        self._reason: EndReason | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for box in self._boxes:
            box.close()

    def tick(self, tick: Tick) -> None:
        """Take a turn of the loop; the first is a policy frame."""
        if self._reason is not None or (not self._turns and not tick.policy_frame):
            return
        is_first = not self._turns
        self._t_s = tick.t_s - self._start_s
        own = replace(
            tick,
            index=self._turns,
            t_s=self._t_s,
            period_s=math.nan if is_first else tick.period_s,
            overruns=0 if is_first else tick.overruns,
        )
        for box in self._boxes:
            box.tick(own)
        self._turns += 1
        self._frames += tick.policy_frame
        self._missed += own.overruns
        reasons = tick.command.reasons
        if reasons & SafetyReason.TRIPPED:
            self._tripped = reasons & ~SafetyReason.TRIPPED
        if self._leader.done():
            self._reason = EndReason.DONE
        elif self._t_s >= self._last_s:
            self._reason = EndReason.TIME

    def run(self, stop: Callable[[], bool], runs: Callable[[], bool]) -> LoopEnd:
        """Wait for the end: the leader's, `stop`'s, that of time, or of the loop as `runs` says."""
        while self._reason is None:
            if stop():
                self._reason = EndReason.STOPPED
            elif not runs():
                self._reason = EndReason.TRIPPED if self._tripped else EndReason.STOPPED
            else:
                time.sleep(_LOOK_EVERY_S)
        for box in self._boxes:
            box.close()
        return LoopEnd(
            self._reason,
            self._turns,
            self._frames,
            self._t_s + self._period_s,
            self._missed,
            self._tripped,
            tuple(line for box in self._boxes for line in box.faults()),
            {box.name: box.lost for box in self._boxes if box.lost},
        )
