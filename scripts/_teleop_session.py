"""A teleoperation session: run, trip, clear, lose a cable, find it again, until it is over."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gaploop.collect.operator.commands import Twice
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.core.types import FollowerState, SafetyReason
from gaploop.scripts._arms import Arms
from gaploop.scripts._keys import SPACE, Keys
from gaploop.scripts._reconnect import IS_BACK, Finder
from gaploop.scripts._teleop_screen import LINE_S, Show
from gaploop.scripts._teleop_view import ProgramMode, TeleopScreen, say_trip
from gaploop.scripts._window_keys import WindowKeys, subscribers
from gaploop.teleop.advice import GONE
from gaploop.teleop.control import ControlThread, LoopMode, Snapshot
from gaploop.teleop.loop import Rates
from gaploop.teleop.realtime import Realtime
from gaploop.teleop.safety import SafetyFilter, make_safety
from gaploop.teleop.statistics import Figures, LoopStatistics
from gaploop.teleop.stopping import CleanupStep, disconnect, one_line

log = logging.getLogger(__name__)

type Watch = Callable[[ControlThread, Follower], None]

FRAME_S: Final = 0.1
"""The view is drawn this often [s]."""
AGAIN: Final = "Press it again: the arm holds where it is and comes slowly to the leader's pose."
STUCK: Final = (
    "The workspace box is in the way to the leader's pose. Lead another way round; or press q, "
    "lift the arm into the box by hand, and start again."
)
UNWELL: Final = SafetyReason.HARDWARE_ERROR
"""After this, too, but the operator says when: the view shows how the servo is until then."""


@dataclass(frozen=True)
class Ended:
    """How a session ended.

    Attributes:
        why: `quit`, `time`, `signal`, `trip`, or `lost` where a device failed without a trip.
        signal: the signal's number, 0 where none came.
        figures: what the loop did.
        realtime: whether real-time rights were granted; None where the loop never ran.
        bus_faults: fault to count.
        reconnected: times that lost devices were found again.
        faults: what else went wrong, a line each.
        trip: the trip that the session ended in, in words, or empty.
        failed: what failed where that ended it, or in stopping, in a line; empty where all is off.
    """

    why: str
    signal: int
    figures: Figures
    realtime: Realtime | None
    bus_faults: Mapping[str, int] = field(default_factory=dict)
    reconnected: int = 0
    faults: tuple[str, ...] = ()
    trip: str = ""
    failed: str = ""


class TeleopSession:
    """Drives until somebody ends it. Without keys a trip or a lost device ends it, too.

    Args:
        connect: connects the arms; called again when one was lost.
        station: its limits are the filter's.
        rates: of the loop.
        keys: what the operator presses.
        show: draws one frame of the view.
        max_s: longest time of driving [s], or infinity.
        stopped: numbers of signals that came, such as SIGTERM.
        watch: called with control thread and follower before the start, to subscribe to it.
    """

    def __init__(
        self,
        connect: Callable[[], Arms],
        station: Station,
        rates: Rates,
        keys: Keys,
        show: Show,
        max_s: float,
        stopped: list[int],
        watch: Watch = lambda _control, _follower: None,
    ) -> None:
        self._connect, self._station, self._rates = connect, station, rates
        self._terminal = self._keys = keys
        self._show, self._max_s, self._stopped = show, max_s, stopped
        self._watch = watch
        self._every_s = 0.0 if keys.works else LINE_S
        self._statistics: LoopStatistics | None = None
        self._safety: SafetyFilter | None = None
        self._realtime: Realtime | None = None
        self._bus_faults: dict[str, int] = {}
        self._faults: list[str] = []
        self._reconnected = 0
        self._why, self._trip = "", ""
        self._failed = ""
        self._help = False
        self._twice = Twice()
        self._cleared_at = -1
        """How many faults there were when a trip was told to clear; -1 where it wasn't."""

    def run(self, connected: Arms) -> Ended:
        """Drive until it is over; torque is off and everything disconnected afterwards.

        Args:
            connected: the arms, as `connect` returned them.

        Raises:
            DeviceError: an arm is lost and there is nobody to press a key.
        """
        arms: Arms | None = connected
        while arms is not None:
            lost = self._drive(arms)
            arms = self._find_again(lost, arms) if lost else None
        figures = self._statistics.figures() if self._statistics is not None else _NOTHING
        number = self._stopped[0] if self._stopped else 0
        return Ended(
            "signal" if number else self._why,
            number,
            figures,
            self._realtime,
            self._bus_faults,
            self._reconnected,
            tuple(self._faults),
            self._trip,
            self._failed,
        )

    # -- one connection ---------------------------------------------------------------------

    def _drive(self, arms: Arms) -> str:
        """Drive with these arms; return what was lost, in words, or nothing where it is over."""
        before = dict(self._bus_faults)
        with contextlib.ExitStack() as undo:
            undo.callback(disconnect, arms.follower, arms.leader, *arms.cameras)
            safety = make_safety(self._station, arms.follower, self._rates.period_s)
            undo.pop_all()
        if self._statistics is None:
            self._statistics = LoopStatistics(
                arms.follower.joint_names, self._rates.period_s, safety.limits
            )
        self._safety = safety
        left_s = self._max_s - self._statistics.figures().duration_s
        control = ControlThread(
            arms.follower,
            arms.leader,
            safety,
            self._rates,
            cameras=arms.cameras,
            sinks=(self._statistics, *subscribers(arms.leader)),
            max_s=max(left_s, self._rates.period_s),
            clock=arms.clock,
        )
        self._keys = WindowKeys.of(self._terminal, arms.leader, control.estop)
        with control, control.signals() as came:
            self._terminal.listen(control.estop)
            self._watch(control, arms.follower)
            lost = self._attend(control, arms, before)
            self._stopped += came
        self._terminal.deaf()
        self._keys = self._terminal
        return lost

    def _attend(self, control: ControlThread, arms: Arms, before: Mapping[str, int]) -> str:
        """Drive and show until it is over or something is lost; return what, in words."""
        lost, error = "", ""
        try:
            control.start()
            drawn_s = -math.inf
            while control.alive and not lost and not self._why:
                if time.monotonic() - drawn_s >= self._every_s:
                    drawn_s = time.monotonic()
                    self._bus_faults = _added(before, count_faults(arms))
                    self._show(self._picture(control, arms))
                lost = self._heed(control)
        except DeviceError as failed:  # it didn't begin
            if not self._terminal.works:  # a leader's window goes with what was lost
                raise
            lost = str(failed)
        finally:
            faults = control.close()
            snapshot = control.snapshot()
            self._bus_faults = _added(before, count_faults(arms))
            self._realtime = snapshot.realtime or self._realtime
            self._faults += [f for f in snapshot.faults if f not in self._faults]
            self._trip = self._trip_words() if snapshot.tripped else ""
        left = _once(faults)
        try:
            end = control.finish()
            self._why = self._why or ("" if lost else str(end.reason.value))
        except (DeviceError, OSError) as failed:
            error = one_line(failed)
        if error and not lost:
            lost = error
        if self._why or not self._terminal.works:
            # It is over: what doesn't answer is told of, and why it tripped is, too.
            self._failed = " ".join(dict.fromkeys([*([error] if error else []), *left]))
            self._why = self._why or ("trip" if self._trip else "lost")
            return ""
        return "\n".join((lost, *left)) if lost else ""

    def _heed(self, control: ControlThread) -> str:
        """Wait for a key or the next frame; return what must be connected anew, if anything."""
        pressed = self._keys.presses(FRAME_S) if self._keys.works else []
        if not self._keys.works:
            control.wait(FRAME_S)
        snapshot = control.snapshot()
        is_limp = snapshot.mode is LoopMode.TRIPPED
        self._trip = self._trip_words() if snapshot.tripped else ""
        self._keys.say(self._trip_words(self._keys.clear_words) if snapshot.tripped else "")
        self._take(pressed, is_limp)
        if SPACE in pressed:
            control.estop()
        if not snapshot.tripped:
            self._cleared_at = -1
        if not is_limp:
            return ""
        if not self._keys.works:
            self._why = "trip"
        elif snapshot.tripped & self._keys.gone(GONE):
            return self._trip
        elif self._twice.confirmed():
            if snapshot.tripped & UNWELL:
                return self._trip
            self._cleared_at = len(snapshot.faults)
            control.clear()
        return ""

    def _take(self, pressed: Sequence[str], can_clear: bool) -> None:
        """Take keys, whatever is going on; the emergency stop comes first and is in control's."""
        if "q" in pressed:
            self._why = "quit"
        if pressed.count("h") % 2:
            self._help = not self._help
        if SPACE in pressed or not can_clear:
            self._twice.forget()  # pressed before there was anything to see that could be cleared
            return
        for _ in range(pressed.count("c")):
            self._twice.press()

    def _note(self, control: ControlThread, snapshot: Snapshot) -> str:
        """Return what the operator is told of the keys' effect, or of the arm's way back."""
        safety = self._safety
        if safety is None:
            return ""
        if snapshot.mode is LoopMode.TRIPPED:
            if 0 <= self._cleared_at < len(snapshot.faults):
                return f"It isn't cleared: {snapshot.faults[-1].partition(': ')[2]}"
            return AGAIN if self._twice.asks else ""
        if snapshot.tripped:
            left_s = safety.tripped_at_s + safety.limits.torque_off_s - control.clock.now_s()
            if not left_s > FRAME_S:
                return ""
            then = self._clear_words()
            return f"The arm holds; in {left_s:.1f} s it goes limp{then and f', then {then}'}."
        if not safety.catching_up:
            return ""
        latest = self._statistics.latest if self._statistics is not None else None
        if latest is not None and latest.command.reasons & SafetyReason.WORKSPACE:
            return STUCK
        return "Coming slowly to the leader's pose."

    def _trip_words(self, clear: str = "") -> str:
        trips = self._statistics.figures().trips if self._statistics is not None else ()
        return say_trip(trips[-1].reason, trips[-1].joints, clear) if trips else ""

    def _clear_words(self) -> str:
        """Return how a trip is cleared, where the view is read."""
        return (self._terminal if self._terminal.works else self._keys).clear_words

    # -- between two connections ------------------------------------------------------------

    def _find_again(self, lost: str, arms: Arms) -> Arms | None:
        """Wait until the devices answer again and the operator says c twice; None to leave."""
        if not self._keys.works:  # a leader's window went with it
            self._why = "trip"
            return None
        finder = Finder(self._connect)
        self._twice.forget()
        with contextlib.ExitStack() as held:
            held.callback(lambda: _let_go(finder.found))
            while not self._stopped and self._keys.works:
                was, found = finder.found, finder.look()
                if was is None and found is not None:
                    log.warning("%s", IS_BACK)  # after what was logged of torque when it was lost
                self._show(self._lost_picture(arms, lost, finder.why or lost, found))
                self._take(self._keys.presses(FRAME_S), found is not None)
                if self._why:
                    return None
                if found is not None and self._twice.confirmed():
                    held.pop_all()
                    self._reconnected += 1
                    self._trip = ""
                    return found
        self._why = self._why or "trip"
        return None

    # -- what is shown ----------------------------------------------------------------------

    def _picture(self, control: ControlThread, arms: Arms) -> TeleopScreen:
        snapshot = control.snapshot()
        is_limp = snapshot.mode is LoopMode.TRIPPED
        mode = ProgramMode.TRIPPED if snapshot.tripped else ProgramMode.RUNNING
        return self._frame(
            arms,
            mode,
            torque=not is_limp,
            unconfirmed=snapshot.unconfirmed,
            real_time=_say_rights(snapshot.realtime),
            note=self._note(control, snapshot),
            state=snapshot.state if is_limp else None,
            clear=self._clear_words(),
        )

    def _lost_picture(self, arms: Arms, lost: str, why: str, found: Arms | None) -> TeleopScreen:
        if found is not None:
            return self._frame(
                arms,
                ProgramMode.READY,
                torque=False,
                lost=f"{IS_BACK} Make sure that the arm may move, then {self._keys.clear_words}.",
                note=AGAIN if self._twice.asks else "",
                state=_state_of(found),
            )
        words = lost if why == lost else f"{lost}\nNow: {why}"
        return self._frame(
            arms,
            ProgramMode.LOST,
            torque=False,
            lost=words,
            note="Waiting for it to return; q leaves.",
        )

    def _frame(self, arms: Arms, mode: ProgramMode, **more: Any) -> TeleopScreen:
        statistics = self._statistics
        if statistics is None:
            raise RuntimeError("nothing has been driven yet")
        rate_hz, error, latency = statistics.now()
        state = more.pop("state", None)
        return TeleopScreen(
            arms.title,
            mode,
            arms.follower.units,
            arms.follower.to_units,
            arms.follower.joint_names,
            _protocol(arms),
            self._station.safety,
            statistics.latest,
            rate_hz,
            error,
            latency,
            statistics.figures(),
            bus_faults=self._bus_faults,
            help=self._help,
            state=state,
            **more,
        )


def _state_of(arms: Arms) -> FollowerState | None:
    """Return what a limp arm reports now; None where it doesn't."""
    with CleanupStep():
        return arms.follower.read()
    return None


def _let_go(arms: Arms | None) -> None:
    if arms is not None:
        disconnect(arms.follower, arms.leader, *arms.cameras)


_NOTHING: Final = LoopStatistics((), 1.0, Station(name="none").safety).figures()


def _protocol(arms: Arms) -> str:
    """Return what the follower's servos speak, where it is made of servo buses."""
    buses = getattr(arms.follower, "buses", ())
    return str(buses[0].protocol.value) if buses else ""


def count_faults(arms: Arms) -> dict[str, int]:
    """Return every kind of bus fault that either arm has counted, in words, to its count."""
    counts: dict[str, int] = {}
    for role, device in (("follower", arms.follower), ("leader", arms.leader)):
        faults = getattr(device, "fault_counts", None)
        if callable(faults):
            counts |= {f"{role} {name}": count for name, count in faults().items()}
    return counts


def _once(faults: tuple[str, ...]) -> list[str]:
    """Return what each step of stopping says, once, without the step's name."""
    return list(dict.fromkeys(fault.partition(": ")[2] or fault for fault in faults))


def _added(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: before.get(name, 0) + now.get(name, 0) for name in {**before, **now}}


def _say_rights(realtime: Realtime | None) -> str:
    if realtime is None:
        return ""
    return "granted" if realtime.granted else realtime.hint
