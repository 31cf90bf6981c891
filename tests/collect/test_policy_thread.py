"""A policy in its own thread: the loop never waits for it, and the arm moves no faster for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.policy_thread import PatientLeader
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


def frame(leader: PolicyLeader) -> list[float]:
    """Take one frame's turns; return what is asked for at each."""
    leader.observe(Observation(np.zeros(1), None, {}))
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
