"""A session with an operator at the keys: trips are cleared, lost cables found again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gaploop.collect import lerobot_factory
from gaploop.collect.devices import ArmDevices, Arms
from gaploop.collect.operator.commands import HELD_S
from gaploop.collect.operator.keys import SPACE, Keys
from gaploop.collect.operator.teleop_view import ProgramMode, TeleopScreen, render
from gaploop.collect.teleoperation import TeleopEnd, TeleopSession
from gaploop.core.arms import ARMS
from gaploop.core.clock import ManualClock
from gaploop.core.messages import SafetyReason
from gaploop.core.station import SafetyLimits, Station
from gaploop.teleop.descent import HELD_KEY_S
from gaploop.teleop.emulator import EmulatedBus, Fault, arm_plan
from gaploop.teleop.loop import Rates
from gaploop.teleop.lowering import Lowering

pytestmark = pytest.mark.usefixtures("loop_time")

HZ = 100.0
STATION = Station(name="bench")
PARK = ARMS["so101"].park_rad
PATIENCE_S = 120.0


class Operator(Keys):
    """Presses keys when the view shows what they wait for; gives up after a while.

    Args:
        script: what must be seen, as (mode, words), and the key pressed then. A key may be a
            function, for what is done elsewhere.
    """

    def __init__(self, *script: tuple[ProgramMode, str, str | Callable[[], None]]) -> None:
        super().__init__(None)
        self.script = list(script)
        self.seen: list[TeleopScreen] = []
        self._until_s = time.monotonic() + PATIENCE_S

    @property
    def works(self) -> bool:
        return True

    def show(self, picture: TeleopScreen) -> None:
        render(picture)  # whatever is shown can be drawn
        self.seen.append(picture)

    def presses(self, timeout_s: float) -> list[str]:
        time.sleep(min(timeout_s, 0.02))
        if not self.script:
            return []
        mode, words, key = self.script[0]
        now = self.seen[-1]
        text = f"{now.lost} {now.note}"
        if time.monotonic() > self._until_s:
            raise AssertionError(f"never saw {mode} '{words}', but {now.mode} '{text}'")
        limp = mode is not ProgramMode.TRIPPED or not now.torque or "limp" in words
        if now.mode is not mode or words not in text or not limp or not now.figures.turns:
            return []
        self.script.pop(0)
        if callable(key):
            key()
            return []
        if key == "c":
            time.sleep(HELD_S)  # a person lets go of it
        if key == SPACE:  # as the thread that reads keys does
            self._call_stop()
        return [key]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[tuple[EmulatedBus, EmulatedBus, Callable[[], Arms]]]:
    """A follower, a leader, and what connects to them."""
    RobotConfig, TeleoperatorConfig = _registries()
    with ExitStack() as stack:
        buses = []
        for role in ("follower", "leader"):
            plan = arm_plan("so101", role).calibrated()
            (tmp_path / f"{role}.json").write_text(json.dumps(plan.calibration()))
            link = tmp_path / role
            bus = EmulatedBus(plan=plan, hand="still", link=link)
            buses.append(stack.enter_context(bus))
        shared: dict[str, Any] = {"calibration_dir": tmp_path}
        follower = RobotConfig.get_choice_class("so101_follower")(
            port=str(tmp_path / "follower"), id="follower", **shared
        )
        leader = TeleoperatorConfig.get_choice_class("so101_leader")(
            port=str(tmp_path / "leader"), id="leader", **shared
        )

        def connect() -> Arms:
            return lerobot_factory.connect(follower, leader, STATION)

        yield buses[0], buses[1], connect


def _registries() -> tuple[Any, Any]:
    from gaploop.collect.lerobot_registry import registries

    return registries()[:2]


def drive(connect: Callable[[], Arms], operator: Operator, max_s: float = math.inf) -> TeleopEnd:
    devices = ArmDevices(connect, STATION, Rates(HZ, HZ), max_s=max_s)
    return TeleopSession(devices, operator, operator.show, []).run()


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.all_servos)


def test_q_leaves_with_torque_off(rig: Any) -> None:
    follower, _, connect = rig
    ended = drive(connect, Operator((ProgramMode.RUNNING, "", "q")))
    assert (ended.why, ended.trip, ended.signal) == ("quit", "", 0)
    assert limp(follower)


def test_the_emergency_stop_is_cleared_by_c_pressed_twice(rig: Any) -> None:
    follower, _, connect = rig
    was_limp: list[bool] = []
    operator = Operator(
        (ProgramMode.RUNNING, "", "space"),
        (ProgramMode.HELD, "", lambda: was_limp.append(limp(follower))),
        (ProgramMode.HELD, "", "c"),
        (ProgramMode.HELD, "Press it again", "c"),
        (ProgramMode.RUNNING, "", lambda: was_limp.append(limp(follower))),
        (ProgramMode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert was_limp == [False, False]
    assert [trip.reason for trip in ended.figures.trips] == [SafetyReason.ESTOP]
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 0)
    assert limp(follower)


def test_one_press_of_c_clears_nothing(rig: Any) -> None:
    _, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", "space"),
        (ProgramMode.HELD, "", "c"),
        (ProgramMode.HELD, "Press it again", "h"),
        (ProgramMode.HELD, "", "q"),
    )
    ended = drive(connect, operator)
    assert "emergency stop" in ended.trip
    assert all(picture.mode is not ProgramMode.READY for picture in operator.seen)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_pulled_cable_is_waited_for_and_found_again(role: str, rig: Any) -> None:
    follower, leader, connect = rig
    faults = (leader if role == "leader" else follower).faults
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: faults.add(Fault("unplug"))),
        (ProgramMode.LOST, role, faults.clear),
        (ProgramMode.READY, "answers again", "c"),
        (ProgramMode.READY, "Press it again", "c"),
        (ProgramMode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 1)
    assert limp(follower)


def test_what_was_found_and_goes_again_is_not_called_back(rig: Any) -> None:
    """A table of silent servos stood under "Everything answers again", and c lost it anew."""
    follower, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: follower.faults.add(Fault("unplug"))),
        (ProgramMode.LOST, "", follower.faults.clear),
        (ProgramMode.READY, "answers again", lambda: follower.faults.add(Fault("unplug"))),
        (ProgramMode.LOST, "", follower.faults.clear),
        (ProgramMode.READY, "answers again", "c"),
        (ProgramMode.READY, "Press it again", "c"),
        (ProgramMode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert (ended.why, ended.reconnected) == ("quit", 1)
    assert limp(follower)


def test_a_servo_that_lost_its_power_is_named_and_waited_for(rig: Any) -> None:
    follower, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: follower.faults.add(Fault("vanish", id=3))),
        (ProgramMode.LOST, "elbow_flex", follower.faults.clear),
        (ProgramMode.READY, "", "c"),
        (ProgramMode.READY, "Press it again", "c"),
        (ProgramMode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert ended.figures.trips[0].reason & SafetyReason.LOST_SERVO
    assert ended.reconnected == 1
    assert limp(follower)


def test_a_hot_servo_is_shown_until_the_operator_goes_on(rig: Any) -> None:
    follower, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: follower.faults.add(Fault("overheat", id=3, value=68.0))),
        (ProgramMode.TRIPPED, "", follower.faults.clear),
        (ProgramMode.TRIPPED, "", "c"),
        (ProgramMode.TRIPPED, "Press it again", "c"),
        (ProgramMode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    (trip,) = ended.figures.trips
    assert trip.reason & SafetyReason.OVER_TEMPERATURE
    assert trip.joints == ("elbow_flex",)
    assert ended.why == "quit"


def test_an_arm_that_cannot_get_back_into_its_box_says_so(
    rig: Any, until: Callable[[Callable[[], object]], None]
) -> None:
    """Left limp, an emulated arm fell back over its base; it then stood still without a word."""
    follower, _, connect = rig
    behind_rad = [0.0, -1.7, -1.6, 0.0, 0.0, 0.0]
    follower.hand.pose(behind_rad)

    def is_there() -> bool:
        with follower.lock:
            joints = [servo.joint for servo in follower.all_servos]
            ways = [abs(j.q_rad - q) for j, q in zip(joints, behind_rad, strict=True)]
            return max(ways) < 0.05

    until(is_there)
    operator = Operator((ProgramMode.RUNNING, "workspace box", "q"))
    assert drive(connect, operator).why == "quit"


def test_the_time_of_driving_is_kept_over_trips(rig: Any) -> None:
    _, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", "space"),
        (ProgramMode.HELD, "", "c"),
        (ProgramMode.HELD, "Press it again", "c"),
    )
    ended = drive(connect, operator, max_s=8.0)
    assert ended.why == "time"
    assert not operator.script
    assert ended.figures.duration_s == pytest.approx(8.0, abs=0.1)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_is_lost_without_an_operator_ends_it_and_is_told(role: str, rig: Any) -> None:
    """A pulled cable ended the program with exit code 2 and neither the trip nor a summary, and a
    leader's with "Switch the arm's power off", though torque was off.
    """
    follower, leader, connect = rig
    seen: list[TeleopScreen] = []

    def show(picture: TeleopScreen) -> None:
        seen.append(picture)
        if len(seen) == 3:
            (follower if role == "follower" else leader).faults.add(Fault("unplug"))

    devices = ArmDevices(connect, STATION, Rates(HZ, HZ), max_s=math.inf)
    ended = TeleopSession(devices, Keys(None), show, []).run()
    assert ended.why == "trip"
    assert "stopped answering" in ended.trip
    assert "press" not in ended.trip  # there is nothing to press
    assert role in ended.failed
    assert ("Switch the arm's power off" in ended.failed) is (role == "follower")
    assert role == "follower" or limp(follower)


def test_a_space_while_a_lost_device_is_looked_for_takes_the_first_press_back(rig: Any) -> None:
    """Only c and q were looked at there: a space between two presses of c let the arm go on."""
    follower, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: follower.faults.add(Fault("unplug"))),
        (ProgramMode.LOST, "follower", follower.faults.clear),
        (ProgramMode.READY, "answers again", "c"),
        (ProgramMode.READY, "Press it again", "space"),
        (ProgramMode.READY, "", "c"),
        (ProgramMode.READY, "Press it again", "q"),
    )
    ended = drive(connect, operator)
    assert (ended.why, ended.reconnected) == ("quit", 0)
    assert limp(follower)


def test_q_lowers_the_arm_and_q_again_lets_go_of_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch, loop_time: ManualClock
) -> None:
    """Every way to leave dropped the arm from where it was."""
    follower, _, connect = rig
    monkeypatch.setattr(Lowering, "rests", lambda *_: False)
    held: list[bool] = []

    def look() -> None:
        held.append(not limp(follower))
        loop_time.sleep_until(loop_time.now_s() + HELD_KEY_S)

    operator = Operator(
        (ProgramMode.RUNNING, "", "q"),
        (ProgramMode.LOWERING, "keep clear", look),
        (ProgramMode.LOWERING, "Press again", "q"),
    )
    assert drive(connect, operator).why == "quit"
    assert held == [True]
    assert limp(follower)
    with follower.lock:
        away = [abs(s.joint.q_rad - PARK.get(s.plan.name, 0.0)) for s in follower.all_servos]
    assert max(away) > 0.3


def test_a_leaver_isnt_kept_by_what_doesnt_answer(rig: Any) -> None:
    """After q the torque of a servo without power couldn't be confirmed: it was waited for."""
    follower, _, connect = rig
    operator = Operator(
        (ProgramMode.RUNNING, "", lambda: follower.faults.add(Fault("vanish", id=3))),
        (ProgramMode.RUNNING, "", "q"),
    )
    station = Station(name="bench", safety=SafetyLimits(lost_servo_s=60.0))
    devices = ArmDevices(connect, station, Rates(HZ, HZ), max_s=math.inf)
    ended = TeleopSession(devices, operator, operator.show, []).run()
    assert ended.why == "quit"
    assert "elbow_flex" in ended.failed
