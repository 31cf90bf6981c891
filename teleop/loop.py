"""The control loop: one for real arms, the embedded cell and tests; only the clock differs.

One turn: read the follower; on policy frames take the cameras' pictures, track the scene and
hand the observation on; ask the leader; filter; send; tell the sinks; sleep until an absolute
deadline. How late each turn began, how old the leader's sample was when its goals went out and
how many turns were skipped are data on its tick. Sinks can't stop the loop: one that raises is
dropped and named in `LoopEnd.faults`.

Once a trip has been held, and on any exception, the loop takes torque off before anything else.
`teleop.control` runs it in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, TakeSink
from gaploop.core.types import FloatArray, SafetyReason, Tick
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.stopping import CleanupStep, run_steps
from gaploop.teleop.turn import OnFrame, Scene, Turn, TurnTiming

__all__ = ["CONTROL_HZ", "EndReason", "LoopEnd", "OnFrame", "Rates", "run_loop"]

log = logging.getLogger(__name__)

CONTROL_HZ: Final = 200.0
"""Turns a second of a loop that drives real arms [Hz]."""
LIMP_WITHIN_S: Final = 0.08
"""How long a servo that doesn't confirm torque off is told again [s]: with the default hold of
0.1 s torque is off 0.2 s after a trip."""
START_READS: Final = 5
"""A loop starts from a measured position; a lossy bus may need this many reads to give one."""


class EndReason(StrEnum):
    """Why a loop ended."""

    DONE = "done"
    """The leader had nothing more to ask for."""
    STOPPED = "stopped"
    """The caller's `stop` said so."""
    TIME = "time"
    """`max_s` passed."""
    TRIPPED = "tripped"
    """The safety filter tripped and the hold is over: torque was taken off."""


@dataclass(frozen=True)
class LoopEnd:
    """How a loop ended.

    Attributes:
        reason: why.
        ticks: turns made.
        frames: policy frames among them.
        duration_s: from the start to the last turn's deadline [s].
        missed: turns skipped because the loop ran late by more than a period.
        tripped: what tripped the safety filter, if anything did.
        faults: a line for every sink that was dropped, or servo that kept its torque.
        lost: subscriber to turns that it missed, because it was too slow for its mailbox.
    """

    reason: EndReason
    ticks: int
    frames: int
    duration_s: float
    missed: int = 0
    tripped: SafetyReason = SafetyReason.NONE
    faults: tuple[str, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """Control and policy rate, which must divide each other.

    Attributes:
        control_hz: turns of the loop [Hz].
        fps: policy frames [Hz].
    """

    control_hz: float
    fps: float

    def __post_init__(self) -> None:
        ratio = self.control_hz / self.fps if self.fps > 0 else 0.0
        if not 1 <= ratio < math.inf or abs(ratio - round(ratio)) > 1e-9:
            raise UnusableInputError(
                f"The control rate ({self.control_hz:g} Hz) must be a whole multiple of the frame "
                f"rate ({self.fps:g} fps). Change --dataset.fps."
            )

    @classmethod
    def near(cls, fps: float, control_hz: float = CONTROL_HZ) -> Rates:
        """Return the rates for `fps` [Hz] whose control rate is nearest to `control_hz` [Hz].

        Raises:
            UnusableInputError: a rate that isn't above 0.
        """
        if not (0 < fps < math.inf and 0 < control_hz < math.inf):
            raise UnusableInputError(
                f"Frame and control rate must be above 0 Hz, got {fps:g} and {control_hz:g}."
            )
        return cls(fps * max(1, round(control_hz / fps)), fps)

    @property
    def period_s(self) -> float:
        """Time between two turns [s]."""
        return 1.0 / self.control_hz

    @property
    def every(self) -> int:
        """Turns per policy frame."""
        return round(self.control_hz / self.fps)


@dataclass(frozen=True)
class Resume:
    """Where a loop goes on that was ended by a trip.

    Attributes:
        index: turns made before.
        origin_s: when the first of them began, on the loop's clock [s].
    """

    index: int
    origin_s: float


class _Sinks:
    """Tells every sink; drops the one that raises."""

    def __init__(self, sinks: Iterable[TakeSink]) -> None:
        self._sinks = list(sinks)
        self.faults: list[str] = []

    def tick(self, tick: Tick) -> None:
        for sink in tuple(self._sinks):
            with CleanupStep() as attempt:
                sink.tick(tick)
            if attempt.error is not None:
                self._sinks.remove(sink)
                name = type(sink).__name__
                self.faults.append(f"{name} at {tick.t_s:.3f} s: {attempt.error!r}")
                log.warning("dropped a sink: %s", self.faults[-1])


def run_loop(
    follower: Follower,
    leader: Leader,
    safety: SafetyFilter,
    clock: Clock,
    rates: Rates,
    *,
    max_s: float,
    cameras: Sequence[CameraSource] = (),
    tracker: SceneTracker | None = None,
    sinks: Iterable[TakeSink] = (),
    on_frame: Iterable[OnFrame] = (),
    stop: Callable[[], bool] = lambda: False,
    resume: Resume | None = None,
) -> LoopEnd:
    """Run until the leader is done, `stop` says so, `max_s` [s] pass or a trip's hold is over.

    The caller resets leader and scene beforehand and handles signals through `stop`. The safety
    filter starts from the measured position. After a trip or an exception torque is off when
    this returns; otherwise the arm holds, and the caller takes torque off. With `resume`, turns
    are counted and timed on from there.

    Raises:
        DeviceError: the follower, the leader or a camera doesn't answer.
    """
    with contextlib.ExitStack() as on_exception:
        on_exception.callback(take_torque_off, follower)
        safety.reset(_measured(follower))
        turn = Turn(follower, leader, safety, clock, Scene(cameras, tracker), tuple(on_frame))
        run = _Run(turn, _Sinks(sinks), rates, resume)
        slots = max_s / rates.period_s - 1e-9
        end = run.until(math.ceil(slots) if slots < math.inf else math.inf, stop)
        on_exception.pop_all()
    return end


def take_torque_off(follower: Follower) -> tuple[str, ...]:
    """Take torque off; return what failed, so that it doesn't hide why torque had to go off.

    On a lossy bus a servo may miss it; it is told again while that can still come in time.
    """
    give_up_s = time.monotonic() + LIMP_WITHIN_S
    while faults := run_steps([("torque off", follower.torque_off)]):
        if time.monotonic() >= give_up_s:
            break
    for fault in faults:
        log.error("%s", fault)
    return faults


def _measured(follower: Follower) -> FloatArray:
    """Return joint positions [rad], shape (n_joints,), with a few tries at finite ones."""
    for _ in range(START_READS - 1):
        q_rad = follower.read().position_rad
        if np.isfinite(q_rad).all():
            return q_rad
    return follower.read().position_rad


class _Run:
    """The loop's count of turns, from its start to its end."""

    def __init__(self, turn: Turn, sinks: _Sinks, rates: Rates, resume: Resume | None) -> None:
        self._turn, self._sinks, self._rates = turn, sinks, rates
        self._start_s = turn.clock.now_s()
        self._since = resume or Resume(0, self._start_s)
        self._slot = self._index = self._frames = self._next_frame = 0
        self._missed = self._overruns = 0
        self._last_s = math.nan

    def until(self, slots: float, stop: Callable[[], bool]) -> LoopEnd:
        """Take turns until `slots` deadlines have passed or something ends them."""
        turn, reason = self._turn, EndReason.TIME
        while self._slot < slots:
            limp = self._one()
            if limp is not None:
                return self._ended(EndReason.TRIPPED, limp)
            turn.clock.sleep_until(self._deadline_s())
            if stop():
                reason = EndReason.STOPPED
                break
            if turn.leader.done():
                reason = EndReason.DONE
                break
            self._skip_what_is_late()
        return self._ended(reason, ())

    def _deadline_s(self) -> float:
        return self._start_s + self._slot * self._rates.period_s

    def _one(self) -> tuple[str, ...] | None:
        """Take a turn; return what failed in taking torque off where that was due."""
        clock, every = self._turn.clock, self._rates.every
        now_s = clock.now_s()
        is_frame = self._slot >= self._next_frame
        if is_frame:
            self._next_frame = self._slot - self._slot % every + every
            self._frames += 1
        timing = TurnTiming(
            self._since.index + self._index,
            now_s - self._since.origin_s,
            now_s - self._last_s,
            now_s - self._deadline_s(),
            self._overruns,
            is_frame,
        )
        tick = self._turn.take(timing)
        limp = take_torque_off(self._turn.follower) if self._turn.safety.torque_off_due else None
        self._sinks.tick(tick)
        self._last_s, self._index, self._slot = now_s, self._index + 1, self._slot + 1
        return limp

    def _skip_what_is_late(self) -> None:
        """Skip deadlines that have passed: a burst of turns would move the arm too fast."""
        behind_s = self._turn.clock.now_s() - self._start_s
        late = math.floor(behind_s / self._rates.period_s - self._slot + 1e-9)
        self._overruns = max(late, 0)
        self._slot += self._overruns
        self._missed += self._overruns

    def _ended(self, reason: EndReason, limp: tuple[str, ...]) -> LoopEnd:
        return LoopEnd(
            reason,
            self._index,
            self._frames,
            self._slot * self._rates.period_s,
            self._missed,
            self._turn.safety.tripped,
            (*self._sinks.faults, *limp),
        )
