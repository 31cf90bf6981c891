"""Arms in an attended session: connected, lost, found again, without the session's end."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaploop.collect.arm_rig import ArmRig
from gaploop.collect.operator.console import Safety
from gaploop.collect.operator.loop_monitor import LoopMonitor
from gaploop.collect.operator.screen_content import Loop
from gaploop.core.errors import DeviceError, LostError
from gaploop.core.protocols import Leader
from gaploop.core.station import Station
from gaploop.scripts import _arms
from gaploop.scripts._reconnect import IS_BACK, LOOK_S, find_again
from gaploop.scripts._rolling import Rolling
from gaploop.scripts._session_devices import SessionDevices, Standing
from gaploop.scripts._window_keys import gone_of, subscribers
from gaploop.teleop.loop import Rates
from gaploop.teleop.sensors import connect_sensors
from gaploop.teleop.stopping import disconnect

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArmOptions:
    """Which arms, and how they are driven.

    Attributes:
        robot: LeRobot's config of the arm.
        teleop: LeRobot's config of the leader.
        station: limits and domain.
        file: the station's file, for its calibration, or None.
        fps: policy frames per second [Hz].
        hands: speeds and forces of a leader.
        is_watched: an operator is asked, and clears trips.
        patience_s: how long to wait for what was lost where none is [s].
        clear_key: what the operator presses twice to clear a trip, or to go on after a loss.
        rolling: the policy that drives and is taken over from, if any.
        sensors: what else to record, as `teleop.sensors` takes it.
    """

    robot: Any
    teleop: Any
    station: Station
    file: Path | None
    fps: float
    hands: Any
    is_watched: bool
    patience_s: float
    clear_key: str = "c"
    rolling: Rolling | None = None
    sensors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Driven:
    """One connection."""

    rig: ArmRig
    eyes: LoopMonitor
    person: Any


class _Kept:
    """A leader with a window, which belongs to a thread: it outlives the arm that it drives."""

    def __init__(self, leader: Leader, standing: Standing) -> None:
        self.leader, self.standing = leader, standing

    def __getattr__(self, name: str) -> Any:
        return getattr(self.leader, name)

    def close(self) -> None:
        """Do nothing; `end` closes it."""

    def end(self) -> None:
        """Close the leader."""
        if callable(close := getattr(self.leader, "close", None)):
            close()


class ArmConnection:
    """The arms of a session, over all their connections."""

    def __init__(self, options: ArmOptions) -> None:
        self._options = options
        self._kept: _Kept | None = None
        self.rates = Rates.near(options.fps)
        self._lost, self._is_found = "", False
        self._agreed = threading.Event()
        with contextlib.ExitStack() as undo:
            undo.callback(self._end)
            self.now = self._connect()
            undo.pop_all()

    def _connect(self) -> _Driven:
        o = self._options
        with contextlib.ExitStack() as undo:
            follower, clock = _arms.follower_of(o.robot, o.station)
            undo.callback(disconnect, follower)
            person = self._person(follower, clock)
            undo.callback(disconnect, person)
            cameras = _arms.cameras_of(o.robot, clock)
            undo.callback(disconnect, *cameras)
            sensors = connect_sensors(o.sensors)
            undo.callback(disconnect, *sensors)
            rig = ArmRig(
                follower,
                self._led(follower, person),
                cameras,
                clock,
                self.rates,
                o.station,
                sensors=sensors,
                tracker=None if o.rolling is None else o.rolling.tracker(cameras, o.station),
                calibration=_arms.calibration_of(o.file, follower),
                gone=gone_of(person),
                is_watched=o.is_watched,
            )
            undo.pop_all()
        limits = rig.rig.safety.limits
        eyes = LoopMonitor(follower.joint_names, self.rates.period_s, o.fps, limits)
        return _Driven(rig, eyes, person)

    def _led(self, follower: Any, person: Any) -> Leader:
        """Return who drives the arm: the person, or a policy that the person can take over from."""
        rolling = self._options.rolling
        if rolling is None:
            led: Leader = person
            return led
        return rolling.leader(
            follower, self.rates, lambda: self.now.rig.rig.safety.sent_rad, person
        )

    def _person(self, follower: Any, clock: Any) -> Any:
        """Connect who leads the arm by hand; None where only a policy does."""
        rolling = self._options.rolling
        if rolling is None:
            return self._hand_led(follower, clock)
        if not rolling.has_person:
            return None
        from gaploop.teleop.lerobot_devices.aligning import aligning

        leader = self._hand_led(follower, clock)
        return aligning(leader) or leader  # a leader arm comes to the arm's pose first

    def _hand_led(self, follower: Any, clock: Any) -> Leader:
        o = self._options
        if self._kept is not None:
            self._kept.standing.now = follower
            return self._kept
        if _arms.kind(o.teleop) not in (_arms.KEYBOARD, _arms.GAMEPAD):
            return _arms.leader_of(o.teleop, follower, o.station, clock, hands=o.hands)
        standing = Standing(follower)
        leader = _arms.leader_of(o.teleop, standing, o.station, clock, hands=o.hands)
        self._kept = _Kept(leader, standing)
        return self._kept

    @property
    def window(self) -> Any:
        """The leader, where it is driven by a window's keys or a gamepad, else None."""
        return None if self._kept is None else self._kept.leader

    def start(self) -> None:
        """Drive."""
        self.now.rig.start((self.now.eyes, *subscribers(self.now.person)))

    def estop(self) -> None:
        """Stop the arm, at once."""
        self.now.rig.control.estop()

    def clear(self) -> None:
        """Let the arm go on after a trip, or drive one that was found again."""
        self._agreed.set()
        self.now.rig.control.clear()

    def loop(self) -> Loop:
        """Return how the control loop does, or what is lost."""
        if self._lost:
            return Loop(lost=self._lost, limp=True, found=self._is_found)
        snapshot = self.now.rig.control.snapshot()
        return self.now.eyes.loop(snapshot.tripped, snapshot)

    def find_again(self, lost: str, stop: Callable[[], bool]) -> bool:
        """Let go of everything, wait until all of it answers, and drive; False where it ends.

        Raises:
            LostError: what was found doesn't drive.
            DeviceError: nobody watches, and it doesn't answer in time.
        """
        if not stop():
            self._lost, self._is_found = lost, False
            log.warning("%s", lost)
        self.now.rig.close()
        if stop() or not self._found(stop):
            return False
        try:
            self.start()
        except DeviceError as error:
            self._lost, self._is_found = str(error), False
            raise LostError(str(error)) from error
        self._lost, self._is_found = "", False
        return True

    def _found(self, stop: Callable[[], bool]) -> bool:
        """Wait until everything answers and may move."""
        o = self._options
        found = find_again(
            self._connect,
            stop=stop,
            patience_s=math.inf if o.is_watched else o.patience_s,
            tell=self._tell,
        )
        if found is None:
            return False
        self.now = found
        return self._may_move(stop)

    def _tell(self, why: str) -> None:
        self._lost = why
        log.info("%s", why)

    def _may_move(self, stop: Callable[[], bool]) -> bool:
        """Wait for the operator's word, where there is an operator."""
        o = self._options
        self._agreed.clear()
        self._is_found = o.is_watched
        ask = f" Make sure that the arm may move, then press {o.clear_key} twice."
        self._tell(IS_BACK + (ask if o.is_watched else ""))
        while o.is_watched and not self._agreed.wait(LOOK_S):
            if stop():
                return False
        return True

    def close(self) -> None:
        """Torque off, and everything disconnected; safe to call twice."""
        for fault in self.now.rig.close():
            log.error("%s", fault)
        self._end()

    def _end(self) -> None:
        if self._kept is not None:
            self._kept.end()


@contextlib.contextmanager
def arm_cast(options: ArmOptions) -> Iterator[SessionDevices]:
    """Yield connected arms, torque off until `start`; torque is off and all is closed afterwards.

    Raises:
        DeviceError: a device doesn't answer.
        UnusableInputError: options or a calibration that can't be used.
    """
    with contextlib.closing(ArmConnection(options)) as line:
        yield SessionDevices(
            lambda conditions: line.now.rig.with_conditions(conditions),
            lambda _rig, _seed: line.now.rig.leader,
            lambda: line.now.eyes,
            Safety(line.estop, line.clear, line.loop),
            line.window,
            line.start,
            lambda: line.now.rig.control.stop(),
            lambda: line.now.rig.control.finish(),
            line.find_again,
        )
