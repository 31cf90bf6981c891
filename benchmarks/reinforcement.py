"""`benchmarks reinforcement`: GRPO in a station's twin beside demonstrations; sim-to-sim.

A station is the embedded cell with one of three gaps at which 20 demonstrations leave the base
below 70 % on average. Its twin is perfect: the true parameters. What measuring it costs is
`transfer`'s subject, not this one's. Each arm starts from the base and is tried at the station on
the same scenes:

- takes: 20 demonstrations recorded at the station, and nominal ones.
- resimulate: 20 scripted takes in the twin, and nominal ones.
- imitation: likewise, but as many takes as `reinforce` has episodes in all.
- reinforce: GRPO in the twin, from what `resimulate` left.
- longer: what `reinforce` left, and as many rounds again.
- around: as `reinforce`, but in the twin randomised around it, each parameter within a fifth of
  its change.

Only `takes` costs an operator's time. Rows are kept as they come, so the same command goes on;
--budget_s ends it between two rows, and --data=FILE.parquet makes the figures from stored rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.proof.rows import beside_base, kept_rows, mean_of, won
from gaploop.core.statistics import percent, points, rate
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.starts import LoopStart
    from gaploop.core.twin import Twin
    from gaploop.finetune.demonstrations import TargetCell

ROWS: Final = "reinforcement.parquet"
GAPS: Final = {
    "object_property.size": 0.8,
    "object_property.tall": 0.97,
    "actuator_response.backlash": 1.0,
}
"""Mechanism to severity."""
ARMS: Final = ("nothing", "takes", "resimulate", "imitation", "reinforce", "longer", "around")
ROLLOUTS, TAKES = 20, 20
ROUNDS, SCENES, GROUP = 10, 10, 8
FIRST_SCENE: Final = 50_000
ATTEMPTS: Final = ROUNDS * SCENES * GROUP
EPISODES: Final = dict.fromkeys(ARMS, TAKES + ATTEMPTS) | {
    "nothing": 0, "takes": TAKES, "resimulate": TAKES, "longer": TAKES + 2 * ATTEMPTS,
}  # fmt: skip
AROUND: Final = 0.2
"""Half of the interval of each parameter, as a share of how far it is from nominal."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run what has no row yet, or read rows from --data; return the figures."""
    rows = kept_rows(
        config.data or folder / ROWS, "station",
        None if config.data else lambda done: _run(config, folder, done),
    )  # fmt: skip
    figures = {}
    for gap in dict.fromkeys(r["gap"] for r in rows):
        by_takes = {r["seed"]: r for r in rows if (r["gap"], r["arm"]) == (gap, "takes")}
        for arm in ARMS:
            mine = [r for r in rows if (r["gap"], r["arm"]) == (gap, arm)]
            if mine:
                over = [
                    won(r["after"]) - won(by_takes[r["seed"]]["after"])
                    for r in mine
                    if r["seed"] in by_takes
                ]
                figures[f"{gap}.{arm}"] = {**beside_base(mine), "over_takes": mean_of(over)}
    return {"evidence": "sim-to-sim", "rows": rows, "figures": figures}


def _run(config: BenchConfig, folder: Path, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield rows seed by seed until the time is used up."""
    from benchmarks.starts import start_for

    until_s = time.monotonic() + (config.budget_s or np.inf)
    start = start_for("pick_place", folder)
    work = [
        (seed, gap, arm)
        for seed in range(config.seed, config.seed + (config.seeds or 5))
        for gap in config.gaps or GAPS
        for arm in config.arms or ARMS
    ]
    with options.progress("Rows", len(work)) as advance:
        for seed, gap, arm in work:
            station = _Station(start, gap, seed, config.n or ROLLOUTS, folder)
            if (station.folder.name, arm) not in done and time.monotonic() < until_s:
                began_s = time.process_time()
                yield {**station.row(arm), "processor_s": time.process_time() - began_s}
            advance()


@dataclass(frozen=True)
class _Station:
    """A station, its folder, and what is tried there."""

    start: LoopStart
    gap: str
    seed: int
    rollouts: int
    shared: Path

    @property
    def folder(self) -> Path:
        return self.shared / f"{self.gap}-{self.seed}"

    @property
    def cell(self) -> TargetCell:
        from gaploop.finetune.demonstrations import TargetCell

        return TargetCell({self.gap: GAPS[self.gap]}, 7000 + self.seed)

    def row(self, arm: str) -> dict[str, Any]:
        """Carry an arm out and try what came of it."""
        from benchmarks.proof.site import tried

        self.folder.mkdir(parents=True, exist_ok=True)
        base, home, many = self.start.base, self.folder, self.rollouts
        policy, kept = base, self.shared / "nominal.json"
        nominal = tried(kept, base, None, many, FIRST_SCENE)
        if arm != "nothing":
            policy = str(self._learned(arm, home / f"run_{arm}"))
            kept = home / f"nominal_{arm}.json"
        return {
            "station": home.name,
            "seed": self.seed,
            "gap": self.gap,
            "severity": GAPS[self.gap],
            "gap_seed": self.cell.gap_seed,
            "arm": arm,
            "episodes": EPISODES[arm],
            "before": tried(home / "before.json", base, self.cell, many, FIRST_SCENE),
            "after": tried(home / f"after_{arm}.json", policy, self.cell, many, FIRST_SCENE),
            "nominal_before": nominal,
            "nominal_after": tried(kept, policy, None, many, FIRST_SCENE),
        }

    def _learned(self, arm: str, run: Path) -> Path:
        """Return the policy of an arm, trained now or before."""
        from benchmarks.stages import collected, learn_from, silent
        from gaploop.collect.campaign import Quota
        from gaploop.core.run_record import RUN
        from gaploop.core.twin import around_twin
        from gaploop.finetune.adapt import ADAPTER, MERGED
        from gaploop.finetune.config import FinetuneConfig, StartPolicy
        from gaploop.finetune.demonstrations import TargetCell
        from gaploop.finetune.evaluate import CellSpec
        from gaploop.finetune.reinforce import reinforce
        from gaploop.finetune.tuning.presets import TRACKED_SPECS

        if (run / RUN).exists():
            return run / ADAPTER
        twin = self._twin()
        if arm in ("reinforce", "longer", "around"):
            self._learned("resimulate", begun := self.folder / "run_resimulate")
            if arm == "longer" and not run.exists():
                self._learned("reinforce", first := self.folder / "run_reinforce")
                shutil.copytree(first, run, ignore=shutil.ignore_patterns(RUN))
            reinforce(
                FinetuneConfig(
                    StartPolicy(str(begun / MERGED)), "reinforce",
                    steps=2 * ROUNDS if arm == "longer" else ROUNDS, batch_size=SCENES * GROUP,
                    num_workers=1, seed=self.seed, output_dir=run, resume=run.exists(),
                ),
                CellSpec(
                    parameters=twin.values(),
                    randomise=around_twin(twin) if arm == "around" else None,
                ),
            )  # fmt: skip
            return run / ADAPTER
        cell = self.cell if arm == "takes" else TargetCell({}, 0, parameters=twin.values())
        many = EPISODES[arm]
        root = self.folder / f"takes_{arm}"
        if not root.exists():
            collected(self.folder, root.name, cell, [Quota(many)], root.name, silent)
        steps = TRACKED_SPECS["lora"].steps
        learn_from([root], run, self.start.base, [self.start.sim], steps, self.seed)
        return run / ADAPTER

    def _twin(self) -> Twin:
        """Return the true parameters, with intervals."""
        from gaploop.core.twin import Twin, TwinParameter
        from gaploop.sim.gaps import draw_gaps, mechanism_named

        drawn = draw_gaps(self.cell.gaps, self.cell.gap_seed)[0]
        known = []
        for p in mechanism_named(self.gap).parameters:
            true = drawn.parameters.get(p.name, p.nominal)
            wide = AROUND * abs(true - p.nominal)
            known.append(
                TwinParameter(
                    f"{self.gap}.{p.name}", p.unit, p.nominal, true, (true - wide, true + wide),
                    True, "truth",
                )
            )  # fmt: skip
        return Twin(self.folder.name, "so101", tuple(known))


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    rows, figures = result["rows"], result["figures"]
    lines = [
        f"Sim-to-sim, {len(rows)} rows; means over stations with 95 % intervals.", "",
        "| gap | arm | stations | before | after | over 20 takes | nominal |", "|---" * 7 + "|",
    ]  # fmt: skip
    for gap in dict.fromkeys(r["gap"] for r in rows):
        for arm in ARMS:
            if found := figures.get(f"{gap}.{arm}"):
                over = points(found["over_takes"]) if found["over_takes"] else ""
                lines.append(
                    f"| `{gap}` {GAPS[gap]:g} | {arm} | {found['stations']} | "
                    f"{percent(found['before'])} | {percent(found['after'])} | {over} | "
                    f"{points(found['nominal'])} |"
                )
    lines += ["", "| station | " + " | ".join(ARMS) + " |", "|---" * (1 + len(ARMS)) + "|"]
    for station in dict.fromkeys(r["station"] for r in rows):
        at = {r["arm"]: r["after"] for r in rows if r["station"] == station}
        won = [percent(rate(at[a].count("1"), len(at[a]))) if a in at else "" for a in ARMS]
        lines.append(f"| {station} | " + " | ".join(won) + " |")
    return "\n".join(lines)
