"""`benchmarks finetune`: what ten takes of a changed cell bring, and what they cost.

Sim-to-sim: the "real" cell is the embedded one with a gap, and is never seen in pretraining. A
cell of the benchmark is one task and one seed, which draws the gap's direction, the takes and the
adapter. In every cell: the base before; LoRA at each share of real takes (the sweep); all weights
instead of LoRA; success in nominal simulation before and after. Scenes are the same for all
policies of a cell, so differences are paired. The sweep over shares is done on the first task.
Files are kept: the same command goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.starts import LoopStart
    from gaploop.finetune.config import FinetuneConfig
    from gaploop.finetune.demonstrations import TargetCell
    from gaploop.finetune.evaluation import Evaluation

TASKS: Final[Mapping[str, Mapping[str, float]]] = {
    "pick_place": {"spatial_geometry.camera_pose": 1.0},
    "pick_lift": {"spatial_geometry.camera_pose": 1.0},
}
"""Task to the gap of its target cell, of a kind that demonstrations fix (docs/diagnose/gaps.md)."""
SEEDS: Final = 5
TAKES: Final = 10
SHARE: Final = 0.5
SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the sweep, on the first task."""
TAKE_SEEDS: Final = 520_000


@dataclass(frozen=True)
class FinetuneSize:
    """How much of everything.

    Attributes:
        tasks: how many of `TASKS`.
        seeds: of each task.
        sim_takes: nominal takes to mix in.
        rollouts: paired, of each policy on the target cell.
        retention: as many times more on the nominal cell: small losses want many.
        part: of the presets' steps.
    """

    tasks: int
    seeds: int
    sim_takes: int
    rollouts: int
    retention: int
    part: float


FULL: Final = FinetuneSize(len(TASKS), SEEDS, 40, 100, 2, 1.0)
QUICK: Final = FinetuneSize(1, 1, 6, 8, 1, 0.1)


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run every cell that isn't there yet, then the timing."""
    from benchmarks.finetune_picture import picture
    from benchmarks.finetune_speed import compare
    from benchmarks.starts import start_for
    from gaploop.finetune.workers import run_jobs

    size, place = (QUICK, folder / "quick") if config.quick else (FULL, folder)
    size = replace(size, rollouts=config.n or size.rollouts)
    seeds = range(config.seed, config.seed + (config.seeds or size.seeds))
    tasks = list(TASKS)[: size.tasks]
    starts = {task: start_for(task, place, size.sim_takes) for task in tasks}
    jobs = [(place, task, seed, starts[task], size) for seed in seeds for task in tasks]
    with options.progress("Cells", len(jobs) + 1) as advance:
        cells = []
        for cell in run_jobs(_cell, jobs, config.workers):
            cells.append(cell)
            advance()
        speed = compare(place / "speed", turns=1 if config.quick else 3)
        advance()
    cells.sort(key=lambda c: (tasks.index(c["task"]), c["seed"]))
    write_atomically(folder / "finetune.png", picture(cells))
    return {
        "evidence": "sim-to-sim",
        "takes": TAKES,
        "rollouts": size.rollouts,
        "retention_rollouts": size.rollouts * size.retention,
        "steps_part": size.part,
        "gaps": {task: dict(TASKS[task]) for task in tasks},
        "cells": cells,
        "over_cells": _over(cells, tasks),
        "speed": speed,
    }


def _cell(job: tuple[Path, str, int, LoopStart, FinetuneSize]) -> dict[str, Any]:
    from benchmarks.starts import record_demonstrations
    from gaploop.finetune.demonstrations import TargetCell

    folder, task, seed, start, size = job
    place = folder / f"{task}_{seed}"
    path = place / "cell.json"
    if path.exists():
        kept: dict[str, Any] = read_json(path)
        return kept
    place.mkdir(parents=True, exist_ok=True)
    target = TargetCell(TASKS[task], seed, task)
    real = record_demonstrations(target, place / "real", TAKES, TAKE_SEEDS + 1000 * (seed + 1))
    runs = _Runs(place, target, real, start, seed, size)
    result = {"task": task, "seed": seed, **runs.all()}
    write_json(path, options.jsonable(result))
    return result


@dataclass(frozen=True)
class _Runs:
    """The trainings and rollouts of one cell."""

    place: Path
    target: TargetCell
    real: Path
    start: LoopStart
    seed: int
    size: FinetuneSize

    def all(self) -> dict[str, Any]:
        """Return the figures of the cell."""
        before = self._rate(self.start.base, "base", on_target=True)
        nominal = self._rate(self.start.base, "nominal_base", on_target=False)
        shares = SHARES if self.target.task == next(iter(TASKS)) else (SHARE,)
        sweep = {share: self._tuned(f"lora_{share:g}", share, full=False) for share in shares}
        full = self._tuned("full", SHARE, full=True)
        kept = self._rate(self._policy(f"lora_{SHARE:g}"), "nominal_lora", on_target=False)
        return {
            "before": _json(before),
            "sweep": {f"{s:g}": _json(e) for s, e in sweep.items()},
            "full": _json(full),
            "nominal_before": _json(nominal),
            "nominal_lora": _json(kept),
            "gain": _points(before, sweep[SHARE]),
            "lora_minus_full": _points(full, sweep[SHARE]),
            "retention": _points(nominal, kept),
        }

    def _options(self, name: str, share: float, full: bool) -> FinetuneConfig:
        from gaploop.finetune.config import FinetuneConfig, MixOptions, StartPolicy
        from gaploop.finetune.tuning.presets import TRACKED_SPECS

        way = "full" if full else "lora"
        return FinetuneConfig(
            StartPolicy(self.start.base),
            way,
            real=(self.real,),
            sim=() if share == 1.0 else (self.start.sim,),
            mix=MixOptions(share),
            steps=max(2, round(TRACKED_SPECS[way].steps * self.size.part)),
            seed=self.seed,
            output_dir=self.place / name,
            resume=True,
        )

    def _tuned(self, name: str, share: float, full: bool) -> Evaluation:
        from gaploop.finetune.adapt import adapt

        wanted = self._options(name, share, full)
        if not (wanted.folder / "run.json").exists():
            adapt(wanted)
        return self._rate(self._policy(name), name, on_target=True)

    def _policy(self, name: str) -> Path:
        return self.place / name / "merged"

    def _rate(self, policy: str | Path, name: str, on_target: bool) -> Evaluation:
        from gaploop.finetune.evaluate import evaluate
        from gaploop.finetune.evaluation import Evaluation

        path = self.place / f"{name}.json"
        if not path.exists():
            result = evaluate(
                policy,
                self.size.rollouts * (1 if on_target else self.size.retention),
                gaps=self.target.gaps if on_target else None,
                gap_seed=self.target.gap_seed if on_target else 0,
                seed=10_000 * self.seed,
                workers=1,
                task=self.target.task,
            )
            write_json(path, result.to_json())
        return Evaluation.from_json(read_json(path), str(path))


def _json(result: Evaluation) -> dict[str, Any]:
    return {"rate": result.rate, "interval": result.interval, "n": result.trials}


def _points(before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Return the paired difference of two policies on the same scenes [percentage points]."""
    from gaploop.finetune.evaluation import paired_difference

    change = paired_difference(before.outcomes, after.outcomes)
    low, high = change.interval
    return {"points": 100 * change.value, "interval": [100 * low, 100 * high], "n": change.pairs}


FIGURES: Final = {
    "gain": "gain at 10 takes, LoRA",
    "lora_minus_full": "LoRA against all weights",
    "retention": "nominal success, LoRA",
}
AIMS: Final = {"gain": 60.0, "lora_minus_full": -2.0, "retention": -3.0}
"""Least points aimed at."""


def _over(cells: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, Any]:
    """Return each figure's mean over seeds with a t interval, for each task and over all."""
    from scipy.stats import t

    result: dict[str, Any] = {}
    for task in (*tasks, "all"):
        mine = [c for c in cells if task in (c["task"], "all")]
        result[task] = {}
        for name in FIGURES:
            values = np.array([c[name]["points"] for c in mine if name in c])
            if not len(values):
                continue
            low = high = None
            if len(values) > 1:
                half = float(
                    t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
                )
                low, high = float(values.mean()) - half, float(values.mean()) + half
            result[task][name] = {
                "points": float(values.mean()),
                "interval": [low, high],
                "cells": len(values),
                "pairs": sum(c[name]["n"] for c in mine if name in c),
                "aim": AIMS.get(name),
            }
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [
        f"Sim-to-sim, {result['takes']} takes of the target, {result['rollouts']} paired rollouts "
        f"a policy and cell ({result['retention_rollouts']} nominal ones), "
        f"{result['steps_part']:g} of the presets' steps. Points of success; "
        "95 % intervals over cells (one task and seed each).",
        "",
    ]
    for task, figures in result["over_cells"].items():
        for name, figure in figures.items():
            lines.append(f"{task:<12} {FIGURES[name]:<46} {_figure(figure)}")
    lines += ["", *map(_cell_line, result["cells"]), "", *_speed_lines(result["speed"])]
    return "\n".join(lines)


def _cell_line(cell: Mapping[str, Any]) -> str:
    shares = ", ".join(f"{share}: {e['rate']:.0%}" for share, e in cell["sweep"].items())
    return (
        f"{cell['task']} {cell['seed']}: base {cell['before']['rate']:.0%}; LoRA by share of real "
        f"takes {shares}; all weights {cell['full']['rate']:.0%}; nominal "
        f"{cell['nominal_before']['rate']:.1%} to {cell['nominal_lora']['rate']:.1%}"
    )


def _figure(figure: Mapping[str, Any]) -> str:
    low, high = figure["interval"]
    spread = "" if low is None else f" [{low:+.1f}, {high:+.1f}]"
    aim = "" if figure["aim"] is None else f"  aim ≥ {figure['aim']:+g}"
    return f"{figure['points']:+6.1f}{spread} ({figure['cells']} cells){aim}"


def _speed_lines(speed: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, row in speed["kinds"].items():
        low, high = row["range_ms"]
        lines.append(
            f"{name:<14} {row['step_ms']:7.1f} ms a step ({low:.1f}–{high:.1f}), "
            f"{row['memory_mb']:.0f} MB"
        )
    for name, row in speed["ratios"].items():
        low, high = row["range"]
        lines.append(f"{name}: {row['median']:.2f} ({low:.2f}–{high:.2f}) of the time")
    return lines
