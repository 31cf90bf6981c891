"""A leader on another machine, over a link that somebody meddles with; the robot's side decides."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.link_proxy import Trouble, as_it_is, meddling
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.core.station import SafetyLimits
from gaploop.teleop import link
from gaploop.teleop.leaders import remote
from gaploop.teleop.lerobot_devices.make import make_leader
from gaploop.teleop.lerobot_leaders import RemoteLeader, RemoteLeaderConfig
from gaploop.teleop.safety import SafetyFilter
from gaploop.teleop.trips import say_to_do

TOKEN = link.new_token()
JOINTS = ("shoulder_pan", "gripper")
CARD = remote.LeaderCard("so101_leader", list(JOINTS))


class FakeLeaderArm:
    """Says how many times it was read, in both joints."""

    def __init__(self) -> None:
        self.reads = 0
        self.made_s: list[float] = [math.nan]
        self.silent_since_s: float | None = None
        self.values: list[float] = []

    def reset(self) -> None: ...

    def done(self) -> bool:
        return False

    def read(self, t_s: float) -> LeaderSample:
        self.reads += 1
        self.made_s.append(t_s)
        at_s = t_s if self.silent_since_s is None else self.silent_since_s
        return LeaderSample(at_s, np.array(self.values or [float(self.reads)] * 2))


class FakeFollowerArm:
    """Takes the leader's joints, in degrees."""

    robot_type, units = "fake", "deg"

    def __init__(self, joint_names: tuple[str, ...] = JOINTS) -> None:
        self.joint_names = joint_names

    def from_units(self, values: FloatArray) -> FloatArray:
        return np.radians(values)


def after_the_card(trouble: Trouble) -> Trouble:
    """Return trouble that begins once both know each other; a card has two entries."""

    def later(message: bytes) -> Sequence[tuple[float, bytes]]:
        is_card = len(msgspec.msgpack.decode(message)) == 2
        return as_it_is(message) if is_card else trouble(message)

    return later


@contextlib.contextmanager
def served(
    arm: FakeLeaderArm | None = None,
    card: remote.LeaderCard = CARD,
    **trouble: Trouble,
) -> Iterator[int]:
    talk = remote.serve_leader(arm or FakeLeaderArm(), card, MonotonicClock())
    with (
        link.listening(
            remote.KIND, TOKEN, talk, host="127.0.0.1", port=0, max_bytes=remote.MOST_BYTES
        ) as port,
        meddling(
            remote.KIND, TOKEN, port, **{way: after_the_card(t) for way, t in trouble.items()}
        ) as proxied,
    ):
        yield proxied if trouble else port


@contextlib.contextmanager
def led(port: int, follower: Any = None) -> Iterator[Any]:
    config = RemoteLeaderConfig(address=f"127.0.0.1:{port}", token=TOKEN)
    leader = make_leader(config, follower or FakeFollowerArm())
    try:
        yield leader
    finally:
        leader.close()


def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    while not true():
        time.sleep(0.002)


def test_it_leads_in_the_followers_order_and_units() -> None:
    arm = FakeLeaderArm()
    arm.values = [10.0, 50.0]
    with served(arm) as port, led(port, FakeFollowerArm(JOINTS[::-1])) as leader:
        sample = leader.read(0.0)
    np.testing.assert_allclose(sample.q_rad, np.radians([50.0, 10.0]))


def test_other_joints_than_the_followers_are_one_line() -> None:
    with (
        served() as port,
        pytest.raises(
            UnusableInputError, match=r"remote gives shoulder_pan, gripper; fake takes a"
        ),
        led(port, FakeFollowerArm(("a",))),
    ):
        pass


def meddler(seed: int) -> Trouble:
    """Lose a third of what passes, send a third twice, and let all of it overtake."""
    rng = Random(seed)

    def trouble(message: bytes) -> list[tuple[float, bytes]]:
        copies = rng.choice((0, 1, 2))
        return [(rng.choice((0.0, 0.01, 0.03)), message) for _ in range(copies)]

    return trouble


def test_what_is_delayed_lost_doubled_and_out_of_order_never_goes_back() -> None:
    """The arm must not jump to where the leader was before, and no sample may seem too young."""
    arm = FakeLeaderArm()
    with served(arm, up=meddler(1), down=meddler(2)) as port, led(port) as leader:
        seen = list[int]()
        while len(set(seen)) < 20:
            sample = leader.read(0.0)
            seen.append(round(np.degrees(sample.q_rad[0])))
            assert sample.t_s <= arm.made_s[seen[-1]]
            time.sleep(0.001)
    assert seen == sorted(seen)


def test_a_delay_is_the_samples_age() -> None:
    def late(message: bytes) -> list[tuple[float, bytes]]:
        return [(0.1, message)]

    with served(up=late, down=late) as port, led(port) as leader:
        assert time.monotonic() - leader.read(0.0).t_s >= 0.2


def state() -> FollowerState:
    none = np.full(2, np.nan)
    return FollowerState(0.0, np.zeros(2), none, none, none, none, none, np.zeros(2, np.int64))


def trips(leader: Any) -> SafetyReason:
    """Drive until the safety filter trips, and say why."""
    bounds = np.array([[-9.0, 9.0]] * 2)
    safety = SafetyFilter(SafetyLimits(), bounds, 0.005)
    safety.reset(np.zeros(2))
    while not safety.tripped:
        now_s = time.monotonic()
        safety.filter(leader.read(now_s), state(), now_s)
        time.sleep(0.005)
    return safety.tripped


@pytest.mark.parametrize("how", ["held back", "cut", "silent servo", "repeated"])
def test_a_link_that_is_lost_is_a_stale_leader(how: str) -> None:
    arm, gone, last = FakeLeaderArm(), threading.Event(), list[bytes]()

    def trouble(message: bytes) -> list[tuple[float, bytes]]:
        if gone.is_set() and how == "cut":
            raise ConnectionError
        if gone.is_set() and how == "held back":
            return []
        if not gone.is_set() or how == "silent servo":
            last[:] = [message]
        return [(0.0, last[0])] * 3  # a replay: the same answer for ever

    with served(arm, down=trouble) as port, led(port) as leader:
        leader.read(0.0)
        gone.set()
        if how == "silent servo":
            arm.silent_since_s = time.monotonic()
        assert trips(leader) == SafetyReason.STALE_LEADER


def test_a_server_that_ends_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as serving:
        port = serving.enter_context(served())
        with led(port) as leader:
            serving.close()
            assert trips(leader) == SafetyReason.STALE_LEADER
            # It was told as a cable that is out; which machine is gone stood nowhere.
            assert f"127.0.0.1:{port}" in say_to_do(SafetyReason.STALE_LEADER, leader.where)
            with pytest.raises(ConnectionError, match="The link is closed"):
                leader.device.get_action()
    assert len([r for r in caplog.records if r.name.endswith("remote")]) == 1


ANSWER = msgspec.msgpack.encode
FORGED = {
    "NaN": lambda n: ANSWER([n, 0.0, [float("nan"), 0.0]]),
    "infinity": lambda n: ANSWER([n, 0.0, [float("inf"), 0.0]]),
    "other joints": lambda n: ANSWER([n, 0.0, [0.0]]),
    "from the future": lambda n: ANSWER([n, -9.0, [0.0, 0.0]]),
    "garbage": lambda _: b"\xc1",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_hostile_leader_is_closed_and_stale(name: str, caplog: pytest.LogCaptureFixture) -> None:
    evil = threading.Event()

    def trouble(message: bytes) -> Sequence[tuple[float, bytes]]:
        if not evil.is_set():
            return as_it_is(message)
        return [(0.0, FORGED[name](msgspec.msgpack.decode(message)[0]))]

    with served(down=trouble) as port, led(port) as leader:
        evil.set()
        assert trips(leader) == SafetyReason.STALE_LEADER
        until(lambda: not leader.device._link._thread.is_alive())
    assert len([r for r in caplog.records if "It sends" in r.message]) == 1


def test_numbers_of_questions_never_asked_are_a_stale_leader() -> None:
    evil = threading.Event()

    def trouble(message: bytes) -> list[tuple[float, bytes]]:
        number, age_s, values = msgspec.msgpack.decode(message)
        return [(0.0, ANSWER([number + (1 << 40) * evil.is_set(), age_s, values]))]

    with served(down=trouble) as port, led(port) as leader:
        evil.set()
        assert trips(leader) == SafetyReason.STALE_LEADER


def test_nobody_there_is_one_line() -> None:
    with served() as port:
        pass
    with pytest.raises(DeviceError, match="No link to") as nobody, led(port):
        pass
    assert len(str(nobody.value).splitlines()) == 1


def test_the_wrong_token_is_one_line() -> None:
    config = RemoteLeaderConfig(address="127.0.0.1", token=link.new_token())
    with served() as port:
        config.address = f"127.0.0.1:{port}"
        with pytest.raises(DeviceError, match="doesn't know the token"):
            make_leader(config, None)


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableInputError, match="GAPLOOP_LINK_TOKEN"):
        RemoteLeader(RemoteLeaderConfig(address="h"))
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", TOKEN)
    assert RemoteLeader(RemoteLeaderConfig(address="h")).action_features == {}


def test_messages_that_hold_the_configuration_keep_the_token() -> None:
    """LeRobot printed it in "Error creating robot with config …"."""
    assert "secret" not in repr(RemoteLeaderConfig(address="lab:8440", token="secret"))
