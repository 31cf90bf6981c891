"""Laws of the control thread: nothing stops it but a stop, and torque always goes off."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.take import follow_turns
from gaploop.core.clock import ManualClock, Realtime, quiet_interpreter, realtime_rights
from gaploop.core.errors import DeviceError
from gaploop.core.messages import (
    NO_REPLY,
    REBOOTED,
    CameraFrame,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.core.station import SafetyLimits
from gaploop.teleop.control import ControlThread, LoopMode, Mailbox, Span
from gaploop.teleop.descent import Descent, say_doing
from gaploop.teleop.loop import EndReason, LoopEnd, Rates
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.stopping import run_steps, undisturbed

RATES = Rates(200.0, 50.0)
SOON_S = 120.0
"""Longest time that a loaded machine is waited for."""


class UnhurriedClock(ManualClock):
    """Goes at the machine's pace where that keeps up; what it takes longer isn't counted."""

    def sleep_until(self, deadline_s: float) -> None:
        time.sleep(max(deadline_s - self.now_s(), 0.0))
        super().sleep_until(deadline_s)

    def skip(self, time_s: float) -> None:
        super().sleep_until(self.now_s() + time_s)


def after(wait_s: float) -> Callable[[], bool]:
    """Return what says yes once `wait_s` [s] have passed."""
    end_s = time.monotonic() + wait_s
    return lambda: time.monotonic() >= end_s


class Arm:
    """Two joints that go where they are sent; each step can be told to fail or to hang."""

    name, robot_type, units = "follower", "fake", "deg"
    joint_names: tuple[str, ...] = ("a", "b")
    joint_limits_rad = np.array([[-1.0, 1.0], [-1.0, 1.0]])

    def __init__(self, fails: frozenset[str] = frozenset(), after: int = 10) -> None:
        self.fails, self.after = fails, after
        self.did = list[str]()
        self.q: FloatArray = np.zeros(2)
        self.torque = False
        self.status = np.zeros(2, np.int64)
        self.hangs = threading.Event()
        self.freed = threading.Event()
        self.reads = 0

    def _step(self, name: str, error: type[Exception] = DeviceError) -> None:
        self.did.append(name)
        if name in self.fails and self.reads >= self.after:
            raise error(f"{name} failed")

    def read(self) -> FollowerState:
        self.reads += 1
        if self.hangs.is_set():
            self.freed.wait(SOON_S)
        self._step("read")
        none = np.full(2, np.nan)
        return FollowerState(0.0, self.q.copy(), none, none, none, none, none, self.status.copy())

    def send(self, command: SafeCommand) -> None:
        self._step("send", RuntimeError)
        self.torque = True  # as a Feetech servo, whose torque comes on with a goal
        self.q = command.sent_rad

    def torque_on(self) -> None:
        self._step("torque on")
        self.torque = True

    def torque_off(self) -> None:
        self._step("torque off", OSError)
        self.torque = False

    def close(self) -> None:
        self._step("close", ConnectionError)

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return np.degrees(q_rad)

    def from_units(self, values: FloatArray) -> FloatArray:
        return np.radians(values)


class Driver:
    def __init__(self, fails: frozenset[str] = frozenset(), after: int = 10) -> None:
        self.fails, self.after, self.reads = fails, after, 0
        self.did = list[str]()
        self.is_done = False

    def reset(self) -> None:
        self.did.append("reset")

    def read(self, t_s: float) -> LeaderSample:
        self.reads += 1
        if "leader" in self.fails and self.reads > self.after:
            raise OSError("leader gone")
        return LeaderSample(t_s, np.array([0.3, -0.3]))

    def done(self) -> bool:
        return self.is_done

    def close(self) -> None:
        self.did.append("close")
        if "leader close" in self.fails:
            raise RuntimeError("leader close failed")


class Camera:
    name = "top"

    def __init__(self, fails: frozenset[str] = frozenset(), after: int = 10) -> None:
        self.fails, self.after, self.frames = fails, after, 0
        self.closed = False

    def frame(self) -> CameraFrame:
        self.frames += 1
        if "camera" in self.fails and self.frames > self.after / 4:
            raise DeviceError("camera gone")
        return CameraFrame(np.zeros((2, 2, 3), np.uint8), 0.0)

    def close(self) -> None:
        self.closed = True
        if "camera close" in self.fails:
            raise TimeoutError


class Seen:
    def __init__(self, then: Callable[[Tick], None] = lambda _tick: None) -> None:
        self.ticks, self.then = list[Tick](), then

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)
        self.then(tick)


def fails_on_the_fourth(tick: Tick) -> None:
    if tick.index == 3:
        raise ZeroDivisionError


def waits_for(event: threading.Event) -> Callable[[Tick], None]:
    def wait(_tick: Tick) -> None:
        event.wait(SOON_S)

    return wait


def thread(arm: Arm, leader: Driver | None = None, **given: object) -> ControlThread:
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s)
    given.setdefault("clock", UnhurriedClock())
    return ControlThread(arm, leader or Driver(), safety, RATES, **given)  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.002)


def trip(control: ControlThread, arm: Arm) -> None:
    """Let a servo restart: the arm is let go of, and well again."""
    arm.status = np.array([REBOOTED, 0])
    until(lambda: control.snapshot().mode is LoopMode.TRIPPED)
    arm.status = np.zeros(2, np.int64)


STEPS = ("read", "send", "torque off", "close", "leader", "leader close", "camera", "camera close")


@settings(max_examples=15)
@given(st.sets(st.sampled_from(STEPS)), st.integers(1, 12))
def test_whatever_fails_torque_off_and_every_disconnection_are_tried(
    steps: set[str], after: int
) -> None:
    fails = frozenset(steps)
    arm, leader, camera = Arm(fails, after), Driver(fails, after), Camera(fails, after)
    control = thread(arm, leader, cameras=[camera], max_s=0.1)
    said = ""
    try:
        control.start()
        control.wait(SOON_S)
        control.finish()
    except (DeviceError, RuntimeError) as error:
        said = str(error)
    finally:
        control.close()
    assert not control.alive
    assert "torque off" in arm.did
    assert arm.did.index("torque off") < arm.did.index("close")
    assert arm.did.count("close") == leader.did.count("close") == 1
    assert camera.closed
    if fails:
        assert said
        assert "\n" not in said
    if "torque off" in fails:
        assert "torque off failed" in said or {"read", "send", "leader", "camera"} & fails
    else:
        assert not arm.torque


def test_all_that_went_wrong_is_one_line() -> None:
    arm = Arm(frozenset({"read", "torque off", "close"}))
    with thread(arm) as control:
        control.start()
        control.wait(SOON_S)
        with pytest.raises(DeviceError) as caught:
            control.finish()
    for part in ("read failed", "torque off failed", "close failed"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_start_that_fails_leaves_torque_off() -> None:
    arm = Arm(frozenset({"torque on"}), after=0)
    with thread(arm) as control, pytest.raises(DeviceError, match="torque on failed"):
        control.start()
    assert arm.did[:2] == ["torque on", "torque off"]
    assert arm.did[-1] == "close"


def test_it_stops_when_asked_holds_and_then_takes_torque_off() -> None:
    arm, seen = Arm(), Seen()
    with thread(arm, sinks=[seen]) as control:
        control.start()
        until(lambda: len(seen.ticks) > 5)
        assert control.snapshot().mode is LoopMode.RUNNING
        control.stop()
        assert control.wait(SOON_S)
        end = control.finish()
    assert end.reason is EndReason.STOPPED
    assert end.ticks == len(seen.ticks)
    assert arm.did[-4:] == ["send", "read", "torque off", "close"]
    assert control.snapshot().mode is LoopMode.ENDED


class Interrupted(Arm):
    """Whatever the main thread does with it, somebody presses Ctrl-C meanwhile."""

    def _step(self, name: str, error: type[Exception] = DeviceError) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        super()._step(name, error)


def test_ctrl_c_that_is_held_down_leaves_no_torque_on() -> None:
    """A second one in torque on, a third in torque off, and so on, and the arm held for good."""
    arm = Interrupted()
    with pytest.raises(KeyboardInterrupt), thread(arm) as control:
        control.start()
    assert not control.alive
    assert not arm.torque
    assert arm.did[-1] == "close"


def _goes_on_after_ctrl_c() -> bool:
    went_on = list[bool]()
    with contextlib.suppress(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        went_on.append(True)
    return bool(went_on)


def test_what_hangs_in_letting_go_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaploop.teleop.stopping.LONG_S", SOON_S)
    assert _goes_on_after_ctrl_c()
    monkeypatch.setattr("gaploop.teleop.stopping.LONG_S", -1.0)
    assert not _goes_on_after_ctrl_c()


def test_subscribers_that_raise_hang_or_are_slow_neither_stop_nor_delay_it() -> None:
    hung = threading.Event()
    bad, stuck, good = Seen(fails_on_the_fourth), Seen(waits_for(hung)), Seen()
    arm = Arm()
    with thread(arm, max_s=1.0) as control:
        boxes = [control.attach(sink) for sink in (bad, good)]
        full = Mailbox(stuck, capacity=10)
        control._inboxes = (*control._inboxes, full)
        control.start()
        assert control.wait(SOON_S)
        hung.set()
        end = control.finish()
        full.close()
    assert len(good.ticks) == end.ticks < arm.did.count("send")  # the others lower it
    assert len(bad.ticks) == 4
    assert "ZeroDivisionError" in boxes[0].fault
    assert end.faults == (boxes[0].fault,)
    assert full.lost == end.ticks - len(stuck.ticks) > 0
    assert f"lost {full.lost} turns" in full.faults()[0]


def test_a_subscriber_that_never_returns_is_given_up_at_the_end() -> None:
    hung = threading.Event()
    box = Mailbox(Seen(waits_for(hung)))
    control = thread(Arm(), max_s=0.1)
    seen = control.attach(Seen())
    control._inboxes = (*control._inboxes, box)
    with control:
        control.start()
        control.wait(SOON_S)
        assert seen.fault == ""
    box.close(within_s=0.05)
    hung.set()
    assert "didn't take its turns" in box.fault
    assert box.lost > 0


def after_a_trip(ticks: list[Tick]) -> list[Tick]:
    """Return the turns since a trip was cleared; none before a mailbox has handed on the trip."""
    tripped = [n for n, t in enumerate(ticks) if t.command.reasons & SafetyReason.TRIPPED]
    return ticks[tripped[-1] + 1 :] if tripped else []


def test_after_a_trip_the_operator_clears_it_and_the_arm_goes_on_from_where_it_stands() -> None:
    arm, leader, seen, clock = Arm(), Driver(), Seen(), UnhurriedClock()
    with thread(arm, leader, sinks=[seen], clock=clock) as control:
        control.start()
        until(lambda: len(seen.ticks) > 5)
        trip(control, arm)
        assert not arm.torque
        assert control.snapshot().tripped == SafetyReason.HARDWARE_ERROR
        fallen = np.array([-0.5, -0.6])
        arm.q, sent = fallen, arm.did.count("send")
        clock.sleep_until(clock.now_s() + 0.1)
        assert arm.did.count("send") == sent  # a limp arm is sent nothing
        control.clear()
        until(lambda: len(after_a_trip(seen.ticks)) > 5)
        assert control.alive
        end = control.finish()
    again = after_a_trip(seen.ticks)[0]
    assert np.abs(again.command.sent_rad - fallen).max() <= 0.6 * RATES.period_s + 1e-9
    assert [t.index for t in seen.ticks] == list(range(end.ticks))
    assert np.all(np.diff([t.t_s for t in seen.ticks]) > 0)
    assert end.tripped == SafetyReason.HARDWARE_ERROR
    assert end.reason is EndReason.STOPPED
    assert not arm.torque


def test_an_estop_while_it_waits_counts_for_nothing_once_the_operator_clears() -> None:
    arm = Arm()
    with thread(arm) as control:

        def turns() -> int:
            newest = control.snapshot().tick
            return 0 if newest is None else newest.index

        control.start()
        trip(control, arm)
        control.estop()
        control.clear()
        before = turns()
        until(lambda: turns() > before + 60)  # longer than the watchdog's patience
        assert control.snapshot().mode is LoopMode.RUNNING
        control.finish()


def test_a_clear_that_fails_leaves_it_tripped_and_limp_and_can_be_tried_again() -> None:
    arm = Arm()
    with thread(arm) as control:
        control.start()
        trip(control, arm)
        arm.fails = frozenset({"torque on"})
        control.clear()
        until(lambda: bool(control.snapshot().faults))
        assert "torque on failed" in control.snapshot().faults[0]
        assert control.snapshot().mode is LoopMode.TRIPPED
        assert not arm.torque
        arm.fails = frozenset()
        control.clear()
        until(lambda: control.snapshot().mode is LoopMode.RUNNING)
        control.finish()


def test_an_e_stop_holds_the_arm_for_as_long_as_the_operator_wants() -> None:
    """It went limp after a tenth of a second, and fell on what it was stopped before."""
    arm, clock = Arm(), UnhurriedClock()
    with thread(arm, clock=clock) as control:
        control.start()
        until(lambda: arm.reads > 3)
        control.estop()
        until(lambda: control.snapshot().mode is LoopMode.HELD)
        held = arm.q.copy()
        clock.skip(3600.0)
        before = arm.reads
        until(lambda: arm.reads > before + 20)
        assert arm.torque
        np.testing.assert_array_equal(arm.q, held)
        control.clear()
        until(lambda: control.snapshot().mode is LoopMode.RUNNING)
        assert "torque off" not in arm.did
        control.finish()


@pytest.mark.parametrize("first", [ControlThread.estop, ControlThread.leave])
def test_pressed_again_the_arm_is_let_go_of_but_not_by_a_key_that_is_held(
    first: Callable[[ControlThread], None],
) -> None:
    arm, clock = Arm(), UnhurriedClock()
    park = np.array([-1.0, 1.0])  # seconds away
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s, park_rad=park)
    with ControlThread(arm, Driver(), safety, RATES, clock=clock) as control:
        control.start()
        until(lambda: arm.reads > 3)
        first(control)
        until(lambda: control.snapshot().mode in (LoopMode.HELD, LoopMode.LOWERING))
        clock.skip(0.5)  # a key that is held down repeats itself, after a while
        for _ in range(30):
            first(control)
            clock.skip(0.03)
        clock.skip(1.0)
        before = arm.reads
        until(lambda: arm.reads > before + 5)
        assert arm.torque
        first(control)
        until(lambda: not arm.torque)
        assert np.abs(arm.q - park).max() > 0.2
        control.close()


def test_an_e_stop_while_the_arm_is_lowered_holds_it_and_to_leave_lowers_it_on() -> None:
    """The second word to leave dropped an arm that the e-stop held; nothing could lower it."""
    arm, clock, park = Arm(), UnhurriedClock(), np.array([-0.5, 0.5])
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s, park_rad=park)
    with ControlThread(arm, Driver(), safety, RATES, clock=clock) as control:
        control.start()
        until(lambda: arm.reads > 3)
        control.leave()
        until(lambda: control.snapshot().mode is LoopMode.LOWERING)
        control.estop()
        until(lambda: control.snapshot().mode is LoopMode.HELD)
        clock.skip(60.0)
        assert arm.torque
        assert np.abs(arm.q - park).max() > 0.2
        control.leave()
        until(lambda: not arm.torque)
        assert np.abs(arm.q - park).max() < 0.15
        control.close()


def test_a_servo_that_kept_its_torque_after_a_trip_is_told_until_it_lets_go() -> None:
    arm = Arm()
    with thread(arm) as control:
        control.start()
        until(lambda: arm.reads > 3)
        arm.fails, arm.after = frozenset({"torque off"}), 0
        trip(control, arm)
        assert arm.torque
        arm.fails = frozenset()
        until(lambda: not arm.torque)


def test_a_loop_that_hangs_in_a_device_has_its_torque_taken_off_from_outside() -> None:
    """And what the device still sends when it comes back must not put torque on again."""
    arm = Arm()
    with thread(arm) as control:
        control.start()
        until(lambda: arm.reads > 3)
        arm.hangs.set()
        until(lambda: arm.did.count("torque off") > 0)
        arm.freed.set()
        assert control.wait(SOON_S)
        with pytest.raises(DeviceError, match="kept the control loop waiting"):
            control.finish()
    assert not arm.torque


def test_the_estop_works_on_a_loop_that_hangs() -> None:
    arm = Arm()
    with thread(arm) as control:
        control.start()
        until(lambda: arm.reads > 3)
        arm.hangs.set()
        control.estop()
        until(lambda: "torque off" in arm.did)
        assert not arm.torque
        arm.freed.set()


@pytest.mark.members(1)
@pytest.mark.parametrize("ends", [ControlThread.estop, ControlThread.stop])
@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_loop_that_hangs_in_its_first_turn_can_be_stopped(
    ends: Callable[[ControlThread], None], is_cleared: bool
) -> None:
    """Nothing was watched before the first turn: the arm held, whatever was pressed."""
    arm, freed, leader = Arm(), threading.Event(), Driver()
    hangs = threading.Event()

    def read(t_s: float) -> LeaderSample:
        if hangs.is_set():
            freed.wait(SOON_S)
        return LeaderSample(t_s, np.zeros(2))

    leader.read = read  # type: ignore[method-assign]
    if not is_cleared:
        hangs.set()
    with thread(arm, leader) as control:
        control.start()
        if is_cleared:
            trip(control, arm)
            hangs.set()
            control.clear()
            until(lambda: control.snapshot().mode is LoopMode.RUNNING)
        assert arm.torque
        ends(control)
        if ends is ControlThread.estop:
            until(lambda: control.snapshot().mode is LoopMode.HELD)
            assert arm.torque
            control.stop()
        until(lambda: not arm.torque)
        freed.set()
    assert not arm.torque


def take(control: ControlThread, sink: Seen, max_s: float) -> LoopEnd:
    return follow_turns(control.span(max_s=max_s), (sink,), lambda: False)


def test_a_take_is_a_span_of_the_loop_with_its_own_count_and_time() -> None:
    arm, leader, whole = Arm(), Driver(), Seen()
    with thread(arm, leader, sinks=[whole], until_done=False) as control:
        control.start()
        until(lambda: len(whole.ticks) > 7)
        first, second = Seen(), Seen()
        end = take(control, first, max_s=0.3)
        assert end.reason is EndReason.TIME
        leader.is_done = True
        assert take(control, second, max_s=5.0).reason is EndReason.DONE
        assert control.alive
        frames = list[object]()
        turns = control.span(max_s=5.0, on_frame=[frames.append])
        assert follow_turns(turns, (), lambda: bool(frames)).reason is EndReason.DONE
        control.finish()
    for seen in (first, second):
        assert seen.ticks[0].policy_frame
        assert np.isnan(seen.ticks[0].period_s)
        assert [t.index for t in seen.ticks] == list(range(len(seen.ticks)))
    assert end.ticks == len(first.ticks)
    assert 0.0 <= first.ticks[0].t_s < first.ticks[-1].t_s < 0.3
    assert first.ticks[-1].t_s >= 0.3 - 2 * RATES.period_s
    assert len(whole.ticks) > len(first.ticks) + len(second.ticks)
    # A turn that was on its way as a take began is none of it: a person had driven in it.
    under_way = whole.ticks[0]
    span = Span(leader, under_way.t_s + 0.1 * RATES.period_s, 5.0, RATES.period_s)
    for tick in whole.ticks:
        span.tick(tick)
    begun = span.next()
    assert begun is not None
    assert begun.policy_frame
    assert begun.t_s >= 0.0


def test_a_take_may_begin_before_the_loop_has_made_its_first_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine it was timed from before the loop's origin, and never ended."""
    began = threading.Event()

    def slowly() -> Realtime:
        began.wait(SOON_S)
        return Realtime(False)

    monkeypatch.setattr("gaploop.teleop.control.raise_priority", slowly)
    with thread(Arm(), until_done=False) as control:
        control.start()
        later = threading.Timer(0.05, began.set)
        later.start()
        end = follow_turns(control.span(max_s=0.2), (), after(SOON_S))
        later.join()
        control.finish()
    assert end.reason is EndReason.TIME
    assert end.duration_s < 0.2 + SOON_S / 2


def test_a_trip_ends_a_take_and_the_next_one_waits_for_the_operator() -> None:
    arm = Arm()
    with thread(arm, until_done=False) as control:
        control.start()
        seen = Seen(lambda tick: control.estop() if tick.index == 5 else None)
        end = take(control, seen, max_s=SOON_S)
        assert (end.reason, end.tripped) == (EndReason.TRIPPED, SafetyReason.ESTOP)
        later = threading.Timer(0.1, control.clear)
        later.start()
        assert take(control, Seen(), max_s=0.05).reason is EndReason.TIME
        later.join()
        control.finish()


@given(st.lists(st.sampled_from(["fine", "fails", "interrupt"]), max_size=8))
def test_every_step_is_run_whatever_those_before_it_did(kinds: list[str]) -> None:
    did = list[int]()

    def step(number: int, kind: str) -> Callable[[], None]:
        def run() -> None:
            did.append(number)
            if kind == "fails":
                raise ValueError(f"line one\nline {number}")
            if kind == "interrupt":
                raise KeyboardInterrupt

        return run

    steps = [(f"step {n}", step(n, kind)) for n, kind in enumerate(kinds)]
    if "interrupt" in kinds:
        with pytest.raises(KeyboardInterrupt):
            run_steps(steps)
    else:
        faults = run_steps(steps)
        assert len(faults) == kinds.count("fails")
        assert not any("\n" in fault for fault in faults)
    assert did == list(range(len(kinds)))


def test_realtime_says_whether_it_was_granted_and_how_to_grant_it() -> None:
    found = realtime_rights()
    assert found.granted == (found.hint == "")
    assert "\n" not in found.hint
    if not found.granted:
        assert "rtprio" in found.hint or "Linux" in found.hint


def test_the_interpreter_is_as_it_was_when_the_loop_is_over() -> None:
    import gc

    before = (sys.getswitchinterval(), gc.isenabled(), gc.get_freeze_count())
    with quiet_interpreter():
        assert not gc.isenabled()
        assert sys.getswitchinterval() < 0.001
    assert (sys.getswitchinterval(), gc.isenabled(), gc.get_freeze_count()) == before


@pytest.mark.members(5)
@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
@pytest.mark.parametrize("where", ["read", "send", "leader", "camera", "frame"])
def test_who_tries_to_end_the_program_is_a_broken_device(
    where: str, exits: type[BaseException]
) -> None:
    """A plug-in's sys.exit() ended the loop's thread without a word, and the program with 0."""
    arm, driver, camera = Arm(), Driver(), Camera()
    arm.q = np.zeros(2)

    def end(*_: object) -> None:
        raise exits(0)

    who = {"read": arm, "send": arm, "leader": driver, "camera": camera, "frame": None}[where]
    name = {"leader": "read", "camera": "frame"}.get(where, where)
    control = ControlThread(
        arm,
        driver,
        SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s),
        RATES,
        clock=UnhurriedClock(),
        cameras=[camera],
    )
    if who is None:
        control._on_frame = (end,)
    with control:
        if where == "read":  # the first is the loop's own start
            arm.after = 3
        if who is not None:
            setattr(who, name, end)
        control._gate.read = arm.read  # as it was made before
        control.start()
        assert control.wait(SOON_S)
        with pytest.raises(DeviceError, match=exits.__name__):
            control.finish()
    assert not arm.torque


def test_a_subscriber_that_tries_to_end_the_program_is_dropped() -> None:
    class Ends:
        def tick(self, tick: Tick) -> None:
            raise SystemExit(tick.t_s)

    control = thread(Arm(), sinks=(Ends(),))
    with control:
        control.start()
        until(lambda: control.snapshot().faults != ())
        assert "SystemExit" in control.snapshot().faults[0]
        assert control.alive


PROGRAM = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_control import SOON_S, Arm, thread

record, how = Path(sys.argv[2]), sys.argv[3]
signals, came = {"one": 1, "two": 2, "dies": 0}[how], []

def have_come():
    frame, inside = sys._current_frames().get(threading.main_thread().ident), []
    while frame is not None:
        inside.append(frame.f_code.co_name)
        frame = frame.f_back
    return len(came) >= signals and "handle" not in inside

class Recorded(Arm):
    def _step(self, name, error=RuntimeError):
        if name in ("read", "send") and len(self.did) > 5:
            return
        self.did.append(name)
        with record.open("a") as file:
            file.write(name + "\\n")
        if name == "torque off":
            until_s = time.monotonic() + SOON_S
            while not have_come() and time.monotonic() < until_s:
                time.sleep(0.01)
            with record.open("a") as file:
                file.write("torque is off\\n")

control = thread(Recorded())
if how == "dies":
    control.start()
    time.sleep(0.2)
    raise RuntimeError("a defect in the main thread")
with control, control.signals() as came:
    control.start()
    print("ready", flush=True)
    control.wait(SOON_S)
    control.finish()
sys.exit(128 + came[0])
"""


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        ("one", [signal.SIGTERM]),
        ("one", [signal.SIGINT]),
        ("one", [signal.SIGHUP]),
        ("one", [signal.SIGQUIT]),  # Ctrl-\\
        ("one", [signal.SIGTSTP]),  # Ctrl-Z
        ("two", [signal.SIGINT, signal.SIGINT]),
        ("two", [signal.SIGTERM, signal.SIGINT]),
        ("dies", []),
    ],
)
def test_a_signal_or_a_dying_program_leaves_torque_off(
    tmp_path: Path, how: str, numbers: list[signal.Signals]
) -> None:
    """A second Ctrl-C interrupted LeRobot's disconnect, and the arm stayed under torque."""
    record = tmp_path / "record"
    arguments = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(record), how]
    program = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == ("ready\n" if numbers else "")
        for number in numbers:  # the second while torque goes off
            program.send_signal(number)
            until(lambda: "torque off" in record.read_text())
        _, said = program.communicate(timeout=SOON_S)
    finally:
        program.kill()
        program.wait()
    did = record.read_text().split("\n")
    assert did.index("torque off") < did.index("torque is off"), said
    if how == "dies":
        assert "a defect in the main thread" in said
    else:
        assert did.index("torque is off") < did.index("close"), said
        assert program.returncode == 128 + numbers[0], said


def test_an_arm_whose_cable_is_pulled_isnt_said_to_be_let_go_of_nor_waited_for() -> None:
    """For 20 s the window said "The arm is let go of." while every servo held its last goal."""
    arm, clock, seen = Arm(frozenset({"torque off"})), ManualClock(), list[str]()
    arm.status, arm.after = np.array([NO_REPLY, NO_REPLY]), 0
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s)
    arm.damps = True  # type: ignore[attr-defined]
    arm.torque_off = lambda **_damped: Arm.torque_off(arm)  # type: ignore[method-assign]
    descent = Descent(
        arm,
        safety,
        clock,
        0.05,
        let_go=lambda: True,
        turn=lambda _: seen.append(say_doing(descent)),
    )
    descent.run()
    assert set(seen) == {"torque off failed"}
    assert clock.now_s() < 2.0


def test_an_arm_that_is_let_go_of_on_its_way_down_is_told_of_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session ended with exit code 0 and no word: a cable had come loose on the way down."""
    arm, clock = Arm(after=0), ManualClock()
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s)
    safety.reset(np.zeros(2))

    def later(_state: FollowerState) -> None:
        if clock.now_s() > 0.1:
            arm.status = np.array([0, NO_REPLY])

    Descent(arm, safety, clock, 0.05, turn=later).run()
    assert "on its way down: a servo stopped answering." in caplog.text


def test_a_servo_that_confirms_torque_off_late_isnt_told_of_at_the_end() -> None:
    """A servo was silent for half a second, and minutes later "Switch the arm's power off" stood
    beside an arm that had long been limp."""
    arm, clock = Arm(frozenset({"torque off"}), after=0), ManualClock()
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s)
    arm.damps = True  # type: ignore[attr-defined]
    arm.torque_off = lambda **_damped: Arm.torque_off(arm)  # type: ignore[method-assign]
    descent = Descent(arm, safety, clock, 0.05, let_go=lambda: True)
    descent._turn = lambda _state: setattr(arm, "fails", frozenset())
    assert descent.run() == ()
    assert not descent.unconfirmed


def test_a_servo_that_is_back_while_the_arm_falls_lets_go_then() -> None:
    """An elbow that had no contact for 3 s held for 15, and dropped limp once all others lay."""
    arm, clock, told = Arm(), ManualClock(), list[tuple[float, bool]]()
    safety = SafetyFilter(SafetyLimits(), arm.joint_limits_rad, RATES.period_s)

    def off(*, damped: bool = False) -> None:
        if clock.now_s() < 1.0:
            raise DeviceError("b may hold")
        told.append((clock.now_s(), damped))

    def falls(_state: FollowerState) -> None:
        arm.q = arm.q - 0.02 * (clock.now_s() < 8.0)

    arm.damps, arm.torque_off = True, off  # type: ignore[attr-defined, method-assign]
    descent = Descent(arm, safety, clock, 0.05, let_go=lambda: True, turn=falls)
    assert descent.run() == ()
    assert told[0][1]
    assert told[0][0] < 2.0
    assert not told[-1][1]
    assert told[-1][0] > 8.0
