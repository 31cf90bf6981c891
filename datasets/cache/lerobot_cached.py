"""LeRobotDataset with its pictures in a frame cache and its numbers in memory.

A drop-in: the same constructor, items, metadata and length. Pictures come from a cache that is
built on first use; whole batches are fetched at once. Where the cache can't be had the videos
are decoded for every sample, as LeRobot does.
"""

import contextlib
import logging
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.depth_utils import MM_PER_METRE
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from gaploop.datasets.cache.folder import CacheOptions, Int64Array, PictureStore, Progress
from gaploop.datasets.cache.lerobot_frames import (
    Clip,
    Decoding,
    NoRoomError,
    all_scaled,
    cache_pictures,
)

log = logging.getLogger(__name__)
THREADS: Final = min(4, os.cpu_count() or 1)
"""Pictures read at once where there are no worker processes."""


@contextlib.contextmanager
def silent(_description: str, _total: int) -> Iterator[Callable[[int], None]]:
    """Show no progress."""
    yield lambda _: None


class CachedLeRobotDataset(LeRobotDataset):  # type: ignore[misc]
    """LeRobotDataset that reads from a frame cache.

    Args:
        cache: how pictures are cached. With a size, features and pictures have that size.

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


# LeRobot's reader with the slow parts replaced: numbers from memory, pictures from the cache.


class CachedReader(DatasetReader):  # type: ignore[misc]
    """LeRobot's reader, after `take_over` with a frame cache."""

    stores: Mapping[str, PictureStore]
    """The cameras whose pictures come from the cache."""

    def take_over(self, plain: DatasetReader, cache: CacheOptions, progress: Progress) -> None:
        """Take the table that `plain` has loaded, and cache its pictures if there is room."""
        self.hf_dataset = plain.hf_dataset
        self._build_index_mapping()
        self._size = cache.shape
        # Pictures become float in the end, where that is asked for; scaling wants them as bytes.
        self._as_float = not plain._return_uint8
        self._return_uint8 = True
        self._columns = numeric_columns(self.hf_dataset, self._meta.features)
        others = [c for c in self.hf_dataset.column_names if c not in self._columns]
        self._others = self.hf_dataset.select_columns(others) if others else None
        self._episode = self._columns["episode_index"].numpy()
        self._start = self._per_episode("dataset_from_index")[self._episode]
        self._end = self._per_episode("dataset_to_index")[self._episode]
        self._tasks = list(self._meta.tasks.index)
        self._cameras = [k for k in self._meta.video_keys if k not in self._meta.depth_keys]
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._in_use: Any = None
        self.stores = {}
        if cache.keep and self._cameras and len(self._episode):
            times_s = self._columns["timestamp"].numpy().astype(np.float64)
            order = np.argsort(self._episode, kind="stable")
            episodes, firsts = np.unique(self._episode[order], return_index=True)
            rows_of = dict(zip(episodes.tolist(), np.split(order, firsts[1:]), strict=True))
            clips = []
            for camera in self._cameras:
                first, second, third = self._meta.features[camera]["shape"]
                size = (second, third) if first in (1, 3) else (first, second)
                starts_s = self._per_episode(f"videos/{camera}/from_timestamp")
                for episode, rows in rows_of.items():
                    video = str(self._meta.get_video_file_path(episode, camera))
                    shown_s = float(starts_s[episode]) + times_s[rows]
                    clips.append(Clip(episode, camera, video, shown_s, rows, size))
            decoding = Decoding(self.root, self._video_backend, self._tolerance_s, self._size)
            try:
                found = cache_pictures(clips, len(self._episode), decoding, cache, progress)
                self._in_use, self.stores = found
            except NoRoomError as error:
                log.warning(
                    "No frame cache for %s: %s. Its videos are decoded for every sample, which is "
                    "slower; make room, or give --cache.max_gb or --cache.size.",
                    self.root, error,
                )  # fmt: skip
        self._left_over = [c for c in self._meta.video_keys if c not in self.stores]
        # The features get the size that pictures are scaled to: policies are built after it.
        for camera in self._cameras if cache.shape is not None else ():
            feature, scaled = self._meta.features[camera], cache.shape or ()
            channels_first = feature["shape"][0] in (1, 3)
            shape = (3, *scaled) if channels_first else (*scaled, 3)
            self._meta.features[camera] = {**feature, "shape": shape}

    def __getstate__(self) -> dict[str, Any]:
        # The parent process says that the cache is in use, and threads can't be taken along.
        return {**self.__dict__, "_in_use": None, "_pool": None}

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return one item."""
        return dict(self.get_items([idx])[0])

    def get_items(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`, fetched together."""
        n = len(self._episode)
        rows = np.array([operator.index(i) for i in indices], dtype=np.int64)
        rows[rows < 0] += n
        if len(rows) and (rows.min() < 0 or rows.max() >= n):
            raise IndexError(f"Index {indices} is out of range for {n} frames.")
        # The rows that `delta_timestamps` asks for: at a take's ends the last inside, as padding.
        windows: dict[str, Int64Array] = {}
        padding: dict[str, torch.Tensor] = {}
        index = self._columns["index"].numpy()[rows, None]
        first, end = self._start[rows, None], self._end[rows, None]
        for key, deltas in (self.delta_indices or {}).items():
            at = index + np.array(deltas)
            padding[f"{key}_is_pad"] = torch.from_numpy((at < first) | (at >= end))
            window = np.clip(at, first, end - 1)
            if self._absolute_to_relative_idx is not None:
                flat = [self._absolute_to_relative_idx[i] for i in window.ravel().tolist()]
                window = np.array(flat, dtype=np.int64).reshape(window.shape)
            windows[key] = window
        whole = {c: self._pictures(c, windows.get(c, rows[:, None])) for c in self.stores}
        for name, values in self._columns.items():
            whole[name] = values[torch.from_numpy(windows.get(name, rows))]
        whole |= padding
        tasks = self._columns["task_index"].numpy()[rows]
        batch = FetchedBatch({**whole, "task": [self._tasks[t] for t in tasks]}, len(rows))
        if self._image_transforms is None and not self._left_over and self._others is None:
            return batch
        # What isn't in the batch: other columns, uncached cameras. Then transforms.
        items = []
        for k, row in enumerate(rows.tolist()):
            item: dict[str, Any] = dict(batch[k])
            if self._others is not None:
                item |= self._others[row]
                for name in self._others.column_names:
                    if name in windows:
                        item[name] = torch.stack(self._others[windows[name][k].tolist()][name])
            if self._left_over:
                wanted = {c: windows[c][k] if c in windows else rows[[k]] for c in self._left_over}
                times = {c: self._times_s(own) for c, own in wanted.items()}
                item |= (found := self._query_videos(times, int(self._episode[row])))
                for c in found:
                    if c in self._cameras:
                        item[c] = self._finished(self._scaled(found[c]))
            if self._image_transforms is not None:
                for camera in self._meta.camera_keys:
                    if camera not in self._meta.depth_keys:
                        item[camera] = self._image_transforms(item[camera])
            for key, unit in self._image_depth_units.items():
                if key in item and unit is not None and unit != self._depth_output_unit:
                    metres = unit == "m"
                    item[key] = item[key] * MM_PER_METRE if metres else item[key] / MM_PER_METRE
            order = dict.fromkeys([*self._meta.video_keys, *self.hf_dataset.column_names, *item])
            items.append({name: item[name] for name in order})
        return items

    def _pictures(self, camera: str, rows: Int64Array) -> torch.Tensor:
        """Return cached pictures, shape (b, t, 3, height, width), without t where it is 1."""
        threads = None
        if get_worker_info() is None and THREADS > 1:
            if self._pool is None or self._pool[0] != os.getpid():  # threads don't survive a fork
                self._pool = (os.getpid(), ThreadPoolExecutor(THREADS))
            threads = self._pool[1]
        store, flat = self.stores[camera], rows.reshape(-1)
        batch = empty_pictures(store.layout(len(flat)))
        out = batch.numpy()
        for position in store.read(flat, out, threads).tolist():
            row = int(flat[position])
            log.warning(
                "A cached picture of %s (episode %d) is damaged; it is read from the video, and "
                "the episode is cached anew at the next start.", camera, self._episode[row],
            )  # fmt: skip
            store.forget(row)
            times = {camera: self._times_s(np.array([row]))}
            found = self._query_videos(times, int(self._episode[row]))[camera]
            out[position] = self._scaled(found)
        if rows.shape[1] > 1:
            batch = batch.reshape(*rows.shape, *batch.shape[1:])
        return self._finished(batch)

    def _finished(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.type(torch.float32) / 255 if self._as_float else pictures

    def _scaled(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures if self._size is None else all_scaled(pictures, self._size)

    def _times_s(self, rows: Int64Array) -> list[float]:
        times: list[float] = self._columns["timestamp"][torch.from_numpy(rows)].tolist()
        return times

    def _per_episode(self, column: str) -> np.ndarray[Any, Any]:
        return np.asarray(self._meta.episodes.data.column(column).to_numpy())


# Batches that are fetched whole stay whole: collating them copies nothing. PyTorch's collate stacks
# items one by one, which for pictures is a second copy into fresh memory and the larger part of
# what a fast loader costs. Items here know the batch that they are views of.


class Sample(dict[str, Any]):
    """An item of a batch; PyTorch's collate recognises it by its type."""


class FetchedBatch(list[Sample]):
    """Items that are views of `whole`: tensors of shape (size, …) and lists of that length."""

    def __init__(self, whole: Mapping[str, Any], size: int) -> None:
        parts = {k: v.unbind(0) if isinstance(v, torch.Tensor) else v for k, v in whole.items()}
        super().__init__(Sample({k: v[i] for k, v in parts.items()}) for i in range(size))
        self.whole = dict(whole)
        self._fetched = [dict(sample) for sample in self]

    @property
    def untouched(self) -> bool:
        """Whether the items are still those that were fetched: nobody added or replaced any."""
        return len(self) == len(self._fetched) and all(
            now.keys() == then.keys() and all(map(operator.is_, now.values(), then.values()))
            for now, then in zip(self, self._fetched, strict=True)
        )


def _collate(batch: Sequence[Sample], *, collate_fn_map: object = None) -> Any:
    del collate_fn_map
    if isinstance(batch, FetchedBatch) and batch.untouched:
        return batch.whole
    return default_collate([dict(sample) for sample in batch])


# The way that PyTorch's documentation of `default_collate` gives for types of one's own.
default_collate_fn_map[Sample] = _collate


def empty_pictures(shape: Sequence[int]) -> torch.Tensor:
    """Return memory for a batch of pictures, uint8.

    In a worker process it is shared memory, from where the main process takes it as it is.
    """
    if get_worker_info() is None:
        # NumPy asks for huge pages, PyTorch doesn't: three times as fast to fill.
        return torch.from_numpy(np.empty(tuple(shape), dtype=np.uint8))
    # What `default_collate` itself does in a worker.
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(*shape)


# The numbers of a dataset in memory.


def numeric_columns(table: Any, features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the numeric columns of a Hugging Face dataset, shape (n,) or (n, *shape).

    LeRobot makes tensors from Python values, so floats of any width become float32 and integers
    int64; a feature of shape (1,) becomes a number. A column that holds nulls, lists of unequal
    length or anything else but numbers is left out.

    Args:
        table: the dataset, without a selection of rows.
    """
    found = {}
    for name in table.column_names:
        values = _values(table.data.column(name).combine_chunks())
        shape = tuple(features[name]["shape"]) if name in features else (1,)
        shape = () if shape == (1,) else shape
        if values is not None and len(values) == len(table) * int(np.prod(shape)):
            found[name] = torch.from_numpy(values.reshape(len(table), *shape))
    return found


def _values(array: Any) -> np.ndarray[Any, Any] | None:
    """Return the numbers of an Arrow array end to end, or None where it isn't all numbers."""
    if isinstance(array, pa.ChunkedArray):  # too long for one chunk
        parts = [part for chunk in array.chunks if (part := _values(chunk)) is not None]
        return np.concatenate(parts) if len(parts) == array.num_chunks else None
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        return None
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _values(array.flatten())
    if pa.types.is_boolean(kind):
        return np.array(array.to_numpy(zero_copy_only=False), dtype=bool)
    if pa.types.is_floating(kind):
        return np.array(array.to_numpy(zero_copy_only=False), dtype=np.float32)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return np.array(array.to_numpy(zero_copy_only=False), dtype=np.int64)
    return None
