"""Rules of `check` for `data/`: columns, types, row ranges, timestamps, indices, copies."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets import columns, layout
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import DAMAGE, Findings, numbers, reason
from gaploop.datasets.check.scan import Scan, Scanner, batches
from gaploop.datasets.layout import DatasetInfo

_SAYS: Final = {
    "frame_index": "frame_index doesn't count 0, 1, 2 …",
    "timestamp": "timestamps are not frame_index / fps",
    "index": "index doesn't count all rows of the dataset",
}


def scan_frames(info: DatasetInfo, keep: Collection[int], findings: Findings) -> Scan | None:
    """Read every frame once, with findings for what can't be read; None where nothing can be.

    Args:
        keep: episodes whose signals the result carries.
    """
    files = layout.data_files(info)
    if not files:
        if info.total_frames or info.total_episodes:
            findings.error("missing_data", "data", "There are no data files.")
        return None
    scanner, types = Scanner(info, keep), defaultdict[tuple[str, str], list[str]](list)
    pictures = {k for k, spec in info.features.items() if spec.get("dtype") == "image"}
    complete = True
    for number, path in enumerate(files):
        name = str(path.relative_to(info.root))
        try:
            schema = pq.read_schema(path)
            _check_columns(info, schema, name, findings)
            for field in schema:
                types[field.name, str(field.type)].append(name)
            for table in batches(path, set(schema.names) - pictures):
                scanner.add(table, number, name)
        except DAMAGE as error:
            complete = False
            findings.error("unreadable", name, f"It can't be read: {reason(error)}")
    _check_types(types, findings)
    scan = scanner.result()
    _report_not_finite(scan, findings)
    if complete and scan.rows != info.total_frames:
        text = f"total_frames is {info.total_frames}, the data files hold {scan.rows} rows."
        findings.error("frame_count", layout.INFO, text)
    return scan if scan.rows else None


def _check_columns(info: DatasetInfo, schema: pa.Schema, name: str, findings: Findings) -> None:
    stored = [k for k in info.features if k not in info.video_keys]
    for feature in stored:
        if feature not in schema.names:
            near = difflib.get_close_matches(
                feature, [n for n in schema.names if n not in stored], n=1, cutoff=0.7
            )
            hint = f" There is a column {near[0]}: was it renamed?" if near else ""
            findings.error("missing_column", name, f"Column {feature} is missing.{hint}")
            continue
        fault = _type_fault(schema.field(feature).type, info.features[feature])
        if fault:
            findings.error("column_type", f"{name}: {feature}", fault)
    unknown = [n for n in schema.names if n not in stored]
    if unknown:
        text = f"Columns {', '.join(unknown[:8])} are no features: LeRobot refuses the file."
        findings.error("unknown_column", name, text)


def _type_fault(kind: pa.DataType, spec: Any) -> str:
    """Say why LeRobot can't read a column of this type as the feature; "" where it can."""
    dtype, shape = spec.get("dtype"), spec.get("shape")
    if dtype in ("string", "language"):
        return ""
    if dtype == "image":
        return "" if pa.types.is_struct(kind) else f"Images are stored as {kind}."
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or _fixed(kind):
        if _fixed(kind) and len(shape) == 1 and kind.list_size != shape[0]:
            return f"Rows hold {kind.list_size} values; the feature has shape {list(shape)}."
        kind, depth = kind.value_type, depth + 1
    if depth != (0 if list(shape) == [1] else len(shape)):
        return f"Rows are nested {depth} deep; the feature has shape {list(shape)}."
    wanted = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if kind != wanted and not (numeric and wanted != pa.bool_()):
        return f"It holds {kind}; the feature is {dtype}."
    return ""


def _fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


def _check_types(types: dict[tuple[str, str], list[str]], findings: Findings) -> None:
    kinds = defaultdict[str, list[str]](list)
    for name, kind in types:
        kinds[name].append(kind)
    mixed = {name: found for name, found in kinds.items() if len(found) > 1}
    for name, found in mixed.items():
        text = f"Column {name} is {' and '.join(sorted(found))} in different files."
        findings.error("mixed_types", "data", text)


def _report_not_finite(scan: Scan, findings: Findings) -> None:
    for (name, feature), rows in scan.not_finite.items():
        text = f"NaN, infinite or missing values in {len(rows)} frames: rows {numbers(rows)}."
        findings.error("not_finite", f"{name}: {feature}", text)


def check_ranges(info: DatasetInfo, episodes: EpisodeTable, scan: Scan, findings: Findings) -> None:
    """Compare the row ranges that the episode table claims with the rows that are there."""
    runs = {run.start: run for run in scan.runs}
    wrong = defaultdict[str, list[int]](list)
    files = _files_of(info, episodes)
    claims = zip(
        episodes.index.tolist(),
        episodes.length.tolist(),
        episodes.first.tolist(),
        episodes.last.tolist(),
        strict=True,
    )
    paths = layout.data_files(info)
    for at, (index, length, first, last) in enumerate(claims):
        run = runs.get(first)
        if run is None or run.episode != index or not run.rows == last - first == length:
            wrong["rows"].append(index)
            continue
        for name in run.odd:
            wrong[name].append(index)
        if files is not None and paths[run.file] != files[at]:
            wrong["file"].append(index)
    _report_ranges(wrong, findings)
    known = set(episodes.index.tolist())
    orphans = sorted({run.episode for run in scan.runs} - known)
    if orphans:
        text = f"Rows of episodes {numbers(orphans)} stand in no episode table."
        findings.error("orphan_rows", "data", text)


def _files_of(info: DatasetInfo, episodes: EpisodeTable) -> list[Path] | None:
    chunk, file = episodes.numbers("data/chunk_index"), episodes.numbers("data/file_index")
    if chunk is None or file is None or not np.isfinite(chunk + file).all():
        return None
    places = zip(chunk.astype(int).tolist(), file.astype(int).tolist(), strict=True)
    return [info.root / info.data_name(c, f) for c, f in places]


def _report_ranges(wrong: dict[str, list[int]], findings: Findings) -> None:
    if wrong["rows"]:
        text = f"Episodes {numbers(wrong['rows'])}: the row range in the episode table is not "
        findings.error("bad_rows", layout.EPISODES, text + "theirs.")
    for name, says in _SAYS.items():
        if wrong[name]:
            text = f"Episodes {numbers(wrong[name])}: {says}."
            findings.error(f"bad_{name}", "data", text)
    if wrong["file"]:
        text = f"Episodes {numbers(wrong['file'])} are not in the data file that the table names."
        findings.error("bad_file_index", layout.EPISODES, text)


def check_tasks_of_rows(
    scan: Scan, tasks: list[str], named: dict[int, set[str]] | None, findings: Findings
) -> None:
    """Check that rows name tasks that exist, and those that the episode table names."""
    unknown = [r.episode for r in scan.runs if any(not 0 <= t < len(tasks) for t in r.tasks)]
    if unknown:
        text = f"Rows of episodes {numbers(unknown)} have a task_index that doesn't exist."
        findings.error("bad_task_index", "data", text)
        return
    other = [
        run.episode
        for run in scan.runs
        if named is not None
        and run.episode in named
        and {tasks[t] for t in run.tasks} != named[run.episode]
    ]
    if other:
        text = f"Episodes {numbers(other)}: rows have another task than {layout.EPISODES} says."
        findings.error("bad_tasks", "data", text)


def check_copies(scan: Scan, findings: Findings) -> None:
    """Find episodes that are exact copies of an earlier one.

    Two recordings of something that moves are never equal to the last bit. Where most
    episodes are equal the signals are made up, and that is only worth a warning.
    """
    groups = defaultdict[tuple[int, int], list[int]](list)
    for at, run in enumerate(scan.runs):
        if _moves(scan, at):
            groups[run.checksum, run.rows].append(run.episode)
    pairs = [(e, found[0]) for found in groups.values() for e in found[1:]]
    if not pairs:
        return
    largest = Counter({key: len(found) for key, found in groups.items()}).most_common(1)[0][1]
    say = findings.warn if 2 * largest > len(scan.runs) else findings.error
    shown = ", ".join(f"{copy} (of {first})" for copy, first in pairs[:8])
    more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
    say(
        "duplicate_episode",
        "data",
        f"Episodes {shown}{more} repeat action and state of another exactly: it counts twice.",
        findings.delete([copy for copy, _ in pairs]),
    )


def _moves(scan: Scan, at: int) -> bool:
    for name in (columns.ACTION, columns.STATE):
        moments = scan.moments.get(name)
        if moments is not None and len(moments.low) == len(scan.runs):
            low, high = moments.low[at], moments.high[at]
            if np.isfinite(high - low).all() and (high > low).any():
                return True
    return False
