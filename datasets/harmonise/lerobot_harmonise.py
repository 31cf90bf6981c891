"""Carries a conversion out: a new LeRobot v3 dataset with its numbers and pictures changed.

Labels, telemetry, consent and every other file come along. Telemetry keeps the names and the
rate it was recorded with.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_json, write_json
from gaploop.core.run_record import RUN
from gaploop.core.types import Image
from gaploop.datasets import columns, episodes_table, layout, lineage, staging
from gaploop.datasets.consented import note_and_refuse_withdrawn
from gaploop.datasets.edit.compose import DatasetPiece
from gaploop.datasets.frames import FrameTable, load_frames
from gaploop.datasets.harmonise.conversion import RECORD, SCHEMA, Conversion, history_of
from gaploop.datasets.harmonise.differences import PICTURES, known_units
from gaploop.datasets.harmonise.spec import RULES, CameraSpec
from gaploop.datasets.harmonise.steps import VECTORS, Vector
from gaploop.datasets.layout import EpisodeRow
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.video import VideoRange, VideoWriter, encode

_REWRITTEN: Final = ("data", "videos", "images", "meta")
_KEPT_META: Final = "meta/gap"
_NUMERIC: Final = ("float", "int", "uint", "bool")

type Source = tuple[Path, float, int, float]
"""File, start [s], frames, fps of a take's pictures."""
_ROUNDING: Final = 1e-6  # of a frame


def harmonise(
    piece: DatasetPiece,
    conversion: Conversion,
    target: Path,
    on_episode: Callable[[], None] | None = None,
) -> int:
    """Write a dataset's takes, converted, to `target`; return how many.

    Args:
        piece: the dataset; within `edit.opened`.
        conversion: what to do to it.
        target: a folder that doesn't exist or is empty.
        on_episode: called after each take.

    Raises:
        UnusableInputError: the source is damaged, has features that can't be converted, or the
            target can't be used. Nothing is left at the target then.
    """
    from gaploop.datasets.lerobot_writer import open_writer  # here: it imports torch

    target = Path(target).resolve()
    staging.require_new_folder(target, piece.info.root)
    _check_convertible(piece, conversion)
    with ExitStack() as stack:
        stack.enter_context(staging.new_folder(target, piece.info.root))
        note_and_refuse_withdrawn({target: [e.info for e in piece.episodes]})
        stage = staging.beside(target, "staging")
        pictures = staging.beside(target, "pictures")
        for folder in (stage, pictures):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shutil.rmtree(pictures, ignore_errors=True)
        pictures.mkdir(parents=True)
        info = piece.info
        numbers = [
            n
            for n, f in info.features.items()
            if n not in columns.AUTOMATIC
            and f.get("dtype") not in PICTURES
            and conversion.name_of(n)
        ]
        table = load_frames(info.root, numbers, sorted(piece.chosen))
        writer = open_writer(
            stage,
            f"local/{stage.parent.name}",
            conversion.fps,
            conversion.robot_type,
            conversion.features(),
        )
        try:
            for episode in piece.episodes:
                values = _values(table, episode, conversion)
                videos = _videos(piece, episode, conversion, pictures)
                writer.save_take(episode.info.task, values, videos)
                for path in videos.values():
                    path.unlink()
                if on_episode is not None:
                    on_episode()
        finally:
            writer.finalize()
        # Labels, telemetry and what else lies beside the dataset's own folders. What is hidden, a
        # repository or a cache, stays with the dataset that it is in.
        for path in sorted(info.root.rglob("*")):
            own = path.relative_to(info.root)
            is_hidden = own.parts[0].startswith(".")
            kept = own.parts[0] not in _REWRITTEN or own.is_relative_to(_KEPT_META)
            if path.is_file() and kept and not is_hidden and own.name not in (RUN, "README.md"):
                (stage / own).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, stage / own)
        _write_rows(piece, conversion, stage)
        source = lineage.source_of(piece)
        entry: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(),
            "source": {k: source[k] for k in ("name", "id", "hash")},
            "units": {"from": known_units(piece.episodes, info), "to": conversion.units},
            **conversion.record(),
        }
        (stage / RECORD).parent.mkdir(parents=True, exist_ok=True)
        history = [*history_of(stage), entry]
        write_json(stage / RECORD, {"schema": SCHEMA, "history": history})
        frames = int(read_json(stage / layout.INFO)["total_frames"])
        result = {"takes": len(piece.episodes), "frames": frames, "record": RECORD}
        lineage.write_run(stage, "harmonise", {}, [source], result)
        staging.commit(stage, target)
    return len(piece.episodes)


def _check_convertible(piece: DatasetPiece, conversion: Conversion) -> None:
    info = piece.info
    for name, spec in info.features.items():
        if name in columns.AUTOMATIC or conversion.name_of(name) is None:
            continue
        kind, shape = str(spec.get("dtype")), spec.get("shape") or (1,)
        depth = bool((spec.get("info") or {}).get("video.is_depth_map"))
        fits = (
            kind == "video" if kind in PICTURES else kind.startswith(_NUMERIC) and len(shape) == 1
        )
        if not fits or depth:
            what = "depth pictures" if depth else f"{kind} of shape {tuple(shape)}"
            raise UnusableInputError(
                f"{info.root}: {name} holds {what}, which can't be converted. Leave it out with "
                f"drop: [{name}]."
            )
    for episode in piece.episodes:
        if len(episode.row.get("tasks") or ()) > 1:
            raise UnusableInputError(
                f"{info.root}: episode {episode.index} has several tasks, which a conversion "
                "can't keep. Leave it out first with gaploop edit delete."
            )


def _values(
    table: FrameTable, episode: EpisodeRow, conversion: Conversion
) -> dict[str, NDArray[Any]]:
    rows = table.rows_of(episode.index)
    count = rows.stop - rows.start
    if count != episode.length or not count:
        raise UnusableInputError(
            f"{table.info.root}: episode {episode.index} has {count} rows, its table says "
            f"{episode.length}. Fix it with gaploop repair."
        )
    source_fps, fps = table.info.fps, conversion.fps
    index = chosen_rows(count, source_fps, fps, conversion.rule)
    result: dict[str, NDArray[Any]] = {}
    joints: dict[str, Vector] = {}
    for name, column in table.columns.items():
        own, new = column[rows], conversion.name_of(name)
        if name in VECTORS:
            own = own.reshape(count, -1).astype(np.float64)
            linear = conversion.rule == "linear" and source_fps != fps
            values = between(own, source_fps, fps) if linear else own[index]
            joints[name] = Vector(table.info.names(name), values)
        elif name.startswith(columns.CAMERA_AGE) and new is not None:
            # Pictures stand at other moments than they did.
            age_s = own.reshape(-1)[index]
            later_s = np.arange(len(index)) / fps - index / source_fps
            known = age_s != columns.AGE_UNKNOWN_S
            aged_s = np.where(known, np.maximum(age_s + later_s, 0.0), age_s)
            result[new] = aged_s.astype(np.float32)
        elif new is not None:
            result[new] = own[index]
    done = conversion.vectors(joints, episode.info.uid)
    result |= {n: v.values.astype(np.float32) for n, v in done.items()}
    n = len(index)
    for name in conversion.fill:
        if name == columns.SENT:
            result[name] = result[columns.ACTION]
        elif name == columns.TIME:
            result[name] = np.arange(n) / fps
        elif name == columns.TAKE:
            result[name] = np.full(n, columns.take_hash(episode.info.uid), dtype=np.int64)
        elif name.startswith(columns.CAMERA_AGE):
            result[name] = np.full(n, columns.AGE_UNKNOWN_S, dtype=np.float32)
        else:
            result[name] = np.zeros(n, dtype=bool if name == columns.INTERVENTION else np.int64)
    return result


def _videos(
    piece: DatasetPiece, episode: EpisodeRow, conversion: Conversion, folder: Path
) -> dict[str, Path]:
    """Write a take's pictures, converted, to one file per camera."""
    result = {}
    info = piece.info
    index = chosen_rows(episode.length, info.fps, conversion.fps, conversion.rule)
    for key in info.video_keys:
        found = conversion.camera(key)
        if found is None:
            continue
        path, start_s = video_of(info, episode.row, key)
        camera = found[0].removeprefix(columns.IMAGES)
        if path is None or not path.exists():
            raise UnusableInputError(
                f"{info.root}: episode {episode.index} has no video of {key}. Restore it, or "
                f"leave the camera out: cameras: {{{key.removeprefix(columns.IMAGES)}: null}}."
            )
        result[camera] = folder / f"{camera}.mp4"
        source = (path, start_s, episode.length, info.fps)
        convert_video(source, index, found[1], conversion.fps, result[camera])
    return result


def _write_rows(piece: DatasetPiece, conversion: Conversion, stage: Path) -> None:
    """Give the new episodes the gap columns, and columns of others, that the old ones had."""
    ours = columns.EPISODE_COLUMNS
    rows = [e.row for e in piece.episodes]
    types = pq.read_schema(layout.episode_files(piece.info.root)[0])
    for path in layout.episode_files(stage):
        table = layout.read_parquet(path)
        numbers = table["episode_index"].to_pylist()
        for name in rows[0]:
            if name in ours or "/" in name or name in table.column_names:
                continue
            values = [rows[i].get(name) for i in numbers]
            table = table.append_column(name, pa.array(values, types.field(name).type))
        pq.write_table(table, path, compression="snappy")
    if piece.tagged:
        units = {"gap_units": conversion.units} if conversion.units else {}
        new = {i: {**{n: row[n] for n in ours}, **units} for i, row in enumerate(rows)}
        episodes_table.materialise(stage, new)


# Pictures of a take at another rate, cropped or scaled: cut out where they stay, else encoded.


def convert_video(
    source: Source, index: NDArray[np.int64], change: CameraSpec, fps: float, target: Path
) -> None:
    """Write the chosen pictures of a take, changed, as a video of its own.

    Where every picture stays as it is, packets are cut out without decoding, if they can be.

    Args:
        source: the pictures.
        index: which of them, never falling, shape (n,).
        change: crop and size.
        fps: rate of the new video [Hz].
        target: the file to write; H.264 where pictures are encoded.

    Raises:
        UnusableInputError: the source holds fewer pictures.
    """
    path, start_s, frames, source_fps = source
    same = len(index) == frames and source_fps == fps and not change.touches_pictures
    if same:
        try:
            with VideoWriter(target, fps) as writer:
                writer.append_part(path, start_s, frames)
            return
        except UnusableInputError:  # no key frame there, or reordered: it has to be decoded
            target.unlink(missing_ok=True)

    def changed() -> Iterator[Image]:
        import cv2

        shown, at, picture = VideoRange(path, start_s, frames, source_fps)(), -1, None
        for wanted in index.tolist():
            while at < wanted:
                picture = next(shown, None)
                at += 1
            if picture is None:
                raise UnusableInputError(
                    f"{path} holds {at} pictures from {start_s:g} s on, not {frames}. Restore it."
                )
            result = picture
            if change.crop is not None:
                x, y, w, h = change.crop
                result = result[y : y + h, x : x + w]
            if change.resize is not None and change.resize != result.shape[1::-1]:
                smaller = change.resize[0] < result.shape[1]
                way = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
                result = np.asarray(cv2.resize(result, change.resize, interpolation=way))
            yield np.ascontiguousarray(result)

    frames_of = (av.VideoFrame.from_ndarray(p, format="rgb24") for p in changed())
    encode(frames_of, target, fps)


# Which frames stand at the moments of another rate.


def chosen_rows(frames: int, source_fps: float, target_fps: float, rule: str) -> NDArray[np.int64]:
    """Return which frame of a take stands at each moment of another rate.

    Args:
        frames: how many the take has.
        source_fps: its rate [Hz].
        target_fps: the new rate [Hz].
        rule: one of `RULES`; `linear` chooses as `hold`.

    Returns:
        Shape (n,), never falling; as many as fit into the take's time.
    """
    if rule not in RULES:
        raise unknown_choice("rule", rule, RULES, "fps")
    count = int(np.floor((frames - 1) * target_fps / source_fps + _ROUNDING)) + 1
    place = np.arange(count) * source_fps / target_fps
    shift = 0.5 if rule == "nearest" else _ROUNDING
    return np.asarray(np.minimum(np.floor(place + shift), frames - 1).astype(np.int64))


def between(values: NDArray[Any], source_fps: float, target_fps: float) -> NDArray[np.float64]:
    """Return rows at the moments of another rate, on straight lines between the given ones.

    Args:
        values: shape (n_frames, width).
    """
    count = len(chosen_rows(len(values), source_fps, target_fps, "hold"))
    place = np.minimum(np.arange(count) * source_fps / target_fps, len(values) - 1)
    rows = np.arange(len(values))
    return np.stack([np.interp(place, rows, column) for column in values.T], axis=1)
