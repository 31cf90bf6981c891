"""The rows of `data/`: one pass over them, what it finds, and which of them make whole episodes.

Files are read a batch of rows at a time, in memory that the length of episodes bounds. A run is a
stretch of consecutive rows with one episode index; in a sound dataset each episode is one run.

`--fix` never makes rows up. An episode stays where its rows are all there, finite and of one
recording; rows out of order are sorted, exact repeats of rows are dropped. Files that are right
stay as they are, bit for bit.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.datasets import columns, layout
from gaploop.datasets.check.description import NUMBERS, first_schema, read_object
from gaploop.datasets.check.findings import DAMAGE, Findings, FixDraft, reason
from gaploop.datasets.check.parquet_salvage import salvage
from gaploop.datasets.columns import ACTION, STATE
from gaploop.datasets.layout import DatasetInfo, numbers
from gaploop.datasets.v3_files import (
    BATCH_ROWS,
    INDICES,
    batches,
    matrix,
    numeric_features,
    replace_table,
)

TIMESTAMP_TOLERANCE_S: Final = 1e-4
"""LeRobot's own tolerance (`LeRobotDataset.tolerance_s`)."""
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf", re.IGNORECASE)
_FLOAT32_STEP: Final = float(np.finfo(np.float32).eps)


class RunMoments(NamedTuple):
    """Statistics of one feature, run by run; arrays of shape (runs, width)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    def merged_with(self, later: RunMoments) -> RunMoments:
        """Return these runs and `later`, whose first run goes on with the last of these."""
        return RunMoments(
            *(
                np.concatenate([a[:-1], join(a[-1:], b[:1]), b[1:]])
                for join, a, b in zip(_JOINS, self, later, strict=True)
            )
        )

    @classmethod
    def of(cls, values: NDArray[np.float64], starts: NDArray[np.int64]) -> RunMoments:
        """Compute them of `values`, shape (n, width), for runs that begin at `starts`."""
        of_each = (values, values, values, values * values)
        return cls(*(join.reduceat(x, starts) for join, x in zip(_JOINS, of_each, strict=True)))


_JOINS: Final = (np.minimum, np.maximum, np.add, np.add)


@dataclass
class EpisodeRows:
    """Consecutive rows of one episode.

    Attributes:
        start: its first row, counted over all files.
        file: number of the data file it begins in.
        odd: names of index columns that don't count as they should.
        tasks: task indices that occur.
        takes: values of `gap.take` that occur.
        checksum: of action and state; equal runs have equal ones.
    """

    episode: int
    start: int
    rows: int
    file: int
    odd: set[str] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    takes: set[int] = field(default_factory=set)
    checksum: int = 0


@dataclass
class NotFinite:
    """Where a feature of one file holds NaN, infinity or nothing: rows, entries, episodes."""

    rows: list[int] = field(default_factory=list)
    entries: set[int] = field(default_factory=set)
    episodes: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Scan:
    """What the frames of a dataset hold.

    Attributes:
        rows: number of rows that could be read.
        runs: in order of rows.
        moments: numeric feature to its statistics, one row per run.
        not_finite: (file, feature) to what holds NaN, infinity or nothing there.
    """

    rows: int
    runs: list[EpisodeRows]
    moments: Mapping[str, RunMoments]
    not_finite: Mapping[tuple[str, str], NotFinite]

    @property
    def whole(self) -> bool:
        """Whether each episode is one run."""
        return len({run.episode for run in self.runs}) == len(self.runs)


class Scanner:
    """Takes batches of rows, in order, and adds up what they hold."""

    def __init__(self, info: DatasetInfo) -> None:
        self._fps = info.fps
        self._numeric = numeric_features(info)
        self._parts: dict[str, list[RunMoments]] = {name: [] for name in self._numeric}
        self._bad = defaultdict[tuple[str, str], NotFinite](NotFinite)
        self._runs: list[EpisodeRows] = []
        self._rows = 0
        self._file_rows = Counter[str]()

    def add(self, table: pa.Table, file: int, name: str) -> None:
        """Add some rows of a file; they must have `episode_index`."""
        episode = matrix(table["episode_index"], 1)[:, 0]
        if not len(episode):
            return
        starts = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1)).astype(np.int64)
        goes_on = bool(self._runs) and self._runs[-1].episode == int(episode[0])
        values: dict[str, NDArray[np.float64]] = {}
        for key, width in self._numeric.items():
            if key not in table.column_names:
                continue
            values[key] = matrix(table[key], width)
            odd = ~np.isfinite(values[key])
            if odd.any():
                bad, held = np.flatnonzero(odd.any(axis=1)), self._bad[name, key]
                held.rows += (bad + self._file_rows[name]).tolist()
                held.entries |= set(np.flatnonzero(odd.any(axis=0)).tolist())
                held.episodes |= set(episode[bad].astype(int).tolist())
        for key, x in values.items():
            moments, parts = RunMoments.of(x, starts), self._parts[key]
            if goes_on and parts:
                moments = parts.pop().merged_with(moments)
            parts.append(moments)
        present = [n for n in INDICES[1:] if n in table.column_names]
        index: dict[str, NDArray[Any]] = {n: matrix(table[n], 1)[:, 0] for n in present}
        if columns.TAKE in table.column_names and not table[columns.TAKE].null_count:
            index[columns.TAKE] = np.asarray(table[columns.TAKE].to_numpy())  # no float: 63 bits
        stops = np.append(starts[1:], len(episode))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            where, n, first = slice(start, stop), stop - start, self._rows + start
            of = int(episode[start])
            if not self._runs or self._runs[-1].episode != of:
                self._runs.append(EpisodeRows(of, first, 0, file))
            run = self._runs[-1]
            found = {name: x[where] for name, x in index.items()}
            # What index columns hold as LeRobot's writer counts.
            count = run.rows + np.arange(n)
            if "frame_index" in found and (found["frame_index"] != count).any():
                run.odd.add("frame_index")
            if "index" in found and (found["index"] != first + np.arange(n)).any():
                run.odd.add("index")
            if "timestamp" in found:
                due = count / self._fps
                tolerance = TIMESTAMP_TOLERANCE_S + _FLOAT32_STEP * due
                if not (np.abs(found["timestamp"] - due) <= tolerance).all():
                    run.odd.add("timestamp")
            if "task_index" in found:
                tasks = np.unique(found["task_index"])
                run.tasks |= {int(t) if np.isfinite(t) else -1 for t in tasks}
            if columns.TAKE in found and len(run.takes) < 2:
                run.takes |= {int(t) for t in np.unique(found[columns.TAKE])[:2]}
            for key in (ACTION, STATE):
                if key in values:
                    run.checksum = zlib.crc32(values[key][where].tobytes(), run.checksum)
            run.rows += n
        self._rows += len(episode)
        self._file_rows[name] += len(episode)

    def result(self) -> Scan:
        """Return what was found."""
        moments = {
            key: RunMoments(*map(np.concatenate, zip(*parts, strict=True)))
            for key, parts in self._parts.items()
            if parts
        }
        return Scan(self._rows, self._runs, moments, self._bad)


def stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield where each stretch of true flags begins, and the place after its last one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def scan_frames(info: DatasetInfo, findings: Findings) -> Scan | None:
    """Read every frame once, with findings for what can't be read; None where nothing can be."""
    files = layout.data_files(info.root)
    if not files:
        if info.total_frames or info.total_episodes:
            fix = "Restore data/ from a copy."
            findings.error("missing_data", "data", "There are no data files.", fix)
        return None
    scanner, types = Scanner(info), defaultdict[str, dict[str, None]](dict)
    pictures = {k for k, spec in info.features.items() if spec.get("dtype") == "image"}
    stored = [k for k in info.features if k not in info.video_keys]
    complete = True
    for number, path in enumerate(files):
        name = str(path.relative_to(info.root))
        try:
            schema = pq.read_schema(path)
            unknown = [n for n in schema.names if n not in stored]
            for feature in stored:
                if feature in schema.names:
                    fault = _type_fault(schema.field(feature).type, info.features[feature])
                    if fault:
                        findings.error("column_type", f"{name}: {feature}", fault)
                    continue
                near = difflib.get_close_matches(feature, unknown, n=1, cutoff=0.7)
                hint = f" There is a column {near[0]}: was it renamed?" if near else ""
                # One that is missing and one too many: `--fix` takes them for the same.
                paired = len(unknown) == len(set(stored) - set(schema.names)) == 1
                fix = "" if near or paired else "Restore it from a copy."
                findings.error("missing_column", name, f"Column {feature} is missing.{hint}", fix)
            if unknown:
                text = (
                    f"Columns {', '.join(unknown[:8])} are no features: LeRobot refuses the file."
                )
                findings.error("unknown_column", name, text)
            for field_ in schema:
                types[field_.name][str(field_.type)] = None
            for table in batches(path, set(schema.names) - pictures):
                scanner.add(table, number, name)
        except DAMAGE as error:
            complete = False
            fix = "Restore it from a copy." if isinstance(error, layout.ImplausibleError) else ""
            findings.error("unreadable", name, f"It can't be read: {reason(error)}", fix)
    for column, kinds in types.items():
        if len(kinds) > 1:
            text = f"Column {column} is {' and '.join(sorted(kinds))} in different files."
            findings.error("mixed_types", "data", text)
    scan = scanner.result()
    for (name, feature), bad in scan.not_finite.items():
        entries, text = info.names(feature), "NaN, infinite or missing values"
        if 1 <= len(bad.entries) < len(entries):
            text += f" of {numbers([entries[k] for k in sorted(bad.entries)])}"
        text += f" in {len(bad.rows)} frames: rows {numbers(bad.rows)}; "
        text += f"episodes {numbers(sorted(bad.episodes))}."
        findings.error("not_finite", f"{name}: {feature}", text, findings.command("--drop=true"))
    if complete and scan.rows != info.total_frames:
        text = f"total_frames is {info.total_frames}, the data files hold {scan.rows} rows."
        findings.error("frame_count", layout.INFO, text)
    return scan if scan.rows else None


def _type_fault(kind: pa.DataType, spec: Any) -> str:
    """Say why LeRobot can't read a column of this type as the feature; "" where it can."""
    dtype, shape = spec.get("dtype"), spec.get("shape")
    if dtype in ("string", "language"):
        return ""
    if dtype == "image":
        return "" if pa.types.is_struct(kind) else f"Images are stored as {kind}."
    if isinstance(kind, pa.BaseExtensionType):  # of Hugging Face, for matrices
        kind = kind.storage_type
    depth = 0
    while (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        fixed = pa.types.is_fixed_size_list(kind)
        if fixed and len(shape) == 1 and kind.list_size != shape[0]:
            return f"Rows hold {kind.list_size} values; the feature has shape {list(shape)}."
        kind, depth = kind.value_type, depth + 1
    if depth != (0 if list(shape) == [1] else len(shape)):
        if not depth:
            return f"It holds {kind}; the feature has shape {list(shape)}."
        return f"Rows are nested {depth} deep; the feature has shape {list(shape)}."
    wanted = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if kind != wanted and not (numeric and wanted != pa.bool_()):
        return f"It holds {kind}; the feature is {dtype}."
    return ""


def check_copies(scan: Scan, findings: Findings) -> None:
    """Find episodes that are exact copies of an earlier one.

    Two recordings of something that moves are never equal to the last bit. Where most
    episodes are equal the signals are made up, and that is only worth a warning.
    """
    moves = np.zeros(len(scan.runs), dtype=bool)
    for name in (ACTION, STATE):
        moments = scan.moments.get(name)
        if moments is not None and len(moments.low) == len(scan.runs):
            span = moments.high - moments.low
            moves |= np.isfinite(span).all(axis=1) & (span > 0).any(axis=1)
    groups = defaultdict[tuple[int, int], list[int]](list)
    for run, moving in zip(scan.runs, moves.tolist(), strict=True):
        if moving:
            groups[run.checksum, run.rows].append(run.episode)
    pairs = [(e, found[0]) for found in groups.values() for e in found[1:]]
    if not pairs:
        return
    largest = max(len(found) for found in groups.values())
    say = findings.warn if 2 * largest > len(scan.runs) else findings.error
    shown = numbers([f"{copy} (of {first})" for copy, first in pairs])
    text = f"Episodes {shown} are exact copies of others (action and state): they count twice."
    say("duplicate_episode", "data", text, findings.delete([copy for copy, _ in pairs]))


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


def retype(draft: FixDraft) -> None:
    """Turn vectors that stand there as text, as CSV leaves them, and lists of one into numbers."""
    features = read_object(draft.root / layout.INFO).get("features") or {}
    for path in layout.data_files(draft.root):
        with contextlib.suppress(*DAMAGE):
            schema, read = pq.read_schema(path), dict[str, pa.Array]()
            lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
            for name in (f.name for f in schema if any(is_one(f.type) for is_one in lists)):
                if list((features.get(name) or {}).get("shape") or [1]) == [1]:
                    rows = pq.read_table(path, columns=[name], partitioning=None)[name]
                    if pc.all(pc.equal(pc.list_value_length(rows), 1)).as_py():
                        read[name] = pc.list_flatten(rows)
            for name in (f.name for f in schema if f.type in (pa.string(), pa.large_string())):
                spec = features.get(name) or {}
                if spec.get("dtype") in NUMBERS and len(spec.get("shape") or ()) == 1:
                    texts = pq.read_table(path, columns=[name], partitioning=None)[name].to_pylist()
                    vectors = [[float(n) for n in _NUMBER.findall(text or "")] for text in texts]
                    read[name] = pa.array(vectors, pa.list_(pa.float32(), spec["shape"][0]))
            if read:
                table = pq.read_table(path, partitioning=None).replace_schema_metadata(None)
                for name, column in read.items():
                    table = table.set_column(table.column_names.index(name), name, column)
                replace_table(path, table)
                told = f"{', '.join(read)}: numbers, no text or lists of one"
                draft.did("retyped", f"{path.relative_to(draft.root)}: {told}")


def salvage_files(draft: FixDraft) -> set[Path]:
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


def _salvaged(path: Path, draft: FixDraft) -> pa.Table | None:
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
            return salvage(path, schema)
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


def rewrite_files(
    draft: FixDraft,
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
    ordered: dict[int, Path] = {}
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
        ordered.update(dict.fromkeys(number_of[mine].tolist(), path))
    if ordered:
        first, *others = dict.fromkeys(ordered.values())
        where = f"{first.relative_to(draft.root)}" + (f" and {len(others)} more" if others else "")
        text = f"{where}: rows of {len(ordered)} episode{'s'[: len(ordered) != 1]} in order"
        draft.did("rewrote_data", f"{text}, counted anew")
