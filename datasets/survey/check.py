"""Rules of `check` that need only metadata, streamed: for many datasets, or one of any size.

Numbering, counts, row ranges, words and types of gap columns, uids, and whether the data and video
files that episodes name are there. Codes are those of `check`, which opens the files themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE, ERROR, WARNING, Finding, numbers
from gaploop.datasets.check.gaps import gap_faults
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.survey.sources import Metadata, read_info
from gaploop.datasets.survey.stream import BLOCK_ROWS, INDEX, blocks, in_order

NEEDED: Final = (INDEX, "length", "dataset_from_index", "dataset_to_index")
COUNTED: Final = ("gap_outcome", "gap_domain", "gap_kind", "gap_dimensions")
"""Columns whose words are counted."""
_SHOWN: Final = 50
"""Episodes that a finding remembers; the rest are counted."""


@dataclass(frozen=True)
class Overview:
    """What the metadata of one dataset says and what is wrong with it.

    Attributes:
        counts: word to episodes that have it, for each column of `COUNTED`.
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
    tally = _Tally(source)
    try:
        info = read_info(source)
        tally.begin(info)
        for block in blocks(source, None, rows):
            tally.add(info, block)
        tally.end(info)
        fps, robot = info.fps, info.robot_type
    except DAMAGE as error:
        tally.say("unreadable", source.name, " ".join(str(error).split()))
        fps, robot = float("nan"), ""
    return Overview(
        source.name,
        tally.episodes,
        tally.frames,
        fps,
        robot,
        tuple(tally.found()),
        {name: dict(count) for name, count in tally.counts.items()},
        np.concatenate(tally.uids) if tally.uids else np.empty(0, np.uint64),
    )


@dataclass
class _Tally:
    """What is known of a dataset after some blocks of it."""

    source: Metadata
    episodes: int = 0
    frames: int = 0
    rows_end: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in COUNTED})
    uids: list[NDArray[np.uint64]] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    wrong: dict[tuple[str, str, str], tuple[int, list[int]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def say(self, code: str, where: str, message: str, severity: str = ERROR) -> None:
        """Add a finding about the dataset as a whole."""
        mend = f"Find out more with: gaploop check {self.source.name}"
        self.findings.append(Finding(code, severity, where, message, mend))

    def blame(self, code: str, where: str, message: str, episodes: NDArray[Any]) -> None:
        """Remember episodes that something is wrong with."""
        if len(episodes):
            count, shown = self.wrong.get((code, where, message), (0, []))
            shown += [int(e) for e in episodes[: _SHOWN - len(shown)]]
            self.wrong[code, where, message] = (count + len(episodes), shown)

    def found(self) -> Iterator[Finding]:
        """Yield the findings."""
        yield from self.findings
        mend = f"Find out more with: gaploop check {self.source.name}"
        for (code, where, message), (count, shown) in self.wrong.items():
            more = f" ({count} in all)" if count > 1 else ""
            text = f"Episodes {numbers(sorted(shown))}: {message}{more}."
            yield Finding(code, ERROR, where, text, mend)

    def begin(self, info: DatasetInfo) -> None:
        """Look at what is known before any episode."""
        if not 0 < info.fps <= 1000:
            self.say("bad_fps", layout.INFO, f"fps is {info.fps:g}.")
        for name in (columns.ACTION, columns.STATE):
            if name not in info.features:
                self.say("missing_feature", layout.INFO, f"There is no feature {name}.")
        for name in (layout.STATS, layout.TASKS):
            if info.total_episodes and name not in self.source.files:
                code = "missing_stats" if name == layout.STATS else "missing_tasks"
                self.say(code, name, f"{name} is missing.")

    def add(self, info: DatasetInfo, block: pa.Table) -> None:
        """Look at a block of episodes."""
        names = set(block.column_names)
        lacking = [n for n in NEEDED if n not in names or not pa.types.is_integer(block[n].type)]
        if lacking or any(block[n].null_count for n in NEEDED):
            raise UnusableInputError(
                f"{layout.EPISODES}: no usable column {', '.join(lacking or NEEDED)}."
            )
        self._ranges(block)
        self._references(info, block)
        if "gap_uid" in names:
            for code, name, text, bad in gap_faults(block):
                self.blame(code, f"{layout.EPISODES}: {name}", text, bad)
            for name in set(COUNTED) & names:
                flat = block[name]
                flat = pc.list_flatten(flat) if pa.types.is_list(flat.type) else flat
                for entry in flat.value_counts().to_pylist():
                    self.counts[name][str(entry["values"])] += int(entry["counts"])
            uids = pd.Series([uid for uid in block["gap_uid"].to_pylist() if uid], dtype=str)
            self.uids.append(np.asarray(pd.util.hash_pandas_object(uids, index=False)))
        elif not self.episodes:
            text = "No gap columns: outcome, domain and gap dimension of its episodes are unknown."
            self.say("no_gap_columns", layout.EPISODES, text, WARNING)
        self.episodes += len(block)

    def end(self, info: DatasetInfo) -> None:
        """Compare sums with what the dataset says about itself."""
        if info.total_episodes != self.episodes:
            text = f"total_episodes is {info.total_episodes}, the table has {self.episodes} rows."
            self.say("episode_count", layout.INFO, text)
        if info.total_frames != self.frames:
            text = f"total_frames is {info.total_frames}, its episodes have {self.frames} frames."
            self.say("frame_count", layout.INFO, text)
        for path in sorted(self.files - self.source.files):
            code = "missing_video" if path.startswith("videos") else "missing_data"
            self.say(code, path, f"{path} is missing.")
        hashes = np.concatenate(self.uids) if self.uids else np.empty(0, np.uint64)
        if (twice := len(hashes) - len(np.unique(hashes))) > 0:
            text = f"{twice} episodes have a uid that another has: labels can't tell them apart."
            self.say("bad_uid", f"{layout.EPISODES}: gap_uid", text)

    def _ranges(self, block: pa.Table) -> None:
        index, length, first, last = (block[n].to_numpy() for n in NEEDED)
        expected = np.arange(self.episodes, self.episodes + len(index))
        self.blame("episode_numbers", INDEX, "are not numbered 0, 1, 2 …", index[index != expected])
        before = np.concatenate([[self.rows_end], last[:-1]])
        bad = (last - first != length) | (length < 1) | (first != before)
        text = "the row range in the episode table doesn't follow the one before"
        self.blame("bad_rows", layout.EPISODES, text, index[bad])
        self.frames += int(length.sum())
        self.rows_end = int(last[-1]) if len(last) else self.rows_end

    def _references(self, info: DatasetInfo, block: pa.Table) -> None:
        for key in ("data", *(f"videos/{k}" for k in info.video_keys)):
            pair = [f"{key}/chunk_index", f"{key}/file_index"]
            if not set(pair) <= set(block.column_names):
                if key != "data":
                    text = f"no column says in which file their {key.removeprefix('videos/')} is"
                    self.blame("no_video_columns", layout.EPISODES, text, block[INDEX].to_numpy())
                continue
            for row in block.select(pair).group_by(pair).aggregate([]).to_pylist():
                if None not in row.values():
                    place = row[pair[0]], row[pair[1]]
                    camera = key.removeprefix("videos/")
                    self.files.add(
                        info.data_name(*place) if key == "data" else info.video_name(camera, *place)
                    )
