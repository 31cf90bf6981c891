"""The checks of `gaploop preflight` that hold the arm: joints, loop, emergency stop."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator
from typing import Final

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.core.types import Tick
from gaploop.core.vocabulary import Domain
from gaploop.scripts._preflight_person import Terminal
from gaploop.teleop.control import ControlThread
from gaploop.teleop.loop import Rates
from gaploop.teleop.preflight.estop import check_estop, check_switch
from gaploop.teleop.preflight.item import By, Item, Person, Result
from gaploop.teleop.preflight.joints import OneJoint, check_joints
from gaploop.teleop.safety import make_safety

log = logging.getLogger(__name__)

SETTLED_TURNS: Final = 20
"""The loop's first turns are late: caches are cold."""


class Lateness:
    """A `TakeSink` that keeps how late the loop's turns began."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        self.late_s.append(tick.lateness_s)

    def check(self, period_s: float, domain: Domain) -> Item:
        """Return whether turns began before the next one was due."""
        late_s = self.late_s[SETTLED_TURNS:] or [0.0]
        worst_s = float(np.quantile(late_s, 0.99))
        data = {"late_p99_s": worst_s, "period_s": period_s, "turns": len(late_s)}
        found = f"turns of {period_s * 1e3:.0f} ms began at most {worst_s * 1e3:.2f} ms late (p99)"
        if worst_s <= period_s:
            return Item("loop", Result.OK, By.MACHINE, found, data=data)
        result = Result.FAIL if domain is Domain.REAL else Result.WARN
        mend = "End other programs; grant real-time rights: gaploop doctor"
        return Item("loop", result, By.MACHINE, found, mend, data)


def moving_checks(
    follower: Follower, clock: Clock, station: Station, rates: Rates, person: Person
) -> Iterator[Item]:
    """Hold the arm, move its joints, stop it, and have its power cut.

    Raises:
        DeviceError: a device failed.
        KeyboardInterrupt: Ctrl-C; torque is off.
    """
    safety = make_safety(station, follower, rates.period_s)
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    leader, lateness = OneJoint(follower.read().position_rad, limits_rad), Lateness()
    is_simulated = station.domain is Domain.SIM
    if not is_simulated:
        log.info(
            "The arm now holds, and moves joint by joint. Keep clear. Space is the emergency stop; "
            "Ctrl-C lets go of it."
        )
    control = ControlThread(
        follower, leader, safety, rates, clock=clock, sinks=(leader, lateness), until_done=False
    )
    with control, contextlib.ExitStack() as held, control.signals() as stopped:
        if isinstance(person, Terminal):
            person.gone = lambda: bool(stopped)
            held.enter_context(person.listening(control.estop))
        control.start()
        watcher, seed = None if is_simulated else person, secrets.randbelow(2**31)
        try:
            yield from check_joints(control, leader, follower.joint_names, watcher, seed)
        except DeviceError:
            if stopped:
                raise KeyboardInterrupt from None
            raise
        if isinstance(person, Terminal) and person.stopped:
            found = "stopped with the emergency stop" if person.is_there else "nobody is there"
            yield Item("estop", Result.FAIL, By.PERSON, found, "Check again from the start.")
            return
        yield lateness.check(rates.period_s, station.domain)
        yield check_estop(control, follower, safety.limits.torque_off_s)
        if not is_simulated:
            yield check_switch(control, person)
    if stopped:
        raise KeyboardInterrupt
