"""No option of LeRobot's is accepted and dropped: it changes something, or a line refuses it.

`--robot.max_relative_target` and `--robot.disable_torque_on_disconnect` did nothing on servo arms,
without a word; `openarm_mini` lost its `side`, and a gamepad its `use_gripper`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import MISSING
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_arms import PLANS, emulated

from gaploop.collect import lerobot_factory
from gaploop.collect.lerobot_types import registries
from gaploop.collect.session_options import DriveOptions
from gaploop.core.arms import ARMS
from gaploop.core.clock import ManualClock
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import LeaderSample, SafetyReason
from gaploop.core.station import Station
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.lerobot_devices import make
from gaploop.teleop.lerobot_devices.make import make_cameras, make_follower, make_leader
from gaploop.teleop.lerobot_devices.servo_arm import ServoFollower, ServoLeader
from gaploop.teleop.safety import make_safety

ROBOTS, TELEOPERATORS, CAMERAS = registries()
SERVO_TYPES = {
    kind: (name, "leader" if kind.endswith("leader") else "follower")
    for name, arm in ARMS.items()
    for kind in arm.robot_types
    if arm.emulated and kind in {**ROBOTS.get_known_choices(), **TELEOPERATORS.get_known_choices()}
}
for twin in ("so101_sim", "so100_follower", "so100_leader"):  # ours; and one class with so101_*
    del SERVO_TYPES[twin]
SO_PID = ("position_p_coefficient", "position_i_coefficient", "position_d_coefficient")
OF_BOTH_ARMS = ("port", "max_relative_target", "disable_torque_on_disconnect")
REFUSED = ("disable_torque_on_disconnect", "num_read_retries")


def config_class(kind: str) -> Any:
    return {**ROBOTS.get_known_choices(), **TELEOPERATORS.get_known_choices()}[kind]


def fields_of(config: type, prefix: str = "") -> Iterator[str]:
    """Yield every option of a config, those of a pair's arms included."""
    for field in dataclasses.fields(config):
        if field.name.endswith("_arm_config"):
            yield from fields_of(field.type, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            yield prefix + field.name


def another(name: str, usual: Any, folder: Path) -> Any:
    """Return a value of an option that isn't the usual one; an option nobody knows fails here."""
    from lerobot.cameras.opencv import OpenCVCameraConfig

    leaf = name.rpartition(".")[2]
    if leaf in SO_PID:
        return usual + 5
    camera = OpenCVCameraConfig(index_or_path=7, fps=30, width=64, height=48)
    return {
        "id": "other",
        "calibration_dir": folder / "elsewhere",
        "port": str(folder / ("spare_right" if name.startswith("right") else "spare_left")),
        "disable_torque_on_disconnect": False,
        "max_relative_target": 0.05,
        "cameras": {"wrist": camera},
        "use_degrees": not usual,
        "num_read_retries": 7,
        "gripper_open_pos": 30.0,
    }[leaf]


def build(kind: str, folder: Path) -> Any:
    config, options = config_class(kind), {"id": "arm", "calibration_dir": folder}
    sides = [f.name for f in dataclasses.fields(config) if f.name.endswith("_arm_config")]
    for side in sides:
        part = config.__dataclass_fields__[side].type
        options[side] = part(port=str(folder / side.removesuffix("_arm_config")))
    return config(**options) if sides else config(port=str(folder / "left"), **options)


def reach(config: Any, name: str) -> tuple[Any, str]:
    *owner, leaf = name.split(".")
    return (getattr(config, owner[0]) if owner else config), leaf


def evidence(kind: str, folder: Path, buses: dict[str, EmulatedBus], name: str = "") -> Any:
    """Return all that servos and programs get to know of an option, connected and driven."""
    config = build(kind, folder)
    if name:
        owner, leaf = reach(config, name)
        setattr(owner, leaf, another(name, getattr(owner, leaf), folder))
    arm: Any
    if hasattr(config, "cameras") or kind.endswith("follower"):
        arm = make_follower(config, Station(name="t"), ManualClock(1.0))
        assert isinstance(arm, ServoFollower)
        arm.torque_on()
        state = arm.read()
        safety = make_safety(Station(name="t"), arm, 0.005)
        safety.reset(state.position_rad)
        reasons = SafetyReason.NONE
        for turn in range(1, 5):  # a servo that doesn't move yet
            now_s = 1.0 + 0.005 * turn
            q = state.position_rad + 0.02 * turn
            command = safety.filter(LeaderSample(now_s, q), state, now_s)
            arm.send(command)
            reasons |= command.reasons
        arm.read()  # what was sent before it has arrived
        driven = (reasons, np.round(safety.sent_rad - state.position_rad, 6).tolist())
        cameras = make.camera_configs(config)
    else:
        arm = make_leader(config, None, ManualClock(1.0))
        assert isinstance(arm, ServoLeader)
        driven, cameras = None, {}
    with ExitStack() as held:
        for bus in buses.values():
            held.enter_context(bus.lock)
        memory = {
            link: [
                (servo.id, r.name, servo.memory[r.name])
                for servo in bus.all_servos
                for r in servo.memory.registers.values()
                if r.writable
            ]
            for link, bus in buses.items()
        }
    units = (arm.convert.degrees.tolist(), arm.convert.span.tolist())
    files = [str(one.device.calibration_fpath) for one in arm.arms]
    ports = arm.ports
    arm.close()
    return memory, driven, units, files, ports, {k: str(v) for k, v in cameras.items()}


@pytest.mark.usefixtures("loop_time")
@pytest.mark.members(1)
@pytest.mark.parametrize("kind", sorted(SERVO_TYPES))
def test_every_option_of_a_servo_arm_does_something_or_is_refused(
    kind: str, tmp_path: Path
) -> None:
    model, role = SERVO_TYPES[kind]
    plan = PLANS[model](role)
    said = json.dumps(plan.calibration())
    for folder in (tmp_path, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        for name in ("arm", "other", "arm_left", "arm_right", "other_left", "other_right"):
            (folder / f"{name}.json").write_text(said)
    links = ("left", "spare_left", *(("right", "spare_right") if kind.startswith("bi") else ()))
    with ExitStack() as stack:
        buses = {
            link: stack.enter_context(
                EmulatedBus(plan=plan.calibrated(), hand="still", link=tmp_path / link,
                            wire_time=False)
            )
            for link in links
        }  # fmt: skip

        def start_over() -> None:
            for bus in buses.values():
                with bus.lock:
                    for servo, own in zip(bus.all_servos, fresh, strict=True):
                        servo.memory.bytes[:] = own

        with buses["left"].lock:
            fresh = [bytes(servo.memory.bytes) for servo in buses["left"].all_servos]
        usual = evidence(kind, tmp_path, buses)
        start_over()
        assert evidence(kind, tmp_path, buses) == usual  # or nothing could be told
        for name in fields_of(config_class(kind)):
            if name.startswith("right") and name.rpartition(".")[2] not in OF_BOTH_ARMS:
                continue  # one class and one function for both arms
            start_over()
            option = f"--{'robot' if role == 'follower' else 'teleop'}.{name}"
            leaf = name.rpartition(".")[2]
            if leaf in REFUSED:
                with pytest.raises(UnusableInputError, match=f"^{option}=.*isn't followed"):
                    evidence(kind, tmp_path, buses, name)
            else:
                assert evidence(kind, tmp_path, buses, name) != usual, option


@pytest.mark.usefixtures("loop_time")
@pytest.mark.parametrize("given", [1.0, 2, {"gripper": 1.5}])
def test_the_goal_stays_as_near_to_the_arm_as_max_relative_target_says(
    given: Any, tmp_path: Path
) -> None:
    """In the robot's units, by joint, as LeRobot's own `ensure_safe_goal_position` has it."""
    from lerobot.robots.utils import ensure_safe_goal_position

    names = [servo.name for servo in PLANS["so101"]("follower").servos]
    each = dict.fromkeys(names, 3.0) | given if isinstance(given, dict) else given
    with one_arm("so101", tmp_path, max_relative_target=each) as config:
        arm = make_follower(config, Station(name="t"), ManualClock(1.0))
        arm.torque_on()
        state = arm.read()
        safety = make_safety(Station(name="t"), arm, 0.005)
        safety.reset(state.position_rad)
        asked = state.position_rad + np.array([0.4, -0.4, 0.4, 0.4, -0.4, 0.4])
        for turn in range(100):  # long enough for the velocity limit
            now_s = 1.0 + 0.005 * turn
            command = safety.filter(LeaderSample(now_s, asked), state, now_s)
        assert command.reasons & SafetyReason.RELATIVE_TARGET
        at, sent = arm.to_units(state.position_rad), arm.to_units(command.sent_rad)
        pairs = dict(zip(names, zip(arm.to_units(asked), at, strict=True), strict=True))
        cap = {n: float(v) for n, v in each.items()} if isinstance(each, dict) else float(each)
        wanted = ensure_safe_goal_position(pairs, cap)
        inside = np.abs(sent - at) <= np.abs(np.array(list(wanted.values())) - at) + 1e-6
        assert inside.all()
        np.testing.assert_allclose(sent[4:], list(wanted.values())[4:], atol=1e-6)
        # Pushed away, the goal comes after the joint; a trip's hold stays where it was.
        moved = dataclasses.replace(state, position_rad=state.position_rad - 0.2)
        command = safety.filter(LeaderSample(now_s, asked), moved, now_s)
        away = np.abs(arm.to_units(command.sent_rad) - arm.to_units(moved.position_rad))
        assert (away[4:] <= np.array(list(cap.values() if isinstance(cap, dict) else [cap] * 6))[4:]
                + 1e-6).all()  # fmt: skip
        arm.close()


@pytest.mark.usefixtures("loop_time")
@pytest.mark.parametrize("given", [0.0, -1.0, float("nan"), {"gripper": 1.0}, {}])
def test_a_limit_that_cannot_be_is_refused(given: Any, tmp_path: Path) -> None:
    refused = pytest.raises(UnusableInputError, match=r"^--robot.max_relative_target must be")
    with one_arm("so101", tmp_path, max_relative_target=given) as config, refused:
        make_follower(config)


@contextlib.contextmanager
def one_arm(model: str, folder: Path, **options: Any) -> Iterator[Any]:
    with emulated(model, "follower", folder, **options) as arm:
        yield arm.config


@pytest.mark.parametrize("registry", [ROBOTS, TELEOPERATORS])
def test_a_class_that_drives_itself_gets_every_option(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option reaches the class as it was given, but for cameras, which are ours."""
    got: list[Any] = []

    def made(config: Any) -> Any:
        got.append(config)
        raise ValueError("far enough")

    monkeypatch.setattr("gaploop.teleop.lerobot_devices.make.make_robot_from_config", made)
    monkeypatch.setattr("gaploop.teleop.lerobot_devices.make.make_teleoperator_from_config", made)
    for kind, config in registry.get_known_choices().items():
        if not config.__module__.startswith("lerobot."):
            continue
        given = {}
        for field in dataclasses.fields(config):
            usual = field.default
            if field.default_factory is not MISSING:
                usual = field.default_factory()
            if field.name.startswith("with_"):  # of what a robot has, something must stay
                given[field.name] = usual
            elif isinstance(usual, bool) and field.name not in REFUSED:
                given[field.name] = not usual
            elif isinstance(usual, int | float) and not isinstance(usual, bool):
                given[field.name] = usual + 1
            elif usual is MISSING and not field.name.endswith("_arm_config"):
                given[field.name] = "left"
            elif field.name.endswith("_arm_config"):
                part = field.type
                given[field.name] = part("p") if callable(part) else None
        asked = config(id="other", calibration_dir=tmp_path, **given)
        with pytest.raises(UnusableInputError, match="far enough"):
            (make_follower if registry is ROBOTS else lambda c: make_leader(c, None))(asked)
        sent = got.pop()
        for field in dataclasses.fields(config):
            if field.name != "cameras":
                assert str(getattr(sent, field.name)) == str(getattr(asked, field.name)), kind
        if getattr(asked, "disable_torque_on_disconnect", False):
            asked.disable_torque_on_disconnect = False
            with pytest.raises(UnusableInputError, match="park pose"):
                make_follower(asked)


def test_a_camera_gets_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}

    def made(configs: dict[str, Any]) -> Any:
        got.update(configs)
        raise ValueError("far enough")

    monkeypatch.setattr("gaploop.teleop.lerobot_devices.make.make_cameras_from_configs", made)
    one, two = object(), object()
    left = SimpleNamespace(cameras={"wrist": two})
    robot = SimpleNamespace(cameras={"top": one}, left_arm_config=left)
    with pytest.raises(UnusableInputError, match="far enough"):
        make_cameras(robot)
    assert got == {"top": one, "left_wrist": two}  # the very configs, whatever is in them


def test_a_class_that_turns_joints_by_an_option_is_used_itself(tmp_path: Path) -> None:
    """`openarm_mini` swaps two joints and turns some by its `side`: its bus alone isn't enough."""
    from lerobot.teleoperators.openarm_mini import OpenArmMini, OpenArmMiniConfig

    for side in (None, "left", "right"):
        config = OpenArmMiniConfig(port="x", side=side, calibration_dir=tmp_path, id="m")
        device = OpenArmMini(config)
        arms = [SimpleNamespace(device=device, prefix="", units=SimpleNamespace(
            names=tuple(device.bus.motors)))]  # fmt: skip
        monkey = pytest.MonkeyPatch()
        monkey.setattr(OpenArmMini, "is_connected", True)
        assert not make._hands_through(device, arms)  # type: ignore[arg-type]
        monkey.undo()


@pytest.mark.parametrize(("kind", "option"), [("gamepad", "use_gripper"), ("gamepad", "hidapi")])
def test_a_leader_of_our_own_refuses_lerobots_options(kind: str, option: str) -> None:
    config = config_class(kind)()
    (name,) = [f.name for f in dataclasses.fields(config) if f.name.startswith(option)]
    setattr(config, name, not getattr(config, name))
    nobody: Any = None
    options = DriveOptions(teleop=config)
    with pytest.raises(UnusableInputError, match=f"^--teleop.{name}=.* has no options"):
        lerobot_factory.leader_of(options, nobody, Station(name="t"), ManualClock(0.0))
