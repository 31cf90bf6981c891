"""Labels as CSV: one row per take for spreadsheets, or one per event with the whole history.

What is read back is checked as a whole before anything is written.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, read_content, write_atomically
from gaploop.core.labels import FIELDS, NOTHING_SAID, LabelEvent
from gaploop.datasets.labels.store import LabelStore
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


def export_takes(store: LabelStore, episodes: Sequence[EpisodeRow], path: Path) -> int:
    """Write what stands about takes, one row each; return how many rows.

    Raises:
        OSError: the file can't be written.
    """
    said = labels.standing(store.events)
    rows = []
    for e in episodes:
        uid = e.info.uid
        row: dict[str, object] = {"uid": uid, store.what: e.index}
        row |= {name: getattr(e.info, name) for name in ABOUT}
        for name in FIELDS:
            value = value_of(e, name, said)
            if isinstance(value, Mapping):
                value = "; ".join(f"{n}={weight:g}" for n, weight in value.items())
            row[name] = str(value) or (NONE if (uid, name) in said else "")
        rows.append(row | {SEEN: len(store.about(uid))})
    _write(path, ["uid", store.what, *ABOUT, *FIELDS, SEEN], rows)
    return len(rows)


def export_events(events: Iterable[LabelEvent], path: Path) -> int:
    """Write events, one row each; return how many rows."""
    rows = []
    for event in events:
        value = event.value if isinstance(event.value, str) else json.dumps(event.value)
        rows.append({**vars(event), "value": value})
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


_ROW_COLUMNS: Final = ("author", "source", "confidence", "note")
_SHOWN: Final = 3  # how many problems a message names


@dataclass(frozen=True)
class IncomingLabels:
    """What a CSV file says that isn't known yet, how much of it is, and columns that mean nothing.

    Events of a `whole_history` are to be put among ours by time.
    """

    events: tuple[LabelEvent, ...]
    whole_history: bool
    same: int
    ignored: tuple[str, ...] = ()


def read_labels(store: LabelStore, path: Path, template: LabelEvent) -> IncomingLabels:
    """Read a CSV file of takes or of events, and check all of it before anything is written.

    Args:
        path: separated by commas, semicolons or tabs.
        template: whose author, source, time, confidence and note a row has that gives none.

    Raises:
        UnusableInputError: a take that isn't there, a word that doesn't exist, a take with two
            values, or a label that somebody changed since the export; names line and column.
    """
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableInputError(f"{path} is not UTF-8 ({error}). Save it as CSV UTF-8.") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in next(reader, [])]
        rows = [  # line and cells of each
            (reader.line_num, dict(zip(columns, (c.strip() for c in cells), strict=False)))
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise UnusableInputError(f"{path}, line {reader.line_num}: {error}.") from None
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UnusableInputError(f"{path} has the column {twice[0]} twice. Remove one.")
    if {"uid", "field", "value"} <= set(columns):
        uids = {e.info.uid for e in store.episodes}
        events, problems = [], []
        for line, row in rows:
            try:
                if row["uid"] not in uids:
                    raise UnusableInputError(f"{store.root} has no {store.what} {row['uid']!r}.")
                value = parse_json(row["value"]) if row["field"] == "dimensions" else row["value"]
                stated = replace(template, uid=row["uid"], field=row["field"], value=value)
                events.append(_filled(stated, row, "at", "retracts"))
            except (UnusableInputError, *DAMAGE) as error:
                problems.append(f"Line {line}: {error}")
        if problems:
            raise _refuse(path, problems, len(rows))
        have = {event.to_line() for event in store.events}
        new = tuple(event for event in events if event.to_line() not in have)
        ignored = tuple(n for n in columns if n not in EVENT_COLUMNS)
        return IncomingLabels(new, True, len(events) - len(new), ignored)
    named = [name for name in FIELDS if name in columns]
    if not named or not {"uid", "episode", "take"} & set(columns):
        raise UnusableInputError(
            f"{path} has the columns {', '.join(columns)}. It needs uid or episode, and one or "
            f"more of {', '.join(FIELDS)}; see one with: gaploop label DIR --export=labels.csv"
        )
    return _read_takes(store, path, rows, columns, template)


def _refuse(path: Path, problems: Sequence[str], rows: int) -> UnusableInputError:
    more = f" And {len(problems) - _SHOWN} more." if len(problems) > _SHOWN else ""
    shown = "; ".join(problem.rstrip(".") for problem in problems[:_SHOWN])
    return UnusableInputError(f"{path}: {shown}.{more} Nothing of its {rows} rows is imported.")


def _read_takes(
    store: LabelStore,
    path: Path,
    rows: Sequence[tuple[int, dict[str, str]]],
    columns: Sequence[str],
    template: LabelEvent,
) -> IncomingLabels:
    """Read a file with one row per take."""
    called = next(name for name in ("uid", "episode", "take") if name in columns)
    uids = {e.info.uid if called == "uid" else str(e.index): e.info.uid for e in store.episodes}
    problems: list[str] = []
    stated: dict[labels.Key, tuple[int, LabelEvent]] = {}
    seen: dict[labels.Key, int] = {}
    for line, row in rows:
        try:
            take = row.get(called, "")
            if take not in uids:
                raise UnusableInputError(f"{store.root} has no {store.what} {take!r}.")
            for name in (n for n in FIELDS if row.get(n)):
                value = _parse_cell(name, row[name])
                event = _filled(replace(template, uid=uids[take], field=name, value=value), row)
                before = stated.setdefault(event.key, (line, event))
                if before[1].value != event.value:
                    raise UnusableInputError(f"{event.field} differs from line {before[0]}.")
                if row.get(SEEN):
                    seen[event.key] = int(row[SEEN])
        except (UnusableInputError, *DAMAGE) as error:
            problems.append(f"Line {line}: {error}")
    standing = labels.standing(store.events)
    for key, count in seen.items():  # what somebody changed since the file was exported
        line, event = stated[key]
        late = [e for e in store.about(event.uid)[count:] if e.field == event.field]
        now = standing.get(key)
        if late and now is not None and now.value != event.value:
            problems.append(
                f"Line {line}: {event.field} is {event.value!r} here, but {now.author} said "
                f"{now.value!r} since the export. Export again, or empty the row's "
                f"{SEEN} cell to overrule that."
            )
    if problems:
        raise _refuse(path, problems, len(rows))
    events = [event for _, event in stated.values()]
    said_by = {
        author: labels.standing(e for e in store.events if e.author == author)
        for author in {e.author for e in events}
    }
    episodes = {e.info.uid: e for e in store.episodes}
    new = []
    for event in events:  # a cell that is as it was exported says nothing, nor does a repeated word
        own = said_by[event.author].get(event.key)
        repeated = own is not None and (own.value, own.source) == (event.value, event.source)
        shown = value_of(episodes[event.uid], event.field, standing)
        if not repeated and not (event.key in seen and shown == event.value):
            new.append(event)
    meant = {"uid", "episode", "take", SEEN, *FIELDS, *ABOUT, *_ROW_COLUMNS}
    ignored = tuple(name for name in columns if name not in meant)
    return IncomingLabels(tuple(new), False, len(events) - len(new), ignored)


def _parse_cell(name: str, text: str) -> Any:
    if text.strip().lower() == NONE:
        return NOTHING_SAID[name]
    if name != "dimensions":
        return text.strip()
    if text.lstrip().startswith("{"):
        try:
            return parse_json(text)
        except ValueError as error:
            raise UnusableInputError(f"dimensions {text!r} is not JSON ({error}).") from None
    weights: dict[str, float] = {}
    for part in re.split(r"[;,]", re.sub(r"\s*[=:]\s*", "=", text)):
        for pair in part.split():
            dimension, equals, weight = pair.partition("=")
            try:
                weights[dimension] = float(weight) if equals else 1.0
            except ValueError:
                raise UnusableInputError(
                    f"weight {weight!r} of {dimension} is not a number. Write "
                    "contact_dynamics=0.8; visual_domain=0.2"
                ) from None
    return weights


def _filled(event: LabelEvent, row: Mapping[str, str], *more: str) -> LabelEvent:
    """Return an event with what its row says about author, source, note, confidence and more."""
    given: dict[str, Any] = {n: row[n] for n in ("author", "source", "note", *more) if row.get(n)}
    if row.get("confidence"):
        given["confidence"] = float(row["confidence"])
    return replace(event, **given)
