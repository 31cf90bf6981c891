"""A new dataset of LeRobot's v3, written one episode after the other, without LeRobot."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.files import write_json
from gaploop.datasets import layout, v3_files
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.video import MAX_FILE_BYTES, open_video
from gaploop.datasets.whole_stats import complete_stats, of_key_frames, of_rows

CODEBASE_VERSION: Final = "v3.0"


class NewDataset:
    """A dataset on its way to `root`; nobody can read it before `finish`."""

    def __init__(
        self, root: Path, fps: float, robot_type: str, features: Mapping[str, Mapping[str, Any]]
    ) -> None:
        every = {**features, **v3_files.AUTOMATIC_FEATURES}
        self._info = DatasetInfo(root, int(fps), every, robot_type, 0, 0)
        self._schema = v3_files.arrow_schema(every)
        self._data = v3_files.DataFiles(self._info)
        self._videos = {k: v3_files.VideoFiles(self._info, k) for k in self._info.video_keys}
        self._rows: list[dict[str, Any]] = []
        self._tasks: dict[str, int] = {}
        self._frames = 0

    def append(
        self, task: str, columns: Mapping[str, NDArray[Any]], videos: Mapping[str, Path]
    ) -> None:
        """Append one episode.

        Args:
            columns: feature to values, one row per frame.
            videos: feature to its encoded video, one picture per frame.
        """
        n, index, first = len(next(iter(columns.values()))), len(self._rows), self._frames
        automatic = {
            "timestamp": np.arange(n) / self._info.fps,
            "frame_index": np.arange(n),
            "episode_index": np.full(n, index),
            "index": np.arange(first, first + n),
            "task_index": np.full(n, self._tasks.setdefault(task, len(self._tasks))),
        }
        table = v3_files.table_of({**columns, **automatic}, self._schema)
        row = {"episode_index": index, "tasks": [task], "length": n, **self._data.append(table)}
        row |= {"dataset_from_index": first, "dataset_to_index": first + n}
        stats = of_rows(table, self._info)
        for key, path in videos.items():
            row |= self._videos[key].append(path, None, n)
            stats[key] = of_key_frames(path)
        row |= {f"stats/{k}/{s}": v.tolist() for k, own in stats.items() for s, v in own.items()}
        self._rows.append(row)
        self._frames += n

    def finish(self) -> None:
        """Close the files and write what describes them."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._data.close)
            for files in self._videos.values():
                stack.callback(files.close)
        info, features = self._info, dict[str, Any]()
        for name, spec in info.features.items():
            features[name] = {**spec, "shape": list(spec["shape"])}
            if name in self._videos and "video.codec" not in (spec.get("info") or {}):
                features[name]["info"] = _about_video(
                    info.root / info.video_name(name, 0, 0), info.fps
                )
        (info.root / layout.INFO).parent.mkdir(parents=True, exist_ok=True)
        write_json(
            info.root / layout.INFO,
            {
                "codebase_version": CODEBASE_VERSION,
                "fps": info.fps,
                "features": features,
                "total_episodes": len(self._rows),
                "total_frames": self._frames,
                "total_tasks": len(self._tasks),
                "chunks_size": v3_files.CHUNK_FILES,
                "data_files_size_in_mb": v3_files.DATA_FILE_BYTES >> 20,
                "video_files_size_in_mb": MAX_FILE_BYTES >> 20,
                "data_path": layout.DATA_PATH,
                "video_path": layout.VIDEO_PATH if self._videos else None,
                "robot_type": info.robot_type or None,
                "splits": {"train": f"0:{len(self._rows)}"},
            },
        )
        v3_files.write_tasks(info.root, {i: task for task, i in self._tasks.items()})
        v3_files.write_episodes(info.root, pa.Table.from_pylist(self._rows))
        complete_stats(layout.parse_info(info.root))


def _about_video(path: Path, fps: float) -> dict[str, Any]:
    """Return what LeRobot notes of a camera's video."""
    with open_video(path) as container:
        context = container.streams.video[0].codec_context
        return {
            "video.height": context.height,
            "video.width": context.width,
            "video.codec": context.codec.canonical_name,
            "video.pix_fmt": context.pix_fmt,
            "video.fps": int(fps),
            "video.channels": len(context.format.components),
            "has_audio": False,
            "is_depth_map": False,
        }
