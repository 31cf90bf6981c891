"""A leader arm comes to its follower's pose, and is limp before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from patient_wire import LoopTime

from gaploop.core.messages import CameraFrame, LeaderSample, SafeCommand, SafetyReason, Tick
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.lerobot_devices.servo_arm import (
    SPEED_RAD_S,
    THERE_RAD,
    AligningLeader,
    aligning,
)


@pytest.fixture
def pair(
    tmp_path: Path, loop_time: LoopTime
) -> Iterator[tuple[EmulatedBus, AligningLeader, object]]:
    """The leader's bus, the leader, and the follower that it leads."""
    del loop_time
    from lerobot.robots.so_follower import SO101FollowerConfig
    from lerobot.teleoperators.so_leader import SO101LeaderConfig

    with ExitStack() as stack:
        buses = []
        for role in ("follower", "leader"):
            plan = arm_plan("so101", role).calibrated()
            (tmp_path / f"{role}.json").write_text(json.dumps(plan.calibration()))
            bus = EmulatedBus(plan=plan, hand="none", link=tmp_path / role)
            buses.append(stack.enter_context(bus))
        follower = make_follower(
            SO101FollowerConfig(
                port=str(tmp_path / "follower"), id="follower", calibration_dir=tmp_path
            )
        )
        stack.callback(follower.close)
        made = make_leader(
            SO101LeaderConfig(port=str(tmp_path / "leader"), id="leader", calibration_dir=tmp_path),
            follower,
        )
        stack.callback(made.close)
        leader = aligning(made)
        assert leader is not None
        yield buses[1], leader, follower


def is_limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.servos.values())


def test_it_comes_slowly_and_is_limp_afterwards(
    pair: tuple[EmulatedBus, AligningLeader, object], loop_time: LoopTime
) -> None:
    (bus, leader, _), clock = pair, loop_time
    start = leader.read(clock.now_s()).q_rad
    # Towards the middle: a limp arm sinks, and may by now rest near the end of a joint's range.
    goal = start - np.sign(start) * np.array([0.3, 0.2, 0.2, 0.1, 0.3, 0.0])
    assert is_limp(bus)
    began_s = clock.now_s()
    while not leader.align(goal, clock.now_s()) and clock.now_s() - began_s < 20:
        assert not is_limp(bus)
        clock.sleep_until(clock.now_s() + 0.005)
        leader.read(clock.now_s())
    took_s = clock.now_s() - began_s
    assert np.abs(leader.read(clock.now_s()).q_rad - goal).max() <= THERE_RAD
    assert took_s >= (0.3 - THERE_RAD) / SPEED_RAD_S
    leader.let_go()
    assert is_limp(bus)


def test_a_trip_lets_go_until_the_next_reset(
    pair: tuple[EmulatedBus, AligningLeader, object], loop_time: LoopTime
) -> None:
    """After a trip nobody takes turns any more: motors that hold would hold for ever."""
    (bus, leader, follower), clock = pair, loop_time
    far = leader.read(clock.now_s()).q_rad + 0.5
    leader.align(far, clock.now_s())
    assert not is_limp(bus)
    state = follower.read()  # type: ignore[attr-defined]
    command = SafeCommand(far, far, SafetyReason.TRIPPED | SafetyReason.ESTOP)
    frames: dict[str, CameraFrame] = {}
    leader.tick(Tick(0, 0.0, 0.005, 0.0, LeaderSample(0.0, far), command, state, frames))
    assert is_limp(bus)
    assert leader.align(far, clock.now_s()), "it says that it is in place, so nobody waits"
    assert is_limp(bus)
    leader.reset()
    assert not leader.align(far, clock.now_s())
    leader.close()
    assert is_limp(bus)
