"""`benchmarks base_vision`: makes the base that sees again, or one for another task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TAKES: Final = 600
"""Scripted takes to record, unless given."""
ROOMS, SMOOTH = "rooms", "smooth"
"""What pictures are trained before: photos and made-up surfaces, or, as the control, colours."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record, train, and say where the policy is; what the folder holds isn't made again."""
    from benchmarks.base_vision.lerobot_training import pretrain_vision, spec_of
    from gaploop.finetune.config import FinetuneConfig, StartPolicy, TrainingCell

    if len(config.tasks) > 1:
        raise UnusableInputError("--tasks: a base has one task, such as '[pick_lift]'.")
    begun = "" if config.policy.path == "base" else config.policy.path
    cell = TrainingCell(
        config.tasks[0] if config.tasks else TrainingCell.task, config.robot or TrainingCell.robot
    )
    if unknown := set(config.arms) - {ROOMS, SMOOTH}:
        raise unknown_choice("arm", sorted(unknown)[0], (ROOMS, SMOOTH), "--arms")
    takes = config.n or TAKES
    training = FinetuneConfig(
        StartPolicy(begun), sim_takes=takes, env=cell, steps=6 if config.quick else 0,
        seed=config.seed, output_dir=folder, resume=True,
    )  # fmt: skip
    with (
        options.progress("Recording", total=takes + takes // 2) as recorded,
        options.progress("Training", total=spec_of(training)[0].steps) as trained,
    ):
        made = pretrain_vision(
            training, lambda *_: trained(), recorded, workers=config.workers, photos=config.data,
            smooth=SMOOTH in config.arms,
        )  # fmt: skip
    return {"policy": made.folder, "id": made.id, "steps": made.result.steps}


def table(result: Mapping[str, Any]) -> str:
    """Return it as text."""
    return (
        f"{result['policy']} ({result['id']}): {result['steps']} steps. Try it: gaploop evaluate "
        f"--policy.path={result['policy']} --n=100"
    )
