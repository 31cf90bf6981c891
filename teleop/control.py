"""The control loop in its own thread, and everything around it that must not fail with it.

`ControlThread` runs `run_loop` with real-time priority where that is granted. Subscribers stand
behind mailboxes. A trip takes torque off and leaves the thread waiting for the operator's
`clear`. However the loop ends, its thread takes torque off before anything else happens; then,
each step independent of the others, everything is disconnected. A watchdog takes torque off
from outside where the loop hangs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, TakeSink
from gaploop.core.types import FollowerState, SafetyReason, Tick
from gaploop.teleop.loop import EndReason, LoopEnd, OnFrame, Rates, take_torque_off
from gaploop.teleop.loop_thread import POLL_S, LoopMode, LoopThread, Wiring
from gaploop.teleop.mailbox import Mailbox
from gaploop.teleop.realtime import PacedClock, Realtime
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.span import LoopSpan
from gaploop.teleop.stopping import Step, on_signals, one_line, run_steps
from gaploop.teleop.watchdog import STUCK_S

__all__ = ["ControlThread", "LoopMode", "Snapshot"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """How a control thread stands, for a display.

    Attributes:
        mode: what it is doing.
        tick: the newest turn, or None before the first.
        state: the arm's newest report; goes on while a trip waits.
        tripped: what tripped the safety filter.
        realtime: whether real-time priority was granted, None before the start.
        faults: a line for everything that went wrong so far.
        lost: subscriber to turns that it was too slow for.
        unconfirmed: which servos haven't confirmed torque off after a trip, and what to do.
    """

    mode: LoopMode
    tick: Tick | None
    state: FollowerState | None
    tripped: SafetyReason
    realtime: Realtime | None
    faults: tuple[str, ...] = ()
    lost: dict[str, int] = field(default_factory=dict)
    unconfirmed: str = ""


class ControlThread:
    """Runs the control loop of real arms; leaving its `with` block stops and disconnects all.

    `stop` and `estop` may be called from any thread and from a signal handler; `clear` and
    `snapshot` from any thread; the rest from the one that made it.

    Args:
        follower: the arm; closed at the end, like `leader` and `cameras`.
        leader: who drives.
        safety: the arm's filter, for the period of `rates`.
        rates: control and frame rate.
        cameras: looked at on policy frames; the first one's pictures are tracked.
        tracker: reads the scene.
        sinks: subscribers, each behind a mailbox; more can come and go with `attach`.
        on_frame: called in the loop's own thread with every policy frame's observation.
        max_s: longest duration [s].
        until_done: end when the leader is done; False for a session of several takes.
        clock: paces the loop.
    """

    def __init__(
        self,
        follower: Follower,
        leader: Leader,
        safety: SafetyFilter,
        rates: Rates,
        *,
        cameras: Sequence[CameraSource] = (),
        tracker: SceneTracker | None = None,
        sinks: Iterable[TakeSink] = (),
        on_frame: Iterable[OnFrame] = (),
        max_s: float = math.inf,
        until_done: bool = True,
        clock: Clock | None = None,
    ) -> None:
        paced, seen = clock or PacedClock(), tuple(cameras)
        wiring = Wiring(follower, leader, safety, paced, rates, seen, tracker, max_s, until_done)
        self._wiring, self._loop = wiring, LoopThread(wiring)
        self._loop.on_frame = tuple(on_frame)
        self._boxes: tuple[Mailbox, ...] = ()
        for sink in sinks:
            self.attach(sink)
        self._is_closed = False

    def start(self) -> None:
        """Get the leader ready, put torque on where the arm stands, and start the loop.

        Raises:
            DeviceError: the leader or the follower doesn't take it; torque is off.
        """
        follower = self._wiring.follower
        with contextlib.ExitStack() as on_exception:
            on_exception.callback(take_torque_off, follower)
            self._wiring.leader.reset()
            follower.torque_on()
            on_exception.pop_all()
        self._loop.start()

    @property
    def clock(self) -> Clock:
        """What paces the loop."""
        return self._wiring.clock

    @property
    def alive(self) -> bool:
        """Say whether the loop runs or waits for `clear`."""
        return self._loop.thread.is_alive()

    def snapshot(self) -> Snapshot:
        """Return how things stand; costs the loop nothing."""
        newest = self._loop.newest
        return Snapshot(
            newest.mode,
            newest.tick,
            newest.state,
            self._wiring.safety.tripped,
            newest.realtime,
            (*newest.faults, *_faults(self._boxes)),
            _lost(self._boxes),
            newest.unconfirmed,
        )

    def estop(self) -> None:
        """Trip the safety filter at the next turn; if the loop hangs, torque goes off anyway."""
        self._loop.clearing = False
        self._loop.estops += 1
        self._wiring.safety.estop()
        self._loop.watchdog.estopped(True)

    def clear(self) -> None:
        """End a trip, which is the operator's word: torque comes on where the arm then stands."""
        if self._wiring.safety.tripped:
            self._loop.clearing = True

    def stop(self) -> None:
        """End the loop after its turn; then torque goes off."""
        self._loop.stopping = True
        self._loop.watchdog.told_to_stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` [s]; say whether the loop has ended."""
        self._loop.thread.join(timeout_s)
        return not self.alive

    def signals(self) -> contextlib.AbstractContextManager[list[int]]:
        """Let SIGINT, SIGTERM and SIGHUP stop the loop while the block runs.

        A second one never interrupts torque going off.
        """
        return on_signals(self.stop, is_safe=lambda: self._loop.is_limp)

    def attach(self, sink: TakeSink) -> Mailbox:
        """Subscribe `sink`, behind a mailbox of its own."""
        box = Mailbox(sink)
        self._boxes = (*self._boxes, box)
        self._loop.sinks = (*self._loop.sinks, box)
        return box

    def detach(self, box: Mailbox) -> tuple[str, ...]:
        """End a subscription once it has taken what was delivered; return what went wrong."""
        self._boxes = _without(self._boxes, box)
        self._loop.sinks = _without(self._loop.sinks, box)
        box.close()
        return box.faults()

    def span(
        self,
        *,
        max_s: float,
        sinks: Iterable[TakeSink] = (),
        on_frame: Iterable[OnFrame] = (),
        stop: Callable[[], bool] = lambda: False,
    ) -> LoopEnd:
        """Let `sinks` see a stretch of the running loop, as if `run_loop` ran for them: a take.

        A trip that waits for the operator is waited for first. The stretch begins with a policy
        frame and ends when the leader is done, `stop` says so, `max_s` [s] pass, the filter
        trips or the loop ends. The arm is driven before and after it, too.

        Raises:
            DeviceError: the loop failed.
        """
        loop, w = self._loop, self._wiring
        while self.alive and not self._runs() and not self._stops(stop):
            time.sleep(POLL_S)
        begins_s, callbacks = w.clock.now_s() - loop.newest.origin_s, loop.on_frame
        with LoopSpan(w.leader, begins_s, max_s, w.rates.period_s, sinks) as span:
            loop.sinks, loop.on_frame = (*loop.sinks, span), (*callbacks, *on_frame)
            try:
                end = span.run(lambda: self._stops(stop), self._runs)
            finally:
                loop.sinks, loop.on_frame = _without(loop.sinks, span), callbacks
        if loop.error is not None:
            raise loop.error
        return end

    def take_loop(self, follower: Follower, leader: Leader, *_: object, **given: Any) -> LoopEnd:
        """Be called as `run_loop` and run a span instead: what a `Rig` takes its turns from."""
        if follower is not self._wiring.follower or leader is not self._wiring.leader:
            raise ValueError("A take must be of the arm and the leader that the thread drives.")
        for elsewhere in ("cameras", "tracker"):
            given.pop(elsewhere, None)
        return self.span(**given)

    def _runs(self) -> bool:
        return self.alive and self._loop.newest.mode is LoopMode.RUNNING

    def _stops(self, stop: Callable[[], bool]) -> bool:
        return self._loop.stopping or stop()

    def finish(self) -> LoopEnd:
        """Stop, take torque off, disconnect everything, and return how the loop ended.

        Raises:
            DeviceError: the loop failed, or torque or a connection couldn't be ended; one line
                says all that went wrong.
        """
        faults, error = self.close(), self._loop.error
        if isinstance(error, GaploopError | OSError):
            kind = type(error) if isinstance(error, GaploopError) else DeviceError
            raise kind("; ".join((one_line(error), *faults))) from error
        if error is not None:
            raise error  # a defect, not a device: with its traceback
        if faults:
            raise DeviceError("Stopping failed: " + "; ".join(faults))
        end = self._loop.end or LoopEnd(EndReason.STOPPED, 0, 0, 0.0)
        faults = (*end.faults, *_faults(self._boxes))
        return replace(end, faults=faults, lost=_lost(self._boxes))

    def close(self) -> tuple[str, ...]:
        """Stop, take torque off, disconnect everything; return a line for every failed step.

        Safe to call twice.
        """
        if self._is_closed:
            return ()
        self._is_closed = True
        self.stop()
        if self._loop.thread.ident is not None:
            self._loop.thread.join(2 * STUCK_S)
        faults = self._loop.stop_faults
        faults += ("the control loop hangs",) if self.alive else ()
        faults += () if self._loop.is_limp else take_torque_off(self._wiring.follower)
        self._loop.is_limp = True
        self._loop.watchdog.stop()
        return (*faults, *run_steps(self._disconnect()))

    def _disconnect(self) -> list[Step]:
        w = self._wiring
        steps: list[Step] = [(f"disconnecting {w.follower.name}", w.follower.close)]
        for name, device in [("the leader", w.leader), *((c.name, c) for c in w.cameras)]:
            if callable(close := getattr(device, "close", None)):
                steps.append((f"disconnecting {name}", close))
        return steps + [(f"subscriber {box.name}", box.close) for box in self._boxes]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for fault in self.close():
            log.error("%s", fault)


def _without[T](items: tuple[T, ...], one: object) -> tuple[T, ...]:
    return tuple(item for item in items if item is not one)


def _faults(boxes: Iterable[Mailbox]) -> tuple[str, ...]:
    return tuple(line for box in boxes for line in box.faults())


def _lost(boxes: Iterable[Mailbox]) -> dict[str, int]:
    return {box.name: box.lost for box in boxes if box.lost}
