"""The control loop: one for real arms, the embedded cell and tests; only the clock differs.

One turn: read the follower; on policy frames take the cameras' pictures, track the scene and
hand the observation on; ask the leader; filter; send; tell the sinks; sleep until an absolute
deadline. How late each turn began is data on its tick. Sinks can't stop the loop: one that
raises is dropped and named in `LoopEnd.faults`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gaploop.core.clock import Clock
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, TakeSink
from gaploop.core.types import (
    CameraFrame,
    FloatArray,
    FollowerState,
    Observation,
    SafetyReason,
    Tick,
)
from gaploop.teleop.safety import SafetyFilter

type OnFrame = Callable[[Observation], None]

log = logging.getLogger(__name__)

SINK_FAULTS: Final = (
    GaploopError,
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a sink may raise without stopping the loop; an interrupt or exit still does."""


class EndReason(StrEnum):
    """Why a loop ended."""

    DONE = "done"
    """The leader had nothing more to ask for."""
    STOPPED = "stopped"
    """The caller's `stop` said so."""
    TIME = "time"
    """`max_s` passed."""
    TRIPPED = "tripped"
    """The safety filter tripped and the hold is over: torque off is due."""


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
        faults: a line for every sink that was dropped.
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
    """Control and policy rate, which must divide each other.

    Attributes:
        control_hz: turns of the loop [Hz].
        fps: policy frames [Hz].
    """

    control_hz: float
    fps: float

    def __post_init__(self) -> None:
        ratio = self.control_hz / self.fps if self.fps > 0 else 0.0
        if ratio < 1 or abs(ratio - round(ratio)) > 1e-9:
            raise UnusableInputError(
                f"The control rate ({self.control_hz:g} Hz) must be a whole multiple of the frame "
                f"rate ({self.fps:g} fps). Change --dataset.fps."
            )

    @property
    def period_s(self) -> float:
        """Time between two turns [s]."""
        return 1.0 / self.control_hz

    @property
    def every(self) -> int:
        """Turns per policy frame."""
        return round(self.control_hz / self.fps)


class _Scene:
    """Takes the pictures of one policy frame and tracks the scene in the first camera's."""

    def __init__(self, cameras: Sequence[CameraSource], tracker: SceneTracker | None) -> None:
        self._cameras, self._tracker = cameras, tracker
        self._tracked_at_s = math.nan
        self._tracked: FloatArray | None = None
        if tracker is not None:
            tracker.reset()

    def look(self) -> tuple[dict[str, CameraFrame], FloatArray | None]:
        pictures = {camera.name: camera.frame() for camera in self._cameras}
        if self._tracker is not None and pictures:
            newest = pictures[self._cameras[0].name]
            if newest.t_capture_s != self._tracked_at_s:  # a picture is tracked once
                self._tracked = self._tracker.observe(newest.image, newest.t_capture_s)
                self._tracked_at_s = newest.t_capture_s
        return pictures, self._tracked


class _Sinks:
    """Tells every sink; drops the one that raises."""

    def __init__(self, sinks: Iterable[TakeSink]) -> None:
        self._sinks = list(sinks)
        self.faults: list[str] = []

    def tick(self, tick: Tick) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.tick(tick)
            except SINK_FAULTS as error:
                self._sinks.remove(sink)
                self.faults.append(f"{type(sink).__name__} at {tick.t_s:.3f} s: {error!r}")
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
) -> LoopEnd:
    """Run until the leader is done, `stop` says so, `max_s` [s] pass or a trip's hold is over.

    The caller resets leader and scene beforehand, handles signals through `stop`, and takes
    torque off afterwards. The safety filter starts from the measured position.

    Raises:
        DeviceError: the follower or a camera doesn't answer.
    """
    safety.reset(follower.read().position_rad)
    turn = _Turn(follower, leader, safety, clock, _Scene(cameras, tracker), tuple(on_frame))
    told, period_s, every = _Sinks(sinks), rates.period_s, rates.every
    start_s = clock.now_s()
    turns = math.ceil(max_s / period_s - 1e-9)
    slot = index = frames = next_frame = missed = 0
    last_s, reason = math.nan, EndReason.TIME
    while slot < turns:
        now_s = clock.now_s()
        is_frame = slot >= next_frame
        if is_frame:
            next_frame, frames = slot - slot % every + every, frames + 1
        deadline_s = start_s + slot * period_s
        told.tick(turn.take(index, now_s, start_s, now_s - last_s, now_s - deadline_s, is_frame))
        last_s, index, slot = now_s, index + 1, slot + 1
        clock.sleep_until(start_s + slot * period_s)
        ended = _ended(leader, safety, stop)
        if ended is not None:
            reason = ended
            break
        late = math.floor((clock.now_s() - start_s) / period_s - slot + 1e-9)
        if late > 0:  # catching up in a burst would move the arm faster than its limit
            slot, missed = slot + late, missed + late
    return LoopEnd(
        reason, index, frames, slot * period_s, missed, safety.tripped, tuple(told.faults)
    )


@dataclass(frozen=True)
class _Turn:
    """What one turn of the loop needs."""

    follower: Follower
    leader: Leader
    safety: SafetyFilter
    clock: Clock
    scene: _Scene
    on_frame: tuple[OnFrame, ...]

    def take(
        self,
        index: int,
        now_s: float,
        start_s: float,
        period_s: float,
        lateness_s: float,
        is_frame: bool,
    ) -> Tick:
        state = self.follower.read()
        pictures: Mapping[str, CameraFrame] = {}
        tracked: FloatArray | None = None
        if is_frame:
            pictures, tracked = self.scene.look()
            if self.on_frame:
                self._hand_on(state, pictures, tracked)
        sample = self.leader.read(self.clock.now_s())
        command = self.safety.filter(sample, state, self.clock.now_s())
        self.follower.send(command)
        return Tick(
            index,
            now_s - start_s,
            period_s,
            lateness_s,
            sample,
            command,
            state,
            pictures,
            tracked,
            is_frame,
        )

    def _hand_on(
        self,
        state: FollowerState,
        pictures: Mapping[str, CameraFrame],
        tracked: FloatArray | None,
    ) -> None:
        observation = Observation(
            self.follower.to_units(state.position_rad),
            tracked,
            {name: picture.image for name, picture in pictures.items()},
        )
        for callback in self.on_frame:
            callback(observation)


def _ended(leader: Leader, safety: SafetyFilter, stop: Callable[[], bool]) -> EndReason | None:
    if stop():
        return EndReason.STOPPED
    if safety.torque_off_due:
        return EndReason.TRIPPED
    return EndReason.DONE if leader.done() else None
