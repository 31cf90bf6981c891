"""However a program that drives an arm ends, its supervisor brings the arm down, and only then.

Each program is a process of its own; the emulated arm lives in the test's, and knows what it heard.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.arms import ARMS
from gaploop.core.clock import ManualClock
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState, SafeCommand
from gaploop.core.station import SafetyLimits, Workspace
from gaploop.teleop import supervisor
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.lowering import LOWER_RAD_S
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.servos.port import SUPERVISOR, SerialPort, port_holder
from gaploop.teleop.servos.registers import RAD_PER_TICK, Protocol
from gaploop.teleop.supervisor import SupervisedBus, Supervisor
from gaploop.teleop.workspace import guard_of

PROGRAM = '''
import json, os, signal, sys, time
import numpy as np
from gaploop.teleop import control, supervisor
from gaploop.core.clock import ManualClock
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, FollowerState, SafeCommand
from gaploop.core.station import SafetyLimits, Workspace
from gaploop.teleop import supervisor
from gaploop.core.messages import FollowerState, LeaderSample
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.servos import exchange
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import Protocol
from gaploop.teleop.servos.torque import torque_off, torque_on
from gaploop.teleop.supervisor import SupervisedBus

job = json.loads(sys.argv[1])
count = len(job["ids"])
# A busy machine is no fault.
patience = """
from gaploop.teleop import supervisor
from gaploop.teleop.servos import exchange
exchange.MIN_WAIT_S = exchange.MAX_WAIT_S = supervisor.READY_S = 120.0
"""
if job["patient"]:
    control.STUCK_S = 120.0
    patience += "supervisor.SILENT_S = 120.0\\n"
exec(patience)
if not job["named"]:
    supervisor.COMMAND = [sys.executable, "-P", "-c", patience + "supervisor.main()"]
limits = np.tile([-3.0, 3.0], (count, 1))

class Arm:
    name, robot_type, units = "follower", "fake", "deg"
    joint_names = tuple(f"joint_{i}" for i in range(count))
    joint_limits_rad = limits

    def __init__(self):
        port = SerialPort(job["port"])
        port.open()
        self.line = BusLine(port, Protocol(job["protocol"]))
        self.bus = ServoBus(self.line, job["ids"], job["models"])
        self.bus.decoder.set_angles(*zip(*job["angles"]))

    def supervised(self):
        own, port = self.bus, self.line.port
        known = port.path, port.baud, own.protocol, list(own.ids), list(own.models)
        return [SupervisedBus(port.fileno(), *known, own.decoder.angles, 0.0, True)]

    def read(self):
        (state,) = run([(self.line, self.bus.read(time.monotonic()))])
        _, speed, current, load, heat, volts, q = state.values
        return FollowerState(time.monotonic(), q, speed, current, load, heat, volts, state.status)

    def send(self, command):
        ways = zip(command.sent_rad, job["angles"])
        self.bus.set_goals([middle + (q - rad) / slope for q, (middle, rad, slope) in ways])

    def torque_on(self):
        assert run([(self.line, torque_on(self.bus))]) == [()]

    def torque_off(self, damped=False):
        assert run([(self.line, torque_off(self.bus))]) == [()]

    def close(self):
        self.line.port.close()

    to_units = from_units = staticmethod(np.degrees)

arm = Arm()
at_rad = arm.read().position_rad
ended = []
signal.signal(signal.SIGUSR1, lambda *_: ended.append("hangs"))
signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
signal.signal(signal.SIGTERM, lambda *_: ended.append("over"))

class Leader:
    def reset(self):
        pass

    def read(self, t_s):
        if "hangs" in ended:
            print("hangs", flush=True)
        while "hangs" in ended:
            time.sleep(1.0)
        return LeaderSample(t_s, at_rad)

    def done(self):
        return False

rates = Rates(50.0, 50.0)
slow = SafetyLimits(stale_leader_s=5.0, lost_servo_s=2.0, stall_s=10.0, following_s=10.0)
park_rad = np.array([np.nan if q is None else q for q in job["park_rad"]])
safety = SafetyFilter(slow, limits, rates.period_s, grips=[count - 1], park_rad=park_rad)
with control.ControlThread(arm, Leader(), safety, rates) as driven:
    driven.start()
    if job["forks"] and not os.fork():  # inherits every open file, as a worker of torch's does
        os.closerange(0, 3)
        time.sleep(20.0)
        os._exit(0)
    while driven.snapshot().tick is None:
        time.sleep(0.01)
    print(driven._supervisor._process.pid, flush=True)
    said = ()
    while "over" not in ended:
        if said != driven.snapshot().faults:
            said = driven.snapshot().faults
            print(*said, flush=True)
        time.sleep(0.01)
'''

SOON_S = 240.0
"""Longest time that a loaded machine is waited for."""
RAISED_RAD = 0.2


def until(is_so: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.005)


class Ride:
    """A program that drives an emulated arm, and what the arm hears."""

    def __init__(self, folder: Path, model: str = "so101", **options: bool) -> None:
        self.bus = EmulatedBus(model, hand="none", wire_time=False, link=folder / "arm")
        servos = self.bus.all_servos
        park_rad = [ARMS[model].park_rad.get(servo.plan.name) for servo in servos]
        with self.bus.lock:
            for servo, rest_rad in zip(servos, park_rad, strict=True):
                if servo.plan.name == "shoulder_lift":
                    assert rest_rad is not None
                    servo.joint.q_rad = rest_rad - math.copysign(RAISED_RAD, rest_rad)
            self.bus.hand.pose([servo.joint.q_rad for servo in servos])
            angles = [
                (servo.shown_ticks_at(0.0), 0.0, servo.shown_direction() * RAD_PER_TICK)
                for servo in servos
            ]
        job = {
            "port": self.bus.port,
            "protocol": self.bus.plan.protocol,
            "ids": list(self.bus.servos),
            "models": [servo.model for servo in servos],
            "park_rad": park_rad,
            "angles": angles,
            "patient": True,
            "forks": False,
            "named": False,
            **options,
        }
        self.heard: list[tuple[bool, list[float]]] = []
        """For each piece: was the program gone, and what were the goals afterwards [ticks]?"""
        self.before = 0
        """How many of them came before it was to end."""
        self.on_heard: Callable[[bool], None] = lambda _is_over: None
        hear = self.bus.chain.hear

        def hears(data: bytes, baud: int) -> list[bytes]:
            is_over = self.is_over()
            self.on_heard(is_over)
            answers = hear(data, baud)
            self.heard.append((is_over, [servo.goal for servo in servos]))
            return answers

        self.program = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.bus.chain.hear = hears  # type: ignore[method-assign]
        self.supervisor = 0

    def begin(self) -> None:
        """Wait until it drives."""
        self.supervisor = int(self.line())
        with self.bus.lock:
            self.bus.hand.set_mode("none")

    def line(self) -> str:
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line, self.program.communicate()[1]
        return line

    def is_over(self) -> bool:
        """Say whether the program can't write any more: no thread of it has a file open.

        The kernel says so a moment before a parent may ask for the exit code, and on a busy
        machine a supervisor has said its first bytes between the two.
        """
        return not any(glob.iglob(f"/proc/{self.program.pid}/task/*/fd/*"))

    def is_quiet(self) -> bool:
        """Say whether all bytes on their way are heard; the kernel hands them on when it can.

        With the lock, as the bus takes bytes and hears them under it: between the two neither the
        port nor what was heard shows them.
        """
        port, heard = self.bus._port, len(self.heard)
        assert port is not None
        for _ in range(10):
            time.sleep(0.02)
            with self.bus.lock:
                if select.select([port.fd], [], [], 0)[0] or len(self.heard) != heard:
                    return False
        return True

    def holds(self) -> bool:
        with self.bus.lock:
            return any(servo.torque for servo in self.bus.all_servos)

    def supervised(self) -> bool:
        return Path(f"/proc/{self.supervisor}/fd/0").exists()

    def close(self) -> None:
        for group in (self.program.pid, self.supervisor or self.program.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.program.communicate()
        self.bus.stop()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Ride]]:
    with contextlib.ExitStack() as stack:

        def begun(*arguments: Any, **options: Any) -> Ride:
            ride = Ride(tmp_path, *arguments, **options)
            stack.callback(ride.close)
            ride.begin()
            return ride

        yield begun


def is_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((t / "stat").read_text().rpartition(")")[2].split()[0] == "T" for t in threads)


ENDS = {
    "killed": signal.SIGKILL,
    "crashes": signal.SIGSEGV,
    "stopped": signal.SIGSTOP,
    "hangs": signal.SIGUSR1,
    "exits": signal.SIGUSR2,
}


CASES = [*(("so101", how) for how in ENDS), ("koch", "killed")]


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Ride]]:
    """All cases that tests ask for at once: each takes seconds in which processors have no work."""
    asked = {
        (item.callspec.params.get("model", "so101"), item.callspec.params["how"])
        for item in request.session.items
        if item.path == request.path and "ended" in getattr(item, "fixturenames", ())
    }
    with contextlib.ExitStack() as stack:
        rides = {}
        for model, how in (case for case in CASES if case in asked):
            folder = tmp_path_factory.mktemp(how)
            patient, forks = how not in ("stopped", "hangs"), how == "killed"
            ride = Ride(folder, model, patient=patient, forks=forks)
            rides[model, how] = ride
            stack.callback(ride.close)
        for (_, how), ride in rides.items():
            ride.begin()
            ride.program.send_signal(ENDS[how])
            if how == "hangs":
                assert ride.line() == "hangs\n"
            elif how == "stopped":
                until(lambda pid=ride.program.pid: is_stopped(pid))  # type: ignore[misc]
            if how in ("hangs", "stopped"):  # what it said before is heard first
                until(ride.is_quiet)
            with ride.bus.lock:
                ride.before = len(ride.heard)
        for ride in rides.values():
            until(lambda ride=ride: not ride.supervised())  # type: ignore[misc]
        yield rides


@pytest.mark.members(2)
@pytest.mark.parametrize(("model", "how"), CASES)
def test_an_arm_whose_program_is_gone_is_lowered_by_its_supervisor_alone(
    ended: dict[tuple[str, str], Ride], model: str, how: str
) -> None:
    """Its torque stayed on for ever, with nobody in charge."""
    ride = ended[model, how]
    assert ride.is_over()
    assert not ride.holds()
    code = {"crashes": -signal.SIGSEGV, "exits": 3}.get(how, -signal.SIGKILL)
    assert ride.program.wait() == code
    goals = np.array([goal for is_over, goal in ride.heard if is_over])
    step_rad = np.abs(np.diff(goals, axis=0)).max() * RAD_PER_TICK
    assert step_rad <= 0.1 * LOWER_RAD_S + 2 * RAD_PER_TICK
    with ride.bus.lock:
        for servo in ride.bus.all_servos:
            rest_rad = ARMS[model].park_rad.get(servo.plan.name, servo.joint.q_rad)
            assert abs(servo.joint.q_rad - rest_rad) < 0.15


@pytest.mark.parametrize("how", ["stopped", "hangs"])
def test_nothing_of_a_program_that_stood_still_reaches_the_arm_once_it_is_lowered(
    ended: dict[tuple[str, str], Ride], how: str
) -> None:
    """One that was stopped went on after SIGCONT, and drove an arm that others had taken over."""
    ride = ended["so101", how]
    ride.program.send_signal(signal.SIGCONT)
    after = ride.heard[ride.before :]
    assert len(after) > 10
    assert [k for k, (is_over, _) in enumerate(after) if not is_over] == []  # not one byte early


def test_a_program_that_ends_in_order_leaves_no_supervisor_and_the_arm_hears_nothing_of_it(
    begin: Callable[..., Ride],
) -> None:
    ride = begin()
    ride.program.terminate()
    _, said = ride.program.communicate(timeout=SOON_S)
    assert ride.program.returncode == 0
    assert "while it held the arm" not in said
    assert not ride.supervised()
    assert not ride.holds()
    assert not any(is_over for is_over, _ in ride.heard)
    assert port_holder(ride.bus.port) is None


def test_a_supervisor_that_is_killed_is_missed_and_the_arm_is_driven_on(
    begin: Callable[..., Ride],
) -> None:
    ride = begin()
    os.kill(ride.supervisor, signal.SIGKILL)
    assert "supervisor has ended" in ride.line()
    assert ride.holds()
    heard = len(ride.heard)
    until(lambda: len(ride.heard) > heard + 10)
    ride.program.terminate()
    _, said = ride.program.communicate(timeout=SOON_S)
    assert ride.program.returncode == 0
    assert "power switch" in said
    assert not ride.holds()


def test_who_starts_anew_meanwhile_waits_for_the_arm(
    begin: Callable[..., Ride], caplog: pytest.LogCaptureFixture
) -> None:
    ride = begin(named=True)
    os.kill(ride.supervisor, signal.SIGSTOP)
    ride.program.kill()
    until(ride.is_over)
    assert port_holder(ride.bus.port) == (ride.supervisor, SUPERVISOR)
    port = SerialPort(ride.bus.port)
    opens = threading.Thread(target=port.open)
    opens.start()
    until(lambda: "is being lowered" in caplog.text)
    os.kill(ride.supervisor, signal.SIGCONT)
    opens.join()
    assert not ride.supervised()
    port.close()


def test_a_supervisor_that_is_interrupted_lets_go_at_once(begin: Callable[..., Ride]) -> None:
    ride = begin()

    def interrupt(is_over: bool) -> None:
        if is_over:
            ride.on_heard = lambda _is_over: None
            os.kill(ride.supervisor, signal.SIGINT)

    ride.on_heard = interrupt
    ride.program.kill()
    until(lambda: not ride.supervised())
    assert not ride.holds()
    goals = np.array([goal for is_over, goal in ride.heard if is_over])
    assert np.ptp(goals, axis=0).max() == 0


class Weightless:
    """An arm that is where it is told to be, as a supervisor sees it."""

    damps = False

    def __init__(self, q_rad: FloatArray) -> None:
        self.sent = [q_rad]
        self.joint_names = tuple(map(str, range(len(q_rad))))

    def ask(self) -> tuple[FloatArray, FloatArray]:
        return self.sent[-1], np.ones(len(self.joint_names))

    def read(self) -> FollowerState:
        q, none = self.sent[-1], np.zeros(len(self.joint_names))
        return FollowerState(0.0, q, none, none, none, none, none, none.astype(np.int64))

    def send(self, command: SafeCommand) -> None:
        self.sent.append(command.sent_rad)

    def release(self, _joints: object) -> None:
        pass

    def torque_off(self) -> None:
        self.sent.append(self.sent[-1])


@pytest.mark.members(1)
@pytest.mark.parametrize(("model", "seed"), [("so101", 0), ("so101", 1), ("koch", 2)])
def test_a_supervisor_heeds_the_stations_box(
    model: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went straight through a face of the box, where everything else on the way down stops."""
    arm = ArmModel.load(model)
    draw = np.random.default_rng(seed)
    while True:  # both ends are in a box that the straight way between them leaves
        start, park = draw.uniform(*arm.joint_limits_rad.T, (2, 6))
        way = np.array([arm.points_m(q) for q in np.linspace(start, park, 50)])
        ends = np.concatenate([way[0], way[-1]])
        low_m, high_m = ends.min(axis=0) - 0.02, ends.max(axis=0) + 0.02
        if (way < low_m - 0.05).any() or (way > high_m + 0.05).any():
            break
    guard = guard_of(model, Workspace(*np.stack([low_m, high_m], axis=1).tolist()), range(6))
    filtered = SafetyFilter(
        SafetyLimits(), arm.joint_limits_rad, 0.02, (guard,), (5,), park_rad=park
    )
    told = json.loads(json.dumps(filtered.to_json()))
    boxes = [guard_of(b["model"], Workspace(*b["box"]), b["joints"]) for b in told["boxes"]]
    monkeypatch.setattr(supervisor, "MonotonicClock", ManualClock)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)  # it has a program of its own
    held = Weightless(start)
    supervisor._bring_down(held, told, boxes, supervisor._Why.ENDED)
    points = np.array([arm.points_m(q) for q in held.sent])
    assert len(points) > 100
    assert (points >= low_m - 1e-9).all()
    assert (points <= high_m + 1e-9).all()


class Deaf(Weightless):
    """One that answers nothing, and may hear all the same."""

    def ask(self) -> tuple[FloatArray, FloatArray]:
        nothing = np.full(len(self.joint_names), np.nan)
        return nothing, nothing

    def read(self) -> FollowerState:
        none = np.full(len(self.joint_names), np.nan)
        silent = np.full(len(self.joint_names), NO_REPLY)
        return FollowerState(0.0, none, none, none, none, none, none, silent)


def test_an_arm_that_answers_nothing_is_let_go_of_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A supervisor left an arm under torque whose answers came too late for it."""
    filtered = SafetyFilter(SafetyLimits(), ArmModel.load("so101").joint_limits_rad, 0.02, (), (5,))
    monkeypatch.setattr(supervisor, "MonotonicClock", ManualClock)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    arm = Deaf(np.zeros(6))
    supervisor._bring_down(
        arm, json.loads(json.dumps(filtered.to_json())), [], supervisor._Why.HANGS
    )
    assert len(arm.sent) > 1
    assert "no servo answers. Switch the arm's power off." in capfd.readouterr().err


def test_what_cant_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaploop.teleop.supervisor.COMMAND", ["/nowhere/python"])
    known = SupervisedBus(
        0, "/dev/null", 1_000_000, Protocol.FEETECH, [1], ["sts3215"], [], 0.0, True
    )
    beside = Supervisor([known], SafetyFilter(SafetyLimits(), np.array([[-1.0, 1.0]]), 0.02))
    beside.ready()
    assert not beside.take_over(let_go=False)
    assert "can't be started" in beside.lost
    assert "power switch" in beside.lost
    beside.done()
    beside.done()


def test_a_thread_that_speaks_while_it_is_dismissed_misses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog's word met a closed channel; an ordinary end was told as a loss."""
    monkeypatch.setattr(supervisor, "_prepared", [])
    monkeypatch.setattr(supervisor, "COMMAND", [sys.executable, "-c", "import time; time.sleep(9)"])
    known = SupervisedBus(
        os.open(os.devnull, os.O_RDWR), "", 1_000_000, Protocol.FEETECH, [1], ["sts3215"], [], 0.0,
        True,
    )  # fmt: skip
    beside = Supervisor([known], SafetyFilter(SafetyLimits(), np.array([[-1.0, 1.0]]), 0.02))
    channel = beside._channel
    assert channel is not None
    monkeypatch.setattr(supervisor, "LEAVES_S", 0.01)

    class Dismissed:
        """A channel whose supervisor is dismissed between the look and the word."""

        def send(self, _word: bytes) -> int:
            beside._channel = channel
            beside.done()
            raise BrokenPipeError

    beside._channel = Dismissed()  # type: ignore[assignment]
    beside.rests()
    assert not beside.lost
    os.close(known.handle)
