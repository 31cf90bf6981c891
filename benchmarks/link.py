"""How long a plan from another machine is under way, with pictures packed or raw.

All on one machine: server and robot share its processors and the interpreter, so that this is the
most that the programs themselves add.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from websockets.sync.connection import Connection

from benchmarks.bench import BenchConfig
from gaploop.collect import remote_policy
from gaploop.core.messages import FloatArray, Observation
from gaploop.teleop import link

TOKEN: Final = link.new_token()
PICTURES: Final = {"JPEG 95": "", "raw": "?pictures=raw"}


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
    """Return how long plans were under way."""
    del folder
    plans = [
        {"pictures": name, **_policy(query, config.n or 100)} for name, query in PICTURES.items()
    ]
    return {"policy": plans}


@contextlib.contextmanager
def _served(kind: str, talk: Callable[[Connection], None], most: int) -> Iterator[int]:
    with link.listening(kind, TOKEN, talk, host="127.0.0.1", port=0, max_bytes=most) as port:
        yield port


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
        "| two pictures of 640 x 480 | kB | there and back p50 / p99 ms |",
        "|---|---|---|",
    ]
    for row in result["policy"]:
        lines.append(
            f"| {row['pictures']} | {row['kilobytes']:.0f} | {row['p50_ms']:.1f} / "
            f"{row['p99_ms']:.1f} |"
        )
    return "\n".join(lines)
