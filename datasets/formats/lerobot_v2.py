"""LeRobot's older layout (v2.0, v2.1): an episode a file. Read into v3, and written from v3.

Pictures are taken over packet by packet. What is written is read back and compared with what it
was made of, row by row and picture by picture. Facts about the layout: LeRobot 0.6.1,
`scripts/convert_dataset_v21_to_v30.py`.
"""

import contextlib
import functools
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core import labels, platform_calls
from gaploop.core.consent import Place, Use, load_register, note_places, require_consent
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import (
    parse_json,
    read_content,
    read_json,
    refuse_lfs_pointers,
    writable_folder,
    write_json,
)
from gaploop.core.messages import Image
from gaploop.core.paths import inside, plain_name, refuse_links_out
from gaploop.datasets import columns, layout, staging, v3_files, video
from gaploop.datasets.formats.new_dataset import About, exported_features, recordings
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import pictures_of, stored_pictures, video_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.v3_files import EpisodeReader, matrix, numeric_features
from gaploop.datasets.video import RATES_DIFFER, SAME_S
from gaploop.datasets.whole_stats import complete_stats, of_images, of_pictures, of_rows

DATA: Final = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO: Final = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
CHUNK: Final = 1000
"""Episodes in a folder, where the description doesn't say another number."""
EPISODES: Final = "meta/episodes.jsonl"
TASKS: Final = "meta/tasks.jsonl"
EPISODE_STATS: Final = "meta/episodes_stats.jsonl"

type Checksums = list[int]


@dataclass(frozen=True)
class OldDataset:
    """A dataset of v2.0 or v2.1, as far as its descriptions go.

    Attributes:
        info: with v3's templates, which don't hold for its files; `raw` is all of it.
        rows: episode to its line of `meta/episodes.jsonl`.
        chunk: episodes in a folder.
        paths: templates of data and video files.
    """

    info: DatasetInfo
    raw: Mapping[str, Any]
    tasks: Mapping[int, str]
    rows: Mapping[int, Mapping[str, Any]]
    chunk: int
    paths: tuple[str, str] = (DATA, VIDEO)

    @property
    def episodes(self) -> list[int]:
        """Every episode that is described; where more are claimed than that, those, too."""
        claimed = range(
            self.info.total_episodes if self.info.total_episodes > len(self.rows) else 0
        )
        return sorted({*self.rows, *claimed})

    def data(self, episode: int) -> Path:
        """Return an episode's data file."""
        return self._path((self.paths[0], DATA), "", episode)

    def video(self, key: str, episode: int) -> Path:
        """Return an episode's video file."""
        return self._path((self.paths[1], VIDEO), key, episode)

    def _path(self, templates: tuple[str, str], key: str, episode: int) -> Path:
        """Return where the file is: as described, else where LeRobot puts it if it is there."""
        chunk = episode // self.chunk
        where = self.info.root / layout.INFO
        stated, usual = (
            inside(self.info.root, template.format(
                episode_chunk=chunk, chunk_index=chunk, episode_index=episode, file_index=episode,
                video_key=key,
            ), "path", where, of_snapshot=True)
            for template in templates
        )  # fmt: skip
        return usual if usual.is_file() and not stated.is_file() else stated


def is_v2(root: Path) -> bool:
    """Say whether a folder describes itself as a dataset of v2.0 or v2.1."""
    with contextlib.suppress(UnusableInputError, OSError, LookupError, TypeError):
        return str(read_json(root / layout.INFO)["codebase_version"]).startswith("v2")
    return False


def read_v2(root: Path, fps: float | None = None) -> OldDataset:
    """Read the descriptions of a dataset of v2.0 or v2.1; `fps` holds, if given [Hz].

    Raises:
        UnusableInputError: one is missing or damaged, or a name or link leads out of the folder.
    """
    refuse_links_out(root)
    refuse_lfs_pointers(root)
    where = root / layout.INFO
    raw = read_json(where)
    try:
        features = dict(raw["features"])
        for name in features:
            plain_name(name, "feature", where)
        paths = str(raw.get("data_path") or DATA), str(raw.get("video_path") or VIDEO)
        raw = {**raw, "fps": raw["fps"] if fps is None else fps}
        fps, count = float(raw["fps"]), int(raw["total_episodes"])
        robot = str(raw.get("robot_type") or "")
        info = DatasetInfo(root, fps, features, robot, count, int(raw["total_frames"]))
        tasks = {int(t["task_index"]): str(t["task"]) for t in _lines(root / TASKS)}
        rows = {int(r["episode_index"]): r for r in _lines(root / EPISODES)}
        chunk = int(raw.get("chunks_size") or CHUNK)
        if chunk < 1 or any(e < 0 for e in rows):
            raise ValueError("chunks_size and episode_index count from 1 and 0")
        old = OldDataset(info, raw, tasks, rows, chunk, paths)
        if len({old.data(0), old.data(1), old.video("a", 0), old.video("b", 0)}) < 4:
            raise ValueError(f"data_path or video_path names one file for all: {paths}")
        return old
    except DAMAGE as error:
        raise UnusableInputError(
            f"{root}: its descriptions in meta/ can't be used ({error!r}). Restore them."
        ) from None


def _lines(path: Path) -> list[dict[str, Any]]:
    text = read_content(path).decode()
    return [dict(parse_json(line)) for line in text.splitlines() if line.strip()]


def upgrade(
    root: Path,
    target: Path,
    only: Sequence[int] | None = None,
    videos: bool = True,
    advance: Callable[[], None] = lambda: None,
    fps: float | None = None,
) -> dict[int, str]:
    """Write a dataset of v2.0 or v2.1 as v3 to a new folder, and compare what is there with it.

    Statistics are computed from the frames, in float64. Gap columns, labels and telemetry come
    along. Timestamps, and the times of pictures of which there is one a row, become k / fps.
    Columns that LeRobot's writer makes by itself are made where they are missing; a camera without
    any video, beside others that have some, is left out.

    Returns:
        Episodes that are left out because something of them is missing, and what.

    Raises:
        UnusableInputError: no episode is whole, or what was written isn't what was read.
    """
    old = read_v2(root, fps)
    features = {
        n: {**f, "shape": tuple(f.get("shape") or (1,))} for n, f in old.info.features.items()
    }
    made = {n: dict(f) for n, f in v3_files.AUTOMATIC_FEATURES.items() if n not in features}
    features |= made
    for spec in features.values():
        spec["names"] = layout.axes_of(spec) or spec.get("names")
    wanted = old.episodes if only is None else list(only)
    filmed = [
        k for k in old.info.video_keys if any(old.video(k, e).is_file() for e in wanted)
    ]  # fmt: skip
    if videos and filmed:  # what never had a video is no camera
        gone = set(old.info.video_keys) - set(filmed)
        features = {k: f for k, f in features.items() if k not in gone}
    old = replace(old, info=replace(old.info, features=features))
    fix = f"Set them right in {layout.INFO}."
    with layout.reraise_as_damaged(f"{root}: LeRobot can't use its features", fix):
        schema = v3_files.arrow_schema(features)
    left_out: dict[int, str] = {}
    kept: list[tuple[int, dict[str, Any]]] = []
    sums: dict[tuple[int, str], Checksums] = {}
    cameras = old.info.video_keys if videos else ()
    new_info, first = replace(old.info, root=target), 0
    files = v3_files.DataFiles(new_info)
    shelves = {key: v3_files.VideoFiles(new_info, key) for key in cameras}
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(files))
        for shelf in shelves.values():
            stack.enter_context(contextlib.closing(shelf))
        for episode in wanted:
            try:
                table = _episode_table(old, episode, schema)
                for key in cameras:
                    sums[episode, key] = _inspect(old, episode, key, len(table))
            except UnusableInputError as error:
                left_out[episode] = str(error)
                continue
            own = _episode_stats(old, episode, table, cameras)
            n, words = len(table), dict.fromkeys(table["task_index"].to_pylist())
            row = {"episode_index": len(kept), "tasks": [old.tasks[t] for t in words], "length": n}
            row |= files.append(_indexed(table, len(kept), first))
            row |= {"dataset_from_index": first, "dataset_to_index": first + n}
            for key, shelf in shelves.items():
                row |= shelf.append(old.video(key, episode), _start_s(old, episode, key, n), n)
            first += n
            row |= {f"stats/{k}/{n}": v.tolist() for k, s in own.items() for n, v in s.items()}
            line = old.rows.get(episode, {})
            if all(name in line for name in columns.EPISODE_COLUMNS):
                row |= {name: line[name] for name in columns.EPISODE_COLUMNS}
            kept.append((episode, row))
            advance()
    if not kept:
        reasons = "; ".join(sorted(set(left_out.values()))[:3])
        raise UnusableInputError(
            f"{root}: no episode is whole ({reasons}). Get the missing files, or go on without "
            "pictures where only those are missing: --drop_videos=true"
        )
    drop = ("total_chunks", "total_videos")
    info = {k: v for k, v in old.raw.items() if k not in drop} | {
        "codebase_version": "v3.0",
        "fps": int(old.info.fps) if old.info.fps.is_integer() else old.info.fps,
        "features": {n: {**f, "shape": list(f["shape"])} for n, f in features.items()},
        "total_episodes": len(kept),
        "total_frames": first,
        "total_tasks": len(old.tasks),
        "splits": {"train": f"0:{len(kept)}"},
        "chunks_size": v3_files.CHUNK_FILES,
        "data_files_size_in_mb": v3_files.DATA_FILE_BYTES >> 20,
        "video_files_size_in_mb": video.MAX_FILE_BYTES >> 20,
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if old.info.video_keys else None,
    }
    (target / layout.INFO).parent.mkdir(parents=True)
    write_json(target / layout.INFO, info)
    v3_files.write_tasks(target, dict(sorted(old.tasks.items())))
    rows = [row for _, row in kept]
    whole = all("gap_uid" in row for row in rows)
    names = [n for n in rows[0] if whole or n not in columns.EPISODE_COLUMNS]
    arrays = [pa.array([r[n] for r in rows], columns.EPISODE_COLUMNS.get(n)) for n in names]
    v3_files.write_episodes(target, pa.Table.from_arrays(arrays, names))
    complete_stats(layout.parse_info(target))
    if (root / layout.LABELS).is_file():
        (target / layout.LABELS).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / layout.LABELS, target / layout.LABELS)
    if (root / layout.TELEMETRY).is_dir():
        shutil.copytree(root / layout.TELEMETRY, target / layout.TELEMETRY)
    _verify_v3(old, target, [episode for episode, _ in kept], sums, schema)
    return left_out


def _episode_table(old: OldDataset, episode: int, schema: pa.Schema) -> pa.Table:
    """Return an episode's rows with the types of v3, or refuse them."""
    path = old.data(episode)
    if not path.is_file():
        raise UnusableInputError(f"{path.relative_to(old.info.root)} is missing")
    table = layout.read_parquet(path)
    n, line = len(table), old.rows.get(episode, {})
    names = [str(name) for name in line.get("tasks", ())]
    own = next((k for k, words in old.tasks.items() if words in names), min(old.tasks, default=0))
    for name, values in v3_files.automatic_columns(n, old.info.fps, episode, 0, own).items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(values))
    try:
        table = table.select(schema.names).replace_schema_metadata(None).cast(schema)
    except (pa.ArrowException, *DAMAGE) as error:
        reason = " ".join(str(error).split())[:120]
        raise UnusableInputError(f"its rows aren't as {layout.INFO} describes ({reason})") from None
    due = old.rows.get(episode, {}).get("length")
    if due is None:
        raise UnusableInputError(f"it isn't in {EPISODES}")
    if len(table) != due or not due:
        raise UnusableInputError(f"{len(table)} rows, {EPISODES} has {due}")
    if (matrix(table["frame_index"], 1)[:, 0] != np.arange(len(table))).any():
        raise UnusableInputError("frame_index doesn't count 0, 1, 2 …")
    for name, width in numeric_features(old.info).items():
        if not np.isfinite(matrix(table[name], width)).all():
            raise UnusableInputError(f"{name} holds NaN, infinite or missing values")
    if not set(table["task_index"].to_pylist()) <= set(old.tasks):
        raise UnusableInputError(f"its task isn't in {TASKS}")
    # Some writers let the time run on from one episode to the next, or note a clock.
    fps = old.info.fps
    stamps, due = matrix(table["timestamp"], 1)[:, 0], np.arange(len(table)) / fps
    if (np.abs(stamps - due) <= SAME_S + np.finfo(np.float32).eps * due).all():
        return table
    step_s = float(np.median(np.diff(stamps))) if len(table) > 1 else 1 / fps
    if not abs(step_s * fps - 1) <= RATES_DIFFER:
        raise UnusableInputError(
            f"its timestamps are {step_s:g} s apart, not {fps:g} a second: give their rate with "
            f"--fps={1 / step_s if step_s > 0 else fps:.4g}"
        )
    return v3_files.with_columns(table, {"timestamp": due.astype(np.float32)})


def _inspect(old: OldDataset, episode: int, key: str, frames: int) -> Checksums:
    """Return a checksum of each picture of an episode, or refuse its video."""
    path = old.video(key, episode)
    if not path.is_file():
        raise UnusableInputError(f"{path.relative_to(old.info.root)} is missing")
    rate = Fraction(old.info.fps).limit_denominator(1001)
    found = video.video_index(path).frames
    if found < frames:
        name = path.relative_to(old.info.root)
        raise UnusableInputError(f"{name} holds {found} pictures for {frames} rows")
    if _start_s(old, episode, key, frames) is not None:
        with video.open_video(path) as container:
            video.find_part(container, 0.0, frames, rate, path)
    sums = _checksums(video.VideoRange(path, 0.0, frames, old.info.fps)())
    if len(sums) != frames:
        raise UnusableInputError(f"{len(sums)} of {frames} pictures of {key} can be decoded")
    return sums


def _start_s(old: OldDataset, episode: int, key: str, frames: int) -> float | None:
    """Return where an episode's pictures begin [s]; None: all in the file, at whatever times."""
    index = video.video_index(old.video(key, episode))
    return None if index.frames == frames and index.is_uneven(old.info.fps) else 0.0


def _checksums(pictures: Iterator[Image]) -> Checksums:
    return [zlib.crc32(np.ascontiguousarray(picture).tobytes()) for picture in pictures]


def _indexed(table: pa.Table, episode: int, first: int) -> pa.Table:
    """Return rows that count as those of another episode, from row `first` on."""
    n = len(table)
    numbers = {"episode_index": np.full(n, episode), "index": np.arange(first, first + n)}
    return v3_files.with_columns(table, numbers)


def _episode_stats(
    old: OldDataset, episode: int, table: pa.Table, cameras: Sequence[str]
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return an episode's statistics, of numbers in float64."""
    found = of_rows(table, old.info)
    for key, spec in old.info.features.items():
        if spec.get("dtype") == "image":
            found[key] = of_images(stored_pictures(old.data(episode), key), len(table))
    for key in cameras:
        found[key] = of_pictures(old.video(key, episode), 0.0, len(table), old.info.fps)
    return found


def _verify_v3(
    old: OldDataset,
    target: Path,
    kept: Sequence[int],
    sums: Mapping[tuple[int, str], Checksums],
    schema: pa.Schema,
) -> None:
    """Compare every row and picture with those that it was made of, and refuse a difference."""
    info = layout.read_info(target)
    reader = EpisodeReader(info, schema.names)
    for episode, made in zip(kept, layout.read_episodes(info), strict=True):
        first = made.row["dataset_from_index"]
        due = _indexed(_episode_table(old, episode, schema), made.index, first)
        if not reader.rows_of(made).equals(due):
            raise UnusableInputError(
                f"{old.info.root}, episode {episode}: rows changed. Report it."
            )
        for key in (k for e, k in sums if e == episode):
            shown = pictures_of(info, made, key)
            if shown is None or _checksums(shown()) != sums[episode, key]:
                raise UnusableInputError(
                    f"{old.video(key, episode)}: its pictures can't be taken over unchanged. "
                    "Leave that episode out with --episodes."
                )


# -- From v3 ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedDataset:
    """What an export wrote: episodes, frames, label events; what it left out, and why.

    `notes` name the features that the layout can't hold.
    """

    episodes: int
    frames: int
    labels: int
    left_out: Mapping[int, str]
    notes: tuple[str, ...]


def export_v21(
    root: Path,
    output: Path,
    only: Sequence[int] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> ExportedDataset:
    """Write a dataset in the layout of v2.1; the output's name appears only when it is whole.

    Episodes of which rows or pictures are missing are left out.

    Raises:
        UnusableInputError: an output that exists or is being written by another process, a video
            that can't be cut, an episode that no uid tells from another, or a consent that is
            missing, or withdrawn meanwhile. Nothing is left at the output then.
    """
    require_free(root, output)
    info = layout.read_info(Path(root))
    episodes = layout.read_episodes(info, sorted(set(only)) if only is not None else None)
    if not episodes:
        raise UnusableInputError(f"{root} has no episodes to export. Record some first.")
    about, notes = exported_features(info)
    left_out = _incomplete(info, about, episodes)
    episodes = [e for e in episodes if e.index not in left_out]
    if not episodes:
        reasons = "; ".join(sorted(set(left_out.values()))[:3])
        raise layout.damaged(root, f"no episode is whole ({reasons}).")
    infos = [episode.info for episode in episodes]
    twice = next((u for u, n in Counter(i.uid for i in infos).items() if n > 1), None)
    if twice is not None:
        raise UnusableInputError(
            f"{root}: gap_uid {twice!a} names several episodes. Fix it: gaploop check {root} --fix"
        )
    # Noted first: a withdrawal at the same moment is seen by the check, or finds the place.
    note_places(infos, Place("export", str(output.absolute())))
    require_consent(load_register(), infos, Use.PUBLISH, f"Dataset {root}")
    part = output.parent / f".{output.name}.part"
    with staging.locked(output.absolute(), "--output_dir"):
        try:
            require_free(root, output)  # who held the lock may have made it
            shutil.rmtree(part, ignore_errors=True)
            frames, events = _write_v21(info, about, episodes, part, advance)
            require_consent(load_register(), infos, Use.PUBLISH, f"Dataset {root}")
            os.replace(part, output)
            platform_calls.sync_path(output.parent)
        except OSError as error:
            reason = error.strerror or error
            raise UnusableInputError(f"{output} can't be written ({reason}). Make room.") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
            # While it is held: filelock tries anew where the file that it locked is gone.
            staging.sibling(output.absolute(), "lock").unlink(missing_ok=True)
    return ExportedDataset(len(episodes), frames, events, left_out, notes)


def require_free(root: Path, output: Path) -> None:
    """Refuse an output that exists, lies in the dataset, or can't be written."""
    if output.exists():
        raise UnusableInputError(f"{output} exists. Name another with --output_dir, or remove it.")
    if output.absolute().is_relative_to(root.absolute()):
        raise UnusableInputError(
            f"{output} lies inside the dataset. Name another with --output_dir."
        )
    writable_folder(output.absolute().parent, "Folder of the output", "--output_dir")


def _incomplete(info: DatasetInfo, about: About, episodes: Sequence[EpisodeRow]) -> dict[int, str]:
    """Return the episodes that rows or pictures are missing of, and what."""
    rows: Counter[int] = Counter()
    for file in layout.data_files(info.root):
        rows.update(layout.read_parquet(file, ["episode_index"])["episode_index"].to_pylist())

    @functools.cache
    def pictures_in(path: Path) -> tuple[int, str]:
        try:
            return video.count_frames(path), ""
        except video.DamagedVideoError as error:
            return 0, str(error)

    found: dict[int, str] = {}
    for episode in episodes:
        if rows[episode.index] != episode.length:
            found[episode.index] = f"{rows[episode.index]} rows of {episode.length}"
        for key in (k for k, f in about.features.items() if f["dtype"] == "video"):
            path, start_s = video_of(info, episode.row, key)
            if path is None or not path.is_file():
                found[episode.index] = f"the video of {key} is missing"
                continue
            count, damage = pictures_in(path)
            if count < round(start_s * info.fps) + episode.length:
                found[episode.index] = damage or f"pictures of {key} are missing"
    return found


def _write_v21(
    source: DatasetInfo,
    about: About,
    episodes: Sequence[EpisodeRow],
    path: Path,
    advance: Callable[[], None],
) -> tuple[int, int]:
    """Write the files and compare them with what they were made of; return frames, label events.

    Episode columns stand in `meta/episodes.jsonl`, where readers of v2.1 pass over them.
    """
    fps = about.fps
    features: dict[str, Any] = {**about.features, **v3_files.AUTOMATIC_FEATURES}
    schema = v3_files.arrow_schema(features)
    tasks = {task: i for i, task in enumerate(dict.fromkeys(e.info.task for e in episodes))}
    cameras = [k for k, f in features.items() if f["dtype"] == "video"]
    info = {k: {**f, "shape": list(f["shape"])} for k, f in features.items()}
    total, count = sum(e.length for e in episodes), len(episodes)
    old = OldDataset(
        DatasetInfo(path, fps, info, about.robot_type, count, total),
        {},
        dict(enumerate(tasks)),
        {i: {"length": e.length} for i, e in enumerate(episodes)},
        CHUNK,
    )
    lines: list[dict[str, Any]] = []
    stats: list[dict[str, Any]] = []
    first = 0
    for i, episode in enumerate(recordings(source, about, episodes)):
        n = episode.length
        values: dict[str, Any] = {**episode.columns}
        values |= v3_files.automatic_columns(n, fps, i, first, tasks[episode.task])
        for key in (k for k, f in features.items() if f["dtype"] == "image"):
            pictures = episode.pictures[key]
            packed = (cv2.imencode(".png", p[:, :, ::-1])[1].tobytes() for p in pictures())
            values[key] = [{"bytes": png, "path": None} for png in packed]
        table = v3_files.table_of(values, schema)
        target = old.data(i)
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, target)
        if not layout.read_parquet(target).equals(table):
            raise UnusableInputError(f"{source.root}, episode {i}: rows changed. Report it.")
        for key in cameras:
            clip = episode.pictures[key]
            assert isinstance(clip, video.VideoRange)  # what is read of dtype video
            with video.VideoWriter(old.video(key, i), fps) as writer:
                writer.append_part(clip.path, clip.start_s, n)
            if _inspect(old, i, key, n) != _checksums(clip()):
                raise UnusableInputError(
                    f"{clip.path}: pictures from {clip.start_s:g} s on can't be cut out unchanged. "
                    "Leave that episode out with --episodes."
                )
        lines.append({"episode_index": i, "tasks": [episode.task], "length": n, **episode.row})
        own = _episode_stats(old, i, table, cameras)
        kept = {k: {name: v.tolist() for name, v in s.items()} for k, s in own.items()}
        stats.append({"episode_index": i, "stats": kept})
        if episode.telemetry is not None:
            store = telemetry_path(path, episode.uid)
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_bytes(episode.telemetry)
        first += n
        advance()
    uids = {e.info.uid for e in episodes}
    events = [e.to_line() for e in labels.read(source.root / layout.LABELS) if e.uid in uids]
    (path / layout.LABELS).parent.mkdir(parents=True)
    (path / layout.LABELS).write_text("".join(f"{line}\n" for line in events))
    numbered = [{"task_index": i, "task": task} for task, i in tasks.items()]
    for name, entries in ((EPISODES, lines), (TASKS, numbered), (EPISODE_STATS, stats)):
        text = "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in entries)
        (path / name).write_text(text, encoding="utf-8")
    description = {
        "codebase_version": "v2.1",
        "robot_type": about.robot_type or None,
        "total_episodes": count,
        "total_frames": first,
        "total_tasks": len(tasks),
        "total_videos": count * len(cameras),
        "total_chunks": -(-count // CHUNK),
        "chunks_size": CHUNK,
        "fps": int(fps) if fps == int(fps) else fps,
        "splits": {"train": f"0:{count}"},
        "data_path": DATA,
        "video_path": VIDEO if cameras else None,
        "features": info,
    }
    write_json(path / layout.INFO, description)
    return first, len(events)
