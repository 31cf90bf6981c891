"""Is a dataset or journal sound? Every fault is a finding with a fix, never a traceback; and `fix`.

A damaged dataset is made sound: what is whole stays, the rest is left out, metadata is rebuilt.
Everything is done in a folder of its own, whose big files are links. A trial run ends there. In
place, the folder before is kept beside the new one, and the two trade places at once: killed at
any instant there is the old dataset or the new one. Run again, it finds nothing to do.
"""

import glob
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core import consent, errors, journal_format, labels, platform_calls
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import (
    existing_folder,
    fetch_hint,
    lfs_pointers,
    pointers_text,
    read_json,
    refuse_lfs_pointers,
    sha256,
)
from gaploop.core.paths import link_fix, links_out, refuse_links_out
from gaploop.core.run_record import write_record
from gaploop.datasets import layout, staging
from gaploop.datasets.check import description, episodes, frames, gaps, stats, videos
from gaploop.datasets.check.findings import ERROR, Finding, Findings, FixAction, FixDraft
from gaploop.datasets.edit.compose import EDIT_SCHEMA, dataset_hash, read_run
from gaploop.datasets.formats.lerobot_v2 import is_v2
from gaploop.datasets.layout import numbers
from gaploop.datasets.v3_files import numeric_features
from gaploop.datasets.video import count_frames


def check(root: Path, deep: bool = False) -> list[Finding]:
    """Check a LeRobot v3 dataset or a journal; see `check_in_parts`."""
    *_, found = check_in_parts(root, deep)
    return found


def check_in_parts(root: Path, deep: bool = False) -> Iterator[list[Finding]]:
    """Yield what is wrong with a LeRobot v3 dataset or a journal, at the end all of it.

    Of a dataset, before that what is known before pictures are decoded, which takes long.

    Args:
        deep: decode every picture; otherwise some of a large dataset, spread evenly.

    Raises:
        UnusableInputError: the folder is missing or empty, or holds neither.
    """
    root = existing_folder(Path(root), "Folder")
    findings = Findings(root)
    for path in links_out(root):
        text = "It is a link that leads out of the folder: not followed, and never pushed."
        findings.error("link_out", path.relative_to(root), text, link_fix(path))
    if not findings.items and (pointers := lfs_pointers(root)):
        findings.error("lfs_pointer", root.name, pointers_text(pointers, root), fetch_hint(root))
    if findings.items:
        pass
    elif layout.is_dataset(root):
        for _ in check_dataset(root, findings, deep):
            yield list(findings.items)
    elif journal_format.is_journal(root):
        with findings.guard(root.name):
            check_journal(root, findings)
    elif (root / "meta").exists() or (root / "data").exists():
        text = f"{layout.INFO} is missing; without it nothing can load the dataset."
        fix = "" if layout.data_files(root) else "Restore data/ and meta/ from a copy."
        findings.error("missing_info", layout.INFO, text, fix)
    else:
        what = "is empty" if not any(root.iterdir()) else "holds neither a dataset nor episodes"
        raise UnusableInputError(
            f"{root} {what}. Name a LeRobot dataset (meta/info.json) or a journal."
        )
    yield findings.items


def check_dataset(root: Path, findings: Findings, deep: bool) -> Iterator[None]:
    """Check everything about the dataset at `root`, going on as far as each fault allows.

    Yields once, before pictures are decoded.
    """
    try:
        info = layout.parse_info(root)
    except (UnusableInputError, OSError) as error:
        text = " ".join(str(error).split())
        fix = layout.convert(root) if is_v2(root) else ""
        if "stored as Lance" in text:
            fix = "Check the dataset that it was converted from."
        elif not fix and not layout.data_files(root):
            fix = "There are no data files: restore data/ from a copy, or name a dataset's folder."
        findings.error("bad_info", layout.INFO, text, fix)
        return
    findings.episodes = info.total_episodes
    raw = read_json(root / layout.INFO)
    for name in ("data_path", "video_path"):
        value = raw.get(name)
        if value is not None and not layout.is_template(value):
            text = f"{name} is {value!r}: no placeholder for chunk or file number."
            findings.error("bad_info", layout.INFO, text)
    description.check_folders(info, findings)
    description.check_features(info, findings)
    if any(description.feature_fault(spec) for spec in info.features.values()):
        return
    names = episodes.task_names(info, findings)
    table = episodes.check_episodes(info, findings)
    scan: frames.Scan | None = None
    with findings.guard("data"):
        scan = frames.scan_frames(info, findings)
    if names is not None:
        with findings.guard(layout.EPISODES):
            named: dict[int, set[str]] = {}
            if table is not None:
                named = episodes.check_episode_tasks(table, names, findings)
            if scan is not None:
                episodes.check_tasks_of_rows(scan, names, named, findings)
    if table is not None and scan is not None:
        with findings.guard("data"):
            episodes.check_ranges(info, table, scan, findings)
            frames.check_copies(scan, findings)
    stretches: videos.Stretches = []
    if table is not None:
        with findings.guard("videos"):
            stretches = videos.check_videos(info, table, deep, findings)
        with findings.guard(layout.EPISODES):
            gaps.check_gaps(info, table, scan, findings)
            gaps.check_units(table, scan, findings)
    if info.total_episodes or scan is not None:
        with findings.guard(layout.STATS):
            stats.check_stats(info, scan, findings)
    if table is not None:
        yield
        with findings.guard("videos"):
            videos.check_pictures(info, stretches, findings)
            videos.check_stored(info, deep, findings)


_RESTORE: Final = "Restore the episode's folder from a copy, or discard the episode."


def check_journal(journal: Path, findings: Findings) -> None:
    """Check every take of a journal: readable, sealed ones whole and unchanged; and its labels."""
    try:
        list(labels.read(journal / journal_format.LABELS))
    except (UnusableInputError, OSError) as error:
        findings.error("bad_labels", journal_format.LABELS, str(error), "Fix that line.")
        return
    for folder in journal_format.take_folders(journal):
        try:
            header, end = journal_format.read_header(folder), journal_format.read_end(folder)
        except (UnusableInputError, *errors.DAMAGE) as error:
            findings.error("bad_take", folder.name, str(error), _RESTORE)
            continue
        if header.info.uid != folder.name:
            text = f"Its header names {header.info.uid}."
            findings.error("bad_take", folder.name, text, "Rename the folder to that uid.")
        if end is None:
            text = "Not sealed, so not published: a crash or kill ended it, or it is still open."
            fix = f"gaploop check {shlex.quote(str(journal))} --fix"
            findings.warn("unsealed", folder.name, text, fix)
            continue
        present = {path.name: path for path in folder.iterdir()}
        for name, digest in end.checksums.items():
            path = present.get(name)
            if path is None:
                findings.error("missing_file", f"{folder.name}/{name}", "It is missing.", _RESTORE)
            elif sha256(path) != digest:
                text = "It was changed after sealing: its checksum differs."
                findings.error("changed_file", f"{folder.name}/{name}", text, _RESTORE)
        try:
            take = journal_format.read_take(folder)
        except (UnusableInputError, *errors.DAMAGE) as error:
            findings.error("bad_take", folder.name, str(error), _RESTORE)
            continue
        for what, found, sealed in (
            ("frames", len(take.frames), end.frames),
            ("telemetry rows", len(take.telemetry), end.telemetry_rows),
        ):
            if found != sealed:
                text = f"{found} {what} can be read, {sealed} were sealed."
                findings.error("row_count", folder.name, text, _RESTORE)
        if not np.isfinite(take.frames.state).all():
            text = "NaN or infinite joint state."
            findings.error("not_finite", folder.name, text, "Discard the episode.")
        for camera in header.cameras:
            video = journal_format.camera_path(folder, camera)
            where = f"{folder.name}/{video.name}"
            try:
                pictures = count_frames(video) if video.exists() else end.frames  # told above
                if pictures != end.frames:
                    text = f"{pictures} pictures for {end.frames} frames."
                    findings.error("video_frames", where, text, "Discard the episode.")
            except UnusableInputError as error:
                findings.error("unreadable", where, str(error), _RESTORE)
            if end.dropped.get(camera):
                text = f"{camera}: {end.dropped[camera]} of {end.frames} pictures were dropped; "
                text += "those rows have the previous picture."
                fix = (
                    "Use the episode if that is good enough. Fewer or smaller pictures prevent it."
                )
                findings.warn("dropped_pictures", folder.name, text, fix)


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
    consent.note_made_from(consent.Place("dataset", str(target)), [root])
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
            run, digest = read_run(root), dataset_hash(root)
            source = {"name": root.name, "id": str(run.get("id", "")), "hash": digest, "run": run}
            result = {"actions": sorted({action.code for action in report.actions})}
            write_record(stage, EDIT_SCHEMA, "check --fix", {}, [source], result)
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
    videos.mark_damaged_pictures(info, paths, held)
    old = episodes.read_old(draft.root, held.runs())
    lengths = {e: int(n) for e, n in old.column("length").items() if isinstance(n, int)}
    known = {e: n for e, n in lengths.items() if n > 0}
    whole, lost, spoilt = frames.whole_episodes(paths, held, info.fps, known, cut)
    here = {e.old: len(e) for e in whole}
    cameras = videos.read_cameras(draft)
    videos.set_sizes(draft, cameras)
    every = sorted({**lengths, **spoilt, **here}.items())  # frames of all episodes there were
    count = sum(1 for camera in cameras if camera.files)
    pictures = {e: count * n for e, n in here.items()}
    tried = videos.episodes_of_pictures(pictures, options.deep)
    for at, camera in enumerate(cameras):
        if not camera.files:
            continue  # says nothing about single episodes: they all stay
        stated = episodes.known_places(old, camera.key)
        camera, stated = videos.settled(draft, camera, stated, dict(every))
        placed = videos.places(camera, stated, every, info.fps)
        cameras[at] = replace(camera, places=placed)
        for episode, length in here.items():
            if episode not in placed:
                lost.setdefault(episode, f"pictures of {camera.key} are missing")
                continue
            chunk, file, start_s = placed[episode]
            clip = videos.EpisodeClip(episode, length, start_s)
            if episode in tried and not videos.decodes(info.fps, camera.paths[chunk, file], clip):
                lost.setdefault(episode, f"pictures of {camera.key} can't be decoded")
    whole = [e for e in whole if e.old not in lost]
    for copy, first in frames.copies(held, whole).items():
        lost[copy] = f"{COPY} of episode {first}"
    whole = [e for e in whole if e.old not in lost]
    if not whole:
        reasons = "; ".join(sorted(set(lost.values()))[:3])
        raise UnusableInputError(
            f"{name}: no episode is whole ({reasons}). Restore the dataset from a copy."
        )
    present = set(held.episode.tolist())
    if not lost and sum(map(len, whole)) == info.total_frames:
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
    tasks, whole, changed = episodes.fix_tasks(draft, held, whole, said)
    frames.rewrite_files(draft, paths, held, whole, info.fps, names, changed)
    description.fix_counts(draft, len(whole), sum(map(len, whole)), tasks)
    info = layout.parse_info(draft.root)
    scan = frames.scan_frames(info, Findings())
    episodes.fix_episodes(draft, info, scan, old, whole, cameras)
    stats.fix_stats(draft, info, scan)
    gaps.fix_labels(draft, whole, options.labels_from)


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
