"""One training loop for pretraining and adapting: thin, deterministic, resumable.

Everything random is drawn from (seed, step): the batch by the mixture, dropout by seeding
torch anew each step. A run that was stopped and resumed therefore ends with the same weights
as one that wasn't.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.finetune.batches import Batch, MixedBatches

CHECKPOINT: Final = "checkpoint.pt"
METRICS: Final = "metrics.jsonl"

type Progress = Callable[[int, int, float], None]
"""Called after each step with (steps done, steps in all, loss)."""


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

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise UnusableInputError(
                f"--steps={self.steps} and --batch_size={self.batch_size} must be at least 1."
            )


PRESETS: Final[Mapping[str, TrainSpec]] = {
    "pretrain": TrainSpec(steps=6_000, lr=1e-3, warmup_steps=200),
    "lora": TrainSpec(steps=400, lr=2e-3, warmup_steps=20, final_lr=0.1, weight_decay=0.0),
    "full": TrainSpec(steps=300, lr=3e-4, warmup_steps=20, final_lr=0.1),
}
"""Named starting points, each held by a test that trains two steps and resumes."""


class Learner(Protocol):
    """Something trainable; `training` knows no more about the policy than this."""

    @property
    def module(self) -> torch.nn.Module:
        """What is trained."""
        ...

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the scalar loss of a batch, with gradients."""
        ...

    def held_out_error(self) -> float:
        """Return the mean absolute action error on held-out takes, in LeRobot units."""
        ...


@dataclass(frozen=True)
class TrainResult:
    """How a training run ended.

    Attributes:
        steps: optimiser steps done in all.
        loss: mean loss of the last logged steps.
        held_out: step to held-out error, as far as it was measured.
        best_step: the step whose weights were kept.
    """

    steps: int
    loss: float
    held_out: Mapping[int, float]
    best_step: int


def train(
    learner: Learner,
    batches: MixedBatches,
    spec: TrainSpec,
    folder: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainResult:
    """Train `learner` in place on `batches`.

    Ctrl-C writes a checkpoint and is raised on; the same call with `resume` goes on from it.

    Args:
        learner: what to train; only parameters that require gradients change.
        batches: where samples come from.
        spec: how to train.
        folder: where checkpoint.pt and metrics.jsonl go.
        resume: go on from the checkpoint in `folder`, if there is one.
        progress: called after each step.

    Raises:
        UnusableInputError: the loss is not finite, or the checkpoint is of another run.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run = _Run(learner, batches, spec, folder)
    if resume:
        run.restore()
    elif (folder / METRICS).exists():
        (folder / METRICS).unlink()
    try:
        while run.step < spec.steps:
            loss = run.advance()
            if progress:
                progress(run.step, spec.steps, loss)
    except KeyboardInterrupt:
        run.checkpoint()
        raise
    return run.finish()


def learning_rate(spec: TrainSpec, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    span = max(1, spec.steps - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - spec.warmup_steps) / span)))
    return spec.lr * (spec.final_lr + (1 - spec.final_lr) * cosine)


class _Run:
    """The state of one training run."""

    def __init__(
        self, learner: Learner, batches: MixedBatches, spec: TrainSpec, folder: Path
    ) -> None:
        self.learner, self.batches, self.spec, self.folder = learner, batches, spec, folder
        self.trained = {n: p for n, p in learner.module.named_parameters() if p.requires_grad}
        matrices = [p for p in self.trained.values() if p.dim() > 1]
        vectors = [p for p in self.trained.values() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": spec.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=spec.lr,
        )
        self.step = 0
        self.recent: list[float] = []
        self.held_out: dict[int, float] = {}
        self.best: dict[str, torch.Tensor] | None = None
        self.best_step = 0

    def advance(self) -> float:
        """Do one optimiser step and whatever is due after it; return its loss."""
        loss = self._optimise()
        self.step += 1
        self.recent.append(loss)
        last = self.step == self.spec.steps
        if self.spec.eval_every and (self.step % self.spec.eval_every == 0 or last):
            self._evaluate()
        if self.step % self.spec.log_every == 0 or last:
            self._log()
        if self.step % self.spec.checkpoint_every == 0 or last:
            self.checkpoint()
        return loss

    def finish(self) -> TrainResult:
        """Put the kept weights in place and say how it went."""
        if self.best is not None and self.spec.keep_best:
            self._put(self.best)
        else:
            self.best_step = self.step
        loss = sum(self.recent) / max(1, len(self.recent)) if self.recent else self._last_loss()
        return TrainResult(self.step, loss, dict(self.held_out), self.best_step)

    def checkpoint(self) -> None:
        """Write everything needed to go on, whole or not at all."""
        stream = io.BytesIO()
        torch.save(
            {
                "spec": json.dumps(asdict(self.spec)),
                "step": self.step,
                "weights": {n: p.detach() for n, p in self.trained.items()},
                "optimizer": self.optimizer.state_dict(),
                "recent": self.recent,
                "held_out": self.held_out,
                "best": self.best,
                "best_step": self.best_step,
            },
            stream,
        )
        write_atomically(self.folder / CHECKPOINT, stream.getvalue())

    def restore(self) -> None:
        """Load the checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        if json.loads(state["spec"]) != json.loads(json.dumps(asdict(self.spec))):
            raise UnusableInputError(
                f"{path} is of a run with other settings. Resume with the options of that run, "
                "or start anew in another --output_dir."
            )
        if state["weights"].keys() != self.trained.keys():
            raise UnusableInputError(f"{path} is of another model. Use another --output_dir.")
        self._put(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.recent = state["step"], state["recent"]
        self.held_out, self.best = state["held_out"], state["best"]
        self.best_step = state["best_step"]
        _cut_metrics(self.folder / METRICS, self.step)

    def _optimise(self) -> float:
        torch.manual_seed(_mixed(self.spec.seed, self.step))
        self.learner.module.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, self.step)
        loss = self.learner.loss(self.batches.batch(self.step))
        value = loss.item()
        if not math.isfinite(value):
            raise UnusableInputError(
                f"The loss became {value} at step {self.step}. Lower --lr, or check the data "
                "with gaploop check."
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.spec.grad_clip)
        self.optimizer.step()
        return value

    def _evaluate(self) -> None:
        error = self.learner.held_out_error()
        if not self.held_out or error < min(self.held_out.values()):
            self.best_step = self.step
            if self.spec.keep_best:
                self.best = {n: p.detach().clone() for n, p in self.trained.items()}
        self.held_out[self.step] = error

    def _log(self) -> None:
        line: dict[str, float] = {
            "step": self.step,
            "loss": sum(self.recent) / len(self.recent),
            "lr": learning_rate(self.spec, self.step - 1),
        }
        if self.step in self.held_out:
            line["held_out_action_error"] = self.held_out[self.step]
        with (self.folder / METRICS).open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        self.recent = []

    def _last_loss(self) -> float:
        path = self.folder / METRICS
        lines = path.read_text().splitlines() if path.exists() else []
        return float(json.loads(lines[-1])["loss"]) if lines else math.nan

    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(weights[name])


def _cut_metrics(path: Path, step: int) -> None:
    """Drop lines written after the checkpoint, so that no step is logged twice."""
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    write_atomically(path, "".join(f"{line}\n" for line in kept))


def _mixed(seed: int, step: int) -> int:
    """Spread (seed, step) over torch's seeds (odd constants from SplitMix64)."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % (1 << 63)
