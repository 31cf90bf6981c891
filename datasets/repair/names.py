"""Repair: folders, files and keys under a wrong name get the one that LeRobot looks for.

Only where it is unambiguous: what is missing has one candidate, and nothing is overwritten.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.datasets import columns, layout

FOLDERS: Final = ("data", "meta", "videos")
META: Final = ("info.json", "stats.json", "tasks.parquet", "episodes")
STANDARD: Final = (
    columns.ACTION,
    columns.STATE,
    columns.ENVIRONMENT,
    "timestamp",
    "frame_index",
    "episode_index",
    "index",
    "task_index",
)
"""Keys that LeRobot or policies know by name."""
_NEAR: Final = 0.6
_CHUNK: Final = re.compile(r"chunk-\d{3,}")


@dataclass(frozen=True)
class RepairAction:
    """One thing that repair does.

    Attributes:
        code: stable name, such as `renamed`.
        what: in words, with names and numbers.
    """

    code: str
    what: str


@dataclass
class RepairDraft:
    """A dataset being repaired, in a folder of its own whose files are links or copies.

    Files are only ever replaced there, never written in place.

    Attributes:
        root: the folder.
        actions: what has been done so far.
    """

    root: Path
    actions: list[RepairAction] = field(default_factory=list)

    def did(self, code: str, what: str) -> None:
        """Note what was done."""
        self.actions.append(RepairAction(code, what))


def mend_files(draft: RepairDraft) -> None:
    """Rename folders and files."""
    _rename_near(draft, draft.root, FOLDERS, folders_only=True)
    meta = draft.root / "meta"
    if meta.is_dir():
        _rename_near(draft, meta, META)
    for parent in (draft.root / "data", draft.root / layout.EPISODES):
        _mend_chunks(draft, parent, ".parquet")
    videos = draft.root / "videos"
    for camera in sorted(videos.iterdir()) if videos.is_dir() else ():
        _mend_chunks(draft, camera, ".mp4")


def _rename_near(
    draft: RepairDraft, parent: Path, wanted: Sequence[str], *, folders_only: bool = False
) -> None:
    present = {p.name for p in parent.iterdir() if p.is_dir() or not folders_only}
    missing = [name for name in wanted if name not in present]
    spare = sorted(present - set(wanted) - {layout.TELEMETRY, "gap"})
    for name in missing:
        near = [n for n in spare if best_match(n, missing) == name]
        if len(near) == 1:
            _rename(draft, parent / near[0], parent / name)


def best_match(name: str, among: Sequence[str]) -> str:
    """Return the one of `among` that `name` was probably meant to be; "" if none or several."""
    scores = [
        (difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio(), word) for word in among
    ]
    scores = sorted((s for s in scores if s[0] >= _NEAR), reverse=True)
    if not scores or (len(scores) > 1 and scores[0][0] - scores[1][0] < 0.05):
        return ""
    return scores[0][1]


def _mend_chunks(draft: RepairDraft, parent: Path, suffix: str) -> None:
    if not parent.is_dir():
        return
    for folder in [p for p in sorted(parent.iterdir()) if p.is_dir()]:
        number = re.findall(r"\d+", folder.name)
        good = folder
        if not _CHUNK.fullmatch(folder.name):
            if len(number) != 1:
                continue
            good = parent / f"chunk-{int(number[0]):03d}"
            if good.exists():
                continue
            _rename(draft, folder, good)
        for file in [p for p in sorted(good.iterdir()) if p.is_file()]:
            number = re.findall(r"\d+", file.name.replace(".mp4", ""))
            if re.fullmatch(r"file-\d{3,}\.(parquet|mp4)", file.name) or len(number) != 1:
                continue
            named = good / f"file-{int(number[0]):03d}{suffix}"
            if not named.exists():
                _rename(draft, file, named)


def _rename(draft: RepairDraft, old: Path, new: Path) -> None:
    old.rename(new)
    draft.did("renamed", f"{old.relative_to(draft.root)} → {new.relative_to(draft.root)}")


def pair_keys(
    features: Mapping[str, Any], present: Sequence[str], *, videos: bool
) -> dict[str, str]:
    """Return which features and columns mean the same: feature to column or video folder.

    Args:
        features: LeRobot's feature table.
        present: columns of the data files, or folders of `videos`.
        videos: whether `present` are video folders.
    """
    wanted = [k for k, f in features.items() if (f.get("dtype") == "video") == videos]
    lost = [k for k in wanted if k not in present]
    spare = [k for k in present if k not in wanted]
    if len(lost) == 1 and len(spare) == 1:
        return {lost[0]: spare[0]}
    pairs = {key: best_match(key, spare) for key in lost}
    found = list(pairs.values())
    return {k: v for k, v in pairs.items() if v and found.count(v) == 1}


def right_name(feature: str, column: str, *, videos: bool) -> str:
    """Return which of two names of one thing stays."""
    if videos:
        return feature if feature.startswith(columns.IMAGES) else column
    standard = feature in STANDARD or feature.startswith("gap.")
    return feature if standard and column not in STANDARD else column


def misnamed(features: Mapping[str, Any]) -> dict[str, str]:
    """Return features that go by a wrong name everywhere, with the right one.

    `actions` becomes `action`; `observations.state` becomes `observation.state`; a camera
    outside `observation.images.` joins the others.
    """
    result: dict[str, str] = {}
    for name in (columns.ACTION, columns.STATE):
        if name in features:
            continue
        others = [
            k
            for k, f in features.items()
            if k not in STANDARD
            and not k.startswith("gap.")
            and f.get("dtype") not in ("video", "image", "string")
            and best_match(k, (columns.ACTION, columns.STATE)) == name
        ]
        if len(others) == 1:
            result[others[0]] = name
    return result
