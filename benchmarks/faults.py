"""How sessions end: random faults and presses on emulated arms with weight, held to the law."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run the schedules; return drop, speed and time to rest by case, and every violation."""
    import numpy as np

    from benchmarks.fault_schedules import CASES, draw, run

    if config.schedules < 1:
        raise UnusableInputError(f"--schedules must be 1 or more, got {config.schedules}.")
    n, started_s = config.schedules, time.perf_counter()
    outcomes = []
    logging.getLogger("gaploop").setLevel(logging.CRITICAL)  # thousands of faults, all meant
    with options.progress("Fault schedules", total=n) as advance:
        for seed in range(config.seed, config.seed + n):
            outcomes.append(run(draw(seed)))
            advance()
    write_json(
        folder / "schedules.json",
        [
            {
                "schedule": str(o.schedule),
                "case": o.case,
                "trip": o.trip,
                "drop_m": o.drop_m,
                "peak_rad_s": o.peak_rad_s,
                "rest_s": o.rest_s,
                "off_s": o.off_s,
                "violations": o.violations,
                "said": o.said,
            }
            for o in outcomes
        ],
    )
    cases = {}
    for case, what in CASES.items():
        some = [o for o in outcomes if o.case == case]
        if some:
            cases[case] = {"what": what, "schedules": len(some)}
            for name in ("drop_m", "peak_rad_s", "rest_s", "off_s"):
                values = np.array([getattr(o, name) for o in some])
                figures = {"p50": float(np.median(values)), "max": float(values.max())}
                cases[case][name] = figures
    return {
        "schedules": n,
        "violations": [f"{o.schedule}: {', '.join(o.violations)}" for o in outcomes if not o.holds],
        "trips": dict(Counter(o.trip for o in outcomes)),
        "cases": cases,
        "wall_s": time.perf_counter() - started_s,
        "evidence": "emulated arms",
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as lines: median and worst of each case."""
    bad = result["violations"]
    lines = [
        f"{result['schedules']} random schedules on emulated arms with weight: {len(bad)} "
        'violations of the law (docs/teleoperate/teleoperation.md, "However it ends").',
        "| case | schedules | drop [cm] | peak [rad/s] | time to rest [s] | let go after [ms] |",
        "|---|---|---|---|---|---|",
    ]
    for case, row in result["cases"].items():
        drop, peak, rest, off = (row[k] for k in ("drop_m", "peak_rad_s", "rest_s", "off_s"))
        lines.append(
            f"| {case}: {row['what']} | {row['schedules']} "
            f"| {100 * drop['p50']:.1f}, {100 * drop['max']:.1f} "
            f"| {peak['p50']:.2f}, {peak['max']:.2f} | {rest['p50']:.1f}, {rest['max']:.1f} "
            f"| {1e3 * off['p50']:.0f}, {1e3 * off['max']:.0f} |"
        )
    return "\n".join([*lines, *(f"BROKEN: {one}" for one in bad)])
