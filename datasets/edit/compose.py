"""One LeRobot v3 dataset out of chosen episodes of others, not decoded, and its `run.json`.

Rows, statistics per episode, columns of other tools, labels, telemetry and every other file come
along; what is left out is in no file of the result. A video file all of whose episodes are chosen
is taken as it is. Others are cut packet by packet, so that nothing of the episodes left out stays
in a file. An episode may be changed on its way: frames at its ends left out, values shifted,
cameras exchanged; its statistics are computed anew.

Its `run.json` names the datasets by id and hash and says which episodes. No path stands in it, so
that it can be pushed; and no uid, so that takes which are deleted later leave nothing behind.
Before takes go anywhere, the consent of the people in them is looked up, and the place is noted.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core import labels
from gaploop.core.consent import (
    Place,
    Use,
    consent_ids,
    load_register,
    note_places,
    require_consent,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_content, read_json, sha256, write_json
from gaploop.core.journal_format import TRUTH
from gaploop.core.run_record import RUN
from gaploop.core.statistics import Stats
from gaploop.core.take import TakeInfo
from gaploop.datasets import columns, episodes_table, layout, staging, v3_files
from gaploop.datasets.episodes_table import copy_events, gap_row, with_gap_columns
from gaploop.datasets.layout import DatasetInfo, EpisodeRow, damaged, read_episodes, read_info
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.telemetry_zarr import cut_telemetry, telemetry_path
from gaploop.datasets.v3_files import EpisodeReader, to_numpy
from gaploop.datasets.video import DamagedVideoError, count_frames, encode_part
from gaploop.datasets.whole_stats import complete_stats, of_rows, renew_episode_stats


@dataclass(frozen=True)
class EpisodeChange:
    """What becomes of one episode on its way into a new dataset.

    Attributes:
        frames: the first that stays, and the one behind the last; None for all.
        time_s: when these two were recorded, since the take began [s].
        subtract: feature to what is subtracted from its entries, shape (width,).
        scale: feature of those to what its entries are multiplied by then, shape (width,).
        cameras: feature of a camera to the feature that its pictures have been under.
        added: new feature to its values in all frames of the episode, shape (n, width).
    """

    frames: tuple[int, int] | None = None
    time_s: tuple[float, float] = (-np.inf, np.inf)
    subtract: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    scale: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    cameras: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first frame that stays."""
        return self.frames[0] if self.frames else 0

    @property
    def start_s(self) -> float:
        """By how much the take begins later [s]."""
        return self.time_s[0] if self.first else 0.0

    def of_episode(self, episode: EpisodeRow) -> EpisodeRow:
        """Return an episode's row as it will be."""
        if self.frames is None:
            return episode
        later_ns = round(self.start_s * 1e9) if episode.info.t0_ns else 0
        t0_ns = episode.info.t0_ns + later_ns
        row = {**episode.row, **({"gap_t0_ns": t0_ns} if "gap_t0_ns" in episode.row else {})}
        length = self.frames[1] - self.frames[0]
        return replace(episode, length=length, info=replace(episode.info, t0_ns=t0_ns), row=row)

    def of_rows(self, rows: pa.Table, info: DatasetInfo) -> pa.Table:
        """Return an episode's rows as they will be."""
        for name, entries in self.added.items():
            column = pa.FixedSizeListArray.from_arrays(pa.array(entries.ravel()), entries.shape[1])
            rows = rows.append_column(name, column)
        if self.frames is not None:
            rows = rows.slice(self.first, self.frames[1] - self.first)
        if self.first:  # what doesn't change stays as it was, bit by bit
            count = np.arange(len(rows))
            values = {"frame_index": count, "timestamp": count / info.fps}
            if columns.TIME in rows.column_names:
                values[columns.TIME] = rows[columns.TIME].to_numpy() - self.start_s
            rows = v3_files.with_columns(rows, values)
        for feature, by in self.subtract.items():
            old = to_numpy(rows[feature])
            less = old.reshape(-1, len(by)).astype(np.float64) - by
            flat = (less * self.scale.get(feature, 1.0)).astype(old.dtype).reshape(-1)
            place = rows.schema.get_field_index(feature)
            kind, new = rows.schema.types[place], pa.array(flat)
            if pa.types.is_fixed_size_list(kind):
                new = pa.FixedSizeListArray.from_arrays(new, type=kind)
            elif pa.types.is_list(kind):
                new = pa.ListArray.from_arrays(np.arange(len(rows) + 1) * len(by), new)
            rows = rows.set_column(place, rows.schema.field(place), new.cast(kind))
        before = rows
        for new_key, old_key in self.cameras.items():
            for to, source in ((new_key, old_key), _age_columns(new_key, old_key)):
                if to in before.column_names and source in before.column_names:
                    place = before.schema.get_field_index(to)
                    rows = rows.set_column(place, before.schema.field(place), before[source])
        return rows


def _age_columns(*keys: str) -> tuple[str, ...]:
    return tuple(columns.age_column(key.removeprefix(columns.IMAGES)) for key in keys)


UNCHANGED: Final = EpisodeChange()


@dataclass(frozen=True)
class DatasetPiece:
    """Some episodes of one dataset: all that it has, in order, and the indices of those meant.

    `changes` is episode index to what becomes of it; `features` describes those that it adds.
    """

    info: DatasetInfo
    held: tuple[EpisodeRow, ...]
    chosen: frozenset[int]
    changes: Mapping[int, EpisodeChange] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def whole(cls, root: Path) -> DatasetPiece:
        """Return all episodes of the dataset at `root`.

        Raises:
            UnusableInputError: no dataset there, or none of its episodes can be told.
        """
        info = layout.read_info(root)
        held = tuple(layout.read_episodes(info))
        if not held:
            raise damaged(root, "it has no episodes.")
        return cls(info, held, frozenset(e.index for e in held))

    def only(self, chosen: Collection[int]) -> DatasetPiece:
        """Return the piece with just these episodes."""
        return replace(self, chosen=frozenset(chosen))

    def change(self, episode: EpisodeRow) -> EpisodeChange:
        """Return what becomes of an episode."""
        return self.changes.get(episode.index, UNCHANGED)

    @property
    def episodes(self) -> tuple[EpisodeRow, ...]:
        """The chosen episodes, in order, as they will be."""
        return tuple(self.change(e).of_episode(e) for e in self.held if e.index in self.chosen)

    @property
    def tagged(self) -> bool:
        """Say whether the dataset has gap columns."""
        return any(e.row.get("gap_uid") for e in self.held)


CARD: Final = "README.md"
_REWRITTEN: Final = ("data", "videos", "images", layout.TELEMETRY)
"""Folders that are written anew or, as `images`, only hold what a recorder left over."""
_NEW: Final = (layout.INFO, layout.STATS, layout.TASKS, layout.LABELS, TRUTH, RUN)


def compose(
    pieces: Sequence[DatasetPiece],
    stage: Path,
    done: VideosDone,
    link: bool = False,
    reencode: bool = False,
    *,
    on_episode: Callable[[], None] = lambda: None,
    hook: staging.Hook = staging.no_hook,
) -> None:
    """Write the dataset that consists of `pieces`, in order, to the new folder `stage`.

    Args:
        pieces: at least one episode; all with the same features and rate.
        stage: must not exist; where this fails, what is in it is worth nothing.
        done: what is done with videos is counted there.
        link: whole videos and telemetry become hard links: only where the source is about to be
            replaced.
        reencode: pictures that can't be cut are decoded and encoded again.

    Raises:
        UnusableInputError: a source is damaged, or a video can't be cut.
    """
    stage.mkdir(parents=True)
    with layout.reraise_for(*(piece.info.root for piece in pieces)):
        placed = Placed()
        with contextlib.closing(v3_files.DataFiles(replace(pieces[0].info, root=stage))) as files:
            for piece in pieces:
                info = piece.info
                reader = EpisodeReader(info, [n for n in info.features if n not in info.video_keys])
                tasks = layout.read_tasks(info.root / layout.TASKS)
                for episode in (e for e in piece.held if e.index in piece.chosen):
                    rows = piece.change(episode).of_rows(reader.rows_of(episode), info)
                    if episode.index in piece.changes:
                        placed.changed.append(len(placed.rows))
                    rows = _renumbered(rows, tasks, placed)
                    placed.stats.append(of_rows(rows.select(_NUMBERS), info))
                    placed.rows[-1] |= files.append(rows)
                    on_episode()
        hook("rows written")
        videos = _write_videos(pieces, stage, done, link, reencode)
        hook("videos written")
        _write_episodes(pieces, stage, placed, videos)
        v3_files.write_tasks(stage, dict(enumerate(placed.tasks)))
        # The first one's description, with what is counted anew.
        descriptions = [read_json(piece.info.root / layout.INFO) for piece in pieces]
        described, count = descriptions[0], len(placed.rows)
        described |= {
            "total_episodes": count,
            "total_frames": placed.frames,
            "total_tasks": len(placed.tasks),
            "splits": {"train": f"0:{count}"},
        }
        described["features"] |= pieces[0].features
        for key, spec in described["features"].items():
            notes = [d["features"].get(key, {}).get("info") for d in descriptions]
            if spec.get("dtype") == "video" and isinstance(spec.get("info"), dict):
                # As LeRobot's own merge does: what the sources don't agree on isn't claimed.
                for word, value in spec["info"].items():
                    if not all(isinstance(n, dict) and n.get(word) == value for n in notes):
                        spec["info"][word] = None
        write_json(stage / layout.INFO, described)
        new_info = layout.parse_info(stage)
        if placed.changed:
            renew_episode_stats(new_info, placed.changed, pieces[0].features)
        complete_stats(new_info)
        uids = {e.info.uid for piece in pieces for e in piece.episodes}
        truth: dict[bytes, None] = {}  # what is known about the takes besides
        for number, piece in enumerate(pieces):
            root = piece.info.root
            for episode in piece.episodes:
                source = telemetry_path(root, episode.info.uid)
                target = telemetry_path(stage, episode.info.uid)
                change = piece.change(episode)
                if source.exists() and change.frames is not None:
                    cut_telemetry(source, target, *change.time_s, change.start_s)
                elif source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (staging.link_or_copy if link else shutil.copy2)(source, target)
            lines = read_content(root / TRUTH).split(b"\n") if (root / TRUTH).exists() else []
            truth |= dict.fromkeys(line for line in lines if labels.is_about(line, uids))
            # Every other file; where two of a name differ, the later one gets a number. A card
            # describes one dataset: that of a merged one has to be written anew. Hidden files (a
            # cache, a repository) stay with the dataset that they are in.
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                name = path.relative_to(root)
                known = name.as_posix() in _NEW or name.is_relative_to(layout.EPISODES)
                known |= name.as_posix() == CARD and len(pieces) > 1
                if name.parts[0] in _REWRITTEN or known or (name.parts[0][0] == "." and not link):
                    continue
                target = stage / name
                if target.exists() and not filecmp.cmp(path, target, shallow=False):
                    target = target.with_name(f"{target.stem}.{number}{target.suffix}")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        copy_events([piece.info.root for piece in pieces], uids, stage)
        if truth:
            (stage / TRUTH).write_bytes(b"".join(line + b"\n" for line in truth))
        if any(piece.tagged for piece in pieces):
            episodes_table.materialise(stage, {})


_NUMBERS: Final = ["index", "episode_index", "task_index"]


@dataclass
class Placed:
    """Where the rows of the new dataset's episodes are.

    Attributes:
        rows: per episode, the columns of `meta/episodes` that say so.
        tasks: instruction to its new task index.
        stats: per episode, statistics of what was numbered anew.
        changed: new numbers of the episodes whose rows or pictures aren't what they were.
    """

    rows: list[dict[str, int]] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    stats: list[dict[str, Stats]] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    frames: int = 0


def _renumbered(rows: pa.Table, names: Sequence[str], placed: Placed) -> pa.Table:
    """Return an episode's rows with their numbers in the new dataset, and note it in `placed`."""
    n, first, new = len(rows), placed.frames, len(placed.rows)
    old_tasks = rows["task_index"].to_numpy()
    mapping: dict[int, int] = {}
    for old in dict.fromkeys(old_tasks.tolist()):  # in order of appearance
        if not 0 <= old < len(names):
            raise UnusableInputError(
                f"{layout.TASKS} has no task_index {old}. Restore that table from a copy."
            )
        mapping[old] = placed.tasks.setdefault(names[old], len(placed.tasks))
    tasks = np.array([mapping[t] for t in old_tasks.tolist()], dtype=np.int64)
    placed.frames += n
    ends = {"dataset_from_index": first, "dataset_to_index": placed.frames}
    placed.rows.append({"episode_index": new, "length": n, **ends})
    numbers = {"index": np.arange(first, first + n), "episode_index": np.full(n, new)}
    return v3_files.with_columns(rows, {**numbers, "task_index": tasks})


def _write_episodes(
    pieces: Sequence[DatasetPiece], stage: Path, placed: Placed, videos: Sequence[Mapping[str, Any]]
) -> None:
    """Write `meta/episodes`, with `videos`' columns of each episode."""
    tables = []
    for piece in pieces:
        read = [layout.read_parquet(path) for path in layout.episode_files(piece.info.root)]
        try:
            table = pa.concat_tables(read, promote_options="permissive")
        except pa.ArrowException as error:
            what = f"files of {layout.EPISODES} don't fit together ({error})."
            raise damaged(piece.info.root, what) from None
        numbers = table["episode_index"].to_numpy()
        order = np.argsort(numbers, kind="stable")
        keep = [int(i) for i in order if int(numbers[i]) in piece.chosen]
        table = table.take(pa.array(keep, pa.int64()))
        if any(piece.tagged for piece in pieces):  # then all of them get gap columns
            table = with_gap_columns(table, [gap_row(e) for e in piece.episodes])
        tables.append(table)
    if len(tables) > 1:  # statistics that some lack go, other columns are empty there
        shared = set.intersection(*(set(t.column_names) for t in tables))
        kept = [
            t.select([n for n in t.column_names if n in shared or not n.startswith("stats/")])
            for t in tables
        ]
        for other, piece in zip(kept[1:], pieces[1:], strict=True):
            for name in (n for n in other.column_names if n in kept[0].column_names):
                have, got = kept[0].schema.field(name).type, other.schema.field(name).type
                if have != got and not (pa.types.is_null(have) or pa.types.is_null(got)):
                    raise UnusableInputError(
                        f"{piece.info.root}: column {name} of {layout.EPISODES} is {got}, in "
                        f"{pieces[0].info.root} it is {have}. Write both with the same tool, or "
                        "remove the column."
                    )
        table = pa.concat_tables(kept, promote_options="default").replace_schema_metadata(None)
    new = [{**row, **clips} for row, clips in zip(placed.rows, videos, strict=True)]
    changed: dict[str, list[Any]] = {name: [row[name] for row in new] for name in new[0]}
    for name in table.column_names:
        feature, _, stat = name.removeprefix("stats/").rpartition("/")
        if feature in _NUMBERS and stat in placed.stats[0][feature]:
            pairs = zip(table[name].to_pylist(), placed.stats, strict=True)
            changed[name] = [v and [type(v[0])(own[feature][stat][0])] for v, own in pairs]
    table = v3_files.with_columns(table, changed)
    v3_files.write_episodes(stage, table)


_REENCODE: Final = "Allow those episodes to be encoded again, with a loss, with --reencode=true."


@dataclass
class VideosDone:
    """What was done: files taken whole, and episodes cut out packet by packet or encoded again."""

    whole: int = 0
    cut: int = 0
    encoded: int = 0


def _write_videos(
    pieces: Sequence[DatasetPiece], stage: Path, done: VideosDone, link: bool, reencode: bool
) -> list[dict[str, Any]]:
    """Write the videos; return the columns of `meta/episodes` about them, per new episode."""
    rows: list[dict[str, Any]] = [{} for piece in pieces for _ in piece.chosen]
    info = replace(pieces[0].info, root=stage)
    for key in info.video_keys:
        with (
            contextlib.closing(v3_files.VideoFiles(info, key)) as shelf,
            tempfile.TemporaryDirectory(dir=stage) as scratch,
        ):
            new = 0
            for piece in pieces:
                files: dict[Path, list[tuple[int, EpisodeRow, float]]] = {}  # new index, start [s]
                for episode in piece.episodes:
                    change = piece.change(episode)
                    source = change.cameras.get(key, key)
                    path, start_s = video_of(piece.info, episode.row, source)
                    start_s += change.first / info.fps
                    if path is None:
                        what = f"episode {episode.index} doesn't state where its {source} is."
                        raise damaged(piece.info.root, what)
                    if not path.exists():
                        raise UnusableInputError(
                            f"{path} is missing. Restore it, or go on without pictures: gaploop "
                            f"convert {piece.info.root} --drop_videos=true --output_dir=OUT"
                        )
                    files.setdefault(path, []).append((new, episode, start_s))
                    new += 1
                held = Counter(
                    video_of(piece.info, e.row, k)[0] for e in piece.held for k in info.video_keys
                )
                trimmed = {k for k, change in piece.changes.items() if change.frames is not None}
                for path, clips in files.items():
                    as_it_was = trimmed.isdisjoint(e.index for _, e, _ in clips)
                    if as_it_was and len(clips) == held[path]:
                        ends = (round(s * info.fps) + e.length for _, e, s in clips)
                        needed, there = max(ends), count_frames(path)
                        if there < needed:
                            what = f"{path.name} holds {there} pictures for {needed} rows."
                            raise damaged(piece.info.root, what)
                        (staging.link_or_copy if link else shutil.copy2)(path, shelf.place())
                        done.whole += 1
                        for row, episode, start_s in clips:
                            rows[row] |= shelf.columns(start_s, episode.length)
                        continue
                    for row, episode, start_s in clips:
                        able = Path(scratch, "clip.mp4") if reencode else None
                        rows[row] |= _cut(path, episode, start_s, shelf, done, able)
    return rows


def _cut(
    path: Path,
    episode: EpisodeRow,
    start_s: float,
    shelf: v3_files.VideoFiles,
    done: VideosDone,
    again: Path | None,
) -> dict[str, Any]:
    """Append one episode of a file, by way of the file `again` where it is encoded again."""
    try:
        columns = shelf.append(path, start_s, episode.length)
        done.cut += 1
    except DamagedVideoError:
        raise  # decoding it wouldn't go better
    except UnusableInputError as error:
        if again is None:
            raise UnusableInputError(f"{error} {_REENCODE}") from None
        encode_part(path, start_s, episode.length, episode.info.fps, again)
        columns = shelf.append(again, 0.0, episode.length)
        done.encoded += 1
    return columns


EDIT_SCHEMA: Final = "gaploop.edit.v1"


def dataset_hash(root: Path) -> str:
    """Return the hash that names a dataset's content: `sha256:` and 16 hexadecimal digits.

    Metadata, labels and numbers count byte by byte; videos and telemetry by name and size.
    """
    digest = hashlib.sha256()
    for folder in ("meta", "data", "videos", "telemetry"):
        for path in sorted(p for p in (root / folder).rglob("*") if p.is_file()):
            content = sha256(path) if folder in ("meta", "data") else str(path.stat().st_size)
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def spans(numbers: Iterable[int]) -> str:
    """Return episode numbers in the form that `--episodes` reads: `0:3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return ",".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in runs)


def source_of(piece: DatasetPiece) -> dict[str, Any]:
    """Return how `run.json` names a dataset that episodes were taken from."""
    run = read_run(piece.info.root)
    return {
        "name": piece.info.root.name,
        "id": str(run.get("id", "")),
        "hash": dataset_hash(piece.info.root),
        "episodes": spans(piece.chosen),
        "takes": len(piece.chosen),
        "of": len(piece.held),
        **({"run": run} if run else {}),
    }


def read_run(root: Path) -> dict[str, Any]:
    """Return a dataset's `run.json`; empty where it has none that says where it came from."""
    try:
        run = read_json(root / RUN)
    except UnusableInputError:
        return {}
    return run if isinstance(run, dict) and run.get("schema") == EDIT_SCHEMA else {}


def require_dataset_consent(root: Path, use: Use, on: date | None = None) -> None:
    """Refuse to pass a dataset on where anybody in it doesn't agree, `on` a day (UTC) or today."""
    infos = [episode.info for episode in read_episodes(read_info(root))]
    require_consent(load_register(), infos, use, f"Dataset {root}", on)


def note_and_refuse_withdrawn(takes: Mapping[Path, Sequence[TakeInfo]]) -> None:
    """Note into which new datasets takes go, and refuse those whose consent was withdrawn.

    The place is noted first: a withdrawal at the same moment is seen here, or finds the place.
    """
    infos = [info for placed in takes.values() for info in placed]
    for where, placed in takes.items():
        note_places(placed, Place("dataset", str(where)))
    known = load_register().consents if any(info.consent for info in infos) else {}
    for info in infos:
        for id_ in consent_ids(info.consent):
            if id_ in known and known[id_].withdrawn:
                raise UnusableInputError(
                    f"Episode {info.uid} is of a person who withdrew consent {id_}. Remove it "
                    f"first: gaploop consent withdraw {id_} --yes"
                )
