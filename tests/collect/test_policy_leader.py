"""A policy in its own thread: the loop never waits for it, and the arm moves no faster for that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gaploop.collect.policy_leader import PatientLeader, PolicyLeader, cross_faded
from gaploop.core.types import FloatArray, Observation

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
def steps() -> Iterator[tuple[Steps, PatientLeader]]:
    policy, arm = Steps(), Arm()
    any_arm: Any = arm
    leader = PatientLeader(policy, any_arm, FPS, FPS * TURNS)
    yield policy, leader
    policy.gate.set()
    leader.close()


def test_a_slow_policy_holds_the_arm_and_never_the_loop(
    steps: tuple[Steps, PatientLeader],
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
    steps: tuple[Steps, PatientLeader],
) -> None:
    policy, leader = steps
    policy.fails = True
    policy.gate.set()
    with pytest.raises(RuntimeError, match="out of memory"):
        until(lambda: not frame(leader))
    policy.fails = False
    leader.reset()
    until(lambda: frame(leader)[-1] > 0.0)


def test_a_plan_of_the_take_before_is_thrown_away(steps: tuple[Steps, PatientLeader]) -> None:
    policy, leader = steps
    policy.at = 99.0
    frame(leader)
    until(lambda: policy.acts == 1)
    leader.start_from(np.array([5.0]))
    assert frame(leader) == [5.0] * TURNS
    policy.gate.set()
    until(lambda: policy.acts == 2)
    until(lambda: leader.pace.asked == 1 or not frame(leader))
    assert leader._path[-1] == [101.0], "the first answer, 100, was about another take"


class Plans(Steps):
    """A policy that plans ahead: its n-th step from zero is n, whenever it is asked."""

    def __init__(self, long: int, execute: int) -> None:
        super().__init__()
        self.execute, self._long = execute, long

    def plan(self, observation: Observation) -> FloatArray:
        self.acts += 1
        assert self.gate.wait(WITHIN_S)
        self.gate.clear()
        whole = math.floor(observation.state[0])
        now = whole + round(observation.state[0] - whole)
        return np.arange(now + 1.0, now + 1.0 + self._long)[:, None]


def planned(long: int, execute: int, slow_frames: int, frames: int) -> tuple[list[float], Any]:
    """Drive by a planner that takes so many frames for each plan; return the targets, its pace."""
    arm, any_arm = [0.0], Arm()
    policy = Plans(long, execute)
    leader = PatientLeader(policy, any_arm, FPS, FPS * TURNS)  # type: ignore[arg-type]
    thinks = 0
    for _ in range(frames):
        arm += frame(leader, arm[-1])
        thinks = thinks + 1 if leader._is_asked else 0
        if thinks == slow_frames:
            policy.gate.set()
            until(lambda: bool(leader._answers))
            leader._answers[0] = replace(leader._answers[0], took_s=slow_frames / FPS)
            thinks = 0
    policy.gate.set()
    leader.close()
    return arm, leader.pace


@pytest.mark.parametrize(("long", "execute"), [(20, 10), (20, 20)])
def test_the_next_plan_is_made_while_the_present_one_is_executed(long: int, execute: int) -> None:
    """Whenever a plan was due, the arm stood until it was made."""
    slow = 4
    arm, pace = planned(long, execute, slow, 60)
    first = pace.waited_s
    moves = np.diff(arm)
    stood = np.flatnonzero(moves == 0.0)
    assert pace.asked > 3
    assert first == pytest.approx(slow / FPS, abs=1.5 / FPS), "nothing is there before the first"
    assert stood.max() < (slow + 2) * TURNS, "the arm stands before its first plan only"
    np.testing.assert_allclose(moves[moves > 0], 1.0 / TURNS, atol=1e-6)


def test_a_policy_too_slow_even_for_its_plans_holds_between_them() -> None:
    arm, pace = planned(4, 4, 6, 60)
    moves = np.diff(arm)
    assert moves.min() >= 0.0
    assert pace.waited_s > 0.3
    assert max(arm) > 8.0


def test_one_plan_is_gone_over_into_from_another_gradually() -> None:
    old = [np.array([0.0])] * 3
    new = [np.array([1.0])] * 5
    assert np.concatenate(cross_faded(old, new)).tolist() == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cross_faded([], new) == new
    assert cross_faded(old, []) == []


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
