"""The thread that a control loop runs in: from torque on to torque off."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, TakeSink
from gaploop.core.types import FollowerState, Observation, SafeCommand, SafetyReason, Tick
from gaploop.teleop.loop import (
    EndReason,
    LoopEnd,
    OnFrame,
    Rates,
    Resume,
    run_loop,
    take_torque_off,
)
from gaploop.teleop.realtime import Realtime, quiet_interpreter, raise_priority
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.stopping import CleanupStep, run_steps
from gaploop.teleop.watchdog import Watchdog

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""While a trip waits for the operator, the arm is asked how it is this often [s]."""
RETRY_S: Final = 0.5
"""A servo that kept its torque after a trip is told again this often [s]: it may come back."""
HANG_PERIODS: Final = 10
"""A loop slower than 20 Hz may take this many periods before it is taken to hang."""


class LoopMode(StrEnum):
    """What a control thread is doing."""

    READY = "ready"
    """Not started."""
    RUNNING = "running"
    TRIPPED = "tripped"
    """Torque is off, and the operator's `clear` is waited for."""
    ENDED = "ended"
    """Torque is off for good."""


@dataclass(frozen=True)
class Wiring:
    """What a control loop runs on; as for `run_loop`.

    Attributes:
        until_done: end when the leader is done; False for a session of several takes.
    """

    follower: Follower
    leader: Leader
    safety: SafetyFilter
    clock: Clock
    rates: Rates
    cameras: Sequence[CameraSource]
    tracker: SceneTracker | None
    max_s: float
    until_done: bool


@dataclass
class Newest:
    """How the loop stands; the loop's thread writes, any other may read."""

    mode: LoopMode = LoopMode.READY
    tick: Tick | None = None
    state: FollowerState | None = None
    realtime: Realtime | None = None
    faults: tuple[str, ...] = ()
    unconfirmed: str = ""
    origin_s: float = math.nan


class LoopThread:
    """Runs the loop, waits after a trip, and takes torque off however it ends.

    What stops it from outside are plain flags: an Event's lock may be held by the very code
    that a signal interrupts.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.newest = Newest()
        self.sinks: tuple[TakeSink, ...] = ()
        """Told in the loop's own thread; must not block. Replaced, never changed."""
        self.on_frame: tuple[OnFrame, ...] = ()
        self.stopping = self.clearing = self.is_limp = False
        self.estops = 0
        self.stop_faults: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.end: LoopEnd | None = None
        self._gate = _Gate(wiring.follower)
        # A daemon, so that a device that never returns can't keep the program alive; the
        # watchdog sees to it that the program doesn't end before torque is off.
        self.thread = threading.Thread(target=self._run, name="control loop", daemon=True)
        self.watchdog = Watchdog(self._hangs, HANG_PERIODS * wiring.rates.period_s)

    def start(self) -> None:
        """Start; torque is on."""
        # Both before the thread runs: a span may begin at once, and is timed from the origin.
        self.newest.origin_s = self.wiring.clock.now_s()
        self.newest.mode = LoopMode.RUNNING
        self.thread.start()
        self.watchdog.start()

    def _run(self) -> None:
        with CleanupStep() as attempt, quiet_interpreter():
            self.newest.realtime = raise_priority()
            self.end = self._loop()
        self.error = attempt.error
        self.watchdog.rest()
        follower, safety = self.wiring.follower, self.wiring.safety
        if self.newest.mode is LoopMode.RUNNING and self.error is None:
            # Not after a trip or an error, where torque is off already: a Feetech servo that is
            # sent a goal puts it on again.
            self.stop_faults = run_steps([("hold", lambda: self._gate.send(safety.hold()))])
        self.is_limp = not take_torque_off(follower)
        self.newest.mode = LoopMode.ENDED
        self.watchdog.stop()

    def _loop(self) -> LoopEnd:
        """Run the loop; after a trip, wait for the operator and go on."""
        w, total = self.wiring, LoopEnd(EndReason.TIME, 0, 0, 0.0)
        while True:
            end = run_loop(
                self._gate,
                w.leader if w.until_done else _Tireless(w.leader),
                w.safety,
                w.clock,
                w.rates,
                max_s=w.max_s - total.duration_s,
                cameras=w.cameras,
                tracker=w.tracker,
                sinks=(self,),
                on_frame=(self._frame,),
                stop=self._must_stop,
                resume=Resume(total.ticks, self.newest.origin_s),
            )
            total = _sum(total, end)
            if end.reason is not EndReason.TRIPPED or not self._cleared():
                return total

    def _must_stop(self) -> bool:
        # A main thread that died, by an exception or an exit, stops the arm, too.
        return self.stopping or not threading.main_thread().is_alive()

    def tick(self, tick: Tick) -> None:
        """Take a turn of the loop: show it, and hand it to every sink."""
        self.watchdog.beat()
        self.newest.tick, self.newest.state = tick, tick.state
        reasons = tick.command.reasons
        if reasons and reasons & SafetyReason.TRIPPED:
            self.watchdog.estopped(False)
        for sink in self.sinks:
            sink.tick(tick)

    def _frame(self, observation: Observation) -> None:
        for callback in self.on_frame:
            callback(observation)

    def _cleared(self) -> bool:
        """Wait for the operator, with torque off; False where the loop is to stop instead."""
        self.watchdog.rest()
        self.newest.mode = LoopMode.TRIPPED
        follower, limp_by_s = self.wiring.follower, 0.0
        while not self._must_stop():
            if self.clearing and self._engage():
                return True
            with CleanupStep():  # an arm that doesn't answer stays as it was last seen
                self.newest.state = follower.read()
            if time.monotonic() >= limp_by_s:
                failed = run_steps([("torque off", follower.torque_off)])
                limp_by_s = time.monotonic() + RETRY_S if failed else math.inf
                if self.newest.unconfirmed and not failed:
                    log.warning("Torque is off now: every servo has confirmed it.")
                self.newest.unconfirmed = "".join(failed).partition(": ")[2]
            time.sleep(POLL_S)
        return False

    def _engage(self) -> bool:
        """Put torque on where the arm stands; where that fails, it stays tripped and limp."""
        self.clearing = False
        self.watchdog.rest()
        w, estops = self.wiring, self.estops
        faults = run_steps([("clear", w.leader.reset)])
        if not faults:
            faults = run_steps([("clear", w.follower.torque_on)])
        if faults:
            self.newest.faults += faults + take_torque_off(w.follower)
            return False
        self.newest.unconfirmed = ""
        w.safety.clear()
        if self.estops != estops:  # pressed meanwhile: it counts
            w.safety.estop()
        self.newest.mode = LoopMode.RUNNING
        return True

    def _hangs(self) -> None:
        """Take torque off from outside; called by the watchdog."""
        self._gate.shut = True
        faults = take_torque_off(self.wiring.follower)
        self.newest.faults += ("the control loop hung", *faults)
        self.is_limp = not faults
        log.error("the control loop hung: torque was taken off from outside")


class _Gate:
    """A follower that takes no goals any more once it is shut."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.shut = False
        self.name, self.robot_type, self.units = follower.name, follower.robot_type, follower.units
        self.joint_names, self.joint_limits_rad = follower.joint_names, follower.joint_limits_rad
        self.read, self.torque_on, self.torque_off = (
            follower.read,
            follower.torque_on,
            follower.torque_off,
        )
        self.to_units, self.from_units = follower.to_units, follower.from_units
        self.close = follower.close

    def send(self, command: SafeCommand) -> None:
        """Hand a command on.

        Raises:
            DeviceError: the loop hung, and torque was taken off: a goal would put it on again.
        """
        if self.shut:
            raise DeviceError(
                "A device kept the control loop waiting, so torque was taken off. Check cables and "
                "cameras, then start again."
            )
        self._follower.send(command)


class _Tireless:
    """A leader that is never done: between two takes the arm is driven on."""

    def __init__(self, leader: Leader) -> None:
        self.reset, self.read = leader.reset, leader.read

    def done(self) -> bool:
        """Say no."""
        return False


def _sum(one: LoopEnd, two: LoopEnd) -> LoopEnd:
    """Return how two stretches of a loop ended, seen as one."""
    return LoopEnd(
        two.reason,
        one.ticks + two.ticks,
        one.frames + two.frames,
        one.duration_s + two.duration_s,
        one.missed + two.missed,
        one.tripped | two.tripped,
        (*one.faults, *two.faults),
    )
