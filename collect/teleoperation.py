"""A teleoperation session: drive, trip, clear, lose a cable, find it again; nothing is recorded."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gaploop.collect.devices import ArmDevices, Arms, say_trip
from gaploop.collect.operator.commands import Twice
from gaploop.collect.operator.keys import SPACE, Keys, WindowKeys
from gaploop.collect.operator.teleop_view import LINE_S, ProgramMode, Show, TeleopScreen
from gaploop.collect.operator.view import Loop
from gaploop.collect.session import drive_on
from gaploop.core.errors import DeviceError, LostError
from gaploop.core.messages import FollowerState, SafetyReason
from gaploop.teleop.control import LoopMode, Snapshot
from gaploop.teleop.realtime import Realtime
from gaploop.teleop.statistics import Figures
from gaploop.teleop.stopping import one_line

FRAME_S: Final = 0.1
"""The view is drawn this often [s]."""
AGAIN: Final = "Press it again: the arm holds where it is and comes slowly to the leader's pose."
UNWELL: Final = SafetyReason.HARDWARE_ERROR
"""After this, too, but the operator says when: the view shows how the servo is until then."""


@dataclass(frozen=True)
class TeleopEnd:
    """How a session ended.

    Attributes:
        why: `quit`, `time`, `signal`, `trip`, or `lost` where a device failed without a trip.
        signal: the signal's number, 0 where none came.
        realtime: whether real-time rights were granted; None where the loop never ran.
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
    """Drives until somebody ends it, or a signal of `stopped` comes; devices are connected, limp.

    Without keys a trip or a lost device ends it, too.
    """

    def __init__(self, devices: ArmDevices, keys: Keys, show: Show, stopped: list[int]) -> None:
        self._devices, self._show, self._stopped = devices, show, stopped
        self._terminal = self._keys = keys
        self._every_s = 0.0 if keys.works else LINE_S
        assert devices.monitor is not None
        self._statistics = devices.monitor.statistics
        self._realtime: Realtime | None = None
        self._bus_faults: dict[str, int] = {}
        self._faults: list[str] = []
        self._why = self._trip = self._failed = self._lost = ""
        self._help = False
        self._twice = Twice()
        self._cleared_at = -1
        """How many faults there were when a trip was told to clear; -1 where it wasn't."""

    def run(self) -> TeleopEnd:
        """Drive until it is over; torque is off and everything disconnected afterwards.

        Raises DeviceError where an arm doesn't take torque and there is nobody to press a key.
        """
        devices = self._devices
        with contextlib.closing(devices):
            self._terminal.listen(devices.estop)
            lost = ""
            try:
                devices.start()
            except DeviceError as error:
                if not self._terminal.works:
                    raise
                lost = self._lost = "\n".join((str(error), *_once(devices.control.close())))
            reconnected, _ = drive_on(
                devices, self._drive, self._is_over, lost=lost, pause=self._look_for
            )
            self._terminal.deaf()
        number = self._stopped[0] if self._stopped else 0
        return TeleopEnd(
            "signal" if number else self._why or "trip",
            number,
            self._statistics.figures(),
            self._realtime,
            self._bus_faults,
            reconnected,
            tuple(self._faults),
            self._trip,
            self._failed,
        )

    def _is_over(self) -> bool:
        return bool(self._why or self._stopped or not self._terminal.works)

    # -- one connection ---------------------------------------------------------------------

    def _drive(self) -> bool:
        """Drive and show until it is over; LostError where something is lost, and waited for."""
        devices, control = self._devices, self._devices.control
        before, self._lost, self._trip, lost = dict(self._bus_faults), "", "", ""
        self._keys = WindowKeys.of(self._terminal, devices.arms.leader, devices.estop)
        with control.signals() as came:
            try:
                drawn_s = -math.inf
                while control.alive and not (lost or self._why or self._stopped):
                    if time.monotonic() - drawn_s >= self._every_s:
                        drawn_s = time.monotonic()
                        self._bus_faults = _added(before, count_faults(devices.arms))
                        self._show(self._picture())
                    lost = self._heed()
            finally:
                self._come_down()
                left = _once(control.close())
                snapshot = control.snapshot()
                self._bus_faults = _added(before, count_faults(devices.arms))
                self._realtime = snapshot.realtime or self._realtime
                self._faults += [f for f in snapshot.faults if f not in self._faults]
                self._trip = self._trip_message() if snapshot.tripped else ""
                self._keys = self._terminal  # a leader's window goes with what was lost
            self._stopped += came
        error = ""
        try:
            end = control.finish()
            self._why = self._why or ("" if lost else str(end.reason.value))
        except (DeviceError, OSError) as failed:
            error = one_line(failed)
        lost = lost or error
        if self._why or self._stopped or not lost or not self._terminal.works:
            # It is over: what doesn't answer is told of, and why it tripped is, too.
            self._failed = " ".join(dict.fromkeys([*([error] if error else []), *left]))
            self._why = self._why or ("trip" if self._trip else "lost")
            return False
        self._twice.forget()
        self._lost = "\n".join((lost, *left))
        raise LostError(self._lost)

    def _heed(self) -> str:
        """Wait for a key or the next frame; return what must be connected anew, if anything."""
        control = self._devices.control
        pressed = self._keys.presses(FRAME_S) if self._keys.works else []
        if not self._keys.works:
            control.wait(FRAME_S)
        snapshot = control.snapshot()
        is_limp = snapshot.mode is LoopMode.TRIPPED
        is_held = snapshot.mode is LoopMode.HELD
        self._trip = self._trip_message() if snapshot.tripped else ""
        self._keys.say(self._trip_message(self._keys.clear_hint) if snapshot.tripped else "")
        self._take(pressed, is_limp or is_held)
        if not snapshot.tripped:
            self._cleared_at = -1
        if is_held and self._twice.confirmed():
            control.clear()
        if not is_limp:
            return ""
        if not self._keys.works:
            self._why = "trip"
        elif snapshot.tripped & self._devices.gone:
            return self._trip
        elif self._twice.confirmed():
            if snapshot.tripped & UNWELL:
                return self._trip
            self._cleared_at = len(snapshot.faults)
            control.clear()
        return ""

    def _come_down(self) -> None:
        """End the loop; show how the arm is lowered, and heed who wants it let go of."""
        control = self._devices.control
        control.stop()
        while self._devices.moves:
            self._show(self._picture())
            pressed = self._keys.presses(FRAME_S) if self._keys.works else []
            if not self._keys.works:
                control.wait(FRAME_S)
            for _ in range(pressed.count("q")):
                control.leave()

    def _look_for(self, _long_s: float) -> None:
        """Show what is lost and heed keys, while it is looked for."""
        now = self._devices.loop()
        self._show(self._lost_picture(now))
        self._take(self._keys.presses(FRAME_S), now.found)
        if now.found and self._twice.confirmed():
            self._trip = ""
            self._devices.clear()

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

    def _note(self, snapshot: Snapshot) -> str:
        """Return what the operator is told of the keys' effect, or of the arm's way back."""
        safety = self._devices.filter
        if snapshot.mode is LoopMode.TRIPPED:
            if 0 <= self._cleared_at < len(snapshot.faults):
                return f"It isn't cleared: {snapshot.faults[-1].partition(': ')[2]}"
            return AGAIN if self._twice.awaits_confirmation else ""
        if snapshot.doing:
            is_held = snapshot.mode is LoopMode.HELD
            return AGAIN if is_held and self._twice.awaits_confirmation else snapshot.doing
        if snapshot.tripped:
            return ""
        if not safety.catching_up:
            return ""
        return safety.alignment or "Coming slowly to the leader's pose."

    def _trip_message(self, clear: str = "") -> str:
        trips = self._statistics.figures().trips
        return say_trip(trips[-1].reason, trips[-1].joints, clear) if trips else ""

    def _clear_hint(self) -> str:
        """Return how a trip is cleared, where the view is read."""
        return (self._terminal if self._terminal.works else self._keys).clear_hint

    # -- what is shown ----------------------------------------------------------------------

    def _picture(self) -> TeleopScreen:
        snapshot = self._devices.control.snapshot()
        is_limp = snapshot.mode is LoopMode.TRIPPED
        rights = snapshot.realtime
        modes = {LoopMode.HELD: ProgramMode.HELD, LoopMode.LOWERING: ProgramMode.LOWERING}
        usual = ProgramMode.TRIPPED if snapshot.tripped else ProgramMode.RUNNING
        is_driven = snapshot.mode is LoopMode.RUNNING
        return self._frame(
            modes.get(snapshot.mode, usual),
            torque=not is_limp,
            unconfirmed=snapshot.unconfirmed,
            real_time="" if rights is None else "granted" if rights.granted else rights.hint,
            note=self._note(snapshot),
            state=None if is_driven else snapshot.state,
            clear=self._clear_hint(),
        )

    def _lost_picture(self, now: Loop) -> TeleopScreen:
        if now.found:
            return self._frame(
                ProgramMode.READY,
                torque=False,
                lost=now.lost,
                note=AGAIN if self._twice.awaits_confirmation else "",
                state=self._devices.state(),
            )
        return self._frame(
            ProgramMode.LOST,
            torque=False,
            lost=self._lost if now.lost == self._lost else f"{self._lost}\nNow: {now.lost}",
            note="Waiting for it to return; q leaves.",
        )

    def _frame(
        self, mode: ProgramMode, *, state: FollowerState | None = None, **more: Any
    ) -> TeleopScreen:
        devices, statistics = self._devices, self._statistics
        follower = devices.arms.follower
        rate_hz, error, latency = statistics.now()
        buses = getattr(follower, "buses", ())
        return TeleopScreen(
            devices.arms.title,
            mode,
            follower.units,
            follower.to_units,
            follower.joint_names,
            str(buses[0].protocol.value) if buses else "",
            devices.station.safety,
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
