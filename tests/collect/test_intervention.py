"""Policy and person share an arm: no hand-over is a jump, and the flags say who drives."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.intervention import (
    EASE_S,
    SHRINK,
    Driver,
    Offset,
    OnStall,
    SharedLeader,
)
from gaploop.collect.policy_leader import AsyncPolicyDriver, PolicyLeader
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, Observation
from gaploop.core.station import SafetyLimits
from gaploop.teleop.safety import DrivingFilter, SafetyFilter

HZ, FPS = 200.0, 50.0
EVERY = round(HZ / FPS)
LIMITS = np.array([[-2.0, 2.0]] * 3)


class Arm:
    """A follower that stands where it is sent; radians are its units."""

    name, robot_type, units = "follower", "test", "rad"
    joint_names: tuple[str, ...] = ("a", "b", "c")
    joint_limits_rad = LIMITS

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return q_rad

    def from_units(self, values: FloatArray) -> FloatArray:
        return np.asarray(values, dtype=np.float64)

    def read(self) -> Any: ...
    def send(self, command: Any) -> None: ...
    def torque_on(self) -> None: ...
    def torque_off(self) -> None: ...
    def close(self) -> None: ...


class Cart(Arm):
    """The same with a base, whose speed stands last."""

    joint_names = ("a", "b", "x.vel")


class Script:
    """A policy that answers with its targets in turn and counts resets."""

    fps = FPS

    def __init__(self, targets: Sequence[FloatArray]) -> None:
        self.targets, self.asked, self.resets = list(targets), 0, 0

    def reset(self) -> None:
        self.resets += 1

    def act(self, observation: Observation) -> FloatArray:
        del observation
        self.asked += 1
        return self.targets[(self.asked - 1) % len(self.targets)]


class Hand:
    """A leader that a hand moves through a given path; it can't be moved itself."""

    def __init__(self, path: Sequence[FloatArray]) -> None:
        self.path, self.turn, self.over = list(path), 0, False

    def reset(self) -> None: ...

    def read(self, t_s: float) -> LeaderSample:
        q_rad = self.path[min(self.turn, len(self.path) - 1)]
        self.turn += 1
        return LeaderSample(t_s, q_rad)

    def done(self) -> bool:
        return self.over


class Powered(Hand):
    """A leader arm that comes to the follower's pose by itself, 0.05 rad a turn."""

    moves = True

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, self.path[0])

    def align(self, q_rad: FloatArray, t_s: float) -> bool:
        del t_s
        if self.moves:
            self.path[0] = self.path[0] + np.clip(q_rad - self.path[0], -0.05, 0.05)
        return bool(np.abs(q_rad - self.path[0]).max() < 1e-3)

    def let_go(self) -> None:
        self.moves = False


class Bench:
    """Turns of the loop through the real safety filter."""

    def __init__(
        self,
        policy: Any,
        person: Any,
        wishes: Any = None,
        arm: Any = Arm,
        leads: Any = PolicyLeader,
    ) -> None:
        speeds = sum(name.endswith(".vel") for name in arm.joint_names)
        made = functools.partial(DrivingFilter, speeds=speeds) if speeds else SafetyFilter
        self.safety = made(SafetyLimits(), LIMITS, 1 / HZ)
        self.safety.reset(np.zeros(3))
        leader = leads(policy, arm(), FPS, HZ)
        self.shared = SharedLeader(leader, person, lambda: self.safety.sent_rad, wishes)
        self.turns = 0
        self.samples: list[LeaderSample] = []
        self.sent: list[FloatArray] = [np.zeros(3)]
        self.drivers: list[Driver] = []

    def run(self, turns: int) -> None:
        for _ in range(turns):
            t_s = self.turns / HZ
            nothing = np.full(3, math.nan)
            zero = np.zeros(3, dtype=np.int64)
            state = FollowerState(t_s, self.sent[-1], *(nothing,) * 5, zero)
            if self.turns % EVERY == 0:
                self.shared.observe(Observation(self.sent[-1], None, {}))
            sample = self.shared.read(t_s)
            command = self.safety.filter(sample, state, t_s)
            self.samples.append(sample)
            self.drivers.append(self.shared.driver)
            self.sent.append(command.sent_rad)
            self.turns += 1


angles = st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3).map(np.array)
walks = st.lists(
    st.lists(st.floats(-0.01, 0.01), min_size=3, max_size=3).map(np.array), min_size=1, max_size=300
)


@settings(max_examples=60, deadline=None)
@given(
    targets=st.lists(angles, min_size=1, max_size=20),
    start=angles,
    steps=walks,
    switches=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_no_sequence_of_switches_is_a_jump(
    targets: list[FloatArray], start: FloatArray, steps: list[FloatArray], switches: list[int]
) -> None:
    path = list(start + np.cumsum(steps, axis=0))
    bench = Bench(Script(targets), Hand(path))
    bench.shared.begin()
    bench.run(3 * EVERY)
    for turns in switches:
        bench.shared.toggle()
        at = bench.turns
        bench.run(turns)
        # What is asked for at the switch is where the arm was sent: neither side begins elsewhere.
        np.testing.assert_allclose(bench.samples[at].q_rad, bench.sent[at], atol=1e-9)
    sent = np.array(bench.sent)
    speed = np.abs(np.diff(sent, axis=0)) * HZ
    limits = SafetyLimits()
    assert speed.max() <= limits.velocity_rad_s + 1e-9
    growth = np.maximum(np.diff(speed, axis=0), 0.0) * HZ
    assert growth.max() <= limits.acceleration_rad_s2 + 1e-6
    for driver, sample in zip(bench.drivers, bench.samples, strict=True):
        assert sample.intervention is (driver is Driver.PERSON)
    wanted = [bool(k % 2 == 0) for k, turns in enumerate(switches) for _ in range(turns)]
    assert [s.intervention for s in bench.samples[3 * EVERY :]] == wanted


@settings(max_examples=60, deadline=None)
@given(arm=angles, start=angles, steps=walks)
def test_an_arm_moves_only_as_its_leader_does_and_ends_where_it_is(
    arm: FloatArray, start: FloatArray, steps: list[FloatArray]
) -> None:
    offset = Offset(arm, start)
    target, pose = arm, start
    for step in steps:
        pose = pose + step
        now = offset.apply(pose)
        moved = now - target
        assert (np.abs(moved) <= (1 + SHRINK) * np.abs(step) + 1e-12).all()
        assert (moved * np.sign(step) >= -1e-12).all()
        assert (np.abs(now - pose) <= np.abs(target - (pose - step)) + 1e-12).all()
        target = now
    for k in range(2 * 700):
        target = offset.apply(pose + 0.01 * (k % 2))
    np.testing.assert_allclose(target, pose + 0.01, atol=1e-9)


def test_handing_back_plans_anew_and_eases_in() -> None:
    """A policy that went on with its old plan would pull the arm back to where it failed."""
    far = np.array([1.0, -1.0, 0.5])
    policy = Script([far])
    bench = Bench(policy, Hand([np.zeros(3)]))
    bench.shared.begin()
    bench.run(EVERY)
    bench.shared.take_over()
    bench.run(2)
    resets, asked = policy.resets, policy.asked
    bench.run(10 * EVERY)
    assert policy.asked == asked, "the policy isn't asked while the person drives"
    bench.shared.toggle()
    at = bench.turns
    bench.run(EVERY)
    assert policy.resets > resets
    early = [np.abs(s.q_rad - bench.sent[at]).max() for s in bench.samples[at : at + EVERY]]
    assert max(early) < 0.05
    bench.run(round(2 * EASE_S * HZ))
    np.testing.assert_allclose(bench.samples[-1].q_rad, far, atol=1e-9)


def test_a_leader_arm_with_torque_is_brought_to_the_follower_first() -> None:
    bench = Bench(Script([np.zeros(3)]), Powered([np.array([0.6, -0.4, 0.2])]))
    bench.shared.begin()
    bench.run(EVERY)
    bench.shared.take_over()
    bench.run(30)
    assert list(dict.fromkeys(bench.drivers)) == [
        Driver.POLICY,
        Driver.ALIGNING,
        Driver.PERSON,
    ]
    assert np.abs(np.array(bench.sent)).max() < 1e-9, "the arm waits while its leader comes"
    aligning = [
        s for s, d in zip(bench.samples, bench.drivers, strict=True) if d is Driver.ALIGNING
    ]
    assert not any(s.intervention for s in aligning), "waiting is nobody's demonstration"
    assert bench.shared.interventions == 1


def test_a_policy_drives_in_an_attempt_only() -> None:
    """Between two attempts a loop of real arms goes on: the policy must not."""
    policy = Script([np.ones(3)])
    bench = Bench(policy, Hand([np.zeros(3)]))
    bench.run(5 * EVERY)
    assert policy.asked == 0
    bench.shared.begin()
    bench.run(5 * EVERY)
    bench.shared.rest()
    bench.run(1)
    at = bench.sent[-1]
    bench.run(10 * EVERY)
    np.testing.assert_array_equal(bench.sent[-1], at)
    bench.shared.toggle()
    bench.run(5)
    assert bench.shared.driver is Driver.PERSON, "the person may put things back"


def test_a_policy_that_fails_lets_the_arm_hold_and_says_why() -> None:
    class Broken(Script):
        def act(self, observation: Observation) -> FloatArray:
            if self.asked == 3:
                raise RuntimeError("CUDA error:\nout of memory")
            return super().act(observation)

    bench = Bench(Broken([np.ones(3)]), Hand([np.zeros(3)]))
    bench.shared.begin()
    bench.run(10 * EVERY)
    assert bench.shared.fault == "RuntimeError: CUDA error: out of memory"
    np.testing.assert_array_equal(bench.sent[-1], bench.sent[-2])
    assert np.isfinite(bench.samples[-1].q_rad).all()


CRUISING = np.array([0.1, 0.0, 0.2])  # and 0.2 m/s


class Asked(Hand):
    """A person who is at the arm, and asks a base for a speed."""

    def __init__(self, speed_m_s: float = 0.0) -> None:
        super().__init__([np.array([0.1, 0.0, speed_m_s])])


@pytest.mark.parametrize("person", [Asked(), Powered([np.array([0.6, -0.4, 0.0])])])
def test_a_base_goes_no_further_by_what_a_policy_asked_once_the_policy_drives_no_more(
    person: Any,
) -> None:
    """A policy drove a base at 0.2 m/s. Who took over, from an arm that gives no speeds, had an
    offset of 0.2 m/s to them; between attempts, and while a leader arm came to its pose, the speed
    was held like an angle: the base drove on."""
    bench = Bench(Script([CRUISING]), person, arm=Cart)
    bench.shared.begin()
    bench.run(round(HZ))
    assert bench.sent[-1][2] == pytest.approx(0.2)
    bench.shared.take_over()
    bench.run(1)
    assert bench.sent[-1][2] == 0.0
    bench.run(round(HZ))
    assert bench.shared.driver is Driver.PERSON
    assert bench.sent[-1][2] == 0.0
    bench.shared.toggle()
    bench.run(round(2 * HZ))
    assert bench.sent[-1][2] == pytest.approx(0.2), "the policy drives again"
    bench.shared.rest()
    bench.run(1)
    assert bench.sent[-1][2] == 0.0


def test_a_person_drives_a_base_at_the_speed_that_is_asked_for() -> None:
    bench = Bench(Script([CRUISING]), Asked(-0.1), arm=Cart)
    bench.shared.begin()
    bench.run(round(HZ))
    bench.shared.take_over()
    bench.run(round(HZ))
    np.testing.assert_allclose(bench.sent[-1], [0.1, 0.0, -0.1], atol=1e-6)


def test_a_base_stands_while_a_policy_thinks_for_long() -> None:
    """An arm may hold its last target; to hold a speed is to drive on."""

    class Slow(Script):
        execute = 5

        def plan(self, observation: Observation) -> FloatArray:
            return np.array([self.act(observation)] * self.execute)

    thinks = functools.partial(AsyncPolicyDriver, takes_s=3.0)
    bench = Bench(Slow([CRUISING]), None, arm=Cart, leads=thinks)
    bench.shared.begin()
    bench.run(round(3.1 * HZ))
    assert bench.sent[-1][2] > 0.0
    bench.run(round(1.0 * HZ))
    np.testing.assert_allclose(bench.sent[-1], [0.1, 0.0, 0.0], atol=1e-6)


# -- when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slower", "after"), [(1.0, 76), (0.5, 151)])
def test_a_stall_is_taken_over_later_where_the_policy_drives_slowly(
    slower: float, after: int
) -> None:
    stall = OnStall(FPS, lambda q: q)
    stall.reset(slower)
    still = Observation(np.zeros(3), None, {})
    wishes = [stall.frame(still) for _ in range(200)]
    assert wishes.index(True) + 1 == after


# -- how fast, how smooth -----------------------------------------------------------------------


@given(
    targets=st.lists(angles, min_size=2, max_size=12), scale=st.floats(0.05, 1.0, exclude_max=False)
)
@settings(max_examples=50, deadline=None)
def test_a_slow_policy_passes_the_same_way_more_slowly(
    targets: list[FloatArray], scale: float
) -> None:
    """A base's speed is that much less, so that it gets as far."""

    def way(speed: float) -> list[FloatArray]:
        policy = Script(targets)
        leader = PolicyLeader(policy, Cart(), FPS, HZ)
        leader.speed_scale = speed
        found = []
        for turn in range(round(len(targets) * EVERY / speed) - EVERY):
            if turn % EVERY == 0:
                leader.observe(Observation(np.zeros(3), None, {}))
            found.append(leader.read(turn / HZ).q_rad)
        return found

    corners = np.array([np.zeros(3), *targets])
    for turn, q_rad in enumerate(way(scale), start=1):
        at = min(scale * turn / EVERY, len(targets))
        step = min(int(at), len(targets) - 1)
        expected = corners[step] + (at - step) * (corners[step + 1] - corners[step])
        expected[2] *= scale
        np.testing.assert_allclose(q_rad, expected, atol=1e-6)


@given(
    targets=st.lists(angles, min_size=1, max_size=4), scale=st.floats(0.05, 1.0, exclude_max=False)
)
@settings(max_examples=25, deadline=None)
def test_a_slow_policy_never_moves_the_arm_fast_however_far_its_first_targets_lie(
    targets: list[FloatArray], scale: float
) -> None:
    """An arm lay folded, 40 degrees from where a new policy began: it leapt at 170 degrees a second
    where 10 % of its speed was promised."""
    bench = Bench(Script(targets), None)
    bench.shared.begin(scale)
    bench.run(10 * EVERY)
    fastest = np.abs(np.diff(bench.sent, axis=0)).max() * HZ
    assert fastest <= scale * bench.safety.limits.velocity_rad_s + 1e-9


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, math.nan])
def test_a_speed_that_is_none_is_refused(scale: float) -> None:
    leader = PolicyLeader(Script([np.zeros(3)]), Arm(), FPS, HZ)
    with pytest.raises(UnusableInputError, match="speed_scale must be above 0"):
        leader.speed_scale = scale


def test_smoothing_starts_where_the_arm_stands_and_arrives() -> None:
    leader = PolicyLeader(Script([np.ones(3)]), Arm(), FPS, HZ, lag_s=0.1)
    here = Observation(np.zeros(3), None, {})

    def way() -> list[float]:
        found = []
        for _ in range(round(0.1 * FPS)):
            leader.observe(here)
            found += [leader.read(0.0).q_rad[0] for _ in range(EVERY)]
        return found[EVERY - 1 :: EVERY]

    first = way()
    assert first == sorted(first)
    assert 0 < first[0] < 0.25
    assert first[-1] == pytest.approx(1 - math.exp(-1), abs=1e-9)
    leader.reset()
    assert way() == first
    with pytest.raises(UnusableInputError, match="above 0"):
        PolicyLeader(Script([]), Arm(), FPS, HZ, lag_s=0.0)
