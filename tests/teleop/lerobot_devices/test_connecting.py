"""Every class that LeRobot offers is connected by the signature that it has."""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.lerobot_types import registries
from gaploop.core.clock import ManualClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import NO_REPLY, FloatArray, SafeCommand, SafetyReason
from gaploop.core.station import Station
from gaploop.teleop.lerobot_devices.generic import (
    GenericFollower,
    GenericLeader,
    connect,
    is_uncalibrated,
)
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.lerobot_leaders.config import RemoteLeaderConfig
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety

ZMQ = pytest.importorskip("zmq")


def subclasses(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from subclasses(one)


def device_classes() -> list[type]:
    """Return every robot and teleoperator class, third parties' and this project's included."""
    from lerobot.robots.robot import Robot
    from lerobot.teleoperators.teleoperator import Teleoperator

    for registry in registries():
        for config in registry.get_known_choices().values():  # type: ignore[attr-defined]
            package = config.__module__.rpartition(".")[0]
            for name in filter(None, (package, config.__module__)):
                try:
                    __import__(name)
                except ImportError:
                    continue
    return sorted({*subclasses(Robot), *subclasses(Teleoperator)}, key=lambda c: c.__name__)


def test_every_class_of_the_registry_is_connected_without_calibrating() -> None:
    """`connect(calibrate=False)` was a TypeError for the LeKiwi client, the phone, keyboard_ee."""
    classes = device_classes()
    names = {one.__name__ for one in classes}
    assert {"SOFollower", "LeKiwiClient", "Phone", "KeyboardEndEffectorTeleop"} <= names
    for one in classes:
        signature = inspect.signature(one.connect)  # type: ignore[attr-defined]
        given: dict[str, Any] = {}

        def called(*arguments: Any, s: Any = signature, g: Any = given, **options: Any) -> None:
            s.bind(None, *arguments, **options)  # raises what a real call would
            g.update(options, called=True)

        own = list(signature.parameters.values())[1:]
        called.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        connect(SimpleNamespace(connect=called))
        has_it = "calibrate" in signature.parameters
        assert given == ({"calibrate": False} if has_it else {}) | {"called": True}, one


@pytest.mark.parametrize(
    ("says", "uncalibrated"),
    [(True, False), (False, True), (None, False), (lambda: True, False), (lambda: False, True)],
)
def test_only_who_says_no_is_uncalibrated(says: object, uncalibrated: bool) -> None:
    assert is_uncalibrated(SimpleNamespace(is_calibrated=says)) == uncalibrated
    assert not is_uncalibrated(SimpleNamespace())


class Host:
    """What runs on a LeKiwi: says where it is, and hears where it should be."""

    KEYS = (
        *(f"arm_{j}.pos" for j in ("shoulder_pan", "shoulder_lift", "elbow_flex")),
        *(f"arm_{j}.pos" for j in ("wrist_flex", "wrist_roll", "gripper")),
        *("x.vel", "y.vel", "theta.vel"),
    )

    def __init__(self) -> None:
        context = ZMQ.Context()
        self.out, self.inn = context.socket(ZMQ.PUSH), context.socket(ZMQ.PULL)
        self.ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self.inn, self.out)]
        self.at = dict.fromkeys(self.KEYS, 5.0)
        self.heard: dict[str, float] = {}
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self.over.wait(0.005):
            with contextlib.suppress(ZMQ.Again):
                self.out.send_multipart([json.dumps({**self.at, "_cams": []}).encode()], 1)
            while self.inn.poll(0):
                self.heard = json.loads(self.inn.recv())

    def __enter__(self) -> Host:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()
        for socket in (self.out, self.inn):
            socket.close(0)


def kiwi(host: Host, tmp_path: Any) -> Any:
    from lerobot.robots.lekiwi import LeKiwiClientConfig

    return LeKiwiClientConfig(
        remote_ip="127.0.0.1",
        port_zmq_cmd=host.ports[0],
        port_zmq_observations=host.ports[1],
        calibration_dir=tmp_path,
        cameras={},
        id="kiwi",
    )


def lekiwi(host: Host, tmp_path: Any) -> GenericFollower:
    config = kiwi(host, tmp_path)
    follower = make_follower(config, Station(name="test"), ManualClock(1.0))
    assert isinstance(follower, GenericFollower)
    return follower


BASE = ("x.vel", "y.vel", "theta.vel")


def heard(host: Host, send: Callable[[], object], **wanted: float) -> None:
    """Wait until the host has heard these values, sending on."""
    end_s = time.monotonic() + 120.0
    keys = {name.replace("_vel", ".vel"): value for name, value in wanted.items()}
    while any(host.heard.get(key) != pytest.approx(v) for key, v in keys.items()):
        send()
        assert time.monotonic() < end_s, host.heard
        time.sleep(0.002)


def test_a_lekiwi_follows_with_its_arm_and_its_base_in_its_units(tmp_path: Any) -> None:
    with Host() as host:
        follower = lekiwi(host, tmp_path)
        # As LeRobot records them, beside whose episodes they lie; its leader's have no "arm_".
        assert follower.joint_names[:2] == ("arm_shoulder_pan", "arm_shoulder_lift")
        assert follower.joint_names[6:] == BASE
        read = follower.read().position_rad
        np.testing.assert_allclose(np.degrees(read[:6]), 5.0)
        np.testing.assert_allclose(read[6:], [5.0, 5.0, np.radians(5.0)])  # m/s, m/s, rad/s
        np.testing.assert_allclose(follower.joint_limits_rad[6:, 1], [0.2, 0.2, np.radians(60)])
        # Its arm is an SO-101; of an arm that nobody knows 20 degrees to either side would be had.
        assert (np.ptp(follower.joint_limits_rad[:6], axis=1) > np.radians(99.9)).all()
        follower.torque_on()
        heard(host, lambda: None, x_vel=0.0, theta_vel=0.0)  # whatever the base did before
        goal = np.array([*np.radians([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 0.1, 0.0, np.radians(30.0)])
        heard(host, lambda: follower.send(SafeCommand(goal, goal)), x_vel=0.1, theta_vel=30.0)
        assert host.heard["arm_shoulder_pan.pos"] == pytest.approx(1.0)
        follower.torque_off()  # LeRobot's client would leave the last speed standing
        heard(host, lambda: None, x_vel=0.0, y_vel=0.0, theta_vel=0.0)
        follower.close()


class Driver:
    """A teleoperator of the arm, and of the base where it has one."""

    name = "driver"

    def __init__(self, *base: float) -> None:
        joints = [key.removeprefix("arm_") for key in Host.KEYS[:6]]
        self.says = dict.fromkeys(joints, 5.0) | dict(zip(BASE, base, strict=False))
        self.action_features = dict.fromkeys(self.says, float)

    def get_action(self) -> dict[str, float]:
        return self.says


def test_a_leader_without_a_base_lets_it_stand(tmp_path: Any) -> None:
    with Host() as host:
        follower = lekiwi(host, tmp_path)
        clock = ManualClock(1.0)
        asked = GenericLeader(Driver(), follower, clock).read(1.0).q_rad
        np.testing.assert_allclose(asked, [*np.radians([5.0] * 6), 0.0, 0.0, 0.0])
        leader = GenericLeader(Driver(0.1, 0.0, 30.0), follower, clock)
        np.testing.assert_allclose(leader.read(1.0).q_rad[6:], [0.1, 0.0, np.radians(30.0)])
        assert not leader.base_stands
        turns = Driver()
        turns.says = {**turns.says, "theta.vel": 30.0}
        turns.action_features = dict.fromkeys(turns.says, float)
        part = GenericLeader(turns, follower, clock)
        assert not part.base_stands, "whoever drives it in part isn't driven over"
        np.testing.assert_allclose(part.read(1.0).q_rad[6:], [0.0, 0.0, np.radians(30.0)])
        follower.close()


class Keys:
    """Somebody at the keys of a base, who closes their window."""

    closed = False

    def speeds(self) -> FloatArray:
        return np.array([0.1, 0.0, -0.5])

    def done(self) -> bool:
        return self.closed

    def close(self) -> None: ...


def test_who_sits_at_the_keys_drives_the_base_under_an_arm_that_a_leader_leads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are opened once, for a robot whose leader gives no speeds, and outlive the arms."""
    from gaploop.collect import lerobot_factory
    from gaploop.teleop.leaders import panel

    def lead(_config: Any, follower: Any, clock: Any, _identities: Any) -> GenericLeader:
        return GenericLeader(Driver(), follower, clock)

    def opens(*given: Any) -> Keys:
        opened.append(given)
        return keys

    opened, keys = list[Any](), Keys()
    monkeypatch.setattr(panel, "BaseKeyboard", opens)
    monkeypatch.setattr(lerobot_factory, "make_leader", lead)
    station, rates = Station(name="test"), Rates.near(30.0)
    with Host() as host:
        config = SimpleNamespace(
            robot=kiwi(host, tmp_path), teleop=RemoteLeaderConfig(address="there")
        )
        with ArmConnection(config, station, rates, records=False) as arms:
            for _ in range(2):
                rig, leader = arms.connect()
                assert leader is not None
                asked = leader.read(1.0).q_rad
                np.testing.assert_allclose(asked, [*np.radians([5.0] * 6), 0.1, 0.0, -0.5])
                assert not leader.done()
                rig.follower.close()
            ((speeds, limits, _title),) = opened
            assert speeds == BASE
            np.testing.assert_allclose(limits[:, 1], [0.2, 0.2, np.radians(60)])
            keys.closed = True
            assert leader is not None
            assert leader.done(), "who closes their window leaves"
        with ArmConnection(config, station, rates, records=False, is_watched=False) as arms:
            rig, leader = arms.connect()
            assert leader is not None
            assert not leader.read(1.0).q_rad[6:].any(), "nobody is there"
            rig.follower.close()
    assert len(opened) == 1


def test_a_base_stops_when_the_one_who_drives_it_is_gone(tmp_path: Any) -> None:
    with Host() as host:
        follower = lekiwi(host, tmp_path)
        host.at |= dict.fromkeys(BASE, 0.0)
        safety = make_safety(Station(name="test"), follower, 0.01)
        leader = GenericLeader(Driver(0.1, 0.0, 0.0), follower, ManualClock(0.0))
        follower.torque_on()
        state, sample = follower.read(), leader.read(0.0)
        safety.reset(state.position_rad)
        now_s = 0.0

        def turn() -> None:
            nonlocal now_s
            now_s += 0.01
            follower.send(safety.filter(replace(sample, t_s=min(now_s, 1.0)), state, now_s))

        while now_s < 1.0:
            turn()
        heard(host, lambda: None, x_vel=0.1)
        while not safety.tripped:
            turn()
        assert safety.tripped & SafetyReason.STALE_LEADER
        heard(host, turn, x_vel=0.0)
        follower.close()


def test_a_lekiwi_whose_host_is_gone_is_silent_and_lets_go(tmp_path: Any) -> None:
    """Its client served the last state for ever, and hung in disconnect() over unsent goals."""
    with Host() as host:
        follower = lekiwi(host, tmp_path)
        follower.torque_on()
        assert not follower.read().status.any()
    clock: Any = follower._clock
    follower.read()  # what was on the way
    clock.sleep_until(clock.now_s() + 1.0)
    state = follower.read()
    assert (state.status & NO_REPLY).all()
    np.testing.assert_allclose(np.degrees(state.position_rad[:6]), 5.0)
    follower.send(SafeCommand(state.position_rad, state.position_rad))
    follower.close()


def test_a_teleoperator_of_the_tool_is_refused_in_one_line(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot.teleoperators.keyboard import KeyboardEndEffectorTeleop
    from lerobot.teleoperators.keyboard.configuration_keyboard import (
        KeyboardEndEffectorTeleopConfig,
    )

    # Its connect() listens to this machine's keyboard.
    monkeypatch.setattr(KeyboardEndEffectorTeleop, "connect", lambda _: None)
    monkeypatch.setattr(KeyboardEndEffectorTeleop, "is_calibrated", None)
    with Host() as host:
        follower = lekiwi(host, tmp_path)
        with pytest.raises(UnusableInputError, match=r"keyboard_ee gives .*delta_x.*keyboard"):
            make_leader(KeyboardEndEffectorTeleopConfig(id="k", calibration_dir=tmp_path), follower)
        follower.close()


def test_a_plug_in_that_calls_exit_is_a_broken_device(tmp_path: Any) -> None:
    """sys.exit() in a class's connect() ended the program with exit code 0."""
    from plugin_devices.config import PluginArmConfig

    from gaploop.teleop.lerobot_devices import make

    def ends(*_: object) -> None:
        raise SystemExit(0)

    device = SimpleNamespace(name="ends", connect=ends, disconnect=ends)
    with pytest.raises(DeviceError, match="end the program"), make._connected(device):
        raise AssertionError("never connected")
    follower = make_follower(
        PluginArmConfig(id="x", calibration_dir=tmp_path), Station(name="t"), ManualClock(0.0)
    )
    assert isinstance(follower, GenericFollower)
    follower.device.get_observation = ends
    assert follower.read().status.all()
    assert follower.fault_counts()["failed reads"] == 1
