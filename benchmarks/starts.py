"""Where benchmarks of the loop start from: a task's base policy and takes, made once per folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.stages import DEMONSTRATION_S, SIM_SEEDS
from gaploop.collect.campaign import Quota
from gaploop.collect.rig import scripted_leader
from gaploop.collect.take import TakeResult, record_takes
from gaploop.core.take import TakeInfo
from gaploop.datasets.lerobot_publish import publish
from gaploop.finetune.config import FinetuneConfig, StartPolicy, TrainingCell
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.pretrain import POLICY, pretrain
from gaploop.sim.catalogue import SO101

SIM_TAKES: Final = 40
"""Nominal takes that are mixed in."""
PACKAGED_TASK: Final = "pick_place"
"""Task of the packaged base."""
BASE_TAKES: Final = 400
"""Scripted takes behind the base of a task that has none packaged, as behind the packaged one."""


def record_demonstrations(
    target: TargetCell, folder: Path, takes: int, seed: int,
    on_take: Callable[[TakeResult, bool], None] = lambda _result, _counts: None,
) -> Path:  # fmt: skip
    """Record scripted takes on a cell and publish them; a folder that has them is left alone.

    Args:
        target: the cell.
        folder: where journal and dataset go.
        takes: how many.
        seed: the first scene.
        on_take: as of `record_takes`.

    Returns:
        the dataset's folder.
    """
    record_takes(
        folder / "takes_journal",
        TakeInfo("", target.instruction),
        [Quota(takes)],
        target.rig,
        scripted_leader,
        on_take=on_take,
        max_s=DEMONSTRATION_S,
        seed=seed,
        resume=True,
    )
    publish(folder / "takes_journal", folder / "takes", "local/takes")
    return folder / "takes"


@dataclass(frozen=True)
class LoopStart:
    """What adapting starts from: the base policy of a task, and nominal takes to mix in."""

    base: str
    sim: Path


def start_for(
    task: str, folder: Path, sim_takes: int = SIM_TAKES, robot: str = SO101.name
) -> LoopStart:
    """Return where a task starts from; what isn't packaged or in `folder` yet is made.

    Pretraining the base of another task than `pick_place`, or of another arm than the SO-101,
    takes a quarter of an hour.
    """
    ships = robot == SO101.name
    name = task if ships else f"{task}_{robot}"
    run, packaged = folder / f"base_{name}", ships and task == PACKAGED_TASK
    if not packaged and not (run / "run.json").exists():
        pretrain(
            FinetuneConfig(
                StartPolicy(type="act"), sim_takes=BASE_TAKES, env=TrainingCell(task, robot),
                output_dir=run, resume=run.exists(),
            )
        )  # fmt: skip
    base = "base" if packaged else str(run / POLICY)
    nominal, place = TargetCell({}, 0, task, robot), folder / f"sim_{name}_{sim_takes}"
    sim = record_demonstrations(nominal, place, sim_takes, SIM_SEEDS)
    return LoopStart(base, sim)
