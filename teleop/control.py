"""The control loop in its own thread, and everything around it that must not fail with it.

`ControlThread` runs the loop with real-time priority where that is granted. Subscribers stand
behind mailboxes. After a trip the arm is held, lowered or let go of (`teleop.descent`), and the
thread waits for the operator's `clear`. However the loop ends, its thread brings the arm down
before anything else happens; then, each step independent of the others, everything is disconnected.
A watchdog brings it down from outside where the loop hangs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from queue import SimpleQueue
from types import MappingProxyType
from typing import Final, Self

from gaploop.core import platform_calls
from gaploop.core.clock import Clock, PacedClock, Realtime, quiet_interpreter, raise_priority
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.core.messages import (
    FloatArray,
    FollowerState,
    Observation,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.core.protocols import (
    CameraSource,
    Follower,
    Leader,
    SceneTracker,
    SensorSource,
    TakeSink,
)
from gaploop.teleop.descent import (
    OFF_NOW,
    RETRY_S,
    Descent,
    Presses,
    let_go,
    say_doing,
    take_torque_off,
    without_torque,
)
from gaploop.teleop.loop import EndReason, LoopEnd, OnFrame, Rates, Resume, Turns, run_turns
from gaploop.teleop.safety import Response, SafetyFilter
from gaploop.teleop.stopping import CleanupStep, Step, on_signals, one_line, run_steps, undisturbed
from gaploop.teleop.supervisor import BEAT_S, Supervisor

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""While a trip waits for the operator, the arm is asked how it is this often [s]."""
HANG_PERIODS: Final = 10
"""A loop slower than 20 Hz may take this many periods before it is taken to hang."""
SPAN_LOOK_S: Final = 0.005
"""A span looks this often whether it has ended [s]."""
CAPACITY: Final = 400
"""Turns that a mailbox holds: two seconds at 200 Hz, or a disk that hiccups."""
LINGER_S: Final = 0.02
"""A subscriber that has taken everything looks again after this [s]. To be woken for each turn
would cost it and the loop a tenth of a millisecond of processor time a turn."""
DRAIN_S: Final = 10.0
"""A subscriber has this long to work off its mailbox at the end [s]."""
STUCK_S: Final = 0.5
"""A loop that made no turn, or didn't stop as it was told, for this long hangs [s]."""
ESTOP_S: Final = 0.1
"""A loop that hasn't heeded an e-stop after this long hangs [s]."""
ORPHAN_S: Final = 2.0
"""A program whose main thread is gone may live on for this long before it lowers the arm [s]."""
_LOOK_EVERY_S: Final = 0.02
_LOOKS_A_BEAT: Final = round(BEAT_S / _LOOK_EVERY_S)


class LoopMode(StrEnum):
    """What a control thread is doing."""

    READY = "ready"
    """Not started."""
    RUNNING = "running"
    HELD = "held"
    """An e-stop holds the arm, under torque; the operator's word is waited for."""
    LOWERING = "lowering"
    """The arm goes down, or falls damped."""
    TRIPPED = "tripped"
    """Torque is off, and the operator's `clear` is waited for."""
    ENDED = "ended"
    """Torque is off for good."""


@dataclass(frozen=True)
class Snapshot:
    """How a control thread stands, for a display.

    Attributes:
        state: the arm's newest report; goes on while a trip waits.
        realtime: whether real-time priority was granted, None before the start.
        unconfirmed: which servos haven't confirmed torque off after a trip, and what to do.
        doing: what the arm does on its way down, for a person.
    """

    mode: LoopMode
    tick: Tick | None
    state: FollowerState | None
    tripped: SafetyReason
    realtime: Realtime | None
    faults: tuple[str, ...] = ()
    unconfirmed: str = ""
    doing: str = ""


class ControlThread:
    """Runs the control loop of real arms; leaving its `with` block stops and disconnects all.

    `stop`, `leave` and `estop` may be called from any thread and from a signal handler; `clear` and
    `snapshot` from any thread; the rest from the one that made it.

    Args:
        follower: the arm; closed at the end, like `leader` and `cameras`.
        safety: the arm's filter, for the period of `rates`.
        cameras: looked at on policy frames; the first one's pictures are tracked.
        observed: sensors that policies see, read on policy frames.
        sinks: subscribers, each behind a mailbox; more can come with `attach`.
        until_done: end when the leader is done; False for a session of several takes.
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
        observed: Mapping[str, SensorSource] = MappingProxyType({}),
        sinks: Iterable[TakeSink] = (),
        max_s: float = math.inf,
        until_done: bool = True,
        clock: Clock | None = None,
    ) -> None:
        platform_calls.require_posix("Driving arms")
        self._follower, self._leader, self._safety = follower, leader, safety
        self._rates, self._cameras, self._tracker = rates, tuple(cameras), tracker
        self._observed = observed
        self._max_s, self._until_done = max_s, until_done
        self.clock = clock or PacedClock()
        """What paces the loop."""
        # What the loop's thread writes and any other may read.
        self._mode = LoopMode.READY
        self._tick: Tick | None = None
        self._state: FollowerState | None = None
        self._realtime: Realtime | None = None
        self._faults: tuple[str, ...] = ()
        self._unconfirmed = ""
        self._origin_s = math.nan
        self._error: Exception | None = None
        self._end: LoopEnd | None = None
        self._stop_faults: tuple[str, ...] = ()
        # What stops the loop from outside are plain flags: an Event's lock may be held by the very
        # code that a signal interrupts.
        self._stopping = self._is_limp = self._is_closed = False
        self._holds_end = False
        """The e-stop was pressed while the arm was lowered to end: it holds until pressed again."""
        self._clearing = SafetyReason.NONE
        self._estops, self._leaves = Presses(self.clock.now_s), Presses(self.clock.now_s)
        self._descent: Descent | None = None
        self._from_rad: FloatArray | None = None
        # A daemon, so that a device that never returns can't keep the program alive; the
        # watchdog sees to it that the program doesn't end before the arm is down.
        self._thread = threading.Thread(target=self._run, name="control loop", daemon=True)
        self._supervisor = Supervisor(getattr(follower, "supervised", tuple)(), safety)
        self._watchdog = Watchdog(self._hangs, HANG_PERIODS * rates.period_s, self._supervisor)
        self._gate = _Gate(follower)
        # Told in the loop's own thread; must not block. Replaced, never changed.
        self._inboxes: tuple[Mailbox | Span, ...] = ()
        self._on_frame: tuple[OnFrame, ...] = ()
        self._boxes: tuple[Mailbox, ...] = ()
        for sink in sinks:
            self.attach(sink)

    @undisturbed()
    def start(self) -> None:
        """Get the leader ready, put torque on where the arm stands, and start the loop.

        Raises:
            DeviceError: the leader or the follower doesn't take it; torque is off.
        """
        with contextlib.ExitStack() as on_exception:
            on_exception.callback(take_torque_off, self._follower)
            self._leader.reset()
            self._supervisor.ready()  # before anything holds
            on_exception.callback(self._supervisor.rests)
            self._follower.torque_on()
            on_exception.pop_all()
        # Both before the thread runs: a span may begin at once, and is timed from the origin.
        self._origin_s = self.clock.now_s()
        self._mode = LoopMode.RUNNING
        self._watchdog.wake()
        self._thread.start()
        self._watchdog.start()

    # In the loop's thread:

    def _run(self) -> None:
        """Run the loop, on after each trip that is cleared; bring the arm down however it ends."""
        with CleanupStep() as attempt, quiet_interpreter():
            self._realtime = raise_priority()
            total = LoopEnd(EndReason.TIME, 0, 0, 0.0)
            while True:
                turns = run_turns(
                    self._gate,
                    self._leader,
                    self._safety,
                    self.clock,
                    self._rates,
                    max_s=self._max_s - total.duration_s,
                    cameras=self._cameras,
                    tracker=self._tracker,
                    observed=self._observed,
                    on_frame=(self._frame,),
                    stop=self._must_stop,
                    until_done=self._until_done,
                    resume=Resume(total.ticks, self._origin_s, self._from_rad),
                )
                end = self._drive(turns)
                total = LoopEnd(
                    end.reason,
                    total.ticks + end.ticks,
                    total.frames + end.frames,
                    total.duration_s + end.duration_s,
                    total.missed + end.missed,
                    total.tripped | end.tripped,
                    (*total.faults, *end.faults),
                )
                if end.reason is not EndReason.TRIPPED or not self._goes_on():
                    break
            self._end = total
        self._error = attempt.error
        # Not where the watchdog has the arm, or where torque is off already: a Feetech servo that
        # is sent a goal puts it on again.
        if not self._gate.shut:
            is_down = False
            if self._mode is not LoopMode.TRIPPED:
                self._stop_faults = self._bring_down(self._gate, held=False)
                is_down = not self._stop_faults
            self._is_limp = is_down or not take_torque_off(self._follower)
        self._mode = LoopMode.ENDED
        self._watchdog.over = not self._gate.shut

    def _bring_down(self, follower: Follower, *, held: bool = True) -> tuple[str, ...]:
        """Hold, lower or let go of the arm; it is limp then, or `held` and to be driven again."""

        def turn(state: FollowerState) -> None:
            self._state = state
            is_held = descent.response is Response.HOLD
            self._mode = LoopMode.HELD if is_held else LoopMode.LOWERING
            self._watchdog.beat()

        descent = self._descent = Descent(
            follower,
            self._safety,
            self.clock,
            self._rates.period_s,
            let_go=lambda: self._estops.again or self._leaves.again,
            resumed=lambda: held and self._is_cleared(),
            ends=lambda: self._must_stop() and not self._holds_end,
            turn=turn,
        )
        self._mode = LoopMode.LOWERING
        self._watchdog.descends = True
        faults = descent.run()
        self._watchdog.descends = False
        if descent.is_limp:
            self._mode, self._from_rad = LoopMode.TRIPPED, None
        return faults

    def _is_cleared(self) -> bool:
        # A cause that came after the operator's word isn't cleared by it.
        return bool(self._clearing) and self._clearing == self._safety.tripped

    def _goes_on(self) -> bool:
        """Do to the arm what the trip asks for; say whether the operator cleared it."""
        while True:
            self._faults += self._bring_down(self._gate)
            if self._mode is LoopMode.TRIPPED:
                return self._cleared()
            # It holds: driven on from where its goals are, so that nothing sags.
            self._clearing, estops = SafetyReason.NONE, self._estops.count
            faults = run_steps([("clear", self._leader.reset)])
            if not faults:
                self._from_rad = self._safety.sent_rad
                self._go_on(estops)
                return True
            self._faults += faults

    def _go_on(self, estops: int) -> None:
        """Drive again; an e-stop that was pressed meanwhile counts."""
        self._watchdog.wake()
        self._safety.clear()
        pressed = self._estops.count != estops
        self._estops.forget()
        if pressed:
            self.estop()
        self._mode = LoopMode.RUNNING

    def _drive(self, turns: Turns) -> LoopEnd:
        """Run the loop to its end: show every turn, and hand it to every mailbox."""
        while True:
            try:
                tick = next(turns)
            except StopIteration as last:
                end: LoopEnd = last.value
                return end
            assert tick is not None
            self._watchdog.beat()
            self._tick, self._state = tick, tick.state
            reasons = tick.command.reasons
            if reasons and reasons & SafetyReason.TRIPPED:
                self._watchdog.estopped = False
            for inbox in self._inboxes:
                inbox.tick(tick)

    def _frame(self, observation: Observation) -> None:
        for callback in self._on_frame:
            callback(observation)

    def _must_stop(self) -> bool:
        # A main thread that died, by an exception or an exit, stops the arm, too.
        return self._stopping or not threading.main_thread().is_alive()

    def _cleared(self) -> bool:
        """Wait for the operator, with torque off; False where the loop is to stop instead."""

        def hold_again() -> None:
            self._leader.reset()
            self._follower.torque_on()

        self._watchdog.rest()
        self._mode = LoopMode.TRIPPED
        limp_by_s = 0.0
        while not self._must_stop():
            if self._is_cleared():
                # Torque comes on where the arm stands; where that fails, it stays off.
                self._clearing = SafetyReason.NONE
                self._watchdog.rest()
                estops = self._estops.count
                faults = run_steps([("clear", hold_again)])
                if not faults:
                    self._unconfirmed = ""
                    self._go_on(estops)
                    return True
                self._faults += faults + take_torque_off(self._follower)
            with CleanupStep():  # an arm that doesn't answer stays as it was last seen
                self._state = self._follower.read()
            if time.monotonic() >= limp_by_s:
                failed = run_steps([("torque off", self._follower.torque_off)])
                limp_by_s = time.monotonic() + RETRY_S if failed else math.inf
                if self._unconfirmed and not failed:
                    log.warning("%s", OFF_NOW)
                    self._faults = without_torque(self._faults)
                self._unconfirmed = "".join(failed).partition(": ")[2]
            time.sleep(POLL_S)
        return False

    # In the watchdog's thread:

    def _hangs(self) -> None:
        """Have the supervisor see to it; without one, bring the arm down from outside.

        Where that hangs itself, let go of it.
        """
        if self._supervisor.take_over(let_go=self._estops.count > 1 or self._leaves.count > 1):
            return
        self._gate.shut = True
        log.error("the control loop hangs: the arm is brought down from outside")
        self._faults += ("the control loop hung",)
        own, turns = _Gate(self._follower), -1
        descends = threading.Thread(
            target=lambda: self._bring_down(own, held=False), name="descent", daemon=True
        )
        descends.start()
        while descends.is_alive() and turns != self._watchdog.turns:
            turns = self._watchdog.turns
            descends.join(STUCK_S)
        own.shut = True
        faults = let_go(self._follower) if descends.is_alive() else ()
        faults += take_torque_off(self._follower)
        self._faults += faults
        self._is_limp, self._watchdog.descends = not faults, False

    # From any thread:

    @property
    def alive(self) -> bool:
        """Say whether the loop runs or waits for `clear`."""
        return self._thread.is_alive()

    def snapshot(self) -> Snapshot:
        """Return how things stand; costs the loop nothing."""
        return Snapshot(
            self._mode,
            self._tick,
            self._state,
            self._safety.tripped,
            self._realtime,
            (
                *self._faults,
                *((self._supervisor.lost,) if self._supervisor.lost else ()),
                *_faults(self._boxes),
            ),
            self._unconfirmed,
            say_doing(self._descent),
        )

    def estop(self) -> None:
        """Hold the arm from the next turn on; pressed again, let go of it."""
        self._clearing = SafetyReason.NONE
        self._estops.press()
        self._holds_end = self._stopping
        self._safety.estop()
        # A loop that hangs holds the arm anyway; where a supervisor will see to it, only the second
        # press asks for more.
        self._watchdog.estopped = not self._supervisor.watches or self._estops.count > 1

    def clear(self) -> None:
        """End a trip, which is the operator's word: torque comes on where the arm then stands.

        Heeded where the arm is limp, or held; on its way down it goes on.
        """
        if self._mode in (LoopMode.TRIPPED, LoopMode.HELD):
            self._clearing = self._safety.tripped

    def leave(self) -> None:
        """Take a person's word to end, such as Ctrl-C: `stop`; given again, let go of the arm.

        While an e-stop holds an arm that was on its way down, the word has it lowered on.
        """
        if self._holds_end:
            self._holds_end = False
            self._leaves.forget()
        self._leaves.press()
        self.stop()

    def stop(self) -> None:
        """End the loop after its turn; then the arm is lowered."""
        self._leaves.count = max(self._leaves.count, 1)
        self._stopping = True
        self._watchdog.told_to_stop = True

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` [s]; say whether the loop has ended."""
        self._thread.join(timeout_s)
        return not self.alive

    # From the thread that made it:

    def signals(self) -> contextlib.AbstractContextManager[list[int]]:
        """Let SIGINT, SIGTERM and SIGHUP end the loop while the block runs.

        A second one lets the arm go at once, and never interrupts torque going off.
        """
        return on_signals(self.leave, self.stop, is_safe=lambda: self._is_limp)

    def attach(self, sink: TakeSink) -> Mailbox:
        """Subscribe `sink`, behind a mailbox of its own."""
        box = Mailbox(sink)
        self._boxes = (*self._boxes, box)
        self._inboxes = (*self._inboxes, box)
        return box

    def span(self, *, max_s: float, on_frame: Iterable[OnFrame] = ()) -> Turns:
        """Return the turns of a stretch of the running loop, as if it ran for them: a take.

        A trip that waits for the operator is waited for first. The stretch begins with a policy
        frame and ends when the leader is done, it is told to, `max_s` [s] pass, the filter trips or
        the loop ends. The arm is driven before and after it, too. Who takes turns so slowly that
        they don't fit into a mailbox loses them.

        Raises:
            DeviceError: the loop failed.
        """

        def runs() -> bool:
            return self.alive and self._mode is LoopMode.RUNNING

        is_over: bool | None = False
        while self.alive and not (runs() or self._stopping or is_over):
            time.sleep(POLL_S)
            is_over = yield None
        begins_s, callbacks = self.clock.now_s() - self._origin_s, self._on_frame
        span = Span(self._leader, begins_s, max_s, self._rates.period_s)
        self._inboxes, self._on_frame = (*self._inboxes, span), (*callbacks, *on_frame)
        try:
            while True:
                is_ended = span.reason is not None
                tick = span.next()
                if tick is None and is_ended:
                    break
                is_over = (yield tick) or is_over or self._stopping
                if span.reason is None and is_over:
                    span.reason = EndReason.STOPPED
                elif span.reason is None and not runs():
                    span.reason = EndReason.TRIPPED if span.tripped else EndReason.STOPPED
                elif tick is None:
                    time.sleep(SPAN_LOOK_S)
        finally:
            span.reason = span.reason or EndReason.STOPPED  # it takes in no more
            self._inboxes = tuple(inbox for inbox in self._inboxes if inbox is not span)
            self._on_frame = callbacks
        if self._error is not None:
            raise self._error
        return span.end()

    def finish(self) -> LoopEnd:
        """Stop, bring the arm down, disconnect everything, and return how the loop ended.

        Raises:
            DeviceError: the loop failed, or torque or a connection couldn't be ended; one line
                says all that went wrong.
        """
        faults, error = self.close(), self._error
        if isinstance(error, GaploopError | OSError):
            kind = type(error) if isinstance(error, GaploopError) else DeviceError
            raise kind("; ".join((one_line(error), *faults))) from error
        if error is not None:
            raise error  # a defect, not a device: with its traceback
        if faults:
            once = {fault.partition(": ")[2] or fault: fault for fault in faults}
            raise DeviceError("Stopping failed: " + "; ".join(once.values()))
        end = self._end or LoopEnd(EndReason.STOPPED, 0, 0, 0.0)
        faults = (*end.faults, *_faults(self._boxes))
        return replace(end, faults=faults)

    @undisturbed()
    def close(self) -> tuple[str, ...]:
        """Stop, bring the arm down, disconnect everything; return a line for every failed step.

        Safe to call twice.
        """
        if self._is_closed:
            return ()
        self._is_closed = True
        self.stop()
        with self.signals():
            if self._thread.ident is not None:
                turns = -1
                while self.alive and turns != self._watchdog.turns:
                    turns = self._watchdog.turns  # as long as it goes on lowering
                    self._thread.join(2 * STUCK_S)
        faults = self._stop_faults
        faults += ("the control loop hangs",) if self.alive else ()
        faults += () if self._is_limp else take_torque_off(self._follower)
        self._is_limp = True
        self._watchdog.over = True
        self._supervisor.done()  # before the ports are closed: who opens them next may be quick
        steps: list[Step] = [(f"disconnecting {self._follower.name}", self._follower.close)]
        named = [("the leader", self._leader), *((c.name, c) for c in self._cameras)]
        for name, device in named:
            if callable(close := getattr(device, "close", None)):
                steps.append((f"disconnecting {name}", close))
        steps += [(f"subscriber {box.name}", box.close) for box in self._boxes]
        return (*faults, *run_steps(steps))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self.close():
            log.error("%s", fault)


def _faults(boxes: Iterable[Mailbox]) -> tuple[str, ...]:
    return tuple(line for box in boxes for line in box.faults())


class _Gate:
    """A follower that takes no goals any more once it is shut."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.shut = False
        self.name, self.robot_type, self.units = follower.name, follower.robot_type, follower.units
        self.joint_names, self.joint_limits_rad = follower.joint_names, follower.joint_limits_rad
        self.read, self.close = follower.read, follower.close
        self.torque_on, self.torque_off = follower.torque_on, follower.torque_off
        self.damps = getattr(follower, "damps", False)
        self.release = getattr(follower, "release", None)
        self.to_units, self.from_units = follower.to_units, follower.from_units

    def send(self, command: SafeCommand) -> None:
        """Hand a command on; DeviceError once shut: a goal would put torque on again."""
        if self.shut:
            raise DeviceError(
                "A device kept the control loop waiting, so torque was taken off. Check cables and "
                "cameras, then start again."
            )
        self._follower.send(command)


class Span:
    """Takes in a stretch of a running loop, for one who asks for its turns.

    Delivering never waits. A turn that finds the mailbox full is lost and counted.
    """

    def __init__(self, leader: Leader, start_s: float, max_s: float, period_s: float) -> None:
        self.reason: EndReason | None = None
        self.tripped = SafetyReason.NONE
        self._leader, self._start_s, self._period_s = leader, start_s, period_s
        self._last_s = max_s - 1.5 * period_s
        self._waiting: SimpleQueue[Tick] = SimpleQueue()
        self._index = self._turns = self._frames = self._missed = self._lost = 0
        self._t_s = 0.0

    def tick(self, tick: Tick) -> None:
        """Take a turn of the loop; the first is a policy frame, and of the stretch from its start.

        A turn that was on its way then is still of who drove before.
        """
        is_first = not self._index
        begins = tick.policy_frame and tick.t_s >= self._start_s
        if self.reason is not None or (is_first and not begins):
            return
        own = replace(
            tick,
            index=self._index,
            t_s=tick.t_s - self._start_s,
            period_s=math.nan if is_first else tick.period_s,
            overruns=0 if is_first else tick.overruns,
        )
        self._index += 1
        reasons = tick.command.reasons
        if reasons & SafetyReason.TRIPPED:
            self.tripped = reasons & ~SafetyReason.TRIPPED
        self.deliver(own)
        if self._leader.done():
            self.reason = EndReason.DONE
        elif own.t_s >= self._last_s:
            self.reason = EndReason.TIME

    def deliver(self, tick: Tick) -> None:
        """Put a turn where it is asked for, or lose and count it."""
        if self._waiting.qsize() >= CAPACITY:
            self._lost += 1
        else:
            self._waiting.put(tick)

    def next(self) -> Tick | None:
        """Return the next turn, and count it; None where none has come."""
        if self._waiting.empty():
            return None
        tick = self._waiting.get()
        self._turns += 1
        self._frames += tick.policy_frame
        self._missed += tick.overruns
        self._t_s = tick.t_s
        return tick

    def end(self) -> LoopEnd:
        """Return how the stretch ended."""
        lost = f"Recorder was too slow and lost {self._lost} turns"
        return LoopEnd(
            self.reason or EndReason.STOPPED,
            self._turns,
            self._frames,
            self._t_s + self._period_s,
            self._missed,
            self.tripped,
            (lost,) if self._lost else (),
        )


class Mailbox:
    """A `TakeSink` that hands every turn to another one, in a thread of its own.

    Delivering never waits. A turn that finds the mailbox full is lost and counted; a subscriber
    that raises gets no more turns, and `fault` says why.
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


class Watchdog:
    """Calls `on_hang` once if a loop hangs: in a device, in a camera, in a callback.

    An arm that is on its way down makes turns, too; it needn't heed a stop.

    Time is counted in the watchdog's own looks, so that a machine too busy to run the program
    at all isn't taken for a loop that hangs. Whatever tells it something is a plain assignment: any
    thread and any signal handler may do so at any time.

    Its thread isn't a daemon: where the main thread dies without a word, the program lives on
    until the loop has heeded that or hangs.

    Args:
        on_hang: brings the arm down; called in the watchdog's thread; must not raise.
        supervisor: is told that this program goes on.
    """

    def __init__(
        self, on_hang: Callable[[], None], slowest_s: float, supervisor: Supervisor
    ) -> None:
        self._on_hang, self._supervisor = on_hang, supervisor
        self._stuck_looks = max(STUCK_S, slowest_s) / _LOOK_EVERY_S
        self._estop_looks = max(ESTOP_S, slowest_s) / _LOOK_EVERY_S
        self.turns = 0
        """How many were made so far, on the way down too."""
        self._watches = self._has_turned = False
        self.estopped = False
        """The loop was told to trip and hasn't yet."""
        self.told_to_stop = False
        self.descends = False
        """The arm is on its way down, or held."""
        self.over = False
        """Nothing is watched any more."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=False)

    def start(self) -> None:
        """Start watching, as soon as there is something to watch."""
        self._thread.start()

    def wake(self) -> None:
        """Torque is on, and the loop begins: it must heed an e-stop and a stop from now on.

        How long it takes to its first turn, in which devices get going, isn't watched.
        """
        self._watches = True

    def beat(self) -> None:
        """The loop made a turn."""
        self.turns += 1
        self._has_turned = True

    def rest(self) -> None:
        """The loop doesn't run; nothing is watched until it is woken."""
        self._watches = self._has_turned = self.estopped = False

    def _watch(self) -> None:
        turns = silent = unheeded = unstopped = orphaned = looks = 0
        while not self.over and (self.descends or orphaned * _LOOK_EVERY_S < ORPHAN_S):
            time.sleep(_LOOK_EVERY_S)
            looks += 1
            if looks % _LOOKS_A_BEAT == 0:  # by this thread alone, so in order
                (self._supervisor.drives if self._watches else self._supervisor.rests)()
            if not threading.main_thread().is_alive():
                orphaned += 1
                self.told_to_stop = True
            silent = 0 if turns != self.turns or not self._has_turned else silent + 1
            waits = self._watches and not self.descends
            unheeded = unheeded + 1 if waits and self.estopped else 0
            unstopped = unstopped + 1 if waits and self.told_to_stop else 0
            turns = self.turns
            estop_looks = self._estop_looks if self._has_turned else self._stuck_looks
            if max(silent, unstopped) > self._stuck_looks or unheeded > estop_looks:
                self._on_hang()
                return
        self._supervisor.rests()
