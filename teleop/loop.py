"""The control loop: one for real arms, the embedded cell and tests; only the clock differs.

One turn: read the follower; on policy frames take the cameras' pictures, track the scene and
hand the observation on; ask the leader; filter; send; yield the tick; sleep until an absolute
deadline. How late each turn began, how old the leader's sample was when its goals went out and
how many turns were skipped are data on its tick. Who records or counts turns asks for them: nothing
here calls a subscriber.

A trip that asks for it lets the arm go before its tick is yielded. In all other cases, errors
included, the arm holds when the loop has ended, and the caller brings it down (`teleop.descent`).
`teleop.control` does that, in a thread of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import CameraFrame, FloatArray, Observation, SafetyReason, Tick
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker
from gaploop.teleop.descent import let_go
from gaploop.teleop.safety import Response, SafetyFilter

type OnFrame = Callable[[Observation], None]
"""Called in the loop's own thread with every policy frame's observation."""

CONTROL_HZ: Final = 200.0
"""Turns a second of a loop that drives real arms [Hz]."""
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
    """The safety filter tripped and the hold is over."""


@dataclass(frozen=True)
class LoopEnd:
    """How a loop ended.

    Attributes:
        duration_s: from the start to the last turn's deadline [s].
        missed: turns skipped because the loop ran late by more than a period.
        faults: a line for every subscriber that was dropped, or servo that kept its torque.
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
    """Control and policy rate [Hz], which must divide each other."""

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
        """Return rates for `fps` [Hz] above 0, the control rate nearest to `control_hz` [Hz]."""
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
    """Where a loop goes on after a trip.

    Attributes:
        index: turns made before.
        origin_s: when the first of them began [s].
        from_rad: what the arm's goals are, where it held them meanwhile [rad].
    """

    index: int
    origin_s: float
    from_rad: FloatArray | None = None


type Turns = Generator[Tick | None, bool | None, LoopEnd]
"""Turns of a loop, one after another; None where none has come yet. What is sent says whether the
loop, or the stretch of it, is to end after this turn; the end is what is returned."""


def run_turns(
    follower: Follower,
    leader: Leader,
    safety: SafetyFilter,
    clock: Clock,
    rates: Rates,
    *,
    max_s: float,
    cameras: Sequence[CameraSource] = (),
    tracker: SceneTracker | None = None,
    on_frame: Iterable[OnFrame] = (),
    stop: Callable[[], bool] = lambda: False,
    resume: Resume | None = None,
) -> Turns:
    """Run until the leader is done, it is to end, `max_s` [s] pass or a trip's hold is over.

    It is to end where `stop` says so after a turn, or True was sent for it.

    The caller resets leader and scene beforehand and handles signals through `stop`. The safety
    filter starts from the measured position. After a trip whose `response` is to let go, the arm is
    let go of when this ends; otherwise, and on an exception, it holds, and the caller brings it
    down. With `resume`, turns are counted and timed on from there.

    Raises:
        DeviceError: the follower, the leader or a camera doesn't answer.
    """
    limp: tuple[str, ...] = ()
    reason, callbacks = EndReason.TIME, tuple(on_frame)
    tracked: FloatArray | None = None
    tracked_at_s = last_s = math.nan
    period_s, every = rates.period_s, rates.every
    slots = max_s / period_s - 1e-9
    slots = math.ceil(slots) if slots < math.inf else math.inf
    slot = index = frames = next_frame = missed = overruns = 0
    for _ in range(START_READS):
        q_rad = follower.read().position_rad
        if np.isfinite(q_rad).all():
            break
    safety.reset(q_rad if resume is None or resume.from_rad is None else resume.from_rad)
    if tracker is not None:
        tracker.reset()
    start_s = clock.now_s()
    since = resume or Resume(0, start_s)
    while slot < slots:
        now_s = clock.now_s()
        state = follower.read()
        pictures: Mapping[str, CameraFrame] = {}
        is_frame = slot >= next_frame
        if is_frame:
            next_frame = slot - slot % every + every
            frames += 1
            pictures = {camera.name: camera.frame() for camera in cameras}
            if tracker is not None and pictures:
                newest = pictures[cameras[0].name]
                if newest.t_capture_s != tracked_at_s:  # a picture is tracked once
                    tracked = tracker.observe(newest.image, newest.t_capture_s)
                    tracked_at_s = newest.t_capture_s
            if callbacks:
                images = {
                    name: picture.image
                    for name, picture in pictures.items()
                    if picture.image.dtype == np.uint8  # policies are fed no depth
                }
                units = follower.to_units(state.position_rad)
                observation = Observation(units, tracked, images)
                for callback in callbacks:
                    callback(observation)
        sample = leader.read(clock.now_s())
        command = safety.filter(sample, state, clock.now_s())
        follower.send(command)
        tick = Tick(
            since.index + index,
            now_s - since.origin_s,
            now_s - last_s,
            now_s - (start_s + slot * period_s),
            sample,
            command,
            state,
            pictures,
            tracked if is_frame else None,
            is_frame,
            clock.now_s() - sample.t_s,
            overruns,
        )
        trip_is_over = safety.hold_is_over
        if trip_is_over and safety.response is Response.LET_GO:
            limp = let_go(follower)  # first: whoever is told may take long
        is_over = yield tick
        last_s, index, slot = now_s, index + 1, slot + 1
        if trip_is_over:
            reason = EndReason.TRIPPED
            break
        clock.sleep_until(start_s + slot * period_s)
        if is_over or stop():
            reason = EndReason.STOPPED
            break
        if leader.done():
            reason = EndReason.DONE
            break
        # Deadlines that have passed are skipped: a burst of turns would move the arm too fast.
        overruns = max(math.floor((clock.now_s() - start_s) / period_s - slot + 1e-9), 0)
        slot += overruns
        missed += overruns
    return LoopEnd(reason, index, frames, slot * period_s, missed, safety.tripped, limp)
