"""Laws of the control loop, on a fake arm and a clock that tests move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from gaploop.collect.take import follow_turns
from gaploop.core.clock import ManualClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import (
    NO_REPLY,
    CameraFrame,
    FloatArray,
    FollowerState,
    Image,
    LeaderSample,
    Observation,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.core.station import SafetyLimits
from gaploop.teleop.loop import EndReason, LoopEnd, Rates, Resume, run_turns
from gaploop.teleop.safety import SafetyFilter

RATES = Rates(100.0, 50.0)


class FakeArm:
    """Two joints that go where they are sent at once."""

    name, robot_type, units = "follower", "fake", "deg"
    joint_names = ("a", "b")
    joint_limits_rad = np.array([[-1.0, 1.0], [-1.0, 1.0]])

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.sent = clock, list[SafeCommand]()
        self.done_s = list[tuple[str, float]]()
        self.read_fails_at = 10**9
        self.reads = 0
        self.q: FloatArray = np.zeros(2)

    def read(self) -> FollowerState:
        self.reads += 1
        if self.reads > self.read_fails_at:
            raise DeviceError("unplugged")
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
        self.done_s.append(("torque off", self.clock.now_s()))

    def close(self) -> None:
        pass


class FakeLeader:
    def __init__(self, turns: int = 10**9, age_s: float = 0.0) -> None:
        self.left, self.age_s = turns, age_s

    def reset(self) -> None:
        pass

    def read(self, t_s: float) -> LeaderSample:
        self.left -= 1
        return LeaderSample(t_s - self.age_s, np.array([0.3, -0.3]))

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
        turns = run_turns(*arguments, max_s=max_s, **given)  # type: ignore[arg-type]
        return follow_turns(turns, sinks, lambda: False)


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


def test_after_a_trip_the_arm_holds_and_an_e_stop_leaves_it_its_torque() -> None:
    setup = Setup()
    setup.safety = SafetyFilter(
        SafetyLimits(torque_off_s=0.5), setup.arm.joint_limits_rad, RATES.period_s
    )
    start_s, ticks = setup.clock.now_s(), Ticks()
    setup.safety.estop()
    end = setup.run(ticks, max_s=60.0)
    assert end.reason is EndReason.TRIPPED
    assert end.tripped is SafetyReason.ESTOP
    assert all((c.sent_rad == 0).all() for c in setup.arm.sent)
    assert not setup.arm.done_s
    assert setup.clock.now_s() - start_s == pytest.approx(0.5, abs=1.5 * RATES.period_s)
    assert len(ticks.ticks) == end.ticks


def test_an_arm_that_lost_a_servo_is_let_go_of_before_anybody_hears_of_it() -> None:
    setup = Setup()
    read, start_s = setup.arm.read, setup.clock.now_s()

    def silent() -> FollowerState:
        state = read()
        return replace(state, status=np.full_like(state.status, NO_REPLY))

    setup.arm.read = silent  # type: ignore[method-assign]
    seen: list[int] = []
    setup.run(Ticks(lambda _tick: seen.append(len(setup.arm.done_s))), max_s=60.0)
    ((did, at_s),) = setup.arm.done_s
    assert did == "torque off"
    assert at_s - start_s < 0.2
    assert seen[-1] == 1


@pytest.mark.parametrize("where", ["first read", "read", "leader", "camera", "interrupt"])
def test_on_any_exception_the_arm_holds_until_it_is_brought_down(where: str) -> None:
    """An arm whose camera raised was let go of in the air, and fell."""
    setup = Setup()
    setup.arm.read_fails_at = {"first read": 0, "read": 20}.get(where, 10**9)
    cameras = [FakeCamera(setup.clock)]
    error: type[BaseException] = KeyboardInterrupt if where == "interrupt" else DeviceError

    def fail(*_: object) -> NoReturn:
        raise error("gone")

    if where == "leader":
        setup.leader.read = fail  # type: ignore[assignment,method-assign]
    if where == "camera":
        cameras[0].frame = fail  # type: ignore[method-assign]
    stop = fail if where == "interrupt" else lambda: False
    with pytest.raises(error):
        setup.run(cameras=cameras, stop=stop)
    assert not setup.arm.done_s


def test_overruns_and_latency_are_data_on_every_tick() -> None:
    setup = Setup()
    setup.leader = FakeLeader(age_s=0.003)

    def stall(tick: Tick) -> None:
        if tick.index == 10:
            setup.clock.sleep_until(setup.clock.now_s() + 0.052)

    ticks = Ticks(stall)
    end = setup.run(ticks)
    np.testing.assert_allclose([t.latency_s for t in ticks.ticks], 0.003)
    assert [t.overruns for t in ticks.ticks[9:13]] == [0, 0, 4, 0]
    assert sum(t.overruns for t in ticks.ticks) == end.missed


def test_a_loop_that_goes_on_after_a_trip_counts_on() -> None:
    setup, ticks = Setup(), Ticks()
    setup.run(ticks, resume=Resume(50, setup.clock.now_s() - 3.0))
    assert ticks.ticks[0].index == 50
    assert ticks.ticks[0].t_s == pytest.approx(3.0)
    assert math.isnan(ticks.ticks[0].period_s)


@pytest.mark.parametrize(
    ("fps", "control_hz"), [(30, 210), (50, 200), (60, 180), (200, 200), (250, 250)]
)
def test_the_control_rate_is_the_multiple_of_the_frame_rate_nearest_to_200_hz(
    fps: float, control_hz: float
) -> None:
    assert Rates.near(fps).control_hz == control_hz


@pytest.mark.parametrize(
    ("control_hz", "fps"), [(100.0, 30.0), (50.0, 100.0), (100.0, 0.0), (math.inf, 50.0)]
)
def test_rates_that_do_not_divide_are_refused(control_hz: float, fps: float) -> None:
    with pytest.raises(UnusableInputError, match="whole multiple"):
        Rates(control_hz, fps)


class FakePad:
    """A sensor that counts its readings and fails after some."""

    def __init__(self, fails_after: int = 10**9) -> None:
        self.channels: Mapping[str, str] = {"pad.a": "N", "pad.b": "N"}
        self.read_n, self.left = 0, fails_after

    def read(self) -> Mapping[str, float]:
        self.read_n += 1
        if self.read_n > self.left:
            raise DeviceError("pad: pulled")
        return {"pad.a": float(self.read_n), "pad.b": 0.5}


def test_an_observed_sensor_is_in_every_observation_and_ends_the_loop_where_it_fails() -> None:
    """A policy that learned what it feels must never be driven by half of it."""
    seen = list[Observation]()
    Setup().run(max_s=0.2, observed={"pad": FakePad()}, on_frame=[seen.append])
    assert [o.forces["pad"].tolist() for o in seen] == [[k + 1.0, 0.5] for k in range(10)]
    with pytest.raises(DeviceError, match="pulled"):
        Setup().run(max_s=0.2, observed={"pad": FakePad(3)})
