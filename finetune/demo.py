"""The demo: two gaps drawn from a seed, one that demonstrations fix and one they don't.

Sim-to-sim throughout. The draw decides only what the cells are like; diagnosis and plan find
out by themselves, from the takes, and can be wrong: then the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.rig import embedded_rig, scripted_leader
from gaploop.collect.session import Quota, SessionSpec, record_takes
from gaploop.core.files import write_json
from gaploop.datasets.lerobot_publish import publish
from gaploop.finetune.closed_loop import (
    DEMONSTRATION_S,
    SIM_SEEDS,
    LoopBudget,
    LoopResult,
    Say,
    TargetCell,
    close_the_gap,
    measured,
)
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Answer
from gaploop.finetune.sweep import DrawResult, draw_stations, sweep
from gaploop.sim.tasks import INSTRUCTIONS

MENDABLE: Final = (
    "spatial_geometry.camera_pose",
    "object_property.size",
    "object_property.elongated",
)
OTHERWISE: Final = (
    "visual_domain.exposure",
    "visual_domain.colour_cast",
    "visual_domain.blur",
)
"""Gaps that demonstrations fix in this cell, and gaps that want another remedy
(docs/closed_loop.md)."""
SEVERITIES: Final = (0.85, 1.0)
"""Range that severities are drawn from: enough for the base policy to fail."""


@dataclass(frozen=True)
class Size:
    """How much the demo does: see `LoopBudget`; draws and rollouts are the sweep's."""

    budget: LoopBudget
    sim_takes: int
    draws: int
    rollouts: int


FULL: Final = Size(LoopBudget(), sim_takes=40, draws=1, rollouts=5)
QUICK: Final = Size(LoopBudget(diagnosed=6, evaluated=6, takes=4, steps=40), 4, 0, 0)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        nominal: the base policy in the nominal cell.
        loops: one per drawn gap; the first is the mendable one.
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
            "loops": [_loop_json(loop) for loop in self.loops],
        }


def run_demo(folder: Path, seed: int, *, base: str, quick: bool, say: Say) -> DemoResult:
    """Run the demo in `folder`; stages already there are not run again.

    Raises:
        UnusableInputError: as the stages say.
    """
    size = QUICK if quick else FULL
    nominal = measured(folder / "nominal.json", base, None, size.budget.evaluated, "base", say)
    sim = _sim_takes(folder, size.sim_takes, say)
    loops = tuple(
        close_the_gap(
            target,
            folder / f"cell_{name.lower()}",
            base=base,
            sim=[sim],
            nominal=nominal,
            budget=size.budget,
            seed=seed,
            say=_within(f"Cell {name}", say),
        )
        for name, target in zip("AB", draw_targets(seed), strict=True)
    )
    result = DemoResult(seed, base, nominal, loops, tuple(_sweep(folder, seed, base, size, say)))
    write_json(folder / "demo.json", result.to_json())
    return result


def draw_targets(seed: int) -> tuple[TargetCell, TargetCell]:
    """Draw a cell whose gap demonstrations fix and one whose gap they don't."""
    rng = np.random.default_rng([seed, 42])
    names = (str(rng.choice(MENDABLE)), str(rng.choice(OTHERWISE)))
    cells = [
        TargetCell({n: round(float(rng.uniform(*SEVERITIES)), 2)}, int(rng.integers(1_000_000)))
        for n in names
    ]
    return cells[0], cells[1]


def _within(cell: str, say: Say) -> Say:
    return lambda stage, done, total: say(f"{cell}: {stage[0].lower()}{stage[1:]}", done, total)


def _sim_takes(folder: Path, n: int, say: Say) -> Path:
    """Record `n` nominal takes for co-training; return the dataset."""
    root, journal, stage = folder / "sim", folder / "sim_journal", "Recording nominal takes"
    say(stage, 0, n)
    done = 0

    def on_take(_result: object, counts: bool) -> None:
        nonlocal done
        done += counts
        say(stage, done, n)

    spec = SessionSpec(
        journal, INSTRUCTIONS["pick_place"], max_s=DEMONSTRATION_S, seed=SIM_SEEDS, resume=True
    )
    record_takes(
        spec, [Quota(n)], lambda c: embedded_rig(conditions=c), scripted_leader, on_take=on_take
    )
    say(stage, n, n)
    publish(journal, root, "local/sim")
    return root


def _sweep(folder: Path, seed: int, base: str, size: Size, say: Say) -> Sequence[DrawResult]:
    draws, stage, done = draw_stations(seed, size.draws), "Diagnosing all nine dimensions", 0
    if not draws:
        return []

    def progress(steps: int) -> None:
        nonlocal done
        done += steps
        say(stage, done, len(draws))

    say(stage, 0, len(draws))
    return sweep(base, draws, folder / "sweep", rollouts=size.rollouts, progress=progress)


def _rate(result: Evaluation | None) -> Mapping[str, Any] | None:
    if result is None:
        return None
    return {
        "successes": result.successes,
        "trials": result.trials,
        "rate": result.rate,
        "interval": result.interval,
    }


def _loop_json(loop: LoopResult) -> dict[str, Any]:
    return {
        "gaps": dict(loop.target.gaps),
        "gap_seed": loop.target.gap_seed,
        "diagnosed": dict(loop.diagnosis.summary.get("top", {})),
        "plan": [
            {"dimension": i.dimension.value, "remedy": i.remedy, "takes": i.takes}
            for i in loop.plan.items
        ],
        "before": _rate(loop.before),
        "after": _rate(loop.after),
        "nominal_after": _rate(loop.nominal_after),
        "verdict": loop.verdict.to_json() if loop.verdict else None,
        "lineage": dict(loop.lineage),
    }
