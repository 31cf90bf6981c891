"""Devices of a session: connected, driven, lost, connected anew and let go, by one way for all.

`teleoperate`, `record` and `rollout` drive through these: real or emulated arms, or the embedded
cell in real time. A lost device costs the stretch that was being driven and not the session.
"""

import logging
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, cast

from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.console import Safety
from gaploop.collect.operator.view import Loop
from gaploop.collect.rig import LedArm, Rig, SimulatedRig, scripted_leader
from gaploop.collect.take import LOOK_S, STALE_CAMERA_S, stale_camera
from gaploop.core.clock import SWITCH_INTERVAL_S, Clock, Realtime
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.messages import NO_REPLY, REBOOTED, FloatArray, FollowerState, SafetyReason
from gaploop.core.protocols import CountedCamera, Follower, Leader, TakeSink
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.sim.cell import PacedCellClock
from gaploop.teleop.checks.cameras import MORE_PICTURES, too_slow
from gaploop.teleop.control import ControlThread, LoopMode, Snapshot
from gaploop.teleop.descent import without_torque
from gaploop.teleop.loop import LoopEnd, LoopStatistics, Rates, Trip, Turns
from gaploop.teleop.stopping import CleanupStep, disconnect, one_line
from gaploop.teleop.trips import GONE, say_joints, say_reasons, say_to_do, say_trip

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""A lost device is looked for this often [s]."""
MISSED: Final = 2
"""An arm that was found and misses so many questions in a row, `RETRY_S` apart, has gone again."""

type SharedDriver = Callable[[Follower, Rates, Callable[[], FloatArray], Leader | None], Leader]
"""Returns who drives, such as a policy that a person can take over from: given the arm, the loop's
rates, where the arm was sent last [rad], and who leads it by hand."""


class SessionDevices(ABC):
    """Who and what takes part in a session."""

    window: Any = None
    """A leader that has a window, or what drives a base by one; or None."""
    statistics: LoopStatistics | None = None
    """What the loop does, counted; None before the first episode."""
    writer: JournalWriter | None = None
    """Writes the episode that runs, or ran last."""

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

    def _loop(self, rates: Rates, tripped: SafetyReason, snapshot: Snapshot | None = None) -> Loop:
        """Return how the loop does, given why the filter has tripped, as it stands now."""
        statistics, writer = self.statistics, self.writer
        if statistics is None:
            return Loop()
        figures = statistics.figures()
        last = figures.trips[-1] if figures.trips else None
        said = (last.joints, last.errors) if last and last.reason & tripped else ((), 0)
        return Loop(
            statistics.now()[0],
            rates.fps,
            figures.missed,
            dict(writer.dropped) if writer is not None else {},
            len(figures.trips),
            say_trip(tripped & ~SafetyReason.TRIPPED, *said) if tripped else "",
            snapshot.doing if snapshot is not None else "",
            faults=snapshot.faults if snapshot is not None else (),
            behind_s=writer.behind_s() if writer is not None else 0.0,
        )

    def reconnect(self, lost: str, stop: Callable[[], bool]) -> bool:
        """Let go of all devices, wait until they answer, and drive again; False where it is to end.

        Raises:
            LostError: what was found doesn't drive.
            DeviceError: nobody watches, and it doesn't answer in time.
        """
        del lost, stop
        return False

    @abstractmethod
    def close(self) -> None:
        """Torque off, and everything disconnected; safe to call twice."""


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


class ArmDevices(SessionDevices):
    """The arms of a session, over all their connections.

    They are driven from `start` until `close`, between takes too, so that the operator can put
    things back with them; takes are spans of the running loop.

    Args:
        connect: connects all devices or none, or raises DeviceError; called again after a loss.
            Returns the rig, and who leads the arm by hand, or None.
        is_watched: somebody is there to clear a trip and to say that a returned arm may move. Where
            nobody is, a trip of an emulated arm is cleared with the next take, as in the embedded
            cell; a real arm stays limp, and so does one whose servo is hot or has an error.
        patience_s: how long to wait for what was lost where nobody is [s].
        clear_hint: how the operator clears a trip, or says that a returned arm may move.
        max_s: longest time of driving, over all connections, after which the loop ends, as it
            does where the leader is done [s]; None for a session of takes.
    """

    rates: Rates
    station: Station

    def __init__(
        self,
        connect: Callable[[], tuple[Rig, Leader | None]],
        *,
        shared: SharedDriver | None = None,
        is_watched: bool = True,
        patience_s: float = 60.0,
        clear_hint: str = "press c twice",
        max_s: float | None = None,
    ) -> None:
        self._connect, self._shared = connect, shared
        self.is_watched, self._patience_s = is_watched, patience_s
        self._clear_hint, self._max_s = clear_hint, max_s
        self._lost, self._is_found, self._starts_anew = "", False, False
        self._held = ""
        """What couldn't be ended of what was lost, such as torque, and what to do."""
        self._slow_cameras = set[str]()
        """Cameras that a line was logged about."""
        self._agreed = threading.Event()
        self._faults: tuple[str, ...] = ()
        self._bus_faults: dict[str, int] = {}
        """Those of connections that are over."""
        self._realtime: Realtime | None = None
        self._state: FollowerState | None = None
        """What a limp arm reported last, while the operator's word is waited for."""
        self._wire(*connect())

    def _wire(self, rig: Rig, leader: Leader | None) -> None:
        """Put safety filter and control loop between the devices of a new connection."""
        with ExitStack() as undo:
            undo.callback(disconnect, rig.follower, leader, *rig.cameras, *rig.sensors)
            if self.statistics is not None:  # of the connection before
                self._bus_faults, self._faults = self.bus_faults, without_torque(self.faults)
                self._realtime = self.realtime
            self.filter, self.station, self.rates = rig.safety, rig.station, rig.rates
            drives = leader
            if self._shared is not None:
                drives = self._shared(
                    rig.follower, self.rates, lambda: self.filter.sent_rad, leader
                )
            assert drives is not None, "an arm is led by somebody or by a policy"
            if self.statistics is None:
                names = rig.follower.joint_names
                self.statistics = LoopStatistics(names, self.rates.period_s, self.filter.limits)
            self.arm, self.hand, self.gone = rig, leader, lost_after_trip(leader)
            self.window = leader if hasattr(leader, "pump") else getattr(leader, "base", None)
            self._drives, max_s = drives, math.inf
            if self._max_s is not None:
                driven_s = self.statistics.figures().duration_s
                max_s = max(self._max_s - driven_s, self.rates.period_s)
            self.control = ControlThread(
                rig.follower,
                drives,
                self.filter,
                self.rates,
                cameras=rig.cameras,
                tracker=rig.tracker,
                observed=rig.observed,
                sinks=(self.statistics, *subscribers(leader)),
                max_s=max_s,
                until_done=self._max_s is not None,
                clock=rig.clock,
            )
            undo.pop_all()

    # -- what takes are made with, and driving without a take ---------------------------------

    def rig(self, conditions: Mapping[str, object]) -> Rig:
        """Return the arms as a rig; closing it leaves them connected."""
        running, blocker = self._span, self.blocker
        return replace(self.arm, conditions=dict(conditions), running=running, blocker=blocker)

    def leader(self, _rig: Rig, _seed: int) -> Leader:
        """Return who drives: the same in all takes of a connection."""
        return self._drives

    def _span(self, **options: Any) -> Turns:
        """Yield a take's turns; LostError where the loop can't go on with its devices."""
        try:
            return (yield from self.control.span(**options))
        except (DeviceError, OSError) as error:
            raise LostError(one_line(error)) from error

    def drive(self, stop: Callable[[], bool]) -> str:
        """Drive until the loop ends by itself; return why it did, or "" where `stop` said so.

        Raises:
            LostError: a device is gone, and has to be connected anew.
            TrippedError: the arm is limp after a trip, and nobody is there to clear it.
        """
        while not stop():
            snapshot = self.control.snapshot()
            if snapshot.mode is LoopMode.TRIPPED and not self.is_watched:
                raise TrippedError(self.trip)
            if snapshot.mode is LoopMode.TRIPPED and (
                self._starts_anew or snapshot.tripped & self.gone
            ):
                raise LostError(self.trip)
            if not self.control.alive:
                return self._loop_end().reason.value
            self.control.wait(LOOK_S)
        return ""

    def _loop_end(self) -> LoopEnd:
        """Return how the loop ended; LostError where a device ended it."""
        try:
            return self.control.finish()
        except (DeviceError, OSError) as error:
            raise LostError(one_line(error)) from error

    def blocker(self) -> str:
        """Return why no take can begin now, in one line; "" where one can.

        Raises:
            LostError: a device is gone, and has to be connected anew.
            TrippedError: the arm is limp after a trip, and nobody is there to clear it.
        """
        tripped = self.filter.tripped
        snapshot, last = self.control.snapshot(), self.last_trip
        if (gone := tripped & self.gone) and not snapshot.doing:  # once the arm is down
            to_do = say_to_do(gone, getattr(self.hand, "where", ""))
            which = say_joints(last.joints) if last else ""
            raise LostError(f"Lost contact: {say_reasons(gone)}{which}; {to_do}.")
        if not self.control.alive:
            self._loop_end()
            raise LostError("The control loop has ended.")
        errors = last.errors if tripped and last else 0
        # A servo that is too hot, or has an error of its own, needs a person wherever it is.
        is_unwell = bool(errors & ~(NO_REPLY | REBOOTED) or tripped & SafetyReason.OVER_TEMPERATURE)
        is_real = self.station.domain is Domain.REAL
        is_alone = not self.is_watched and not is_real and not is_unwell
        if is_alone and (snapshot.doing or tripped):
            self.control.clear()  # heeded where it is held, or limp
        if snapshot.doing:
            return snapshot.doing
        if tripped:
            why = say_reasons(tripped, errors)
            words = f"The arm is limp after a safety trip ({why})."
            if snapshot.unconfirmed:
                words = f"The arm has tripped ({why}). {snapshot.unconfirmed}"
            if not self.is_watched and not is_alone:
                raise TrippedError(
                    f"{words} Nobody is there to clear it: fix the cause, then run the same "
                    "command again."
                )
            return words
        if snapshot.mode is not LoopMode.RUNNING:
            return "The arm's torque is coming on."
        for camera in self.arm.cameras:
            if self.arm.clock.now_s() - camera.frame().t_capture_s > STALE_CAMERA_S:
                return stale_camera(camera.name)
        for name, words in self._slow().items():
            if name not in self._slow_cameras:
                self._slow_cameras.add(name)
                log.warning("%s. %s", words, MORE_PICTURES)
        return ""

    def _slow(self) -> dict[str, str]:
        """Return what to say of cameras that give fewer pictures than they should, by name."""
        counted = [c for c in self.arm.cameras if isinstance(c, CountedCamera)]
        words = {c.name: too_slow(c, c.rate_hz(), self.rates.fps) for c in counted}
        return {name: line for name, line in words.items() if line}

    # -- what happened ----------------------------------------------------------------------

    @property
    def trip(self) -> str:
        """Why the filter tripped last, and what to do, in one line; "" where it hasn't."""
        last = self.last_trip
        return say_trip(last.reason, last.joints, last.errors) if last else ""

    @property
    def last_trip(self) -> Trip | None:
        """The filter's last trip, over all connections; None where it hasn't tripped."""
        trips = self.statistics.figures().trips if self.statistics else ()
        return trips[-1] if trips else None

    @property
    def realtime(self) -> Realtime | None:
        """Whether real-time rights were granted; None where the loop never ran."""
        return self.control.snapshot().realtime or self._realtime

    @property
    def faults(self) -> tuple[str, ...]:
        """What else went wrong, a line each, over all connections."""
        return tuple(dict.fromkeys((*self._faults, *self.control.snapshot().faults)))

    @property
    def bus_faults(self) -> dict[str, int]:
        """Every kind of bus fault of either arm, in words, to its count, over all connections."""
        counts = dict(self._bus_faults)
        for role, device in (("follower", self.arm.follower), ("leader", self.hand)):
            if callable(faults := getattr(device, "fault_counts", None)):
                for name, count in faults().items():
                    counts[f"{role} {name}"] = counts.get(f"{role} {name}", 0) + count
        return counts

    # -- what the operator does to them -----------------------------------------------------

    @property
    def safety(self) -> Safety:
        """E-stop, clearing, and how the loop does."""
        return Safety(self.estop, self.clear, self.loop, self.leave)

    def estop(self) -> None:
        """Stop the arm, at once."""
        self.control.estop()

    def clear(self) -> None:
        """Let the arm go on after a trip, or drive one that has returned."""
        self._agreed.set()
        snapshot, drives = self.control.snapshot(), self._max_s is not None
        is_unwell = bool(snapshot.tripped & SafetyReason.HARDWARE_ERROR)
        if drives and is_unwell and snapshot.mode is LoopMode.TRIPPED:
            self._starts_anew = True  # a servo with an error of its own is connected again
        else:
            self.control.clear()

    def loop(self) -> Loop:
        """Return how the control loop does, or what is lost."""
        if self._lost or self.statistics is None:
            return Loop(lost=self._lost, found=self._is_found)
        snapshot = self.control.snapshot()
        loop = self._loop(self.rates, snapshot.tripped, snapshot)
        alignment = ""
        if snapshot.mode is LoopMode.RUNNING and not snapshot.tripped:
            coming = "Coming slowly to the leader's pose." if self.filter.catching_up else ""
            alignment = self.filter.alignment or coming
        timing = ""
        if self._max_s is not None:
            _, error, latency = self.statistics.now()
            timing = f"period error p99 {_ms(error.p99_s)} · leader to follower p50 "
            timing += f"{_ms(latency.p50_s)} p99 {_ms(latency.p99_s)}"
        slow = tuple(self._slow().values())
        clears = snapshot.mode in (LoopMode.HELD, LoopMode.TRIPPED)
        return replace(loop, alignment=alignment, slow=slow, timing=timing, clears=clears)

    @property
    def is_driven(self) -> bool:
        """Whether the arm is under torque."""
        mode = self.control.snapshot().mode
        return not self._lost and mode not in (LoopMode.TRIPPED, LoopMode.ENDED)

    def state(self) -> FollowerState | None:
        """Return what the arm reports while it isn't driven; None while it is, or is lost."""
        if self._lost:
            return self._state
        snapshot = self.control.snapshot()
        return None if snapshot.mode is LoopMode.RUNNING else snapshot.state

    # -- connections ------------------------------------------------------------------------

    def start(self) -> None:
        """Put torque on and drive."""
        self.control.start()

    def reconnect(self, lost: str, stop: Callable[[], bool]) -> bool:
        """Let go of everything, wait until all of it answers and may move, and drive."""
        if stop():
            self._disconnect()
        else:
            self._lose(lost)
        while self._find(stop):
            try:
                if not self._may_move(stop):
                    return False
            except LostError as error:
                self._lose(str(error))
                continue
            try:
                self.start()
            except DeviceError as error:
                self._lost, self._is_found = str(error), False
                raise LostError(str(error)) from error
            self._lost, self._is_found = "", False
            return True
        return False

    def _lose(self, lost: str) -> None:
        """Let go of everything; say what was lost, and what couldn't be ended."""
        self._lost, self._is_found, self._starts_anew = lost, False, False
        faults = (fault.partition(": ")[2] or fault for fault in self._disconnect())
        self._held = " ".join(dict.fromkeys(fault for fault in faults if fault != lost))
        self._lost = " ".join(filter(None, (lost, self._held)))
        log.warning("%s", self._lost)

    def _find(self, stop: Callable[[], bool]) -> bool:
        """Wait until all devices answer; False where `stop` says so first."""
        began_s, tried_s, before, lost = time.monotonic(), -math.inf, "", self._lost
        while not stop():
            if time.monotonic() - tried_s >= RETRY_S:
                try:
                    self._wire(*self._connect())
                except DeviceError as error:
                    why = str(error)
                else:
                    return True
                tried_s = time.monotonic()
                if why != before:
                    before = why
                    self._lost = lost if why in lost else f"{lost} Now: {why}"
                    log.info("%s", why)
                if not self.is_watched and tried_s - began_s >= self._patience_s:
                    raise DeviceError(" ".join(filter(None, (why, self._held))))
            time.sleep(LOOK_S)
        return False

    def _may_move(self, stop: Callable[[], bool]) -> bool:
        """Wait for the operator's word, where there is one; LostError where the arm goes again."""
        self._agreed.clear()
        ask = f" Make sure that the arm may move, then {self._clear_hint}."
        # It is connected limp, and every servo has confirmed that.
        is_back = "Everything answers again, and torque is off."
        self._lost = is_back + (ask if self.is_watched else "")
        self._is_found = self.is_watched
        log.info("%s", self._lost)
        asked_s, missed = time.monotonic(), 0
        while self.is_watched and not self._agreed.is_set():
            if stop():
                return False
            if time.monotonic() - asked_s >= RETRY_S:
                self._state = None
                with CleanupStep():
                    self._state = self.arm.follower.read()
                is_whole = self._state is not None and not (self._state.status & NO_REPLY).any()
                missed = 0 if is_whole else missed + 1
                asked_s = time.monotonic()
                if missed >= MISSED:
                    raise LostError(
                        "The arm answered again, but has stopped answering since. Check its cable "
                        "and power."
                    )
            time.sleep(LOOK_S)
        return True

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
        return (*self.control.close(), *disconnect(*self.arm.sensors))

    def close(self) -> None:
        """Torque off, and everything disconnected; what fails in that is logged."""
        for fault in self._disconnect():
            log.error("%s", fault)


def _ms(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds * 1e3:.2f} ms"


# -- the embedded cell --------------------------------------------------------------------------


class CellDevices(SessionDevices):
    """The embedded cell or a scene file in real time. Takes drive it: a rig for each set-up.

    `leader_of` connects who leads by hand, or raises; the rig's script does where it is None.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, object]], SimulatedRig],
        *,
        shared: SharedDriver | None = None,
        leader_of: Callable[[Follower, Station, Clock], Leader] | None = None,
    ) -> None:
        self._make, self._shared = make, shared
        self._rig: Rig | None = None
        self._person: Leader | None = None
        self._arm: LedArm | None = None
        self._clock: PacedCellClock | None = None
        with ExitStack() as cleanup:
            cleanup.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)  # a leader's window must be heard in time
            if leader_of is not None:
                first = make({})
                cleanup.callback(first.close)
                # They outlive cells with the leader: one that dated its answers by the first
                # cell's clock, which stands still, was taken for one that no longer answers.
                self._arm, self._clock = LedArm(first.follower), PacedCellClock(first.cell)
                self._person = leader_of(cast(Follower, self._arm), first.station, self._clock)
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
            self._arm.enter(rig.follower)

        def reset(seed: int) -> None:
            rig.reset(seed)
            clock.restart()

        self._rig = replace(rig, clock=clock, reset=reset)
        names = rig.follower.joint_names
        self.statistics = LoopStatistics(names, rig.rates.period_s, rig.safety.limits)
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
            rig = self._rig
            return Loop() if rig is None else self._loop(rig.rates, rig.safety.tripped)

        return Safety(
            lambda: None if self._rig is None else self._rig.safety.estop(),
            lambda: None if self._rig is None else self._rig.safety.clear(),
            loop,
        )

    def close(self) -> None:
        """Let go of the leader."""
        self._cleanup.close()
