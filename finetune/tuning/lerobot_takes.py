"""Batches of takes with pictures, as any LeRobot policy is fed: a pure function of the step.

Frames come through LeRobot's dataset with the frame cache, draws from `datasets.mixing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from lerobot.datasets import factory
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.utils.collate import lerobot_collate_fn

from gaploop.datasets.cache.folder import CacheOptions, Progress
from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset, silent
from gaploop.datasets.mixing.lerobot_mixture import ENDLESS, MixtureDataset, common_meta
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.tuning.held_out import TakeNote

type Tensors = dict[str, Any]
type Alter = Callable[[Tensors, int], Tensors]
"""Changes a batch of a step, such as by visual randomisation."""

FRAMES: Final = 16
"""Frames of a held-out take that are looked at: neighbours are alike, pictures are dear."""


def open_takes(
    opened: OpenMixture,
    config: Any,
    shares: Any,
    cache: CacheOptions,
    progress: Progress = silent,
) -> MixtureDataset:
    """Open a mixture's datasets for a policy; the frame cache is built where it isn't yet.

    Args:
        opened: the mixture.
        config: the policy's, which says which past and future frames a sample has.
        shares: share of each source over the run, for statistics.
        cache: how pictures are cached.
        progress: shows that the cache is being built.
    """
    first = opened.datasets[0].root
    reference = LeRobotDatasetMetadata(f"local/{first.name}", root=first)
    offsets = factory.resolve_delta_timestamps(config, reference)
    datasets = [
        CachedLeRobotDataset(
            f"local/{info.root.name}",
            root=info.root,
            delta_timestamps=offsets,
            return_uint8=True,
            cache=cache,
            progress=progress,
        )
        for info in opened.datasets
    ]
    meta = common_meta(opened, [d.meta for d in datasets], shares)
    return MixtureDataset(opened, datasets, meta, config.action_delta_indices)


def note_of(take: MixedTake) -> TakeNote:
    """Return what decisions need to know of a take."""
    info = take.episode.info
    return TakeNote(info.uid, info.session, dict(info.dimensions), take.episode.index)


def parted(opened: OpenMixture, aside: frozenset[str]) -> tuple[OpenMixture, tuple[MixedTake, ...]]:
    """Split the takes with these uids off a mixture."""
    held = tuple(t for t in opened.takes if t.episode.info.uid in aside)
    kept = tuple(t for t in opened.takes if t.episode.info.uid not in aside)
    return replace(opened, takes=kept), held


class TakeBatches:
    """Batches for a training of one or more processes.

    Args:
        opened: the mixture.
        dataset: its frames.
        batch_size: samples per step and process.
        ranks: the processes.
        drop_last: frames at the end of a take that the policy doesn't want to start from.
        workers: processes that fetch ahead; 0 fetches in this one.
        alter: changes every batch; nothing if None.
    """

    def __init__(
        self,
        opened: OpenMixture,
        dataset: MixtureDataset,
        *,
        batch_size: int,
        ranks: Ranks,
        drop_last: int = 0,
        workers: int = 0,
        alter: Alter | None = None,
    ) -> None:
        self.mixture = opened.mixture(batch_size, ranks.size, drop_last)
        self._dataset, self._rank, self._workers, self._alter = dataset, ranks.rank, workers, alter

    def batch(self, step: int) -> Tensors:
        """Return this process's batch of a step, the same whenever it is asked for."""
        drawn = self.mixture.batch(step, self._rank)
        tensors = collated(self._dataset, _keys(drawn.dataset, drawn.frame))
        return self._alter(tensors, step) if self._alter else tensors

    def stream(self, first: int) -> Iterator[Tensors]:
        """Yield the batches of steps `first`, `first + 1`, … without end."""
        loader = torch.utils.data.DataLoader(
            _Steps(self, first),
            batch_size=None,
            num_workers=self._workers,
            collate_fn=_as_it_is,
        )
        return iter(loader)


class _Steps(torch.utils.data.Dataset[Tensors]):
    """Steps as a dataset, so that PyTorch's loader fetches them ahead in other processes."""

    def __init__(self, batches: TakeBatches, first: int) -> None:
        self._batches, self._first = batches, first

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, place: int) -> Tensors:
        return self._batches.batch(self._first + place)


def _as_it_is(batch: Any) -> Any:
    return batch


def held_out_batches(
    dataset: MixtureDataset, takes: Sequence[MixedTake], frames: int = FRAMES
) -> Iterator[tuple[str, Tensors]]:
    """Yield uid and samples of every held-out take, its frames evenly spaced."""
    for take in takes:
        places = np.linspace(0, len(take.frames) - 1, min(frames, len(take.frames)))
        chosen = take.frames[places.round().astype(int)]
        yield (
            take.episode.info.uid,
            collated(dataset, _keys(np.full(len(chosen), take.dataset), chosen)),
        )


def collated(dataset: MixtureDataset, keys: Sequence[tuple[int, int]]) -> Tensors:
    """Return samples as one batch, pictures as float in [0, 1], shape (b, 3, height, width)."""
    batch: Tensors = lerobot_collate_fn(dataset.__getitems__(keys))
    for key in dataset.meta.camera_keys:
        if key in batch and batch[key].dtype == torch.uint8:
            batch[key] = batch[key].to(torch.float32) / 255.0
    return batch


def _keys(datasets: Any, frames: Any) -> list[tuple[int, int]]:
    return list(zip(datasets.tolist(), frames.tolist(), strict=True))
