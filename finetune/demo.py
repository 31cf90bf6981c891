"""The demo: two cells with gaps, and the whole loop on each of them.

Sim-to-sim throughout. Probe, diagnosis and plan find out by themselves what the cells are like,
from the takes, and can be wrong: then the report says so. The two cells are always the same, one
that commands put right and one that needs demonstrations; or they are drawn from a seed, out of
all nine dimensions, and end as they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.campaign import Quota
from gaploop.core.files import write_json
from gaploop.core.vocabulary import GapDimension
from gaploop.finetune.closed_loop import (
    SIM_SEEDS,
    LoopBudget,
    LoopResult,
    Say,
    TargetCell,
    close_the_gap,
    collected,
    measured,
)
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Answer

STATIONS: Final = (
    TargetCell({"actuator_response.latency": 0.8}, 5),
    TargetCell({"spatial_geometry.table_height": 0.9}, 2),
)
"""An arm that is late: probed, and compensated by a command. And a table that is too low at a
station that nobody probed: what its takes show leads to 20 demonstrations."""
SEVERITIES: Final = (0.85, 1.0)
"""Range that severities are drawn from: mostly enough for the base policy to fail."""
TRIED, LEAST_FAILING, DRAWS = 8, 3, 6
"""Rollouts by which a drawn cell is tried, how many must fail, how often it is drawn at most."""
TRIED_SEEDS: Final = 900
"""Scenes of these begin here."""


@dataclass(frozen=True)
class Size:
    """How much the demo does: see `LoopBudget`."""

    budget: LoopBudget
    sim_takes: int


FULL: Final = Size(LoopBudget(evaluated=60, steps=400), sim_takes=40)
QUICK: Final = Size(LoopBudget(6, 6, 4, 40, reproduced=2, simulated=4), 4)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found; `seed` is None for `STATIONS`."""

    seed: int | None
    base: str
    nominal: Evaluation
    loops: tuple[LoopResult, ...]

    @property
    def better(self) -> tuple[bool, ...]:
        """Of each cell, whether what commands or takes did got promoted."""
        return tuple(
            loop.is_counted and loop.verdict is not None and loop.verdict.verdict is Answer.PROMOTE
            for loop in self.loops
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `demo.json` holds."""
        return {
            "schema": "gaploop.demo.v1",
            "evidence": "sim-to-sim",
            "seed": self.seed,
            "better": list(self.better),
            "nominal": _rate(self.nominal),
            "loops": [
                {
                    "gaps": dict(loop.target.gaps),
                    "gap_seed": loop.target.gap_seed,
                    "measured": list(loop.twin.mechanisms) if loop.twin else None,
                    "diagnosed": dict(loop.diagnosis.summary.get("top", {})),
                    "plan": [
                        {"dimension": i.dimension.value, "remedy": i.remedy, "takes": i.takes}
                        for i in loop.plan.items
                    ],
                    "done": loop.done,
                    "counted": loop.is_counted,
                    "before": _rate(loop.before),
                    "after": _rate(loop.after),
                    "nominal_after": _rate(loop.nominal_after),
                    "verdict": loop.verdict.to_json() if loop.verdict else None,
                    "lineage": dict(loop.lineage),
                }
                for loop in self.loops
            ],
        }


def run_demo(folder: Path, seed: int | None, *, base: str, quick: bool, say: Say) -> DemoResult:
    """Run the demo in `folder`; stages already there are not run again.

    Args:
        seed: draws the cells; `STATIONS` if None.
    """
    size = QUICK if quick else FULL
    nominal = measured(folder / "nominal.json", base, None, size.budget.evaluated, "base", say)
    stage = "Recording nominal takes"
    quotas = [Quota(size.sim_takes)]
    collected(folder, "sim", TargetCell({}, 0), quotas, stage, say, SIM_SEEDS)
    say(stage, size.sim_takes, size.sim_takes)

    def fails(cell: TargetCell) -> bool:
        say("Looking for cells in which the base policy fails", 0, 1)
        tried = evaluate(
            base, TRIED, gaps=cell.gaps, gap_seed=cell.gap_seed, seed=TRIED_SEEDS, workers=1
        )
        return tried.trials - tried.successes >= LEAST_FAILING

    targets = STATIONS if seed is None else draw_targets(seed, fails)
    loops = tuple(
        close_the_gap(
            target,
            folder / f"cell_{name.lower()}",
            base=base,
            sim=[folder / "sim"],
            nominal=nominal,
            budget=size.budget,
            seed=seed or 0,
            probe=seed is not None or target is STATIONS[0],
            say=_within(f"Cell {name}", say),
        )
        for name, target in zip("AB", targets, strict=True)
    )
    result = DemoResult(seed, base, nominal, loops)
    write_json(folder / "demo.json", result.to_json())
    return result


def draw_targets(
    seed: int, fails: Callable[[TargetCell], bool] = lambda _cell: True
) -> tuple[TargetCell, TargetCell]:
    """Draw two cells with gaps of different dimensions, out of all nine.

    Args:
        fails: says whether there is anything to find out in a cell; one without is drawn anew.
    """
    rng = np.random.default_rng([seed, 42])

    def drawn(dimension: str) -> TargetCell:
        for _ in range(DRAWS):
            severity = round(float(rng.uniform(*SEVERITIES)), 2)
            cell = TargetCell({dimension: severity}, int(rng.integers(10**6)))
            if fails(cell):
                break
        return cell

    one, other = map(drawn, rng.choice([d.value for d in GapDimension], 2, replace=False).tolist())
    return one, other


def _within(cell: str, say: Say) -> Say:
    return lambda stage, done, total: say(f"{cell}: {stage[0].lower()}{stage[1:]}", done, total)


def _rate(result: Evaluation | None) -> Mapping[str, Any] | None:
    return asdict(result.total) if result else None
