"""Trainings on identical data, and their outcomes on the same scenes, kept to be resampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GAPS: Final = {"spatial_geometry.camera_pose": 1.0}
GAP_SEED: Final = 4
TAKES: Final = 10
"""Demonstrations on the target cell that every training uses. So few, and a camera moved so far,
that about three rollouts of four succeed: with 20 takes of an easier cell twelve retrains all did
99 or 100 of 100, and at the ceiling no spread can be seen."""
SIM_TAKES: Final = 40
"""Nominal demonstrations mixed in."""
STEPS: Final = 400
TAKE_SEEDS: Final = 500_000
"""Scenes of the demonstrations: none is evaluated on."""
CHUNK: Final = 50
"""Rollouts after which outcomes are kept."""


def make_retrains(folder: Path, retrains: int, rollouts: int, workers: int) -> None:
    """Train on the same data with other seeds and roll each out; what is there is kept.

    Args:
        folder: where data, runs and outcomes are kept; a stopped run goes on.
        retrains: how many trainings.
        rollouts: of each, on the same scenes; kept every `CHUNK` of them.
        workers: processes that roll out.
    """
    takes = _demonstrations(folder)
    for seed in range(retrains):
        done = len(_kept(folder).get(seed, {}))
        if done < rollouts:
            _roll_out(folder, _trained(folder, takes, seed), seed, range(done, rollouts), workers)


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
    from gaploop.finetune.closed_loop import TargetCell, record_demonstrations

    with options.progress("Recording takes", total=TAKES) as advance:
        return record_demonstrations(
            TargetCell(GAPS, GAP_SEED), folder, TAKES, TAKE_SEEDS,
            lambda _result, counts: advance(int(counts)),
        )  # fmt: skip


def _trained(folder: Path, takes: Path, seed: int) -> Path:
    from gaploop.finetune.adapt import ADAPTER, AdaptOptions, adapt
    from gaploop.finetune.training import TRACKED_SPECS

    run = folder / f"run_{seed:03d}"
    if not (run / "run.json").exists():
        spec = replace(TRACKED_SPECS["lora"], steps=STEPS, seed=seed)
        with options.progress(f"Training {seed}", total=STEPS) as advance:
            adapt(
                AdaptOptions(
                    "base", (takes,), run, sim_takes=SIM_TAKES, spec=spec, resume=run.exists()
                ),
                lambda _step, _steps, _loss: advance(),
            )
    return run / ADAPTER


def _roll_out(folder: Path, policy: Path, seed: int, scenes: range, workers: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gaploop.finetune.evaluate import evaluate

    with options.progress(f"Rolling out {seed}", total=len(scenes)) as advance:
        for first in scenes[::CHUNK]:
            result = evaluate(
                policy,
                min(CHUNK, scenes.stop - first),
                gaps=GAPS,
                gap_seed=GAP_SEED,
                seed=first,
                workers=workers,
                progress=advance,
            )
            rows = [
                {"retrain": seed, "scene": r.seed, "success": r.success,
                 "duration_s": r.duration_s, "reason": r.reason, "policy": result.policy}
                for r in result.outcomes
            ]  # fmt: skip
            path = folder / f"outcomes_{seed:03d}_{first:05d}.parquet"
            part = path.with_suffix(".part")
            pq.write_table(pa.Table.from_pylist(rows), part)
            part.replace(path)
