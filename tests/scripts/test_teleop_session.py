"""A session with an operator at the keys: trips are cleared, lost cables found again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gaploop.core.errors import DeviceError
from gaploop.core.limits import SafetyLimits
from gaploop.core.station import Station
from gaploop.core.types import SafetyReason
from gaploop.scripts import _arms
from gaploop.scripts._arms import Arms
from gaploop.scripts._keys import Keys
from gaploop.scripts._teleop_session import Ended, Session
from gaploop.scripts._teleop_view import Mode, Picture, render
from gaploop.teleop.emulator import EmulatedBus, arm_plan
from gaploop.teleop.loop import Rates

pytestmark = pytest.mark.usefixtures("patient_wire")

HZ = 100.0
PATIENT = SafetyLimits(stale_leader_s=1.0)
"""A loop that gets no processor for a while is no leader that is gone."""
STATION = Station(name="bench", safety=PATIENT)
PATIENCE_S = 120.0


class Operator(Keys):
    """Presses keys when the view shows what they wait for; gives up after a while.

    Args:
        script: what must be seen, as (mode, words), and the key pressed then. A key may be a
            function, for what is done elsewhere.
    """

    def __init__(self, *script: tuple[Mode, str, str | Callable[[], None]]) -> None:
        super().__init__(None)
        self.script = list(script)
        self.seen: list[Picture] = []
        self._until_s = time.monotonic() + PATIENCE_S

    @property
    def works(self) -> bool:
        return True

    def show(self, picture: Picture) -> None:
        render(picture)  # whatever is shown can be drawn
        self.seen.append(picture)

    def wait(self, timeout_s: float) -> str:
        time.sleep(min(timeout_s, 0.02))
        if not self.script:
            return ""
        mode, words, key = self.script[0]
        now = self.seen[-1]
        text = f"{now.lost} {now.note}"
        if time.monotonic() > self._until_s:
            raise AssertionError(f"never saw {mode} '{words}', but {now.mode} '{text}'")
        limp = mode is not Mode.TRIPPED or not now.torque
        if now.mode is not mode or words not in text or not limp or not now.figures.turns:
            return ""
        self.script.pop(0)
        if callable(key):
            key()
            return ""
        return key


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
            bus = EmulatedBus.start(plan=plan, hand="still", link=link)
            buses.append(stack.enter_context(bus))
        shared: dict[str, Any] = {"calibration_dir": tmp_path}
        follower = RobotConfig.get_choice_class("so101_follower")(
            port=str(tmp_path / "follower"), id="follower", **shared
        )
        leader = TeleoperatorConfig.get_choice_class("so101_leader")(
            port=str(tmp_path / "leader"), id="leader", **shared
        )

        def connect() -> Arms:
            return _arms.connect(follower, leader, STATION)

        yield buses[0], buses[1], connect


def _registries() -> tuple[Any, Any]:
    from gaploop.scripts._devices import registries

    return registries()


def drive(connect: Callable[[], Arms], operator: Operator, max_s: float = math.inf) -> Ended:
    rates = Rates(HZ, HZ)
    session = Session(connect, STATION, rates, operator, operator.show, max_s, [])
    return session.run(connect())


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.all_servos)


def test_q_leaves_with_torque_off(rig: Any) -> None:
    follower, _, connect = rig
    ended = drive(connect, Operator((Mode.RUNNING, "", "q")))
    assert (ended.why, ended.trip, ended.signal) == ("quit", "", 0)
    assert limp(follower)


def test_the_emergency_stop_is_cleared_by_c_pressed_twice(rig: Any) -> None:
    follower, _, connect = rig
    was_limp: list[bool] = []
    operator = Operator(
        (Mode.RUNNING, "", " "),
        (Mode.TRIPPED, "", lambda: was_limp.append(limp(follower))),
        (Mode.TRIPPED, "", "c"),
        (Mode.TRIPPED, "Press c again", "c"),
        (Mode.RUNNING, "", lambda: was_limp.append(limp(follower))),
        (Mode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert was_limp == [True, False]
    assert [trip.reason for trip in ended.figures.trips] == [SafetyReason.ESTOP]
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 0)
    assert limp(follower)


def test_one_press_of_c_clears_nothing(rig: Any) -> None:
    _, _, connect = rig
    operator = Operator(
        (Mode.RUNNING, "", " "),
        (Mode.TRIPPED, "", "c"),
        (Mode.TRIPPED, "Press c again", "h"),
        (Mode.TRIPPED, "", "q"),
    )
    ended = drive(connect, operator)
    assert "emergency stop" in ended.trip
    assert all(picture.mode is not Mode.READY for picture in operator.seen)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_pulled_cable_is_waited_for_and_found_again(role: str, rig: Any) -> None:
    follower, leader, connect = rig
    faults = (leader if role == "leader" else follower).faults
    operator = Operator(
        (Mode.RUNNING, "", faults.unplug),
        (Mode.LOST, role, faults.clear),
        (Mode.READY, "answers again", "c"),
        (Mode.READY, "Press c again", "c"),
        (Mode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 1)
    assert limp(follower)


def test_a_servo_that_lost_its_power_is_named_and_waited_for(rig: Any) -> None:
    follower, _, connect = rig
    operator = Operator(
        (Mode.RUNNING, "", lambda: follower.faults.vanish(3)),
        (Mode.LOST, "elbow_flex", follower.faults.clear),
        (Mode.READY, "", "c"),
        (Mode.READY, "Press c again", "c"),
        (Mode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    assert ended.figures.trips[0].reason & SafetyReason.LOST_SERVO
    assert ended.reconnected == 1
    assert limp(follower)


def test_a_hot_servo_is_shown_until_the_operator_goes_on(rig: Any) -> None:
    follower, _, connect = rig
    operator = Operator(
        (Mode.RUNNING, "", lambda: follower.faults.overheat(3, 68.0)),
        (Mode.TRIPPED, "", follower.faults.clear),
        (Mode.TRIPPED, "", "c"),
        (Mode.TRIPPED, "Press c again", "c"),
        (Mode.RUNNING, "", "q"),
    )
    ended = drive(connect, operator)
    (trip,) = ended.figures.trips
    assert trip.reason & SafetyReason.OVER_TEMPERATURE
    assert trip.joints == ("elbow_flex",)
    assert ended.why == "quit"


def test_an_arm_that_cannot_get_back_into_its_box_says_so(rig: Any) -> None:
    """Left limp, an emulated arm fell back over its base; it then stood still without a word."""
    follower, _, connect = rig
    follower.hand.set_mode("none")
    start_rad = [servo.joint.q_rad for servo in follower.all_servos]

    def has_fallen() -> bool:
        with follower.lock:
            joints = [servo.joint for servo in follower.all_servos]
            fell = max(abs(j.q_rad - q) for j, q in zip(joints, start_rad, strict=True)) > 0.5
            return fell and all(abs(joint.v_rad_s) < 0.01 for joint in joints)

    until_s = time.monotonic() + PATIENCE_S
    while not has_fallen():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    operator = Operator((Mode.RUNNING, "workspace box is in the way", "q"))
    assert drive(connect, operator).why == "quit"


def test_the_time_of_driving_is_kept_over_trips(rig: Any) -> None:
    _, _, connect = rig
    operator = Operator(
        (Mode.RUNNING, "", " "),
        (Mode.TRIPPED, "", "c"),
        (Mode.TRIPPED, "Press c again", "c"),
    )
    ended = drive(connect, operator, max_s=0.5)
    assert ended.why == "time"
    assert ended.figures.duration_s <= 0.6 + ended.figures.lateness.max_s


def test_what_is_lost_without_an_operator_ends_it(rig: Any) -> None:
    follower, _, connect = rig
    seen: list[Picture] = []

    def show(picture: Picture) -> None:
        seen.append(picture)
        if len(seen) == 3:
            follower.faults.unplug()

    rates = Rates(HZ, HZ)
    session = Session(connect, STATION, rates, Keys(None), show, math.inf, [])
    said = ""
    with suppress_device_error() as caught:
        said = session.run(connect()).trip
    assert "follower" in (said or caught[0])


@contextmanager
def suppress_device_error() -> Iterator[list[str]]:
    """Keep what a DeviceError says instead of raising it."""
    caught: list[str] = []
    try:
        yield caught
    except DeviceError as error:
        caught.append(str(error))
