"""Labels and the gap columns of `meta/episodes`, kept in step; and their way from folder to folder.

The columns have fixed types and show the labels that stand. From a journal to its dataset, from a
dataset to one that is made of it, and to the new version of itself no label is lost, and none
counts twice: events are put among those that are there by time.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core import journal_format, labels, platform_calls
from gaploop.core.files import locked_stream, parse_json, write_atomically
from gaploop.core.journal_format import TakeHeader, read_end
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, layout
from gaploop.datasets.columns import EPISODE_COLUMNS, default_row, dimension_columns
from gaploop.datasets.layout import LABELS, EpisodeRow, episode_files, read_parquet

AS_PUBLISHED: Final = "as published"
"""Note of an event that says what stood in a dataset before anybody labelled it."""


def materialise(
    root: Path,
    new_rows: Mapping[int, Mapping[str, Any]],
    only: Collection[str] | None = None,
) -> None:
    """Write the gap columns of every episode, with the labels that stand now.

    Each file is replaced at once, so that readers of the dataset see it whole.

    Args:
        root: a dataset that nobody else writes: a staging folder, or one whose lock is held.
        new_rows: episode index to gap columns, for episodes that don't have them yet.
        only: uids of the takes whose labels changed, if the others are in step.
    """
    said = label_values(list(labels.read(root / LABELS)))
    for path in episode_files(root):
        if only is not None and _uids(path).isdisjoint(only):
            continue
        table = read_parquet(path)
        names = [n for n in EPISODE_COLUMNS if n in table.column_names]
        old = table.select(names).to_pylist() if names else [{}] * table.num_rows
        indices = table["episode_index"].to_pylist()
        rows = [{**row, **new_rows.get(i, {})} for i, row in zip(indices, old, strict=True)]
        changed = [apply_labels(row, said.get(row["gap_uid"], {})) for row in rows]
        updated = with_gap_columns(table, changed)
        if not updated.equals(table):
            part = path.with_suffix(".part")
            pq.write_table(updated, part, compression="snappy")
            platform_calls.sync_path(part)
            part.replace(path)
            platform_calls.sync_path(path.parent)


def label_values(events: Sequence[LabelEvent]) -> dict[str, dict[str, Any]]:
    """Return uid → field → value as the columns should show it.

    Where all that was said about a field has been taken back, nothing is said about it.
    """
    said = labels.current(events)
    for uid, name in labels.emptied(events):
        said.setdefault(uid, {})[name] = labels.NOTHING_SAID[name]
    return said


def uids(root: Path) -> set[str]:
    """Return the uids of a dataset's episodes; none where it has no gap columns."""
    found: set[str] = set()
    return found.union(*(_uids(path) for path in episode_files(root)))


def _uids(path: Path) -> set[str]:
    if "gap_uid" not in pq.read_schema(path).names:
        return set()
    return set(read_parquet(path, ["gap_uid"])["gap_uid"].to_pylist())


def apply_labels(row: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return an episode's gap columns with label fields put over them."""
    result = dict(row)
    for name in ("outcome", "failure_mode", "phase"):
        if name in said:
            result[f"gap_{name}"] = str(said[name])
    if "dimensions" in said:
        result |= dimension_columns(said["dimensions"])
    for name in labels.TAGS:
        if name in said:
            value = said[name]
            result[f"gap_{name}"] = json.dumps(value) if name == "conditions" else str(value)
    return result


def with_gap_columns(table: pa.Table, rows: list[dict[str, Any]]) -> pa.Table:
    """Return `table` with the gap columns of `rows` at its end, in fixed order and types."""
    kept = [n for n in table.column_names if n not in EPISODE_COLUMNS]
    result = table.select(kept)
    for name, kind in EPISODE_COLUMNS.items():
        field = pa.field(name, kind)
        result = result.append_column(field, pa.array([row[name] for row in rows], type=kind))
    return result


def gap_row(episode: EpisodeRow) -> dict[str, Any]:
    """Return an episode's gap columns, made up from what is known where it has none."""
    if episode.row.get("gap_uid"):
        return {name: episode.row[name] for name in EPISODE_COLUMNS}
    return default_row(episode.info, episode.outcome)


def rows_of(root: Path, uids: Collection[str]) -> list[dict[str, Any]]:
    """Return the gap columns of those of some takes that a dataset holds and has columns of."""
    found, asked = list[dict[str, Any]](), set(uids)
    for path in episode_files(root):
        if not set(EPISODE_COLUMNS) <= set(pq.read_schema(path).names):
            continue
        table = read_parquet(path, list(EPISODE_COLUMNS))
        wanted = [uid in asked for uid in table["gap_uid"].to_pylist()]
        found += table.filter(pa.array(wanted, pa.bool_())).to_pylist()
    return found


def bases(
    rows: Iterable[Mapping[str, Any]], new: Iterable[LabelEvent], have: Iterable[LabelEvent]
) -> list[LabelEvent]:
    """Return what has to be written before `new`, so that it can be taken back later.

    It says what the columns of those episodes said before anybody labelled them. It is the oldest
    and of the lowest source: what is left once every label is taken back.

    Args:
        rows: gap columns of the takes that are labelled, as they are before.
        new: what is about to be said.
        have: what has been said already.
    """
    known = {event.key for event in have}
    first: dict[str, list[str]] = {}
    for uid, name in dict.fromkeys(event.key for event in new if event.key not in known):
        first.setdefault(uid, []).append(name)
    events: list[LabelEvent] = []
    for row in rows:
        weights = zip(row["gap_dimensions"], row["gap_dimension_weights"], strict=True)
        before = {
            "outcome": row["gap_outcome"],
            "failure_mode": row["gap_failure_mode"],
            "phase": row["gap_phase"],
            "dimensions": dict(weights),
            "discard_reason": "",
            **{name: row[f"gap_{name}"] for name in labels.TAGS},
            "conditions": parse_json(row["gap_conditions"] or "{}"),
        }
        uid, t0_s = row["gap_uid"], max(int(row["gap_t0_ns"]), 0) / 1e9
        at = datetime.fromtimestamp(t0_s, UTC).isoformat()
        events += [
            LabelEvent(uid, name, before[name], "gaploop", "auto", at, note=AS_PUBLISHED)
            for name in first.get(uid, ())
            if before.get(name, labels.NOTHING_SAID[name]) != labels.NOTHING_SAID[name]
        ]
    return events


@contextlib.contextmanager
def carried_over(root: Path, staging: Path) -> Iterator[None]:
    """Take over to `staging` the labels that only `root` has; none are added within the block.

    A change (publishing, an edit) works on a copy for minutes; then the two folders trade names. A
    label goes to the old folder's file at once, under that file's lock, so that nobody waits. Who
    trades the names holds the dataset's lock meanwhile and first takes over what the copy lacks.
    Labels of takes that `staging` doesn't hold stay behind: they were deleted.
    """
    path, target = root / layout.LABELS, staging / layout.LABELS
    held = contextlib.ExitStack()
    try:  # the first label of all is only given with the dataset's lock held
        held.enter_context(locked_stream(path, create=False))
    except FileNotFoundError:
        yield
        return
    with held:
        have = {event.to_line() for event in labels.readable(target)}
        late = [event for event in labels.readable(path) if event.to_line() not in have]
        there = uids(staging) if late else set()
        late = [event for event in late if event.uid in there]
        if late:
            labels.append(_with_folder(target), *late)
            materialise(staging, {}, {event.uid for event in late})
        yield


def _with_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def new_events(journal: Path, root: Path, uids: Collection[str]) -> list[LabelEvent]:
    """Return the label events of a journal about some takes that a dataset doesn't have yet."""
    return _lacking(journal / journal_format.LABELS, root, lambda uid: uid in uids)


def _lacking(said: Path, root: Path, wanted: Callable[[str], bool]) -> list[LabelEvent]:
    """Return the events of a file about the takes wanted that a dataset doesn't have yet."""
    have = {event.to_line() for event in labels.read(root / layout.LABELS)}
    about = [event for event in labels.read(said) if wanted(event.uid)]
    return [event for event in about if event.to_line() not in have]


def publish_events(
    journal: Path,
    stage: Path,
    new: Sequence[LabelEvent],
    folders: Iterable[tuple[Path, TakeHeader]],
) -> None:
    """Write new events of a journal to a dataset, with what the takes were before.

    Args:
        stage: a dataset that nobody else writes; its columns don't show the new events yet.
        folders: folder and header of each take that is published now.
    """
    path = _with_folder(stage / layout.LABELS)
    have = list(labels.read(path))
    about = {event.uid for event in new}
    said = [e for e in labels.read(journal / journal_format.LABELS) if e.uid in about]
    rows = rows_of(stage, about)
    for folder, header in folders:
        if header.info.uid in about:
            end = read_end(folder)
            outcome = end.outcome if end else Outcome.INTERRUPTED
            rows.append(columns.default_row(header.info, outcome))
    events = labels.merge(bases(rows, new, have), have, said)
    write_atomically(path, "".join(f"{event.to_line()}\n" for event in events))


def copy_events(roots: Iterable[Path], uids: Collection[str], stage: Path) -> None:
    """Write to a new dataset what was said in any of some datasets about the takes it holds."""
    said = [[e for e in labels.read(root / layout.LABELS) if e.uid in uids] for root in roots]
    events = labels.merge(*said)
    if events:
        labels.append(_with_folder(stage / layout.LABELS), *events)


def bring_events(source: Path, target: Path, takes: Collection[int]) -> int:
    """Put a dataset's or journal's events about takes of these hashes among another dataset's.

    Return how many were new. Nobody else may write the `target`.

    Raises:
        UnusableInputError: a line of either can't be read; nothing is written over it.
    """
    said = source / (layout.LABELS if layout.is_dataset(source) else journal_format.LABELS)
    new = _lacking(said, target, lambda uid: columns.take_hash(uid) in takes)
    if new:
        labels.insert(_with_folder(target / layout.LABELS), *new)
    return len(new)


def add_events(root: Path, episodes: Sequence[EpisodeRow], events: Sequence[LabelEvent]) -> None:
    """Add events to a dataset that nobody else sees yet, and show them in its columns."""
    path = _with_folder(root / layout.LABELS)
    rows = [gap_row(e) for e in episodes]
    labels.append(path, *bases(rows, events, labels.read(path)), *events)
    materialise(root, {}, {event.uid for event in events})
