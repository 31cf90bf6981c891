"""One LeRobot v3 dataset out of chosen episodes of others, without decoding and without LeRobot.

Rows, statistics per episode, columns of other tools, labels, telemetry and every other file come
along; what is left out is in no file of the result.
"""

from __future__ import annotations

import contextlib
import filecmp
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.files import parse_json, read_content, read_json, write_json
from gaploop.core.journal_format import TRUTH
from gaploop.core.run_record import RUN
from gaploop.datasets import episodes_table, layout, staging
from gaploop.datasets.edit.compose_episodes import write_episodes
from gaploop.datasets.edit.compose_rows import Placed, write_rows
from gaploop.datasets.edit.compose_videos import VideoRules, VideosDone, write_videos
from gaploop.datasets.edit.pieces import DatasetPiece
from gaploop.datasets.telemetry_zarr import telemetry_path

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
        placed = write_rows(pieces, stage, on_episode)
        hook("rows written")
        done = write_videos(pieces, stage, rules)
        hook("videos written")
        write_episodes(pieces, stage, placed, done.rows)
        _write_tasks(stage, placed)
        _write_info(pieces, stage, placed)
        _copy_telemetry(pieces, stage, rules.link)
        _copy_rest(pieces, stage, hidden=rules.link)
        _write_labels(pieces, stage)
        _write_truth(pieces, stage)
        if any(piece.tagged for piece in pieces):
            episodes_table.materialise(stage, {})
    return done


def _write_tasks(stage: Path, placed: Placed) -> None:
    import pandas as pd  # here: half a second

    words = pd.Index(list(placed.tasks), name="task")
    table = pd.DataFrame({"task_index": list(placed.tasks.values())}, index=words)
    table.to_parquet(stage / layout.TASKS)


def _write_info(pieces: Sequence[DatasetPiece], stage: Path, placed: Placed) -> None:
    """Write `meta/info.json`: the first one's, with what is counted anew."""
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


def _copy_telemetry(pieces: Sequence[DatasetPiece], stage: Path, link: bool) -> None:
    for piece in pieces:
        for episode in piece.episodes:
            source = telemetry_path(piece.info.root, episode.info.uid)
            target = telemetry_path(stage, episode.info.uid)
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                (staging.link if link else shutil.copy2)(source, target)


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


def _write_labels(pieces: Sequence[DatasetPiece], stage: Path) -> None:
    """Write what was said about the chosen takes, wherever it was said."""
    uids = {e.info.uid for piece in pieces for e in piece.episodes}
    said = [
        [event for event in labels.read(piece.info.root / layout.LABELS) if event.uid in uids]
        for piece in pieces
    ]
    events = labels.merge(*said)
    if events:
        (stage / layout.LABELS).parent.mkdir(parents=True, exist_ok=True)
        labels.append(stage / layout.LABELS, *events)


def _write_truth(pieces: Sequence[DatasetPiece], stage: Path) -> None:
    """Write what is known about the chosen takes besides; a torn line says nothing."""
    uids = {e.info.uid for piece in pieces for e in piece.episodes}
    kept: dict[str, None] = {}
    for piece in pieces:
        path = piece.info.root / TRUTH
        for line in read_content(path).decode().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                value = parse_json(line)
                if isinstance(value, dict) and value.get("uid") in uids:
                    kept[line] = None
    if kept:
        (stage / TRUTH).write_text("".join(f"{line}\n" for line in kept))
