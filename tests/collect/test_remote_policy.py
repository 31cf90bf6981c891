"""A policy on another machine: what goes out, what comes back, and what a hostile one can do."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image as PillowImage

from benchmarks.link_proxy import meddling
from gaploop.collect import remote_policy
from gaploop.collect.policy_leader import AsyncPolicyDriver, Planner
from gaploop.collect.remote_policy import Picture, RemotePolicy, packed, unpacked
from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.teleop import link

TOKEN = link.new_token()
NOISE = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)


class FakePlanner:
    """Plans three steps on from where the joints are; raises, or says NaN, where it is told to."""

    fps, execute, robot_type, needs_scene, delay_s, task = 25.0, 2, "fake", True, 0.1, ""
    camera_delay_s, noise_rad = 0.05, (0.02, 0.0)

    def __init__(self) -> None:
        self.resets = 0
        self.seen: list[Observation] = []
        self.says: Any = None

    def reset(self) -> None:
        self.resets += 1

    def plan(self, observation: Observation) -> FloatArray:
        self.seen.append(observation)
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is not None:
            return np.array(self.says)
        return observation.state + np.arange(1.0, 4.0)[:, None]

    def act(self, observation: Observation) -> FloatArray:
        return self.plan(observation)[0]


@contextlib.contextmanager
def served(policy: FakePlanner, port: int = 0) -> Iterator[int]:
    talk = remote_policy.serve_policy(policy, remote_policy.card_of(policy, "sha256:0"))
    with link.listening(
        remote_policy.KIND, TOKEN, talk, host="127.0.0.1", port=port, max_bytes=1 << 20
    ) as found:
        yield found


def at(port: int, query: str = "") -> str:
    return f"remote://127.0.0.1:{port}{query}"


def observation(value: float = 0.0) -> Observation:
    return Observation(np.array([value, 10.0]), np.array([0.5]), {"top": NOISE})


def test_it_plans_as_the_policy_itself_does() -> None:
    policy = FakePlanner()
    with (
        served(policy) as port,
        contextlib.closing(RemotePolicy(at(port, "?pictures=raw"), TOKEN, "put it there")) as far,
    ):
        assert isinstance(far, Planner)
        assert (far.fps, far.execute, far.robot_type, far.needs_scene, far.delay_s) == (
            25.0, 2, "fake", True, 0.1,
        )  # fmt: skip
        assert (far.camera_delay_s, far.noise_rad) == (0.05, (0.02, 0.0))
        np.testing.assert_array_equal(far.plan(observation()), [[1, 11], [2, 12], [3, 13]])
        (seen,) = policy.seen
        np.testing.assert_array_equal(seen.images["top"], NOISE)
        np.testing.assert_array_equal(seen.environment_state, [0.5])
        assert (policy.resets, policy.task) == (1, "put it there")
        # A plan's first `execute` steps are handed out one by one; a new take begins anew.
        assert [far.act(observation(v))[0] for v in (5.0, 6.0, 7.0)] == [6.0, 7.0, 8.0]
        far.reset()
        assert far.act(observation(1.0))[0] == 2.0
        assert policy.resets == 2
        assert len(far.on_the_way_s) == 4
        assert min(far.on_the_way_s) > 0.0


def test_pictures_come_as_they_were_or_nearly() -> None:
    smooth = np.tile(np.linspace(0, 255, 64).astype(np.uint8)[:, None, None], (1, 48, 3))
    np.testing.assert_array_equal(unpacked(packed(NOISE, None)), NOISE)
    near = unpacked(packed(smooth, 95))
    assert np.abs(near.astype(int) - smooth).max() <= 4
    assert len(packed(smooth, 95).data) < smooth.nbytes / 4


def jpeg(size: tuple[int, int], form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    PillowImage.new("L", size).save(file, form)
    return file.getvalue()


BOMB = jpeg((16, 16)).replace(b"\x00\x10\x00\x10", b"\xff\xff\xff\xff")
"""A JPEG that says it has 65535 x 65535 pixels."""


@pytest.mark.parametrize(
    "picture",
    [
        Picture("raw", 24, 32, b"\0" * 10),
        Picture("jpeg", 24, 32, b"GIF89a"),
        Picture("jpeg", 24, 32, jpeg((64, 64))),
        Picture("jpeg", 16, 16, jpeg((16, 16), "PNG")),
        Picture("jpeg", 16, 16, jpeg((16, 16))[:-40]),
        Picture("jpeg", 4096, 4096, BOMB),
    ],
)
def test_what_is_no_picture_is_refused_before_it_is_decoded(picture: Picture) -> None:
    with pytest.raises(DeviceError, match="It sends"):
        unpacked(picture)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (ValueError("out of\nmemory"), "out of memory"),
        ([[float("nan")] * 2], "isn't a number"),
        ([[1e9, 0.0]], "isn't a number"),
        ([], "plan is empty"),
        ([[1.0]], "It plans for 1 joints; this robot has 2"),
    ],
)
def test_a_policy_that_fails_is_one_line_and_can_be_asked_again(says: Any, words: str) -> None:
    policy = FakePlanner()
    with served(policy) as port, contextlib.closing(RemotePolicy(at(port), TOKEN)) as far:
        policy.says = says
        with pytest.raises(DeviceError, match=words) as failed:
            far.plan(observation())
        assert len(str(failed.value).splitlines()) == 1
        policy.says = None
        assert far.plan(observation()).shape == (3, 2)


def test_a_lost_link_is_one_line_and_connects_anew() -> None:
    policy = FakePlanner()
    with contextlib.ExitStack() as serving:
        port = serving.enter_context(served(policy))
        far = RemotePolicy(at(port), TOKEN)
        assert not far.blocker()
        serving.close()
        for _ in range(2):
            with pytest.raises(LostError, match=f"The policy at 127.0.0.1:{port}: "):
                far.plan(observation())
        assert "Does gaploop serve run there" in far.blocker()
        with served(policy, port), contextlib.closing(far):
            assert far.plan(observation()).shape == (3, 2)


def test_an_attempt_waits_for_a_policy_that_is_served_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_policy, "AGAIN_S", 0.0)
    policy = FakePlanner()
    with contextlib.ExitStack() as serving:
        port = serving.enter_context(served(policy))
        far = RemotePolicy(at(port), TOKEN)
        serving.close()  # between two attempts: nobody asks for a plan
        deadline_s = time.monotonic() + 60.0
        while not far.blocker() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert "No link" in far.blocker()
        with served(policy, port), contextlib.closing(far):
            assert far.blocker() == ""
            assert far.plan(observation()).shape == (3, 2)


def test_one_robot_at_a_time() -> None:
    with (
        served(FakePlanner()) as port,
        contextlib.closing(RemotePolicy(at(port), TOKEN)),
        pytest.raises(DeviceError, match="It drives another robot"),
    ):
        RemotePolicy(at(port), TOKEN)


def test_plans_that_come_twice_or_late_are_not_taken_for_newer_ones() -> None:
    before: list[bytes] = []

    def twice(message: bytes) -> list[tuple[float, bytes]]:
        before.append(message)
        return [(0.0, m) for m in (before[-2:] if len(before) > 2 else [message])]

    with (
        served(FakePlanner()) as port,
        meddling(remote_policy.KIND, TOKEN, port, down=twice) as between,
        contextlib.closing(RemotePolicy(at(between), TOKEN)) as far,
    ):
        assert [far.plan(observation(v))[0, 0] for v in (0.0, 5.0, 9.0)] == [1.0, 6.0, 10.0]


@pytest.mark.parametrize(
    "forged",
    [
        b"\xc1",
        msgspec.msgpack.encode([1, 0.0, [[float("nan")] * 2], ""]),
        msgspec.msgpack.encode([1, 0.0, [[1.0, 2.0], [1.0]], ""]),
        msgspec.msgpack.encode([1, 0.0, [[0.0] * 2] * 1001, ""]),
        msgspec.msgpack.encode([1, 0.0, [], "", "import os"]),
        b"\0" * (2 << 20),
    ],
)
def test_a_hostile_server_is_one_line(forged: bytes) -> None:
    count = 0

    def trouble(message: bytes) -> list[tuple[float, bytes]]:
        nonlocal count
        count += 1
        return [(0.0, message if count == 1 else forged)]

    with (
        served(FakePlanner()) as port,
        meddling(remote_policy.KIND, TOKEN, port, down=trouble) as between,
        contextlib.closing(RemotePolicy(at(between), TOKEN)) as far,
        pytest.raises(DeviceError, match="The policy at") as refused,
    ):
        far.plan(observation())
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("address", ["remote://", "remote://h:1/x", "remote://h?pictures=0"])
def test_an_address_that_cannot_be_used_is_refused(address: str) -> None:
    with pytest.raises(UnusableInputError, match="remote://"):
        RemotePolicy(address, TOKEN)


class DegreesArm:
    """Converts degrees."""

    joint_names = ("a",)

    def from_units(self, values: FloatArray) -> FloatArray:
        return np.radians(values)

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return np.degrees(q_rad)


def test_where_a_plan_runs_out_the_arm_holds() -> None:
    """The link is gone in the middle of a take: the arm ends its plan and stays there."""
    policy = FakePlanner()
    with contextlib.ExitStack() as serving:
        far = RemotePolicy(at(serving.enter_context(served(policy))), TOKEN)
        leader = AsyncPolicyDriver(far, DegreesArm(), 25.0, 50.0)  # type: ignore[arg-type]
        leader.observe(observation(0.0))
        while not leader.pace.asked:
            leader.read(0.0)
        serving.close()
        asked = [leader.read(turn / 50.0).q_rad for turn in range(20)][-1]
        held = list[FloatArray]()

        def go_on() -> None:
            while True:
                leader.observe(observation(3.0))
                held.append(leader.read(1.0).q_rad)

        with pytest.raises(DeviceError, match="The policy at"):
            go_on()
        np.testing.assert_allclose(held[-1], asked)
        np.testing.assert_allclose(np.degrees(asked)[0], 3.0, atol=1.01)
        leader.close()
