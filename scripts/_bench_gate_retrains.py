"""Trainings on identical data, and their outcomes on the same scenes, kept to be resampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GAPS: Final = {"spatial_geometry.camera_pose": 0.85}
GAP_SEED: Final = 3
TAKES: Final = 20
"""Demonstrations on the target cell that every training uses."""
SIM_TAKES: Final = 40
"""Nominal demonstrations mixed in."""
STEPS: Final = 400
TAKE_SEEDS: Final = 500_000
"""Scenes of the demonstrations: none is evaluated on."""
TASK: Final = "Put the cube on the disc"


def make_retrains(folder: Path, retrains: int, rollouts: int, workers: int) -> None:
    """Train on the same data with other seeds and roll each out; what is there is kept.

    Args:
        folder: where data, runs and outcomes are kept; a stopped run goes on.
        retrains: how many trainings.
        rollouts: of each, on the same scenes.
        workers: processes that roll out.
    """
    takes = _demonstrations(folder)
    for seed in range(retrains):
        path = _outcomes(folder, seed)
        if not path.exists():
            _roll_out(_trained(folder, takes, seed), path, seed, rollouts, workers)


def stored_outcomes(folder: Path) -> npt.NDArray[np.bool_] | None:
    """Return success of the retrains kept in `folder`, shape (retrains, scenes); None if few."""
    import numpy as np
    import pyarrow.parquet as pq

    paths = sorted(folder.glob("outcomes_*.parquet"))
    if len(paths) < 2:
        return None
    columns = [pq.read_table(path).column("success").to_numpy() for path in paths]
    scenes = min(len(column) for column in columns)
    return np.array([column[:scenes] for column in columns], dtype=bool)


def _outcomes(folder: Path, seed: int) -> Path:
    return folder / f"outcomes_{seed:03d}.parquet"


def _demonstrations(folder: Path) -> Path:
    """Record and publish the data that all trainings share."""
    from gaploop.collect.rig import embedded_rig, scripted_leader
    from gaploop.collect.session import Quota, SessionSpec, record_takes
    from gaploop.datasets.lerobot_publish import publish

    root, journal = folder / "takes", folder / "takes_journal"
    if (root / "meta" / "info.json").exists():
        return root
    with options.progress("Recording takes", total=TAKES) as advance:
        spec = SessionSpec(journal, TASK, max_s=10.0, seed=TAKE_SEEDS, resume=True)
        record_takes(
            spec,
            [Quota(TAKES)],
            lambda c: embedded_rig(gaps=GAPS, gap_seed=GAP_SEED, conditions=c),
            scripted_leader,
            on_take=lambda _result, counts: advance(int(counts)),
        )
    publish(journal, root, "local/retrains")
    return root


def _trained(folder: Path, takes: Path, seed: int) -> Path:
    from gaploop.finetune.adapt import ADAPTER, AdaptOptions, adapt
    from gaploop.finetune.training import PRESETS

    run = folder / f"run_{seed:03d}"
    if not (run / "run.json").exists():
        spec = replace(PRESETS["lora"], steps=STEPS, seed=seed)
        with options.progress(f"Training {seed}", total=STEPS) as advance:
            adapt(
                AdaptOptions(
                    "base", (takes,), run, sim_takes=SIM_TAKES, spec=spec, resume=run.exists()
                ),
                lambda _step, _steps, _loss: advance(),
            )
    return run / ADAPTER


def _roll_out(policy: Path, path: Path, seed: int, rollouts: int, workers: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gaploop.finetune.evaluate import evaluate

    with options.progress(f"Rolling out {seed}", total=rollouts) as advance:
        result = evaluate(
            policy, rollouts, gaps=GAPS, gap_seed=GAP_SEED, workers=workers, progress=advance
        )
    rows = [
        {"retrain": seed, "scene": r.seed, "success": r.success, "duration_s": r.duration_s,
         "reason": r.reason, "policy": result.policy}
        for r in result.outcomes
    ]  # fmt: skip
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist(rows), part)
    part.replace(path)
