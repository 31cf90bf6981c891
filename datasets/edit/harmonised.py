"""A conversion carried out: a new LeRobot v3 dataset with its numbers and pictures changed.

Labels, telemetry, consent and every other file come along. Telemetry keeps the names and the
rate it was recorded with.
"""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import Image
from gaploop.core.run_record import RUN, write_record
from gaploop.core.take import Images
from gaploop.datasets import columns, layout, staging
from gaploop.datasets.columns import NUMERIC, PICTURES
from gaploop.datasets.differences import known_units
from gaploop.datasets.edit.compose import (
    EDIT_SCHEMA,
    DatasetPiece,
    note_and_refuse_withdrawn,
    source_of,
)
from gaploop.datasets.edit.harmonise import RECORD, SCHEMA, Conversion, history_of
from gaploop.datasets.edit.harmonise_spec import VECTORS, CameraSpec
from gaploop.datasets.formats.new_dataset import About, Recording, write_dataset
from gaploop.datasets.layout import EpisodeRow
from gaploop.datasets.lerobot_read import pictures_of
from gaploop.datasets.v3_files import FrameTable, load_frames

_REWRITTEN: Final = ("data", "videos", "images", "meta")
_ROUNDING: Final = 1e-6  # of a frame


def harmonise(
    piece: DatasetPiece,
    conversion: Conversion,
    target: Path,
    on_episode: Callable[[], None] = lambda: None,
) -> int:
    """Write a dataset's takes, converted, to `target`; return how many. Within `edit.opened`.

    Raises:
        UnusableInputError: the source is damaged, has features that can't be converted, or the
            target holds something. Nothing is left at the target then.
    """
    target = Path(target).resolve()
    info = piece.info
    staging.require_new_folder(target, info.root)
    for name, spec in conversion.info.features.items():
        if name in columns.AUTOMATIC or conversion.name_of(name) is None:
            continue
        kind, shape = str(spec.get("dtype")), spec.get("shape") or (1,)
        depth = kind in PICTURES and name not in conversion.info.camera_keys
        fits = kind == "video" if kind in PICTURES else kind.startswith(NUMERIC) and len(shape) == 1
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
    names = {conversion.rename.get(n, n): n for n in info.features}
    note_and_refuse_withdrawn({target: [e.info for e in piece.episodes]})
    numbers = [
        names[n]
        for n, f in conversion.info.features.items()
        if n not in columns.AUTOMATIC and f.get("dtype") not in PICTURES and conversion.name_of(n)
    ]
    table = load_frames(info.root, numbers, sorted(piece.chosen))

    def converted() -> Iterator[Recording]:
        for episode in piece.episodes:
            row: dict[str, Any] = {}
            if piece.tagged:
                row = {n: episode.row[n] for n in columns.EPISODE_COLUMNS}
                row |= {"gap_units": conversion.units} if conversion.units else {}
            values = _values(table, episode, conversion)
            # As they stand where nothing changes.
            pictures: dict[str, Images] = {}
            index = chosen_rows(episode.length, info.fps, conversion.fps)
            for key in info.video_keys:
                found = conversion.camera(conversion.rename.get(key, key))
                if found is None:
                    continue
                shown, (new, change) = pictures_of(info, episode, key), found
                if shown is None:
                    raise UnusableInputError(
                        f"{info.root}: episode {episode.index} has no video of {key}. Restore it, "
                        "or leave the camera out: "
                        f"cameras: {{{key.removeprefix(columns.IMAGES)}: null}}."
                    )
                same = info.fps == conversion.fps and not change.touches_pictures
                pictures[new] = shown if same else partial(_changed_pictures, shown, index, change)
            n = len(next(iter(values.values())))
            yield Recording(episode.info.task, n, values, pictures, row)

    about = About(conversion.fps, conversion.robot_type, conversion.features())
    return write_dataset(
        about,
        converted(),
        target,
        info.root,
        on_episode,
        amend=lambda stage: _bring_along(piece, conversion, stage),
    )


def _bring_along(piece: DatasetPiece, conversion: Conversion, stage: Path) -> None:
    """Copy labels, telemetry and what else lies beside the dataset's own folders; note the change.

    What is hidden, a repository or a cache, stays with the dataset that it is in.
    """
    info = piece.info
    for path in sorted(info.root.rglob("*")):
        own = path.relative_to(info.root)
        is_hidden = own.parts[0].startswith(".")
        kept = own.parts[0] not in _REWRITTEN or own.is_relative_to("meta/gap")
        if path.is_file() and kept and not is_hidden and own.name not in (RUN, "README.md"):
            (stage / own).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, stage / own)
    rows = [e.row for e in piece.episodes]
    types = pq.read_schema(layout.episode_files(info.root)[0])
    for path in layout.episode_files(stage):  # columns of others
        table = layout.read_parquet(path)
        numbers = table["episode_index"].to_pylist()
        for name in rows[0]:
            known = name in columns.EPISODE_COLUMNS or name in table.column_names
            if not known and "/" not in name:
                values = [rows[i].get(name) for i in numbers]
                table = table.append_column(name, pa.array(values, types.field(name).type))
        pq.write_table(table, path, compression="snappy")
    source = source_of(piece)
    entry: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(),
        "source": {k: source[k] for k in ("name", "id", "hash")},
        "units": {"from": known_units(piece.episodes, info), "to": conversion.units},
        **conversion.record(),
    }
    (stage / RECORD).parent.mkdir(parents=True, exist_ok=True)
    write_json(stage / RECORD, {"schema": SCHEMA, "history": [*history_of(stage), entry]})
    frames = int(read_json(stage / layout.INFO)["total_frames"])
    result = {"takes": len(rows), "frames": frames, "record": RECORD}
    write_record(stage, EDIT_SCHEMA, "edit harmonise", {}, [source], result)


def _values(
    table: FrameTable, episode: EpisodeRow, conversion: Conversion
) -> dict[str, NDArray[Any]]:
    rows = table.rows_of(episode.index)
    count = rows.stop - rows.start
    if count != episode.length or not count:
        raise UnusableInputError(
            f"{table.info.root}: episode {episode.index} has {count} rows, its table says "
            f"{episode.length}. Fix it: gaploop check DIR --fix"
        )
    source_fps, fps = table.info.fps, conversion.fps
    index = chosen_rows(count, source_fps, fps)
    result: dict[str, NDArray[Any]] = {}
    for stored, column in table.columns.items():
        name = conversion.rename.get(stored, stored)
        own, new = column[rows], conversion.name_of(name)
        if name in VECTORS:
            values = own.reshape(count, -1).astype(np.float64)[index]
            of_joints = conversion.spec.joint_map(name, table.info.names(stored))
            result[name] = of_joints.of(values).astype(np.float32)
        elif name.startswith(columns.CAMERA_AGE) and new is not None:
            # Pictures stand at other moments than they did.
            age_s = own.reshape(-1)[index]
            later_s = np.arange(len(index)) / fps - index / source_fps
            known = age_s != columns.AGE_UNKNOWN_S
            aged_s = np.where(known, np.maximum(age_s + later_s, 0.0), age_s)
            result[new] = aged_s.astype(np.float32)
        elif new is not None:
            result[new] = own[index]
    if conversion.fill:
        ages = (columns.camera_of_age(n) for n in conversion.fill)
        made = columns.filled_columns(episode.info.uid, result[columns.ACTION], fps, ages)
        result |= {name: made[name] for name in conversion.fill}
    return result


def _changed_pictures(
    pictures: Images, index: NDArray[np.int64], change: CameraSpec
) -> Iterator[Image]:
    """Yield those pictures of a take whose never falling index is given, cropped and scaled."""
    shown, at, picture = pictures(), -1, None
    for wanted in index.tolist():
        while at < wanted:
            picture = next(shown, None)
            at += 1
        if picture is None:
            return
        result = picture
        if change.crop is not None:
            x, y, w, h = change.crop
            result = result[y : y + h, x : x + w]
        if change.resize is not None and change.resize != result.shape[1::-1]:
            smaller = change.resize[0] < result.shape[1]
            way = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
            result = np.asarray(cv2.resize(result, change.resize, interpolation=way))
        yield np.ascontiguousarray(result)


# Which frames stand at the moments of another rate.


def chosen_rows(frames: int, source_fps: float, target_fps: float) -> NDArray[np.int64]:
    """Return which frame of a take stands at each moment of another rate [Hz].

    The newest that there is, shape (n,), never falling; as many as fit into the take's time.
    """
    count = int(np.floor((frames - 1) * target_fps / source_fps + _ROUNDING)) + 1
    place = np.arange(count) * source_fps / target_fps
    return np.asarray(np.minimum(np.floor(place + _ROUNDING), frames - 1).astype(np.int64))
