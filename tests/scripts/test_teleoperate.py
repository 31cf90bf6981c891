"""`gaploop teleoperate` on emulated arms: what is wrong is one line, and torque is always off."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gaploop.core.clock import ManualClock
from gaploop.scripts.cli import main
from gaploop.teleop.emulator.arms import ArmPlan, arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault

pytestmark = pytest.mark.usefixtures("loop_time")


@dataclass
class Pair:
    """A follower and a leader, and the options that name them."""

    follower: EmulatedBus
    leader: EmulatedBus
    options: list[str]
    stack: ExitStack = field(default_factory=ExitStack)

    def torque(self) -> list[int]:
        """Ids of the follower's servos whose torque is on."""
        with self.follower.lock:
            return [servo.id for servo in self.follower.all_servos if servo.torque]


def plan_of(model: str, role: str) -> ArmPlan:
    return arm_plan(model, role).calibrated()


type Make = Callable[..., Pair]


@pytest.fixture(autouse=True)
def _unlogged() -> Iterator[None]:
    """Put back the log handler that the command sets for its process."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Make]:
    """Makes a pair; `follower` and `leader` replace an arm's plan."""
    with ExitStack() as stack:

        def make(
            model: str = "so101",
            *,
            follower: ArmPlan | None = None,
            leader: ArmPlan | None = None,
            hand: str = "still",
        ) -> Pair:
            plans = {
                "follower": follower or plan_of(model, "follower"),
                "leader": leader or plan_of(model, "leader"),
            }
            buses = {}
            for role, plan in plans.items():
                good = plan_of(model, role).calibration()
                (tmp_path / f"{role}.json").write_text(json.dumps(good))
                moved = hand if role == "leader" else "none"
                link = tmp_path / role  # on one clock, what takes time on two wires takes it twice
                bus = EmulatedBus(plan=plan, hand=moved, link=link, wire_time=False)
                buses[role] = stack.enter_context(bus)
            options = [
                f"--robot.type={model}_follower",
                f"--robot.port={tmp_path / 'follower'}",
                "--robot.id=follower",
                f"--robot.calibration_dir={tmp_path}",
                f"--teleop.type={model}_leader",
                f"--teleop.port={tmp_path / 'leader'}",
                "--teleop.id=leader",
                f"--teleop.calibration_dir={tmp_path}",
            ]
            return Pair(buses["follower"], buses["leader"], options)

        yield make


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run the command, expect exit code 2 and one line, and return it."""
    assert main(["teleoperate", *arguments, "--teleop_time_s=0.2"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


# -- what works -----------------------------------------------------------------------------


@pytest.mark.members(1)
@pytest.mark.parametrize("model", ["so101", "koch", "openmanipulator"])
def test_a_pair_is_driven_and_let_go(
    model: str, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    if model == "openmanipulator":
        both = pair(model)
        both.options = [o.replace("openmanipulator_", "omx_") for o in both.options]
    else:
        both = pair(model, hand="wave")
    assert main(["teleoperate", *both.options, "--teleop_time_s=0.5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ended"] == "time"
    assert (said["turns"], said["missed"]) == (100, 0)
    assert said["trips"] == []
    assert said["latency"]["p50_s"] > 0
    assert both.torque() == []


def test_a_pair_of_pairs_is_driven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LeRobot disconnected both arms of a pair as soon as nobody referred to the pair itself."""
    options = ["--robot.type=bi_so_follower", "--teleop.type=bi_so_leader"]
    with ExitStack() as stack:
        for role, kind in (("follower", "robot"), ("leader", "teleop")):
            folder = tmp_path / f"calibration_{role}"
            folder.mkdir()
            options += [f"--{kind}.id=two", f"--{kind}.calibration_dir={folder}"]
            plan = plan_of("so101", role)
            for side in ("left", "right"):
                link = tmp_path / f"{side}_{role}"
                (folder / f"two_{side}.json").write_text(json.dumps(plan.calibration()))
                hand = "still" if role == "leader" else "none"
                stack.enter_context(EmulatedBus(plan=plan, hand=hand, link=link, wire_time=False))
                options.append(f"--{kind}.{side}_arm_config.port={link}")
        code = main(["teleoperate", *options, "--teleop_time_s=0.5", "--json"])
        said = capsys.readouterr()
    assert code == 0, said.err
    driven = json.loads(said.out)
    assert (driven["turns"], driven["missed"]) == (100, 0)


def test_the_embedded_cell_is_driven_in_real_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ManualClock()
    monkeypatch.setattr("gaploop.sim.cell.MonotonicClock", lambda: real)
    options = ["--robot.type=so101_sim", "--teleop.type=scripted", "--teleop_time_s=1", "--json"]
    assert main(["teleoperate", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["robot"], said["turns"], said["missed"]) == ("so101_sim", 200, 0)
    assert real.now_s() >= 1.0


# -- bad input --------------------------------------------------------------------------------


def test_a_port_that_is_not_there(pair: Make, capsys: pytest.CaptureFixture[str]) -> None:
    both = pair()
    line = refused(capsys, [*both.options, "--robot.port=/dev/ttyACM77"])
    assert "/dev/ttyACM77" in line
    line = refused(capsys, [*both.options, "--teleop.port=/dev/ttyACM77"])
    assert "/dev/ttyACM77" in line
    assert both.torque() == []


def test_a_port_that_is_given_twice(pair: Make, capsys: pytest.CaptureFixture[str]) -> None:
    both = pair()
    line = refused(capsys, [*both.options, f"--teleop.port={both.follower.port}"])
    assert "twice" in line
    assert both.torque() == []


def test_a_port_that_is_busy(pair: Make, capsys: pytest.CaptureFixture[str]) -> None:
    both = pair()
    opens = "import serial, sys; port = serial.Serial(sys.argv[1], exclusive=True)"
    code = f"{opens}; print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, both.follower.port],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        line = refused(capsys, both.options)
    finally:
        holder.communicate("\n")
    assert "in use" in line
    assert str(holder.pid) in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every port; see the next test")
def test_a_port_without_permission(pair: Make, capsys: pytest.CaptureFixture[str]) -> None:
    both = pair()
    os.chmod(both.follower.port, 0)
    assert "usermod" in refused(capsys, both.options)


def test_what_is_said_without_permission() -> None:
    from gaploop.teleop.servos.port import open_error

    line = str(open_error("/dev/tty", PermissionError(13, "Permission denied")))
    assert "permission" in line.lower()
    assert "usermod -aG" in line
    assert "\n" not in line


BAD_ARMS: list[tuple[str, str, Callable[[ArmPlan], ArmPlan], str]] = [
    ("koch", "leader", lambda plan: plan.with_servo("gripper", id=5), "two servos have that id"),
    ("so101", "leader", lambda plan: plan.without(["elbow_flex"]), "no answer from servo 3"),
    ("koch", "follower", lambda plan: plan.without(["elbow_flex"]), "no answer from servo 3"),
    (
        "so101",
        "leader",
        lambda plan: plan.with_servo("gripper", settings={"Firmware_Minor_Version": 9}),
        "firmware",
    ),
]


@pytest.mark.parametrize(("model", "role", "spoil", "says"), BAD_ARMS)
def test_a_bus_with_something_wrong(
    model: str,
    role: str,
    spoil: Callable[[ArmPlan], ArmPlan],
    says: str,
    pair: Make,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoilt = spoil(plan_of(model, role))
    both = pair(model, follower=spoilt) if role == "follower" else pair(model, leader=spoilt)
    assert says in refused(capsys, both.options)
    assert both.torque() == []


@pytest.mark.parametrize("model", ["koch"])
def test_leader_and_follower_swapped(
    model: str, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both = pair(model)
    swapped = [f"--robot.port={both.leader.port}", f"--teleop.port={both.follower.port}"]
    assert "swap" in refused(capsys, [*both.options, *swapped])
    assert both.torque() == []


def test_an_arm_without_calibration(
    tmp_path: Path, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both = pair()
    (tmp_path / "empty").mkdir()
    line = refused(capsys, [*both.options, f"--robot.calibration_dir={tmp_path / 'empty'}"])
    assert "lerobot-calibrate --robot.type=so101_follower" in line
    line = refused(capsys, [*both.options, f"--teleop.calibration_dir={tmp_path / 'empty'}"])
    assert "lerobot-calibrate --teleop.type=so101_leader" in line
    assert both.torque() == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("joint_limits_rad: {shoulder_pan: [-6, 6]}", "outside the robot's own range"),
        ("joint_limits_rad: {elbow: [-0.1, 0.1]}", "elbow_flex"),
        ("safety: {velocity_rad_s: 100}", "velocity_rad_s"),
        ("safety: {stall_current_a: .inf}", "stall_current_a"),
    ],
)
def test_a_station_with_limits_that_cannot_be(
    text: str, says: str, tmp_path: Path, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both, station = pair(), tmp_path / "station.yaml"
    station.write_text(f"name: bench\n{text}\n")
    line = refused(capsys, [*both.options, f"--station={station}"])
    assert says in line
    assert "station.yaml" in line
    assert both.torque() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--robot.type=so101_folower"], "Did you mean 'so101_follower'"),
        (["--robot.type=so101_follower", "--robot.port=x"], "--teleop.type"),
        (["--fps=0"], "--fps must be from 1"),
        (["--fps=1e6"], "--fps must be from 1"),
        (["--teleop_time_s=-1"], "--teleop_time_s must be above 0"),
        (["--station=missing.yaml"], "missing.yaml"),
        (["--teleop.type=scripted"], "drives the embedded cell only"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], says: str, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = options[0].startswith("--robot.type")
    both = pair()
    kept = [
        o for o in both.options if not (options[0].startswith("--teleop.type") and "teleop" in o)
    ]
    assert main(["teleoperate", *([] if whole else kept), *options]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert says in line
    assert both.torque() == []


# -- what happens on the way --------------------------------------------------------------------


def test_a_trip_without_a_terminal_ends_the_program(
    pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both = pair()
    both.follower.faults.add(Fault("overheat", id=3, at_s=1.5))
    assert main(["teleoperate", *both.options, "--teleop_time_s=20"]) == 1
    said = capsys.readouterr().err
    assert "elbow_flex" in said.splitlines()[-1]
    assert "\n\n" not in said
    assert both.torque() == []


@pytest.mark.members(1)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_pulled_cable_without_a_terminal_ends_the_program(
    role: str, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both = pair()
    getattr(both, role).faults.add(Fault("unplug", at_s=3.0))
    assert main(["teleoperate", *both.options, "--teleop_time_s=30", "--json"]) == 1
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert summary["ended"] == "trip"
    assert "stopped answering" in summary["trip"]
    assert role in said.err.splitlines()[-1]
    # The same thing that failed on every turn was one thing.
    assert summary["bus_faults"][f"{role} io errors"] <= 2
    if role == "leader":
        assert both.torque() == []
        assert "arm's power" not in said.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_torque_off(
    number: int, pair: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    both, over = pair(hand="wave"), threading.Event()

    def send() -> None:
        while len(both.torque()) < 6:
            if over.wait(0.02):
                return
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    code = main(["teleoperate", *both.options, "--json"])
    over.set()
    sender.join()
    assert code == 128 + number
    assert json.loads(capsys.readouterr().out)["ended"] == "signal"
    assert both.torque() == []
