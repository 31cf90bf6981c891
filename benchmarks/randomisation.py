"""`benchmarks randomisation`: what it brings to randomise a simulation, and how strongly.

A policy for each training condition, from scratch in cells drawn by it, tried at hidden stations
and in a fixed mild cell; sim-to-sim, after docs/figures/ladder_protocol.md. `ladder` tells of the
same run what identification and demonstrations add. Both do all of the work in one order; what
--output_dir holds isn't done again, --budget_s begins no training or evaluation later than this,
and --data=FILE.parquet makes the figures from stored rows.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.proof.rows import kept_rows, mean_of, won
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.statistics import Estimate, percent, rate
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.finetune.demonstrations import TargetCell

ROWS: Final = "randomisation.parquet"
PICTURE: Final = "randomisation.png"
STRENGTHS: Final = {"mild": 0.25, "strong": 0.5, "full": 1.0}
CONDITIONS: Final = {
    "none": ("", 0.0), "both_mild": ("both", 0.25), "both_strong": ("both", 0.5),
    "dynamics_strong": ("dynamics", 0.5), "visual_strong": ("visual", 0.5),
    "dynamics_mild": ("dynamics", 0.25), "visual_mild": ("visual", 0.25),
    "both_full": ("both", 1.0),
}  # fmt: skip
"""Kind and strength, in the order of work. `none` is the base that ships."""
RUNGS: Final = ("randomised_identified", "plus_100", "real_100")
EXERCISES: Final = ("identified", "plus_1000", "real_1000")
MILD_CELL: Final = {
    "contact_dynamics.slippery": {"friction_factor": 0.8},
    "object_property.mass": {"mass_factor": 1.1},
    "sensor_noise.torn_frames": {"pixel_noise": 0.03 * 255.0},
}
"""The lesson's "real" simulation; its camera noise is of pictures from 0 to 1."""
TAKES, STEPS = 300, 3_000
MIXED: Final = 40
"""Nominal episodes beside those of a station."""
LARGER: Final = 3, 2
"""How many times the takes and the steps of a condition that wasn't learned."""
LEARNED: Final = 0.9
ROLLOUTS, STATIONS = 30, 5
FIRST_SCENE: Final = 50_000
FIXABLE: Final = (
    "spatial_geometry", "object_property", "contact_dynamics", "actuator_response", "sensor_noise",
    "visual_domain",
)  # fmt: skip
AT_ONCE: Final = 3
"""Dimensions in which a station differs."""
SEVERITIES: Final = (0.2, 0.6)


@dataclass(frozen=True)
class Study:
    """A run: its folder and sizes, as plain data that can go to another process.

    Attributes:
        until_s: nothing begins later, by `time.time`.
        quick: whether it runs, no figures.
    """

    folder: Path
    rollouts: int
    until_s: float
    quick: bool

    @property
    def takes(self) -> int:
        """Scripted episodes of a condition."""
        return 12 if self.quick else TAKES

    @property
    def steps(self) -> int:
        """Optimiser steps of a policy from scratch."""
        return 60 if self.quick else STEPS


class _TimeIsUpError(Exception):
    """No training or evaluation begins from now on."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run what isn't there yet, or read rows from --data; return the figures."""
    rows = rows_of(config, folder, ROWS, CONDITIONS)
    found = {}
    for arm in (a for a in CONDITIONS if any(r["arm"] == a for r in rows)):
        mine = [r for r in rows if r["arm"] == arm]
        first = mine[0]
        found[arm] = {
            "stations": mean_of([won(r["after"]) for r in mine]),
            **{p: _rate(first[f"{p}_after"]) for p in ("own", "nominal", "mild", "sim")},
            **{n: first[n] for n in ("attempted", "episodes", "processor_s")},
        }
    write_atomically(folder / PICTURE, _picture(found))
    return {"evidence": "sim-to-sim", "rows": rows, "figures": found,
            "picture": str(folder / PICTURE)}  # fmt: skip


def _rate(bits: str) -> Estimate | None:
    return rate(bits.count("1"), len(bits)) if bits else None


def rows_of(
    config: BenchConfig, folder: Path, name: str, arms: Sequence[str] | Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return rows of the arms, one for each station: from --data, or after all work is done."""
    if config.data is None:
        budget_s = config.budget_s or np.inf
        study = Study(folder, config.n or ROLLOUTS, time.time() + budget_s, config.quick)
        _work(study, config.seeds or (1 if config.quick else STATIONS), config.workers)
        (folder / name).unlink(missing_ok=True)
        found = [row for arm in arms for row in _rows(study, arm)]
        if found:
            buffer = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(found), buffer, compression="zstd")
            write_atomically(folder / name, buffer.getvalue())
    return kept_rows(config.data or folder / name, "station", None)


def _work(study: Study, stations: int, workers: int) -> None:
    """Do all that isn't there and that time allows, in the protocol's order."""
    from gaploop.finetune.workers import run_jobs

    for _ in run_jobs(_draw, [(study, seed) for seed in range(1, stations + 1)], workers):
        pass
    seeds = [int(path.stem.split("_")[1]) for path in study.folder.glob("station_*.json")]
    conditions = [(study, arm, 0) for arm in CONDITIONS]
    each = [(study, "ladder", seed) for seed in sorted(seeds)]
    order = [*conditions[:2], *each, *conditions[2:]]
    later = [
        *((study, "identified", seed) for seed in sorted(seeds)),
        *((study, arm, -1) for arm in CONDITIONS if arm != "none"),
        *((study, "thousand", seed) for seed in sorted(seeds)),
    ]
    for jobs in (order, later):
        with options.progress("Policies", len(jobs)) as advance:
            for _ in run_jobs(_job, jobs, workers):
                advance()


def _draw(job: tuple[Study, int]) -> None:
    """Draw a station at which a person succeeds and the shipped base mostly doesn't."""
    from gaploop.core.errors import UnusableInputError
    from gaploop.finetune.demonstrations import TargetCell, scripted_source
    from gaploop.finetune.evaluate import evaluate
    from gaploop.sim.gaps import mechanisms_of

    study, seed = job
    path, rng = study.folder / f"station_{seed}.json", np.random.default_rng([seed, 2026, 44])
    while not path.exists() and time.time() < study.until_s:
        keys = [
            str(rng.choice([m.key for m in mechanisms_of(d)]))
            for d in rng.choice(FIXABLE, AT_ONCE, replace=False)
        ]
        gaps = {key: round(float(rng.uniform(*SEVERITIES)), 2) for key in keys}
        cell = TargetCell(gaps, int(rng.integers(100_000, 1_000_000)))
        try:
            shown = len(scripted_source(8, cell, seed=900, workers=1).episodes)
        except UnusableInputError:  # none
            continue
        if shown < 7:
            continue
        base = evaluate("base", 8, gaps=gaps, gap_seed=cell.gap_seed, seed=900, workers=1)
        if base.trials - base.successes >= 3:
            write_json(path, {"gaps": gaps, "gap_seed": cell.gap_seed})


def _job(job: tuple[Study, str, int]) -> None:
    """Train and try the policies of a condition, or those of a station."""
    from gaploop.core.errors import UnusableInputError

    study, what, number = job
    try:
        if what == "ladder":
            for rung in RUNGS:
                _try_at(study, f"{rung}-{number}", number)
        elif what == "thousand":
            for rung in EXERCISES[1:]:
                _try_at(study, f"{rung}-{number}", number)
        elif what == "identified":
            _try_at(study, f"{what}-{number}", number)
        elif number == 0 or not _is_learned(study, what):
            _try_everywhere(study, what if number == 0 else f"{what}_larger")
    except _TimeIsUpError:
        pass
    except UnusableInputError as error:  # the others go on
        print(f"{what} {number}: {error}", flush=True)


def _is_learned(study: Study, arm: str) -> bool:
    path = study.folder / "tried" / arm / "own.json"
    if not path.exists():
        return True  # not begun: nothing to enlarge
    found = read_json(path)
    return bool(found["successes"] >= LEARNED * found["trials"])


def _try_everywhere(study: Study, arm: str) -> None:
    from gaploop.finetune.demonstrations import TargetCell

    _tried(study, arm, "own", drawn(arm.removesuffix("_larger")))
    _tried(study, arm, "nominal", TargetCell())
    for path in sorted(study.folder.glob("station_*.json")):
        _tried(study, arm, path.stem, station(path))
    _tried(study, arm, "mild", TargetCell(parameters=MILD_CELL))
    _tried(study, arm, "sim", drawn("both_strong"))


def _try_at(study: Study, arm: str, seed: int) -> None:
    from benchmarks.stages import TWIN
    from gaploop.finetune.demonstrations import TargetCell

    home = study.folder / f"station_{seed}"
    _tried(study, arm, f"station_{seed}", station(home.with_suffix(".json")))
    _tried(study, arm, "nominal", TargetCell())
    if arm.startswith(("randomised", "identified")):
        name = "identified" if arm.startswith("identified") else "both_mild"
        _tried(study, arm, "own", drawn(name, home / TWIN))


def _tried(study: Study, arm: str, place: str, cell: TargetCell) -> None:
    """Try a policy in a cell, unless that was done; it is trained where it isn't yet."""
    from benchmarks.proof.site import tried

    path = study.folder / "tried" / arm / f"{place}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        policy = _policy(study, arm)
        _check_time(study)
        tried(path, policy, cell, study.rollouts, FIRST_SCENE)


def _check_time(study: Study) -> None:
    if time.time() > study.until_s:
        raise _TimeIsUpError


def randomise(arm: str) -> str:
    """Return what a condition is drawn from, as --env.randomise names it; "" for nominal cells."""
    kind, strength = CONDITIONS[arm]
    return f"{'dynamics+visual' if kind == 'both' else kind}:{strength:g}" if kind else ""


def drawn(arm: str, twin: Path | None = None) -> TargetCell:
    """Return the cell that a condition is trained in: the nominal one, or the twin, randomised."""
    from gaploop.finetune.demonstrations import TargetCell
    from gaploop.sim.randomise import known_and_drawn

    known, ranges = known_and_drawn(twin, "twin" if arm == "identified" else randomise(arm))
    return TargetCell(parameters=known, randomise=ranges)


def station(path: Path) -> TargetCell:
    """Return a station that was drawn."""
    from gaploop.finetune.demonstrations import TargetCell

    found = read_json(path)
    return TargetCell(found["gaps"], found["gap_seed"])


def _policy(study: Study, arm: str) -> str | Path:
    """Return an arm's policy, trained now or before."""
    from benchmarks.stages import TWIN, measured_twin
    from gaploop.core.run_record import RUN
    from gaploop.finetune.adapt import MERGED, adapt
    from gaploop.finetune.config import FinetuneConfig, StartPolicy, TrainingCell
    from gaploop.finetune.pretrain import POLICY

    if arm == "none":
        return "base"
    run = study.folder / "policies" / arm
    rung, _, seed = arm.partition("-")
    adapted = rung.startswith("plus_")
    trained = run / (MERGED if adapted else POLICY)
    if (run / RUN).exists():
        return trained
    _check_time(study)
    began_s = time.process_time()
    home = study.folder / f"station_{seed}"
    if adapted:
        base, takes = _policy(study, f"{RUNGS[0]}-{seed}"), _recorded(study, int(seed), rung)
        adapt(
            FinetuneConfig(
                StartPolicy(str(base)), real=(takes,), sim_takes=MIXED, num_workers=1,
                steps=400 if rung == RUNGS[1] else 2_000, seed=int(seed), output_dir=run,
                resume=run.exists(),
            )
        )  # fmt: skip
    elif rung.startswith("real_"):
        takes = _recorded(study, int(seed), rung.replace("real", "plus"))
        _pretrain(study, run, sim=(takes,), steps=study.steps // (1 if "1000" in rung else 2))
    elif seed:
        home.mkdir(exist_ok=True)
        measured_twin(station(home.with_suffix(".json")), home)
        _check_time(study)
        ranges = "twin" if rung == "identified" else randomise("both_mild")
        _pretrain(study, run, env=TrainingCell(twin=home / TWIN, randomise=ranges))
    else:
        name, times = rung.removesuffix("_larger"), LARGER if "_larger" in rung else (1, 1)
        _pretrain(
            study, run, env=TrainingCell(randomise=randomise(name)),
            sim_takes=times[0] * study.takes, steps=times[1] * study.steps,
        )  # fmt: skip
    write_json(run / "took.json", {"processor_s": time.process_time() - began_s})
    return trained


def _pretrain(study: Study, run: Path, **asked: Any) -> None:
    from gaploop.finetune.config import FinetuneConfig, StartPolicy
    from gaploop.finetune.pretrain import pretrain

    sizes = {"steps": study.steps} | ({} if "sim" in asked else {"sim_takes": study.takes})
    pretrain(
        FinetuneConfig(
            StartPolicy(type="act"), num_workers=1, output_dir=run, resume=run.exists(),
            **{**sizes, **asked},
        )
    )  # fmt: skip


def _recorded(study: Study, seed: int, rung: str) -> Path:
    """Return scripted episodes of a station, as a dataset."""
    from benchmarks.stages import collected, silent
    from gaploop.collect.campaign import Quota
    from gaploop.core.errors import UnusableInputError

    home = study.folder / f"station_{seed}"
    home.mkdir(exist_ok=True)
    many = 5 if study.quick else int(rung.rpartition("_")[2])
    cell = station(home.with_suffix(".json"))
    if not (home / rung).exists() and not collected(home, rung, cell, [Quota(many)], rung, silent):
        raise UnusableInputError(f"{home / rung}: no episode succeeded.")
    return home / rung


def _rows(study: Study, arm: str) -> Iterator[dict[str, Any]]:
    """Yield an arm's row for each station where it was tried."""
    folder = study.folder / "tried"
    for path in sorted(study.folder.glob("station_*.json")):
        seed = path.stem.split("_")[1]
        names = [f"{arm}_larger", arm] if arm in CONDITIONS else [f"{arm}-{seed}"]
        name = next((n for n in names if (folder / n / path.name).exists()), None)
        if name is None:
            continue
        found = {p.stem: _bits(p) for p in (folder / name).glob("*.json")}
        run = study.folder / "policies" / name
        trained = run.exists()  # else it ships
        record = read_json(run / "run.json") if trained else {"config": {}, "inputs": []}
        yield {
            "station": path.stem,
            "arm": arm,
            **{k: str(v) for k, v in read_json(path).items()},
            "after": found[path.stem],
            **{f"{p}_after": found.get(p, "") for p in ("own", "nominal", "mild", "sim")},
            "attempted": record["config"].get("sim_takes", 0),
            "episodes": sum(i["takes"] for i in record["inputs"]),
            "processor_s": read_json(run / "took.json")["processor_s"] if trained else 0.0,
        }


def _bits(path: Path) -> str:
    from benchmarks.proof.site import bits
    from gaploop.finetune.evaluation import Evaluation

    return bits(Evaluation.from_json(read_json(path), str(path)))


def _picture(found: Mapping[str, Any]) -> bytes:
    """Draw success at the stations and in the mild cell against strength."""
    from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, figure_png, new_figure

    with new_figure(7.6, 3.2, ncols=2, sharey=True) as (figure, axes):
        for axis, place, title in zip(
            axes, ("stations", "mild"), ("hidden stations", "fixed mild cell"), strict=True
        ):
            for kind, colour in (("dynamics", SOFT), ("visual", PALE), ("both", ACCENT)):
                line = [(0.0, "none")] + [(s, f"{kind}_{n}") for n, s in STRENGTHS.items()]
                known = [(s, found[a][place]) for s, a in line if a in found and found[a][place]]
                values = [e.value for _, e in known]
                spans = [[e.value - e.low for _, e in known], [e.high - e.value for _, e in known]]
                axis.errorbar(
                    [s for s, _ in known], values, yerr=spans, color=colour, marker="o",
                    capsize=2, lw=1.5, label=kind,
                )  # fmt: skip
            axis.set_title(title)
            axis.set_xlabel("strength of randomisation")
            axis.set_ylim(0, 1)
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes[0].set_ylabel("success, sim-to-sim")
        axes[1].legend(frameon=False)
        return figure_png(figure)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"Sim-to-sim, {len({r['station'] for r in result['rows']})} stations; 95 % intervals.",
        "",
        "| condition | episodes (attempted) | its own cell | nominal | mild cell | simulation | "
        "stations |",
        "|---" * 7 + "|",
    ]
    for arm, of in result["figures"].items():
        rates = [of[p] for p in ("own", "nominal", "mild", "sim", "stations")]
        cells = [percent(e) if e else "" for e in rates]
        lines.append(f"| {arm} | {of['episodes']} ({of['attempted']}) | {' | '.join(cells)} |")
    return "\n".join([*lines, *by_station(result["rows"]), "", f"Picture: {result['picture']}"])


def by_station(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of every station's rates by arm."""
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    lines = ["", "| station | gaps | " + " | ".join(arms) + " |", "|---" * (len(arms) + 2) + "|"]
    for name in dict.fromkeys(r["station"] for r in rows):
        at = {r["arm"]: r for r in rows if r["station"] == name}
        gaps = next(iter(at.values()))["gaps"]
        won_ = [f"{won(at[a]['after']).mean():.0%}" if a in at else "" for a in arms]
        lines.append(f"| {name} | {gaps} | {' | '.join(won_)} |")
    return lines
