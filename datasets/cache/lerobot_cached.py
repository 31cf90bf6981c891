"""LeRobotDataset with its pictures in a frame cache and its numbers in memory.

A drop-in: the same constructor, items, metadata and length. Pictures come from a cache that is
built on first use; whole batches are fetched at once. Where the cache can't be had the videos
are decoded for every sample, as LeRobot does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from gaploop.datasets.cache.folder import CacheOptions, Progress
from gaploop.datasets.cache.lerobot_cached_reader import CachedReader
from gaploop.datasets.cache.packs import PictureStore


@contextlib.contextmanager
def silent(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show no progress."""
    del description, total
    yield lambda _: None


class CachedLeRobotDataset(LeRobotDataset):  # type: ignore[misc]
    """LeRobotDataset that reads from a frame cache.

    Args:
        *args: as for `LeRobotDataset`.
        cache: how pictures are cached. With a size, features and pictures have that size.
        progress: shows that the cache is being built.
        **kwargs: as for `LeRobotDataset`.

    Raises:
        UnusableInputError: a video can't be read, or lacks a picture for some row.
    """

    def __init__(
        self,
        *args: Any,
        cache: CacheOptions | None = None,
        progress: Progress = silent,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        reader = CachedReader(
            meta=self.meta,
            root=self.root,
            episodes=self.episodes,
            tolerance_s=self.tolerance_s,
            video_backend=self._video_backend,
            delta_timestamps=self.delta_timestamps,
            image_transforms=self.image_transforms,
            return_uint8=self._return_uint8,
            depth_output_unit=self._depth_output_unit,
        )
        plain: DatasetReader = self._ensure_reader()
        reader.take_over(plain, cache or CacheOptions(), progress)
        self.reader = reader

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`, fetched together; PyTorch's DataLoader calls it."""
        items: list[Any] = self.reader.get_items(indices)
        return items

    @property
    def cached(self) -> Mapping[str, PictureStore]:
        """The cameras whose pictures come from the cache, and where they are."""
        stores: Mapping[str, PictureStore] = self.reader.stores
        return stores
