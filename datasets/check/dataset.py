"""Is a dataset or journal sound? Every fault is a finding with a fix, never a traceback."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_json
from gaploop.core.journal_format import is_journal
from gaploop.core.paths import link_fix, links_out
from gaploop.datasets import layout
from gaploop.datasets.check.episodes import (
    EpisodeTable,
    check_episode_tasks,
    check_episodes,
    check_features,
    check_folders,
    feature_fault,
    task_names,
)
from gaploop.datasets.check.findings import DAMAGE, Findings
from gaploop.datasets.check.findings import Finding as Finding
from gaploop.datasets.check.frames import (
    check_copies,
    check_ranges,
    check_tasks_of_rows,
    scan_frames,
)
from gaploop.datasets.check.gaps import check_gaps
from gaploop.datasets.check.journal import check_journal
from gaploop.datasets.check.motion import check_motion
from gaploop.datasets.check.pictures import check_stored
from gaploop.datasets.check.scan import Scan
from gaploop.datasets.check.stats import check_stats
from gaploop.datasets.check.videos import DEEP as DEEP
from gaploop.datasets.check.videos import QUICK as QUICK
from gaploop.datasets.check.videos import ReadEffort, check_videos
from gaploop.datasets.layout import DatasetInfo

SIGNALS: Final = 200
"""Episodes whose motion is looked at unless all are asked for, spread evenly."""


def check(
    root: Path,
    effort: ReadEffort = QUICK,
    *,
    consents: Path | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Finding]:
    """Check a LeRobot v3 dataset or a journal.

    Args:
        root: its folder.
        effort: how many pictures are decoded; `DEEP` for all.
        consents: the consent register; the default one where None.
        advance: called after each video file.

    Raises:
        UnusableInputError: the folder is missing or empty, or holds neither.
    """
    root = existing_folder(Path(root), "Folder")
    findings = Findings(root)
    for path in links_out(root):
        text = "It is a link that leads out of the folder: not followed, and never pushed."
        findings.error("link_out", path.relative_to(root), text, link_fix(path))
    if list(findings):
        return list(findings)
    if layout.is_dataset(root):
        check_dataset(root, findings, effort, consents, advance)
    elif is_journal(root):
        with findings.guard(root.name):
            check_journal(root, findings)
    elif (root / "meta").exists() or (root / "data").exists():
        text = f"{layout.INFO} is missing; without it nothing can load the dataset."
        findings.error("missing_info", layout.INFO, text)
    else:
        what = "is empty" if not any(root.iterdir()) else "holds neither a dataset nor takes"
        raise UnusableInputError(
            f"{root} {what}. Name a LeRobot dataset (meta/info.json) or a journal."
        )
    return list(findings)


def check_dataset(
    root: Path,
    findings: Findings,
    effort: ReadEffort = QUICK,
    consents: Path | None = None,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Check everything about the dataset at `root`, going on as far as each fault allows."""
    info = _read_info(root, findings)
    if info is None:
        return
    _check_templates(info, findings)
    check_folders(info, findings)
    check_features(info, findings)
    if any(feature_fault(spec) for spec in info.features.values()):
        return
    tasks = task_names(info, findings)
    episodes = check_episodes(info, findings)
    keep = _spread(episodes, effort)
    scan: Scan | None = None
    with findings.guard("data"):
        scan = scan_frames(info, keep, findings)
    with findings.guard(layout.EPISODES):
        named = None
        if episodes is not None and tasks is not None:
            named = check_episode_tasks(episodes, tasks, findings)
        if scan is not None and tasks is not None:
            check_tasks_of_rows(scan, tasks, named, findings)
    if episodes is not None:
        _check_with_episodes(info, episodes, scan, findings, effort, consents, advance)
    with findings.guard(layout.STATS):
        check_stats(info, scan, findings)


def _check_templates(info: DatasetInfo, findings: Findings) -> None:
    raw = read_json(info.root / layout.INFO)
    for name in ("data_path", "video_path"):
        value = raw.get(name)
        if value is not None and not layout.is_template(value):
            text = f"{name} is {value!r}: no place for chunk and file number."
            findings.error("bad_info", layout.INFO, text)


def _read_info(root: Path, findings: Findings) -> DatasetInfo | None:
    try:
        return layout.parse_info(root)
    except (UnusableInputError, OSError) as error:
        mend = convert(root) if _is_older(root) else ""
        findings.error("bad_info", layout.INFO, " ".join(str(error).split()), mend)
        return None


def _is_older(root: Path) -> bool:
    try:
        return older_version(str(read_json(root / layout.INFO)["codebase_version"]))
    except DAMAGE:
        return False


def older_version(version: str) -> bool:
    """Say whether a dataset's version is one that LeRobot converts to v3."""
    return version.startswith(("v1", "v2"))


def convert(root: Path) -> str:
    """Return LeRobot's command that converts a v2.1 dataset in its place; it keeps `DIR_old`.

    Without the last option it would delete the old version's files on the Hub, too.
    """
    words = f"--repo-id={root.absolute().name}", f"--root={root}", "--push-to-hub=false"
    module = "python -m lerobot.scripts.convert_dataset_v21_to_v30"
    return " ".join((module, *(shlex.quote(word) for word in words)))


def _spread(episodes: EpisodeTable | None, effort: ReadEffort) -> frozenset[int]:
    if episodes is None:
        return frozenset()
    indices = episodes.index.tolist()
    return frozenset(indices) if effort.pictures is None else sampled(indices)


def sampled(episodes: Collection[int]) -> frozenset[int]:
    """Return the episodes whose signals are looked at: all, or `SIGNALS` spread evenly."""
    every = sorted(episodes)
    if len(every) <= SIGNALS:
        return frozenset(every)
    at = np.unique(np.linspace(0, len(every) - 1, SIGNALS).astype(int))
    return frozenset(every[i] for i in at)


def _check_with_episodes(
    info: DatasetInfo,
    episodes: EpisodeTable,
    scan: Scan | None,
    findings: Findings,
    effort: ReadEffort,
    consents: Path | None,
    advance: Callable[[], None],
) -> None:
    if scan is not None:
        with findings.guard("data"):
            check_ranges(info, episodes, scan, findings)
            check_copies(scan, findings)
        with findings.guard("data"):
            if scan.whole:
                check_motion(info, scan, findings)
    with findings.guard("videos"):
        check_videos(info, episodes, scan, effort, findings, advance)
        check_stored(info, effort.pictures, findings)
    with findings.guard(layout.EPISODES):
        check_gaps(info, episodes, scan, consents, findings)
