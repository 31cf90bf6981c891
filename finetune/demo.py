"""The demo: two cells with gaps of two dimensions, drawn from a seed out of all nine; a sweep.

Sim-to-sim throughout. The draw decides only what the cells are like; probe, diagnosis and plan find
out by themselves, from the takes, and can be wrong: then the report says so. The sweep sets
injected against diagnosed over all dimensions: each draw of a gap is a station of its own, and the
diagnosing side gets its journal and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.session import Quota
from gaploop.core.files import write_json
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import TakeDiagnosis, diagnose
from gaploop.finetune.closed_loop import (
    SIM_SEEDS,
    LoopBudget,
    LoopResult,
    Say,
    TargetCell,
    close_the_gap,
    collected,
    counting,
    measured,
    recorded_rollouts,
)
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Answer
from gaploop.finetune.workers import run_jobs

ABSTAINED: Final = "abstained"
LEAST_SEVERITY: Final = 0.5
"""Weaker gaps rarely make a policy fail, so that there would be little to diagnose."""
SEVERITIES: Final = (0.85, 1.0)
"""Range that severities are drawn from: mostly enough for the base policy to fail."""
TRIED, LEAST_FAILING, DRAWS = 8, 3, 6
"""Rollouts by which a drawn cell is tried, how many must fail, how often it is drawn at most."""
TRIED_SEEDS: Final = 900
"""Scenes of these begin here."""


@dataclass(frozen=True)
class Draw:
    """One station: a gap dimension with severity, mechanism and direction drawn."""

    dimension: GapDimension
    severity: float
    gap_seed: int


@dataclass(frozen=True)
class DrawResult:
    """What came of one draw: how many rollouts, and the diagnosis of each that failed."""

    draw: Draw
    rollouts: int
    takes: tuple[TakeDiagnosis, ...]


def draw_stations(seed: int, per_dimension: int) -> list[Draw]:
    """Draw `per_dimension` stations of every gap dimension."""
    rng = np.random.default_rng([seed, 77])
    return [
        Draw(d, round(float(rng.uniform(LEAST_SEVERITY, 1.0)), 2), int(rng.integers(1_000_000)))
        for _ in range(per_dimension)
        for d in GapDimension
    ]


def sweep(
    policy: str | Path,
    draws: Sequence[Draw],
    folder: Path,
    *,
    rollouts: int,
    progress: Callable[[int], None] = lambda _draws: None,
) -> list[DrawResult]:
    """Roll the policy out `rollouts` times on every draw and diagnose what failed.

    Args:
        folder: journals go to `folder/<number>-<dimension>`.
        progress: called with the number of draws just finished.
    """
    jobs = [
        (n, policy, draw, folder / f"{n:02d}-{draw.dimension.value}", rollouts)
        for n, draw in enumerate(draws)
    ]
    found: dict[int, DrawResult] = {}
    for number, result in run_jobs(_one, jobs, workers=2):
        found[number] = result
        progress(1)
    return [found[n] for n in sorted(found)]


def _one(job: tuple[int, str | Path, Draw, Path, int]) -> tuple[int, DrawResult]:
    number, policy, draw, journal, rollouts = job
    cell = TargetCell({draw.dimension.value: draw.severity}, draw.gap_seed)
    takes = recorded_rollouts(policy, cell, journal, rollouts, "sweep")
    found = diagnose(takes, source=journal.name).takes
    return number, DrawResult(draw, len(takes), found)


def confusion(results: Sequence[DrawResult]) -> dict[str, dict[str, int]]:
    """Return injected dimension → diagnosed dimension (or "abstained") → number of takes."""
    columns = [*(d.value for d in GapDimension), ABSTAINED]
    rows = {d.value: dict.fromkeys(columns, 0) for d in GapDimension}
    for result in results:
        for take in result.takes:
            rows[result.draw.dimension.value][take.top or ABSTAINED] += 1
    return rows


def accuracy(rows: Mapping[str, Mapping[str, int]]) -> tuple[int, int, int]:
    """Return how many takes were attributed rightly, attributed at all, and diagnosed."""
    right = sum(row[name] for name, row in rows.items())
    every = sum(sum(row.values()) for row in rows.values())
    abstained = sum(row[ABSTAINED] for row in rows.values())
    return right, every - abstained, every


@dataclass(frozen=True)
class Size:
    """How much the demo does: see `LoopBudget`; draws and rollouts are the sweep's."""

    budget: LoopBudget
    sim_takes: int
    draws: int
    rollouts: int


FULL: Final = Size(LoopBudget(evaluated=60, steps=400), sim_takes=40, draws=1, rollouts=5)
QUICK: Final = Size(LoopBudget(6, 6, 4, 40, reproduced=2, simulated=4), 4, 0, 0)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        sweep: injected against diagnosed over all dimensions; empty in the quick demo.
    """

    seed: int
    base: str
    nominal: Evaluation
    loops: tuple[LoopResult, ...]
    sweep: tuple[DrawResult, ...]

    @property
    def better(self) -> bool:
        """Whether some policy was adapted, and every one that was got promoted."""
        verdicts = [loop.verdict.verdict for loop in self.loops if loop.verdict]
        return bool(verdicts) and all(v is Answer.PROMOTE for v in verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return what `demo.json` holds."""
        return {
            "schema": "gaploop.demo.v1",
            "evidence": "sim-to-sim",
            "seed": self.seed,
            "better": self.better,
            "nominal": _rate(self.nominal),
            "loops": [
                {
                    "gaps": dict(loop.target.gaps),
                    "gap_seed": loop.target.gap_seed,
                    "measured": list(loop.twin.mechanisms),
                    "diagnosed": dict(loop.diagnosis.summary.get("top", {})),
                    "plan": [
                        {"dimension": i.dimension.value, "remedy": i.remedy, "takes": i.takes}
                        for i in loop.plan.items
                    ],
                    "done": loop.done,
                    "before": _rate(loop.before),
                    "after": _rate(loop.after),
                    "nominal_after": _rate(loop.nominal_after),
                    "verdict": loop.verdict.to_json() if loop.verdict else None,
                    "lineage": dict(loop.lineage),
                }
                for loop in self.loops
            ],
        }


def run_demo(folder: Path, seed: int, *, base: str, quick: bool, say: Say) -> DemoResult:
    """Run the demo in `folder`; stages already there are not run again."""
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

    loops = tuple(
        close_the_gap(
            target,
            folder / f"cell_{name.lower()}",
            base=base,
            sim=[folder / "sim"],
            nominal=nominal,
            budget=size.budget,
            seed=seed,
            say=_within(f"Cell {name}", say),
        )
        for name, target in zip("AB", draw_targets(seed, fails), strict=True)
    )
    swept, draws = list[DrawResult](), draw_stations(seed, size.draws)
    if draws:
        progress = counting(say, "Diagnosing all nine dimensions", len(draws))
        swept = sweep(base, draws, folder / "sweep", rollouts=size.rollouts, progress=progress)
    result = DemoResult(seed, base, nominal, loops, tuple(swept))
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
