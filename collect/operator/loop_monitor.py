"""What a window is told by the control loop: pictures, rate, trips. A subscriber like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.screen_content import Loop
from gaploop.core.station import SafetyLimits
from gaploop.core.types import Image, SafetyReason, Tick
from gaploop.teleop.advice import say_reasons, say_to_do
from gaploop.teleop.control import LoopMode, Snapshot
from gaploop.teleop.statistics import LoopStatistics


class LoopMonitor:
    """Keeps the newest pictures and counts turns. One thread calls `tick`, any other may read.

    Args:
        joints: the follower's.
        period_s: of the control loop [s].
        fps: policy frames per second [Hz].
        limits: the safety filter's.
    """

    def __init__(
        self, joints: tuple[str, ...], period_s: float, fps: float, limits: SafetyLimits
    ) -> None:
        self.pictures: Mapping[str, Image] = MappingProxyType({})
        self._statistics = LoopStatistics(joints, period_s, limits)
        self._fps = fps
        self._writer: JournalWriter | None = None

    def watch(self, writer: JournalWriter | None) -> None:
        """Count what the encoder of this take drops."""
        self._writer = writer

    def tick(self, tick: Tick) -> None:
        """Take note of a turn."""
        self._statistics.tick(tick)
        if tick.frames:
            self.pictures = {name: frame.image for name, frame in tick.frames.items()}

    def loop(self, tripped: SafetyReason, snapshot: Snapshot | None = None) -> Loop:
        """Return how the loop does.

        Args:
            tripped: why the safety filter has tripped, as it stands now.
            snapshot: of the thread that the loop runs in, where it has one.
        """
        rate_hz, _, _ = self._statistics.now()
        figures = self._statistics.figures()
        writer, trips = self._writer, figures.trips
        joints = trips[-1].joints if trips else ()
        return Loop(
            rate_hz,
            self._fps,
            figures.missed,
            dict(writer.dropped) if writer is not None else {},
            len(trips),
            say_trip(tripped, joints) if tripped else "",
            snapshot is not None and snapshot.mode is LoopMode.TRIPPED,
            faults=snapshot.faults if snapshot is not None else (),
            behind_s=writer.behind_s() if writer is not None else 0.0,
        )


def say_trip(reason: SafetyReason, joints: tuple[str, ...]) -> str:
    """Say why the filter tripped, who shows it, and what to do."""
    reason &= ~SafetyReason.TRIPPED
    who = f" ({', '.join(joints)})" if 0 < len(joints) < 6 else ""
    return f"{say_reasons(reason)}{who}. To go on: {say_to_do(reason) or 'see to it'}."


type Pictures = Callable[[], Mapping[str, Image]]
