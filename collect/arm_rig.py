"""A rig of real arms: one control thread drives them through a session, takes are spans of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gaploop.collect.rig import Rig
from gaploop.collect.take import STALE_CAMERA_S, stale_camera
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.protocols import (
    CameraSource,
    Follower,
    Leader,
    SceneTracker,
    SensorSource,
    TakeSink,
)
from gaploop.core.station import Station
from gaploop.core.types import SafetyReason
from gaploop.core.vocabulary import Domain
from gaploop.teleop.advice import GONE, say_reasons, say_to_do
from gaploop.teleop.control import ControlThread, LoopMode
from gaploop.teleop.loop import LoopEnd, Rates
from gaploop.teleop.safety import make_safety
from gaploop.teleop.stopping import disconnect, one_line


class ArmRig:
    """Connected arms, as the rigs that a session asks for.

    The arm is driven from `start` until `close`, between takes too, so that the operator can put
    things back with it.

    Args:
        follower: the arm, torque off.
        leader: who drives it.
        cameras: looked at on policy frames.
        clock: paces the loop.
        rates: control and frame rate.
        station: its limits, its name, its domain.
        sensors: what else is measured; closed with the arms.
        tracker: reads the scene from the first camera's pictures, or None.
        calibration: id of the calibration in use, or "".
        conditions: what is set up for every take.
        gone: after a trip by any of these the devices have to be connected anew.
        is_watched: somebody is there to clear a trip. Where nobody is, a trip of an emulated arm
            is cleared with the next take, as in the embedded cell; a real arm stays limp.
    """

    def __init__(
        self,
        follower: Follower,
        leader: Leader,
        cameras: tuple[CameraSource, ...],
        clock: Clock,
        rates: Rates,
        station: Station,
        *,
        sensors: tuple[SensorSource, ...] = (),
        tracker: SceneTracker | None = None,
        calibration: str = "",
        conditions: Mapping[str, Any] | None = None,
        gone: SafetyReason = GONE,
        is_watched: bool = True,
    ) -> None:
        self.leader = leader
        self._gone, self._is_watched = gone, is_watched
        self._conditions = dict(conditions or {})
        safety = make_safety(station, follower, rates.period_s)
        self.control = ControlThread(
            follower,
            leader,
            safety,
            rates,
            cameras=cameras,
            tracker=tracker,
            clock=clock,
            until_done=False,
        )
        self.rig = Rig(
            follower=follower,
            cameras=cameras,
            sensors=sensors,
            tracker=tracker,
            clock=clock,
            safety=safety,
            control_hz=rates.control_hz,
            fps=rates.fps,
            domain=station.domain,
            station=station,
            reset=lambda _seed: None,  # what lies where is for a person to put back
            judge=lambda: None,
            truth=lambda: None,
            close=lambda: None,
            calibration=calibration,
            loop=self._take_loop,
            hurdle=self.hurdle,
        )

    def start(self, sinks: Iterable[TakeSink] = ()) -> None:
        """Put torque on and drive; `sinks` see every turn, of takes and between them.

        Raises:
            DeviceError: leader or follower doesn't take it; torque is off.
        """
        for sink in sinks:
            self.control.attach(sink)
        self.control.start()

    def with_conditions(self, conditions: Mapping[str, object]) -> Rig:
        """Return the rig with something set up; closing it leaves the arms connected."""
        return replace(self.rig, conditions={**self._conditions, **conditions})

    def close(self) -> tuple[str, ...]:
        """Torque off, then disconnect everything; safe to call twice.

        Returns:
            A line for every step that failed.
        """
        return (*self.control.close(), *disconnect(*self.rig.sensors))

    def hurdle(self) -> str:
        """Return why no take can begin now, in one line; "" where one can.

        Raises:
            LostError: a device is gone, and has to be connected anew.
            TrippedError: the arm is limp after a trip, and nobody is there to clear it.
        """
        self.require_contact()
        tripped = self.rig.safety.tripped
        if tripped:
            return self._after_trip(tripped)
        if self.control.snapshot().mode is not LoopMode.RUNNING:
            return "The arm takes torque."
        for camera in self.rig.cameras:
            if self.rig.clock.now_s() - camera.frame().t_capture_s > STALE_CAMERA_S:
                return stale_camera(camera.name)
        return ""

    def require_contact(self) -> None:
        """See to it that no device is gone.

        Raises:
            LostError: one is.
        """
        gone = self.rig.safety.tripped & self._gone
        if gone:
            raise LostError(f"Lost contact: {say_reasons(gone)}; {say_to_do(gone)}.")
        if not self.control.alive:
            try:
                self.control.finish()
            except (DeviceError, OSError) as error:
                raise LostError(one_line(error)) from error
            raise LostError("The control loop has ended.")

    def _after_trip(self, tripped: SafetyReason) -> str:
        words = f"The arm is limp after a safety trip ({say_reasons(tripped)})."
        if unconfirmed := self.control.snapshot().unconfirmed:
            words = f"The arm has tripped ({say_reasons(tripped)}). {unconfirmed}"
        if not self._is_watched and self.rig.station.domain is Domain.REAL:
            raise TrippedError(
                f"{words} Nobody is there to clear it: see to its cause, then go on with the same "
                "command."
            )
        if not self._is_watched:
            self.control.clear()
        return words

    def _take_loop(self, *given: Any, **options: Any) -> LoopEnd:
        """Run a take's turns.

        Raises:
            LostError: the loop couldn't go on with its devices.
        """
        try:
            return self.control.take_loop(*given, **options)
        except (DeviceError, OSError) as error:
            raise LostError(one_line(error)) from error
