"""A damaged dataset made sound: what is whole stays, the rest is left out, metadata is rebuilt.

Everything is done in a folder of its own, whose big files are links. A trial run ends there. In
place, the folder before is kept beside the new one, and the two trade places at once: killed at
any instant there is the old dataset or the new one. Run again, it finds nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.core import consent
from gaploop.core.consent_store import note_made_from
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.paths import refuse_links_out
from gaploop.datasets import layout, staging
from gaploop.datasets.check.dataset import (
    check_dataset,
    convert,
    older_version,
)
from gaploop.datasets.check.findings import ERROR, Finding, Findings, numbers
from gaploop.datasets.check.frames import numeric_features
from gaploop.datasets.check.videos import DEEP, QUICK
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.repair.episodes import (
    OldTable,
    known_places,
    mend_episodes,
    read_old,
)
from gaploop.datasets.repair.folder import clone, keep
from gaploop.datasets.repair.frames import data_paths, rewrite_files, salvage_files
from gaploop.datasets.repair.info import load, mend_counts, mend_info
from gaploop.datasets.repair.keys import mend_keys
from gaploop.datasets.repair.labels import mend_labels
from gaploop.datasets.repair.names import RepairAction as Action
from gaploop.datasets.repair.names import RepairDraft, mend_files
from gaploop.datasets.repair.rows import (
    Rows,
    Whole,
    copies,
    mark_damaged_pictures,
    read_rows,
    whole_episodes,
)
from gaploop.datasets.repair.stats import mend_stats
from gaploop.datasets.repair.tasks import mend_tasks
from gaploop.datasets.repair.videos import Camera, Place, places, read_cameras, undecodable

BY_HAND: Final = "Restore it from a copy, or set it right by hand."
"""The fix of what repair can't fix and `check` knows no other command for."""


@dataclass(frozen=True)
class RepairOptions:
    """How to repair.

    Attributes:
        labels_from: dataset or journal from which lost gap columns and labels are taken.
        task: name of tasks that nothing names any more.
        deep: decode every picture; otherwise as many as `check` does.
    """

    labels_from: Path | None = None
    task: str = ""
    deep: bool = False


@dataclass(frozen=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        actions: in order.
        left: errors that it can't fix.
        written: where the sound dataset is; None where nothing was written.
        kept: where the folder before was kept; None where it wasn't touched.
    """

    actions: tuple[Action, ...]
    left: tuple[Finding, ...]
    written: Path | None = None
    kept: Path | None = None


def looks_like_dataset(root: Path) -> bool:
    """Say whether a folder is a dataset, however damaged."""
    if layout.is_dataset(root):
        return True
    return next(root.glob("*/chunk-*/*.parquet"), None) is not None or (root / "meta").is_dir()


def plan(root: Path, options: RepairOptions) -> RepairReport:
    """Return what a repair would do; nothing is changed.

    Raises:
        UnusableInputError: no dataset there, or options that don't fit it.
    """
    root = existing_folder(Path(root), "Dataset").absolute()
    refuse_links_out(root)
    with tempfile.TemporaryDirectory(prefix="gaploop-repair-") as scratch:
        stage = Path(scratch, root.name)
        clone(root, stage, link=os.symlink)
        draft = RepairDraft(stage)
        with _named(stage, root):
            mend(draft, options)
        return RepairReport(tuple(draft.actions), _left(stage, root, options))


def repair(
    root: Path,
    options: RepairOptions,
    output_dir: Path | None = None,
    *,
    hook: staging.Hook = staging.no_hook,
) -> RepairReport:
    """Repair a dataset in place, or into another folder.

    Args:
        root: the dataset.
        options: how.
        output_dir: an empty or new folder; in place where None, and the folder before is kept.
        hook: called with the name of each step.

    Raises:
        UnusableInputError: no dataset there, options that don't fit it, or a folder that can't
            be written. Nothing is changed then.
    """
    root = existing_folder(Path(root), "Dataset").absolute()
    refuse_links_out(root)
    target = root if output_dir is None else Path(output_dir).absolute()
    note_made_from(consent.Place("dataset", str(target)), [root])
    with staging.locked(root) if output_dir is None else staging.new_folder(target, root):
        staging.recover(target)
        stage = staging.beside(target, "staging")
        clone(root, stage)
        hook("cloned")
        draft = RepairDraft(stage)
        try:
            with _named(stage, root):
                mend(draft, options)
            left = _left(stage, root, options)
        except BaseException:
            shutil.rmtree(stage)
            raise
        hook("mended")
        actions = tuple(draft.actions)
        if output_dir is None and not actions:
            shutil.rmtree(stage)
            return RepairReport((), left)
        kept = None
        if output_dir is None:
            kept = keep(root, hook)
        staging.commit(stage, target, hook)
        return RepairReport(actions, left, target, kept)


def _left(stage: Path, root: Path, options: RepairOptions) -> tuple[Finding, ...]:
    """Return the errors that are left, with the names of the folder that was asked about.

    Where `check` would have it repaired, which has just been tried, there is another fix.
    """
    findings = Findings(stage)
    check_dataset(stage, findings, DEEP if options.deep else QUICK)
    return tuple(
        Finding(
            f.code,
            f.severity,
            _told(f.where, stage, root),
            _told(f.message, stage, root),
            BY_HAND if f.mend == findings.repair() else _told(f.mend, stage, root),
        )
        for f in findings
        if f.severity == ERROR
    )


@contextlib.contextmanager
def _named(stage: Path, root: Path) -> Iterator[None]:
    """Let errors speak of the folder that was asked about instead of the one worked in."""
    try:
        yield
    except UnusableInputError as error:
        raise UnusableInputError(_told(str(error), stage, root)) from None


def _told(text: str, stage: Path, root: Path) -> str:
    return text.replace(str(stage), str(root)).replace(stage.name, root.name)


def mend(draft: RepairDraft, options: RepairOptions) -> None:
    """Make the dataset in the draft's folder as sound as what is left of it allows.

    Raises:
        UnusableInputError: no episode is whole, or options that don't fit.
    """
    _require_v3(draft)
    mend_files(draft)
    raw = mend_info(draft)
    salvage_files(draft, raw)
    if not data_paths(draft.root):
        raise UnusableInputError(
            f"{draft.root.name}: no row of its data files can be read. Restore data/ from a copy."
        )
    raw = mend_info(draft)
    names = mend_keys(draft, raw)
    info = layout.parse_info(draft.root)
    paths = data_paths(draft.root)
    rows = read_rows(paths, numeric_features(info), names)
    mark_damaged_pictures(info, paths, rows)
    old = read_old(draft.root, _runs(rows))
    episodes, lost, spoilt = _whole(rows, info, old)
    cameras = read_cameras(draft, raw)
    found = _with_pictures(info, old, episodes, cameras, lost, spoilt, options.deep)
    episodes = [e for e in episodes if e.old not in lost]
    for copy, first in copies(rows, episodes).items():
        lost[copy] = f"an exact copy of episode {first}"
    episodes = [e for e in episodes if e.old not in lost]
    if not episodes:
        reasons = "; ".join(sorted(set(lost.values()))[:3])
        raise UnusableInputError(
            f"{draft.root.name}: no episode is whole ({reasons}). Restore the dataset from a copy."
        )
    _tell_lost(draft, lost, old, rows)
    tasks = mend_tasks(draft, rows, episodes, _said(old), options.task)
    homes = rewrite_files(draft, paths, rows, episodes, info.fps, names, tasks.changed)
    frames = sum(len(e) for e in episodes)
    mend_counts(draft, raw, len(episodes), frames, tasks.names)
    info = layout.parse_info(draft.root)
    mend_episodes(draft, info, old, episodes, homes, found, tasks.of_episode)
    mend_stats(draft, info)
    mend_labels(draft, episodes, options.labels_from, info.fps)


def _require_v3(draft: RepairDraft) -> None:
    """Refuse datasets of an older format: their files are laid out otherwise."""
    version = str(load(draft).get("codebase_version") or "")
    if older_version(version):
        raise UnusableInputError(
            f"{draft.root.name}: dataset version {version}, this repairs v3. "
            f"Convert it with: {convert(draft.root)}"
        )


def _runs(rows: Rows) -> dict[tuple[int, int], int]:
    """Return (first row, number of rows) to episode, for stretches of one episode."""
    runs: dict[tuple[int, int], int] = {}
    start = 0
    values = rows.episode.tolist()
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[start]:
            runs[start, i - start] = values[start]
            start = i
    return runs


def _whole(
    rows: Rows, info: DatasetInfo, old: OldTable
) -> tuple[list[Whole], dict[int, str], dict[int, int]]:
    lengths = {e: int(n) for e, n in old.column("length").items() if isinstance(n, int) and n > 0}
    return whole_episodes(rows, info.fps, lengths)


def _said(old: OldTable) -> Mapping[int, list[str]]:
    return {e: [t] if isinstance(t, str) else list(t) for e, t in old.column("tasks").items()}


def _with_pictures(
    info: DatasetInfo,
    old: OldTable,
    episodes: list[Whole],
    cameras: list[Camera],
    lost: dict[int, str],
    spoilt: Mapping[int, int],
    deep: bool,
) -> list[tuple[Camera, Mapping[int, Place]]]:
    """Find each episode's pictures; those without any are added to `lost`.

    A camera of which no file is left says nothing about single episodes: they all stay.
    """
    lengths = {e.old: len(e) for e in episodes}
    before = {e: int(n) for e, n in old.column("length").items() if isinstance(n, int)}
    every = sorted({**before, **spoilt, **lengths}.items())
    found: list[tuple[Camera, Mapping[int, Place]]] = []
    count = sum(1 for camera in cameras if camera.files)
    effort = DEEP if deep else QUICK
    known = effort.episodes_of_signals(lengths)
    tried = effort.episodes_of_pictures({e: count * n for e, n in lengths.items()}, known)
    for camera in cameras:
        if not camera.files:
            found.append((camera, {}))
            continue
        all_places = places(camera, known_places(old, camera.key), every, info.fps)
        here = {e: p for e, p in all_places.items() if e in lengths}
        for episode in undecodable(
            camera, {e: p for e, p in here.items() if e in tried}, lengths, info.fps
        ):
            lost.setdefault(episode, f"pictures of {camera.key} can't be decoded")
        for episode in lengths:
            if episode not in here:
                lost.setdefault(episode, f"pictures of {camera.key} are missing")
        found.append((camera, here))
    return found


def _tell_lost(draft: RepairDraft, lost: Mapping[int, str], old: OldTable, rows: Rows) -> None:
    gone = dict(lost)
    present = set(rows.episode.tolist())
    if old.table is not None and "episode_index" in old.table.column_names:
        for value in old.table["episode_index"].to_pylist():
            if isinstance(value, int) and value not in present:
                gone.setdefault(value, "none of its rows are left")
    reasons: dict[str, list[int]] = {}
    for episode, reason in sorted(gone.items()):
        reasons.setdefault(reason, []).append(episode)
    for reason, which in reasons.items():
        draft.did("left_out", f"episodes {numbers(which)}: {reason}")
