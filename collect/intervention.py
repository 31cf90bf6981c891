"""A policy and a person who share an arm: who drives, when they switch, and how without a jump.

A hand-over begins where the arm was sent last. A leader arm that can be moved is brought to the
follower's pose first. Any other takes over relatively: its motion counts from where it stood, and
what it differs by shrinks only as it is moved, so the arm never moves by itself and ends up where
its leader is. Handing back, the policy forgets what it had planned, plans anew from the next
observation, and its first targets are eased into.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import numpy as np

from gaploop.collect.policy_leader import Pace, PolicyLeader
from gaploop.core.errors import LostError, UnusableInputError
from gaploop.core.messages import FloatArray, LeaderSample, Observation
from gaploop.core.protocols import Leader
from gaploop.teleop.stopping import CleanupStep, one_line

STILL_RAD: Final = 0.02
"""An arm whose joints stay within this stands still [rad]."""
STALL_S: Final = 1.5
"""A person takes over after the arm has stood still this long [s], …"""
LATE_S: Final = 6.0
"""… or after the policy has driven this long without success [s]."""


class OnStall:
    """Says when a person takes over because the arm stands still, or an attempt takes too long.

    For runs that nobody watches, with policy frames at `fps` [Hz] in LeRobot units.
    """

    def __init__(self, fps: float, from_units: Callable[[FloatArray], FloatArray]) -> None:
        self._from_units = from_units
        self._stall, self._late = max(1, round(STALL_S * fps)), max(1, round(LATE_S * fps))
        self.reset(1.0)

    def reset(self, speed_scale: float) -> None:
        """Get ready for a new attempt; a slow policy is given that much longer."""
        self._slower = 1.0 / speed_scale
        self.switched()

    def switched(self) -> None:
        """Count from here on."""
        self._frames = self._still = 0
        self._stands_rad: FloatArray | None = None

    def frame(self, observation: Observation) -> bool:
        """Look at a frame that the policy drives in; say whether a person takes over."""
        self._frames += 1
        q_rad = self._from_units(observation.state)
        if self._stands_rad is None or np.abs(q_rad - self._stands_rad).max() > STILL_RAD:
            self._stands_rad, self._still = q_rad, 0
        self._still += 1
        return max(self._still / self._stall, self._frames / self._late) > self._slower


SHRINK: Final = 0.5
"""An offset shrinks by this share of the leader's motion: the arm still moves the way its leader
does, half as fast at the least and half as fast again at the most."""
EASE_S: Final = 0.5
"""A policy that is handed the arm back reaches its own targets after this [s]."""
ALIGN_S: Final = 5.0
"""A leader arm that isn't in place after this is let go of where it stands [s]."""


class Driver(StrEnum):
    """Who drives."""

    NOBODY = "nobody"
    """The arm holds."""
    POLICY = "policy"
    PERSON = "person"
    ALIGNING = "aligning"
    """The arm holds while the leader arm comes to its pose."""
    SCRIPT = "script"
    """The robot puts the scene back."""


@runtime_checkable
class Alignable(Protocol):
    """A leader that can be moved to the follower's pose."""

    def align(self, q_rad: FloatArray, t_s: float) -> bool:
        """Move on towards the follower's `q_rad` [rad]; say whether it is there."""

    def let_go(self) -> None:
        """Be limp again."""


class Offset:
    """What a leader's pose differs by from the arm that it takes over [rad], shape (n_joints,)."""

    def __init__(self, arm_rad: FloatArray, leader_rad: FloatArray) -> None:
        self._offset, self._leader = arm_rad - leader_rad, leader_rad

    def apply(self, leader_rad: FloatArray) -> FloatArray:
        """Return the target for the leader's pose [rad]; what isn't finite is handed on."""
        if not np.isfinite(leader_rad).all():
            return leader_rad
        moved = np.abs(leader_rad - self._leader)
        left = np.maximum(np.abs(self._offset) - SHRINK * moved, 0.0)
        self._offset, self._leader = np.sign(self._offset) * left, leader_rad
        return leader_rad + self._offset


class SharedLeader:
    """Policy and person as one `Leader`; samples say in `intervention` whether the person drives.

    `begin`, `rest`, `take_over` and `toggle` may be called from any thread; what they
    ask for happens at the loop's next turn. `sent_rad` says where the arm was sent last [rad],
    shape (n_joints,). Where nobody drives the arm holds, and a base stands.
    """

    def __init__(
        self,
        policy: PolicyLeader,
        person: Leader | None,
        sent_rad: Callable[[], FloatArray],
        stall: OnStall | None = None,
    ) -> None:
        self._policy, self._person, self._sent_rad = policy, person, sent_rad
        self._stall = stall
        self.servo_joints = tuple(getattr(person, "servo_joints", ()))
        self.where = str(getattr(person, "where", ""))
        movable: object = person
        self._movable = movable if isinstance(movable, Alignable) else None
        self._script: Leader | None = None
        self._orders: deque[Callable[[float], None]] = deque()
        self.driver = Driver.NOBODY
        """Who drives now."""
        self._may_drive = False
        self.fault = ""
        """Why the policy doesn't drive any more in this attempt, or ""."""
        self.is_lost = False
        """Whether that is because it can't be reached: no fault of its own."""
        self.interventions = 0
        """How often the person took over since `begin`."""
        self._now_s = self._since_s = 0.0
        self._hold: FloatArray = np.empty(0)
        self._offset: Offset | None = None
        self._handed_back = False
        self._eases_since_s = -math.inf
        """When a policy that was handed the arm back began to drive it [s]."""

    @property
    def pace(self) -> Pace:
        """How long the policy took in this attempt."""
        return self._policy.pace

    def begin(self, speed_scale: float = 1.0) -> None:
        """Let the policy drive an attempt, from the next observation on, at a share of speed."""
        self.fault, self.is_lost, self.interventions = "", False, 0

        def start(_t_s: float) -> None:
            self._policy.speed_scale, self._policy.pace = speed_scale, Pace()
            self._may_drive = True
            self._stop_and_hold()
            if self._stall is not None:
                self._stall.reset(speed_scale)

        self._orders.append(start)

    def rest(self) -> None:
        """Let nobody drive: the attempt is over, and the arm holds."""

        def stop(_t_s: float) -> None:
            self._may_drive = False
            self._stop_and_hold()

        self._orders.append(stop)

    def lend(self, script: Leader) -> None:
        """Let something else drive, until `rest`, or until a person takes over."""

        def start(_t_s: float) -> None:
            self._stop_and_hold()
            self.driver, self._script = Driver.SCRIPT, script

        self._orders.append(start)

    def take_over(self) -> None:
        """Let the person drive."""
        self._orders.append(self._take_over)

    def toggle(self) -> None:
        """Take over, or hand back."""
        self._orders.append(
            lambda t_s: (self._take_over if self._is_policys else self._hand_back)(t_s)
        )

    # -- Leader -----------------------------------------------------------------------------

    def reset(self) -> None:
        """Get ready for a new take; whether a policy may drive in it, `begin` says."""
        self._stop_and_hold()
        if self._person is not None:
            self._person.reset()

    def done(self) -> bool:
        """Say whether the person who drives has nothing more to ask for."""
        return self.driver is Driver.PERSON and self._person is not None and self._person.done()

    def observe(self, observation: Observation) -> None:
        """Show the policy a frame, as the loop's `on_frame`; raises UnusableInputError."""
        self._obey(self._now_s)
        policys = self.driver is Driver.POLICY
        if policys and self._stall is not None and self._stall.frame(observation):
            self.take_over()
        starts = self.driver is Driver.NOBODY and self._may_drive and not self.fault
        if not starts and self.driver is not Driver.POLICY:
            return
        self.driver = Driver.POLICY
        with CleanupStep() as attempt:
            if starts:
                self._policy.start_from(self._held())
            self._policy.observe(observation)
        if isinstance(attempt.error, UnusableInputError):
            raise attempt.error
        if attempt.error is not None:
            self.fault, self.is_lost = one_line(attempt.error), True
            if not isinstance(attempt.error, LostError):
                self.fault, self.is_lost = f"{type(attempt.error).__name__}: {self.fault}", False
            self._stop_and_hold()

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s]."""
        self._now_s = t_s
        self._obey(t_s)
        # The person's leader is read on every turn where that costs or changes nothing.
        is_device = self._person is not None and bool(self.servo_joints)
        asked = self._person.read(t_s) if is_device and self._person is not None else None
        if self.driver is Driver.ALIGNING:
            is_late = t_s - self._since_s >= ALIGN_S
            if self._movable is None or self._movable.align(self._hold, t_s) or is_late:
                self._let_go()
                self.driver = Driver.PERSON
                self._count()
        state = asked.state if asked is not None else None
        if self._script is not None:
            return LeaderSample(t_s, self._script.read(t_s).q_rad, state=state)
        if self.driver is Driver.POLICY:
            sample = self._policy.read(t_s)
            if self._handed_back:
                self._handed_back, self._eases_since_s = False, t_s
            if (share := (t_s - self._eases_since_s) / EASE_S) < 1.0:
                sample = replace(sample, q_rad=self._hold + share * (sample.q_rad - self._hold))
            return replace(sample, state=state)
        if self.driver is Driver.PERSON and self._person is not None:
            asked = asked or self._person.read(t_s)
            return LeaderSample(asked.t_s, self._from_person(asked.q_rad), True, asked.state)
        aligning = self.driver is Driver.ALIGNING
        return LeaderSample(t_s, self._hold if aligning else self._held(), state=state)

    def close(self) -> None:
        """Close the person's leader and the policy's thread; safe to call twice."""
        self._policy.close()
        close = getattr(self._person, "close", None)
        if callable(close):
            close()

    # -- who drives -------------------------------------------------------------------------

    @property
    def _is_policys(self) -> bool:
        return self.driver in (Driver.POLICY, Driver.NOBODY, Driver.SCRIPT)

    def _obey(self, t_s: float) -> None:
        while self._orders:
            self._orders.popleft()(t_s)

    def _stop_and_hold(self) -> None:
        if self.driver is Driver.ALIGNING:
            self._let_go()
        self.driver, self._hold = Driver.NOBODY, self._held()
        self._script = None
        self._offset, self._handed_back, self._eases_since_s = None, False, -math.inf

    def _take_over(self, t_s: float) -> None:
        if self._person is None or not self._is_policys:
            return
        self._stop_and_hold()
        self._person.reset()  # what a hand-held leader remembers is from before the policy drove
        self._since_s = t_s
        self.driver = Driver.PERSON if self._movable is None else Driver.ALIGNING
        if self._movable is None:
            self._count()

    def _count(self) -> None:
        self.interventions += 1
        if self._stall is not None:
            self._stall.switched()

    def _hand_back(self, _t_s: float) -> None:
        self._stop_and_hold()
        self._handed_back = True
        if self._stall is not None:
            self._stall.switched()

    def _let_go(self) -> None:
        if self._movable is not None:
            self._movable.let_go()

    # -- what is asked ----------------------------------------------------------------------

    def _held(self) -> FloatArray:
        """Return what holds the arm where it was sent last; to hold a base's speed is to drive."""
        return np.where(self._policy.is_speed, 0.0, self._sent_rad())

    def _from_person(self, q_rad: FloatArray) -> FloatArray:
        if self._offset is None:
            if not np.isfinite(q_rad).all():
                return self._hold
            self._offset = Offset(np.where(self._policy.is_speed, q_rad, self._hold), q_rad)
        return self._offset.apply(q_rad)
