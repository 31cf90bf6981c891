"""Ways to drive while a policy thinks, on a made-up policy and simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.slow_policies import MODES, _cell
from gaploop.core.messages import FloatArray, Observation

FPS, TURNS, LATE = 50.0, 2, 4


class Wavers:
    """Plans to stay at one place, at 0 and 1 in turn."""

    fps, execute = FPS, 10

    def __init__(self) -> None:
        self.plans = 0

    def reset(self) -> None: ...

    def act(self, _observation: Observation) -> FloatArray:
        raise AssertionError("it plans")

    def plan(self, _observation: Observation) -> FloatArray:
        self.plans += 1
        return np.full((20, 1), float(self.plans % 2))


class Arm:
    joint_names = ("a",)

    def from_units(self, units: FloatArray) -> FloatArray:
        return units


@pytest.mark.parametrize(
    ("mode", "stood", "jump"), [("wait", 0.4, 1.0), ("jump", 0.1, 1.0), ("blend", 0.1, 0.4)]
)
def test_what_each_way_does_to_the_arm(mode: str, stood: float, jump: float) -> None:
    policy, arm = Wavers(), Arm()
    any_arm: Any = arm
    leader = MODES[mode](policy, any_arm, FPS, FPS * TURNS, takes_s=LATE / FPS)
    q = []
    for _ in range(60):
        leader.observe(Observation(np.zeros(1), None, {}))
        q += [float(leader.read(0.0).q_rad[0]) for _ in range(TURNS)]
    moved = np.abs(np.diff(q[(LATE + 2) * TURNS :])) * TURNS
    assert policy.plans >= 4
    assert (leader.pace.waited_s > 1.2 * LATE / FPS) == (mode == "wait")
    assert leader.pace.waited_s == pytest.approx(stood, abs=0.1)
    assert moved.max() == pytest.approx(jump, abs=0.1)


def test_one_refusal_refuses_the_cell() -> None:
    row = {"takes_ms": 400, "mode": "jump", "seed": 0, "refused": "too slow"}
    assert _cell([row], 400, "jump")["refused"] == "too slow"
