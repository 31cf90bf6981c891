"""What becomes of an arm that nobody drives any more: it is held, lowered to its rest, or let go.

The law is in docs/teleoperate/teleoperation.md, "However it ends". `Descent` keeps it, turn by
turn, for the control loop's thread after a trip, an error or an ordinary end, and for the
watchdog's where that thread hangs.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState
from gaploop.core.protocols import Follower
from gaploop.teleop.lowering import STILL_RAD, Lowering
from gaploop.teleop.safety import Response, SafetyFilter
from gaploop.teleop.stopping import CleanupStep, run_steps
from gaploop.teleop.trips import errors_of, say_reasons

log = logging.getLogger(__name__)

LIMP_WITHIN_S: Final = 0.08
"""How long a servo that doesn't confirm torque off is told again [s]: with the default hold of
0.1 s torque is off 0.2 s after a trip."""
FALLS_S: Final = 20.0
"""A damped arm comes to rest within this time [s]; then torque goes off for good."""
RESTS_S: Final = 1.0
"""It has, once it was still for so long [s]: what is braked creeps."""
RETRY_S: Final = 0.5
"""A servo that kept its torque is told again this often [s]: it may come back."""
HELD_KEY_S: Final = 0.12
"""Presses closer than this are of a key that is held down [s]."""
LOWERING: Final = "Lowering the arm: keep clear."
AGAIN: Final = "Press again to let go of it at once."
OFF_NOW: Final = "Torque is off now: every servo has confirmed it."


class Presses:
    """Counts presses of a stop; any thread and any signal handler may press.

    A key that is held down presses itself many times: that is one press.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.forget()

    def forget(self) -> None:
        """Begin anew: what was stopped goes on."""
        self.count, self._last_s = 0, -math.inf

    def press(self) -> None:
        """Take a press."""
        now_s = self._now_s()
        self.count = 1 if now_s - self._last_s < HELD_KEY_S else self.count + 1
        self._last_s = now_s

    @property
    def again(self) -> bool:
        """Whether it was pressed a second time, by a person rather than by a key held down."""
        return self.count > 1 and self._now_s() - self._last_s >= HELD_KEY_S


class Descent:
    """Holds an arm, lowers it or lets it go, as what happened asks for.

    Args:
        follower: an arm under torque, unless `is_limp`.
        safety: its filter: says what tripped, and bounds every goal on the way down.
        let_go: whether a person wants it let go of at once.
        resumed: whether a held arm may be driven again.
        ends: whether the program is to end, and was told so after the e-stop: to leave is a
            person's word to lower a held arm.
        turn: told of every turn, with what the arm reports; must not block.
        limp: joints without torque.
    """

    def __init__(
        self,
        follower: Follower,
        safety: SafetyFilter,
        clock: Clock,
        period_s: float,
        *,
        let_go: Callable[[], bool] = lambda: False,
        resumed: Callable[[], bool] = lambda: False,
        ends: Callable[[], bool] = lambda: False,
        turn: Callable[[FollowerState], None] = lambda _state: None,
        limp: frozenset[int] = frozenset(),
    ) -> None:
        self._follower, self._safety = follower, safety
        self._clock, self._period_s = clock, period_s
        self._let_go, self._resumed, self._ends, self._turn = let_go, resumed, ends, turn
        self.response: Response | None = None
        """What it is doing; None before and after."""
        self.lowering: Lowering | None = None
        self.is_limp = False
        """Torque is off, or can't be taken off."""
        self.faults: tuple[str, ...] = ()
        self.unconfirmed = ""
        """Which servos didn't confirm that they let go, and what to do."""
        self._released = limp

    def run(self) -> tuple[str, ...]:
        """Hold, lower or let go until the arm rests without torque, or is to be driven again.

        Returns what failed, a line each. `is_limp` tells which of the two it is.
        """
        attempt = CleanupStep()
        with attempt:
            self._run()
        if attempt.error is not None and not self.is_limp:  # it can't be lowered: such as no bus
            self._fall()
        self.response = None
        return self.faults

    def _run(self) -> None:
        safety, clock = self._safety, self._clock
        last_s = due_s = clock.now_s()
        has_held = False
        while True:
            now_s = clock.now_s()
            state = self._follower.read()
            read_s = clock.now_s()
            safety.watch(state, now_s, self._released)
            response = Response.LET_GO if self._let_go() else safety.response
            if response is Response.HOLD:
                if has_held and self._resumed():
                    return
                if self._ends():
                    response = Response.LOWER
                else:
                    has_held = True
            self.response = response
            if response is Response.LET_GO:
                if self.lowering is not None and not self._let_go():  # else somebody knows why
                    why = say_reasons(safety.tripped, errors_of(state.status.tolist()))
                    log.warning("The arm is let go of on its way down: %s.", why)
                self._fall()
                return
            if ill := safety.ill - self._released:
                self._release(ill)
            if response is Response.HOLD:
                self.lowering = None
                self._follower.send(safety.hold())
            else:
                if self.lowering is None:
                    self.lowering = safety.lowering(self._released)
                    if not self.lowering.rests(state):
                        log.warning("%s", LOWERING)
                goal = self.lowering.step(state, read_s - last_s)
                if self.lowering.done:
                    self._fall()  # by a hair's breadth, and damped where something still gives
                    return
                self._follower.send(safety.lower(goal))
            self._turn(state)
            last_s = read_s
            due_s = max(due_s + self._period_s, clock.now_s())
            clock.sleep_until(due_s)

    def _release(self, joints: frozenset[int]) -> None:
        """Let go of one servo that is too hot or faulty, where the arm can do that."""
        self._released |= joints
        self.lowering = None  # begun anew, without it
        device: Any = self._follower
        if callable(release := getattr(device, "release", None)):
            self.faults += run_steps([("releasing a servo", lambda: release(joints))])

    def _fall(self) -> None:
        """Let go at once; wait, where motors brake the fall, until the arm is at rest."""
        self.response = Response.LET_GO
        failed = let_go(self._follower)
        self.faults, self.unconfirmed = self.faults + failed, "".join(failed).partition(": ")[2]
        if getattr(self._follower, "damps", False):
            with CleanupStep():
                self._until_still()
            failed = take_torque_off(self._follower)
            self._confirm(failed)
            self.faults += failed
        self.is_limp = True

    def _until_still(self) -> None:
        clock, device = self._clock, cast(Any, self._follower)
        began_s = still_s = told_s = clock.now_s()
        at: FloatArray = np.full(len(self._follower.joint_names), np.nan)
        while (now_s := clock.now_s()) - began_s < FALLS_S and now_s - still_s < RESTS_S:
            state = self._follower.read()
            q = np.where(state.status & NO_REPLY, np.nan, state.position_rad)
            is_first = np.isnan(at).all() and not np.isnan(q).all()
            if is_first or (np.abs(q - at) > STILL_RAD).any():  # of a pulled cable nothing is heard
                at, still_s = q, now_s
            if self.unconfirmed and now_s - told_s >= RETRY_S:  # one that is back brakes, too
                told_s = now_s
                off = run_steps([("torque off", lambda: device.torque_off(damped=True))])
                self._confirm(off)
            self._turn(state)
            clock.sleep_until(now_s + self._period_s)

    def _confirm(self, failed: tuple[str, ...]) -> None:
        """Take back that servos didn't let go, where they do now."""
        if self.unconfirmed and not failed:
            log.warning("%s", OFF_NOW)
            self.faults, self.unconfirmed = without_torque(self.faults), ""


def let_go(follower: Follower) -> tuple[str, ...]:
    """Take torque off, damped where the servos can brake; return what failed."""
    device: Any = follower
    if getattr(device, "damps", False):
        return _told_again(lambda: device.torque_off(damped=True))
    return take_torque_off(follower)


def take_torque_off(follower: Follower) -> tuple[str, ...]:
    """Take torque off; return what failed, so that it doesn't hide why torque had to go off.

    On a lossy bus a servo may miss it; it is told again while that can still come in time.
    """
    return _told_again(follower.torque_off)


def without_torque(faults: tuple[str, ...]) -> tuple[str, ...]:
    """Return what else failed, once all servos have confirmed that torque is off."""
    return tuple(fault for fault in faults if not fault.startswith("torque off: "))


def _told_again(off: Callable[[], object]) -> tuple[str, ...]:
    give_up_s = time.monotonic() + LIMP_WITHIN_S
    while faults := run_steps([("torque off", off)]):
        if time.monotonic() >= give_up_s:
            break
    for fault in faults:
        log.error("%s", fault)
    return faults


def say_doing(descent: Descent | None) -> str:
    """Return what a person reads while an arm is held, lowered or falls; "" before and after."""
    if descent is None or descent.response is None:
        return ""
    if descent.response is Response.HOLD:
        return f"The arm holds. {AGAIN}"
    if descent.response is Response.LET_GO:
        return descent.unconfirmed or "The arm is let go of."
    left_s = descent.lowering.left_s if descent.lowering is not None else 0.0
    left = "It gives way." if math.isnan(left_s) else f"About {left_s:.0f} s left."
    return f"{LOWERING} {left} {AGAIN}"
