"""The control loop: one for real arms, the embedded cell and tests; only the clock differs.

One turn: read the follower; on policy frames take the cameras' pictures, track the scene and
hand the observation on; ask the leader; filter; send; yield the tick; sleep until an absolute
deadline. How late each turn began, how old the leader's sample was when its goals went out and
how many turns were skipped are data on its tick. Who records or counts turns asks for them: nothing
here calls a subscriber.

A trip that asks for it lets the arm go before its tick is yielded. In all other cases, errors
included, the arm holds when the loop has ended, and the caller brings it down (`teleop.descent`).
`teleop.control` does that, in a thread of its own. `LoopStatistics` counts what a running loop did:
a subscriber that costs microseconds a turn.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.clock import Clock
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import (
    NO_REPLY,
    CameraFrame,
    FloatArray,
    Image,
    Observation,
    SafetyReason,
    Tick,
)
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, SensorSource
from gaploop.core.station import SafetyLimits
from gaploop.teleop.descent import let_go
from gaploop.teleop.safety import Response, SafetyFilter
from gaploop.teleop.sensors import reading
from gaploop.teleop.trips import errors_of

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
    """

    reason: EndReason
    ticks: int
    frames: int
    duration_s: float
    missed: int = 0
    tripped: SafetyReason = SafetyReason.NONE
    faults: tuple[str, ...] = ()


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
    observed: Mapping[str, SensorSource] = MappingProxyType({}),
    on_frame: Iterable[OnFrame] = (),
    stop: Callable[[], bool] = lambda: False,
    until_done: bool = True,
    resume: Resume | None = None,
) -> Turns:
    """Run until the leader is done, it is to end, `max_s` [s] pass or a trip's hold is over.

    Without `until_done` the leader never is: between two takes the arm is driven on. It is to end
    where `stop` says so after a turn, or True was sent for it.

    The sensors `observed` are read on policy frames; one that fails ends the loop as a camera does.
    The caller resets leader and scene beforehand and handles signals through `stop`. The safety
    filter starts from the measured position. After a trip whose `response` is to let go, the arm is
    let go of when this ends; otherwise, and on an exception, it holds, and the caller brings it
    down. With `resume`, turns are counted and timed on from there.

    Raises:
        DeviceError: the follower, the leader, a camera or an observed sensor doesn't answer.
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
            forces = {name: reading(sensor) for name, sensor in observed.items()}
            if callbacks:
                images = {
                    name: picture.image
                    for name, picture in pictures.items()
                    if picture.image.dtype == np.uint8  # policies are fed no depth
                }
                units = follower.to_units(state.position_rad)
                observation = Observation(units, tracked, images, forces)
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
        if until_done and leader.done():
            reason = EndReason.DONE
            break
        # Deadlines that have passed are skipped: a burst of turns would move the arm too fast.
        overruns = max(math.floor((clock.now_s() - start_s) / period_s - slot + 1e-9), 0)
        slot += overruns
        missed += overruns
    return LoopEnd(reason, index, frames, slot * period_s, missed, safety.tripped, limp)


RECENT_TURNS: Final = 1000
"""What "now" means for the rate and the percentiles on the screen: five seconds at 200 Hz."""

_GROWTH: Final = math.log(1.01)  # a bin of the histogram is 1 % wide
_SMALLEST_S: Final = 1e-7
_BINS: Final = 2048  # 1e-7 s × 1.01^2048 = 70 s


class Histogram:
    """Counts of durations in bins 1 % wide: percentiles of any number of turns in 16 KB."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * _BINS))
        self.worst_s = math.nan

    def add(self, duration_s: float) -> None:
        """Count one duration [s], a negative one by its size; what isn't finite is passed over."""
        size_s = abs(duration_s)
        if not math.isfinite(size_s):
            return
        place = int(math.log(size_s / _SMALLEST_S) / _GROWTH) if size_s > _SMALLEST_S else 0
        self._counts[min(place, _BINS - 1)] += 1
        if not size_s <= self.worst_s:
            self.worst_s = size_s

    def quantile_s(self, share: float) -> float:
        """Return the duration [s] that `share` of those counted don't exceed; NaN without any."""
        counts = np.cumsum(np.frombuffer(self._counts, dtype=np.int64))
        if not (total := int(counts[-1])):
            return math.nan
        place = int(np.searchsorted(counts, share * total))
        return float(min(_SMALLEST_S * math.exp(_GROWTH * (place + 1)), self.worst_s))


@dataclass(frozen=True)
class DurationSpread:
    """Percentiles of a duration [s]; NaN where nothing was measured."""

    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class Trip:
    """The safety filter tripped: when since the start [s], why, and which joints show it.

    `errors` are the status bits of all servos then.
    """

    t_s: float
    reason: SafetyReason
    joints: tuple[str, ...]
    errors: int = 0


@dataclass(frozen=True)
class Figures:
    """How the loop has run.

    Attributes:
        missed: turns skipped because the loop ran late.
        duration_s: from the first turn to the last, pauses after a trip left out [s].
        period_error: how far the time between two turns was from what was asked.
        latency: from the leader's sample to the goals handed over.
        changes: reason to turns in which the safety filter changed the command for it.
        silent: joint to turns in which its servo didn't answer.
    """

    turns: int
    missed: int
    duration_s: float
    rate_hz: float
    period_error: DurationSpread
    latency: DurationSpread
    changes: dict[str, int] = field(default_factory=dict)
    silent: dict[str, int] = field(default_factory=dict)
    trips: tuple[Trip, ...] = ()


class LoopStatistics:
    """Subscribes to a loop. One thread calls `tick`; any other may read at the same time."""

    def __init__(self, joint_names: tuple[str, ...], period_s: float, limits: SafetyLimits) -> None:
        self._joints, self._period_s, self._limits = joint_names, period_s, limits
        self._period_error, self._latency = Histogram(), Histogram()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_TURNS)
        self._changes: dict[SafetyReason, int] = {}
        self._silent = np.zeros(len(joint_names), dtype=np.int64)
        self._trips: list[Trip] = []
        self._tripped = SafetyReason.NONE
        self._turns = self._missed = 0
        self._duration_s = 0.0
        self.latest: Tick | None = None
        self.pictures: Mapping[str, Image] = {}
        """Camera to its newest picture; none of depth."""

    def tick(self, tick: Tick) -> None:
        """Count one turn."""
        self._turns += 1
        self._missed += tick.overruns
        if tick.period_s == tick.period_s:  # the first turn of a run has none
            self._period_error.add(tick.period_s - self._period_s)
            self._recent.append((tick.period_s, tick.latency_s))
            self._duration_s += tick.period_s
        self._latency.add(tick.latency_s)
        reasons = tick.command.reasons
        if reasons or self._tripped:
            for reason in reasons:
                self._changes[reason] = self._changes.get(reason, 0) + 1
            if not reasons & SafetyReason.TRIPPED:
                self._tripped = SafetyReason.NONE
            elif not self._tripped:
                self._tripped = reasons & ~SafetyReason.TRIPPED
                errors = errors_of(tick.state.status.tolist())
                self._trips.append(Trip(tick.t_s, self._tripped, self._blamed(tick), errors))
        status = tick.state.status
        if any(status.tolist()):
            self._silent += (status & NO_REPLY) != 0
        self.latest = tick
        if tick.frames:
            self.pictures = {n: f.image for n, f in tick.frames.items() if f.image.ndim == 3}

    def _blamed(self, tick: Tick) -> tuple[str, ...]:
        """Return the joints that show why the filter tripped, as far as that can be told."""
        cause, state, limits = self._tripped, tick.state, self._limits
        silent = (state.status & NO_REPLY) != 0
        guilty = np.zeros(len(self._joints), dtype=np.bool_)
        if cause & SafetyReason.LOST_SERVO:
            guilty |= silent
        if cause & SafetyReason.HARDWARE_ERROR:
            guilty |= (state.status & ~NO_REPLY) != 0
        if cause & SafetyReason.OVER_TEMPERATURE:
            guilty |= state.temperature_c > limits.temperature_c
        if cause & SafetyReason.STALL:
            guilty |= np.abs(state.current_a) > limits.stall_current_a
        behind: NDArray[np.bool_] = np.zeros_like(guilty)
        if cause & SafetyReason.NOT_FOLLOWING:
            behind = np.abs(tick.command.sent_rad - state.position_rad) > limits.following_rad
        named = [k for which in (guilty, behind & ~guilty) for k in np.flatnonzero(which)]
        return tuple(self._joints[k] for k in named)

    def now(self) -> tuple[float, DurationSpread, DurationSpread]:
        """Return rate [Hz], period error and latency of the last few seconds."""
        recent = np.array(list(self._recent)).reshape(-1, 2)
        mean_s = float(recent[:, 0].mean()) if len(recent) else math.nan
        rate_hz = 1.0 / mean_s if mean_s > 0 else math.nan
        return rate_hz, _spread(recent[:, 0] - self._period_s), _spread(recent[:, 1])

    def figures(self) -> Figures:
        """Return what was counted since the start."""
        rate_hz = (self._turns - 1) / self._duration_s if self._duration_s > 0 else math.nan
        silent = zip(self._joints, self._silent.tolist(), strict=True)
        return Figures(
            self._turns,
            self._missed,
            self._duration_s,
            rate_hz,
            _percentiles(self._period_error),
            _percentiles(self._latency),
            {str(r.name).lower(): n for r, n in list(self._changes.items())},
            {joint: count for joint, count in silent if count},
            tuple(self._trips),
        )


def _percentiles(histogram: Histogram) -> DurationSpread:
    p50_s, p99_s = histogram.quantile_s(0.5), histogram.quantile_s(0.99)
    return DurationSpread(p50_s, p99_s, histogram.worst_s)


def _spread(values_s: NDArray[np.float64]) -> DurationSpread:
    sizes_s = np.abs(values_s[np.isfinite(values_s)])
    if not len(sizes_s):
        return DurationSpread(math.nan, math.nan, math.nan)
    p50_s, p99_s = np.quantile(sizes_s, (0.5, 0.99))
    return DurationSpread(float(p50_s), float(p99_s), float(sizes_s.max()))
