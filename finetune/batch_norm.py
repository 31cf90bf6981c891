"""Batch normalisation in a policy's picture encoder: what it learns without a gradient.

Its running mean and variance move with every batch in training mode. Where its weights are
trained they belong to what a checkpoint holds; where they are frozen, as under an adapter, they
stay as the base has them: an adapter doesn't carry them.
"""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm


def training_mode(module: torch.nn.Module) -> None:
    """Put `module` into training mode, but for batch normalisation that isn't trained."""
    module.train()
    for part in module.modules():
        if isinstance(part, _BatchNorm) and not _is_trained(part):
            part.eval()


def running_statistics(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the running statistics that training moves, by name."""
    return {
        f"{name}.{key}": value
        for name, part in module.named_modules()
        if isinstance(part, _BatchNorm) and _is_trained(part)
        for key, value in part.named_buffers()
    }


def _is_trained(part: _BatchNorm) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())
