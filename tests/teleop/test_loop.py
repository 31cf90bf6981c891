"""Laws of the control loop, on a fake arm and a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gaploop.core.clock import ManualClock
from gaploop.core.errors import UnusableInputError
from gaploop.core.station import SafetyLimits
from gaploop.core.types import (
    CameraFrame,
    FloatArray,
    FollowerState,
    Image,
    LeaderSample,
    Observation,
    SafeCommand,
    Tick,
)
from gaploop.teleop.loop import EndReason, LoopEnd, Rates, run_loop
from gaploop.teleop.safety import SafetyFilter

RATES = Rates(100.0, 50.0)


class FakeArm:
    """Two joints that go where they are sent at once."""

    name, robot_type, units = "follower", "fake", "deg"
    joint_names = ("a", "b")
    joint_limits_rad = np.array([[-1.0, 1.0], [-1.0, 1.0]])

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.sent = clock, list[SafeCommand]()
        self.q: FloatArray = np.zeros(2)

    def read(self) -> FollowerState:
        none = np.full(2, np.nan)
        status = np.zeros(2, np.int64)
        return FollowerState(self.clock.now_s(), self.q, none, none, none, none, none, status)

    def send(self, command: SafeCommand) -> None:
        self.q = command.sent_rad
        self.sent.append(command)

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return np.degrees(q_rad)

    def from_units(self, values: FloatArray) -> FloatArray:
        return np.radians(values)

    def torque_on(self) -> None:
        pass

    def torque_off(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakeLeader:
    def __init__(self, turns: int = 10**9) -> None:
        self.left = turns

    def reset(self) -> None:
        pass

    def read(self, t_s: float) -> LeaderSample:
        self.left -= 1
        return LeaderSample(t_s, np.array([0.3, -0.3]))

    def done(self) -> bool:
        return self.left <= 0


class FakeCamera:
    """Takes a picture every 40 ms."""

    name = "top"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def frame(self) -> CameraFrame:
        index = int(self.clock.now_s() / 0.04 + 1e-6)
        return CameraFrame(np.full((4, 4, 3), index, np.uint8), index * 0.04)


class FakeTracker:
    names = ("x",)

    def __init__(self) -> None:
        self.seen = list[float]()

    def reset(self) -> None:
        self.seen.clear()

    def observe(self, image: Image, t_s: float) -> FloatArray:
        self.seen.append(t_s)
        return np.array([float(image[0, 0, 0])])


class Ticks:
    def __init__(self, then: Callable[[Tick], None] = lambda _tick: None) -> None:
        self.ticks, self.then = list[Tick](), then

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)
        self.then(tick)


class Setup:
    def __init__(self) -> None:
        self.clock = ManualClock(7.0)
        self.arm, self.leader = FakeArm(self.clock), FakeLeader()
        self.safety = SafetyFilter(SafetyLimits(), self.arm.joint_limits_rad, RATES.period_s)

    def run(self, *sinks: Ticks, max_s: float = 1.0, **given: object) -> LoopEnd:
        arguments = (self.arm, self.leader, self.safety, self.clock, RATES)
        return run_loop(*arguments, max_s=max_s, sinks=sinks, **given)  # type: ignore[arg-type]


def test_turns_keep_absolute_deadlines_and_every_other_one_is_a_policy_frame() -> None:
    setup, ticks = Setup(), Ticks()
    end = setup.run(ticks)
    assert (end.reason, end.ticks, end.frames, end.missed) == (EndReason.TIME, 100, 50, 0)
    np.testing.assert_allclose([t.t_s for t in ticks.ticks], np.arange(100) / 100, atol=1e-9)
    np.testing.assert_allclose([t.lateness_s for t in ticks.ticks], 0, atol=1e-9)
    assert np.isnan(ticks.ticks[0].period_s)
    np.testing.assert_allclose([t.period_s for t in ticks.ticks[1:]], 0.01)
    assert [t.policy_frame for t in ticks.ticks] == [k % 2 == 0 for k in range(100)]


def test_a_short_delay_is_lateness_once_and_the_deadlines_stand() -> None:
    setup = Setup()

    def delay(tick: Tick) -> None:
        if tick.index == 10:
            setup.clock.sleep_until(setup.clock.now_s() + 0.014)

    ticks = Ticks(delay)
    end = setup.run(ticks)
    late = [t.lateness_s for t in ticks.ticks]
    assert late[11] == pytest.approx(0.004)
    np.testing.assert_allclose(late[:11] + late[12:], 0, atol=1e-9)
    assert end.missed == 0
    assert end.ticks == 100


def test_missed_turns_are_counted_not_caught_up_and_no_policy_frame_is_lost_to_them() -> None:
    """A burst of turns to catch up would move the arm at a multiple of its velocity limit."""
    setup = Setup()

    def stall(tick: Tick) -> None:
        if tick.index == 10:
            setup.clock.sleep_until(setup.clock.now_s() + 0.052)

    ticks = Ticks(stall)
    end = setup.run(ticks)
    assert end.missed == 4
    assert end.ticks + end.missed == 100
    assert min(t.period_s for t in ticks.ticks[1:]) > 0.007
    assert ticks.ticks[11].policy_frame  # the frame slots passed over are made up for at once


def test_a_sink_that_raises_is_dropped_and_named_and_stops_nobody() -> None:
    setup = Setup()

    def fail(tick: Tick) -> None:
        if tick.index == 3:
            raise OSError("disk full")

    bad, good = Ticks(fail), Ticks()
    end = setup.run(bad, good)
    assert len(bad.ticks) == 4
    assert len(good.ticks) == len(setup.arm.sent) == 100
    assert len(end.faults) == 1
    assert "disk full" in end.faults[0]


def test_observations_are_in_the_arms_units_and_each_picture_is_tracked_once() -> None:
    setup, tracker, seen = Setup(), FakeTracker(), list[Observation]()
    setup.run(max_s=0.2, cameras=[FakeCamera(setup.clock)], tracker=tracker, on_frame=[seen.append])
    assert len(seen) == 10
    assert tracker.seen == sorted(set(tracker.seen))
    assert seen[0].images["top"].shape == (4, 4, 3)
    np.testing.assert_allclose(seen[-1].state, np.degrees(setup.arm.sent[17].sent_rad))


def test_it_ends_when_leader_or_caller_says_so() -> None:
    setup = Setup()
    setup.leader = FakeLeader(5)
    assert setup.run().reason is EndReason.DONE
    setup = Setup()
    end = setup.run(stop=lambda: len(setup.arm.sent) >= 7)
    assert (end.reason, end.ticks) == (EndReason.STOPPED, 7)


def test_after_a_trip_the_arm_holds_until_torque_off_is_due() -> None:
    setup = Setup()
    setup.safety.estop()
    end = setup.run(max_s=60.0)
    assert end.reason is EndReason.TRIPPED
    assert end.duration_s == pytest.approx(5.0, abs=0.02)
    assert all((c.sent_rad == 0).all() for c in setup.arm.sent)


@pytest.mark.parametrize(("control_hz", "fps"), [(100.0, 30.0), (50.0, 100.0), (100.0, 0.0)])
def test_rates_that_do_not_divide_are_refused(control_hz: float, fps: float) -> None:
    with pytest.raises(UnusableInputError, match="whole multiple"):
        Rates(control_hz, fps)
