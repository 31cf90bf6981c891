"""How old what comes over a link is, with delay, jitter, loss and disorder put in between.

All on one machine: server, whoever meddles, and robot share its processors and the interpreter, so
that these are the most that the programs themselves add. A sample's age is what the safety filter
sees: from the question that brought it to the turn that uses it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from websockets.sync.connection import Connection

from benchmarks.bench import BenchConfig
from benchmarks.link_proxy import Trouble, meddling
from gaploop.collect import remote_policy
from gaploop.core.clock import MonotonicClock
from gaploop.core.messages import FloatArray, LeaderSample, Observation
from gaploop.core.station import SafetyLimits
from gaploop.teleop import link
from gaploop.teleop.leaders import remote

TOKEN: Final = link.new_token()
NETWORKS: Final[Mapping[str, tuple[float, float, float]]] = {
    "loopback": (0.0, 0.0, 0.0),
    "10 ms each way": (0.01, 0.0, 0.0),
    "10 ms, jitter 10 ms": (0.01, 0.01, 0.0),
    "50 ms, jitter 20 ms, 5 % lost": (0.05, 0.02, 0.05),
    "95 ms, jitter 20 ms, 20 % lost": (0.095, 0.02, 0.2),
}
"""Delay each way, what comes on top of it at random up to [s], and the share that is lost. What is
delayed more is overtaken."""
TURN_HZ: Final = 200.0
PICTURES: Final = {"JPEG 95": "", "raw": "?pictures=raw"}


class _BenchLeader:
    """Says how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def reset(self) -> None:
        """Nothing to get ready."""

    def done(self) -> bool:
        """It never is."""
        return False

    def read(self, t_s: float) -> LeaderSample:
        """Return six joints."""
        self.reads += 1
        return LeaderSample(t_s, np.full(6, float(self.reads)))


class _BenchPolicy:
    """Plans at once."""

    fps, execute = 30.0, 50

    def reset(self) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> FloatArray:
        """Return where the joints are."""
        return observation.state

    def plan(self, observation: Observation) -> FloatArray:
        """Return a hundred times where the joints are."""
        return np.tile(observation.state, (100, 1))


def measure(config: BenchConfig, folder: Path) -> Mapping[str, Any]:
    """Return ages of leader samples, and how long plans were under way."""
    del folder
    rows = []
    for name, (delay_s, jitter_s, lost) in NETWORKS.items():
        ways = [_network(delay_s, jitter_s, lost, f"{config.seed} {w}") for w in ("up", "down")]
        rows.append({"network": name, **_leader(config.seconds, ways)})
    plans = [
        {"pictures": name, **_policy(query, config.n or 100)} for name, query in PICTURES.items()
    ]
    return {"seconds": config.seconds, "leader": rows, "policy": plans}


def _network(delay_s: float, jitter_s: float, lost: float, seed: str) -> Trouble:
    draw = Random(seed)
    begins_s = time.monotonic() + 2.0  # who they are gets through

    def trouble(message: bytes) -> Sequence[tuple[float, bytes]]:
        if draw.random() < lost and time.monotonic() > begins_s:
            return []
        return [(delay_s + draw.uniform(0.0, jitter_s), message)]

    return trouble


@contextlib.contextmanager
def _served(kind: str, talk: Callable[[Connection], None], most: int) -> Iterator[int]:
    with link.listening(kind, TOKEN, talk, host="127.0.0.1", port=0, max_bytes=most) as port:
        yield port


def _leader(seconds: float, ways: Sequence[Trouble]) -> Mapping[str, Any]:
    card = remote.LeaderCard("bench", [f"joint{k}" for k in range(6)])
    talk = remote.serve_leader(_BenchLeader(), card, MonotonicClock())
    with (
        _served(remote.KIND, talk, remote.MOST_BYTES) as port,
        meddling(remote.KIND, TOKEN, port, up=ways[0], down=ways[1]) as proxy,
        contextlib.closing(remote.LeaderLink("127.0.0.1", proxy, TOKEN)) as far,
    ):
        time.sleep(2.0)
        ages, counts, cpu_s = [], [], time.process_time()
        next_s = time.monotonic()
        for _ in range(round(seconds * TURN_HZ)):
            made_s, values = far.newest()
            ages.append(time.monotonic() - made_s)
            counts.append(values[0])
            next_s += 1.0 / TURN_HZ
            time.sleep(max(0.0, next_s - time.monotonic()))
        cpu_s = time.process_time() - cpu_s
    p50, p99, most = (1e3 * float(v) for v in (*np.percentile(ages, (50, 99)), max(ages)))
    return {
        "age_p50_ms": p50,
        "age_p99_ms": p99,
        "age_max_ms": most,
        "new_hz": len(set(counts)) / seconds,
        "stale": float(np.mean(np.array(ages) > SafetyLimits().stale_leader_s)),
        "backwards": int((np.diff(counts) < 0).sum()),
        "cpu_ms_a_sample": 1e3 * cpu_s / max(len(set(counts)), 1),
    }


def _policy(query: str, n: int) -> Mapping[str, Any]:
    policy, draw = _BenchPolicy(), np.random.default_rng(0)
    # As compressible as a room: noise on something smooth.
    y, x = np.mgrid[0:480, 0:640]
    room = (np.stack([x, y, x + y], axis=-1) / 5.0 + draw.normal(60.0, 3.0, (480, 640, 3))).clip(
        0, 255
    )
    pictures = dict.fromkeys(("front", "wrist"), room.astype(np.uint8))
    seen = Observation(np.zeros(6), None, pictures)
    talk = remote_policy.serve_policy(policy, remote_policy.card_of(policy, "bench"))
    quality = None if query else remote_policy.JPEG_QUALITY
    with (
        _served(remote_policy.KIND, talk, remote_policy.MOST_BYTES) as port,
        contextlib.closing(
            remote_policy.RemotePolicy(f"remote://127.0.0.1:{port}{query}", TOKEN)
        ) as far,
    ):
        took = []
        for _ in range(n):
            start_s = time.monotonic()
            far.plan(seen)
            took.append(time.monotonic() - start_s)
    p50, p99 = (1e3 * float(v) for v in np.percentile(took, (50, 99)))
    size = sum(len(remote_policy.packed(image, quality).data) for image in pictures.values())
    return {"kilobytes": size / 1000, "p50_ms": p50, "p99_ms": p99}


def table(result: Mapping[str, Any]) -> str:
    """Return the result as text."""
    lines = [
        "| between the two machines | age of a sample p50 / p99 / most ms | new samples a second "
        "| turns over 200 ms | went backwards | CPU ms a sample |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["leader"]:
        lines.append(
            f"| {row['network']} | {row['age_p50_ms']:.1f} / {row['age_p99_ms']:.1f} / "
            f"{row['age_max_ms']:.1f} | {row['new_hz']:.0f} | {row['stale']:.1%} | "
            f"{row['backwards']} | {row['cpu_ms_a_sample']:.2f} |"
        )
    lines += [
        "",
        "| two pictures of 640 x 480 | kB | there and back p50 / p99 ms |",
        "|---|---|---|",
    ]
    for row in result["policy"]:
        lines.append(
            f"| {row['pictures']} | {row['kilobytes']:.0f} | {row['p50_ms']:.1f} / "
            f"{row['p99_ms']:.1f} |"
        )
    return "\n".join(lines)
