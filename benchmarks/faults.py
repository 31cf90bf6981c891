"""Torque off after every trip: random fault schedules on emulated pairs of arms."""

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
    """Run the schedules; return how long torque took to go off, and every violation."""
    import numpy as np

    from benchmarks.fault_schedules import WITHIN_S, draw, run

    if config.schedules < 1:
        raise UnusableInputError(f"--schedules must be 1 or more, got {config.schedules}.")
    n, started_s = config.schedules, time.perf_counter()
    outcomes, repeats = [], 0
    logging.getLogger("gaploop").setLevel(logging.CRITICAL)  # thousands of faults, all meant
    with options.progress("Fault schedules", total=n) as advance:
        for seed in range(config.seed, config.seed + n):
            outcome = run(draw(seed))
            while outcome.tells_nothing and repeats < n:
                outcome, repeats = run(draw(seed)), repeats + 1
            outcomes.append(outcome)
            advance()
    # The stop of a schedule without a trip counts as well: torque goes off there, too.
    off_s = np.array([o.off_s for o in outcomes if o.reachable])
    write_json(
        folder / "schedules.json",
        [
            {
                "schedule": str(o.schedule),
                "trip": o.trip,
                "off_s": o.off_s,
                "gap_s": o.gap_s,
                "reachable": o.reachable,
                "holds": o.holds,
                "said": o.said,
            }
            for o in outcomes
        ],
    )
    return {
        "schedules": n,
        "within_s": WITHIN_S,
        "violations": [str(o.schedule) for o in outcomes if not o.holds],
        "trips": dict(Counter(o.trip for o in outcomes)),
        "repeated": repeats,
        "unreachable": sum(not o.reachable for o in outcomes),
        "off_s": {
            "p50": float(np.quantile(off_s, 0.5)),
            "p99": float(np.quantile(off_s, 0.99)),
            "max": float(off_s.max()),
        }
        if len(off_s)
        else {},
        "wall_s": time.perf_counter() - started_s,
        "evidence": "emulated arms",
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as lines."""
    bad, off = result["violations"], result["off_s"]
    trips = ", ".join(f"{name} {count}" for name, count in sorted(result["trips"].items()))
    lines = [
        f"{result['schedules']} random fault schedules on emulated arms: torque off on every "
        f"reachable servo within {result['within_s'] * 1e3:.0f} ms of the trip in "
        f"{result['schedules'] - len(bad)}.",
        f"How they ended: {trips}; {result['unreachable']} with the follower's cable pulled. "
        f"{result['repeated']} runs repeated because the machine was too busy to time them.",
    ]
    if off:
        lines.insert(
            1,
            f"Time to torque off: median {off['p50'] * 1e3:.0f} ms, p99 {off['p99'] * 1e3:.0f} ms, "
            f"worst {off['max'] * 1e3:.0f} ms.",
        )
    return "\n".join([*lines, *(f"LATE: {one}" for one in bad)])
