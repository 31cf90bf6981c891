"""Is a dataset or journal sound? Every fault is a finding with a fix, never a traceback."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core import errors, journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import (
    existing_folder,
    fetch_hint,
    lfs_pointers,
    pointers_text,
    read_json,
    sha256,
)
from gaploop.core.paths import link_fix, links_out
from gaploop.datasets import layout
from gaploop.datasets.check import description, episodes, frames, gaps, stats, videos
from gaploop.datasets.check.findings import Finding, Findings
from gaploop.datasets.formats.lerobot_v2 import is_v2
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


_RESTORE: Final = "Restore the take's folder from a copy, or discard the episode."


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
