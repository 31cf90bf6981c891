"""LeRobot's dataset writer, fed with whole takes and with videos that are already encoded.

LeRobot's own `save_episode` encodes anew and copies the growing mp4 for every episode. Here
packets go straight into the dataset's mp4, and image statistics come from its key frames.
Written against LeRobot 0.6.1 (`lerobot/datasets/dataset_writer.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.dataset_writer import DatasetWriter
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.datasets.io_utils import write_info
from lerobot.datasets.utils import update_chunk_file_indices
from numpy.typing import NDArray

from gaploop.datasets.columns import IMAGES
from gaploop.datasets.lerobot_stats import of_key_frames
from gaploop.datasets.video import MAX_FILE_BYTES, VideoWriter


class TakeVideos:
    """Stands where LeRobot expects its streaming encoder: the take's videos, already encoded."""

    def __init__(self) -> None:
        self.sources: dict[str, Path] = {}

    def finish_episode(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """Return each video with statistics of its key frames, channel by channel, 0 to 255."""
        return {key: (path, of_key_frames(path)) for key, path in self.sources.items()}

    def cancel_episode(self) -> None:
        """Forget the videos of the open episode."""
        self.sources = {}

    def close(self) -> None:
        """Nothing is held open between episodes."""


def _remember_tasks(meta: LeRobotDatasetMetadata) -> None:
    """Let `meta` find a task's index at once: LeRobot asks for every row, and asks a table."""
    look_up, known = meta.get_task_index, {}

    def get_task_index(task: str) -> int | None:
        if task not in known and (index := look_up(task)) is not None:
            known[task] = index
        return known.get(task)

    meta.get_task_index = get_task_index


class EncodedTakeWriter(DatasetWriter):  # type: ignore[misc]  # LeRobot is not typed
    """A dataset writer that appends already encoded videos."""

    def __init__(self, meta: LeRobotDatasetMetadata) -> None:
        self._videos = TakeVideos()
        _remember_tasks(meta)
        super().__init__(
            meta=meta,
            root=meta.root,
            rgb_encoder=None,
            depth_encoder=None,
            encoder_threads=None,
            batch_encoding_size=1,
            streaming_encoder=self._videos,
            initial_frames=meta.total_frames,
        )
        self._open: dict[str, VideoWriter] = {}
        self._at: dict[str, tuple[int, int]] = {}
        self._length = 0
        self._data_at: tuple[int, int] | None = None
        self._data_file: Path = self._root
        self._pq_writer: pq.ParquetWriter | None

    def save_take(
        self, task: str, columns: Mapping[str, NDArray[Any]], videos: Mapping[str, Path]
    ) -> None:
        """Append one episode.

        Args:
            columns: feature to values, one row per frame.
            videos: camera to its encoded video, one picture per frame.
        """
        self._length = n = len(next(iter(columns.values())))
        meta = self._meta
        self._videos.sources = {f"{IMAGES}{camera}": path for camera, path in videos.items()}
        buffer: dict[str, Any] = {key: [] for key in meta.features}
        buffer |= {
            **columns,
            "size": n,
            "task": [task] * n,
            "episode_index": meta.total_episodes,
            "frame_index": np.arange(n),
            "timestamp": (np.arange(n) / meta.fps).astype(np.float32),
        }
        # LeRobot's statistics take mean squares in the precision of what they are given: of floats,
        # the spread of a column that hardly varies comes out as 0, and training divides by it.
        for key, values in buffer.items():
            if isinstance(values, np.ndarray) and values.dtype == np.float32:
                buffer[key] = values.astype(np.float64)
        self.save_episode(episode_data=buffer)

    def _save_episode_data(self, episode_buffer: dict[str, Any]) -> dict[str, Any]:
        """Append the rows to the data file of this session.

        LeRobot maps over every row here to embed images, of which there are none: 0.5 s a take.
        """
        table = self._table(episode_buffer)
        first = self._meta.total_frames
        limit = int(self._meta.data_files_size_in_mb * 1024 * 1024)
        if self._pq_writer is not None and self._data_file.stat().st_size >= limit:
            self.close_writer()
        if self._pq_writer is None:
            self._data_at = chunk, file = self._next_data_file()
            name = self._meta.data_path.format(chunk_index=chunk, file_index=file)
            self._data_file = self._root / name
            self._data_file.parent.mkdir(parents=True, exist_ok=True)
            self._pq_writer = pq.ParquetWriter(self._data_file, table.schema)
        self._pq_writer.write_table(table)
        chunk, file = self._data_at or (0, 0)
        return {
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": first,
            "dataset_to_index": first + self._length,
        }

    def _table(self, buffer: Mapping[str, Any]) -> pa.Table:
        """Return the rows with the types, and the note of them, that LeRobot's files have."""
        schema = get_hf_features_from_features(self._meta.features).arrow_schema
        arrays = []
        for spec in schema:
            values = np.asarray(buffer[spec.name])
            if pa.types.is_fixed_size_list(spec.type):
                flat = pa.array(values.reshape(-1), type=spec.type.value_type)
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=spec.type))
            else:
                arrays.append(pa.array(values.reshape(-1), type=spec.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _next_data_file(self) -> tuple[int, int]:
        last = self._data_at
        if last is None:
            if not self._meta.episodes:
                return 0, 0
            row = self._meta.episodes[-1]
            last = (row["data/chunk_index"], row["data/file_index"])
        chunk, file = update_chunk_file_indices(*last, self._meta.chunks_size)
        return int(chunk), int(file)

    def _save_episode_video(
        self, video_key: str, episode_index: int, temp_path: Path | None = None
    ) -> dict[str, Any]:
        if temp_path is None:
            raise ValueError(f"no video was given for {video_key}")
        writer = self._writer(video_key, temp_path)
        first = writer.append(temp_path, self._length)
        chunk, file = self._at[video_key]
        fps = self._meta.fps
        return {
            "episode_index": episode_index,
            f"videos/{video_key}/chunk_index": chunk,
            f"videos/{video_key}/file_index": file,
            f"videos/{video_key}/from_timestamp": first / fps,
            f"videos/{video_key}/to_timestamp": (first + self._length) / fps,
        }

    def _writer(self, video_key: str, source: Path) -> VideoWriter:
        """Return the open mp4, or the next one where this source doesn't fit into it."""
        writer = self._open.get(video_key)
        if writer is not None:
            fits = writer.size_bytes + source.stat().st_size < MAX_FILE_BYTES
            if fits and writer.accepts(source):
                return writer
            writer.close()
        chunk, file = self._at[video_key] = self._next_file(video_key)
        name = self._meta.video_path.format(video_key=video_key, chunk_index=chunk, file_index=file)
        self._open[video_key] = VideoWriter(self._root / name, self._meta.fps)
        return self._open[video_key]

    def _next_file(self, video_key: str) -> tuple[int, int]:
        meta = self._meta
        if video_key in self._at:
            last = self._at[video_key]
        elif meta.episodes:
            row = meta.episodes[-1]
            last = (row[f"videos/{video_key}/chunk_index"], row[f"videos/{video_key}/file_index"])
        else:
            return 0, 0
        chunk, file = update_chunk_file_indices(*last, meta.chunks_size)
        return int(chunk), int(file)

    def finalize(self) -> None:
        """Close videos and tables. Without it the dataset can't be read."""
        if not self._finalized:
            with contextlib.ExitStack() as stack:
                for writer in self._open.values():
                    stack.enter_context(writer)
            for key in self._open:
                if not (self._meta.features[key].get("info") or {}).get("video.codec"):
                    self._meta.update_video_info(key)
                    write_info(self._meta.info, self._meta.root)
        super().finalize()


def open_writer(
    root: Path, repo_id: str, fps: float, robot_type: str, features: Mapping[str, Any]
) -> EncodedTakeWriter:
    """Open the dataset at `root` for appending, or create it; `finalize` must follow."""
    # LeRobot points FFmpeg's log at the terminal after every video; errors are enough there.
    av.logging.set_libav_level(av.logging.ERROR)
    if root.exists():
        return EncodedTakeWriter(LeRobotDatasetMetadata(repo_id, root))
    meta = LeRobotDatasetMetadata.create(
        repo_id, int(fps), dict(features), robot_type=robot_type or None, root=root
    )
    return EncodedTakeWriter(meta)
