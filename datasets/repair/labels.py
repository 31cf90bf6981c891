"""Repair: gap columns and labels, attached to the recordings they belong to by `gap.take`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core import journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.journal_format import read_end, read_header, take_folders
from gaploop.core.labels import LabelEvent
from gaploop.core.paths import is_plain_name, refuse_links_out
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.repair.names import RepairDraft
from gaploop.datasets.repair.rows import Whole
from gaploop.datasets.telemetry_zarr import telemetry_path

type Row = dict[str, Any]
_SAYS: Final = "the dataset or journal in which the takes still have their labels"


def source_rows(source: Path) -> dict[int, Row]:
    """Return `gap.take` to gap columns, of every episode of a dataset or take of a journal.

    Raises:
        UnusableInputError: it is neither, has no gap columns, or has links that lead out.
    """
    refuse_links_out(source)
    if layout.is_dataset(source):
        rows = layout.episode_rows(source)
        found = [r for r in rows if r.get("gap_uid")]
        result = {
            columns.take_hash(r["gap_uid"]): {n: r.get(n) for n in columns.EPISODE_COLUMNS}
            for r in found
        }
    elif journal_format.is_journal(source):
        result = _journal_rows(source)
    else:
        raise UnusableInputError(f"--labels_from={source}: name {_SAYS}.")
    if not result:
        raise UnusableInputError(f"--labels_from={source} has no gap columns. Name {_SAYS}.")
    return result


def _journal_rows(journal: Path) -> dict[int, Row]:
    rows = {}
    for folder in take_folders(journal):
        header, end = read_header(folder), read_end(folder)
        if end is not None:
            row = columns.default_row(header.info, Outcome(end.outcome))
            rows[columns.take_hash(header.info.uid)] = row
    return rows


def label_events(source: Path) -> list[LabelEvent]:
    """Return the label events of a dataset or journal."""
    path = source / (layout.LABELS if layout.is_dataset(source) else journal_format.LABELS)
    return list(labels.read(path))


def mend_labels(
    draft: RepairDraft, episodes: Sequence[Whole], labels_from: Path | None, fps: float
) -> None:
    """Give every episode the gap columns of its take, where the dataset has any.

    Args:
        draft: the dataset, its episode table already in order.
        episodes: what stays.
        labels_from: where columns and labels come from that the dataset lost.
        fps: frames per second.

    Raises:
        UnusableInputError: `labels_from` knows none of the takes.
    """
    given = source_rows(labels_from) if labels_from is not None else {}
    table = _table(draft)
    if table is None or not len(table):
        return
    present = [n for n in columns.EPISODE_COLUMNS if n in table.column_names]
    if not present and not given:
        return
    old: list[Row] = table.select(present).to_pylist() if present else [{} for _ in episodes]
    own = {
        columns.take_hash(str(r["gap_uid"])): r for r in old if r.get("gap_uid") and _complete(r)
    }
    _require_known(labels_from, given, episodes)
    if labels_from is not None:
        _bring_events(draft, labels_from, {e.take for e in episodes})
        _bring_telemetry(draft, labels_from, [given[e.take] for e in episodes if e.take in given])
    rows = []
    for at, (episode, row) in enumerate(zip(episodes, old, strict=True)):
        if episode.take in own:
            rows.append(own[episode.take])
        elif episode.take in given:
            rows.append(given[episode.take])
        else:
            info = TakeInfo(_uid(draft, episode, row, at), kind=TakeKind.IMPORT, fps=fps)
            rows.append({**columns.default_row(info, Outcome.UNLABELLED), **_usable(row)})
    _write(draft, rows)


def _complete(row: Mapping[str, Any]) -> bool:
    known = all(row.get(n) is not None for n in columns.EPISODE_COLUMNS)
    return known and is_plain_name(row["gap_uid"])


def _require_known(
    labels_from: Path | None, given: Mapping[int, Row], episodes: Sequence[Whole]
) -> None:
    if labels_from is None:
        return
    if not any(e.take for e in episodes):
        raise UnusableInputError(
            f"--labels_from={labels_from}: the frames have no column {columns.TAKE}, by which "
            "labels find their recordings. Label the episodes anew: gaploop label --help"
        )
    if not any(e.take in given for e in episodes):
        raise UnusableInputError(
            f"--labels_from={labels_from} knows none of the {len(episodes)} takes. Name {_SAYS}."
        )


def _table(draft: RepairDraft) -> Any:
    files = layout.episode_files(draft.root)
    return pa.concat_tables([pq.read_table(p, partitioning=None) for p in files]) if files else None


def _uid(draft: RepairDraft, episode: Whole, row: Mapping[str, Any], at: int) -> str:
    """Return the uid whose hash the rows carry, if anything names it; else one of its own."""
    known = {p.name.removesuffix(".zarr.zip") for p in _telemetry(draft.root)}
    with contextlib.suppress(*DAMAGE):
        events = labels.read(draft.root / layout.LABELS)
        known |= {event.uid for event in events if is_plain_name(event.uid)}
    for uid in known:
        if episode.take and columns.take_hash(uid) == episode.take:
            return uid
    own = str(row.get("gap_uid") or "")
    if is_plain_name(own) and (not episode.take or columns.take_hash(own) == episode.take):
        return own
    return layout.foreign_uid({"episode_index": at, "length": len(episode), **row})


def _telemetry(root: Path) -> list[Path]:
    return sorted((root / layout.TELEMETRY).glob("*.zarr.zip"))


def _usable(row: Mapping[str, Any]) -> Row:
    """Return the gap columns that make sense, with words put right that are near a valid one."""
    kept: Row = {}
    for name, value in row.items():
        if name in ("gap_uid", "gap_dimensions", "gap_dimension_weights") or value is None:
            continue
        words = columns.EPISODE_WORDS.get(name)
        if words is not None and value not in words:
            near = difflib.get_close_matches(str(value), sorted(words - {""}), n=1, cutoff=0.8)
            if not near:
                continue
            value = near[0]
        if name == "gap_conditions" and not _is_object(value):
            continue
        kept[name] = value
    kept |= _dimensions(row)
    return kept


def _is_object(text: Any) -> bool:
    try:
        return isinstance(parse_json(text or "{}"), dict)
    except DAMAGE:
        return False


def _dimensions(row: Mapping[str, Any]) -> Row:
    names, weights = row.get("gap_dimensions"), row.get("gap_dimension_weights")
    if not isinstance(names, list) or not isinstance(weights, list) or len(names) != len(weights):
        return {}
    words = columns.EPISODE_WORDS["gap_dimensions"]
    pairs = {n: w for n, w in zip(names, weights, strict=True) if n in words}
    fine = {n: float(w) for n, w in pairs.items() if isinstance(w, float) and 0 <= w <= 1}
    return columns.dimension_columns(fine)


def _write(draft: RepairDraft, rows: list[Row]) -> None:
    """Write the columns, with the labels that stand now."""
    fixed = [_sound(row) for row in rows]
    files = layout.episode_files(draft.root)
    before = [p.read_bytes() for p in files]
    episodes_table.materialise(draft.root, dict(enumerate(fixed)))
    if [p.read_bytes() for p in files] != before:
        draft.did("attached_labels", f"gap columns of {len(rows)} episodes brought in line")


def _sound(row: Row) -> Row:
    """Return a row of which every word is valid."""
    info = TakeInfo(str(row["gap_uid"]), kind=TakeKind.IMPORT)
    default = columns.default_row(info, Outcome.UNLABELLED)
    result = {**default, **_usable(row), "gap_uid": row["gap_uid"]}
    return {name: result[name] for name in columns.EPISODE_COLUMNS}


def _bring_events(draft: RepairDraft, source: Path, takes: set[int]) -> None:
    """Put the source's label events among the dataset's own, by time.

    Raises:
        UnusableInputError: a line of either can't be read; nothing is written over it.
    """
    path = draft.root / layout.LABELS
    have = {event.to_line() for event in labels.read(path)}
    new = [
        event
        for event in label_events(source)
        if event.to_line() not in have and columns.take_hash(event.uid) in takes
    ]
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        labels.insert(path, *new)
        draft.did("brought_labels", f"{layout.LABELS}: {len(new)} events from {source}")


def _bring_telemetry(draft: RepairDraft, source: Path, rows: Sequence[Row]) -> None:
    brought = 0
    for row in rows:
        old = telemetry_path(source, str(row["gap_uid"]))
        new = telemetry_path(draft.root, str(row["gap_uid"]))
        if not old.is_file() or new.exists():
            continue
        staging.link(old, new)
        brought += 1
    if brought:
        draft.did("brought_telemetry", f"{layout.TELEMETRY}: {brought} records from {source}")
