"""A policy in its own thread: the loop never waits for it, and the arm moves no faster for that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from lerobot.configs import RTCAttentionSchedule
from lerobot.policies.rtc import RTCConfig
from lerobot.policies.rtc.modeling_rtc import RTCProcessor

from gaploop.collect.policy_leader import (
    AsyncPolicyDriver,
    JointFilter,
    PolicyLeader,
    cross_faded,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation

FPS, TURNS = 50.0, 4
WITHIN_S = 60.0


class Steps:
    """A policy that counts upwards, one step a frame, once its gate is open."""

    fps = FPS

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.at, self.acts, self.fails = 0.0, 0, False

    def reset(self) -> None: ...

    def act(self, _observation: Observation) -> FloatArray:
        self.acts += 1
        assert self.gate.wait(WITHIN_S)
        if self.fails:
            raise RuntimeError("out of memory")
        self.at += 1.0
        return np.array([self.at])


class Arm:
    """Units are radians."""

    joint_names: tuple[str, ...] = ("a",)

    def from_units(self, units: FloatArray) -> FloatArray:
        return units

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return q_rad


def frame(leader: PolicyLeader, at: float = 0.0) -> list[float]:
    """Take one frame's turns with the arm `at` some place; return what is asked for at each."""
    leader.observe(Observation(np.array([at]), None, {}))
    return [float(leader.read(0.0).q_rad[0]) for _ in range(TURNS)]


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.001)


@pytest.fixture
def steps() -> Iterator[tuple[Steps, AsyncPolicyDriver]]:
    policy, arm = Steps(), Arm()
    any_arm: Any = arm
    leader = AsyncPolicyDriver(policy, any_arm, FPS, FPS * TURNS)
    yield policy, leader
    policy.gate.set()
    leader.close()


def test_a_slow_policy_holds_the_arm_and_never_the_loop(
    steps: tuple[Steps, AsyncPolicyDriver],
) -> None:
    """A policy that took 0.3 s for each plan took the control loop with it: 3 turns a second."""
    policy, leader = steps
    for _ in range(5):
        assert frame(leader) == [0.0] * TURNS
    until(lambda: policy.acts == 1)  # an idle policy is asked, a busy one isn't
    assert leader.pace.waited_s == pytest.approx(5 / FPS)
    policy.gate.set()
    asked: list[float] = []
    until(lambda: asked.extend(frame(leader)) or asked[-1] >= 3.0)
    moves = np.diff([0.0, *asked])
    assert moves.min() >= 0.0
    assert moves.max() <= 1.0 / TURNS + 1e-9, "what comes late isn't caught up with"
    assert leader.pace.asked >= 3


def test_what_the_policy_raises_is_raised_where_it_is_shown_a_frame(
    steps: tuple[Steps, AsyncPolicyDriver],
) -> None:
    policy, leader = steps
    policy.fails = True
    policy.gate.set()
    with pytest.raises(RuntimeError, match="out of memory"):
        until(lambda: not frame(leader))
    policy.fails = False
    leader.reset()
    until(lambda: frame(leader)[-1] > 0.0)


def test_a_plan_of_the_take_before_is_thrown_away(steps: tuple[Steps, AsyncPolicyDriver]) -> None:
    policy, leader = steps
    policy.at = 99.0
    frame(leader)
    until(lambda: policy.acts == 1)
    leader.start_from(np.array([5.0]))
    assert frame(leader) == [5.0] * TURNS
    policy.gate.set()
    until(lambda: policy.acts == 2)
    until(lambda: leader.pace.asked == 1 or not frame(leader))
    assert leader._path[-1] == [101.0], "the first answer, 100, was about another episode"


class Plans:
    """A policy that plans ahead: its n-th step from zero is n, whenever it is asked."""

    fps = FPS

    def __init__(self, long: int, execute: int) -> None:
        self.execute, self._long, self.seen = execute, long, list[int]()

    def reset(self) -> None: ...

    def act(self, _observation: Observation) -> FloatArray:
        raise AssertionError("it plans")

    def plan(self, observation: Observation) -> FloatArray:
        now = math.floor(observation.state[0] + 0.5)
        self.seen.append(now)
        return np.arange(now + 1.0, now + 1.0 + self._long)[:, None]


def driven(policy: Any, slow_frames: float, frames: int, scale: float = 1.0) -> tuple[Any, Any]:
    """Drive by a planner that takes so many frames for each plan; return targets and leader."""
    arm, any_arm = [0.0], Arm()
    leader = AsyncPolicyDriver(policy, any_arm, FPS, FPS * TURNS, takes_s=slow_frames / FPS)  # type: ignore[arg-type]
    leader.speed_scale = scale
    for _ in range(frames):
        arm += frame(leader, arm[-1])
    return np.array(arm), leader


@pytest.mark.parametrize(("long", "execute"), [(20, 10), (20, 20)])
@pytest.mark.parametrize("slow", [0.0, 0.3, 4.0, 10.0])
def test_the_next_plan_is_made_while_the_present_one_is_executed(
    long: int, execute: int, slow: float
) -> None:
    """Whenever a plan was due, the arm stood until it was made."""
    policy = Plans(long, execute)
    arm, leader = driven(policy, slow, 60)
    moves = np.diff(arm)
    stood = np.flatnonzero(moves == 0.0)
    assert leader.pace.asked > 3
    assert leader.pace.waited_s == pytest.approx(math.ceil(slow * TURNS) / TURNS / FPS)
    assert stood.size == math.ceil(slow * TURNS), "the arm stands before its first plan only"
    np.testing.assert_allclose(moves[moves > 0], 1.0 / TURNS, atol=1e-6)
    assert np.diff(policy.seen).max() <= 10, "no plan is followed further than it was meant to be"


def test_a_policy_too_slow_even_for_its_plans_holds_between_them_and_is_refused() -> None:
    policy = Plans(4, 4)
    with pytest.raises(
        UnusableInputError, match="takes 120 ms for a plan, and the 2 of a plan's 4 step"
    ):
        driven(policy, 6, 60)
    assert len(policy.seen) == 3, "one slow answer may be the machine's"
    arm, _ = driven(Plans(4, 4), 6, 200, scale=0.3)
    assert arm[-1] > 8.0, "bridged at a third of the speed"


def test_one_plan_is_gone_over_into_from_another_gradually() -> None:
    """Weights of the old plan: LeRobot's soft mask, its schedule EXP."""
    old, new = [np.array([0.0])] * 3, [np.array([1.0])] * 5
    weights = RTCProcessor(RTCConfig(prefix_attention_schedule=RTCAttentionSchedule.EXP))
    asked = 1.0 - weights.get_prefix_weights(0, 3, 5).numpy()
    np.testing.assert_allclose(np.concatenate(cross_faded(old, new)), asked, atol=1e-6)
    assert cross_faded([], new) == new
    assert cross_faded(old, []) == []


class Wavers(Plans):
    """Changes its mind by one unit with each plan."""

    def plan(self, _observation: Observation) -> FloatArray:
        self.seen.append(0)
        return np.full((20, 1), float(len(self.seen) % 2))


def test_the_arm_goes_over_to_a_plan_that_differs_without_a_jump() -> None:
    slow = 4
    arm, _ = driven(Wavers(20, 10), slow, 60)
    assert np.abs(np.diff(arm[(slow + 1) * TURNS :])).max() * TURNS < 0.4, "it was 1.0"


class GoesOn(Plans):
    """Is told what is left of its last plan."""

    def __init__(self, long: int, execute: int) -> None:
        super().__init__(long, execute)
        self.told: list[tuple[int, int]] = []

    def replan(self, observation: Observation, passed: int, delay: int) -> FloatArray:
        self.told.append((passed, delay))
        return self.plan(observation)


def test_a_policy_with_real_time_chunking_is_told_what_has_passed_and_will_have() -> None:
    policy = GoesOn(20, 10)
    arm, _ = driven(policy, 3, 60)
    assert policy.told == [(10, 3)] * len(policy.told)
    assert len(policy.told) >= 4
    assert np.diff(arm[3 * TURNS + 1 :]).min() > 0


class Ramp:
    """Goes on from where it is told that the arm is, two units a frame."""

    fps = FPS

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.told: list[float] = []

    def reset(self) -> None: ...

    def act(self, observation: Observation) -> FloatArray:
        self.told.append(float(observation.state[0]))
        return observation.state + 2.0


@pytest.mark.parametrize("late", [0, 1, 4])
def test_a_policy_that_knows_of_a_delay_is_told_where_the_joints_will_be(late: int) -> None:
    """At an arm that is `late` frames behind it goes on as at one that isn't."""
    ways = []
    for arm_late, known in ((0, 0), (late, late)):
        policy = Ramp(known / FPS)
        arm: Any = Arm()
        leader = PolicyLeader(policy, arm, FPS, FPS * TURNS)
        arrived = [np.zeros(1)] * (arm_late + 1)
        for _ in range(12):
            leader.observe(Observation(arrived[-1 - arm_late], None, {}))
            arrived.append([leader.read(0.0).q_rad for _ in range(TURNS)][-1])
        ways.append(policy.told)
    assert ways[1] == pytest.approx(ways[0])
    assert ways[0][-1] > 10.0


@pytest.mark.parametrize("noise_rad", [0.01, 0.05, 0.2])
def test_noise_that_is_known_is_taken_out_of_readings(noise_rad: float) -> None:
    """A joint that lags, one that is blocked half way, one whose readings are exact, one that goes
    another way than it is told: on a real Piper's log a fixed gain made lift and elbow worse.
    """
    t_s = np.arange(0.0, 24.0, 1.0 / FPS)
    commanded = np.stack([np.sin(t_s), 0.1 * t_s, np.cos(t_s), np.cos(t_s)], axis=1)
    true = np.stack(
        [np.sin(t_s - 0.1), np.minimum(0.1 * t_s, 1.0), np.cos(t_s), np.sin(2.0 * t_s)], axis=1
    )
    sizes = np.array([noise_rad, noise_rad, 0.0, noise_rad])
    read = true + np.random.default_rng(0).normal(0.0, sizes, true.shape)
    joints = JointFilter(sizes)
    for _ in range(2):  # a take leaves nothing behind
        joints.reset()
        told = np.array([joints.update(r, c) for r, c in zip(read, commanded, strict=True)])
        np.testing.assert_array_equal(told[0], read[0])
        np.testing.assert_array_equal(told[:, 2], read[:, 2])
        off, was = (np.sqrt(np.mean((x - true) ** 2, axis=0)) for x in (told, read))
        assert (off[:2] < 0.75 * was[:2]).all()
        assert off[3] < was[3]


def test_a_reading_that_is_missing_is_bridged_and_forgotten() -> None:
    joints, told = JointFilter(np.full(2, 0.05)), []
    for k in range(60):
        read = np.array([0.01 * k, 0.01 * k])
        if k in (0, 1, 30):
            read[0] = np.nan
        told.append(joints.update(read, np.full(2, 0.01 * k)))
    assert np.isnan([t[0] for t in told[:2]]).all()  # nothing is known yet
    np.testing.assert_allclose(told[2:], 0.01 * np.arange(2, 60)[:, None].repeat(2, 1), atol=1e-9)


@pytest.mark.parametrize("make", [PolicyLeader, partial(AsyncPolicyDriver, takes_s=0.0)])
def test_a_policy_that_knows_of_noise_is_told_what_is_behind_it(make: Any) -> None:
    """Told each reading as it came, the base grasped in 16 of 40 scenes at 2 degrees of noise."""
    rng, apart = np.random.default_rng(0), {}
    for known in (0.0, 0.1):
        policy: Any = Ramp(0.0)
        policy.noise_rad = (known,)
        leader, at, off = make(policy, Arm(), FPS, FPS * TURNS), 0.0, []
        for _ in range(60):
            leader.observe(Observation(np.array([at + rng.normal(0.0, 0.1)]), None, {}))
            off.append(policy.told[-1] - at)
            at = [float(leader.read(0.0).q_rad[0]) for _ in range(TURNS)][-1]
        apart[known] = np.std(off[20:])
    assert apart[0.1] < 0.6 * apart[0.0]


class Seer:
    """Plans one step further each frame, from where the joint was as its picture was taken."""

    fps, execute = FPS, 3

    def __init__(self, delay_s: float) -> None:
        self.camera_delay_s = delay_s

    def reset(self) -> None:
        """Nothing is remembered."""

    def plan(self, observation: Observation) -> np.ndarray:
        shown = observation.images["top"][0, 0, 0]
        assert observation.state[0] == pytest.approx(shown)  # of one time, as in training
        return shown + 1.0 + np.arange(12.0)[:, None]

    def act(self, _observation: Observation) -> np.ndarray:
        raise AssertionError("a plan's first steps are over")


@pytest.mark.parametrize("make", [PolicyLeader, partial(AsyncPolicyDriver, takes_s=0.0)])
@pytest.mark.parametrize("late", [0, 2, 4])
def test_late_pictures_are_shown_with_the_joints_of_their_time(make: Any, late: int) -> None:
    """Told where the joints are now, a policy saw a hand that wasn't where it read it was."""
    arm: Any = Arm()
    policy: Any = Seer(late / FPS)
    leader = make(policy, arm, FPS, FPS * TURNS)
    if late == 0:
        policy.act = lambda seen: policy.plan(seen)[0]
    ways = [np.zeros(1)]
    for _ in range(12):
        picture = np.full((2, 2, 3), ways[max(len(ways) - 1 - late, 0)][0])
        leader.observe(Observation(ways[-1], None, {"top": picture}))
        ways.append([leader.read(0.0).q_rad for _ in range(TURNS)][-1])
    assert np.diff(np.ravel(ways))[1:] == pytest.approx(1.0)  # steadily, no step twice or left out
