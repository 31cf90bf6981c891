"""Takes: of a dataset, or of whatever a folder holds (`load_takes`), a journal or a dataset.

A dataset's frames come from Parquet, telemetry from Zarr, pictures on demand.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal, read_journal
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Frames, Images, Take
from gaploop.core.telemetry import Telemetry
from gaploop.datasets import columns, video
from gaploop.datasets.layout import (
    DatasetInfo,
    EpisodeRow,
    damaged,
    is_dataset,
    read_info,
    reraise_as_damaged,
    reraise_for,
)
from gaploop.datasets.telemetry_zarr import read_telemetry, telemetry_path
from gaploop.datasets.v3_files import FrameTable, data_file, load_episode, load_frames
from gaploop.datasets.video import VideoRange

LONGEST_VIDEO_S: Final = 1e7
"""Months of video in one file; what starts later is no time [s]."""
_OPTIONAL: Final = (
    columns.STATE, columns.ACTION, columns.ENVIRONMENT, columns.TIME, columns.SENT,
    columns.INTERVENTION, columns.SAFETY, "timestamp",
)  # fmt: skip
_BATCH: Final = 32
"""Pictures read from Parquet at once."""


def read_takes(root: Path, episodes: Sequence[int] | None = None) -> Iterator[Take]:
    """Yield a dataset's episodes as takes, in order.

    A dataset without gap columns reads too: its takes are imports, unlabelled, real, with uids
    made from their content. A camera whose video is missing is left out.

    Raises:
        UnusableInputError: no dataset there, an unknown episode, or a damaged file.
    """
    root = Path(root)
    table = load_frames(root, _columns(read_info(root)), episodes)
    for episode in table.episodes:
        yield _take(table, episode)


def read_episode(info: DatasetInfo, episode: EpisodeRow) -> Take:
    """Read one episode, from no other data file than the one that holds it."""
    return _take(load_episode(info, episode, _columns(info)), episode)


def _columns(info: DatasetInfo) -> list[str]:
    ages = [name for name in info.features if name.startswith(columns.CAMERA_AGE)]
    return [name for name in (*_OPTIONAL, *ages) if name in info.features]


def _take(table: FrameTable, episode: EpisodeRow) -> Take:
    info, rows = table.info, table.rows_of(episode.index)
    path = telemetry_path(info.root, episode.info.uid)
    cameras: dict[str, Images] = {}
    for key in info.camera_keys:
        pictures = pictures_of(info, episode, key)
        if pictures is not None:
            cameras[key.removeprefix(columns.IMAGES)] = pictures
    n = rows.stop - rows.start
    none = np.empty((n, 0))

    def get(name: str, default: NDArray[Any]) -> NDArray[Any]:
        values = table.columns.get(name)
        return default if values is None else values[rows]

    def matrix(name: str, default: NDArray[Any]) -> FloatArray:
        return get(name, default).reshape(n, -1).astype(np.float64) if n else none

    with reraise_for(info.root):
        action = matrix(columns.ACTION, none)
        frames = Frames(
            t_s=get(columns.TIME, get("timestamp", np.arange(n) / info.fps)).astype(np.float64),
            state=matrix(columns.STATE, none),
            action=action,
            sent=matrix(columns.SENT, action),
            environment_state=matrix(columns.ENVIRONMENT, none),
            intervention=get(columns.INTERVENTION, np.zeros(n)).astype(bool),
            safety=get(columns.SAFETY, np.zeros(n)).astype(np.int64),
            camera_age_s={
                columns.camera_of_age(name): np.where(
                    values[rows] == columns.AGE_UNKNOWN_S, np.nan, values[rows].astype(np.float64)
                )
                for name, values in table.columns.items()
                if name.startswith(columns.CAMERA_AGE)
            },
            environment_names=info.names(columns.ENVIRONMENT),
        )
    return Take(
        info=episode.info,
        outcome=episode.outcome,
        frames=frames,
        telemetry=read_telemetry(path) if path.exists() else Telemetry(np.empty(0), {}),
        failure_mode=episode.failure_mode,
        phase=episode.phase,
        episode=episode.index,
        cameras=cameras,
    )


def video_of(info: DatasetInfo, row: Mapping[str, Any], key: str) -> tuple[Path | None, float]:
    """Return the file that holds an episode's video of feature `key`, and its start there [s]."""
    chunk, file = row.get(f"videos/{key}/chunk_index"), row.get(f"videos/{key}/file_index")
    if chunk is None or file is None:
        return None, 0.0
    name = info.video_name(key, chunk, file)
    start_s = float(row.get(f"videos/{key}/from_timestamp") or 0.0)
    if not 0.0 <= start_s < LONGEST_VIDEO_S:
        what = f"{key} of episode {row.get('episode_index')} starts at {start_s:g} s."
        raise damaged(info.root, what)
    return info.root / name, start_s


def pictures_of(info: DatasetInfo, episode: EpisodeRow, key: str) -> Images | None:
    """Return an episode's pictures, from its video or its data file; None where that is missing."""
    if info.features[key].get("dtype") == "image":
        return partial(stored_pictures, data_file(info, episode), key, episode.index)
    path, start_s = video_of(info, episode.row, key)
    if path is None or not path.exists():
        return None
    return VideoRange(path, start_s, episode.length, info.fps)


def depth_of(info: DatasetInfo, episode: EpisodeRow, key: str) -> Iterator[FloatArray] | None:
    """Return an episode's depth, shape (height, width), in the unit of LeRobot's statistics.

    None where a feature is no depth that LeRobot packed, or its video is missing. What isn't said
    to be depth, though it is, LeRobot divides by 255 as if it were of 8 bits.
    """
    details = info.features[key].get("info") or {}
    if info.features[key].get("dtype") == "image" and key not in info.camera_keys:
        unit = 1.0 if details.get("is_depth_map") else 255.0
        stored = _stored(data_file(info, episode), key, episode.index)
        return (np.asarray(picture, dtype=np.float64) / unit for picture in stored)
    path, start_s = video_of(info, episode.row, key)
    packed = all(details.get(f"video.{n}") is not None for n in ("depth_min", "depth_max", "shift"))
    if not (details.get("is_depth_map") and packed) or path is None or not path.exists():
        return None
    return video.depth_in(VideoRange(path, start_s, episode.length, info.fps), details)


def pictures_at(
    info: DatasetInfo, episode: EpisodeRow, key: str, rows: Sequence[int]
) -> dict[int, Image]:
    """Return the pictures of some rows of an episode, by row, without decoding the others.

    Raises:
        UnusableInputError: one is missing, or can't be read.
    """
    shown, found = pictures_of(info, episode, key), dict[int, Image]()
    if shown is not None and rows:
        found = dict(video.pictures_at(shown, sorted(set(rows))))
    if missing := sorted(set(rows) - found.keys()):
        raise damaged(info.root, f"{key} of episode {episode.index} lacks picture {missing[0]}.")
    return found


def stored_pictures(path: Path, feature: str, episode: int | None = None) -> Iterator[Image]:
    """Yield pictures that LeRobot keeps in a data file itself (dtype `image`), as {bytes, path}.

    RGB, uint8, shape (height, width, 3), in order; of one episode, or of all where None. Depth, in
    whatever unit, is grey, the nearer the darker, by one scale for all.
    UnusableInputError: one can't be read.
    """
    white = 0.0
    for picture in _stored(path, feature, episode):
        if picture.mode[0] in "IF":  # wider than a byte, which Pillow would clip
            depth = np.nan_to_num(np.asarray(picture, dtype=np.float64))
            white = white or 1.25 * float(np.percentile(depth, 99))
            grey = np.clip(255.0 * depth / (white or 1.0), 0, 255).astype(np.uint8)
            yield np.repeat(grey[..., None], 3, axis=2)
        else:
            yield np.asarray(picture.convert("RGB"))


def _stored(path: Path, feature: str, episode: int | None) -> Iterator[Any]:
    """Yield pictures in a data file as Pillow's, decoded."""
    from PIL import Image as Pillow

    problem = f"{path}: a picture of {feature} can't be read"
    more = f"Find out more with: gaploop check {path.parents[2]}"
    errors = (*DAMAGE, SyntaxError)  # as Pillow says of a broken PNG
    with pq.ParquetFile(path) as file:
        groups = [n for n in range(file.num_row_groups) if _may_hold(file, n, episode)]
        columns_read = [feature, "episode_index"]
        for batch in file.iter_batches(_BATCH, row_groups=groups, columns=columns_read):
            if episode is not None:
                batch = batch.filter(pc.equal(batch["episode_index"], episode))
            for cell in batch[feature].to_pylist():
                with (
                    reraise_as_damaged(problem, more, errors),
                    Pillow.open(io.BytesIO(cell["bytes"])) as picture,
                ):
                    picture.load()
                    yield picture


def _may_hold(file: pq.ParquetFile, group: int, episode: int | None) -> bool:
    """Say whether a group of rows, of which LeRobot writes one an episode, may hold an episode."""
    about = file.metadata.row_group(group)
    for k in range(about.num_columns if episode is not None else 0):
        known = about.column(k)
        if known.path_in_schema == "episode_index" and known.is_stats_set:
            return bool(known.statistics.min <= episode <= known.statistics.max)
    return True


def load_takes(path: Path) -> Iterator[Take]:
    """Yield the takes of the journal or dataset in `path`, oldest first.

    Raises:
        UnusableInputError: at once, where there is neither, or an empty one.
    """
    path = existing_folder(Path(path), "Folder")
    if is_dataset(path):
        if not read_info(path).total_episodes:
            raise UnusableInputError(f"{path} is a dataset without episodes. Record some first.")
        return read_takes(path)
    if is_journal(path):
        return read_journal(path)
    what = "is empty" if not any(path.iterdir()) else "holds neither episodes nor a dataset"
    raise UnusableInputError(
        f"{path} {what}. Name a journal (folders with take.json) or a LeRobot dataset "
        "(meta/info.json)."
    )
