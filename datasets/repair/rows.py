"""Repair: the data files, and which of their rows make whole episodes.

Rows are never made up. An episode stays where its rows are all there, finite and of one recording;
rows out of order are sorted, exact repeats of rows are dropped. Files that are right stay as they
are, bit for bit.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.check.frames import BATCH_ROWS, INDICES, batches, matrix
from gaploop.datasets.check.videos import bad_stored
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.repair import parquet_salvage
from gaploop.datasets.repair.description import RepairDraft, first_schema
from gaploop.datasets.v3_files import replace_table

type Ints = NDArray[np.int64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, 64 bits


@dataclass(frozen=True)
class Rows:
    """Index columns of every row of the data files, in the order of the files; of shape (n,) each.

    Attributes:
        file: its number.
        row: row in that file.
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

    def runs(self) -> dict[tuple[int, int], int]:
        """Return (first row, number of rows) to episode, for stretches of one episode."""
        edges = [0, *(np.flatnonzero(np.diff(self.episode)) + 1).tolist(), len(self.episode)]
        spans = [(first, last) for first, last in itertools.pairwise(edges) if last > first]
        return {(first, last - first): int(self.episode[first]) for first, last in spans}


@dataclass(frozen=True)
class WholeEpisode:
    """An episode that can stay: its index before, and where its frames are in `Rows`, in order.

    `take` is its `gap.take`, 0 where there is none; `home` the data file of its first frame.
    """

    old: int
    rows: Ints
    take: int
    home: Path
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def salvage_files(draft: RepairDraft) -> set[Path]:
    """Replace damaged data files by what can still be read of them, or take them out.

    Returns:
        Those that were cut.
    """
    cut: set[Path] = set()
    for path in layout.data_files(draft.root):
        name = path.relative_to(draft.root)
        try:
            metadata = pq.read_metadata(path)
        except DAMAGE:
            pass
        else:
            layout.require_plausible(metadata, path)
        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches(BATCH_ROWS):
                    pass
            continue
        except DAMAGE:
            table = _salvaged(path, draft)
        if table is None or not len(table):
            path.unlink()
            draft.left_out("lost_file", f"{name}: nothing of it can be read; it is left out")
        else:
            replace_table(path, table)
            cut.add(path)
            draft.did("salvaged", f"{name}: its first {len(table)} rows can still be read")
    return cut


def _salvaged(path: Path, draft: RepairDraft) -> pa.Table | None:
    """Return the readable row groups of a damaged file, up to the first damaged one."""
    with contextlib.suppress(*DAMAGE), pq.ParquetFile(path) as file:
        groups = []
        for number in range(file.metadata.num_row_groups):
            try:
                groups.append(file.read_row_group(number))
            except DAMAGE:
                break
        return pa.concat_tables(groups) if groups else None
    # Without a footer: its columns are another file's (`path` itself has none), or those described.
    fields = []
    for name, spec in draft.info["features"].items():
        dtype, shape = str(spec["dtype"]), list(spec["shape"])
        if dtype in ("video", "language"):
            continue
        if dtype == "image":  # as Hugging Face stores pictures
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            shape = [1]
        elif dtype == "string":
            kind = pa.string()
        else:
            kind = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
        for size in reversed(shape if shape != [1] else []):
            kind = pa.list_(kind, size)
        fields.append(pa.field(name, kind))
    for schema in (first_schema(draft.root), pa.schema(fields)):
        with contextlib.suppress(*DAMAGE):
            return parquet_salvage.salvage(path, schema)
    return None


def read_rows(paths: list[Path], numeric: Mapping[str, int], names: Mapping[str, str]) -> Rows:
    """Read the index columns of all files; `names` are columns that stand for another feature."""
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
    values = {k: joined.pop(k) for k in INDICES[1:]}
    return Rows(values=values, **joined)


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
        part[name] = np.full(n, np.nan)
        if name in table.column_names:
            with contextlib.suppress(ValueError):
                part[name] = matrix(table[name], 1)[:, 0]
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
            content = part["content"]
            for column in np.ascontiguousarray(x.T).view(np.uint64):
                content = (content ^ column) * _MULTIPLIER
                content ^= content >> np.uint64(29)
            part["content"] = content
    if columns.TAKE in table.column_names and not table[columns.TAKE].null_count:
        part["take"] = np.asarray(table[columns.TAKE].to_numpy()).astype(np.int64)
    return part


def whole_episodes(
    paths: Sequence[Path],
    rows: Rows,
    fps: float,
    lengths: Mapping[int, int],
    cut: Collection[Path],
) -> tuple[list[WholeEpisode], dict[int, str], dict[int, int]]:
    """Return the episodes whose rows are whole, in order, and why the others aren't.

    Third, the frames of those left out only for what stands in their rows: their pictures lie
    among the others'. `lengths` are the frames of episodes, as far as their table says; that only
    counts for rows in a file that was `cut`: any other holds all that there is.
    """
    found: list[WholeEpisode] = []
    lost: dict[int, str] = {}
    spoilt: dict[int, int] = {}
    order = np.argsort(rows.episode, kind="stable")
    numbers, starts = np.unique(rows.episode[order], return_index=True)
    for episode, at in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        chosen = _in_order(rows, at, fps) if episode >= 0 else None
        due = lengths.get(episode)
        if chosen is None:
            lost[episode] = "its rows can't be put in order"
        elif due is not None and len(chosen) < due and paths[rows.file[chosen[-1]]] in cut:
            lost[episode] = f"only {len(chosen)} of its {due} frames are left"
        elif not rows.finite[chosen].all():
            bad = int((~rows.finite[chosen]).sum())
            spoilt[episode] = len(chosen)
            lost[episode] = f"NaN, infinite or missing values, or damaged pictures, in {bad} frames"
        else:
            takes = np.unique(rows.take[chosen])
            take, home = int(takes[0]) if len(takes) == 1 else 0, paths[rows.file[chosen[0]]]
            found.append(WholeEpisode(episode, chosen, take, home))
    found.sort(key=lambda e: (int(rows.file[e.rows[0]]), e.old))
    return found, lost, spoilt


def _in_order(rows: Rows, at: Ints, fps: float) -> Ints | None:
    """Return the rows of an episode in the order of its frames; None where nothing says so."""

    def counted(key: NDArray[np.float64]) -> Ints | None:
        """Return the rows in the order in which `key` counts 0, 1, 2 …; None where it doesn't."""
        order = np.argsort(key, kind="stable")
        return at[order] if np.array_equal(key[order], np.arange(len(key))) else None

    found = counted(rows.values["frame_index"][at])
    frame = rows.values["frame_index"][at]
    if found is None and np.isfinite(frame).all():  # rows written twice, equal to the last bit
        numbers, first, inverse = np.unique(frame, return_index=True, return_inverse=True)
        same = rows.content[at] == rows.content[at][first][inverse]
        if np.array_equal(numbers, np.arange(len(numbers))) and same.all():
            found = at[first]
    if found is None:
        found = counted(np.round(rows.values["timestamp"][at] * fps))
    if found is None:
        index = rows.values["index"][at]
        found = counted(index - index.min(initial=np.inf))
    return found


def copies(rows: Rows, episodes: list[WholeEpisode]) -> dict[int, int]:
    """Return episodes that are exact copies: old index of the copy to that of the first.

    None where most episodes are equal: their signals are made up, not recorded twice.
    """
    equal: dict[bytes, list[int]] = {}
    for episode in episodes:
        content = rows.content[episode.rows]
        if len(np.unique(content)) > 1:
            equal.setdefault(content.tobytes(), []).append(episode.old)
    if 2 * max(map(len, equal.values()), default=0) > len(episodes):
        return {}
    return {copy: found[0] for found in equal.values() for copy in found[1:]}


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


def rewrite_files(
    draft: RepairDraft,
    paths: Sequence[Path],
    rows: Rows,
    episodes: Sequence[WholeEpisode],
    fps: float,
    names: Mapping[str, str],
    tasks: Mapping[int, int],
) -> None:
    """Bring the data files in line with the episodes that stay, each numbered by its place.

    Args:
        names: column to the feature it stands for, where they differ.
        tasks: episode's new index to its task index, where that changes.
    """
    kept = np.concatenate([episode.rows for episode in episodes])
    count = np.concatenate([np.arange(len(episode)) for episode in episodes])
    number_of = np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes])
    stamps, due = rows.values["timestamp"][kept], (count / fps).astype(np.float32)
    task = rows.values["task_index"][kept]
    for new, index in tasks.items():
        task[number_of == new] = index
    wanted = {  # what index columns shall be
        "timestamp": np.where(np.abs(stamps - due) <= 1e-4 + 1e-7 * due, stamps, due),
        "frame_index": count,
        "episode_index": number_of,
        "index": np.arange(len(kept)),
        "task_index": task,
    }
    before = {"episode_index": rows.episode, **rows.values}
    types: dict[str, pa.DataType] = {}  # as the first file that has a column stores it
    for path in paths:
        types = {f.name: f.type for f in pq.read_schema(path)} | types
    for number, path in enumerate(paths):
        mine, here = rows.file[kept] == number, rows.file == number
        if not mine.any():
            path.unlink()
            continue
        order = rows.row[kept[mine]]
        numbered = {name: values[mine] for name, values in wanted.items()}
        as_it_is = np.array_equal(order, rows.row[here]) and all(
            np.array_equal(values, before[name][here]) for name, values in numbered.items()
        )
        schema = pq.read_schema(path)
        renames = bool(set(names) & set(schema.names))
        mixed = {f.name: types[f.name] for f in schema if f.type != types[f.name]}
        if as_it_is and not renames and not mixed:
            continue
        table = pq.read_table(path, partitioning=None)
        for name, kind in mixed.items():
            try:
                column = table[name].cast(kind)
            except pa.ArrowInvalid:  # it would lose something, such as fractions
                continue
            at = table.schema.get_field_index(name)
            table = table.set_column(at, pa.field(name, kind), column)
        if renames:
            table = table.rename_columns([names.get(n, n) for n in table.column_names])
        if mixed or renames:  # what pandas and Hugging Face noted about the old columns goes
            table = table.replace_schema_metadata(None)
        table = table.take(pa.array(order))
        for name, values in numbered.items():
            kind = pa.float32() if name == "timestamp" else pa.int64()
            at = table.schema.get_field_index(name)
            if at >= 0:
                stored = table.schema.field(at).type
                is_number = pa.types.is_integer(stored) or pa.types.is_floating(stored)
                kind = stored if is_number else kind
            put = partial(table.set_column, at) if at >= 0 else table.append_column
            table = put(pa.field(name, kind), pa.array(values).cast(kind, safe=False))
        _, groups = np.unique(number_of[mine], return_counts=True)
        replace_table(path, table, groups.tolist())
        text = f"{path.relative_to(draft.root)}: rows of {len(groups)} episodes in order, counted "
        draft.did("rewrote_data", f"{text}anew")
