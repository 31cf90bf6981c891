"""`benchmarks seeing_remedies`: what each remedy brings a policy that sees pictures; sim-to-sim.

A station is the embedded cell with one mechanism of a dimension at a severity that both are drawn
blind, drawn anew until the base fails in three of eight rollouts or more. Each arm adapts the base
with LoRA to other takes, and is tried on the same scenes as the base (300 steps of the preset):

- takes: 20 demonstrations recorded at the station, and nominal ones.
- pictures: nominal takes alone, light, noise and camera of their pictures drawn anew.
- background: nominal takes alone, with backgrounds replaced.
- simulation: 100 takes of a randomised simulation (preset `all`), and nominal ones.
- both: the station's takes and the randomised ones, together.

Pictures, background and simulation know nothing of a station: one adapter a seed serves all. Rows
are kept as they come, so the same command goes on; --budget_s ends it between two rows, and
--data=FILE.parquet makes the figures from stored rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.proof.rows import beside_base, kept_rows, mean_of, won
from gaploop.core.files import read_json, write_json
from gaploop.core.statistics import percent, points, rate
from gaploop.core.vocabulary import GapDimension
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.finetune.demonstrations import TargetCell

ROWS: Final = "seeing_remedies.parquet"
DIMENSIONS: Final = (
    GapDimension.VISUAL_DOMAIN, GapDimension.ENVIRONMENTAL_COMPLEXITY,
    GapDimension.SPATIAL_GEOMETRY, GapDimension.OBJECT_PROPERTY,
)  # fmt: skip
ARMS: Final = ("nothing", "takes", "pictures", "background", "simulation", "both")
AT_STATION: Final = ("takes", "both")
KINDS: Final = {"pictures": ("light", "camera"), "background": ("background",)}
SEVERITIES: Final = (0.5, 1.0)
ROLLOUTS, TAKES, NOMINAL_TAKES, SIMULATED = 20, 20, 40, 100
FAILING, TRIED = 3, 8
STEPS: Final = 300
"""Half of what the preset trains: eleven adapters a seed in a quarter of an hour."""
SIZE: Final = "96"
"""Height and width at which the base looks at pictures."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run what has no row yet, or read rows from --data; return the figures."""
    rows = kept_rows(
        config.data or folder / ROWS, "station",
        None if config.data else lambda done: _run(config, folder, done),
    )  # fmt: skip
    figures = {}
    for dimension in DIMENSIONS:
        for arm in ARMS:
            mine = [r for r in rows if (r["dimension"], r["arm"]) == (dimension.value, arm)]
            if mine:
                change = mean_of([won(r["after"]) - won(r["before"]) for r in mine])
                figures[f"{dimension.value}.{arm}"] = {**beside_base(mine), "change": change}
    return {"evidence": "sim-to-sim", "rows": rows, "figures": figures}


def _run(config: BenchConfig, folder: Path, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield rows seed by seed until the time is used up."""
    until_s = time.monotonic() + (config.budget_s or np.inf)
    base = config.policy.path if config.policy.path != "base" else "base_vision"
    work = [
        (seed, dimension, arm)
        for seed in range(config.seed, config.seed + (config.seeds or 5))
        for dimension in DIMENSIONS
        for arm in ARMS
        if arm in (config.arms or ARMS) and (not config.gaps or dimension.value in config.gaps)
    ]
    with options.progress("Rows", len(work)) as advance:
        for seed, dimension, arm in work:
            name = f"{dimension.value}-{seed}"
            if (name, arm) not in done and time.monotonic() < until_s:
                began_s = time.process_time()
                row = _Station(base, dimension, seed, config.n or ROLLOUTS, folder).row(arm)
                yield {**row, "processor_s": time.process_time() - began_s}
            advance()


@dataclass(frozen=True)
class _Station:
    """A station, its folder, and what is tried there."""

    base: str
    dimension: GapDimension
    seed: int
    rollouts: int
    shared: Path

    @property
    def folder(self) -> Path:
        return self.shared / f"{self.dimension.value}-{self.seed}"

    def row(self, arm: str) -> dict[str, Any]:
        """Carry an arm out and try what came of it."""
        from benchmarks.proof.site import tried

        nominal = self.shared / "nominal"
        for folder in (self.folder, nominal):
            folder.mkdir(parents=True, exist_ok=True)
        cell, policy, nominal_after = self._drawn(), self.base, nominal / "base.json"
        if arm != "nothing":
            is_here = arm in AT_STATION
            home = self.folder if is_here else nominal
            name = arm if is_here else f"{arm}_{self.seed}"
            policy = str(self._learned(arm, cell, home / f"run_{name}"))
            nominal_after = home / f"nominal_{name}.json"
        return {
            "station": self.folder.name,
            "dimension": self.dimension.value,
            "seed": self.seed,
            "gap": next(iter(cell.gaps)),
            "severity": next(iter(cell.gaps.values())),
            "gap_seed": cell.gap_seed,
            "arm": arm,
            "before": tried(self.folder / "before.json", self.base, cell, self.rollouts),
            "after": tried(self.folder / f"after_{arm}.json", policy, cell, self.rollouts),
            "nominal_before": tried(nominal / "base.json", self.base, None, self.rollouts),
            "nominal_after": tried(nominal_after, policy, None, self.rollouts),
        }

    def _drawn(self) -> TargetCell:
        """Return the cell, as it was drawn before or drawn now until the base fails there."""
        from gaploop.finetune.demonstrations import TargetCell
        from gaploop.finetune.evaluate import evaluate
        from gaploop.sim.gaps import mechanisms_of

        path = self.folder / "station.json"
        rng = np.random.default_rng([self.seed, 2026, DIMENSIONS.index(self.dimension)])
        while not path.exists():
            key = str(rng.choice([m.key for m in mechanisms_of(self.dimension)]))
            gaps = {key: round(float(rng.uniform(*SEVERITIES)), 2)}
            gap_seed = int(rng.integers(100_000, 1_000_000))
            tried = evaluate(self.base, TRIED, gaps=gaps, gap_seed=gap_seed, seed=900, workers=1)
            if tried.trials - tried.successes >= FAILING:
                write_json(path, {"gaps": gaps, "gap_seed": gap_seed})
        drawn = read_json(path)
        return TargetCell(drawn["gaps"], drawn["gap_seed"])

    def _learned(self, arm: str, cell: TargetCell, run: Path) -> Path:
        """Return the adapter of an arm, trained now or before."""
        from gaploop.core.run_record import RUN
        from gaploop.datasets.cache.folder import CacheOptions
        from gaploop.finetune.adapt import ADAPTER, adapt
        from gaploop.finetune.config import FinetuneConfig, StartPolicy
        from gaploop.finetune.tuning.presets import Randomise

        if (run / RUN).exists():
            return run / ADAPTER
        nominal = self._nominal()
        wanted = FinetuneConfig(
            StartPolicy(self.base),
            cache=CacheOptions(size=SIZE),
            steps=STEPS,
            seed=self.seed,
            output_dir=run,
            resume=run.exists(),
        )
        if arm in KINDS:
            mixture = self.shared / "nominal.yaml"
            mixture.write_text(f"sources: {{nominal: [{nominal.name}]}}\n")
            wanted = replace(wanted, mixture=mixture, randomise=Randomise(1.0, kinds=KINDS[arm]))
        else:
            here = arm in AT_STATION
            found = [_recorded(self.folder, "takes_here", cell, TAKES)] if here else []
            found += [self._simulated()] if arm != "takes" else []
            if not (real := tuple(root for root in found if root is not None)):
                return Path(self.base)  # even the script solves no scene there
            wanted = replace(wanted, real=real, sim=(nominal,))
        adapt(wanted)
        return run / ADAPTER

    def _nominal(self) -> Path:
        from gaploop.finetune.demonstrations import TargetCell

        root = _recorded(self.shared, "nominal_takes", TargetCell({}, 0), NOMINAL_TAKES)
        assert root is not None
        return root

    def _simulated(self) -> Path | None:
        from benchmarks.stages import NOTHING
        from gaploop.finetune.demonstrations import TargetCell
        from gaploop.sim.randomise import preset

        cell = TargetCell({}, 0, parameters=NOTHING, randomise=preset("all"))
        return _recorded(self.shared, "randomised_takes", cell, SIMULATED)


def _recorded(folder: Path, name: str, cell: TargetCell, takes: int) -> Path | None:
    """Return a dataset of scripted takes, recorded now or before; None where all of them failed."""
    from benchmarks.stages import collected, silent
    from gaploop.collect.campaign import Quota

    root = folder / name
    if not root.exists() and not collected(folder, name, cell, [Quota(takes)], name, silent):
        return None
    return root


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    rows, figures = result["rows"], result["figures"]
    lines = [
        f"Sim-to-sim, {len(rows)} rows; means over stations with 95 % intervals.", "",
        "| gap | stations | before | " + " | ".join(ARMS[1:]) + " |", "|---" * 8 + "|",
    ]  # fmt: skip
    for dimension in DIMENSIONS:
        mine = {a: f for a in ARMS if (f := figures.get(f"{dimension.value}.{a}"))}
        if mine:
            first = next(iter(mine.values()))
            cells = [percent(mine[a]["after"]) if a in mine else "" for a in ARMS[1:]]
            lines.append(
                f"| {dimension.value} | {first['stations']} | {percent(first['before'])} | "
                + " | ".join(cells)
                + " |"
            )
    lines += [
        "",
        "| gap | " + " | ".join(f"{a}, nominal" for a in ARMS[1:]) + " |",
        "|---" * 6 + "|",
    ]
    for dimension in DIMENSIONS:
        mine = {a: f for a in ARMS if (f := figures.get(f"{dimension.value}.{a}"))}
        cells = [points(mine[a]["nominal"]) if a in mine else "" for a in ARMS[1:]]
        if mine:
            lines.append(f"| {dimension.value} | " + " | ".join(cells) + " |")
    lines += ["", "| station | gap | before | " + " | ".join(ARMS[1:]) + " |", "|---" * 8 + "|"]
    for station in dict.fromkeys(r["station"] for r in rows):
        at = {r["arm"]: r for r in rows if r["station"] == station}
        first = next(iter(at.values()))
        won = [percent(rate(at[a]["after"].count("1"), len(at[a]["after"]))) if a in at else ""
               for a in ARMS[1:]]  # fmt: skip
        before = percent(rate(first["before"].count("1"), len(first["before"])))
        lines.append(
            f"| {station} | `{first['gap']}` {first['severity']:g} | {before} | "
            + " | ".join(won)
            + " |"
        )
    return "\n".join(lines)
