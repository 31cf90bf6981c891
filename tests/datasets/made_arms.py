"""Arms made of numbers: a hand's motion, and followers that answer late, weakly, with play."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.messages import FloatArray
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import Episode, MotionRecording, RecordedJoint
from gaploop.datasets.layout import DatasetInfo

NAMES = ("base_pan", "lift", "elbow", "wrist_tilt", "wrist_roll", "gripper")
FPS = 30.0
STATE = "observation.state"
QUANTUM_DEG = 0.088

type Change = Callable[[FloatArray, int], FloatArray]


def as_is(values: FloatArray, _episode: int) -> FloatArray:
    return values


def hand(rng: np.random.Generator, seconds: float, fps: float = FPS) -> FloatArray:
    """Return smooth ways between places with pauses [deg], shape (n, 6)."""
    at, rows = rng.uniform(-30, 30, 6), list[FloatArray]()
    while sum(map(len, rows)) < seconds * fps:
        goal = np.where(rng.random(6) < 0.7, rng.uniform(-45, 45, 6), at)
        n = round(rng.uniform(0.5, 1.5) * fps)
        s = np.arange(1, n + 1)[:, None] / n
        rows.append(at + (goal - at) * (10 * s**3 - 15 * s**4 + 6 * s**5))
        rows.append(np.repeat(goal[None], round(rng.uniform(0.5, 1.0) * fps), axis=0))
        at = goal
    u = np.concatenate(rows)[: round(seconds * fps)]
    return np.asarray(u + np.cumsum(rng.normal(0, 0.02, u.shape), axis=0))


def follower(sent: FloatArray, lag: float = 2.5, sag_deg: float = 0.6) -> FloatArray:
    """Return how an arm answers [deg]: `lag` rows later, lift and elbow held down by weight."""
    k = np.arange(len(sent))
    out = np.stack([np.interp(k - lag, k, x) for x in sent.T], axis=1)
    out[:, 1:3] -= sag_deg * np.cos(np.radians(out[:, 1:3]))
    return out


def recording(
    seed: int = 0,
    episodes: int = 10,
    sent: Change = as_is,
    read: Change = as_is,
    names: Sequence[str] = NAMES,
) -> MotionRecording:
    """Return episodes of such an arm, what reaches it and what it reads changed."""
    rng, made = np.random.default_rng(seed), list[Episode]()
    for n in range(episodes):
        command = hand(rng, 8.0)
        reading = follower(sent(command, n)) + rng.normal(0, 0.01, command.shape)
        reading = read(np.round(reading / QUANTUM_DEG) * QUANTUM_DEG, n)
        made.append(Episode(n, command, reading))
    vector = {"dtype": "float32", "shape": (6,), "names": [f"{n}.pos" for n in names]}
    features = {"action": vector, "observation.state": vector}
    info = DatasetInfo(Path("made"), FPS, features, "", episodes, 240 * episodes)
    joints = tuple(RecordedJoint(n, k, k, 1.0, "grip" in n) for k, n in enumerate(names))
    return MotionRecording(info, {e.index: len(e.command) for e in made}, joints, tuple(made))


def report(of: MotionRecording) -> AbsoluteReport:
    found = AbsoluteReport(Path("made"))
    ArmTests(of, found).run()
    found.rank()
    return found


def reordered(of: MotionRecording, order: Sequence[int]) -> MotionRecording:
    """Return the same recording with its joints in another order."""
    return replace(
        of,
        joints=tuple(of.joints[k] for k in order),
        episodes=tuple(
            Episode(e.index, e.command[:, order], e.reading[:, order]) for e in of.episodes
        ),
    )


def write(
    root: Path,
    episodes: list[tuple[FloatArray, FloatArray]],
    tasks: list[str] | None = None,
    names: tuple[str, ...] = NAMES,
) -> Path:
    """Write commands and readings as a LeRobot v3 dataset without pictures."""
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    widths = [episodes[0][i].shape[1] for i in (0, 1)]
    features = {
        key: {"dtype": "float32", "shape": [width], "names": [f"{n}.pos" for n in names[:width]]}
        for key, width in zip(("action", STATE), widths, strict=True)
    }
    lengths = [len(u) for u, _ in episodes]
    info = {
        "codebase_version": "v3.0", "fps": FPS, "robot_type": "some_arm", "features": features,
        "total_episodes": len(episodes), "total_frames": sum(lengths),
    }  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))
    index = np.repeat(np.arange(len(episodes)), lengths)
    rows = {"episode_index": index}
    rows |= {
        key: pa.array(np.concatenate([e[i] for e in episodes]).astype(np.float32).tolist())
        for i, key in enumerate(("action", STATE))
    }
    pq.write_table(pa.table(rows), root / "data/chunk-000/file-000.parquet")
    named = tasks or ["Stack the cups"] * len(episodes)
    table = {
        "episode_index": range(len(episodes)),
        "length": lengths,
        "tasks": [[task] for task in named],
    }
    pq.write_table(pa.table({k: list(v) for k, v in table.items()}),
                   root / "meta/episodes/chunk-000/file-000.parquet")  # fmt: skip
    return root
