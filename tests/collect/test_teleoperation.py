"""A session without a record: trips are cleared, lost cables found again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gaploop.collect import session
from gaploop.collect.devices import ArmDevices, lost_after_trip, subscribers
from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.lerobot_types import registries, station_for
from gaploop.collect.operator.console import OperatorConsole, listen_to
from gaploop.collect.operator.keys import DRIVE, HELD_S, Command, KeyMap
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.terminal import arm_details, render
from gaploop.collect.operator.view import Shown, look
from gaploop.collect.session import Session
from gaploop.collect.session_options import DriveOptions
from gaploop.collect.take import SessionEnd
from gaploop.core.arms import ARMS
from gaploop.core.clock import ManualClock
from gaploop.core.messages import SafetyReason
from gaploop.core.station import SafetyLimits, Station
from gaploop.sim.lerobot_devices import So101SimConfig
from gaploop.teleop.descent import HELD_KEY_S
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.leaders.motion import MotionLeader
from gaploop.teleop.lerobot_leaders import MotionConfig
from gaploop.teleop.loop import Rates
from gaploop.teleop.lowering import Lowering

pytestmark = pytest.mark.usefixtures("loop_time")

HZ = 100.0
STATION = Station(name="bench")
PARK = ARMS["so101"].park_rad
PATIENCE_S = 60.0
DRIVING, KEEP_CLEAR, TRIPPED = "DRIVING", "KEEP CLEAR", "TRIPPED"
LOST, FOUND = "DEVICE LOST", "FOUND AGAIN"


@dataclass
class Bench:
    """A follower and a leader on emulated buses, and who drives them.

    Attributes:
        script: what must be seen, as (word, words), and the key pressed then. A key may be a
            function, for what is done elsewhere.
        seen: all that was shown.
    """

    follower: EmulatedBus
    leader: EmulatedBus
    config: DriveOptions
    devices: ArmDevices | None = None
    script: list[tuple[str, str, str | Callable[[], None]]] = field(default_factory=list)
    seen: list[Shown] = field(default_factory=list)

    @contextmanager
    def interface(
        self, console: OperatorConsole, _leader: object = None, devices: Any = None
    ) -> Iterator[Callable[[], None]]:
        """Be the terminal: press keys as scripted; give up after a while."""
        until_s = time.monotonic() + PATIENCE_S
        self.devices = devices

        def turn() -> None:
            time.sleep(0.005)
            shown = look(console.seen())
            self.seen.append(shown)
            render(shown)  # whatever is shown can be drawn
            if devices is not None:
                tuple(arm_details(devices))
            if not self.script:
                return
            word, words, key = self.script[0]
            text = f"{shown.below} {shown.note}"
            if time.monotonic() > until_s:
                raise AssertionError(f"never saw {word} '{words}', but {shown.word} '{text}'")
            turns = devices is None or devices.statistics.figures().turns
            limp = word != TRIPPED or not devices.is_driven
            if shown.word != word or words not in text or not turns or not limp:
                return
            self.script.pop(0)
            if callable(key):
                key()
                return
            if key == "c":
                time.sleep(HELD_S)  # a person lets go of it
            if key == "space":  # as the thread that reads keys does
                console.safety.estop()
            console.hear([key], {"space"})

        yield turn

    def drive(
        self, *script: tuple[str, str, str | Callable[[], None]], station: Station = STATION,
        max_s: float = math.inf, interface: str = "terminal",
    ) -> SessionEnd:  # fmt: skip
        self.script = list(script)
        run = Session(
            self.config, station, leads="so101_leader", rates=Rates(HZ, HZ), interface=interface
        )
        end = run.drive(max_s)
        self.devices = run.arms
        return end

    def trips(self) -> list[SafetyReason]:
        assert self.devices is not None
        assert self.devices.statistics is not None
        return [trip.reason for trip in self.devices.statistics.figures().trips]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    RobotConfig, TeleoperatorConfig, _ = registries()
    with ExitStack() as stack:
        buses = []
        for role in ("follower", "leader"):
            plan = arm_plan("so101", role).calibrated()
            (tmp_path / f"{role}.json").write_text(json.dumps(plan.calibration()))
            bus = EmulatedBus(plan=plan, hand="still", link=tmp_path / role)
            buses.append(stack.enter_context(bus))
        shared: dict[str, Any] = {"calibration_dir": tmp_path}
        follower = RobotConfig.get_choice_class("so101_follower")(
            port=str(tmp_path / "follower"), id="follower", **shared
        )
        leader = TeleoperatorConfig.get_choice_class("so101_leader")(
            port=str(tmp_path / "leader"), id="leader", **shared
        )
        bench = Bench(buses[0], buses[1], DriveOptions(robot=follower, teleop=leader))
        monkeypatch.setattr(session, "terminal", bench.interface)
        monkeypatch.setattr(session, "nowhere", bench.interface)
        yield bench


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.all_servos)


def test_q_leaves_with_torque_off(rig: Bench) -> None:
    follower = rig.follower
    ended = rig.drive((DRIVING, "", "q"))
    assert (ended.why, ended.trip, ended.signals) == ("quit", "", ())
    assert limp(follower)


def test_the_emergency_stop_is_cleared_by_c_pressed_twice(rig: Bench) -> None:
    follower = rig.follower
    was_limp: list[bool] = []
    ended = rig.drive(
        (DRIVING, "", "space"),
        (KEEP_CLEAR, "", lambda: was_limp.append(limp(follower))),
        (KEEP_CLEAR, "", "c"),
        (KEEP_CLEAR, "Press it again", "c"),
        (DRIVING, "", lambda: was_limp.append(limp(follower))),
        (DRIVING, "", "q"),
    )
    assert was_limp == [False, False]
    assert rig.trips() == [SafetyReason.ESTOP]
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 0)
    assert limp(follower)


def test_one_press_of_c_clears_nothing(rig: Bench) -> None:
    ended = rig.drive(
        (DRIVING, "", "space"),
        (KEEP_CLEAR, "", "c"),
        (KEEP_CLEAR, "Press it again", "h"),
        (KEEP_CLEAR, "", "q"),
    )
    assert "emergency stop" in ended.trip
    assert all(shown.word != FOUND for shown in rig.seen)


@pytest.mark.members(1)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_pulled_cable_is_waited_for_and_found_again(role: str, rig: Bench) -> None:
    follower, leader = rig.follower, rig.leader
    faults = (leader if role == "leader" else follower).faults
    ended = rig.drive(
        (DRIVING, "", lambda: faults.add(Fault("unplug"))),
        (LOST, role, faults.clear),
        (FOUND, "answers again", "c"),
        (FOUND, "Press it again", "c"),
        (DRIVING, "", "q"),
    )
    assert (ended.why, ended.trip, ended.reconnected) == ("quit", "", 1)
    assert limp(follower)


def test_what_was_found_and_goes_again_is_not_called_back(rig: Bench) -> None:
    """A table of silent servos stood under "Everything answers again", and c lost it anew."""
    follower = rig.follower
    ended = rig.drive(
        (DRIVING, "", lambda: follower.faults.add(Fault("unplug"))),
        (LOST, "", follower.faults.clear),
        (FOUND, "answers again", lambda: follower.faults.add(Fault("unplug"))),
        (LOST, "", follower.faults.clear),
        (FOUND, "answers again", "c"),
        (FOUND, "Press it again", "c"),
        (DRIVING, "", "q"),
    )
    assert (ended.why, ended.reconnected) == ("quit", 1)
    assert limp(follower)


def test_a_servo_that_lost_its_power_is_named_and_waited_for(rig: Bench) -> None:
    follower = rig.follower
    ended = rig.drive(
        (DRIVING, "", lambda: follower.faults.add(Fault("vanish", id=3))),
        (LOST, "elbow_flex", follower.faults.clear),
        (FOUND, "", "c"),
        (FOUND, "Press it again", "c"),
        (DRIVING, "", "q"),
    )
    assert rig.trips()[0] & SafetyReason.LOST_SERVO
    assert ended.reconnected == 1
    assert limp(follower)


def test_a_hot_servo_is_shown_until_the_operator_goes_on(rig: Bench) -> None:
    follower = rig.follower
    ended = rig.drive(
        (DRIVING, "", lambda: follower.faults.add(Fault("overheat", id=3, value=68.0))),
        (TRIPPED, "", follower.faults.clear),
        (TRIPPED, "", "c"),
        (TRIPPED, "Press it again", "c"),
        (DRIVING, "", "q"),
    )
    (reason,) = rig.trips()
    assert reason & SafetyReason.OVER_TEMPERATURE
    assert any("(elbow_flex)" in shown.below for shown in rig.seen)
    assert ended.why == "quit"


def test_an_arm_that_cannot_get_back_into_its_box_says_so(
    rig: Bench, until: Callable[[Callable[[], object]], None]
) -> None:
    """Left limp, an emulated arm fell back over its base; it then stood still without a word."""
    follower = rig.follower
    behind_rad = [0.0, -1.7, -1.6, 0.0, 0.0, 0.0]
    follower.hand.pose(behind_rad)

    def is_there() -> bool:
        with follower.lock:
            joints = [servo.joint for servo in follower.all_servos]
            ways = [abs(j.q_rad - q) for j, q in zip(joints, behind_rad, strict=True)]
            return max(ways) < 0.05

    until(is_there)
    assert rig.drive((DRIVING, "workspace box", "q")).why == "quit"


def test_the_time_of_driving_is_kept_over_trips(rig: Bench) -> None:
    ended = rig.drive(
        (DRIVING, "", "space"),
        (KEEP_CLEAR, "", "c"),
        (KEEP_CLEAR, "Press it again", "c"),
        max_s=3.0,
    )
    assert ended.why == "time"
    assert not rig.script
    assert rig.devices is not None
    assert rig.devices.statistics is not None
    assert rig.devices.statistics.figures().duration_s == pytest.approx(3.0, abs=0.1)


@pytest.mark.members(1)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_is_lost_without_an_operator_ends_it_and_is_told(role: str, rig: Bench) -> None:
    """A pulled cable ended the program with exit code 2 and neither the trip nor a summary, and a
    leader's with "Switch the arm's power off", though torque was off.
    """
    follower, leader = rig.follower, rig.leader
    faults = (follower if role == "follower" else leader).faults
    ended = rig.drive((DRIVING, "", lambda: faults.add(Fault("unplug"))), interface="none")
    assert ended.why == "trip"
    assert "stopped answering" in ended.trip
    assert "press" not in ended.trip  # there is nothing to press
    assert role in ended.failed
    assert ("Switch the arm's power off" in ended.failed) is (role == "follower")
    assert role == "follower" or limp(follower)


def test_a_space_while_a_lost_device_is_looked_for_takes_the_first_press_back(rig: Bench) -> None:
    """Only c and q were looked at there: a space between two presses of c let the arm go on."""
    follower = rig.follower
    ended = rig.drive(
        (DRIVING, "", lambda: follower.faults.add(Fault("unplug"))),
        (LOST, "follower", follower.faults.clear),
        (FOUND, "answers again", "c"),
        (FOUND, "Press it again", "space"),
        (FOUND, "", "c"),
        (FOUND, "Press it again", "q"),
    )
    assert (ended.why, ended.reconnected) == ("quit", 0)
    assert limp(follower)


def test_q_lowers_the_arm_and_q_again_lets_go_of_it(
    rig: Bench, monkeypatch: pytest.MonkeyPatch, loop_time: ManualClock
) -> None:
    """Every way to leave dropped the arm from where it was."""
    follower = rig.follower
    monkeypatch.setattr(Lowering, "rests", lambda *_: False)
    held: list[bool] = []

    def wait() -> None:
        held.append(not limp(follower))
        loop_time.sleep_until(loop_time.now_s() + HELD_KEY_S)

    ended = rig.drive(
        (DRIVING, "", "q"),
        (KEEP_CLEAR, "keep clear", wait),
        (KEEP_CLEAR, "Press again", "q"),
    )
    assert ended.why == "quit"
    assert held == [True]
    assert limp(follower)
    with follower.lock:
        away = [abs(s.joint.q_rad - PARK.get(s.plan.name, 0.0)) for s in follower.all_servos]
    assert max(away) > 0.3


def test_a_leaver_isnt_kept_by_what_doesnt_answer(rig: Bench) -> None:
    """After q the torque of a servo without power couldn't be confirmed: it was waited for."""
    follower = rig.follower
    ended = rig.drive(
        (DRIVING, "", lambda: follower.faults.add(Fault("vanish", id=3))),
        (DRIVING, "", "q"),
        station=Station(name="bench", safety=SafetyLimits(lost_servo_s=60.0)),
    )
    assert ended.why == "quit"
    assert "elbow_flex" in ended.failed


# -- leaders of other kinds ----------------------------------------------------------------------


class Window:
    """A leader's window."""

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        self.estop, self.clear = on_estop, on_clear

    def pump(self, trip: str = "") -> None: ...


def test_the_keys_of_a_leaders_window_do_what_those_of_the_terminal_do() -> None:
    stops: list[str] = []
    console = OperatorConsole(StageTiming(1.0, 1.0), KeyMap.of(DRIVE), stage=SessionStage.DRIVING)
    console.safety = SimpleNamespace(estop=lambda: stops.append("e-stop"))  # type: ignore[assignment]
    window = Window()
    listen_to(window, console)
    window.estop()
    assert stops == ["e-stop"]
    assert console.keys.command("s") is None, "nothing is labelled"
    assert console.keys.command("q") is Command.STOP


def test_a_gamepad_that_was_pulled_out_needs_no_new_connection() -> None:
    both = SafetyReason.STALE_LEADER | SafetyReason.LOST_SERVO
    assert lost_after_trip(Window()) & both == SafetyReason.LOST_SERVO  # type: ignore[arg-type]
    assert lost_after_trip(None) & both == both


def test_motion_is_a_teleoperator_of_the_embedded_cell() -> None:
    config = DriveOptions(robot=So101SimConfig(), teleop=MotionConfig(script="chirp", seconds=2.0))
    with ArmConnection(
        config, station_for(config.robot, None), Rates(HZ, HZ), records=False
    ) as arms:
        made, leader = arms.connect()
    try:
        assert isinstance(leader, MotionLeader)
        assert subscribers(leader) == (leader,)
        leader.reset()
        assert leader.duration_s > 10.0
    finally:
        made.follower.close()
