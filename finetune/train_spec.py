"""How to train: steps, rates and when to look, with the starting points that are tested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice

PRECISIONS: Final = ("no", "bf16")


@dataclass(frozen=True)
class TrainSpec:
    """How to train.

    Attributes:
        steps: optimiser steps.
        batch_size: samples per step.
        lr: peak learning rate.
        final_lr: learning rate at the last step, as a fraction of `lr`.
        warmup_steps: linear warm-up.
        weight_decay: AdamW's, on matrices only.
        grad_clip: largest gradient norm.
        checkpoint_every: steps between checkpoints.
        log_every: steps between lines in metrics.jsonl.
        eval_every: steps between held-out evaluations, 0 for none.
        keep_best: end with the weights that were best on the held-out takes.
        patience: stop after this many held-out evaluations without a better one, 0 for never.
        precision: `no`, or `bf16` to compute losses in bfloat16; weights stay as they are.
    """

    steps: int
    batch_size: int = 64
    lr: float = 1e-3
    final_lr: float = 0.01
    warmup_steps: int = 200
    weight_decay: float = 1e-4
    grad_clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 500
    log_every: int = 50
    eval_every: int = 0
    keep_best: bool = False
    patience: int = 0
    precision: str = "no"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_choice("precision", self.precision, PRECISIONS, "--precision")
        if self.steps < 1 or self.batch_size < 1:
            raise UnusableInputError(
                f"--steps={self.steps} and --batch_size={self.batch_size} must be at least 1."
            )
        if not 0 < self.lr < math.inf or self.patience < 0:
            raise UnusableInputError(
                f"--lr={self.lr:g} must be above 0, and --patience={self.patience} not below."
            )


TRACKED_SPECS: Final[Mapping[str, TrainSpec]] = {
    "pretrain": TrainSpec(steps=6_000, lr=1e-3, warmup_steps=200),
    "lora": TrainSpec(steps=400, lr=2e-3, warmup_steps=20, final_lr=0.1, weight_decay=0.0),
    "full": TrainSpec(steps=300, lr=3e-4, warmup_steps=20, final_lr=0.1),
}
"""Named starting points, each held by a test that trains two steps and resumes."""
