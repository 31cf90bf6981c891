"""A small diffusion policy on joint and scene state: LeRobot's conditional U-Net.

Diffusion Policy is Chi et al. 2023 (arXiv:2303.04137); the network is LeRobot's
`DiffusionConditionalUnet1d`. LeRobot's `DiffusionPolicy` around it needs `diffusers` for its noise
schedule, which gaploop doesn't install: the cosine schedule (Nichol & Dhariwal 2021,
arXiv:2102.09672) and the DDIM sampler (Song et al. 2020, arXiv:2010.02502) are the few lines here.
The network predicts the clean actions, which takes few sampling steps.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionConditionalUnet1d

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.finetune.batches import Batch, FeatureMoments, Signature, TrainingEpisode

NOISE_STEPS: Final = 50
"""Levels of noise in training."""
SAMPLE_STEPS: Final = 5
"""Levels that sampling visits."""
RANGE: Final = 5.0
"""Predicted actions are kept within this many spreads of the mean."""
SCHEMA: Final = "gaploop.diffusion.v1"


@dataclass(frozen=True)
class DiffusionSize:
    """How large the network is and how far it looks ahead.

    Attributes:
        horizon: actions predicted at once.
        execute: actions executed before the next prediction.
        noise: scale of the noise that plans are sampled from, 1 in training; less is surer.
        widths: channels of the U-Net's stages.
        step_width: width of the noise level's embedding.
    """

    horizon: int = 16
    execute: int = 14
    noise: float = 0.3
    widths: tuple[int, ...] = (48, 96)
    step_width: int = 32


class DiffusionNet(torch.nn.Module):
    """LeRobot's U-Net with the moments by which its inputs and answers are normalised."""

    def __init__(
        self, signature: Signature, moments: Mapping[str, FeatureMoments], size: DiffusionSize
    ) -> None:
        super().__init__()
        n_state, n_env = len(signature.state_names), len(signature.environment_names)
        config = DiffusionConfig(
            n_obs_steps=1,
            horizon=size.horizon,
            n_action_steps=size.execute,
            down_dims=size.widths,
            diffusion_step_embed_dim=size.step_width,
            input_features={
                "observation.state": PolicyFeature(FeatureType.STATE, (n_state,)),
                "observation.environment_state": PolicyFeature(FeatureType.ENV, (n_env,)),
            },
            output_features={
                "action": PolicyFeature(FeatureType.ACTION, (len(signature.action_names),))
            },
            device="cpu",
            push_to_hub=False,
        )
        self.unet = DiffusionConditionalUnet1d(config, global_cond_dim=n_state + n_env)
        for key, m in moments.items():
            self.register_buffer(f"{key}_mean", torch.tensor(m.mean))
            self.register_buffer(f"{key}_std", torch.tensor(m.std))
        kept = np.cos((np.arange(NOISE_STEPS + 1) / NOISE_STEPS + 0.008) / 1.008 * np.pi / 2) ** 2
        share = np.clip(kept[1:] / kept[0], 1e-4, 1.0)
        self.register_buffer("kept", torch.tensor(share, dtype=torch.float32))

    def condition(self, state: torch.Tensor, environment: torch.Tensor) -> torch.Tensor:
        """Return what the U-Net is conditioned on, shape (b, n_state + n_environment)."""
        parts = [("state", state), ("environment", environment)]
        return torch.cat([self._normal(k, v) for k, v in parts], dim=-1)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the masked squared error of the clean normalised actions."""
        clean = self._normal("action", torch.from_numpy(batch.action))
        level = torch.randint(0, NOISE_STEPS, (len(clean),))
        kept = cast(torch.Tensor, self.kept)[level][:, None, None]
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * torch.randn_like(clean)
        given = self.condition(torch.from_numpy(batch.state), torch.from_numpy(batch.environment))
        error = (self.unet(noisy, level, global_cond=given) - clean) ** 2
        used = torch.from_numpy(~batch.is_pad)[..., None]
        loss: torch.Tensor = (error * used).sum() / (used.sum() * clean.shape[-1])
        return loss

    def sample(self, given: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return actions in LeRobot units, shape (b, horizon, n_action), by DDIM from `noise`."""
        kept = cast(torch.Tensor, self.kept)
        levels = np.linspace(NOISE_STEPS - 1, 0, SAMPLE_STEPS).round().astype(int)
        x = clean = noise
        for place, level in enumerate(levels):
            now = kept[level]
            clean = self.unet(x, torch.full((len(x),), int(level)), global_cond=given)
            clean = clean.clamp(-RANGE, RANGE)
            if place + 1 < len(levels):
                rest = (x - now.sqrt() * clean) / (1 - now).sqrt()
                after = kept[levels[place + 1]]
                x = after.sqrt() * clean + (1 - after).sqrt() * rest
        return clean * self._moment("action", "std") + self._moment("action", "mean")

    def _normal(self, key: str, values: torch.Tensor) -> torch.Tensor:
        return (values - self._moment(key, "mean")) / self._moment(key, "std")

    def _moment(self, key: str, which: str) -> torch.Tensor:
        return cast(torch.Tensor, getattr(self, f"{key}_{which}"))


@dataclass
class DiffusionLearner:
    """The network as something `training.train` can train."""

    module: torch.nn.Module
    held_out: Sequence[TrainingEpisode] = field(default_factory=tuple)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss of one batch."""
        return cast(DiffusionNet, self.module).loss(batch)

    def held_out_error(self) -> float:
        """Return NaN: a sampled plan isn't judged by its distance to one demonstration."""
        return math.nan


class DiffusionPolicy:
    """Drives by sampled plans: samples one, hands out its first actions one by one.

    Args:
        net: the trained network.
        signature: what it was trained on.
        size: its horizon and how much of it is executed.
        seed: draws the noise of each plan, anew from the same seed after every `reset`.
    """

    def __init__(
        self, net: DiffusionNet, signature: Signature, size: DiffusionSize, seed: int = 0
    ) -> None:
        self.net = net.eval()
        self.signature, self.size, self.fps = signature, size, signature.fps
        self._seed = seed
        self.chunk: FloatArray | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the episode before."""
        self._queue: deque[FloatArray] = deque()
        self._noise = torch.Generator().manual_seed(self._seed)
        self.chunk = None

    def act(self, observation: Observation) -> FloatArray:
        """Return the next joint target, shape (n_action,), in LeRobot units.

        Raises:
            UnusableInputError: nothing tracks the scene.
        """
        if not self._queue:
            self.chunk = self.predict(observation)
            self._queue.extend(self.chunk[: self.size.execute])
        return self._queue.popleft()

    def predict(self, observation: Observation) -> FloatArray:
        """Return one sampled plan, shape (horizon, n_action), in LeRobot units."""
        if observation.environment_state is None:
            raise UnusableInputError(
                "The policy needs observation.environment_state and nothing tracks the scene. "
                "Use a rig with a tracker."
            )
        values = (observation.state, observation.environment_state)
        state, environment = (torch.tensor(v, dtype=torch.float32)[None] for v in values)
        shape = (1, self.size.horizon, len(self.signature.action_names))
        with torch.inference_mode():
            given = self.net.condition(state, environment)
            noise = self.size.noise * torch.randn(shape, generator=self._noise)
            plan = self.net.sample(given, noise)
        return np.asarray(plan[0].numpy(), dtype=np.float64)


def save(policy: DiffusionPolicy, path: Path) -> None:
    """Write a trained policy to one file, whole or not at all."""
    part = path.with_suffix(".part")
    torch.save(
        {
            "schema": SCHEMA,
            "signature": asdict(policy.signature),
            "size": asdict(policy.size),
            "weights": policy.net.state_dict(),
        },
        part,
    )
    os.replace(part, path)


def load(path: Path, seed: int = 0) -> DiffusionPolicy:
    """Read what `save` wrote.

    Raises:
        UnusableInputError: it is something else.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    kept: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    if kept.get("schema") != SCHEMA:
        raise UnusableInputError(f"{path} is not a {SCHEMA} file. Delete it to train anew.")
    signature, size = Signature(**kept["signature"]), DiffusionSize(**kept["size"])
    weights = kept["weights"]
    moments = {
        key: FeatureMoments(weights[f"{key}_mean"].numpy(), weights[f"{key}_std"].numpy())
        for key in ("state", "environment", "action")
    }
    net = DiffusionNet(signature, moments, size)
    net.load_state_dict(weights)
    return DiffusionPolicy(net, signature, size, seed)


def untrained(
    signature: Signature, moments: Mapping[str, FeatureMoments], size: DiffusionSize, seed: int
) -> DiffusionNet:
    """Return a network with weights drawn from `seed`."""
    torch.manual_seed(seed)
    return DiffusionNet(signature, moments, size)
