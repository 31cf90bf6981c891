"""A LeRobot v3 dataset on its way out: episodes one after another, pictures one at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core import labels
from gaploop.core.consent import Place, Use, require_consent
from gaploop.core.consent_store import load_register, note_places
from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Images
from gaploop.core.types import Image
from gaploop.datasets import columns, layout
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.formats.foreign import not_finite_row
from gaploop.datasets.formats.model import PICTURES, About, Outgoing, Recording
from gaploop.datasets.frames import to_numpy
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.video import VideoRange, count_frames

_NUMBERS: Final = ("float", "int", "uint", "bool")
_BATCH: Final = 32
"""Embedded pictures read from Parquet at once."""


@dataclass(frozen=True)
class EmbeddedPictures:
    """An episode's pictures that are stored in Parquet (LeRobot's dtype `image`)."""

    path: Path
    feature: str
    episode: int

    def __call__(self) -> Iterator[Image]:
        """Yield the pictures in order, RGB, uint8, shape (height, width, 3)."""
        from PIL import Image as Pillow

        names = [self.feature, "episode_index"]
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(_BATCH, columns=names):
                mine = batch.filter(pc.equal(batch["episode_index"], self.episode))
                for cell in mine[self.feature].to_pylist():
                    with Pillow.open(io.BytesIO(cell["bytes"])) as picture:
                        yield np.asarray(picture.convert("RGB"))


def open_dataset(
    root: Path, output: Path, only: Sequence[int] | None = None, consents: Path | None = None
) -> Outgoing:
    """Open a dataset for exporting it to `output`.

    Raises:
        UnusableInputError: no dataset, an unknown episode, a missing video, or a take with people
            in it whose consent doesn't cover a copy today.
    """
    info = layout.read_info(Path(root))
    episodes = layout.read_episodes(info, sorted(set(only)) if only is not None else None)
    if not episodes:
        raise UnusableInputError(f"{root} has no episodes to export. Record some first.")
    about, notes = _about(info)
    _check_videos(info, about, episodes)
    infos = [episode.info for episode in episodes]

    def check() -> None:
        require_consent(load_register(consents), infos, Use.PUBLISH, f"Dataset {root}")

    # Noted first: a withdrawal at the same moment is seen by the check, or finds the place.
    note_places(consents, infos, Place("export", str(output.absolute())))
    check()
    return Outgoing(
        root=info.root,
        about=about,
        lengths=tuple(e.length for e in episodes),
        rows=tuple(gap_row(e) for e in episodes),
        tasks=tuple(e.info.task for e in episodes),
        labels=_labels(info.root, {e.info.uid for e in episodes}),
        episodes=lambda: _episodes(info, about, episodes, whole=True),
        numbers=lambda: _episodes(info, about, episodes, whole=False),
        notes=notes,
        check=check,
    )


def _about(info: DatasetInfo) -> tuple[About, tuple[str, ...]]:
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
        elif dtype.startswith(_NUMBERS) and len(shape) == 1:
            features[name] = {**spec, "shape": shape}
        else:
            notes.append(f"{name} ({dtype}, shape {shape}) is left out: no layout holds it.")
    if columns.ACTION not in features:
        raise UnusableInputError(
            f"{info.root} has no feature action. Nothing to export. Check it with: gaploop check."
        )
    return About(info.fps, info.robot_type, features), tuple(notes)


def _check_videos(info: DatasetInfo, about: About, episodes: Sequence[EpisodeRow]) -> None:
    """Refuse before anything is written where a video is missing or holds too few pictures."""
    for key in (k for k in about.features if about.features[k]["dtype"] == "video"):
        needed: dict[Path, int] = {}
        for episode in episodes:
            path, start_s = video_of(info, episode.row, key)
            if path is None or not path.exists():
                raise UnusableInputError(
                    f"{info.root}, episode {episode.index}: the video of {key} is missing. Copy "
                    "it here, or drop pictures first: gaploop import "
                    f"{info.root} --format=lerobot --drop_videos=true --output_dir=OUT"
                )
            end = round(start_s * info.fps) + episode.length
            needed[path] = max(needed.get(path, 0), end)
        for path, frames in needed.items():
            if (found := count_frames(path)) < frames:
                raise UnusableInputError(
                    f"{path} holds {found} pictures for {frames} rows. Find out more with: "
                    f"gaploop check {info.root}"
                )


def gap_row(episode: EpisodeRow) -> dict[str, Any]:
    """Return an episode's gap columns, made up from what is known where it has none."""
    if episode.row.get("gap_uid"):
        return {name: episode.row[name] for name in columns.EPISODE_COLUMNS}
    return columns.default_row(episode.info, episode.outcome)


def _labels(root: Path, uids: set[str]) -> tuple[str, ...]:
    events = labels.read(root / layout.LABELS)
    return tuple(event.to_line() for event in events if event.uid in uids)


def _episodes(
    info: DatasetInfo, about: About, episodes: Sequence[EpisodeRow], whole: bool
) -> Iterator[Recording]:
    wanted = {e.index: e for e in episodes}
    for path in layout.data_files(info):
        names = [*about.numbers, "episode_index"]
        inside = pc.unique(layout.read_parquet(path, ["episode_index"])["episode_index"])
        mine = sorted(set(inside.to_pylist()) & set(wanted))
        table = layout.read_parquet(path, names) if mine else pa.table({})
        for index in mine:
            episode = wanted.pop(index)
            rows = table.filter(pc.equal(table["episode_index"], index))
            yield _recording(info, about, episode, rows, path, whole)
    if wanted:
        raise UnusableInputError(
            f"{info.root} has no rows of episode {min(wanted)}. Find out more with: gaploop check."
        )


def _recording(
    info: DatasetInfo, about: About, episode: EpisodeRow, rows: pa.Table, path: Path, whole: bool
) -> Recording:
    if len(rows) != episode.length:
        raise UnusableInputError(
            f"{info.root}, episode {episode.index}: {len(rows)} rows, its table says "
            f"{episode.length}. Find out more with: gaploop check {info.root}"
        )
    telemetry = telemetry_path(info.root, episode.info.uid)
    held = {n: _vector(info, episode, n, rows[n], about.features[n]) for n in about.numbers}
    return Recording(
        task=episode.info.task,
        length=episode.length,
        columns=held,
        pictures=_pictures(info, about, episode, path) if whole else {},
        row=gap_row(episode),
        telemetry=telemetry.read_bytes() if whole and telemetry.exists() else None,
    )


def _vector(
    info: DatasetInfo,
    episode: EpisodeRow,
    name: str,
    column: pa.ChunkedArray,
    spec: Mapping[str, Any],
) -> NDArray[Any]:
    """Return an episode's values of a feature; other projects train on whatever is there.

    Raises:
        UnusableInputError: they aren't finite numbers of the shape that the feature has.
    """
    shape = tuple(spec["shape"])
    place = f"{info.root}, episode {episode.index}: {name}"
    values = np.asarray(to_numpy(column))
    if values.dtype.kind not in "fiub":
        raise UnusableInputError(
            f"{place} holds {column.type}, not numbers. Fix the data file, or see what else is "
            f"wrong with: gaploop check {info.root}"
        )
    if values.reshape(len(values), -1).shape[1:] != shape:
        raise UnusableInputError(
            f"{place} has rows of {values[:1].size} numbers, {layout.INFO} says {shape[0]}. Find "
            f"out more with: gaploop check {info.root}"
        )
    bad = not_finite_row(values)
    if bad is not None:
        raise UnusableInputError(
            f"{place} holds NaN or infinite values, first in row {bad}. Policies can't train on "
            "that: leave the episode out with --episodes."
        )
    return values.reshape(len(values)) if shape == (1,) else values


def _pictures(
    info: DatasetInfo, about: About, episode: EpisodeRow, data: Path
) -> dict[str, Callable[[], Iterator[Image]]]:
    found: dict[str, Images] = {}
    for key, spec in about.features.items():
        camera = key.removeprefix(IMAGES)
        if spec["dtype"] == "image":
            found[camera] = EmbeddedPictures(data, key, episode.index)
        elif spec["dtype"] == "video":
            path, start_s = video_of(info, episode.row, key)
            assert path is not None  # looked at by _check_videos
            found[camera] = VideoRange(path, start_s, episode.length, info.fps)
    return found
