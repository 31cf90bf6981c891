"""A policy that takes part in a session: it drives an arm, and a person can take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gaploop.collect.intervention import Driver, SharedLeader
from gaploop.collect.operator.console import Driving
from gaploop.collect.operator.screen_content import Driven
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rollout import Attempts
from gaploop.collect.take_over import TakeOver
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import CameraSource, Follower, Leader, Policy, SceneTracker
from gaploop.core.station import Station
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Domain
from gaploop.teleop.loop import Rates


class Rolling:
    """What a session with a policy has that one without hasn't.

    Args:
        policy: drives.
        make_policy_leader: makes it a leader, from the follower, its frame and control rate [Hz].
        attempts: runs attempts.
        wishes: when the person takes over and hands back unasked, for a follower and a rate [Hz].
        has_person: somebody can take over.
        drives_between: the arm is driven between attempts, too.
    """

    def __init__(
        self,
        policy: Policy,
        make_policy_leader: Callable[[Policy, Follower, float, float], PolicyLeader],
        attempts: Attempts,
        wishes: Callable[[Follower, float], TakeOver],
        *,
        has_person: bool,
        drives_between: bool,
    ) -> None:
        self.policy, self.attempts, self.has_person = policy, attempts, has_person
        self._make, self._wishes, self._drives_between = make_policy_leader, wishes, drives_between
        self._leader: SharedLeader | None = None

    def leader(
        self,
        follower: Follower,
        rates: Rates,
        sent_rad: Callable[[], FloatArray],
        person: Leader | None,
    ) -> SharedLeader:
        """Return who drives an arm: the policy, and the person who can take over.

        Args:
            follower: the arm.
            rates: of the loop.
            sent_rad: says where the arm was sent last [rad], shape (n_joints,).
            person: who leads it by hand; left out where nobody can take over.

        Raises:
            UnusableInputError: the policy was trained at another rate.
        """
        policy = self._make(self.policy, follower, rates.fps, rates.control_hz)
        wishes = self._wishes(follower, rates.fps)
        self._leader = SharedLeader(policy, person if self.has_person else None, sent_rad, wishes)
        return self._leader

    def driving(self) -> Driving:
        """Return what the operator sees of it, and has a say in."""
        return Driving(self._switch, self._driven)

    def _switch(self) -> None:
        if self._leader is not None and self._can_switch:
            self._leader.toggle()

    @property
    def _can_switch(self) -> bool:
        return self.has_person and (self.attempts.running or self._drives_between)

    def _driven(self) -> Driven:
        leader, attempts = self._leader, self.attempts
        is_on = leader is not None and (attempts.running or self._drives_between)
        return Driven(
            leader.driver if leader is not None and is_on else Driver.NOBODY,
            self._can_switch,
            attempts.speed.scale,
            attempts.speed.successes,
            leader.interventions if leader is not None else 0,
            attempts.person_s,
        )

    def tracker(self, cameras: Sequence[CameraSource], station: Station) -> SceneTracker | None:
        """Return what reads the scene for a policy that needs it, from the first camera.

        Raises:
            UnusableInputError: nothing can.
        """
        if not getattr(self.policy, "needs_scene", False):
            return None
        from gaploop.sim.arms import arm_of
        from gaploop.sim.tracker import Tracker

        if station.domain is Domain.REAL:
            raise UnusableInputError(
                "The policy needs the tracked scene, and the tracker knows the embedded cell's "
                "camera only. Train one on what the arm records, or use the embedded or an "
                "emulated cell."
            )
        if not cameras:
            raise UnusableInputError(
                "The policy needs the tracked scene, and there is no camera. Give the robot the "
                "cell's overhead camera: gaploop emulate --cameras, then --robot.cameras."
            )
        height, width = cameras[0].frame().image.shape[:2]
        if height != width:
            raise UnusableInputError(
                f"The tracker needs the cell's square pictures; camera {cameras[0].name} gives "
                f"{width} x {height}."
            )
        return Tracker.nominal(width, arm=arm_of(getattr(self.policy, "robot_type", "")))
