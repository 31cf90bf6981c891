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
SLOWER: Final = 20
"""Likewise, where a picture isn't the nominal one."""
REPEATS: Final = 5
SIZES: Final = (192, 224)
_LAMPS: Final = {"count": 2.0, "layout": 1.0}
LOOKS: Final[Mapping[str, Any]] = {
    "two lamps": {"visual_domain.placed_lamps": _LAMPS},
    "hard shadows": {"visual_domain.placed_lamps": {**_LAMPS, "shadows": 1.0}},
    "soft shadows": {"visual_domain.placed_lamps": {**_LAMPS, "shadows": 1.0, "radius_m": 0.05}},
    "textures": {"visual_domain.surfaces": {"table": 6.0, "object": 7.0, "target": 8.0}},
}
"""What pictures are timed with, as `parameters` of the cell."""
DRAWN: Final = ("visual", "looks", "looks,every=frame")
"""Likewise, as `randomise`."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return frames per second at each image size, and the expert's success over `n` seeds."""
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import run_take
    from gaploop.core.vocabulary import Outcome
    from gaploop.finetune.evaluation import wilson

    del folder
    rates = {f"{size}×{size}": _frames_per_s(size) for size in SIZES}
    looks = {name: _frames_per_s(SIZES[-1], parameters=like) for name, like in LOOKS.items()}
    looks |= {name: _frames_per_s(SIZES[-1], drawn=name) for name in DRAWN}
    rates |= {f"{SIZES[-1]}×{SIZES[-1]}, {name}": rate for name, rate in looks.items()}
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


def _frames_per_s(
    size: int, parameters: Mapping[str, Any] | None = None, drawn: str = ""
) -> dict[str, float]:
    """Render moving scenes of `size` × `size`; return minimum, median and maximum rate [1/s].

    The first picture of an episode isn't timed. What is drawn for an episode is another in each
    repeat.
    """
    from gaploop.sim.cell import SimCell
    from gaploop.sim.randomise import known_and_drawn

    frames = SLOWER if parameters or drawn else FRAMES
    rates, ranges = [], known_and_drawn(None, drawn)[1]
    with SimCell(image_size=size, camera_hz=50.0, parameters=parameters, randomise=ranges) as cell:
        for repeat in range(REPEATS):
            cell.reset(repeat)
            cell.frame()
            spent_s = 0.0
            for _ in range(frames):
                cell.advance(0.02)
                start_s = time.process_time()
                cell.frame()
                spent_s += time.process_time() - start_s
            rates.append(frames / spent_s)
    return {"min": min(rates), "median": statistics.median(rates), "max": max(rates)}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as lines."""
    lines = [
        f"Overhead camera {what}: {r['median']:.0f} pictures per second of processor time "
        f"({r['min']:.0f} to {r['max']:.0f} over {REPEATS} repeats)"
        for what, r in result["frames_per_s"].items()
    ]
    lines.append(f"Scripted expert, nominal cell: {result['expert']}")
    lines.append(
        f"A take lasts {result['take_s']:.1f} simulated s and took "
        f"{result['wall_s_per_take']:.2f} s, camera and tracker included, nothing recorded."
    )
    return "\n".join(lines)
