"""LeRobot's reader with the slow parts replaced: numbers from memory, pictures from the cache."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch
from lerobot.datasets.dataset_reader import DatasetReader
from lerobot.datasets.depth_utils import MM_PER_METRE
from torch.utils.data import get_worker_info

from gaploop.datasets.cache.folder import CacheOptions, Progress
from gaploop.datasets.cache.lerobot_batches import FetchedBatch, empty_pictures
from gaploop.datasets.cache.lerobot_columns import numeric_columns
from gaploop.datasets.cache.lerobot_decode import Clip, Decoding, scaled
from gaploop.datasets.cache.lerobot_frames import NoRoomError, cache_pictures
from gaploop.datasets.cache.packs import Int64Array, PictureStore

log = logging.getLogger(__name__)

THREADS: Final = min(4, os.cpu_count() or 1)
"""Pictures read at once where there are no worker processes."""


class CachedReader(DatasetReader):  # type: ignore[misc]
    """LeRobot's reader, after `take_over` with a frame cache."""

    stores: Mapping[str, PictureStore]
    """The cameras whose pictures come from the cache."""

    def take_over(self, plain: DatasetReader, cache: CacheOptions, progress: Progress) -> None:
        """Take the table that `plain` has loaded, and cache its pictures."""
        self.hf_dataset = plain.hf_dataset
        self._build_index_mapping()
        self._size = cache.size
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
        if cache.mode != "off" and self._cameras and len(self._episode):
            self._fill(cache, progress)
        self._left_over = [c for c in self._meta.video_keys if c not in self.stores]
        self._set_shapes()

    def __getstate__(self) -> dict[str, Any]:
        # The parent process says that the cache is in use, and threads can't be taken along.
        return {**self.__dict__, "_in_use": None, "_pool": None}

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return one item."""
        return dict(self.get_items([idx])[0])

    def get_items(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`, fetched together."""
        rows = self._rows(indices)
        windows = self._windows(rows)
        whole = {c: self._pictures(c, windows.get(c, rows[:, None])) for c in self.stores}
        for name, values in self._columns.items():
            whole[name] = values[torch.from_numpy(windows.get(name, rows))]
        whole |= self._padding(rows)
        tasks = self._columns["task_index"].numpy()[rows]
        batch = FetchedBatch({**whole, "task": [self._tasks[t] for t in tasks]}, len(rows))
        if self._image_transforms is None and not self._left_over and self._others is None:
            return batch
        return [
            self._completed(dict(item), int(row), {n: w[k] for n, w in windows.items()})
            for k, (item, row) in enumerate(zip(batch, rows, strict=True))
        ]

    # What belongs to a batch.

    def _rows(self, indices: Sequence[int]) -> Int64Array:
        n = len(self._episode)
        rows = np.array([operator.index(i) for i in indices], dtype=np.int64)
        rows[rows < 0] += n
        if len(rows) and (rows.min() < 0 or rows.max() >= n):
            raise IndexError(f"Index {indices} is out of range for {n} frames.")
        return rows

    def _windows(self, rows: Int64Array) -> dict[str, Int64Array]:
        """Return the rows that `delta_timestamps` asks for, at a take's ends the last inside."""
        index = self._columns["index"].numpy()[rows, None]
        first, last = self._start[rows, None], self._end[rows, None] - 1
        return {
            key: self._row_of(np.clip(index + np.array(deltas), first, last))
            for key, deltas in (self.delta_indices or {}).items()
        }

    def _row_of(self, index: Int64Array) -> Int64Array:
        if self._absolute_to_relative_idx is None:
            return index
        flat = [self._absolute_to_relative_idx[i] for i in index.ravel().tolist()]
        return np.array(flat, dtype=np.int64).reshape(index.shape)

    def _padding(self, rows: Int64Array) -> dict[str, torch.Tensor]:
        index = self._columns["index"].numpy()[rows, None]
        first, end = self._start[rows, None], self._end[rows, None]
        result = {}
        for key, deltas in (self.delta_indices or {}).items():
            at = index + np.array(deltas)
            result[f"{key}_is_pad"] = torch.from_numpy((at < first) | (at >= end))
        return result

    def _pictures(self, camera: str, rows: Int64Array) -> torch.Tensor:
        """Return cached pictures, shape (b, t, 3, height, width), without t where it is 1."""
        store, flat = self.stores[camera], rows.reshape(-1)
        batch = empty_pictures(store.layout(len(flat)))
        out = batch.numpy()
        for position in store.read(flat, out, self._threads()).tolist():
            picture = self._instead(camera, int(flat[position]))
            out[position] = picture if store.codec == "raw" else picture.permute(1, 2, 0)
        if store.codec == "jpeg":
            batch = batch.permute(0, 3, 1, 2)
        if rows.shape[1] > 1:
            batch = batch.reshape(*rows.shape, *batch.shape[1:])
        return self._finished(batch)

    def _instead(self, camera: str, row: int) -> torch.Tensor:
        """Return a picture from its video, because the cache has lost it."""
        log.warning(
            "A cached picture of %s (episode %d) is damaged; it is read from the video, and the "
            "episode is cached anew at the next start.", camera, self._episode[row],
        )  # fmt: skip
        self.stores[camera].forget(row)
        times = {camera: self._times_s(np.array([row]))}
        return self._scaled(self._query_videos(times, int(self._episode[row]))[camera])

    def _finished(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.type(torch.float32) / 255 if self._as_float else pictures

    def _scaled(self, pictures: torch.Tensor) -> torch.Tensor:
        """Scale pictures (…, 3, height, width)."""
        if self._size is None:
            return pictures
        flat = pictures.reshape(-1, *pictures.shape[-3:]).permute(0, 2, 3, 1).numpy()
        done = np.stack([scaled(p, self._size).transpose(2, 0, 1) for p in flat])
        return torch.from_numpy(done).reshape(*pictures.shape[:-2], *self._size)

    def _threads(self) -> ThreadPoolExecutor | None:
        if get_worker_info() is not None or THREADS == 1:
            return None
        if self._pool is None or self._pool[0] != os.getpid():  # threads don't survive a fork
            self._pool = (os.getpid(), ThreadPoolExecutor(THREADS))
        return self._pool[1]

    # What LeRobot's own code reads, item by item.

    def _completed(
        self, item: dict[str, Any], row: int, windows: Mapping[str, Int64Array]
    ) -> dict[str, Any]:
        """Add what isn't in `item` yet: other columns, uncached cameras; then transform."""
        if self._others is not None:
            item |= self._others[row]
            for name in self._others.column_names:
                if name in windows:
                    item[name] = torch.stack(self._others[windows[name].tolist()][name])
        item |= self._decoded(row, windows)
        if self._image_transforms is not None:
            for camera in self._meta.camera_keys:
                if camera not in self._meta.depth_keys:
                    item[camera] = self._image_transforms(item[camera])
        for key, unit in self._image_depth_units.items():
            if key in item and unit is not None and unit != self._depth_output_unit:
                item[key] = item[key] * MM_PER_METRE if unit == "m" else item[key] / MM_PER_METRE
        order = dict.fromkeys([*self._meta.video_keys, *self.hf_dataset.column_names, *item])
        return {name: item[name] for name in order}

    def _decoded(self, row: int, windows: Mapping[str, Int64Array]) -> dict[str, torch.Tensor]:
        if not self._left_over:
            return {}
        times = {c: self._times_s(windows.get(c, np.array([row]))) for c in self._left_over}
        found = self._query_videos(times, int(self._episode[row]))
        cameras = [c for c in found if c in self._cameras]
        return {**found, **{c: self._finished(self._scaled(found[c])) for c in cameras}}

    def _times_s(self, rows: Int64Array) -> list[float]:
        times: list[float] = self._columns["timestamp"][torch.from_numpy(rows)].tolist()
        return times

    # Once.

    def _fill(self, cache: CacheOptions, progress: Progress) -> None:
        decoding = Decoding(self.root, self._video_backend, self._tolerance_s, self._size)
        try:
            found = cache_pictures(self._clips(), len(self._episode), decoding, cache, progress)
        except NoRoomError as error:
            log.warning(
                "No frame cache for %s: %s. Its videos are decoded for every sample, which is "
                "slower; make room, or give --cache.dir, --cache.max_gb or --cache.size.",
                self.root, error,
            )  # fmt: skip
            return
        self._in_use, self.stores = found

    def _clips(self) -> list[Clip]:
        times_s = self._columns["timestamp"].numpy().astype(np.float64)
        order = np.argsort(self._episode, kind="stable")
        episodes, firsts = np.unique(self._episode[order], return_index=True)
        rows_of = dict(zip(episodes.tolist(), np.split(order, firsts[1:]), strict=True))
        clips = []
        for camera in self._cameras:
            starts_s = self._per_episode(f"videos/{camera}/from_timestamp")
            for episode, rows in rows_of.items():
                video = str(self._meta.get_video_file_path(episode, camera))
                shown_s = float(starts_s[episode]) + times_s[rows]
                clips.append(Clip(episode, camera, video, shown_s, rows, self._shape(camera)))
        return clips

    def _per_episode(self, column: str) -> np.ndarray[Any, Any]:
        return np.asarray(self._meta.episodes.data.column(column).to_numpy())

    def _shape(self, camera: str) -> tuple[int, int]:
        """Return a camera's height and width [px]."""
        first, second, third = self._meta.features[camera]["shape"]
        return (second, third) if first in (1, 3) else (first, second)

    def _set_shapes(self) -> None:
        """Give the features the size that pictures are scaled to: policies are built after it."""
        if self._size is None:
            return
        for camera in self._cameras:
            feature = self._meta.features[camera]
            channels_first = feature["shape"][0] in (1, 3)
            shape = (3, *self._size) if channels_first else (*self._size, 3)
            self._meta.features[camera] = {**feature, "shape": shape}
