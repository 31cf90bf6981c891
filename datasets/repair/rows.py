"""Repair: which rows make whole episodes, and in what order they belong.

Rows are never made up. An episode stays where its rows are all there, finite and of one
recording; rows out of order are sorted, exact repeats of rows are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.datasets import columns
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.check.frames import INDICES, batches, matrix
from gaploop.datasets.check.videos import bad_stored
from gaploop.datasets.layout import DatasetInfo

type Ints = NDArray[np.int64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, 64 bits


@dataclass(frozen=True)
class Rows:
    """Index columns of every row of the data files, in the order of the files.

    Attributes:
        file: number of the file, shape (n,).
        row: row in that file, shape (n,).
        episode: `episode_index`, -1 where it can't be used.
        values: other index columns as numbers, NaN where missing.
        finite: whether every number in the row is.
        content: hash of the row's action and state.
        take: `gap.take`, 0 where there is none.
    """

    file: Ints
    row: Ints
    episode: Ints
    values: Mapping[str, NDArray[np.float64]]
    finite: NDArray[np.bool_]
    content: NDArray[np.uint64]
    take: Ints


@dataclass(frozen=True)
class Whole:
    """An episode that can stay.

    Attributes:
        old: its index before.
        rows: positions in `Rows`, in the order of its frames.
        take: its `gap.take`, 0 where there is none.
    """

    old: int
    rows: Ints
    take: int = 0

    def __len__(self) -> int:
        return len(self.rows)


def read_rows(paths: list[Path], numeric: Mapping[str, int], names: Mapping[str, str]) -> Rows:
    """Read the index columns of all files.

    Args:
        paths: readable data files.
        numeric: feature to width.
        names: column to the feature it stands for, where they differ.
    """
    parts: list[dict[str, NDArray[Any]]] = []
    for number, path in enumerate(paths):
        at = 0
        wanted = {*INDICES, *numeric, *names}
        for table in batches(path, wanted):
            table = table.rename_columns([names.get(n, n) for n in table.column_names])
            parts.append(_part(table, numeric, number, at))
            at += len(table)
    keys = ("file", "row", "episode", *INDICES[1:], "finite", "content", "take")
    empty = _part(pa.table({}), {}, 0, 0)
    joined = {k: np.concatenate([p[k] for p in parts or [empty]]) for k in keys}
    return Rows(
        joined["file"],
        joined["row"],
        joined["episode"],
        {k: joined[k] for k in INDICES[1:]},
        joined["finite"],
        joined["content"],
        joined["take"],
    )


def _part(
    table: pa.Table, numeric: Mapping[str, int], file: int, at: int
) -> dict[str, NDArray[Any]]:
    n = len(table)
    part: dict[str, NDArray[Any]] = {
        "file": np.full(n, file, dtype=np.int64),
        "row": np.arange(at, at + n, dtype=np.int64),
        "finite": np.ones(n, dtype=bool),
        "content": np.zeros(n, dtype=np.uint64),
        "take": np.zeros(n, dtype=np.int64),
    }
    for name in INDICES:
        part[name] = _index(table, name)
    episode = part.pop("episode_index")
    part["episode"] = np.where(np.isfinite(episode), episode, -1).astype(np.int64)
    for name, width in numeric.items():
        if name not in table.column_names:
            continue
        try:
            x = matrix(table[name], width)
        except ValueError:
            part["finite"][:] = False
            continue
        part["finite"] &= np.isfinite(x).all(axis=1)
        if name in (columns.ACTION, columns.STATE):
            part["content"] = _hashed(part["content"], x)
    if columns.TAKE in table.column_names and not table[columns.TAKE].null_count:
        part["take"] = np.asarray(table[columns.TAKE].to_numpy()).astype(np.int64)
    return part


def _index(table: pa.Table, name: str) -> NDArray[np.float64]:
    if name not in table.column_names:
        return np.full(len(table), np.nan)
    try:
        return matrix(table[name], 1)[:, 0]
    except ValueError:
        return np.full(len(table), np.nan)


def _hashed(seed: NDArray[np.uint64], x: NDArray[np.float64]) -> NDArray[np.uint64]:
    result = seed.copy()
    for column in np.ascontiguousarray(x.T).view(np.uint64):
        result = (result ^ column) * _MULTIPLIER
        result ^= result >> np.uint64(29)
    return result


def whole_episodes(
    rows: Rows, fps: float, lengths: Mapping[int, int]
) -> tuple[list[Whole], dict[int, str], dict[int, int]]:
    """Return the episodes whose rows are whole, in order, and why the others aren't.

    Third, the frames of those left out only for what stands in their rows: their pictures lie
    among the others'.

    Args:
        rows: all rows.
        fps: frames per second.
        lengths: episode to its number of frames, as far as the episode table says.
    """
    found: list[Whole] = []
    lost: dict[int, str] = {}
    spoilt: dict[int, int] = {}
    order = np.argsort(rows.episode, kind="stable")
    numbers, starts = np.unique(rows.episode[order], return_index=True)
    for episode, at in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        chosen = _in_order(rows, at, fps) if episode >= 0 else None
        due = lengths.get(episode)
        if chosen is None:
            lost[episode] = "its rows can't be put in order"
        elif due is not None and len(chosen) < due:
            lost[episode] = f"only {len(chosen)} of its {due} frames are left"
        elif not rows.finite[chosen].all():
            bad = int((~rows.finite[chosen]).sum())
            spoilt[episode] = len(chosen)
            lost[episode] = f"NaN, infinite or missing values, or damaged pictures, in {bad} frames"
        else:
            takes = np.unique(rows.take[chosen])
            found.append(Whole(episode, chosen, int(takes[0]) if len(takes) == 1 else 0))
    found.sort(key=lambda e: (int(rows.file[e.rows[0]]), e.old))
    return found, lost, spoilt


def _in_order(rows: Rows, at: Ints, fps: float) -> Ints | None:
    """Return the rows of an episode in the order of its frames; None where nothing says so."""
    by_frame = _counted(rows.values["frame_index"][at])
    if by_frame is not None:
        return at[by_frame]
    repeated = _without_repeats(rows, at)
    if repeated is not None:
        return repeated
    index = rows.values["index"][at]
    for key in (np.round(rows.values["timestamp"][at] * fps), index - index.min(initial=np.inf)):
        by_key = _counted(key)
        if by_key is not None:
            return at[by_key]
    return None


def _counted(key: NDArray[np.float64]) -> Ints | None:
    """Return the order in which `key` counts 0, 1, 2 …; None where it doesn't."""
    order = np.argsort(key, kind="stable")
    return order if np.array_equal(key[order], np.arange(len(key))) else None


def _without_repeats(rows: Rows, at: Ints) -> Ints | None:
    """Return an episode's rows where some were written twice, equal to the last bit."""
    frame = rows.values["frame_index"][at]
    if not np.isfinite(frame).all():
        return None
    numbers, first, inverse = np.unique(frame, return_index=True, return_inverse=True)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        return None
    same = rows.content[at] == rows.content[at][first][inverse]
    return at[first] if same.all() else None


def copies(rows: Rows, episodes: list[Whole]) -> dict[int, int]:
    """Return episodes that are exact copies: old index of the copy to that of the first.

    None where most episodes are equal: their signals are made up, not recorded twice.
    """
    seen: dict[bytes, int] = {}
    found: dict[int, int] = {}
    count: dict[bytes, int] = {}
    for episode in episodes:
        content = rows.content[episode.rows]
        if len(np.unique(content)) < 2:
            continue
        key = content.tobytes()
        count[key] = count.get(key, 0) + 1
        if key in seen:
            found[episode.old] = seen[key]
        else:
            seen[key] = episode.old
    most = max(count.values(), default=0)
    return {} if 2 * most > len(episodes) else found


def mark_damaged_pictures(info: DatasetInfo, paths: list[Path], rows: Rows) -> None:
    """Mark rows whose stored pictures can't be decoded as not whole."""
    for key, spec in info.features.items():
        if spec["dtype"] != "image":
            continue
        for number, path in enumerate(paths):
            try:
                bad = bad_stored(path, key, list(spec["shape"]))
            except DAMAGE:
                continue  # a column under another name; it is not looked at
            rows.finite[(rows.file == number) & np.isin(rows.row, bad)] = False
