"""Who and what takes part in rollouts: the embedded cell, or connected arms."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect.arm_rig import ArmRig
from gaploop.collect.intervention import SharedLeader
from gaploop.collect.rig import Rig, scripted_leader
from gaploop.core.clock import Clock
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker
from gaploop.core.station import SIM_STATION, Station
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Domain
from gaploop.scripts import _arms, record
from gaploop.scripts._window_keys import gone_of, subscribers
from gaploop.teleop.control import Mode
from gaploop.teleop.loop import Rates

if TYPE_CHECKING:
    from gaploop.collect.session import MakeLeader, MakeRig, TakeResult
    from gaploop.scripts._rollout_keys import RolloutKeys

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05

type Lead = Callable[[Follower, Rates, Callable[[], FloatArray], Leader | None], SharedLeader]


@dataclass(frozen=True)
class Cast:
    """Who and what takes part.

    Attributes:
        make_rig: as `record_takes` wants it.
        make_leader: likewise; a `SharedLeader`.
        station: where it all stands.
        person: the leader that can take over, where it outlives a rig; or None.
        estop: the emergency stop.
        ready: called before every take with those sealed so far; False ends the session.
        start: begin to drive, between takes too.
        clear: let the arm go on after a trip.
    """

    make_rig: MakeRig
    make_leader: MakeLeader
    station: Station
    person: Leader | None
    estop: Callable[[], None]
    ready: Callable[[Sequence[TakeResult]], bool]
    start: Callable[[], None] = lambda: None
    clear: Callable[[], None] = lambda: None


# -- the embedded cell --------------------------------------------------------------------------


@contextlib.contextmanager
def embedded_cast(
    config: Any, _policy: object, lead: Lead, _pressed: RolloutKeys
) -> Iterator[Cast]:
    """Yield the embedded cell; its expert takes over on simulated time, anybody else in real time.

    Raises:
        DeviceError: the leader doesn't answer.
        UnusableInputError: it doesn't fit.
    """
    from gaploop.scripts import _record_casts

    rigs: list[Rig] = []
    chosen = _arms.kind(config.teleop)

    def make(conditions: Mapping[str, object]) -> Any:
        rig = record.embedded(config, conditions)
        rigs[:] = [rig]
        return rig

    def shared(make_leader: MakeLeader | None) -> MakeLeader:
        def leader(rig: Rig, seed: int) -> SharedLeader:
            person = None if make_leader is None else make_leader(rig, seed)
            return lead(rig.follower, rig.rates, lambda: rig.safety.sent_rad, person)

        return leader

    def estop() -> None:
        if rigs:
            rigs[0].safety.estop()

    def clear() -> None:
        if rigs:
            rigs[0].safety.clear()

    def cast(make_rig: MakeRig, make_leader: MakeLeader | None, person: Leader | None) -> Cast:
        return Cast(
            make_rig,
            shared(make_leader),
            SIM_STATION,
            person,
            estop,
            lambda _takes: True,
            clear=clear,
        )

    if config.take_over == "never":
        yield cast(make, None, None)
    elif chosen == _arms.EXPERT:
        yield cast(make, scripted_leader, None)
    else:
        hands = _arms.Hands(config.cartesian)
        with _record_casts.embedded_cast(make, config.teleop, hands) as theirs:
            yield cast(theirs.make_rig, theirs.make_leader, theirs.leader)


# -- arms ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def arm_cast(config: Any, policy: Any, lead: Lead, pressed: RolloutKeys) -> Iterator[Cast]:
    """Yield connected arms that a control thread drives; torque is off and all closed afterwards.

    Raises:
        DeviceError: a device doesn't answer.
        UnusableInputError: options that can't be used.
    """
    station = _arms.station_for(config.robot, config.station)
    arms = _connect(config, station)
    with contextlib.ExitStack() as undo:
        undo.callback(_arms.disconnect, arms.follower, arms.leader, *arms.cameras)
        rates = Rates.near(config.dataset.fps or policy.fps)
        made: list[ArmRig] = []
        leader = lead(arms.follower, rates, lambda: made[0].rig.safety.sent_rad, arms.leader)
        tracker = _tracker(policy, arms.cameras, station)
        arm = ArmRig(
            arms.follower,
            leader,
            arms.cameras,
            arms.clock,
            rates,
            station,
            tracker=tracker,
            calibration=_arms.calibration_of(config.station, arms.follower),
            gone=gone_of(arms.leader),
            is_watched=pressed.watched_with(arms.leader),
        )
        made.append(arm)
        undo.pop_all()
    with arm.control:
        attempts = _Attempts(config, arm, leader, pressed)
        yield Cast(
            arm.with_conditions,
            lambda _rig, _seed: leader,
            station,
            arms.leader,
            arm.control.estop,
            attempts.ready,
            lambda: arm.start(subscribers(arms.leader)),
            arm.control.clear,
        )


@dataclass(frozen=True)
class _Connected:
    follower: Follower
    leader: Leader | None
    cameras: tuple[CameraSource, ...]
    clock: Clock


def _connect(config: Any, station: Station) -> _Connected:
    if config.take_over != "never":
        hands = _arms.Hands(config.cartesian)
        arms = _arms.connect(config.robot, config.teleop, station, with_cameras=True, hands=hands)
        return _Connected(arms.follower, _movable(arms.leader), arms.cameras, arms.clock)
    follower, clock = _arms.follower_of(config.robot, station)
    with contextlib.ExitStack() as undo:
        undo.callback(follower.close)
        cameras = _arms.cameras_of(config.robot, clock)
        undo.pop_all()
    return _Connected(follower, None, cameras, clock)


def _movable(leader: Leader) -> Leader:
    """Return a leader arm that can be brought to its follower's pose, or the leader as it is."""
    from gaploop.teleop.lerobot_devices.aligning import aligning

    return aligning(leader) or leader


def _tracker(policy: Any, cameras: Sequence[CameraSource], station: Station) -> SceneTracker | None:
    """Return what reads the scene for a policy that needs it, from the first camera."""
    if not getattr(policy, "needs_scene", False):
        return None
    from gaploop.sim.tracker import Tracker

    if station.domain is Domain.REAL:
        raise UnusableInputError(
            "The policy needs the tracked scene, and the tracker knows the embedded cell's camera "
            "only. Train one on what the arm records, or use the embedded or an emulated cell."
        )
    if not cameras:
        raise UnusableInputError(
            "The policy needs the tracked scene, and there is no camera. Give the robot the cell's "
            "overhead camera: gaploop emulate --cameras, then --robot.cameras."
        )
    height, width = cameras[0].frame().image.shape[:2]
    if height != width:
        raise UnusableInputError(
            f"The tracker needs the cell's square pictures; camera {cameras[0].name} gives "
            f"{width} x {height}."
        )
    return Tracker.nominal(width)


class _Attempts:
    """Sees to it that the next attempt can begin: a trip is cleared, things are put back."""

    def __init__(
        self, config: Any, arm: ArmRig, leader: SharedLeader, pressed: RolloutKeys
    ) -> None:
        self._reset_s = config.dataset.reset_time_s
        self._arm, self._control, self._safety = arm, arm.control, arm.rig.safety
        self._leader, self._pressed = leader, pressed

    def ready(self, takes: Sequence[TakeResult]) -> bool:
        """Wait until an attempt may begin; False where the operator or a signal ends it all.

        Where there is no operator a trip is left to the rig's hurdle, which has its patience.

        Raises:
            LostError: the devices have to be connected anew.
        """
        self._arm.require_contact()
        if self._pressed.works and self._safety.tripped and not self._cleared():
            return False
        return not takes or self._put_back()

    def _cleared(self) -> bool:
        """Wait for the operator's word after a trip."""
        log.info("%s See to it, then press c twice.", self._arm.hurdle())
        while not self._pressed.stops():
            self._arm.require_contact()
            if self._control.snapshot().mode is Mode.RUNNING:
                return True
            if self._pressed.confirmed(self._pressed.between(self._leader, LOOK_S)):
                self._control.clear()
        return False

    def _put_back(self) -> bool:
        """Wait until things are back where an attempt begins."""
        until_s = time.monotonic() + self._reset_s
        if self._pressed.works:
            log.info("Put things back (t lets you drive); n goes on, or in %g s.", self._reset_s)
        while not self._pressed.stops() and time.monotonic() < until_s:
            self._arm.require_contact()
            if self._pressed.between(self._leader, LOOK_S) == "n":
                break
        return not self._pressed.stops()
