"""Who and what takes part in an attended session, and the embedded cell as such."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gaploop.collect.operator.console import Safety
from gaploop.collect.operator.loop_monitor import LoopMonitor
from gaploop.collect.rig import EmbeddedRig, Rig, scripted_leader
from gaploop.collect.session import MakeLeader, MakeRig
from gaploop.core.protocols import Follower, Leader
from gaploop.core.types import FollowerState
from gaploop.scripts import _arms
from gaploop.scripts._rolling import Rolling
from gaploop.teleop.realtime import SWITCH_INTERVAL_S

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionDevices:
    """Who and what takes part.

    Attributes:
        make_rig: as `record_takes` wants it.
        make_leader: likewise.
        eyes: watches the loop now; None before the first take.
        safety: what the operator can do to the arm.
        leader: one that has a window, or None.
        start: begin to drive; called once everything else is ready.
        let_go: stop driving, for good: torque goes off at once, while takes are still sealed.
        finish: torque off, disconnect; raises what went wrong.
        find_again: called with what was lost, in words; lets go of all devices, waits until they
            answer and drives again. False where the session ends meanwhile; raises LostError where
            what was found doesn't drive.
    """

    make_rig: MakeRig
    make_leader: MakeLeader
    eyes: Callable[[], LoopMonitor | None]
    safety: Safety
    leader: Any = None
    start: Callable[[], None] = lambda: None
    let_go: Callable[[], None] = lambda: None
    finish: Callable[[], object] = lambda: None
    find_again: Callable[[str, Callable[[], bool]], bool] = lambda _lost, _stop: False


def led(rolling: Rolling | None, leader: Leader | None) -> MakeLeader:
    """Return what makes who drives the embedded cell.

    Args:
        rolling: the policy that drives and is taken over from, if any.
        leader: who leads by hand; the cell's expert where None.
    """

    def make(rig: Rig, seed: int) -> Leader:
        person = leader if leader is not None else scripted_leader(rig, seed)
        if rolling is None:
            return person
        return rolling.leader(rig.follower, rig.rates, lambda: rig.safety.sent_rad, person)

    return make


def in_window(leader: Leader) -> Any:
    """Return the leader if it is driven by a window's keys or a gamepad, else None."""
    return leader if hasattr(leader, "host") else None


# -- the embedded cell --------------------------------------------------------------------------


class _PacedClock:
    """The cell's time, as fast as real time since its last reset."""

    def __init__(self, rig: EmbeddedRig) -> None:
        self._cell = rig.cell
        self.restart()

    def restart(self) -> None:
        """Begin anew: the cell has been reset."""
        from gaploop.sim.follower import PacedCellClock

        self._paced = PacedCellClock(self._cell)
        self.now_s, self.sleep_until = self._paced.now_s, self._paced.sleep_until


class Standing:
    """The arm of whichever rig is set up: what a leader that outlives rigs is made for."""

    def __init__(self, follower: Follower) -> None:
        self.now = follower
        self.name, self.robot_type, self.units = follower.name, follower.robot_type, follower.units
        self.joint_names, self.joint_limits_rad = follower.joint_names, follower.joint_limits_rad
        self.send, self.torque_on, self.torque_off = (
            follower.send,
            follower.torque_on,
            follower.torque_off,
        )
        self.to_units, self.from_units = follower.to_units, follower.from_units
        self.close = follower.close

    def read(self) -> FollowerState:
        """Return what the arm that is set up now reports."""
        return self.now.read()


@contextlib.contextmanager
def embedded_cast(
    make: Callable[[Mapping[str, object]], EmbeddedRig],
    teleop: Any,
    hands: Any,
    rolling: Rolling | None = None,
) -> Iterator[SessionDevices]:
    """Yield the embedded cell in real time, led by its expert or by somebody's hand.

    Args:
        make: builds the rig for some conditions.
        teleop: LeRobot's config of the leader, or None for the expert.
        hands: speeds and forces of a leader.
        rolling: the policy that drives and is taken over from, if any.

    Raises:
        DeviceError: the leader doesn't answer.
        UnusableInputError: it doesn't fit.
    """
    now: list[tuple[EmbeddedRig, LoopMonitor]] = []
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)  # a leader's window must be heard in time
        standing, leader = None, None
        if teleop is not None and _arms.kind(teleop) != _arms.EXPERT:
            first = make({})
            cleanup.callback(first.close)
            standing = Standing(first.follower)
            leader = _arms.leader_of(teleop, standing, first.station, first.clock, hands=hands)
            if callable(close := getattr(leader, "close", None)):
                cleanup.callback(close)

        def make_rig(conditions: Mapping[str, object]) -> Rig:
            rig = make(conditions)
            clock, limits = _PacedClock(rig), rig.safety.limits

            def reset(seed: int) -> None:
                rig.reset(seed)
                clock.restart()

            if standing is not None:
                standing.now = rig.follower
            paced = replace(rig, clock=clock, reset=reset)
            period_s = rig.rates.period_s
            now[:] = [(paced, LoopMonitor(rig.follower.joint_names, period_s, rig.fps, limits))]
            return paced

        yield SessionDevices(
            make_rig,
            led(rolling, leader),
            lambda: now[0][1] if now else None,
            Safety(
                lambda: now[0][0].safety.estop() if now else None,
                lambda: now[0][0].safety.clear() if now else None,
                lambda: now[0][1].loop(now[0][0].safety.tripped) if now else Safety().loop(),
            ),
            None if leader is None else in_window(leader),
        )
