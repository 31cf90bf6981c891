"""Rules of `check` that need only metadata, streamed: for many datasets, or one of any size.

Numbering, counts, row ranges, words and types of gap columns, uids, and whether the data and video
files that episodes name are there. Codes are those of `check`, which opens the files themselves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import columns, layout
from gaploop.datasets.check.episodes import NEEDED
from gaploop.datasets.check.findings import DAMAGE, ERROR, WARNING, Finding, numbers
from gaploop.datasets.check.gaps import gap_faults
from gaploop.datasets.survey.sources import Metadata, read_info
from gaploop.datasets.survey.stream import BLOCK_ROWS, INDEX, blocks, in_order

COUNTED: Final = ("gap_outcome", "gap_domain", "gap_kind", "gap_dimensions")
"""Columns whose words are counted."""
_SHOWN: Final = 50
"""Episodes that a finding remembers; the rest are counted."""


@dataclass(frozen=True)
class Overview:
    """What the metadata of one dataset says and what is wrong with it.

    Attributes:
        counts: column of `COUNTED` to word to episodes that have it.
        uids: 64-bit hashes of its uids, shape (episodes with one,).
    """

    dataset: str
    episodes: int
    frames: int
    fps: float
    robot_type: str
    findings: tuple[Finding, ...]
    counts: Mapping[str, Mapping[str, int]]
    uids: NDArray[np.uint64]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(f.severity == ERROR for f in self.findings)


def overviews(sources: Sequence[Metadata], rows: int = BLOCK_ROWS) -> Iterator[Overview]:
    """Yield an overview of each dataset, in order; what can't be read is a finding."""
    yield from in_order(lambda source: _overview(source, rows), sources)


def shared_uids(parts: Sequence[NDArray[np.uint64]]) -> int:
    """Return how many takes stand in more than one of several datasets."""
    held = np.concatenate([np.unique(part) for part in parts]) if parts else np.empty(0, np.uint64)
    held.sort()
    again = np.flatnonzero(held[1:] == held[:-1]) + 1
    return len(np.unique(held[again]))


def _overview(source: Metadata, rows: int) -> Overview:
    fix = f"Find out more with: gaploop check {source.name}"
    findings: list[Finding] = []
    wrong: dict[tuple[str, str, str], tuple[int, list[int]]] = {}
    counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
    hashes: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    files: set[str] = set()
    episodes = frames = rows_end = 0
    fps, robot = float("nan"), ""

    def say(code: str, where: str, message: str, severity: str = ERROR) -> None:
        findings.append(Finding(code, severity, where, message, fix))

    def blame(code: str, where: str, message: str, which: NDArray[Any]) -> None:
        if len(which):
            count, shown = wrong.get((code, where, message), (0, []))
            shown += [int(e) for e in which[: _SHOWN - len(shown)]]
            wrong[code, where, message] = (count + len(which), shown)

    try:
        info = read_info(source)
        if not 0 < info.fps <= 1000:
            say("bad_fps", layout.INFO, f"fps is {info.fps:g}.")
        for name in (columns.ACTION, columns.STATE):
            if name not in info.features:
                say("missing_feature", layout.INFO, f"There is no feature {name}.")
        for name, code in ((layout.STATS, "missing_stats"), (layout.TASKS, "missing_tasks")):
            if info.total_episodes and name not in source.files:
                say(code, name, f"{name} is missing.")
        folders = {"data": info.data_name}
        folders |= {f"videos/{key}": partial(info.video_name, key) for key in info.video_keys}
        for block in blocks(source, None, rows):
            names = set(block.column_names)
            usable = [n for n in NEEDED if n in names and pa.types.is_integer(block[n].type)]
            lacking = [n for n in NEEDED if n not in usable]
            if lacking or any(block[n].null_count for n in NEEDED):
                what = f"no usable column {', '.join(lacking or NEEDED)}."
                raise UnusableInputError(f"{layout.EPISODES}: {what}")
            index, length, first, last = (block[n].to_numpy() for n in NEEDED)
            due = np.arange(episodes, episodes + len(index))
            blame("episode_numbers", INDEX, "are not numbered 0, 1, 2 …", index[index != due])
            before = np.concatenate([[rows_end], last[:-1]])
            bad = (last - first != length) | (length < 1) | (first != before)
            text = "the row range in the episode table doesn't follow the one before"
            blame("bad_rows", layout.EPISODES, text, index[bad])
            for folder, name_of in folders.items():
                pair = [f"{folder}/chunk_index", f"{folder}/file_index"]
                if set(pair) <= names:
                    for row in block.select(pair).group_by(pair).aggregate([]).to_pylist():
                        if None not in row.values():
                            files.add(name_of(row[pair[0]], row[pair[1]]))
                elif folder != "data":
                    text = f"no column gives the file of their {folder.partition('/')[2]}"
                    blame("no_video_columns", layout.EPISODES, text, index)
            if "gap_uid" in names:
                for code, name, text, which in gap_faults(block):
                    blame(code, f"{layout.EPISODES}: {name}", text, which)
                for name in set(COUNTED) & names:
                    flat = block[name]
                    flat = pc.list_flatten(flat) if pa.types.is_list(flat.type) else flat
                    for entry in flat.value_counts().to_pylist():
                        counts[name][str(entry["values"])] += int(entry["counts"])
                uids = (str(uid).encode() for uid in block["gap_uid"].to_pylist() if uid)
                digests = b"".join(hashlib.blake2b(uid, digest_size=8).digest() for uid in uids)
                hashes.append(np.frombuffer(digests, np.uint64))
            elif not episodes:
                text = "No gap columns: outcome, domain and gap dimension of its episodes are "
                say("no_gap_columns", layout.EPISODES, text + "unknown.", WARNING)
            episodes, frames = episodes + len(block), frames + int(length.sum())
            rows_end = int(last[-1]) if len(last) else rows_end
        if info.total_episodes != episodes:
            text = f"total_episodes is {info.total_episodes}, the table has {episodes} rows."
            say("episode_count", layout.INFO, text)
        if info.total_frames != frames:
            text = f"total_frames is {info.total_frames}, its episodes have {frames} frames."
            say("frame_count", layout.INFO, text)
        for path in sorted(files - source.files):
            code = "missing_video" if path.startswith("videos") else "missing_data"
            say(code, path, f"{path} is missing.")
        if (twice := sum(map(len, hashes)) - len(np.unique(np.concatenate(hashes)))) > 0:
            text = f"{twice} episodes have a uid that another has: labels can't tell them apart."
            say("bad_uid", f"{layout.EPISODES}: gap_uid", text)
        fps, robot = info.fps, info.robot_type
    except DAMAGE as error:
        say("unreadable", source.name, " ".join(str(error).split()))
    for (code, where, message), (count, shown) in wrong.items():
        more = f" ({count} in all)" if count > 1 else ""
        text = f"Episodes {numbers(sorted(shown))}: {message}{more}."
        findings.append(Finding(code, ERROR, where, text, fix))
    held = {name: dict(count) for name, count in counts.items()}
    return Overview(
        source.name, episodes, frames, fps, robot, tuple(findings), held, np.concatenate(hashes)
    )
