"""LeRobot's dataset writer, fed with whole takes and with videos that are already encoded.

LeRobot's own `save_episode` encodes anew and copies the growing mp4 for every episode. Here
packets go straight into the dataset's mp4, and image statistics come from its key frames.
Written against LeRobot 0.6.1 (`lerobot/datasets/dataset_writer.py`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.dataset_writer import DatasetWriter
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.datasets.image_writer import write_image
from lerobot.datasets.io_utils import write_info
from numpy.typing import NDArray

from gaploop.core.take import Images
from gaploop.datasets import layout
from gaploop.datasets.v3_files import DataFiles, VideoFiles, file_number, table_of
from gaploop.datasets.whole_stats import complete_stats, of_key_frames


class _TakeVideos:
    """Stands where LeRobot expects its streaming encoder: the take's videos, already encoded."""

    def __init__(self) -> None:
        self.sources: Mapping[str, Path] = {}

    def finish_episode(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """Return each video with statistics of its key frames, channel by channel, 0 to 255."""
        found = {}
        for key, path in self.sources.items():
            stats = of_key_frames(path).items()
            found[key] = path, {n: v if n == "count" else 255.0 * v.reshape(-1) for n, v in stats}
        return found

    def cancel_episode(self) -> None:
        self.sources = {}

    def close(self) -> None:
        """Nothing is held open between episodes."""


class EncodedTakeWriter(DatasetWriter):  # type: ignore[misc]  # LeRobot is not typed
    """A dataset writer that appends already encoded videos."""

    def __init__(self, meta: LeRobotDatasetMetadata) -> None:
        self._videos = _TakeVideos()
        # LeRobot asks for a task's index in every row, and the answer comes from a table.
        look_up, known = meta.get_task_index, dict[str, int]()

        def get_task_index(task: str) -> int | None:
            if task not in known and (index := look_up(task)) is not None:
                known[task] = index
            return known.get(task)

        meta.get_task_index = get_task_index
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
        self._length = 0
        info, last = layout.parse_info(meta.root), meta.episodes[-1] if meta.episodes else None
        self._data = DataFiles(info, -1 if last is None else file_number(last, "data"))
        self._camera_files = {
            key: VideoFiles(info, key, -1 if last is None else file_number(last, f"videos/{key}"))
            for key in info.video_keys
        }

    def save_take(
        self,
        task: str,
        columns: Mapping[str, NDArray[Any]],
        videos: Mapping[str, Path],
        depth: Mapping[str, Images],
    ) -> None:
        """Append one episode.

        Args:
            columns: feature to values, one row per frame.
            videos: feature to its encoded video, one picture per frame.
            depth: feature to its pictures, stored as LeRobot stores them: lossless TIFF in the
                rows. Until the rows are written they lie under `images` of this dataset.
        """
        self._length = n = len(next(iter(columns.values())))
        meta = self._meta
        self._videos.sources = videos
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
        for key, pictures in depth.items():
            for k, picture in enumerate(pictures()):
                path = self._get_image_file_path(meta.total_episodes, key, k)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_image(picture, path)
                buffer[key].append(str(path))
        self.save_episode(episode_data=buffer)
        shutil.rmtree(self._root / "images", ignore_errors=True)

    def _save_episode_data(self, episode_buffer: dict[str, Any]) -> dict[str, Any]:
        """Append the rows to the data file of this session.

        LeRobot maps over every row here to embed images, of which there are mostly none: 0.5 s a
        take.
        """
        schema = get_hf_features_from_features(self._meta.features).arrow_schema
        arrays: dict[str, Any] = {
            name: [{"bytes": Path(path).read_bytes(), "path": Path(path).name} for path in values]
            if name in self._meta.image_keys
            else np.asarray(values)
            for name, values in ((name, episode_buffer[name]) for name in schema.names)
        }
        first = self._meta.total_frames
        place = self._data.append(table_of(arrays, schema))
        last = first + len(arrays["index"])
        return {**place, "dataset_from_index": first, "dataset_to_index": last}

    def _save_episode_video(
        self, video_key: str, episode_index: int, temp_path: Path | None = None
    ) -> dict[str, Any]:
        if temp_path is None:
            raise ValueError(f"no video was given for {video_key}")
        place = self._camera_files[video_key].append(temp_path, None, self._length)
        return {"episode_index": episode_index, **place}

    def finalize(self) -> None:
        """Close videos and tables. Without it the dataset can't be read."""
        if not self._finalized:
            with contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.closing(self._data))
                for files in self._camera_files.values():
                    stack.enter_context(contextlib.closing(files))
            for key in self._videos.sources:
                if not (self._meta.features[key].get("info") or {}).get("video.codec"):
                    self._meta.update_video_info(key)
                    write_info(self._meta.info, self._meta.root)
        super().finalize()
        complete_stats(layout.parse_info(self._meta.root))


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


def require_loads(root: Path) -> None:
    """Refuse a dataset whose metadata LeRobot can't read.

    Only the metadata: opening the frames would leave a copy of them in Hugging Face's cache.
    `gaploop check` compares frames and videos with it.
    """
    with layout.reraise_as_damaged(
        f"LeRobot can't load {root}", f"Find out more with: gaploop check {root}"
    ):
        metadata = LeRobotDatasetMetadata(f"local/{root.name}", root=root)
        if metadata.episodes is None or not len(metadata.episodes):
            raise ValueError("it has no episodes")
