"""Repair: gap columns and labels, attached to the recordings they belong to by `gap.take`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core import journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_end, read_header, take_folders
from gaploop.core.paths import is_plain_name, refuse_links_out
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.check.episodes import is_json_object
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.labels.transfer import bring_events
from gaploop.datasets.repair.description import RepairDraft
from gaploop.datasets.repair.rows import WholeEpisode
from gaploop.datasets.repair.tables import read_table
from gaploop.datasets.telemetry_zarr import telemetry_path

type Row = dict[str, Any]
_SAYS: Final = "the dataset or journal in which the takes still have their labels"


def repair_labels(
    draft: RepairDraft, episodes: Sequence[WholeEpisode], labels_from: Path | None
) -> None:
    """Give every episode the gap columns of its take, where the dataset has any, or had.

    Raises:
        UnusableInputError: `labels_from`, where they come from, knows none of the takes.
    """
    given = _source_rows(labels_from) if labels_from is not None else {}
    table = read_table(draft.root)
    if table is None or not len(table):
        return
    present = [n for n in columns.EPISODE_COLUMNS if n in table.column_names]
    if not present and not given:
        return
    old: list[Row] = table.select(present).to_pylist() if present else [{} for _ in episodes]
    own = {
        columns.take_hash(str(r["gap_uid"])): r
        for r in old
        if is_plain_name(r.get("gap_uid"))
        and all(r.get(n) is not None for n in columns.EPISODE_COLUMNS)
    }
    if labels_from is not None:
        if not any(e.take for e in episodes):
            raise UnusableInputError(
                f"--labels_from={labels_from}: the frames have no column {columns.TAKE}, by which "
                "labels find their recordings. Label the episodes anew: gaploop label --help"
            )
        if not any(e.take in given for e in episodes):
            raise UnusableInputError(
                f"--labels_from={labels_from} knows none of the {len(episodes)} takes. "
                f"Name {_SAYS}."
            )
        new = bring_events(labels_from, draft.root, {e.take for e in episodes})
        if new:
            draft.did("brought_labels", f"{layout.LABELS}: {new} events from {labels_from}")
        brought = 0
        for uid in (str(given[e.take]["gap_uid"]) for e in episodes if e.take in given):
            record, target = telemetry_path(labels_from, uid), telemetry_path(draft.root, uid)
            if record.is_file() and not target.exists():
                staging.link_or_copy(record, target)
                brought += 1
        if brought:
            text = f"{layout.TELEMETRY}: {brought} records from {labels_from}"
            draft.did("brought_telemetry", text)
    # Where no columns name a take whose hash the rows carry, its telemetry or labels may.
    records = (draft.root / layout.TELEMETRY).glob("*.zarr.zip")
    uids = {path.name.removesuffix(".zarr.zip") for path in records}
    with contextlib.suppress(*DAMAGE):
        events = labels.read(draft.root / layout.LABELS)
        uids |= {event.uid for event in events if is_plain_name(event.uid)}
    named = {columns.take_hash(uid): uid for uid in uids}
    rows = []
    for at, (episode, row) in enumerate(zip(episodes, old, strict=True)):
        known = own.get(episode.take) or given.get(episode.take)
        uid = str(row.get("gap_uid") or "")
        if known:
            uid = str(known["gap_uid"])
        elif episode.take in named:
            uid = named[episode.take]
        elif not is_plain_name(uid) or (episode.take and columns.take_hash(uid) != episode.take):
            uid = layout.foreign_uid({"episode_index": at, "length": len(episode), **row})
        default = columns.default_row(TakeInfo(uid, kind=TakeKind.IMPORT), Outcome.UNLABELLED)
        rows.append({**default, **_usable(known or row)})
    files = layout.episode_files(draft.root)
    before = [p.read_bytes() for p in files]
    episodes_table.materialise(draft.root, dict(enumerate(rows)))
    if [p.read_bytes() for p in files] != before:
        draft.did("attached_labels", f"gap columns of {len(rows)} episodes brought in line")


def _source_rows(source: Path) -> dict[int, Row]:
    """Return `gap.take` to gap columns, of every episode of a dataset or take of a journal."""
    refuse_links_out(source)
    found: list[Row] = []
    if layout.is_dataset(source):
        rows = [r for r in layout.episode_rows(source) if r.get("gap_uid")]
        found = [{n: r.get(n) for n in columns.EPISODE_COLUMNS} for r in rows]
    elif journal_format.is_journal(source):
        for folder in take_folders(source):
            header, end = read_header(folder), read_end(folder)
            if end is not None:
                found.append(columns.default_row(header.info, Outcome(end.outcome)))
    else:
        raise UnusableInputError(f"--labels_from={source}: name {_SAYS}.")
    if not found:
        raise UnusableInputError(f"--labels_from={source} has no gap columns. Name {_SAYS}.")
    return {columns.take_hash(row["gap_uid"]): row for row in found}


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
        if name == "gap_conditions" and not is_json_object(value):
            continue
        kept[name] = value
    names, weights = row.get("gap_dimensions"), row.get("gap_dimension_weights")
    if isinstance(names, list) and isinstance(weights, list) and len(names) == len(weights):
        words = columns.EPISODE_WORDS["gap_dimensions"]
        pairs = {n: w for n, w in zip(names, weights, strict=True) if n in words}
        fine = {n: float(w) for n, w in pairs.items() if isinstance(w, float) and 0 <= w <= 1}
        kept |= columns.dimension_columns(fine)
    return kept
