"""Labels as CSV: one row per take for spreadsheets, or one per event with the whole history."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.files import write_atomically
from gaploop.core.labels import FIELDS, LabelEvent
from gaploop.datasets.labels.labelled import FolderLabels
from gaploop.datasets.layout import EpisodeRow

NONE: Final = "none"
"""A cell that says that there is nothing, where an empty one says nothing."""
SEEN: Final = "events"
"""Column of how many events there were about a take when it was exported."""
EVENT_COLUMNS: Final = (
    "uid", "field", "value", "author", "source", "at", "confidence", "note", "retracts",
)  # fmt: skip
ABOUT: Final = ("session", "operator", "task")
"""Columns that say which take it is; they are not read back."""


def export_takes(folder: FolderLabels, episodes: Sequence[EpisodeRow], path: Path) -> int:
    """Write what stands about takes, one row each; return how many rows.

    Raises:
        OSError: the file can't be written.
    """
    said = labels.standing(folder.events)
    counts = by_uid(folder.events)
    columns = ["uid", folder.what, *ABOUT, *FIELDS, SEEN]
    rows = []
    for e in episodes:
        row: dict[str, object] = {"uid": e.info.uid, folder.what: e.index}
        row |= {name: getattr(e.info, name) for name in ABOUT}
        row |= {n: _cell(value_of(e, n, said), (e.info.uid, n) in said) for n in FIELDS}
        rows.append(row | {SEEN: len(counts.get(e.info.uid, ()))})
    _write(path, columns, rows)
    return len(rows)


def export_events(events: Iterable[LabelEvent], path: Path) -> int:
    """Write events, one row each; return how many rows."""
    rows = [{**vars(e), "value": _event_cell(e)} for e in events]
    _write(path, EVENT_COLUMNS, rows)
    return len(rows)


def value_of(episode: EpisodeRow, name: str, said: Mapping[labels.Key, LabelEvent]) -> Any:
    """Return what stands about one field of a take."""
    if name == "dimensions":
        return dict(episode.info.dimensions)
    if name == "discard_reason":
        event = said.get((episode.info.uid, name))
        return event.value if event else ""
    return str(getattr(episode, name))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def _cell(value: Any, said: bool) -> str:
    if isinstance(value, Mapping):
        value = "; ".join(f"{name}={weight:g}" for name, weight in value.items())
    return str(value) or (NONE if said else "")


def _event_cell(event: LabelEvent) -> str:
    return event.value if isinstance(event.value, str) else json.dumps(event.value)


def by_uid(events: Iterable[LabelEvent]) -> dict[str, list[LabelEvent]]:
    """Return uid to its events, in their order."""
    found: dict[str, list[LabelEvent]] = {}
    for event in events:
        found.setdefault(event.uid, []).append(event)
    return found
