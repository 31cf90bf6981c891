"""Trainings on identical data, and their outcomes on the same scenes, kept to be resampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.scripts import options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from benchmarks.starts import LoopStart

GAPS: Final = {"spatial_geometry.camera_pose": 1.0}
GAP_SEED: Final = 4
TAKES: Final = 5
"""Demonstrations on the target cell that every training uses. So few, and a camera moved so far,
that about two rollouts of three succeed, as the gate's design assumes: with 20 takes of an easier
cell twelve retrains all did 99 or 100 of 100, and at the ceiling no spread can be seen."""
STEPS: Final = 400
TAKE_SEEDS: Final = 500_000
"""Scenes of the demonstrations: none is evaluated on."""
ABOUT: Final = "retrains.json"
CHUNK: Final = 50
"""Rollouts after which outcomes are kept."""


@dataclass(frozen=True)
class _Retrain:
    """One training on takes of the target cell and nominal ones, and scenes to roll it out on.

    The nominal takes are handed over, too: those that a training records are drawn by its seed.
    """

    folder: Path
    takes: Path
    start: LoopStart
    seed: int
    scenes: range = range(0)


def make_retrains(folder: Path, retrains: int, rollouts: int, workers: int) -> None:
    """Train on the same data with other seeds and roll each out; what is there is kept.

    All are trained first and then rolled out side by side, so that a run that was stopped has
    tried them on the same scenes.

    Args:
        folder: where data, runs and outcomes are kept; a stopped run goes on.
        retrains: how many trainings.
        rollouts: of each, on the same scenes; kept every `CHUNK` of them.
        workers: processes; each trains, or rolls out, one at a time.
    """
    from benchmarks.starts import start_for
    from gaploop.finetune.workers import run_jobs

    _require_same(folder)
    takes, start = _demonstrations(folder), start_for("pick_place", folder)
    jobs = [_Retrain(folder, takes, start, seed) for seed in range(retrains)]
    with options.progress("Training", total=retrains) as advance:
        for _ in run_jobs(_train, jobs, workers):
            advance()
    kept = _kept(folder)
    with options.progress("Rolling out", total=retrains * rollouts) as advance:
        wanted = [replace(job, scenes=left) for first in range(0, rollouts, CHUNK) for job in jobs
                  if (left := _left(range(first, min(first + CHUNK, rollouts)),
                                    kept.get(job.seed, {})))]  # fmt: skip
        advance(retrains * rollouts - sum(len(job.scenes) for job in wanted))
        for done in run_jobs(_roll_out, wanted, workers):
            advance(done)


def _require_same(folder: Path) -> None:
    """Note what is trained, and refuse a folder with outcomes of something else."""
    path = folder / ABOUT
    about = {"gaps": GAPS, "gap_seed": GAP_SEED, "takes": TAKES, "steps": STEPS}
    held = read_json(path) if path.exists() else None if _kept(folder) else about
    if held != about:
        raise UnusableInputError(
            f"{folder} holds outcomes of other trainings than today's ({ABOUT}: {held}, now "
            f"{about}). Name another --output_dir."
        )
    write_json(path, about)


def _left(scenes: range, kept: Mapping[int, bool]) -> range:
    """Return the scenes that weren't tried yet; they are tried in order."""
    return range(next((s for s in scenes if s not in kept), scenes.stop), scenes.stop)


def stored_outcomes(folder: Path) -> npt.NDArray[np.bool_] | None:
    """Return success of the retrains kept in `folder`, shape (retrains, scenes); None if few.

    Scenes that some retrain wasn't tried on are left out.
    """
    import numpy as np

    kept = _kept(folder)
    if len(kept) < 2:
        return None
    scenes = sorted(set.intersection(*(set(outcomes) for outcomes in kept.values())))
    return np.array([[kept[seed][scene] for scene in scenes] for seed in sorted(kept)], dtype=bool)


def _kept(folder: Path) -> dict[int, dict[int, bool]]:
    """Return success by retrain and scene."""
    import pyarrow.parquet as pq

    found: dict[int, dict[int, bool]] = {}
    for path in sorted(folder.glob("outcomes_*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found.setdefault(row["retrain"], {})[row["scene"]] = row["success"]
    return found


def _demonstrations(folder: Path) -> Path:
    """Record and publish the data that all trainings share."""
    from benchmarks.starts import record_demonstrations
    from gaploop.finetune.demonstrations import TargetCell

    with options.progress("Recording takes", total=TAKES) as advance:
        return record_demonstrations(
            TargetCell(GAPS, GAP_SEED), folder, TAKES, TAKE_SEEDS,
            lambda _result, counts: advance(int(counts)),
        )  # fmt: skip


def _train(job: _Retrain) -> None:
    from gaploop.finetune.adapt import adapt
    from gaploop.finetune.config import FinetuneConfig, StartPolicy

    run = _run_of(job)
    if (run / "run.json").exists():
        return
    adapt(
        FinetuneConfig(
            StartPolicy(job.start.base), real=(job.takes,), sim=(job.start.sim,), steps=STEPS,
            seed=job.seed, output_dir=run, resume=run.exists(),
        )
    )  # fmt: skip


def _run_of(job: _Retrain) -> Path:
    return job.folder / f"run_{job.seed:03d}"


def _roll_out(job: _Retrain) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gaploop.finetune.adapt import ADAPTER
    from gaploop.finetune.evaluate import evaluate

    result = evaluate(
        _run_of(job) / ADAPTER,
        len(job.scenes),
        gaps=GAPS,
        gap_seed=GAP_SEED,
        seed=job.scenes.start,
        workers=1,
    )
    rows = [
        {"retrain": job.seed, "scene": r.seed, "success": r.success,
         "duration_s": r.duration_s, "reason": r.reason, "policy": result.policy}
        for r in result.outcomes
    ]  # fmt: skip
    path = job.folder / f"outcomes_{job.seed:03d}_{job.scenes.start:05d}.parquet"
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(rows), part)
    part.replace(path)
    return len(rows)
