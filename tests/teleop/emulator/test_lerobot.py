"""LeRobot's own robots, leaders and programs, unmodified, on the emulated bus."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dynamixel_sdk
import pytest
import scservo_sdk

from gaploop.core.clock import ManualClock
from gaploop.teleop.emulator.arms import JOINTS
from gaploop.teleop.emulator.bus import EmulatedBus

pytestmark = pytest.mark.usefixtures("patient_sdks")

PATIENCE_S = 120.0
ARMS = [
    ("so101", "follower", "so_follower", "SO101Follower"),
    ("so101", "leader", "so_leader", "SO101Leader"),
    ("koch", "follower", "koch_follower", "KochFollower"),
    ("koch", "leader", "koch_leader", "KochLeader"),
    ("openmanipulator", "follower", "omx_follower", "OmxFollower"),
    ("openmanipulator", "leader", "omx_leader", "OmxLeader"),
]

AS_THE_OTHERS = (("so101", "leader"), ("koch", "follower"))
"""Their calibration takes the same steps as that of the two that are always tried."""


def device(role: str, module: str, name: str, port: str, folder: Path) -> Any:
    """Build LeRobot's device of that name."""
    import importlib

    package = "robots" if role == "follower" else "teleoperators"
    found = importlib.import_module(f"lerobot.{package}.{module}")
    config = getattr(found, f"{name}Config")(port=port, id="x", calibration_dir=folder)
    return getattr(found, name)(config)


REQUEST_S = 0.02
"""What a request takes of the arm's time, however long the machine takes for it."""


@pytest.fixture
def arms_time(monkeypatch: pytest.MonkeyPatch, patient_sdks: None) -> ManualClock:
    """Return an arm's time that goes on with each request of a host."""
    del patient_sdks
    clock = ManualClock()

    def timed(writes: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
        def write(handler: Any, packet: Any) -> int:
            clock.sleep_until(clock.now_s() + REQUEST_S)
            return writes(handler, packet)

        return write

    for sdk in (dynamixel_sdk, scservo_sdk):
        monkeypatch.setattr(sdk.PortHandler, "writePort", timed(sdk.PortHandler.writePort))
    return clock


class Person:
    """Presses ENTER on standard input: once for the middle, once when the ranges are known."""

    def __init__(self, bus: EmulatedBus, clock: ManualClock, stdin: int) -> None:
        self._bus, self._clock, self._stdin = bus, clock, stdin
        self._thread = threading.Thread(target=self._act)
        self._gone = threading.Event()

    def __enter__(self) -> Person:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.set()
        self._thread.join()

    def _act(self) -> None:
        middle = [(s.joint.low_rad + s.joint.high_rad) / 2 for s in self._bus.all_servos]
        self._wait(  # at rest there: one that swings through is written down as it swings out
            lambda: all(
                abs(s.joint.q_rad - m) < 0.03 and abs(s.joint.v_rad_s) < 0.1
                for s, m in zip(self._bus.all_servos, middle, strict=True)
            )
        )
        os.write(self._stdin, b"\n")
        self._wait(lambda: any(abs(s.joint.v_rad_s) > 0.5 for s in self._bus.all_servos))
        # Once through the ranges, as far as LeRobot's requests have brought the arm's time.
        over_s = self._clock.now_s() + self._bus.hand.sweep_s * 1.3
        self._wait(lambda: self._clock.now_s() > over_s, is_host_waiting=False)
        if not self._gone.is_set():
            os.write(self._stdin, b"\n")

    def _wait(self, true: Callable[[], bool], *, is_host_waiting: bool = True) -> None:
        while not true() and not self._gone.wait(0.005):
            if is_host_waiting:
                self._clock.sleep_until(self._clock.now_s() + REQUEST_S)


@contextlib.contextmanager
def typed_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Stand a pipe in for standard input; what is written to it is what a person types."""
    read, write = os.pipe()
    with os.fdopen(read) as stream, contextlib.redirect_stdout(io.StringIO()):
        monkeypatch.setattr(sys, "stdin", stream)
        yield write
    os.close(write)


@pytest.mark.members(1)
@pytest.mark.parametrize(
    ("model", "role", "module", "name"),
    [
        pytest.param(*arm, marks=[pytest.mark.slow] if arm[:2] in AS_THE_OTHERS else [])
        for arm in ARMS
    ],
)
def test_lerobots_calibration_finds_the_arms_middle_and_ranges(
    model: str,
    role: str,
    module: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arms_time: ManualClock,
) -> None:
    """What LeRobot finds is what the arm's mechanics are."""
    hand = "middle_then_ranges"
    with (
        EmulatedBus(model, role=role, calibrated=False, hand=hand, clock=arms_time) as bus,
        typed_input(monkeypatch) as keys,
    ):
        bus.hand.sweep_s = 3.0
        arm = device(role, module, name, bus.port, tmp_path)
        with (
            Person(bus, arms_time, keys) if model != "openmanipulator" else contextlib.nullcontext()
        ):
            arm.connect()
        assert arm.is_calibrated
        truth = bus.plan.calibration()
        for motor, found in arm.calibration.items():
            for field, value in truth[motor].items():
                # a person's hand sags some ticks, and LeRobot samples a moving arm
                assert getattr(found, field) == pytest.approx(value, abs=25), (motor, field)
        assert (tmp_path / "x.json").is_file()
        arm.disconnect()


@pytest.mark.parametrize("model", ["so101", "koch", "openmanipulator"])
def test_a_follower_follows_its_leader(model: str, tmp_path: Path, arms_time: ManualClock) -> None:
    """LeRobot's own classes; in the machine's time a slow loop left a gripper pressing till it gave
    up."""
    modules = {(m, r): (module, name) for m, r, module, name in ARMS}
    with (
        EmulatedBus(model, hand="still", clock=arms_time) as follower_bus,
        EmulatedBus(model, role="leader", hand="still", clock=arms_time) as leader_bus,
    ):
        arms = []
        for role, bus in (("follower", follower_bus), ("leader", leader_bus)):
            folder = tmp_path / role
            folder.mkdir()
            (folder / "x.json").write_text(json.dumps(bus.plan.calibration()))
            arms.append(device(role, *modules[model, role], bus.port, folder))
        follower, leader = arms
        follower.connect(calibrate=False)
        leader.connect(calibrate=False)
        assert follower.is_calibrated
        assert leader.is_calibrated
        leader_bus.hand.pose([0.3] * len(leader_bus.all_servos))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            follower.send_action(leader.get_action())
            time.sleep(0.02)
            apart = max(
                abs(f.joint.q_rad - q.joint.q_rad)
                for f, q in zip(follower_bus.all_servos[:5], leader_bus.all_servos[:5], strict=True)
            )
            moved = min(abs(s.joint.q_rad) for s in leader_bus.all_servos[:5])
            if moved > 0.25 and apart < 0.1:
                break
        follower.disconnect()
        leader.disconnect()
        assert moved > 0.25
        assert apart < 0.1  # what weight bends
        assert not any(s.torque for s in follower_bus.all_servos)


def test_lerobot_refuses_a_wrong_arm_as_it_refuses_hardware(tmp_path: Path) -> None:
    """Missing ids, other models and mixed firmware: LeRobot's own checks strike."""
    from gaploop.teleop.emulator.arms import so101

    cases = {
        "Missing motor IDs": so101().without(["elbow_flex"]),
        "incorrect model numbers": so101().with_servo("gripper", model="sts3250"),
        "different firmware versions": so101().with_servo(
            "gripper", settings={"Firmware_Minor_Version": 9, "Return_Delay_Time": 0}
        ),
    }
    for says, plan in cases.items():
        with EmulatedBus(plan=plan) as bus:
            arm = device("follower", "so_follower", "SO101Follower", bus.port, tmp_path)
            with pytest.raises(RuntimeError, match=says):
                arm.connect(calibrate=False)
            arm.bus.port_handler.closePort()


@pytest.mark.slow
def test_lerobot_scans_bit_rates_and_sets_up_a_new_motor() -> None:
    """`setup_motor` finds a servo at any bit rate and id, and leaves it at 1 Mbit/s."""
    from lerobot.motors import Motor, MotorNormMode
    from lerobot.motors.dynamixel import DynamixelMotorsBus

    from gaploop.teleop.emulator.arms import koch

    with EmulatedBus(plan=koch().factory_new()) as bus:
        bus.plug(["elbow_flex"])
        motors = {"elbow_flex": Motor(3, "xl330-m288", MotorNormMode.DEGREES)}
        host = DynamixelMotorsBus(bus.port, motors)
        host.setup_motor("elbow_flex")
        servo = bus.servo("elbow_flex")
        assert (servo.id, servo.baud) == (3, 1_000_000)
        assert host.ping("elbow_flex") == 1200
        host.port_handler.closePort()


# --- LeRobot's programs, in processes of their own ---------------------------------------------


@contextlib.contextmanager
def emulator(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `gaploop emulate` until the block ends."""
    command = [sys.executable, "-m", "gaploop.scripts.cli", "emulate", "--json", *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield process
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kind"), [("so101", "so101_follower"), ("koch", "koch_follower")]
)
def test_lerobot_calibrate_is_followed_to_the_letter(model: str, kind: str, tmp_path: Path) -> None:
    """The newcomer's way: start both, press ENTER at the middle, and again after the sweep."""
    with emulator(tmp_path, f"--model={model}", "--link=./arm"):
        primary, secondary = pty.openpty()
        process = subprocess.Popen(
            [program("lerobot-calibrate"), f"--robot.type={kind}", "--robot.port=./arm",
             "--robot.id=x"],
            cwd=tmp_path, stdin=secondary, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "HF_LEROBOT_CALIBRATION": str(tmp_path / "cal")},
        )  # fmt: skip
        assert process.stdout is not None
        seen = ""
        while "middle of its range" not in seen:
            seen += process.stdout.read(1)
        time.sleep(4.0)
        os.write(primary, b"\n")
        threading.Timer(9.0, os.write, (primary, b"\n")).start()
        seen += process.communicate(timeout=PATIENCE_S)[0]
        os.close(primary)
        os.close(secondary)
        assert process.returncode == 0, seen[-2000:]
    (saved,) = (tmp_path / "cal").rglob("x.json")
    found = json.loads(saved.read_text())
    from gaploop.teleop.emulator.arms import arm_plan

    for motor, truth in arm_plan(model).calibration().items():
        assert found[motor]["range_max"] == pytest.approx(truth["range_max"], abs=30)


@pytest.mark.slow
def test_lerobot_setup_motors_sets_an_arm_up(tmp_path: Path) -> None:
    """One motor after the other, gripper first, as its prompts say."""
    with emulator(tmp_path, "--model=so101", "--servos=factory_new", "--link=./arm") as bus:
        assert bus.stdin is not None
        assert bus.stdout is not None
        process = subprocess.Popen(
            [program("lerobot-setup-motors"), "--robot.type=so101_follower", "--robot.port=./arm"],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        output = ""
        for name in reversed(JOINTS):
            while f"'{name}' motor only" not in output:
                output += process.stdout.read(1)
            bus.stdin.write(f"plug {name}\n")
            bus.stdin.flush()
            assert json.loads(bus.stdout.readline())["event"] == "done"
            process.stdin.write("\n")
            process.stdin.flush()
        output += process.communicate(timeout=PATIENCE_S)[0]
        assert process.returncode == 0
        assert "'shoulder_pan' motor id set to 1" in output


@pytest.mark.slow
def test_lerobot_record_records_a_dataset_that_loads(tmp_path: Path) -> None:
    """Two emulated arms, a MuJoCo scene behind the follower, its camera over zmq."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    calibrations = tmp_path / "cal"
    camera = (
        f"{{top: {{type: zmq, server_address: 127.0.0.1, port: {port}, camera_name: top, "
        "width: 320, height: 240, fps: 25}}"
    )
    with (
        emulator(
            tmp_path, "--link=./follower", "--plant=mujoco", f"--cameras=top:{port}",
            f"--calibration={calibrations}/robots/so_follower/f.json",
        ),
        emulator(
            tmp_path, "--link=./leader", "--role=leader", "--hand=wave",
            f"--calibration={calibrations}/teleoperators/so_leader/l.json",
        ),
    ):  # fmt: skip
        done = subprocess.run(
            [program("lerobot-record"), "--robot.type=so101_follower", "--robot.port=./follower",
             "--robot.id=f", f"--robot.cameras={camera}", "--teleop.type=so101_leader",
             "--teleop.port=./leader", "--teleop.id=l", "--dataset.repo_id=me/x",
             f"--dataset.root={tmp_path / 'ds'}", "--dataset.num_episodes=1",
             "--dataset.episode_time_s=3", "--dataset.reset_time_s=0", "--dataset.fps=25",
             "--dataset.single_task=wave", "--dataset.push_to_hub=false", "--play_sounds=false"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
            env={**os.environ, "HF_LEROBOT_CALIBRATION": str(calibrations)}, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("me/x", root=tmp_path / "ds")
    assert len(dataset) > 40
    row = dataset[len(dataset) - 1]
    assert row["observation.images.top"].shape == (3, 240, 320)
    assert float((row["action"][:5] - row["observation.state"][:5]).abs().max()) < 12.0
