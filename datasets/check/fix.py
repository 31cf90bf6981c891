"""A damaged dataset made sound: what is whole stays, the rest is left out, metadata is rebuilt.

Everything is done in a folder of its own, whose big files are links. A trial run ends there. In
place, the folder before is kept beside the new one, and the two trade places at once: killed at
any instant there is the old dataset or the new one. Run again, it finds nothing to do.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gaploop.core import consent, platform_calls
from gaploop.core.consent import note_made_from
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, refuse_lfs_pointers
from gaploop.core.paths import refuse_links_out
from gaploop.core.run_record import write_record
from gaploop.datasets import layout, lineage, staging
from gaploop.datasets.check import description, frames
from gaploop.datasets.check.dataset import check_dataset
from gaploop.datasets.check.episodes import fix_episodes, fix_tasks, known_places, read_old
from gaploop.datasets.check.findings import ERROR, Finding, Findings, FixAction, FixDraft, numbers
from gaploop.datasets.check.frames import scan_frames
from gaploop.datasets.check.gaps import fix_labels
from gaploop.datasets.check.stats import fix_stats
from gaploop.datasets.check.videos import (
    EpisodeClip,
    decodes,
    episodes_of_pictures,
    mark_damaged_pictures,
    places,
    read_cameras,
    set_sizes,
    settled,
)
from gaploop.datasets.v3_files import numeric_features

KEPT: Final = ".damaged-"
PART: Final = "damaged"
BY_HAND: Final = "Restore it from a copy, or set it right by hand."
"""The fix of what `--fix` can't fix and `check` knows no other command for."""
COPY: Final = "an exact copy"
"""How the reason begins for leaving out what is there twice, so that nothing is lost."""

NEVER: Final = "it never had a row"


@dataclass(frozen=True)
class FixOptions:
    """How to fix a dataset.

    Attributes:
        labels_from: dataset or journal from which lost gap columns and labels are taken.
        deep: decode every picture; otherwise as many as `check` does.
    """

    labels_from: Path | None = None
    deep: bool = False


@dataclass(frozen=True)
class FixReport:
    """What fixing did, or would do, and the errors left that it can't fix.

    `lost` is what of that leaves something out, in words. `written` is where the sound dataset is,
    `kept` the folder before; None where there is none.
    """

    actions: tuple[FixAction, ...]
    left: tuple[Finding, ...]
    lost: tuple[str, ...] = ()
    written: Path | None = None
    kept: Path | None = None


def looks_like_dataset(root: Path) -> bool:
    """Say whether a folder is a dataset, however damaged."""
    if layout.is_dataset(root):
        return True
    return next(root.glob("*/chunk-*/*.parquet"), None) is not None or (root / "meta").is_dir()


def _point(path: Path, target: Path) -> None:
    """Make a symbolic link, which works across disks, or copy."""
    try:
        os.symlink(path, target)
    except OSError:  # Windows wants a privilege for it
        staging.link_or_copy(path, target)


def plan(root: Path, options: FixOptions) -> FixReport:
    """Return what fixing would do; nothing is changed.

    Raises:
        UnusableInputError: no dataset there, or options that don't fit it.
    """
    root = existing_folder(Path(root), "Dataset").absolute()
    refuse_links_out(root)
    refuse_lfs_pointers(root)
    with tempfile.TemporaryDirectory(prefix="gaploop-fix-") as scratch:
        stage = Path(scratch, root.name)
        staging.clone(root, stage, _point, follow=True)
        return _fixed(root, stage, options)


def fix(
    root: Path,
    options: FixOptions,
    output_dir: Path | None = None,
    *,
    may_lose: Callable[[Sequence[str]], bool] = lambda _lost: True,
    hook: staging.Hook = staging.no_hook,
) -> FixReport:
    """Fix a dataset in place, or into another folder.

    Args:
        output_dir: an empty or new folder; in place where None, and the folder before is kept.
        may_lose: asked before anything is written, with what would be left out; where the answer
            is no, nothing is.

    Raises:
        UnusableInputError: no dataset there, options that don't fit it, or a folder that can't
            be written. Nothing is changed then.
    """
    root = existing_folder(Path(root), "Dataset").absolute()
    refuse_links_out(root)
    refuse_lfs_pointers(root)
    target = root if output_dir is None else Path(output_dir).absolute()
    note_made_from(consent.Place("dataset", str(target)), [root])
    with staging.locked(root) if output_dir is None else staging.new_folder(target, root):
        staging.recover(target)
        stage = staging.sibling(target, "staging")
        staging.clone(root, stage, follow=True)
        hook("cloned")
        try:
            report = _fixed(root, stage, options)
        except BaseException:
            shutil.rmtree(stage)
            raise
        hook("fixed")
        refused = bool(report.lost) and not may_lose(report.lost)
        if refused or (output_dir is None and not report.actions):
            shutil.rmtree(stage)
            return report
        if report.actions:
            run, digest = lineage.read_run(root), lineage.dataset_hash(root)
            source = {"name": root.name, "id": str(run.get("id", "")), "hash": digest, "run": run}
            result = {"actions": sorted({action.code for action in report.actions})}
            write_record(stage, lineage.SCHEMA, "check --fix", {}, [source], result)
        kept = keep(root, hook) if output_dir is None else None
        staging.commit(stage, target, hook)
        return replace(report, written=target, kept=kept)


def _fixed(root: Path, stage: Path, options: FixOptions) -> FixReport:
    """Fix the copy in `stage`; names in errors are those of the folder that was asked about.

    Where `check` would have what is left fixed, which has just been tried, there is another fix.
    """

    def renamed(text: str) -> str:
        return text.replace(str(stage), str(root)).replace(stage.name, root.name)

    draft, findings = FixDraft(stage), Findings(stage)
    try:
        _fix_draft(draft, options)
    except UnusableInputError as error:
        raise UnusableInputError(renamed(str(error))) from None
    for _ in check_dataset(stage, findings, options.deep):
        pass
    left, tried = [], (findings.command(), findings.command("--drop=true"))
    for found in (f for f in findings.items if f.severity == ERROR):
        fix = BY_HAND if found.fix in tried else renamed(found.fix)
        left.append(
            replace(found, where=renamed(found.where), message=renamed(found.message), fix=fix)
        )
    return FixReport(tuple(draft.actions), tuple(left), tuple(draft.lost))


def _fix_draft(draft: FixDraft, options: FixOptions) -> None:
    """Make the dataset in the draft's folder as sound as what is left of it allows."""
    name = draft.root.name
    version = str(description.read_object(draft.root / layout.INFO).get("codebase_version") or "")
    if version.startswith(("v1", "v2")):  # its files are laid out otherwise
        layout.parse_info(draft.root)  # says what to do
    description.fix_names(draft)
    frames.retype(draft)
    description.fix_info(draft)
    cut = frames.salvage_files(draft)
    if not layout.data_files(draft.root):
        held = description.read_object(draft.root / layout.INFO).get("total_episodes")
        if version and held == 0 and not draft.lost:
            return  # a recording that never had an episode
        raise UnusableInputError(
            f"{name}: there is no data file of which a row can be read. Restore data/ from a copy; "
            "without one it is no dataset."
        )
    description.fix_info(draft)
    names = description.fix_keys(draft)
    info = layout.parse_info(draft.root)
    paths = layout.data_files(draft.root)
    held = frames.read_rows(paths, numeric_features(info), names)
    mark_damaged_pictures(info, paths, held)
    old = read_old(draft.root, held.runs())
    lengths = {e: int(n) for e, n in old.column("length").items() if isinstance(n, int)}
    known = {e: n for e, n in lengths.items() if n > 0}
    episodes, lost, spoilt = frames.whole_episodes(paths, held, info.fps, known, cut)
    here = {e.old: len(e) for e in episodes}
    cameras = read_cameras(draft)
    set_sizes(draft, cameras)
    every = sorted({**lengths, **spoilt, **here}.items())  # frames of all episodes there were
    count = sum(1 for camera in cameras if camera.files)
    pictures = {e: count * n for e, n in here.items()}
    tried = episodes_of_pictures(pictures, options.deep)
    for at, camera in enumerate(cameras):
        if not camera.files:
            continue  # says nothing about single episodes: they all stay
        stated = known_places(old, camera.key)
        camera, stated = settled(draft, camera, stated, dict(every))
        placed = places(camera, stated, every, info.fps)
        cameras[at] = replace(camera, places=placed)
        for episode, length in here.items():
            if episode not in placed:
                lost.setdefault(episode, f"pictures of {camera.key} are missing")
                continue
            chunk, file, start_s = placed[episode]
            clip = EpisodeClip(episode, length, start_s)
            if episode in tried and not decodes(info.fps, camera.paths[chunk, file], clip):
                lost.setdefault(episode, f"pictures of {camera.key} can't be decoded")
    episodes = [e for e in episodes if e.old not in lost]
    for copy, first in frames.copies(held, episodes).items():
        lost[copy] = f"{COPY} of episode {first}"
    episodes = [e for e in episodes if e.old not in lost]
    if not episodes:
        reasons = "; ".join(sorted(set(lost.values()))[:3])
        raise UnusableInputError(
            f"{name}: no episode is whole ({reasons}). Restore the dataset from a copy."
        )
    present = set(held.episode.tolist())
    if not lost and sum(map(len, episodes)) == info.total_frames:
        draft.lost.clear()  # files of which nothing can be read, but nothing is missing either
    rows = old.table.select([n for n in ("episode_index", "length") if n in old.table.column_names])
    empty = {row["episode_index"]: row.get("length") == 0 for row in rows.to_pylist()}
    for value in old.table["episode_index"].to_pylist():
        if isinstance(value, int) and value not in present:
            lost.setdefault(value, NEVER if empty.get(value) else "none of its rows are left")
    for reason in dict.fromkeys(reason for _, reason in sorted(lost.items())):
        which = sorted(episode for episode, why in lost.items() if why == reason)
        note = draft.did if reason.startswith((COPY, NEVER)) else draft.left_out
        note("left_out", f"episodes {numbers(which)}: {reason}")
    said = {e: [t] if isinstance(t, str) else list(t) for e, t in old.column("tasks").items()}
    tasks, episodes, changed = fix_tasks(draft, held, episodes, said)
    frames.rewrite_files(draft, paths, held, episodes, info.fps, names, changed)
    description.fix_counts(draft, len(episodes), sum(map(len, episodes)), tasks)
    info = layout.parse_info(draft.root)
    scan = scan_frames(info, Findings())
    fix_episodes(draft, info, scan, old, episodes, cameras)
    fix_stats(draft, info, scan)
    fix_labels(draft, episodes, options.labels_from)


def kept_copies(root: Path) -> list[Path]:
    """Return the folders that fixing a dataset kept beside it, also one that a kill cut off."""
    numbered = sorted(root.parent.glob(f"{glob.escape(root.name)}{KEPT}[0-9]*"))
    return [
        p for p in (*numbered, staging.sibling(root, PART)) if p.is_dir() and not p.is_symlink()
    ]


def keep(root: Path, hook: staging.Hook) -> Path:
    """Keep the folder as it is under a name beside it, whole or not at all."""
    number = 1
    while (kept := root.parent / f"{root.name}{KEPT}{number}").exists():
        number += 1
    part = staging.sibling(root, PART)
    shutil.rmtree(part, ignore_errors=True)
    staging.clone(root, part, follow=True)
    staging.sync_tree(part)
    hook("copied")
    os.rename(part, kept)
    platform_calls.sync_path(root.parent)
    hook("kept")
    return kept
