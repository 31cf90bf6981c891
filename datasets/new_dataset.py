"""A dataset of LeRobot's v3, written or appended to one episode after the other, without LeRobot.

LeRobot's own `save_episode` encodes anew and copies the growing mp4 for every episode. Here packets
of videos that are already encoded go straight into the dataset's, and statistics of pictures were
gathered while they were recorded, or come from key frames.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gaploop.core.files import read_json, write_json
from gaploop.core.statistics import Stats
from gaploop.core.take import Images
from gaploop.datasets import layout, v3_files
from gaploop.datasets.columns import EPISODE_COLUMNS
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.video import MAX_FILE_BYTES, open_video
from gaploop.datasets.whole_stats import complete_stats, of_depth, of_key_frames, of_rows

CODEBASE_VERSION: Final = "v3.0"


class NewDataset:
    """A dataset on its way to `root`; nobody can read what is new before `finish`.

    Where a dataset is there already, it is appended to: its features count.
    """

    def __init__(
        self, root: Path, fps: float, robot_type: str, features: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._described: dict[str, Any] = {}
        self._tasks: dict[str, int] = {}
        self._first = self._frames = 0
        last: dict[str, Any] = {}
        if layout.is_dataset(root):
            info = layout.parse_info(root)
            self._described = read_json(root / layout.INFO)
            self._tasks = {task: i for i, task in enumerate(layout.read_tasks(root / layout.TASKS))}
            last = layout.episode_rows(root)[-1]
            self._first, self._frames = info.total_episodes, info.total_frames
        else:
            every = {**features, **v3_files.AUTOMATIC_FEATURES}
            info = DatasetInfo(root, int(fps), every, robot_type, 0, 0)

        def used(kind: str) -> int:
            return v3_files.file_number(last, kind) if last else -1

        self._info, self._rows = info, list[dict[str, Any]]()
        self._schema = v3_files.arrow_schema(info.features)
        self._data = v3_files.DataFiles(info, used("data"))
        self._videos = {
            key: v3_files.VideoFiles(info, key, used(f"videos/{key}")) for key in info.video_keys
        }

    def append(
        self,
        task: str,
        columns: Mapping[str, NDArray[Any]],
        videos: Mapping[str, Path],
        depth: Mapping[str, Images] | None = None,
        stated: Mapping[str, Stats | None] | None = None,
    ) -> None:
        """Append one episode.

        Args:
            columns: feature to values, one row per frame.
            videos: feature to its encoded video, one picture per frame.
            depth: feature to its pictures, 16 bit, stored as LeRobot stores them: lossless TIFF in
                the rows.
            stated: feature to statistics of its video; computed from key frames where it has none.
        """
        n, first = len(next(iter(columns.values()))), self._frames
        index = self._first + len(self._rows)
        stored = {key: [_tiff(p, k) for k, p in enumerate(d())] for key, d in (depth or {}).items()}
        automatic = {
            "timestamp": np.arange(n) / self._info.fps,
            "frame_index": np.arange(n),
            "episode_index": np.full(n, index),
            "index": np.arange(first, first + n),
            "task_index": np.full(n, self._tasks.setdefault(task, len(self._tasks))),
        }
        table = v3_files.table_of({**columns, **stored, **automatic}, self._schema)
        row = {"episode_index": index, "tasks": [task], "length": n, **self._data.append(table)}
        row |= {"dataset_from_index": first, "dataset_to_index": first + n}
        stats = of_rows(table, self._info)
        for key, path in videos.items():
            row |= self._videos[key].append(path, None, n)
            stats[key] = (stated or {}).get(key) or of_key_frames(path)
        for key, pictures in (depth or {}).items():
            stats[key] = of_depth(pictures(), n)
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
        new = {
            "codebase_version": CODEBASE_VERSION,
            "fps": int(info.fps),
            "chunks_size": v3_files.CHUNK_FILES,
            "data_files_size_in_mb": v3_files.DATA_FILE_BYTES >> 20,
            "video_files_size_in_mb": MAX_FILE_BYTES >> 20,
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self._videos else None,
            "robot_type": info.robot_type or None,
        }
        count = self._first + len(self._rows)
        counts: dict[str, Any] = {"total_episodes": count, "total_frames": self._frames}
        counts |= {"total_tasks": len(self._tasks), "splits": {"train": f"0:{count}"}}
        (info.root / layout.INFO).parent.mkdir(parents=True, exist_ok=True)
        write_json(
            info.root / layout.INFO, {**new, **self._described, "features": features, **counts}
        )
        v3_files.write_tasks(info.root, {i: task for task, i in self._tasks.items()})
        table, before = pa.Table.from_pylist(self._rows), layout.episode_files(info.root)
        if before:  # LeRobot wants all files alike; columns of other tools are empty here
            schema = pq.read_schema(before[-1]).remove_metadata()
            fields = [f for f in schema if f.name not in EPISODE_COLUMNS]
            arrays = [
                table[f.name].cast(f.type) if f.name in table.column_names
                else pa.nulls(len(table), f.type)
                for f in fields
            ]  # fmt: skip
            table = pa.table(arrays, pa.schema(fields))
        v3_files.write_episodes(info.root, table, len(before))
        complete_stats(layout.parse_info(info.root))


def _tiff(picture: NDArray[Any], row: int) -> dict[str, Any]:
    content = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(content, format="TIFF", compression="raw")
    return {"bytes": content.getvalue(), "path": f"frame-{row:06d}.tiff"}


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
