"""Devices of a session: connected, driven, lost, connected anew and let go, by one way for all.

`teleoperate`, `record` and `rollout` drive through these: real or emulated arms, or the embedded
cell in real time. A lost device costs the stretch that was being driven and not the session.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.console import Safety
from gaploop.collect.operator.view import Loop
from gaploop.collect.rig import EmbeddedRig, Rig, scripted_leader
from gaploop.collect.take import STALE_CAMERA_S, stale_camera
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState, Image, SafetyReason, Tick
from gaploop.core.protocols import (
    CameraSource,
    CountedCamera,
    Follower,
    Leader,
    SceneTracker,
    SensorSource,
    TakeSink,
)
from gaploop.core.station import SafetyLimits, Station
from gaploop.core.vocabulary import Domain
from gaploop.sim.follower import CellFollower, PacedCellClock
from gaploop.teleop.advice import GONE, say_reasons, say_to_do
from gaploop.teleop.checks.cameras import MORE_PICTURES, too_slow
from gaploop.teleop.control import ControlThread, LoopMode, Snapshot
from gaploop.teleop.loop import LoopEnd, Rates
from gaploop.teleop.realtime import SWITCH_INTERVAL_S
from gaploop.teleop.safety import make_safety
from gaploop.teleop.statistics import LoopStatistics
from gaploop.teleop.stopping import CleanupStep, disconnect, one_line

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""A lost device is looked for this often [s]."""
LOOK_S: Final = 0.05
MISSED: Final = 2
"""An arm that was found and misses so many questions in a row, `RETRY_S` apart, has gone again."""
MANY: Final = 6
"""More joints than a servo or two: the whole arm is meant."""

type SharedDriver = Callable[[Follower, Rates, Callable[[], FloatArray], Leader | None], Leader]
"""Returns who drives, such as a policy that a person can take over from: given the arm, the loop's
rates, where the arm was sent last [rad], and who leads it by hand."""


class SessionDevices(ABC):
    """Who and what takes part in a session."""

    window: Any = None
    """A leader that has a window, or None."""
    monitor: LoopMonitor | None = None
    """Watches the loop; None before the first take."""

    @abstractmethod
    def rig(self, conditions: Mapping[str, object]) -> Rig:
        """Return the rig with something set up, for takes."""

    @abstractmethod
    def leader(self, rig: Rig, seed: int) -> Leader:
        """Return who drives a rig."""

    @property
    @abstractmethod
    def safety(self) -> Safety:
        """What the operator can do to the arm, whatever the session does."""

    def start(self) -> None:  # noqa: B027 - nothing to start where takes drive
        """Begin to drive, once everything else is ready; raises DeviceError with torque off."""

    def end(self) -> None:  # noqa: B027
        """Stop driving, for good: the arm is lowered at once, while takes are still sealed."""

    def leave(self) -> bool:
        """Take a person's word to end; say whether an arm heeds it.

        Given again while the arm is lowered, the arm is let go of.
        """
        return False

    @property
    def moves(self) -> bool:
        """Whether an arm is still on its way down, or held."""
        return False

    def finish(self) -> None:  # noqa: B027
        """Torque off, disconnect; raises DeviceError."""

    def reconnect(
        self, lost: str, stop: Callable[[], bool], pause: Callable[[float], object] = time.sleep
    ) -> bool:
        """Let go of all devices, wait until they answer, and drive again; False where it is to end.

        Args:
            lost: what was lost, in words.
            stop: whether the session is to end meanwhile.
            pause: waits so long [s], and heeds keys meanwhile where nobody else does.

        Raises:
            LostError: what was found doesn't drive.
            DeviceError: nobody watches, and it doesn't answer in time.
        """
        del lost, stop, pause
        return False

    @abstractmethod
    def close(self) -> None:
        """Torque off, and everything disconnected; safe to call twice."""


class LoopMonitor:
    """Keeps the loop's newest pictures and counts its turns; one thread ticks, any may read."""

    def __init__(self, joints: tuple[str, ...], rates: Rates, limits: SafetyLimits) -> None:
        self.pictures: Mapping[str, Image] = MappingProxyType({})
        self.statistics = LoopStatistics(joints, rates.period_s, limits)
        self._fps = rates.fps
        self._writer: JournalWriter | None = None

    def watch(self, writer: JournalWriter | None) -> None:
        """Count what the encoder of this take drops."""
        self._writer = writer

    def tick(self, tick: Tick) -> None:
        """Take note of a turn."""
        self.statistics.tick(tick)
        if tick.frames:
            self.pictures = {n: f.image for n, f in tick.frames.items() if f.image.ndim == 3}

    def loop(self, tripped: SafetyReason, snapshot: Snapshot | None = None) -> Loop:
        """Return how the loop does, given why the filter has tripped, as it stands now."""
        rate_hz, _, _ = self.statistics.now()
        figures, writer = self.statistics.figures(), self._writer
        joints = figures.trips[-1].joints if figures.trips else ()
        return Loop(
            rate_hz,
            self._fps,
            figures.missed,
            dict(writer.dropped) if writer is not None else {},
            len(figures.trips),
            say_trip(tripped & ~SafetyReason.TRIPPED, joints) if tripped else "",
            snapshot is not None and snapshot.mode is LoopMode.TRIPPED,
            snapshot.doing if snapshot is not None else "",
            faults=snapshot.faults if snapshot is not None else (),
            behind_s=writer.behind_s() if writer is not None else 0.0,
        )


def say_trip(reason: SafetyReason, joints: tuple[str, ...], clear: str = "") -> str:
    """Return why the filter tripped, which joints show it, and what to do, in one line.

    How it is cleared then, such as `press c twice`, is left out where `clear` is empty.
    """
    then = f"; then {clear}" if clear else ""
    to_do = say_to_do(reason) or "see to it"
    return f"{say_reasons(reason)}{say_joints(joints)}. To go on: {to_do}{then}."


def say_joints(joints: tuple[str, ...]) -> str:
    """Return which joints show why the filter tripped, in brackets; "" where none does."""
    if not joints:
        return ""
    return " (the whole arm)" if len(joints) >= MANY else f" ({', '.join(joints)})"


def lost_after_trip(leader: Leader | None) -> SafetyReason:
    """Return after a trip by what the devices must be connected anew.

    A window's input that was old, such as a gamepad's that was pulled out, recovers by itself.
    """
    return GONE & ~SafetyReason.STALE_LEADER if hasattr(leader, "pump") else GONE


def subscribers(leader: Leader | None) -> tuple[TakeSink, ...]:
    """Return the leader, if it wants to know what became of what it asked for."""
    sink: Any = leader
    return (sink,) if callable(getattr(leader, "tick", None)) else ()


# -- arms ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arms:
    """Connected devices, torque off.

    Attributes:
        leader: who leads the arm by hand; None where only a policy drives.
        cameras: looked at on policy frames.
        clock: the time that all of them live on.
        tracker: reads the scene from the first camera's pictures, or None.
        window: the leader, where it is driven by a window's keys or a gamepad, else None.
    """

    follower: Follower
    leader: Leader | None
    cameras: tuple[CameraSource, ...]
    clock: Clock
    title: str = ""
    sensors: tuple[SensorSource, ...] = ()
    tracker: SceneTracker | None = None
    calibration: str = ""
    window: Any = None


class ArmDevices(SessionDevices):
    """The arms of a session, over all their connections.

    They are driven from `start` until `close`, between takes too, so that the operator can put
    things back with them; takes are spans of the running loop.

    Args:
        connect: connects all devices or none, or raises DeviceError; called again after a loss.
        shared: who drives, where that isn't just the leader.
        is_watched: somebody is there to clear a trip and to say that a found arm may move. Where
            nobody is, a trip of an emulated arm is cleared with the next take, as in the embedded
            cell; a real arm stays limp.
        patience_s: how long to wait for what was lost where nobody is [s].
        clear_hint: how the operator clears a trip, or says that a found arm may move.
        max_s: longest time of driving, over all connections, after which the loop ends, as it
            does where the leader is done [s]; None for a session of takes.
        on_connect: called with the devices of every connection before they are started.
    """

    def __init__(
        self,
        connect: Callable[[], Arms],
        station: Station,
        rates: Rates,
        *,
        shared: SharedDriver | None = None,
        is_watched: bool = True,
        patience_s: float = 60.0,
        clear_hint: str = "press c twice",
        max_s: float | None = None,
        on_connect: Callable[[ArmDevices], object] = lambda _devices: None,
    ) -> None:
        self.station, self.rates = station, rates
        self._connect, self._shared, self._on_connect = connect, shared, on_connect
        self._is_watched, self._patience_s = is_watched, patience_s
        self._clear_hint, self._max_s = clear_hint, max_s
        self._lost, self._is_found = "", False
        self._said_slow = set[str]()
        self._agreed = threading.Event()
        self._wire(connect())

    def _wire(self, arms: Arms) -> None:
        """Put safety filter and control loop between the devices of a new connection."""
        with ExitStack() as undo:
            undo.callback(disconnect, arms.follower, arms.leader, *arms.cameras, *arms.sensors)
            self.filter = make_safety(self.station, arms.follower, self.rates.period_s)
            drives = arms.leader
            if self._shared is not None:
                drives = self._shared(
                    arms.follower, self.rates, lambda: self.filter.sent_rad, arms.leader
                )
            assert drives is not None, "an arm is led by somebody or by a policy"
            if self.monitor is None:
                names = arms.follower.joint_names
                self.monitor = LoopMonitor(names, self.rates, self.filter.limits)
            self.arms, self.window, self.gone = arms, arms.window, lost_after_trip(arms.leader)
            self._drives, max_s = drives, math.inf
            if self._max_s is not None:
                driven_s = self.monitor.statistics.figures().duration_s
                max_s = max(self._max_s - driven_s, self.rates.period_s)
            self.control = ControlThread(
                arms.follower,
                drives,
                self.filter,
                self.rates,
                cameras=arms.cameras,
                tracker=arms.tracker,
                sinks=(self.monitor, *subscribers(arms.leader)),
                max_s=max_s,
                until_done=self._max_s is not None,
                clock=arms.clock,
            )
            self._on_connect(self)
            undo.pop_all()

    # -- what takes are made with -----------------------------------------------------------

    def rig(self, conditions: Mapping[str, object]) -> Rig:
        """Return the arms as a rig; closing it leaves them connected."""
        return Rig(
            follower=self.arms.follower,
            cameras=self.arms.cameras,
            sensors=self.arms.sensors,
            tracker=self.arms.tracker,
            clock=self.arms.clock,
            safety=self.filter,
            control_hz=self.rates.control_hz,
            fps=self.rates.fps,
            domain=self.station.domain,
            station=self.station,
            reset=lambda _seed: None,  # what lies where is for a person to put back
            judge=lambda: None,
            truth=lambda: None,
            close=lambda: None,
            conditions=dict(conditions),
            calibration=self.arms.calibration,
            loop=self._take_loop,
            blocker=self.blocker,
        )

    def leader(self, _rig: Rig, _seed: int) -> Leader:
        """Return who drives: the same in all takes of a connection."""
        return self._drives

    def _take_loop(self, *given: Any, **options: Any) -> LoopEnd:
        """Run a take's turns; LostError where the loop can't go on with its devices."""
        try:
            return self.control.take_loop(*given, **options)
        except (DeviceError, OSError) as error:
            raise LostError(one_line(error)) from error

    def blocker(self) -> str:
        """Return why no take can begin now, in one line; "" where one can.

        Raises:
            LostError: a device is gone, and has to be connected anew.
            TrippedError: the arm is limp after a trip, and nobody is there to clear it.
        """
        tripped = self.filter.tripped
        gone = tripped & self.gone
        if gone and not self.control.snapshot().doing:  # once the arm is down
            to_do = say_to_do(gone, getattr(self.arms.leader, "where", ""))
            raise LostError(f"Lost contact: {say_reasons(gone)}; {to_do}.")
        if not self.control.alive:
            try:
                self.control.finish()
            except (DeviceError, OSError) as error:
                raise LostError(one_line(error)) from error
            raise LostError("The control loop has ended.")
        is_alone = not self._is_watched and self.station.domain is not Domain.REAL
        if doing := self.control.snapshot().doing:
            if is_alone:
                self.control.clear()  # heeded where it is held
            return doing
        if tripped:
            words = f"The arm is limp after a safety trip ({say_reasons(tripped)})."
            if unconfirmed := self.control.snapshot().unconfirmed:
                words = f"The arm has tripped ({say_reasons(tripped)}). {unconfirmed}"
            if not self._is_watched and self.station.domain is Domain.REAL:
                raise TrippedError(
                    f"{words} Nobody is there to clear it: fix the cause, then run the same "
                    "command again."
                )
            if is_alone:
                self.control.clear()
            return words
        if self.control.snapshot().mode is not LoopMode.RUNNING:
            return "The arm's torque is coming on."
        for camera in self.arms.cameras:
            if self.arms.clock.now_s() - camera.frame().t_capture_s > STALE_CAMERA_S:
                return stale_camera(camera.name)
        for name, words in self._slow().items():
            if name not in self._said_slow:
                self._said_slow.add(name)
                log.warning("%s. %s", words, MORE_PICTURES)
        return ""

    def _slow(self) -> dict[str, str]:
        """Return what to say of cameras that give fewer pictures than they should, by name."""
        counted = [c for c in self.arms.cameras if isinstance(c, CountedCamera)]
        found = {c.name: too_slow(c, c.rate_hz(), self.rates.fps) for c in counted}
        return {name: words for name, words in found.items() if words}

    # -- what the operator does to them -----------------------------------------------------

    @property
    def safety(self) -> Safety:
        """E-stop, clearing, and how the loop does."""
        return Safety(self.estop, self.clear, self.loop, self.leave)

    def estop(self) -> None:
        """Stop the arm, at once."""
        self.control.estop()

    def clear(self) -> None:
        """Let the arm go on after a trip, or drive one that was found again."""
        self._agreed.set()
        self.control.clear()

    def loop(self) -> Loop:
        """Return how the control loop does, or what is lost."""
        if self._lost or self.monitor is None:
            return Loop(lost=self._lost, limp=True, found=self._is_found)
        snapshot = self.control.snapshot()
        loop = self.monitor.loop(snapshot.tripped, snapshot)
        return replace(loop, alignment=self.filter.alignment, slow=tuple(self._slow().values()))

    # -- connections ------------------------------------------------------------------------

    def start(self) -> None:
        """Put torque on and drive."""
        self.control.start()

    def reconnect(
        self, lost: str, stop: Callable[[], bool], pause: Callable[[float], object] = time.sleep
    ) -> bool:
        """Let go of everything, wait until all of it answers and may move, and drive."""
        if not stop():
            self._lost, self._is_found = lost, False
            log.warning("%s", lost)
        self._disconnect()
        while self._find(stop, pause):
            try:
                if not self._may_move(stop, pause):
                    return False
            except LostError as error:
                self._lost, self._is_found = str(error), False
                log.warning("%s", error)
                self._disconnect()
                continue
            try:
                self.start()
            except DeviceError as error:
                self._lost, self._is_found = str(error), False
                raise LostError(str(error)) from error
            self._lost, self._is_found = "", False
            return True
        return False

    def _find(self, stop: Callable[[], bool], pause: Callable[[float], object]) -> bool:
        """Wait until all devices answer; False where `stop` says so first."""
        began_s, tried_s, said = time.monotonic(), -math.inf, ""
        while not stop():
            if time.monotonic() - tried_s >= RETRY_S:
                try:
                    self._wire(self._connect())
                except DeviceError as error:
                    why = str(error)
                else:
                    return True
                tried_s = time.monotonic()
                if why != said:
                    self._lost = said = why
                    log.info("%s", why)
                if not self._is_watched and tried_s - began_s >= self._patience_s:
                    raise DeviceError(why)
            pause(LOOK_S)
        return False

    def _may_move(self, stop: Callable[[], bool], pause: Callable[[float], object]) -> bool:
        """Wait for the operator's word, where there is one; LostError where the arm goes again."""
        self._agreed.clear()
        ask = f" Make sure that the arm may move, then {self._clear_hint}."
        # It is connected limp, and every servo has confirmed that.
        is_back = "Everything answers again, and torque is off."
        self._lost = is_back + (ask if self._is_watched else "")
        self._is_found = self._is_watched
        log.info("%s", self._lost)
        asked_s, missed = time.monotonic(), 0
        while self._is_watched and not self._agreed.is_set():
            if stop():
                return False
            if time.monotonic() - asked_s >= RETRY_S:
                state = self.state()
                is_whole = state is not None and not (state.status & NO_REPLY).any()
                missed = 0 if is_whole else missed + 1
                asked_s = time.monotonic()
                if missed >= MISSED:
                    raise LostError(
                        "The arm answered again, but has stopped answering since."
                        " Check its cable and power, then run the same command again."
                    )
            pause(LOOK_S)
        return True

    def state(self) -> FollowerState | None:
        """Return what a limp arm reports now; None where it doesn't."""
        with CleanupStep():
            return self.arms.follower.read()
        return None

    def end(self) -> None:
        """End the loop; the arm is lowered."""
        self.control.stop()

    def leave(self) -> bool:
        """End the loop; again, let go of the arm; False where there is nothing to let go of."""
        if not self.moves:
            return False
        self.control.leave()
        return True

    @property
    def moves(self) -> bool:
        """Whether the arm is driven, lowered or held."""
        mode = self.control.snapshot().mode
        return self.control.alive and mode is not LoopMode.TRIPPED

    def finish(self) -> None:
        """Torque off, and everything disconnected."""
        self.control.finish()

    def _disconnect(self) -> tuple[str, ...]:
        return (*self.control.close(), *disconnect(*self.arms.sensors))

    def close(self) -> None:
        """Torque off, and everything disconnected; what fails in that is logged."""
        for fault in self._disconnect():
            log.error("%s", fault)


# -- the embedded cell --------------------------------------------------------------------------


class CellDevices(SessionDevices):
    """The embedded cell in real time. Its takes drive it: a rig for each set-up, nothing to lose.

    `leader_of` connects who leads by hand, or raises; the cell's expert does where it is None.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, object]], EmbeddedRig],
        *,
        shared: SharedDriver | None = None,
        leader_of: Callable[[Follower, Station, Clock], Leader] | None = None,
    ) -> None:
        self._make, self._shared = make, shared
        self._rig: EmbeddedRig | None = None
        self._person: Leader | None = None
        self._arm: CellFollower | None = None
        self._clock: PacedCellClock | None = None
        with ExitStack() as cleanup:
            cleanup.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)  # a leader's window must be heard in time
            if leader_of is not None:
                first = make({})
                cleanup.callback(first.close)
                # They outlive cells with the leader: one that dated its answers by the first
                # cell's clock, which stands still, was taken for one that no longer answers.
                self._arm, self._clock = CellFollower(first.cell), PacedCellClock(first.cell)
                self._person = leader_of(self._arm, first.station, self._clock)
                if callable(close := getattr(self._person, "close", None)):
                    cleanup.callback(close)
                self.window = self._person if hasattr(self._person, "host") else None
            self._cleanup = cleanup.pop_all()

    def rig(self, conditions: Mapping[str, object]) -> Rig:
        """Build the cell with something set up."""
        rig = self._make(conditions)
        clock = self._clock or PacedCellClock(rig.cell)
        clock.enter(rig.cell)
        if self._arm is not None:
            self._arm.enter(rig.cell)

        def reset(seed: int) -> None:
            rig.reset(seed)
            clock.restart()

        self._rig = replace(rig, clock=clock, reset=reset)
        self.monitor = LoopMonitor(rig.follower.joint_names, rig.rates, rig.safety.limits)
        return self._rig

    def leader(self, rig: Rig, seed: int) -> Leader:
        """Return who drives the cell: its expert, somebody's hand, or a policy that shares it."""
        person = self._person if self._person is not None else scripted_leader(rig, seed)
        if self._shared is None:
            return person
        return self._shared(rig.follower, rig.rates, lambda: rig.safety.sent_rad, person)

    @property
    def safety(self) -> Safety:
        """E-stop, clearing, and how the loop of the rig that is set up does."""

        def loop() -> Loop:
            rig, monitor = self._rig, self.monitor
            return Loop() if rig is None or monitor is None else monitor.loop(rig.safety.tripped)

        return Safety(
            lambda: None if self._rig is None else self._rig.safety.estop(),
            lambda: None if self._rig is None else self._rig.safety.clear(),
            loop,
        )

    def close(self) -> None:
        """Let go of the leader."""
        self._cleanup.close()
