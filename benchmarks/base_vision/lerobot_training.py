"""The base that sees: `lerobot_keypoint`'s policy, trained on takes with pictures."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from numpy.typing import NDArray
from safetensors.torch import load_model
from torch.nn import functional
from torchvision.transforms.functional import gaussian_blur  # type: ignore[import-untyped]

from benchmarks.base_vision import pictures
from benchmarks.base_vision.backgrounds import Backgrounds
from benchmarks.base_vision.pictures import POSES, PictureBatch, PictureTakes
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import Signature
from gaploop.finetune.config import FinetuneConfig, TrainingCell
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.lerobot_act import ACTION, STATE, ActBundle
from gaploop.finetune.lerobot_keypoint import KeypointConfig, KeypointPolicy
from gaploop.finetune.lerobot_policy import WEIGHTS, load_policy, resolve
from gaploop.finetune.pretrain import POLICY, TrainedPolicy, pretrained
from gaploop.finetune.training import Learner, Progress, TrainResult, train
from gaploop.finetune.tuning.presets import TrainSpec
from gaploop.sim.scene import CAMERA_NAME

PICTURE: Final = f"observation.images.{CAMERA_NAME}"
TAKES, CORRECTIONS, FIRST_ROUND = "takes", "corrections", "first_round"
CORRECTION_SEEDS: Final = 100_000
"""Scenes of corrections begin so far behind those of takes."""
SIZE_PX: Final = 96
CHUNK: Final = 40
SPEC: Final = TrainSpec(steps=14_000, lr=1e-3, warmup_steps=200)
"""From nothing, or from the base of another task. In bfloat16 a step takes ten times as long on a
processor that doesn't compute in it."""
ON: Final = TrainSpec(steps=1_300, batch_size=48, lr=6e-4, warmup_steps=100)
"""From a base of this task, to what it hasn't seen."""
TEACHER: Final = 1.0
"""Of the loss on what is seen where a base goes on, beside the policy's own."""
LIGHT: Final = 0.1
"""Spread of the exposure that training pictures are drawn with; of each colour's, half of it."""
BLURRED: Final = 0.3
"""Of the takes, those that are out of focus."""
BLUR: Final = (0.005, 0.045)
"""By how much: sigma, as a share of the picture's width."""
NOISY: Final = 0.2
"""Of the takes, those with a noisy sensor."""
NOISE: Final = 0.05
"""How noisy at most: sigma, of 1."""


def build(signature: Signature, takes: PictureTakes, picture_px: int, *, seed: int) -> ActBundle:
    """Make an untrained policy.

    Args:
        takes: by whose mean and spread joints and actions are normalised.
        picture_px: width and height of the camera's pictures [px].
    """
    torch.manual_seed(seed)
    square = (3, picture_px, picture_px)
    config = KeypointConfig(
        device="cpu",
        push_to_hub=False,
        resize_shape=(SIZE_PX, SIZE_PX),
        n_poses=POSES,
        chunk_size=takes.chunk,
        n_action_steps=takes.chunk,
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (len(signature.state_names),)),
            PICTURE: PolicyFeature(FeatureType.VISUAL, square),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (len(signature.action_names),))},
    )
    stats = {
        key: {"mean": torch.tensor(rows.mean(0)), "std": torch.tensor(rows.std(0))}
        for key, rows in ((STATE, takes.state), (ACTION, takes.action))
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    policy: Any = KeypointPolicy(config)
    return ActBundle(policy, before, after, signature)


@dataclass
class VisionLearner(Learner):
    """A keypoint policy trained on takes with pictures; judged by its success in the cell.

    Attributes:
        teacher: the policy that goes on, as it began: before any background the pupil is to see
            what the teacher sees where nothing is replaced; None where there is none.
    """

    bundle: ActBundle
    module: torch.nn.Module
    teacher: Any = None

    def loss(self, batch: PictureBatch) -> torch.Tensor:
        """Return the policy's loss, with exposure, colours, focus and noise drawn for each take."""
        policy: Any = self.bundle.policy
        shown = _floats(batch.pictures)
        begin = np.unique(batch.first)  # a take's pictures follow its first
        take = np.searchsorted(begin, np.arange(len(shown)), side="right") - 1
        many = len(begin)
        gain = 1 + LIGHT * (torch.randn(many, 1, 1, 1) + 0.5 * torch.randn(many, 3, 1, 1))
        shift = 0.3 * LIGHT * torch.randn(many, 1, 1, 1)
        shown = _as_cameras_show((shown * gain[take] + shift[take]).clamp(0, 1), take)
        seen = policy.look({PICTURE: shown})
        known = self.bundle.preprocessor(
            {STATE: torch.from_numpy(batch.state), ACTION: torch.from_numpy(batch.action)}
        )
        known["action_is_pad"] = torch.from_numpy(batch.is_pad)
        known["poses"] = torch.from_numpy(batch.poses)
        known["aims"] = torch.from_numpy(batch.aims)
        loss: torch.Tensor
        loss, _ = policy.loss(seen[batch.first], seen[batch.now], known[STATE], known)
        if self.teacher is not None:
            with torch.no_grad():
                told = self.teacher.look({PICTURE: _floats(batch.recorded)})
            loss = loss + TEACHER * functional.smooth_l1_loss(seen, told, beta=0.1)
        return loss


def _as_cameras_show(shown: torch.Tensor, take: NDArray[np.intp]) -> torch.Tensor:
    """Return pictures, shape (n, 3, height, width), of which some takes' are out of focus or noisy.

    Without it, a base that had been trained before rooms no longer saw through a blurred lens.
    """
    for number in np.unique(take):
        rows = torch.from_numpy(np.flatnonzero(take == number))
        if torch.rand(()) < BLURRED:
            sigma_px = float(torch.empty(()).uniform_(*BLUR)) * shown.shape[-1]
            size = 2 * math.ceil(2.5 * sigma_px) + 1
            shown[rows] = gaussian_blur(shown[rows], [size, size], [sigma_px, sigma_px])
        if torch.rand(()) < NOISY:
            shown[rows] += float(torch.empty(()).uniform_(0, NOISE)) * torch.randn_like(shown[rows])
    return shown.clamp(0, 1)


def _floats(pictures: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255.0


def pretrain_vision(
    config: FinetuneConfig,
    progress: Progress | None = None,
    recorded: Callable[[int], None] | None = None,
    workers: int = 2,
    photos: Path | None = None,
    smooth: bool = False,
) -> TrainedPolicy:
    """Record scripted takes with pictures, train a base that sees, and write it as `pretrain` does.

    In two rounds of half the steps: the second one also learns from takes that the first one's
    policy drove until a person took over, half as many. A base of this task to begin with drives
    those itself, and there is one round. What OUT holds of it is not made again.

    Args:
        photos: a folder of photos to train before, as of `Backgrounds`.
        smooth: the control, as of `Backgrounds`.

    Raises:
        UnusableInputError: another kind of policy to begin with, or as of `training.train`.
    """
    begun = config.policy.path
    start = load_policy(begun).bundle if begun else None
    if start and not (isinstance(start.policy, KeypointPolicy) and start.chunk == CHUNK):
        raise UnusableInputError(
            f"--policy.path={begun} isn't a keypoint policy of {CHUNK} targets a plan. Begin with "
            "base_vision, or with what this made of another task."
        )
    cell = TargetCell(**config.env.cell())
    folder = writable_folder(config.folder)
    spec, goes_on = spec_of(config)
    if not goes_on:
        spec = replace(spec, steps=max(1, spec.steps // 2))
    common: dict[str, Any] = {"size_px": SIZE_PX, "progress": recorded, "workers": workers}
    pictures.record(folder / TAKES, cell, config.sim_takes, seed=spec.seed, **common)
    backgrounds = Backgrounds(photos, SIZE_PX, seed=spec.seed, smooth=smooth)
    drawn: dict[str, Any] = {"chunk": CHUNK, "batch_size": spec.batch_size, "seed": spec.seed}
    drawn["backgrounds"] = backgrounds
    takes, first = PictureTakes([folder / TAKES], **drawn), folder / FIRST_ROUND
    rig = cell.rig()
    joints = tuple(f"{joint}.pos" for joint in rig.follower.joint_names)
    known = Signature(rig.fps, joints, (), joints, rig.follower.units, rig.follower.robot_type)
    bundle = start or build(known, takes, rig.cell.image_size, seed=spec.seed)
    rig.close()
    if not goes_on and not (first / POLICY).exists():
        first.mkdir(exist_ok=True)
        _train(bundle, takes, spec, first, config.resume, progress, None)
    pictures.record(
        folder / CORRECTIONS, cell, config.sim_takes // 2, seed=spec.seed + CORRECTION_SEEDS,
        policy=resolve(begun) if goes_on else first / POLICY, **common,
    )  # fmt: skip
    takes = PictureTakes([folder / TAKES, folder / CORRECTIONS], **drawn)
    if not goes_on:
        load_model(bundle.policy, first / POLICY / WEIGHTS)
    teacher = copy.deepcopy(bundle.policy) if goes_on else None
    result = _train(bundle, takes, spec, folder, config.resume, progress, teacher)
    name = cell.name(config.sim_takes, spec.seed)
    inputs = ({"root": name, "sha256": takes.digest, "takes": takes.takes, "frames": takes.frames},)
    return pretrained(config, result, inputs)


def spec_of(config: FinetuneConfig) -> tuple[TrainSpec, bool]:
    """Return how to train, and whether a base of this very task goes on: its own is pick_place."""
    goes_on = bool(config.policy.path) and config.env.task == TrainingCell.task
    return config.spec(ON if goes_on else SPEC), goes_on


def _train(
    bundle: ActBundle, takes: PictureTakes, spec: TrainSpec, folder: Path, resume: bool,
    progress: Progress | None, teacher: Any,
) -> TrainResult:  # fmt: skip
    bundle.policy.to(memory_format=torch.channels_last)  # of pictures as they are kept
    learner = VisionLearner(bundle, bundle.policy, teacher)
    result = train(learner, takes, spec, folder, resume=resume, progress=progress)
    bundle.policy.to(memory_format=torch.contiguous_format)
    act.save(bundle, folder / POLICY)
    return result
