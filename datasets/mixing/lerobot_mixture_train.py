"""LeRobot's own training on a mixture.

`lerobot_train.train` has no place to hand a dataset or a sampler in: it calls
`make_train_eval_datasets` and `EpisodeAwareSampler` by name. `mixing` puts ours behind these two
names while it runs; everything else (policies, adapters, accelerate, checkpoints, resuming,
logging) is LeRobot's. Written against LeRobot 0.6.1.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from lerobot.datasets import factory
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.scripts import lerobot_train
from lerobot.transforms import ImageTransforms
from lerobot.utils.constants import ACTION, IMAGENET_STATS

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.datasets.mixing.lerobot_mixture import MixtureDataset, MixtureSampler, common_meta
from gaploop.datasets.mixing.mixture import Mixture
from gaploop.datasets.mixing.report import REPORT, report
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture


@contextlib.contextmanager
def mixing(opened: OpenMixture) -> Iterator[None]:
    """Let LeRobot's `train`, called inside, train on a mixture.

    Raises:
        UnusableInputError: from within `train`, where its options don't go with a mixture.
    """
    names = ("make_train_eval_datasets", "EpisodeAwareSampler")
    before = {name: getattr(lerobot_train, name) for name in names}
    hook = _Hook(opened)
    try:
        lerobot_train.make_train_eval_datasets = hook.datasets
        lerobot_train.EpisodeAwareSampler = hook.sampler
        yield
    finally:
        for name, value in before.items():
            setattr(lerobot_train, name, value)


class _Hook:
    """What LeRobot's training finds behind the two names."""

    def __init__(self, opened: OpenMixture) -> None:
        self._opened = opened
        self._config: Any = None

    def datasets(self, config: Any) -> tuple[MixtureDataset, Any]:
        """Stand for `make_train_eval_datasets`."""
        self._config = config
        if config.dataset.streaming or config.dataset.episodes is not None:
            raise UnusableInputError(
                "--dataset.streaming and --dataset.episodes don't go with --mixture: name "
                "datasets and takes in the mixture."
            )
        held: tuple[MixedTake, ...] = ()
        if config.dataset.eval_split:
            self._opened, held = held_out(self._opened, config.dataset.eval_split)
        shares = self._mixture(0).mean_shares(config.steps)
        train = _dataset(self._opened, config, shares, transformed=True)
        if not held:
            return train, None
        whole = _dataset(replace(self._opened, takes=held), config, shares, transformed=False)
        keys = [(t.dataset, int(f)) for t in held for f in t.frames]
        if config.max_eval_samples > 0:
            chosen = np.linspace(0, len(keys) - 1, min(config.max_eval_samples, len(keys)))
            keys = [keys[int(i)] for i in chosen]
        return train, torch.utils.data.Subset(whole, keys)  # type: ignore[arg-type]

    def sampler(self, *_: Any, drop_n_last_frames: int = 0, **__: Any) -> MixtureSampler:
        """Stand for `EpisodeAwareSampler`."""
        mixture = self._mixture(drop_n_last_frames)
        if PartialState().is_main_process:
            self._report(mixture)
        return MixtureSampler(mixture)

    def _mixture(self, drop_last: int) -> Mixture:
        ranks = PartialState().num_processes
        return self._opened.mixture(self._config.batch_size, ranks, drop_last)

    def _report(self, mixture: Mixture) -> None:
        config = self._config
        folder = config.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REPORT, report(self._opened, mixture, config.steps))


def _dataset(opened: OpenMixture, config: Any, shares: Any, *, transformed: bool) -> MixtureDataset:
    chosen = config.dataset
    first = opened.datasets[0].root
    reference = LeRobotDatasetMetadata(f"local/{first.name}", root=first)
    offsets = factory.resolve_delta_timestamps(config.trainable_config, reference)
    transforms = chosen.image_transforms
    datasets = [
        # By its name in LeRobot's factory: whoever caches pictures puts another class there.
        factory.LeRobotDataset(
            f"local/{info.root.name}",
            root=info.root,
            delta_timestamps=offsets,
            image_transforms=ImageTransforms(transforms)
            if transformed and transforms.enable
            else None,
            video_backend=chosen.video_backend,
            return_uint8=True,
            depth_output_unit=chosen.depth_output_unit,
            tolerance_s=config.tolerance_s,
        )
        for info in opened.datasets
    ]
    # A cache of smaller pictures says so in its dataset's metadata, not in the folder's.
    meta = common_meta(opened, [d.meta for d in datasets], shares)
    if chosen.use_imagenet_stats:
        for key in set(meta.camera_keys) - set(meta.depth_keys):
            known = {k: torch.tensor(v, dtype=torch.float32) for k, v in IMAGENET_STATS.items()}
            meta.stats.setdefault(key, {}).update(known)
    actions = config.trainable_config.action_delta_indices if ACTION in meta.features else None
    return MixtureDataset(opened, datasets, meta, actions)


def held_out(opened: OpenMixture, fraction: float) -> tuple[OpenMixture, tuple[MixedTake, ...]]:
    """Set the last takes of every source and task aside, as LeRobot's `eval_split` does.

    Raises:
        UnusableInputError: a source has no take left to train on.
    """
    groups: dict[tuple[int, str], list[MixedTake]] = {}
    for take in opened.takes:
        groups.setdefault((take.source, take.episode.info.task), []).append(take)
    aside = [t for g in groups.values() for t in g[len(g) - math.ceil(len(g) * fraction) :]]
    chosen = {id(t) for t in aside}
    kept = tuple(t for t in opened.takes if id(t) not in chosen)
    for number, source in enumerate(opened.spec.sources):
        if all(t.source != number for t in kept):
            raise UnusableInputError(
                f"--dataset.eval_split={fraction:g} leaves no take of source '{source.name}' to "
                "train on. Hold out fewer."
            )
    return replace(opened, takes=kept), tuple(aside)
