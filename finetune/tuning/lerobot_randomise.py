"""Visual randomisation of training pictures: light, noise, camera, background.

For policies that look at pictures, against gaps of what cameras see (Tobin et al. 2017,
arXiv:1703.06907). The draw of a sample depends on the seed and on the step and its place in the
batch, or on its episode, alone, so that a resumed run sees the same pictures. LeRobot's own
`image_transforms` change colours and shift pictures; what is added are backgrounds, a camera that
moves as one (a homography, the same for all frames of a sample), and a strength that rises over the
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional
from torchvision.transforms.v2.functional import perspective  # type: ignore[import-untyped]

from gaploop.finetune.tuning.presets import Randomise

PICTURES: Final = "observation.image"
LIGHT: Final = 0.5
"""Largest change of brightness, contrast and gamma, as a part of 1, at strength 1."""
TINT: Final = 0.15
"""Largest change of one colour channel against the others."""
NOISE: Final = 0.06
"""Largest standard deviation of the pixels' noise; pixels are from 0 to 1."""
SHIFT: Final = 0.08
"""Largest shift of a corner, as a part of the picture's width: about 5 cm at half a metre."""
NEAR_PLATE: Final = 0.06
"""A pixel this near to the background's is background; pixels are from 0 to 1."""
PLATE_FRAMES: Final = 24
"""Samples that a background is found from."""
RAMP: Final = 0.3
"""Part of the run over which the strength rises from 0."""
COARSE: Final = 6
"""Random backgrounds are smooth: this many random values across."""


class Randomiser:
    """Changes the pictures of a batch.

    Args:
        plates: camera to its picture without what moves, shape (3, height, width); from `plates`.
    """

    def __init__(
        self,
        options: Randomise,
        steps: int,
        seed: tuple[int, ...],
        plates: Mapping[str, torch.Tensor],
    ) -> None:
        self._options, self._steps, self._seed, self._plates = options, steps, seed, plates

    def strength(self, step: int) -> float:
        """Return the strength at a step: a line from 0 over the ramp, then level."""
        ramp = RAMP * self._steps
        return self._options.strength * (min(1.0, step / ramp) if ramp else 1.0)

    def __call__(self, batch: dict[str, Any], step: int) -> dict[str, Any]:
        """Return the batch of a step with its pictures changed."""
        strength = self.strength(step)
        if not strength:
            return batch
        changed, episodes = dict(batch), batch.get("episode_index")
        if self._options.every == "frame" or episodes is None:
            seeds = [(*self._seed, step, place) for place in range(len(next(iter(batch.values()))))]
        else:
            seeds = [(*self._seed, int(episode)) for episode in episodes]
        for key in (k for k in batch if k.startswith(PICTURES) and _is_picture(batch[k])):
            changed[key] = torch.stack(
                [
                    self._altered(key, sample, strength, seed)
                    for seed, sample in zip(seeds, batch[key], strict=True)
                ]
            )
        return changed

    def _altered(
        self, key: str, sample: torch.Tensor, strength: float, seed: tuple[int, ...]
    ) -> torch.Tensor:
        rng = np.random.default_rng((*seed, sum(key.encode())))
        frames = sample.reshape(-1, *sample.shape[-3:])
        kinds = self._options.kinds
        plate = self._plates.get(key) if "background" in kinds else None
        if plate is not None and plate.shape == frames.shape[1:] and rng.random() <= strength:
            # Put something else, smooth and random, in the place of what doesn't move.
            values = rng.random((1, 3, COARSE, COARSE)).astype(np.float32)
            size = (frames.shape[-2], frames.shape[-1])
            other = functional.interpolate(
                torch.from_numpy(values), size, mode="bicubic", align_corners=False
            ).clamp(0, 1)
            is_background = (frames - plate).abs().amax(dim=1, keepdim=True) < NEAR_PLATE
            part = strength * float(rng.random())
            frames = torch.where(is_background, (1 - part) * frames + part * other, frames)
        if "camera" in kinds:
            # Move the camera a little: each corner of the picture by itself.
            height, width = frames.shape[-2:]
            corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
            moved = corners + rng.uniform(-1, 1, (4, 2)) * strength * SHIFT * width
            start, end = corners.tolist(), moved.round().astype(int).tolist()
            frames = perspective(frames, start, end, fill=[0.5, 0.5, 0.5])
        if "light" in kinds:
            # Change brightness, contrast, gamma and colour; add the sensor's noise.
            gain, contrast, gamma = np.exp(rng.uniform(-1, 1, 3) * strength * LIGHT)
            tint = torch.tensor(
                1 + rng.uniform(-1, 1, (3, 1, 1)) * strength * TINT, dtype=frames.dtype
            )
            mean = frames.mean(dim=(-3, -2, -1), keepdim=True)
            lit = (((frames - mean) * contrast + mean) * gain * tint).clamp(0, 1) ** gamma
            noise = rng.standard_normal(tuple(frames.shape), dtype=np.float32)
            scale = float(rng.random()) * strength * NOISE
            frames = (lit + scale * torch.from_numpy(noise)).clamp(0, 1)
        return frames.reshape(sample.shape)


def plates(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return each camera's picture without what moves: the median over frames of many takes.

    A camera on the wrist has no such picture: next to nothing is near the median then, and its
    background stays.

    Args:
        batch: `PLATE_FRAMES` samples of any takes.
    """
    found = {}
    for key, value in batch.items():
        if key.startswith(PICTURES) and _is_picture(value):
            frames = value if value.ndim == 4 else value[:, -1]
            found[key] = frames.median(dim=0).values
    return found


def _is_picture(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 4
