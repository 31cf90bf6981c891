"""A new LeRobot v3 dataset, written without LeRobot; and whole datasets read as recordings.

LeRobot's own `save_episode` encodes anew and copies the growing mp4 for every episode. Here packets
of videos that are already encoded go straight into the dataset's, and statistics of pictures were
gathered while they were recorded, or come from key frames. Episodes come one after another,
pictures one at a time; what `write_dataset` makes is there whole, or not at all.
"""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gaploop.core.consent import Place, note_places
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, regular_file, write_json
from gaploop.core.paths import plain_name
from gaploop.core.statistics import Stats
from gaploop.core.take import Images, TakeInfo
from gaploop.datasets import columns, episodes_table, layout, staging, v3_files, video
from gaploop.datasets.columns import EPISODE_COLUMNS, IMAGES, NUMERIC, PICTURES
from gaploop.datasets.episodes_table import gap_row
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import pictures_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.v3_files import EpisodeReader, to_numpy
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
        number = self._tasks.setdefault(task, len(self._tasks))
        automatic = v3_files.automatic_columns(n, self._info.fps, index, first, number)
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

    def abandon(self) -> None:
        """Close what is open, whether the disk takes it or not; after `finish` that is nothing."""
        for close in (self._data.close, *(files.close for files in self._videos.values())):
            with contextlib.suppress(OSError, av.FFmpegError):
                close()

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
            "video_files_size_in_mb": video.MAX_FILE_BYTES >> 20,
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
    with video.open_video(path) as container:
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


@dataclass(frozen=True)
class About:
    """What is the same for all episodes that are written.

    Attributes:
        features: LeRobot's feature table, without the columns that LeRobot makes itself; numbers
            are vectors, pictures have shape (height, width, 3).
    """

    fps: float
    robot_type: str
    features: Mapping[str, Mapping[str, Any]]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Features that hold numbers, in order."""
        return tuple(n for n, f in self.features.items() if f["dtype"] not in PICTURES)

    @property
    def pictures(self) -> dict[str, str]:
        """Features that hold pictures, in order, each with the camera's short name."""
        found = (n for n, f in self.features.items() if f["dtype"] in PICTURES)
        return {n: n.removeprefix(IMAGES) for n in found}


@dataclass(frozen=True)
class Recording:
    """One episode on its way from one layout to another.

    Attributes:
        columns: feature to values, one row per frame, shape (n,) or (n, width).
        pictures: feature to its pictures, decoded one at a time.
        row: the gap columns of `meta/episodes`; empty without any.
        telemetry: the file of its control-rate record.
    """

    task: str
    length: int
    columns: Mapping[str, NDArray[Any]]
    pictures: Mapping[str, Images]
    row: Mapping[str, Any]
    telemetry: bytes | None = None

    @property
    def uid(self) -> str:
        """The take's uid; "" without gap columns."""
        return str(self.row.get("gap_uid", ""))


def exported_features(info: DatasetInfo) -> tuple[About, tuple[str, ...]]:
    """Return the features that other layouts can hold, and notes about the others.

    Raises:
        UnusableInputError: there is no action.
    """
    features: dict[str, Mapping[str, Any]] = {}
    notes = []
    for name, spec in info.features.items():
        if name in columns.AUTOMATIC:
            continue
        dtype, shape = str(spec.get("dtype")), tuple(int(n) for n in spec.get("shape") or (1,))
        details = spec.get("info") or spec.get("video_info") or {}
        depth = details.get("is_depth_map") or details.get("video.is_depth_map")
        if dtype in PICTURES and not depth and len(shape) == 3:
            height, width, channels = shape if shape[2] in (1, 3) else (*shape[1:], shape[0])
            features[name] = {**spec, "shape": (height, width, channels)}
        elif dtype.startswith(NUMERIC) and len(shape) == 1:
            features[name] = {**spec, "shape": shape}
        else:
            notes.append(f"{name} ({dtype}, shape {shape}) is left out: no layout holds it.")
    if columns.ACTION not in features:
        raise UnusableInputError(
            f"{info.root} has no feature action. Nothing to export. Check it with: gaploop check."
        )
    return About(info.fps, info.robot_type, features), tuple(notes)


def recordings(
    info: DatasetInfo, about: About, episodes: Sequence[EpisodeRow], whole: bool = True
) -> Iterator[Recording]:
    """Yield the episodes, with pictures and telemetry where `whole`.

    Raises:
        UnusableInputError: numbers aren't as described or not finite, which other projects would
            train on.
    """
    reader = EpisodeReader(info, about.numbers)
    for episode in episodes:
        rows, pictures = reader.rows_of(episode), dict[str, Images]()
        for key in about.pictures if whole else ():
            shown = pictures_of(info, episode, key)
            if shown is not None:
                pictures[key] = shown
        values: dict[str, NDArray[Any]] = {}
        for name in about.numbers:
            shape = tuple(about.features[name]["shape"])
            place = f"{info.root}, episode {episode.index}: {name}"
            found = np.asarray(to_numpy(rows[name]))
            if found.dtype.kind not in "fiub":
                raise UnusableInputError(
                    f"{place} holds {rows[name].type}, not numbers. Fix the data file, or see what "
                    f"else is wrong with: gaploop check {info.root}"
                )
            if found.reshape(len(found), -1).shape[1:] != shape:
                raise UnusableInputError(
                    f"{place} has rows of {found[:1].size} numbers, {layout.INFO} says {shape[0]}. "
                    f"Find out more with: gaploop check {info.root}"
                )
            bad = ~np.isfinite(found.reshape(len(found), -1)).all(axis=1)
            if bad.any():
                raise UnusableInputError(
                    f"{place} holds NaN or infinite values, first in row {bad.argmax()}. Policies "
                    "can't train on that: leave the episode out with --episodes."
                )
            values[name] = found.reshape(len(found)) if shape == (1,) else found
        path = telemetry_path(info.root, episode.info.uid)
        record = regular_file(path).read_bytes() if whole and path.exists() else None
        row, task = gap_row(episode), episode.info.task
        yield Recording(task, episode.length, values, pictures, row, record)


def write_dataset(
    about: About,
    episodes: Iterator[Recording],
    target: Path,
    source: Path,
    on_episode: Callable[[], None],
    amend: Callable[[Path], None],
) -> int:
    """Write episodes to `target`, a new or empty folder, and return how many.

    Args:
        about: pictures among its features are of dtype video.
        episodes: what to write. Pictures that stand in a video as they shall be are cut out of it
            without decoding, where they can be. Without gap columns in their rows, the dataset
            gets none.
        source: the dataset that it is made of.
        amend: adds to the new dataset before anybody sees it.

    Raises:
        UnusableInputError: the target isn't empty or can't be written, or an episode can't be
            kept. Nothing is left at the target then.
    """
    target = Path(target).absolute()
    for name, spec in about.features.items():
        plain_name(name, "feature", "the source")
        if "image" in name and spec["dtype"] not in PICTURES:
            raise UnusableInputError(
                f"{name} holds numbers, and LeRobot takes every feature with 'image' in its name "
                "for a picture. Give it another name, or leave it out."
            )
    rows: list[dict[str, Any]] = []
    stage, pictures = staging.sibling(target, "staging"), staging.sibling(target, "pictures")
    with staging.new_folder(target, source):
        shutil.rmtree(pictures, ignore_errors=True)
        writer = NewDataset(stage, about.fps, about.robot_type, about.features)
        try:
            for episode in episodes:
                pictures.mkdir()
                videos: dict[str, Path] = {}
                for key, images in episode.pictures.items():
                    path = videos[key] = pictures / f"{len(videos)}.mp4"
                    _encode(images, path, about, key, episode)
                writer.append(episode.task, episode.columns, videos)
                shutil.rmtree(pictures)
                rows.append(dict(episode.row))
                on_episode()
            writer.finish()
            amend(stage)
            if all(rows):
                episodes_table.materialise(stage, dict(enumerate(rows)))
                infos = [TakeInfo(**columns.info_fields(row)) for row in rows]
                note_places(infos, Place("dataset", str(target)))
            staging.commit(stage, target)
        finally:
            writer.abandon()
            for leftover in (pictures, stage):
                shutil.rmtree(leftover, ignore_errors=True)
    return len(rows)


def _encode(images: Images, path: Path, about: About, key: str, episode: Recording) -> None:
    """Write an episode's pictures as a video of their own; cut out of theirs where they can be."""
    camera, (height, width, _) = about.pictures[key], about.features[key]["shape"]
    if isinstance(images, video.VideoRange) and images.fps == about.fps:
        try:
            with video.VideoWriter(path, about.fps) as writer:
                writer.append_part(images.path, images.start_s, images.frames)
            video.verify(path, images.frames)
            return
        except UnusableInputError:  # no key frame there, or reordered: it has to be decoded
            path.unlink(missing_ok=True)
    if height % 2 or width % 2:
        raise UnusableInputError(
            f"{camera}: pictures of {width}×{height} need even sizes. Scale or crop them."
        )

    def frames() -> Iterator[Any]:
        for picture in images():
            if picture.shape != (height, width, 3) or picture.dtype != np.uint8:
                raise UnusableInputError(
                    f"{camera}: a picture of shape {picture.shape}, {picture.dtype}, among those "
                    f"of {(height, width, 3)}, uint8. Fix the source."
                )
            yield av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")

    count = video.encode(frames(), path, about.fps, video.ENCODERS["h264"])
    if count != episode.length:
        raise UnusableInputError(
            f"Episode {episode.uid}: {camera} has {count} pictures for {episode.length} rows. "
            "Fix the source."
        )
