"""Episodes out of a dataset, for good: no byte of them is left in its files.

What stays is written anew beside the dataset, videos packet by packet where they can be cut
without decoding; else LeRobot's `split_dataset` encodes them again. Then the two trade places.
Labels, telemetry and truth of the removed takes go too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import remove_lines
from gaploop.core.journal_format import TRUTH
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.frames import load_frames
from gaploop.datasets.layout import DatasetInfo, Episode
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.video import VideoWriter

AUTOMATIC: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Features that LeRobot's writer makes itself."""
_WRITTEN: Final = ("data", "videos", layout.TELEMETRY, "images")
"""Folders that are written anew; the rest is copied."""
_NEW_META: Final = (layout.INFO, layout.STATS, layout.TASKS)


def delete_takes(
    root: Path,
    unwanted: Callable[[Episode], bool],
    *,
    hook: staging.Hook = staging.no_hook,
) -> tuple[str, ...]:
    """Delete episodes from the dataset at `root`, and return their uids.

    Where none is left the dataset's folder goes: LeRobot knows no empty dataset. Killed at any
    instant, the dataset is the old one or the new one.

    Args:
        root: dataset folder.
        unwanted: says which episodes go.
        hook: called with the name of each step.

    Raises:
        UnusableInputError: no dataset there, a damaged file, or another process is writing it.
    """
    root = Path(root).absolute()
    with staging.locked(root):
        staging.recover(root)
        info = layout.read_info(root)
        episodes = layout.read_episodes(info)
        gone = tuple(e.info.uid for e in episodes if unwanted(e))
        kept = [e for e in episodes if not unwanted(e)]
        stage = staging.beside(root, "staging")
        if gone and not kept:
            os.rename(root, stage)  # a kill from here on: `recover` deletes it
            shutil.rmtree(stage)
        elif gone:
            _write(info, kept, stage, hook)
            _copy_rest(info, stage, kept, set(gone))
            hook("staged")
            staging.commit(stage, root, hook)
    return gone


def _write(info: DatasetInfo, kept: list[Episode], stage: Path, hook: staging.Hook) -> None:
    if not _can_cut(info, kept) or not _cut(info, kept, stage, hook):
        _split(info, kept, stage)
    if all(e.row.get("gap_uid") for e in kept):
        rows = [{n: e.row[n] for n in columns.EPISODE_COLUMNS} for e in kept]
        episodes_table.materialise(stage, dict(enumerate(rows)))


def _can_cut(info: DatasetInfo, kept: list[Episode]) -> bool:
    """Say whether our own writer can write this dataset: vectors and videos, one task a take."""
    plain = all(
        spec.get("dtype") == "video"
        or (spec.get("dtype") != "image" and len(spec.get("shape") or (1,)) == 1)
        for spec in info.features.values()
    )
    return plain and all(len(e.row.get("tasks") or ()) == 1 for e in kept)


def _cut(info: DatasetInfo, kept: list[Episode], stage: Path, hook: staging.Hook) -> bool:
    """Write what stays without decoding; False where a video can't be cut so."""
    from gaploop.datasets.lerobot_writer import open_writer  # here: it imports torch

    names = [n for n in info.features if n not in AUTOMATIC and n not in info.video_keys]
    features: dict[str, dict[str, Any]] = {
        name: {**spec, "shape": tuple(spec.get("shape") or (1,))}
        for name, spec in info.features.items()
        if name not in AUTOMATIC
    }
    table = load_frames(info.root, names, [e.index for e in kept])
    writer = open_writer(stage, f"local/{info.root.name}", info.fps, info.robot_type, features)
    with tempfile.TemporaryDirectory(prefix=f".{info.root.name}.", dir=info.root.parent) as scratch:
        for episode in kept:
            rows = table.rows_of(episode.index)
            values = {name: table.columns[name][rows] for name in names}
            videos = {
                key.removeprefix(columns.IMAGES): Path(scratch, f"{n}.mp4")
                for n, key in enumerate(info.video_keys)
            }
            try:
                _cut_videos(info, episode, list(videos.values()))
            except UnusableInputError:
                writer.finalize()
                shutil.rmtree(stage)
                return False
            writer.save_take(episode.info.task, values, videos)
            hook("take written")
            for path in videos.values():
                path.unlink()
    writer.finalize()
    return True


def _cut_videos(info: DatasetInfo, episode: Episode, targets: list[Path]) -> None:
    for key, target in zip(info.video_keys, targets, strict=True):
        source, start_s = video_of(info, episode.row, key)
        if source is None or not source.exists():
            raise UnusableInputError(
                f"{info.root}: the video of {key}, episode {episode.index} is missing. Restore it."
            )
        with VideoWriter(target, info.fps) as video:
            video.append_part(source, start_s, episode.length)


def _split(info: DatasetInfo, kept: list[Episode], stage: Path) -> None:
    """Let LeRobot cut: it decodes and encodes videos that hold both kinds of episodes."""
    from lerobot.datasets.dataset_tools import split_dataset
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    parts = staging.beside(stage, "parts")
    shutil.rmtree(parts, ignore_errors=True)
    whole = LeRobotDataset(f"local/{info.root.name}", root=info.root)
    split_dataset(whole, {"kept": [e.index for e in kept]}, parts)
    os.rename(parts / "kept", stage)
    shutil.rmtree(parts)


def _copy_rest(info: DatasetInfo, stage: Path, kept: list[Episode], gone: set[str]) -> None:
    """Bring over telemetry of what stays, and every other file without lines about the rest."""
    for episode in kept:
        source = telemetry_path(info.root, episode.info.uid)
        if source.exists():
            target = telemetry_path(stage, episode.info.uid)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
    for path in sorted(p for p in info.root.rglob("*") if p.is_file()):
        name = path.relative_to(info.root)
        rewritten = name.as_posix() in _NEW_META or name.as_posix().startswith(layout.EPISODES)
        if name.parts[0] in _WRITTEN or rewritten:
            continue
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, stage / name)
    for file in (layout.LABELS, TRUTH):
        remove_lines(stage / file, lambda line: is_about(line, gone))


def is_about(line: str, uids: Collection[str]) -> bool:
    """Say whether a line of JSON is about one of these takes; a torn line is about none."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("uid") in uids
