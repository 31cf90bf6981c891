"""The three policies whose failures `benchmarks detection` detects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.lerobot_diffusion import DiffusionPolicy
    from gaploop.finetune.batches import TrainingSource

TAKES: Final = 150
"""Scripted demonstrations that the diffusion policy learns from: few, so that it errs by itself."""
STEPS: Final = (4_000, 2_000)
"""Of each round; each starts anew at the full learning rate (Loshchilov & Hutter 2017)."""
BATCH: Final = 64
TASK: Final = "pick_place"


def diffusion_policy(
    folder: Path, seed: int = 0, progress: Callable[[str, int, int], None] | None = None
) -> DiffusionPolicy:
    """Return the diffusion policy of `folder`, trained there first if need be.

    Args:
        folder: where demonstrations, checkpoint and weights are kept; a stopped run goes on.
        seed: draws scenes and weights.
        progress: called with what is being done, how much of it is done and how much there is.
    """
    from benchmarks import lerobot_diffusion as diffusion
    from gaploop.datasets.mixing.mixture import MixtureStage
    from gaploop.finetune.batches import MixedBatches
    from gaploop.finetune.training import train
    from gaploop.finetune.tuning.presets import TrainSpec

    told = progress or (lambda _what, _done, _of: None)
    path = folder / "diffusion.pt"
    if path.exists():
        return diffusion.load(path)
    folder.mkdir(parents=True, exist_ok=True)
    shown, size = _demonstrations(seed, told), diffusion.DiffusionSize()
    batches = MixedBatches(
        [shown],
        [MixtureStage((1.0,))],
        chunk=size.horizon,
        batch_size=BATCH,
        seed=seed,
        randomise_domain=True,
    )
    net = diffusion.untrained(batches.signature, batches.moments(), size, seed)
    for number, steps in enumerate(STEPS):
        before = sum(STEPS[:number])

        def trained(done: int, _of: int, _loss: float, before: int = before) -> None:
            told("Training the diffusion policy", before + done, sum(STEPS))

        spec = TrainSpec(steps, batch_size=BATCH, lr=1e-3, seed=seed + number, warmup_steps=300)
        part = folder / f"round_{number}"
        part.mkdir(exist_ok=True)
        train(diffusion.DiffusionLearner(net), batches, spec, part, resume=True, progress=trained)
    policy = diffusion.DiffusionPolicy(net, batches.signature, size)
    diffusion.save(policy, path)
    return policy


def _demonstrations(seed: int, told: Callable[[str, int, int], None]) -> TrainingSource:
    from gaploop.finetune import demonstrations

    done = 0

    def recorded(count: int) -> None:
        nonlocal done
        done += count
        told("Recording demonstrations", done, TAKES)

    cell = demonstrations.TargetCell(task=TASK)
    return demonstrations.scripted_source(TAKES, cell, seed=seed, workers=1, progress=recorded)
