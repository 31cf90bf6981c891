"""Force feedback on an emulated Koch leader: what its motors are told, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_arms import emulated

from gaploop.core.clock import ManualClock
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FollowerState, LeaderSample, SafeCommand, SafetyReason, Tick
from gaploop.teleop.leaders.feedback import STALE_S
from gaploop.teleop.leaders.options import ForceOptions
from gaploop.teleop.lerobot_devices import make_follower, make_leader
from gaploop.teleop.lerobot_devices.force import ForceLeader

pytestmark = pytest.mark.usefixtures("loop_time")


class Pair:
    def __init__(self, stack: ExitStack, model: str, root: Path, hand: str = "still") -> None:
        follows = stack.enter_context(emulated(model, "follower", root))
        clock = ManualClock()
        leads = stack.enter_context(emulated(model, "leader", root, hand=hand, clock=clock))
        self.bus, self.clock = leads.bus, clock
        self.follower = make_follower(follows.config)
        stack.callback(self.follower.close)
        self.inner: Any = make_leader(leads.config, self.follower)
        stack.callback(self.inner.close)
        self.leader = ForceLeader(self.inner, ForceOptions(enabled=True), clock.now_s)
        stack.callback(self.leader.close)

    def turn(self, behind_rad: float, reasons: SafetyReason = SafetyReason.NONE) -> LeaderSample:
        """One turn of a loop whose follower is blocked, `behind_rad` behind in every joint."""
        self.follower.read()
        now_s = self.clock.now_s()
        sample = self.leader.read(now_s)
        n = len(sample.q_rad)
        state = FollowerState(
            now_s, sample.q_rad - behind_rad, np.zeros(n), np.full(n, 0.8), np.full(n, 90.0),
            np.full(n, 30.0), np.full(n, 12.0), np.zeros(n, dtype=np.int64),
        )  # fmt: skip
        command = SafeCommand(sample.q_rad, sample.q_rad, reasons)
        self.leader.tick(Tick(0, now_s, 0.005, 0.0, sample, command, state, {}))
        self.clock.sleep_until(now_s + 0.005)
        return sample

    def register(self, name: str) -> list[int]:
        with self.bus.lock:
            return [self.bus.servo(joint).memory[name] for joint in self.follower.joint_names]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, "koch", tmp_path)


def until(happens: Callable[[], bool]) -> bool:
    """Wait for what another thread does, for a long time at most."""
    end_s = time.monotonic() + 120.0
    while time.monotonic() < end_s:
        if happens():
            return True
        time.sleep(0.01)
    return happens()


def test_it_is_limp_until_the_follower_is_blocked(pair: Pair) -> None:
    pair.leader.reset()
    for _ in range(20):
        pair.turn(0.0)
    assert pair.register("Goal_Current")[:5] == [0] * 5
    assert pair.register("Operating_Mode")[:5] == [0] * 5
    assert pair.register("Torque_Enable")[:5] == [1] * 5


def test_a_blocked_follower_pushes_the_leader_towards_it(pair: Pair) -> None:
    pair.leader.reset()
    pushed = []
    for _ in range(60):
        pair.turn(0.3)
        pushed.append(pair.register("Goal_Current"))
    assert all(abs(current) <= 200 for row in pushed for current in row[:5])
    assert all(abs(current) > 150 for current in pushed[-1][:5])
    assert pushed[-1][5] == pushed[0][5], "the gripper's spring is left alone"


def test_nobody_holding_it_the_leader_goes_towards_the_follower(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(stack, "koch", tmp_path, hand="none")
        pair.leader.reset()
        start = pair.turn(0.3).q_rad
        for _ in range(40):
            end = pair.turn(0.3).q_rad
    pan, roll = (end - start)[[0, 4]]  # the others sink under their own weight
    assert pan < -0.01
    assert roll < -0.01


def test_a_trip_takes_the_push_away(pair: Pair) -> None:
    pair.leader.reset()
    for _ in range(60):
        pair.turn(0.3)
    assert any(pair.register("Goal_Current")[:5])
    pair.turn(0.3, SafetyReason.TRIPPED)
    pair.turn(0.3, SafetyReason.TRIPPED)
    assert until(lambda: not any(pair.register("Goal_Current")[:5]))


def test_a_loop_that_stands_still_takes_the_push_away(pair: Pair) -> None:
    pair.leader.reset()
    for _ in range(60):
        pair.turn(0.3)
    assert any(pair.register("Goal_Current")[:5])
    pair.clock.sleep_until(pair.clock.now_s() + 2 * STALE_S)
    assert until(lambda: not any(pair.register("Goal_Current")[:5]))


def test_closing_leaves_it_limp_in_the_mode_it_had(pair: Pair) -> None:
    pair.leader.reset()
    for _ in range(40):
        pair.turn(0.3)
    pair.leader.close()
    pair.leader.close()
    assert until(lambda: not any(pair.register("Torque_Enable")))
    assert pair.register("Operating_Mode")[:5] == [4] * 5, "extended position, LeRobot's"
    assert pair.register("Bus_Watchdog")[:5] == [0] * 5


def test_a_feetech_leader_gets_one_clear_line(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UnusableInputError, match="sts3215") as caught:
        Pair(stack, "so101", tmp_path)
    assert "xl330-m077" in str(caught.value)
    assert "\n" not in str(caught.value)
