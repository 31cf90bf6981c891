"""Foreign episodes into a new LeRobot v3 dataset with gap columns: whole, or not there at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from numpy.typing import NDArray

from gaploop.core.consent import Place
from gaploop.core.consent_store import note_places
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.paths import plain_name
from gaploop.core.take import Images, TakeInfo
from gaploop.core.types import Image
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.formats.carried import as_video
from gaploop.datasets.formats.foreign import not_finite_row
from gaploop.datasets.formats.model import (
    About,
    Advance,
    ForeignRecording,
    ImportSettings,
    Recording,
    picture_feature,
)
from gaploop.datasets.telemetry_zarr import telemetry_path

VIDEOS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "lossless": ("libx264rgb", "rgb24", {"qp": "0"}),
    "small": ("libx264", "yuv420p", {"crf": "20"}),
}
"""How pictures are kept: name to encoder, pixel format, options. Key frames stand every tenth
frame, as in recordings, and no frame is reordered, so that packets can be copied."""
_X264: Final = {"preset": "veryfast", "tune": "zerolatency", "g": "10", "threads": "2"}


def write_dataset(
    incoming: ForeignRecording,
    target: Path,
    video: str = "lossless",
    on_episode: Advance | None = None,
    consents: Path | None = None,
) -> int:
    """Write an import to `target`, a new or empty folder, and return its number of episodes.

    Args:
        incoming: what to write.
        target: the dataset's folder.
        video: one of `VIDEOS`.
        on_episode: called after every episode.
        consents: the consent register, which notes where takes of people go; the default one
            where None.

    Raises:
        UnusableInputError: the target isn't empty or can't be written, or an episode can't be
            kept. Nothing is left at the target then.
    """
    target = Path(target).absolute()
    if video not in VIDEOS:
        raise unknown_choice("video", video, VIDEOS, "--video")
    for name in incoming.about.features:
        plain_name(name, "feature", "the source")
    stage, pictures = staging.beside(target, "staging"), staging.beside(target, "pictures")
    with staging.new_folder(target):
        shutil.rmtree(pictures, ignore_errors=True)
        try:
            rows = _write(incoming, stage, pictures, target.name, video, on_episode)
            path = stage / layout.LABELS
            path.parent.mkdir(parents=True, exist_ok=True)
            uids = {row["gap_uid"] for row in rows}
            lines = [line for line in incoming.labels if json.loads(line)["uid"] in uids]
            path.write_text("".join(f"{line}\n" for line in lines))
            episodes_table.materialise(stage, dict(enumerate(rows)))
            _note_places(consents, rows, target)
            staging.commit(stage, target)
        finally:
            for leftover in (pictures, stage):
                shutil.rmtree(leftover, ignore_errors=True)
    return len(rows)


def _note_places(consents: Path | None, rows: Iterable[Mapping[str, Any]], target: Path) -> None:
    infos = [TakeInfo(**columns.info_fields(row)) for row in rows]
    note_places(consents, infos, Place("dataset", str(target)))


def _write(
    incoming: ForeignRecording,
    stage: Path,
    pictures: Path,
    name: str,
    video: str,
    on_episode: Advance | None,
) -> list[dict[str, Any]]:
    from gaploop.datasets.lerobot_writer import open_writer  # here: it imports torch

    about = as_video(incoming.about)
    rows: list[dict[str, Any]] = []
    writer = open_writer(stage, f"local/{name}", about.fps, about.robot_type, dict(about.features))
    for episode in incoming.episodes():
        _check(episode, about)
        pictures.mkdir()
        videos: dict[str, Path] = {}
        for camera, images in episode.pictures.items():
            videos[camera] = pictures / f"{len(videos)}.mkv"
            _encode(images, videos[camera], about, camera, episode, video)
        writer.save_take(episode.task, dict(episode.columns), videos)
        shutil.rmtree(pictures)
        if episode.telemetry is not None:
            path = telemetry_path(stage, episode.uid)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(episode.telemetry)
        rows.append(dict(episode.row))
        if on_episode is not None:
            on_episode()
    writer.finalize()
    return rows


def _check(episode: Recording, about: About) -> None:
    for name in about.numbers:
        values = episode.columns[name]
        if len(values) != episode.length:
            raise UnusableInputError(
                f"Episode {episode.uid}: {name} has {len(values)} rows, the episode "
                f"{episode.length}. Fix the source."
            )
        bad = not_finite_row(values)
        if bad is not None:
            raise UnusableInputError(
                f"Episode {episode.uid}: {name} holds NaN or infinite values, first in row {bad}. "
                "LeRobot can't train on it; leave that episode out or fix the source."
            )


def _encode(
    images: Images, path: Path, about: About, camera: str, episode: Recording, video: str
) -> None:
    encoder, pixels, options = VIDEOS[video]
    height, width = about.size(camera)
    if video == "small" and (height % 2 or width % 2):
        raise UnusableInputError(
            f"{camera}: pictures of {width}×{height} need even sizes. Use --video=lossless."
        )
    rate = Fraction(about.fps).limit_denominator(1000)
    count = 0
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream(encoder, rate=rate, options={**_X264, **options})
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = 1 / rate
        for picture in images():
            frame = av.VideoFrame.from_ndarray(_rgb(picture, height, width, camera), format="rgb24")
            frame.pts, frame.time_base = count, 1 / rate
            container.mux(stream.encode(frame))
            count += 1
        container.mux(stream.encode(None))
    if count != episode.length:
        raise UnusableInputError(
            f"Episode {episode.uid}: {camera} has {count} pictures for {episode.length} rows. "
            "Mend the source."
        )


def _rgb(picture: Image, height: int, width: int, camera: str) -> Image:
    if picture.shape != (height, width, 3) or picture.dtype != np.uint8:
        raise UnusableInputError(
            f"{camera}: a picture of shape {picture.shape}, {picture.dtype}, among those of "
            f"{(height, width, 3)}, uint8. Fix the source."
        )
    return np.ascontiguousarray(picture)


def with_gap_features(features: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return a foreign feature table with the gap columns of frames added to it."""

    def scalar(dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "shape": (1,), "names": None}

    cameras = [n for n, f in features.items() if f["dtype"] == "video"]
    return {
        **features,
        columns.TIME: scalar("float64"),
        columns.TAKE: scalar("int64"),
        columns.SENT: features[columns.ACTION],
        columns.INTERVENTION: scalar("bool"),
        columns.SAFETY: scalar("int64"),
        **{columns.CAMERA_AGE + n.removeprefix(columns.IMAGES): scalar("float32") for n in cameras},
    }


def foreign_recording(
    about: About,
    settings: ImportSettings,
    values: Mapping[str, NDArray[Any]],
    pictures: Mapping[str, Images],
    origin: str,
    **known: Any,
) -> Recording:
    """Return an episode that nobody gave gap columns yet.

    Args:
        about: its features, gap columns among them.
        values: feature to values; `gap.*` are filled in where they are missing.
        origin: what tells it from other episodes of its source; its uid is made from that and
            from its actions.
        known: fields of `TakeInfo` that the source says.
    """
    action = np.ascontiguousarray(values[columns.ACTION])
    digest = hashlib.sha256(action.tobytes()).hexdigest()
    uid = str(uuid.uuid5(layout.FOREIGN, f"{origin}|{len(action)}|{digest}"))
    n = len(action)
    filled: dict[str, NDArray[Any]] = {
        columns.TIME: np.arange(n) / about.fps,
        columns.TAKE: np.full(n, columns.take_hash(uid), dtype=np.int64),
        columns.SENT: action,
        columns.INTERVENTION: np.zeros(n, dtype=bool),
        columns.SAFETY: np.zeros(n, dtype=np.int64),
    }
    unknown = np.full(n, columns.AGE_UNKNOWN_S, dtype=np.float32)
    filled |= {columns.CAMERA_AGE + camera: unknown for camera in about.cameras}
    task = str(known.pop("task", "") or settings.task)
    telemetry = known.pop("telemetry", None)
    info = TakeInfo(uid=uid, **{"kind": TakeKind.IMPORT, "units": settings.units, **known})
    info = replace(info, kind=settings.kind or info.kind, domain=settings.domain or info.domain)
    row = columns.default_row(info, settings.outcome or Outcome.UNLABELLED)
    ordered = {name: {**filled, **values}[name] for name in about.numbers}
    return Recording(task, n, ordered, dict(pictures), row, telemetry)


def number_feature(names: list[str]) -> dict[str, Any]:
    """Return the feature of a vector of float32 with these names."""
    return {"dtype": "float32", "shape": (len(names),), "names": names}


def picture_spec(height: int, width: int) -> dict[str, Any]:
    """Return the feature of a camera [pixels]."""
    return {
        "dtype": "video",
        "shape": (int(height), int(width), 3),
        "names": ["height", "width", "channels"],
    }


def each_camera(about: About) -> Iterator[tuple[str, str]]:
    """Yield every camera and what it is called in the layout."""
    for camera in about.cameras:
        yield camera, about.keys[picture_feature(about, camera)]
