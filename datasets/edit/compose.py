"""One LeRobot v3 dataset out of chosen episodes of others, without decoding and without LeRobot.

Rows, statistics per episode, columns of other tools, labels, telemetry and every other file come
along; what is left out is in no file of the result. A video file all of whose episodes are chosen
is taken as it is. Others are cut packet by packet, so that nothing of the episodes left out stays
in a file.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_content, read_json, write_json
from gaploop.core.journal_format import TRUTH
from gaploop.core.run_record import RUN
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.episodes_table import with_gap_columns
from gaploop.datasets.labels.transfer import copy_events
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.video import (
    MAX_FILE_BYTES,
    DamagedVideoError,
    VideoWriter,
    count_frames,
    encode_part,
)

LOOK: Final = "Find out more with: gaploop check {root}"


@dataclass(frozen=True)
class DatasetPiece:
    """Some episodes of one dataset.

    Attributes:
        info: the dataset.
        held: all of its episodes, in order.
        chosen: indices of those that are meant.
    """

    info: DatasetInfo
    held: tuple[EpisodeRow, ...]
    chosen: frozenset[int]

    @classmethod
    def whole(cls, root: Path) -> DatasetPiece:
        """Return all episodes of the dataset at `root`.

        Raises:
            UnusableInputError: no dataset there, or none of its episodes can be told.
        """
        info = layout.read_info(root)
        held = tuple(layout.read_episodes(info))
        if not held:
            raise UnusableInputError(f"{root} has no episodes. {LOOK.format(root=root)}")
        return cls(info, held, frozenset(e.index for e in held))

    def only(self, chosen: Collection[int]) -> DatasetPiece:
        """Return the piece with just these episodes."""
        return DatasetPiece(self.info, self.held, frozenset(chosen))

    @property
    def episodes(self) -> tuple[EpisodeRow, ...]:
        """The chosen episodes, in order."""
        return tuple(e for e in self.held if e.index in self.chosen)

    @property
    def rest(self) -> tuple[EpisodeRow, ...]:
        """The others, in order."""
        return tuple(e for e in self.held if e.index not in self.chosen)

    @property
    def tagged(self) -> bool:
        """Say whether the dataset has gap columns."""
        return any(e.row.get("gap_uid") for e in self.held)


def damaged(piece: DatasetPiece, what: str) -> UnusableInputError:
    """Return the error for a source that is not what it says."""
    root = piece.info.root
    return UnusableInputError(f"{root}: {what} {LOOK.format(root=root)}")


CARD: Final = "README.md"
_REWRITTEN: Final = ("data", "videos", "images", layout.TELEMETRY)
"""Folders that are written anew or, as `images`, only hold what a recorder left over."""
_NEW: Final = (layout.INFO, layout.STATS, layout.TASKS, layout.LABELS, TRUTH, RUN)


def compose(
    pieces: Sequence[DatasetPiece],
    stage: Path,
    rules: VideoRules,
    *,
    on_episode: Callable[[], None] | None = None,
    hook: staging.Hook = staging.no_hook,
) -> VideosDone:
    """Write the dataset that consists of `pieces`, in order, to the new folder `stage`.

    Args:
        pieces: at least one episode; all with the same features and rate.
        stage: must not exist; where this fails, what is in it is worth nothing.
        rules: how videos may be brought over.
        on_episode: called after each episode.
        hook: called with the name of each step.

    Raises:
        UnusableInputError: a source is damaged, or a video can't be cut.
    """
    stage.mkdir(parents=True)
    with layout.sound(*(piece.info.root for piece in pieces)):
        placed = _write_rows(pieces, stage, on_episode)
        hook("rows written")
        done = _write_videos(pieces, stage, rules)
        hook("videos written")
        _write_episodes(pieces, stage, placed, done.rows)
        _write_info(pieces, stage, placed)
        for piece in pieces:
            for episode in piece.episodes:
                source = telemetry_path(piece.info.root, episode.info.uid)
                target = telemetry_path(stage, episode.info.uid)
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (staging.link if rules.link else shutil.copy2)(source, target)
        _copy_rest(pieces, stage, hidden=rules.link)
        uids = {e.info.uid for piece in pieces for e in piece.episodes}
        copy_events([piece.info.root for piece in pieces], uids, stage)
        _write_truth(pieces, stage, uids)
        if any(piece.tagged for piece in pieces):
            episodes_table.materialise(stage, {})
    return done


def _write_info(pieces: Sequence[DatasetPiece], stage: Path, placed: Placed) -> None:
    """Write tasks and `meta/info.json`: the first one's, with what is counted anew."""
    import pandas as pd  # here: half a second

    words = pd.Index(list(placed.tasks), name="task")
    table = pd.DataFrame({"task_index": list(placed.tasks.values())}, index=words)
    table.to_parquet(stage / layout.TASKS)
    descriptions = [read_json(piece.info.root / layout.INFO) for piece in pieces]
    info: dict[str, Any] = descriptions[0]
    count = len(placed.rows)
    info |= {
        "total_episodes": count,
        "total_frames": placed.frames,
        "total_tasks": len(placed.tasks),
        "splits": {"train": f"0:{count}"},
    }
    for key, spec in info["features"].items():
        notes = [d["features"].get(key, {}).get("info") for d in descriptions]
        if spec.get("dtype") == "video" and isinstance(spec.get("info"), dict):
            # As LeRobot's own merge does: what the sources don't agree on isn't claimed.
            spec["info"] = {
                name: value
                if all(isinstance(n, dict) and n.get(name) == value for n in notes)
                else None
                for name, value in spec["info"].items()
            }
    write_json(stage / layout.INFO, info)


def _copy_rest(pieces: Sequence[DatasetPiece], stage: Path, hidden: bool) -> None:
    """Copy every other file; where two of a name differ, the later one gets a number.

    A card describes one dataset: that of a merged one has to be written anew. Hidden files (a
    cache, a repository) stay with the dataset that they are in.
    """
    for number, piece in enumerate(pieces):
        for path in sorted(p for p in piece.info.root.rglob("*") if p.is_file()):
            name = path.relative_to(piece.info.root)
            known = name.as_posix() in _NEW or name.as_posix().startswith(f"{layout.EPISODES}/")
            if name.parts[0] in _REWRITTEN or known or (name.parts[0][0] == "." and not hidden):
                continue
            if name.as_posix() == CARD and len(pieces) > 1:
                continue
            target = stage / name
            if target.exists() and not filecmp.cmp(path, target, shallow=False):
                target = target.with_name(f"{target.stem}.{number}{target.suffix}")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _write_truth(pieces: Sequence[DatasetPiece], stage: Path, uids: Collection[str]) -> None:
    """Write what is known about the chosen takes besides; a torn line says nothing."""
    kept: dict[bytes, None] = {}
    for piece in pieces:
        path = piece.info.root / TRUTH
        lines = read_content(path).split(b"\n") if path.exists() else []
        kept |= dict.fromkeys(line for line in lines if labels.is_about(line, uids))
    if kept:
        (stage / TRUTH).write_bytes(b"".join(line + b"\n" for line in kept))


CHUNK_FILES: Final = 1000
"""Files in a folder before the next one begins, as in LeRobot (`chunks_size`)."""
DATA_FILE_BYTES: Final = 100 * 1024 * 1024
"""A data file is closed at this size, as in LeRobot (`data_files_size_in_mb`)."""


@dataclass
class Placed:
    """Where the rows of the new dataset's episodes are.

    Attributes:
        rows: per episode, the columns of `meta/episodes` that say so.
        tasks: instruction to its new task index.
        task_indices: per episode, its rows' new task indices, shape (length,).
        moved: per episode, by how much its rows' `index` and its `episode_index` have grown.
    """

    rows: list[dict[str, int]] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    task_indices: list[np.ndarray[Any, Any]] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    frames: int = 0


def _write_rows(
    pieces: Sequence[DatasetPiece], stage: Path, on_episode: Callable[[], None] | None
) -> Placed:
    """Write the data files of a dataset made of `pieces`, one row group per episode.

    Raises:
        UnusableInputError: a source whose rows are not what its episode table says.
    """
    placed, shelf = Placed(), _DataShelf(stage, pieces[0].info)
    try:
        for piece in pieces:
            reader = _RowReader(piece)
            for episode in piece.episodes:
                chunk, file = shelf.write(_renumbered(reader, episode, placed))
                placed.rows[-1] |= {"data/chunk_index": chunk, "data/file_index": file}
                if on_episode is not None:
                    on_episode()
    finally:
        shelf.close()
    return placed


def _renumbered(reader: _RowReader, episode: EpisodeRow, placed: Placed) -> pa.Table:
    """Return an episode's rows with the numbers that they have in the new dataset."""
    rows = reader.rows_of(episode)
    n, first, new = len(rows), placed.frames, len(placed.rows)
    old_tasks = rows["task_index"].to_numpy()
    mapping: dict[int, int] = {}
    for old in dict.fromkeys(old_tasks.tolist()):  # in order of appearance
        if old not in reader.tasks:
            raise UnusableInputError(
                f"task_index {old} stands in no {layout.TASKS}. Restore that table from a copy."
            )
        mapping[old] = placed.tasks.setdefault(reader.tasks[old], len(placed.tasks))
    tasks = np.array([mapping[t] for t in old_tasks.tolist()], dtype=np.int64)
    placed.task_indices.append(tasks)
    was = (int(rows[name][0].as_py()) if n else 0 for name in ("index", "episode_index"))
    placed.moved.append((first - next(was), new - next(was)) if n else (0, 0))
    placed.frames += n
    placed.rows.append(
        {
            "episode_index": new,
            "dataset_from_index": first,
            "dataset_to_index": placed.frames,
        }
    )
    numbers = {
        "index": np.arange(first, first + n),
        "episode_index": np.full(n, new),
        "task_index": tasks,
    }
    for name, values in numbers.items():
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(name)
        rows = rows.set_column(place, kind, pa.array(values, type=kind.type))
    return rows


class _RowReader:
    """Rows of one dataset's episodes; the file read last stays in memory."""

    def __init__(self, piece: DatasetPiece) -> None:
        self.tasks = _task_names(piece.info)
        self._piece = piece
        self._path = Path()
        self._table: pa.Table = None
        self._bounds: dict[int, tuple[int, int]] = {}

    def rows_of(self, episode: EpisodeRow) -> pa.Table:
        row, info = episode.row, self._piece.info
        chunk, file = row.get("data/chunk_index"), row.get("data/file_index")
        if chunk is None or file is None:
            raise damaged(self._piece, f"episode {episode.index} doesn't say where its rows are.")
        path = info.root / info.data_name(chunk, file)
        if path != self._path:
            wanted = [n for n, spec in info.features.items() if spec.get("dtype") != "video"]
            table = layout.read_parquet(path)
            lacking = [n for n in wanted if n not in table.column_names]
            if lacking:
                raise damaged(self._piece, f"{path.name} has no column {', '.join(lacking)}.")
            self._path, self._table = path, table.select(wanted).combine_chunks()
            numbers = table["episode_index"].to_numpy()
            breaks = np.flatnonzero(np.diff(numbers)) + 1
            edges = [0, *breaks.tolist(), len(numbers)] if len(numbers) else []
            self._bounds = {int(numbers[a]): (a, b) for a, b in itertools.pairwise(edges)}
        first, last = self._bounds.get(episode.index, (0, 0))
        if last - first != episode.length:
            raise damaged(
                self._piece,
                f"{path.name} holds {last - first} rows of episode {episode.index}, which has "
                f"{episode.length}.",
            )
        return self._table.slice(first, last - first)


def _task_names(info: DatasetInfo) -> dict[int, str]:
    """Return task index to instruction, from `meta/tasks.parquet`.

    Raises:
        UnusableInputError: the table is missing or damaged.
    """
    table: pa.Table = layout.read_parquet(info.root / layout.TASKS)
    # Pandas stores the instruction as the table's index, under its name or without one.
    words = next((n for n in ("task", "__index_level_0__") if n in table.column_names), None)
    if words is None or "task_index" not in table.column_names:
        raise UnusableInputError(
            f"{info.root / layout.TASKS} has no columns task and task_index. "
            f"{LOOK.format(root=info.root)}"
        )
    pairs: Any = zip(table["task_index"].to_pylist(), table[words].to_pylist(), strict=True)
    return {int(index): str(task) for index, task in pairs}


class _DataShelf:
    """Data files of the new dataset, one after the other, all with the first one's columns."""

    def __init__(self, stage: Path, info: DatasetInfo) -> None:
        self._stage, self._info = stage, info
        self._schema: pa.Schema | None = None
        self._writer: pq.ParquetWriter | None = None
        self._path = Path()
        self._number = -1

    def write(self, table: pa.Table) -> tuple[int, int]:
        """Append a table; return chunk and number of the file that it is in."""
        if self._schema is None:
            self._schema = table.schema
        if self._writer is not None and self._path.stat().st_size >= DATA_FILE_BYTES:
            self.close()
        if self._writer is None:
            self._number += 1
            name = self._info.data_name(*divmod(self._number, CHUNK_FILES))
            self._path = self._stage / name
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._path, self._schema, compression="snappy", use_dictionary=True
            )
        fitting = table.select(self._schema.names)
        if not fitting.schema.equals(self._schema):
            fitting = fitting.cast(self._schema)
        self._writer.write_table(fitting, row_group_size=max(1, len(fitting)))
        return divmod(self._number, CHUNK_FILES)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


EPISODE_FILE: Final = "chunk-000/file-000.parquet"
_QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def _write_episodes(
    pieces: Sequence[DatasetPiece], stage: Path, placed: Placed, videos: Sequence[Mapping[str, Any]]
) -> None:
    """Write `meta/episodes` and `meta/stats.json` of a dataset made of `pieces`.

    Args:
        pieces: the sources.
        stage: the new dataset.
        placed: where the rows are.
        videos: per episode, the columns about its videos.

    Raises:
        UnusableInputError: columns of the same name that hold different things.
    """

    tagged = any(piece.tagged for piece in pieces)
    table = _together([_of_piece(piece, tagged) for piece in pieces], pieces)

    def put(name: str, values: Sequence[Any]) -> None:
        """Set a column, of the type that it had."""
        nonlocal table
        place = table.schema.get_field_index(name)
        if place < 0:
            table = table.append_column(name, pa.array(values))
        else:
            kind = table.schema.field(name)
            table = table.set_column(place, kind, pa.array(values, type=kind.type))

    new = [{**row, **clips} for row, clips in zip(placed.rows, videos, strict=True)]
    for name in new[0]:
        put(name, [row[name] for row in new])
    for name in ("meta/episodes/chunk_index", "meta/episodes/file_index"):
        put(name, [0] * len(table))
    moved = {"index": [m[0] for m in placed.moved], "episode_index": [m[1] for m in placed.moved]}
    for name in table.column_names:  # the statistics of what was numbered anew
        folder, _, rest = name.partition("/")
        feature, _, stat = rest.rpartition("/")
        if folder != "stats" or stat == "count":
            continue
        old = table[name].to_pylist()
        if feature in moved and stat != "std":
            pairs = zip(old, moved[feature], strict=True)
            put(name, [v and [x + by for x in v] for v, by in pairs])
        elif feature == "task_index":
            tasks = zip(old, placed.task_indices, strict=True)
            put(name, [v and [type(v[0])(_task_stat(t, stat))] for v, t in tasks])
    path = stage / layout.EPISODES / EPISODE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")
    write_json(stage / layout.STATS, _total_stats(table, pieces))


def _task_stat(values: np.ndarray[Any, Any], stat: str) -> float:
    if (values == values[0]).all():
        return 0.0 if stat == "std" else float(values[0])
    if stat in _QUANTILES:
        return float(np.quantile(values, _QUANTILES[stat]))
    return float(getattr(values, stat)())  # min, max, mean, std


def _of_piece(piece: DatasetPiece, tagged: bool) -> pa.Table:
    """Return the chosen rows of a dataset's episode table, with gap columns where one has them."""
    tables = [layout.read_parquet(path) for path in layout.episode_files(piece.info.root)]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise damaged(piece, f"files of {layout.EPISODES} don't fit together ({error}).") from None
    numbers = table["episode_index"].to_numpy()
    order = np.argsort(numbers, kind="stable")
    keep = [int(i) for i in order if int(numbers[i]) in piece.chosen]
    table = table.take(pa.array(keep, pa.int64()))
    if not tagged:
        return table
    rows = [
        {name: e.row.get(name) for name in columns.EPISODE_COLUMNS}
        if e.row.get("gap_uid")
        else columns.default_row(e.info, e.outcome)
        for e in piece.episodes
    ]
    return with_gap_columns(table, rows)


def _together(tables: Sequence[pa.Table], pieces: Sequence[DatasetPiece]) -> pa.Table:
    """Put tables below each other; a column that some lack is empty there.

    Statistics that some lack go: LeRobot can't add them up.
    """
    if len(tables) == 1:
        return tables[0]
    shared = set.intersection(*(set(t.column_names) for t in tables))
    kept = [
        t.select([n for n in t.column_names if n in shared or not n.startswith("stats/")])
        for t in tables
    ]
    for other, piece in zip(kept[1:], pieces[1:], strict=True):
        for name in other.column_names:
            if name not in kept[0].column_names:
                continue
            have, got = kept[0].schema.field(name).type, other.schema.field(name).type
            if have != got and not (pa.types.is_null(have) or pa.types.is_null(got)):
                raise UnusableInputError(
                    f"{piece.info.root}: column {name} of {layout.EPISODES} is {got}, in "
                    f"{pieces[0].info.root} it is {have}. Write both with the same tool, or "
                    "remove the column."
                )
    return pa.concat_tables(kept, promote_options="default").replace_schema_metadata(None)


def _total_stats(table: pa.Table, pieces: Sequence[DatasetPiece]) -> dict[str, Any]:
    """Return the statistics of all episodes together, as LeRobot's `aggregate_stats` does.

    Means are weighted by count, variances added with the squared distance of the means (Chan et
    al. 1979), quantiles averaged. Where the episode table has none, and nothing is left out, they
    are the old ones.
    """
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name in table.column_names:
        folder, _, rest = name.partition("/")
        feature, _, stat = rest.rpartition("/")
        known = folder == "stats" and feature in pieces[0].info.features
        if known and not table[name].null_count:
            values = np.array(table[name].to_pylist(), dtype=np.float64)
            found.setdefault(feature, {})[stat] = values
    total: dict[str, Any] = {}
    for feature, stats in found.items():
        if not {"min", "max", "mean", "std", "count"} <= set(stats):
            continue
        count = stats["count"]
        weight = count.reshape(count.shape + (1,) * (stats["mean"].ndim - count.ndim))
        n = weight.sum(axis=0)
        mean = (stats["mean"] * weight).sum(axis=0) / n
        variance = ((stats["std"] ** 2 + (stats["mean"] - mean) ** 2) * weight).sum(axis=0) / n
        result = {
            "min": stats["min"].min(axis=0),
            "max": stats["max"].max(axis=0),
            "mean": mean,
            "std": np.sqrt(variance),
            "count": count.sum(axis=0).astype(np.int64),
        }
        for name, values in stats.items():
            if name not in result:
                result[name] = (values * weight).sum(axis=0) / n
        total[feature] = {name: value.tolist() for name, value in result.items()}
    if total:
        return total
    piece = pieces[0]
    if len(pieces) > 1 or piece.rest:
        raise UnusableInputError(
            f"{piece.info.root / layout.EPISODES} has no statistics per episode, so those of a "
            "part can't be told. Compute them with: lerobot-edit-dataset "
            "--operation.type=recompute_stats"
        )
    old = read_json(piece.info.root / layout.STATS)
    if not isinstance(old, dict):
        raise damaged(piece, f"{layout.STATS} is not a JSON object.")
    return old


type Clip = tuple[int, EpisodeRow, float]
"""Index in the new dataset, episode, start in its file [s]."""
_REENCODE: Final = "Allow those episodes to be encoded again, with a loss, with --reencode=true."


@dataclass(frozen=True)
class VideoRules:
    """How videos may be brought over.

    Attributes:
        link: whole files become hard links: only where the source is about to be replaced.
        reencode: what can't be cut is decoded and encoded again.
    """

    link: bool = False
    reencode: bool = False


@dataclass
class VideosDone:
    """What was done with videos.

    Attributes:
        rows: per episode of the new dataset, the columns of `meta/episodes` about videos.
        whole: files taken as they are.
        cut: episodes cut out packet by packet.
        encoded: episodes encoded again.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    whole: int = 0
    cut: int = 0
    encoded: int = 0


def _write_videos(pieces: Sequence[DatasetPiece], stage: Path, rules: VideoRules) -> VideosDone:
    """Write the videos of a dataset made of `pieces`.

    Raises:
        UnusableInputError: a video is missing or damaged, or can't be cut and must not be encoded
            again.
    """
    done = VideosDone([{} for piece in pieces for _ in piece.chosen])
    for key in pieces[0].info.video_keys:
        with contextlib.closing(_VideoShelf(stage, key, pieces, rules, done)) as shelf:
            new = 0
            for piece in pieces:
                files: dict[Path, list[Clip]] = {}
                for episode in piece.episodes:
                    path, start_s = video_of(piece.info, episode.row, key)
                    if path is None:
                        raise damaged(
                            piece, f"episode {episode.index} doesn't say where its {key} is."
                        )
                    if not path.exists():
                        raise UnusableInputError(
                            f"{path} is missing. Restore it, or go on without pictures: gaploop "
                            f"import {piece.info.root} --format=lerobot --drop_videos=true "
                            "--output_dir=OUT"
                        )
                    files.setdefault(path, []).append((new, episode, start_s))
                    new += 1
                held = Counter(video_of(piece.info, e.row, key)[0] for e in piece.held)
                for path, clips in files.items():
                    if len(clips) == held[path]:
                        shelf.take(piece, path, clips)
                    else:
                        for clip in clips:
                            shelf.cut(path, clip)
    return done


class _VideoShelf:
    """The new dataset's video files of one camera."""

    def __init__(
        self,
        stage: Path,
        key: str,
        pieces: Sequence[DatasetPiece],
        rules: VideoRules,
        done: VideosDone,
    ) -> None:
        self._stage, self._key, self._info = stage, key, pieces[0].info
        self._rules, self._done = rules, done
        self._writer: VideoWriter | None = None
        self._number = -1

    def take(self, piece: DatasetPiece, path: Path, clips: Sequence[Clip]) -> None:
        """Take a file as it is."""
        self.close()
        needed = max(round(start_s * self._info.fps) + e.length for _, e, start_s in clips)
        held = count_frames(path)
        if held < needed:
            raise damaged(piece, f"{path.name} holds {held} pictures for {needed} rows.")
        target = self._next()
        if self._rules.link:
            staging.link(path, target)
        else:
            shutil.copy2(path, target)
        self._done.whole += 1
        for new, episode, start_s in clips:
            self._note(new, start_s, episode.length)

    def cut(self, path: Path, clip: Clip) -> None:
        """Append one episode of a file."""
        new, episode, start_s = clip
        if self._writer is not None and self._writer.size_bytes >= MAX_FILE_BYTES:
            self.close()
        try:
            first = self._append(path, start_s, episode.length)
            self._done.cut += 1
        except DamagedVideoError:
            raise  # decoding it wouldn't go better
        except UnusableInputError as error:
            if not self._rules.reencode:
                raise UnusableInputError(f"{error} {_REENCODE}") from None
            with tempfile.TemporaryDirectory(dir=self._stage) as scratch:
                again = Path(scratch, "clip.mp4")
                encode_part(path, start_s, episode.length, self._info.fps, again)
                first = self._append(again, 0.0, episode.length)
            self._done.encoded += 1
        self._note(new, first / self._info.fps, episode.length)

    def _append(self, path: Path, start_s: float, frames: int) -> int:
        """Append part of a file to the open one, or to the next; return its first frame there."""
        if self._writer is not None:
            first = self._writer.frames
            if self._writer.append_part(path, start_s, frames):
                return first
            self.close()
        writer = VideoWriter(self._next(), self._info.fps)
        try:
            writer.append_part(path, start_s, frames)
        except UnusableInputError:
            self._number -= 1  # nothing was written: the next file gets this number
            raise
        self._writer = writer
        return 0

    def _next(self) -> Path:
        self._number += 1
        chunk, file = divmod(self._number, CHUNK_FILES)
        name = self._info.video_name(self._key, chunk, file)
        path = self._stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _note(self, new: int, start_s: float, frames: int) -> None:
        chunk, file = divmod(self._number, CHUNK_FILES)
        self._done.rows[new] |= {
            f"videos/{self._key}/chunk_index": chunk,
            f"videos/{self._key}/file_index": file,
            f"videos/{self._key}/from_timestamp": start_s,
            f"videos/{self._key}/to_timestamp": start_s + frames / self._info.fps,
        }

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
