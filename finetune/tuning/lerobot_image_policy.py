"""Tuning any LeRobot policy on takes with pictures: ACT, Diffusion, SmolVLA, pi0, pi0.5, others.

Frames come through LeRobot's dataset with the frame cache, draws from `datasets.mixing`: a batch is
a pure function of the step.

Their light, noise, camera and background may be drawn at random, against gaps of what cameras see
(Tobin et al. 2017, arXiv:1703.06907). The draw of a sample depends on the seed and on the step and
its place in the batch, or on its episode, alone, so that a resumed run sees the same pictures.
LeRobot's own `image_transforms` change colours and shift pictures; what is added are backgrounds, a
camera that moves as one (a homography, the same for all frames of a sample), and a strength that
rises over the run.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.datasets import factory
from lerobot.utils.collate import lerobot_collate_fn
from lerobot.utils.constants import ACTION
from torch.nn import functional
from torchvision.transforms.v2.functional import perspective  # type: ignore[import-untyped]

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.datasets import columns
from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset
from gaploop.datasets.cache.lerobot_scale_step import ScaleStep
from gaploop.datasets.hub.target import is_hub_name
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.mixing.lerobot_mixture import ENDLESS, MixtureDataset, common_meta
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture, describe
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import Signature, check_all_finite
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.tuning import lerobot_bundle as bundles
from gaploop.finetune.tuning.presets import Preset, Randomise
from gaploop.finetune.tuning.takes import TakeNote, mixture_of, note_of, split_held_out

log = logging.getLogger(__name__)

type Tensors = dict[str, Any]
type Alter = Callable[[Tensors, int], Tensors]
"""Changes a batch of a step, such as by visual randomisation."""

SEED: Final = 0
"""Draws the noise of held-out losses, the same every time."""
FRAMES: Final = 16
"""Frames of a held-out episode that are looked at: neighbours are alike, pictures are dear."""


def fitting_config(
    base: Path, whole: OpenMixture, options: FinetuneConfig, device: str = "cpu"
) -> PreTrainedConfig:
    """Return a policy's config, if the data have what it is fed.

    Raises:
        UnusableInputError: LeRobot can't read it, or what differs, and how to fix it.
    """
    config = bundles.read_config(base, device)
    known = {f for info in whole.datasets for f in info.features}
    for name in options.rename_map:
        if name not in known:
            raise unknown_choice("feature", name, known, "--rename_map")
    if not (base / act.SIDECAR).exists():
        log.warning(bundles.UNNAMED, base, whole.datasets[0].root)
    for info in whole.datasets:
        bundles.check_fits(config, info, base, options.rename_map, options.cache.shape)
    sidecar_file = base / act.SIDECAR
    own = str(read_json(sidecar_file).get("units") or "") if sidecar_file.exists() else ""
    for take in whole.takes:
        units = take.episode.info.units
        if units and own and units != own:
            raise UnusableInputError(
                f"{whole.datasets[take.dataset].root}: joints in {units}, policy {base} was "
                f"trained in {own}. Convert with gaploop edit harmonise."
            )
    used = {**(config.input_features or {}), **(config.output_features or {})}
    numbers = {
        name
        for name, feature in whole.datasets[0].features.items()
        if str(feature.get("dtype")).startswith(("float", "int"))
        and options.rename_map.get(name, name) in used
    }
    check_all_finite(whole, numbers)
    return config


class ImagePolicyWork:
    """The base, wrapped, with batches of its data, ready to be tuned."""

    def __init__(self, base: Path, options: FinetuneConfig, recipe: Preset, device: str) -> None:
        self._base, self._hub_name, self._recipe = base, options.policy.path, recipe
        spec = recipe.spec
        if options.sim_takes:
            raise UnusableInputError(
                "--sim_takes records no pictures, and this policy looks at them. Record simulated "
                "takes with gaploop record --robot.type=so101_sim and name them with --sim='[DIR]'."
            )
        whole = mixture_of(options)
        config = fitting_config(base, whole, options, device)
        opened, aside = split_held_out(options, whole)
        self._opened = opened
        shares = opened.mixture(1).mean_shares(spec.steps)
        dataset = load_takes(opened, config, shares, cache=options.cache)
        bundle = bundles.open_bundle(
            config,
            dataset.meta,
            signature_of_takes(opened.datasets[0], (t.episode for t in opened.takes)),
            stats=options.stats,
            rename=options.rename_map,
        )
        if options.cache.shape is not None:
            others = [s for s in bundle.preprocessor.steps if not isinstance(s, ScaleStep)]
            bundle.preprocessor.steps = [ScaleStep(*options.cache.shape), *others]
        if spec.gradient_checkpointing:
            network = getattr(bundle.policy, "model", None)
            enable = getattr(network, "gradient_checkpointing_enable", None)
            if enable is None:
                raise UnusableInputError(
                    f"LeRobot's {bundle.policy.config.type} has no gradient checkpointing. Leave "
                    "--gradient_checkpointing out; --accumulation=4 takes less memory, too."
                )
            enable()
        torch.manual_seed(spec.seed)  # right before: an adapter's first weights are drawn
        module = bundle.policy if recipe.full else adapter.wrap(bundle.policy, base, recipe.lora)
        alter = None
        if options.randomise.strength:
            rng = np.random.default_rng((spec.seed, 3))
            chosen = [opened.takes[i] for i in rng.integers(0, len(opened.takes), PLATE_FRAMES)]
            still = collated(dataset, [(t.dataset, int(rng.choice(t.frames))) for t in chosen])
            alter = Randomiser(options.randomise, spec.steps, (spec.seed, 0), plates(still))
        self.batches = TakeBatches(
            opened,
            dataset,
            batch_size=spec.batch_size,
            drop_last=int(getattr(config, "drop_n_last_frames", 0) or 0),
            workers=options.num_workers,
            alter=alter,
        )
        self.learner = LeRobotLearner(bundle, module, dataset, aside)
        self.held_out: Sequence[TakeNote] = [note_of(t) for t in aside]

    def inputs(self, steps: int) -> tuple[Mapping[str, Any], ...]:
        """Return how `run.json` names what was trained on."""
        drawn = describe(self._opened, self.batches.mixture, steps)
        found = []
        for number, info in enumerate(self._opened.datasets):
            takes = [t for t in self._opened.takes if t.dataset == number]
            if not takes or not drawn[takes[0].source]["samples"]:
                continue
            source = drawn[takes[0].source]
            frames, digest = sum(len(t.frames) for t in takes), hashlib.sha256()
            for take in takes:
                digest.update(take.episode.info.uid.encode())
                digest.update(take.frames.tobytes())
            found.append(
                {
                    "root": str(info.root),
                    "sha256": digest.hexdigest(),
                    "domain": takes[0].episode.info.domain.value,
                    "share": source["share"] * frames / source["frames"],
                    "takes": len(takes),
                    "frames": frames,
                    "uids": [t.episode.info.uid for t in takes],
                    "plans": sorted({t.episode.info.plan for t in takes if t.episode.info.plan}),
                }
            )
        return tuple(found)

    def save(self, folder: Path) -> None:
        """Write `adapter` and `merged`, or `merged` alone where all weights were trained."""
        bundle, module = self.learner.bundle, self.learner.module
        if self._recipe.full:
            bundle.policy.config.pretrained_path = None
            act.save(bundle, folder / "merged")
            return
        name = self._hub_name if is_hub_name(self._hub_name) else ""
        adapter.save(module, bundle, self._base, folder / "adapter", name, merge=True)


def signature_of_takes(info: DatasetInfo, takes: Iterable[EpisodeRow]) -> Signature:
    """Return what LeRobot's config has no place for: rate, names and units of the data."""
    units = {take.info.units for take in takes} - {""}
    return Signature(
        info.fps,
        info.names(columns.STATE),
        info.names(columns.ENVIRONMENT),
        info.names(columns.ACTION),
        units.pop() if len(units) == 1 else "",
        info.robot_type,
        tuple(info.video_keys),
    )


@dataclass
class LeRobotLearner:
    """Any LeRobot policy, whole or wrapped with an adapter, and held-out takes to judge it by.

    Held-out takes are judged by the policy's own loss: flow matching and diffusion sample their
    actions, and the distance of one sample to one demonstration says little.

    Attributes:
        module: what is trained: the policy itself, or PEFT's wrapper of it.
    """

    bundle: act.ActBundle
    module: torch.nn.Module
    dataset: MixtureDataset
    held_out: Sequence[MixedTake] = ()

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the policy's own loss of a batch in LeRobot units."""
        value, _ = cast(Any, self.module)(self.bundle.preprocessor(batch))
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
            for take in self.held_out:
                places = np.linspace(0, len(take.frames) - 1, min(FRAMES, len(take.frames)))
                chosen = take.frames[places.round().astype(int)]  # evenly spaced
                batch = collated(self.dataset, _keys(np.full(len(chosen), take.dataset), chosen))
                torch.manual_seed(SEED)
                value, _ = policy.forward(self.bundle.preprocessor(batch))
                errors[take.episode.info.uid] = float(value.item())
        return errors


def load_takes(opened: OpenMixture, config: Any, shares: Any, **how: Any) -> MixtureDataset:
    """Open a mixture's datasets for a policy; the frame cache is built where it isn't yet.

    Args:
        config: the policy's, which says which past and future frames a sample has.
        shares: share of each source over the run, for statistics.
        how: each dataset is opened, as of `CachedLeRobotDataset`.
    """
    # It asks for features and rate only, and LeRobot's own metadata takes long to open.
    offsets = factory.resolve_delta_timestamps(config, opened.datasets[0])
    datasets = [
        CachedLeRobotDataset(
            f"local/{info.root.name}",
            root=info.root,
            delta_timestamps=offsets,
            return_uint8=True,
            **how,
        )
        for info in opened.datasets
    ]
    # A cache of smaller pictures says so in its dataset's metadata, not in the folder's.
    meta = common_meta(opened, [d.meta for d in datasets], shares)
    actions = config.action_delta_indices if ACTION in meta.features else None
    return MixtureDataset(opened, datasets, meta, actions)


class TakeBatches(torch.utils.data.Dataset[Tensors]):
    """Batches for a training of one or more processes, as a dataset of steps.

    Args:
        drop_last: frames at the end of a take that the policy doesn't want to start from.
        workers: processes that fetch ahead; 0 fetches in this one.
    """

    def __init__(
        self,
        opened: OpenMixture,
        dataset: MixtureDataset,
        *,
        batch_size: int,
        drop_last: int = 0,
        workers: int = 0,
        alter: Alter | None = None,
    ) -> None:
        self.mixture = opened.mixture(batch_size, drop_last=drop_last)
        self._dataset, self._workers, self._alter = dataset, workers, alter

    def batch(self, step: int) -> Tensors:
        """Return the batch of a step, the same whenever it is asked for."""
        drawn = self.mixture.batch(step)
        tensors = collated(self._dataset, _keys(drawn.dataset, drawn.frame))
        return self._alter(tensors, step) if self._alter else tensors

    def stream(self, first: int) -> Iterator[Tensors]:
        """Yield the batches of steps `first`, `first + 1`, … without end."""
        loader = torch.utils.data.DataLoader(  # fetches ahead in other processes
            self,
            batch_size=None,
            sampler=range(first, ENDLESS),
            num_workers=self._workers,
            collate_fn=_as_it_is,
        )
        return iter(loader)

    def __getitem__(self, step: int) -> Tensors:
        return self.batch(step)


def _as_it_is(batch: Any) -> Any:
    return batch


def collated(dataset: MixtureDataset, keys: Sequence[tuple[int, int]]) -> Tensors:
    """Return samples as one batch, pictures as float in [0, 1], shape (b, 3, height, width)."""
    batch: Tensors = lerobot_collate_fn(dataset.__getitems__(keys))
    for key in dataset.meta.camera_keys:
        if key in batch and batch[key].dtype == torch.uint8:
            batch[key] = batch[key].to(torch.float32) / 255.0
    return batch


def _keys(datasets: Any, frames: Any) -> list[tuple[int, int]]:
    return list(zip(datasets.tolist(), frames.tolist(), strict=True))


# -- visual randomisation ----------------------------------------------------------------------

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
