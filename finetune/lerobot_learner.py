"""ACT as something `training.train` can train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import Batch, Episode, chunks_at
from gaploop.finetune.lerobot_policy import ActPolicy


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
    held_out: Sequence[Episode] = field(default_factory=tuple)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the masked L1 loss on normalised actions."""
        tensors = act.to_tensors(batch, str(self.bundle.policy.config.device))
        value, _ = cast(Any, self.module).forward(self.bundle.preprocessor(tensors))
        return cast(torch.Tensor, value)

    def held_out_error(self) -> float:
        """Return the mean absolute error of executed actions on the held-out takes."""
        errors = [episode_errors(ActPolicy(self.bundle), e).mean() for e in self.held_out]
        return float(np.mean(errors))


def episode_errors(policy: ActPolicy, episode: Episode) -> np.ndarray[Any, np.dtype[np.float64]]:
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
