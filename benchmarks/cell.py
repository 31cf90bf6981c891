"""How fast the embedded cell renders, and how often the scripted expert succeeds in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

FRAMES: Final = 100
REPEATS: Final = 5
SIZES: Final = (192, 224)


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return frames per second at each image size, and the expert's success over `n` seeds."""
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import run_take
    from gaploop.core.vocabulary import Outcome
    from gaploop.finetune.evaluation import wilson

    del folder
    rates = {str(size): _frames_per_s(size) for size in SIZES}
    n, durations, wins = config.n or 100, [], 0
    rig = embedded_rig()
    start_s = time.perf_counter()
    with options.progress("Scripted takes", total=n) as advance:
        for seed in range(config.seed, config.seed + n):
            take = run_take(rig, rig.scripted_leader(seed), seed=seed, max_s=10.0)
            wins += take.outcome is Outcome.SUCCESS
            durations.append(take.duration_s)
            advance()
    wall_s = time.perf_counter() - start_s
    rig.close()
    return {
        "frames_per_s": rates,
        "expert": wilson(wins, n),
        "take_s": statistics.median(durations),
        "wall_s_per_take": wall_s / n,
    }


def _frames_per_s(size: int) -> dict[str, float]:
    """Render moving scenes of `size` × `size`; return minimum, median and maximum rate [1/s]."""
    from gaploop.sim.cell import SimCell

    rates = []
    with SimCell(image_size=size, camera_hz=50.0) as cell:
        cell.reset(0)
        for _ in range(REPEATS):
            spent_s = 0.0
            for _ in range(FRAMES):
                cell.advance(0.02)
                start_s = time.perf_counter()
                cell.frame()
                spent_s += time.perf_counter() - start_s
            rates.append(FRAMES / spent_s)
    return {"min": min(rates), "median": statistics.median(rates), "max": max(rates)}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as lines."""
    lines = [
        f"Overhead camera {size}×{size}: {r['median']:.0f} frames/s "
        f"({r['min']:.0f} to {r['max']:.0f} over {REPEATS} × {FRAMES})"
        for size, r in result["frames_per_s"].items()
    ]
    lines.append(f"Scripted expert, nominal cell: {result['expert']}")
    lines.append(
        f"A take lasts {result['take_s']:.1f} simulated s and took "
        f"{result['wall_s_per_take']:.2f} s, camera and tracker included, nothing recorded."
    )
    return "\n".join(lines)
