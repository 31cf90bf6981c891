"""Made-up fleets under the gate's canary: who is promoted, who is rolled back, and how late.

What is true of a fleet is known here, so that the canary's promises can be seen to break. It is no
evidence about any policy or robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

FLEETS: Final = 20
"""Fleets per candidate, unless --n says otherwise."""
CANDIDATES: Final[Mapping[str, Mapping[str, float]]] = {
    "10 points better": {"candidate": 0.85},
    "the same": {"candidate": 0.75},
    "25 points worse": {"candidate": 0.50},
    "40 points worse": {"candidate": 0.35},
    "better, safety events in 5 %": {"candidate": 0.85, "candidate_safety": 0.05},
    "better, safety events in 20 %": {"candidate": 0.85, "candidate_safety": 0.20},
}
"""Against a baseline of 75 %, with a safety event in a thousand episodes unless said."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Let every candidate run on its fleets."""
    del folder
    from benchmarks.fleets import FleetSpec, simulate
    from gaploop.core.suite import CanaryRules
    from gaploop.finetune.gate.canary import CanaryPhase

    fleet, n, candidates = FleetSpec(silent=4, late=0.2), config.n or FLEETS, {}
    with options.progress("Fleets", total=n * len(CANDIDATES)) as advance:
        for name, truth in CANDIDATES.items():
            runs = []
            for seed in range(config.seed, config.seed + n):
                runs.append(simulate(CanaryRules(), replace(fleet, **truth), seed))  # type: ignore[arg-type]
                advance()
            back = [run for run in runs if run.canary.phase is CanaryPhase.ROLLED_BACK]
            exposed = [run.exposed for run in back]
            candidates[name] = {
                "promoted": sum(run.canary.phase is CanaryPhase.PROMOTED for run in runs),
                "rolled_back": len(back),
                "from_the_whole_fleet": sum(bool(run.canary.widened) for run in back),
                "exposed_median": float(np.median(exposed)) if exposed else None,
                "exposed_most": max(exposed, default=None),
            }
    return {"fleets": n, "evidence": "made-up fleets", "candidates": candidates}


def table(result: Mapping[str, Any]) -> str:
    """Return the counts as a Markdown table."""
    lines = [
        f"{result['fleets']} fleets of 20 stations each.",
        "",
        "| candidate (baseline 75 %) | promoted | rolled back | of these from the whole fleet "
        "| episodes of the candidate until then, median | most |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in result["candidates"].items():
        median, most = ("" if v is None else f"{v:g}" for v in
                        (one["exposed_median"], one["exposed_most"]))  # fmt: skip
        lines.append(
            f"| {name} | {one['promoted']} | {one['rolled_back']} | "
            f"{one['from_the_whole_fleet']} | {median} | {most} |"
        )
    return "\n".join(lines)
