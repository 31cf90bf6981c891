"""A rig of real arms: one control thread drives them through a session, takes are spans of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gaploop.collect.rig import Rig
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker, TakeSink
from gaploop.core.station import Station
from gaploop.teleop.control import ControlThread
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety


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
        tracker: reads the scene from the first camera's pictures, or None.
        calibration: id of the calibration in use, or "".
        conditions: what is set up for every take.
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
        tracker: SceneTracker | None = None,
        calibration: str = "",
        conditions: Mapping[str, Any] | None = None,
    ) -> None:
        self.leader = leader
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
            tracker=tracker,
            clock=clock,
            safety=safety,
            control_hz=rates.control_hz,
            fps=rates.fps,
            domain=station.domain,
            station=station,
            reset=self._reset,
            judge=lambda: None,
            truth=lambda: None,
            close=lambda: None,
            calibration=calibration,
            loop=self.control.take_loop,
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
        return self.control.close()

    def _reset(self, _seed: int) -> None:
        """See to it that a take can begin: what lies where is for a person to put back.

        Raises:
            DeviceError: the arm is limp, and nobody has cleared the trip.
        """
        if not self.control.alive:
            self.control.finish()
        tripped = self.rig.safety.tripped
        if tripped:
            name = str(tripped.name).lower().replace("|", ", ")
            raise DeviceError(
                f"The arm is limp after a safety trip ({name}), and nobody cleared it. See to its "
                "cause, then go on with the same command and --resume."
            )
