"""LeRobot policies as something `training.train` can train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import torch

from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import Batch, TrainingEpisode, chunks_at
from gaploop.finetune.lerobot_policy import ActPolicy
from gaploop.finetune.tuning.lerobot_bundle import LeRobotBundle
from gaploop.finetune.tuning.lerobot_takes import held_out_batches

SEED: Final = 0
"""Draws the noise of held-out losses, the same every time."""


@dataclass
class ActLearner:
    """A policy, whole or wrapped with an adapter, and held-out takes to judge it by.

    Attributes:
        bundle: the policy and its processors.
        module: what is trained: the policy itself, or PEFT's wrapper of it.
        held_out: takes that are not trained on.
    """

    bundle: act.ActBundle
    module: torch.nn.Module
    held_out: Sequence[TrainingEpisode] = field(default_factory=tuple)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the masked L1 loss on normalised actions."""
        tensors = act.to_tensors(batch, str(self.bundle.policy.config.device))
        value, _ = cast(Any, self.module)(self.bundle.preprocessor(tensors))
        return cast(torch.Tensor, value)

    def held_out_error(self) -> float:
        """Return the mean absolute error of executed actions on the held-out takes."""
        return float(np.mean(list(self.held_out_errors().values())))

    def held_out_errors(self) -> dict[str, float]:
        """Return the mean absolute error of executed actions on each held-out take, by uid."""
        policy = ActPolicy(self.bundle)
        return {e.uid: float(episode_errors(policy, e).mean()) for e in self.held_out}


@dataclass
class LeRobotLearner:
    """Any LeRobot policy, whole or wrapped with an adapter, and held-out takes to judge it by.

    Held-out takes are judged by the policy's own loss: flow matching and diffusion sample their
    actions, and the distance of one sample to one demonstration says little.

    Attributes:
        bundle: the policy and its processors.
        module: what is trained: the policy itself, or PEFT's wrapper of it.
        dataset: where the frames of held-out takes are.
        held_out: takes that are not trained on.
    """

    bundle: LeRobotBundle
    module: torch.nn.Module
    dataset: Any = None
    held_out: Sequence[Any] = field(default_factory=tuple)

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the policy's own loss of a batch in LeRobot units."""
        value, _ = cast(Any, self.module)(self._inputs(batch))
        return cast(torch.Tensor, value)

    def held_out_error(self) -> float:
        """Return the mean loss on the held-out takes."""
        return float(np.mean(list(self.held_out_errors().values())))

    def held_out_errors(self) -> dict[str, float]:
        """Return the loss on each held-out take, by uid."""
        policy = self.bundle.policy
        policy.eval()
        errors: dict[str, float] = {}
        with torch.inference_mode():
            for uid, batch in held_out_batches(self.dataset, self.held_out):
                torch.manual_seed(SEED)
                value, _ = policy.forward(self._inputs(batch))
                errors[uid] = float(value.item())
        return errors

    def _inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.bundle.preprocessor(batch)
        return made


def episode_errors(
    policy: ActPolicy, episode: TrainingEpisode
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return absolute errors of the actions a policy would execute along one take.

    The policy predicts where it would when driving, every `policy.execute` frames, from the
    recorded observation; the errors are open-loop, in LeRobot units.

    Returns:
        Shape (n_frames, n_action).
    """
    rows = np.arange(0, len(episode.action), policy.execute)
    batch = chunks_at(episode, rows, policy.bundle.chunk)
    predicted = policy.predict(batch)[:, : policy.execute]
    errors = np.abs(predicted - batch.action[:, : policy.execute])
    kept = ~batch.is_pad[:, : policy.execute]
    return np.asarray(errors[kept], dtype=np.float64)
