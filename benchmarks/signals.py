"""What the signals cost: a turn of the live ones, a take of all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.core.messages import Tick

LIMIT_US: Final = 700.0
"""What a turn may cost a control loop of 200 Hz [µs]."""
SCENE: Final = 4_000_000


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Replay a rollout's turns through the live signals; write `signals.md` to `folder`."""
    from benchmarks.signals_page import page
    from gaploop.failure_analysis.signals.registry import registry

    (folder / "signals.md").write_text(page())
    repeats = config.n or 5
    with options.progress("Replaying", total=repeats) as advance:
        ticks, rates, joints = _rollout(config.policy.required())
        cpu_us, wall_us = [], []
        for _ in range(repeats):
            cpu, wall = _replay(ticks, joints, *rates)
            cpu_us.append(cpu)
            wall_us.append(wall)
            advance(1)
    wall = np.concatenate(wall_us)
    return {
        "signals": len(registry()),
        "turns": len(ticks) * repeats,
        "cpu_us_per_turn": round(float(np.mean(cpu_us)), 1),
        "wall_us_per_turn": {
            name: round(float(np.percentile(wall, q)), 1)
            for name, q in (("p50", 50), ("p99", 99), ("max", 100))
        },
        "limit_us": LIMIT_US,
        "file": str(folder / "signals.md"),
    }


class _Keep:
    def __init__(self) -> None:
        self.ticks: list[Tick] = []

    def tick(self, tick: Tick) -> None:
        self.ticks.append(tick)


def _rollout(path: str | Path) -> tuple[list[Tick], tuple[float, float], tuple[str, ...]]:
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import run_take
    from gaploop.finetune.lerobot_policy import load_policy

    rig, keep = embedded_rig(), _Keep()
    try:
        leader = PolicyLeader(load_policy(path), rig.follower, rig.fps, rig.control_hz)
        run_take(rig, leader, seed=SCENE, max_s=8.0, sinks=(keep,))
        return keep.ticks, (rig.control_hz, rig.fps), tuple(rig.follower.joint_names)
    finally:
        rig.close()


def _replay(
    ticks: Sequence[Tick], joints: Sequence[str], control_hz: float, fps: float
) -> tuple[float, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return processor time per turn and wall time of each turn [µs]."""
    from gaploop.failure_analysis.live import FailureWatch, shipped_score

    watch = FailureWatch(shipped_score(), joints, control_hz, fps)
    for tick in ticks[:10]:  # the arm's model is built once
        watch.tick(tick)
    wall = np.empty(len(ticks))
    start_s = time.process_time()
    for k, tick in enumerate(ticks):
        began_s = time.perf_counter()
        watch.tick(tick)
        wall[k] = 1e6 * (time.perf_counter() - began_s)
    return 1e6 * (time.process_time() - start_s) / len(ticks), wall


def table(result: Mapping[str, Any]) -> str:
    """Return the costs in words."""
    wall = result["wall_us_per_turn"]
    return (
        f"{result['signals']} signals in {result['file']}. Watching a rollout live costs "
        f"{result['cpu_us_per_turn']:g} µs of processor time a turn over {result['turns']} turns "
        f"(wall p50 {wall['p50']:g}, p99 {wall['p99']:g}, max {wall['max']:g} µs); "
        f"the limit is {result['limit_us']:g} µs."
    )
