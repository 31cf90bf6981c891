"""Labels from a CSV file: everything is checked before anything is written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, read_content
from gaploop.core.labels import FIELDS, NOTHING_SAID, LabelEvent
from gaploop.datasets.labels.label_csv import ABOUT, EVENT_COLUMNS, NONE, SEEN, by_uid, value_of
from gaploop.datasets.labels.labelled import FolderLabels

_ROW_COLUMNS: Final = ("author", "source", "confidence", "note")
_SHOWN: Final = 3  # how many problems a message names


@dataclass(frozen=True)
class IncomingLabels:
    """What a CSV file says that isn't known yet.

    Attributes:
        events: to be written down.
        whole_history: they are events of another log, to be put among ours by time.
        same: statements that are known already.
        ignored: columns that mean nothing here.
    """

    events: tuple[LabelEvent, ...]
    whole_history: bool
    same: int
    ignored: tuple[str, ...] = ()


def read_labels(folder: FolderLabels, path: Path, template: LabelEvent) -> IncomingLabels:
    """Read a CSV file of takes or of events, and check all of it before anything is written.

    Args:
        folder: what it is about.
        path: the file; separated by commas, semicolons or tabs.
        template: whose author, source, time, confidence and note a row has that gives none.

    Raises:
        UnusableInputError: a take that isn't there, a word that doesn't exist, a take with two
            values, or a label that somebody changed since the export; names line and column.
    """
    rows, columns = _read(path)
    if {"uid", "field", "value"} <= set(columns):
        return _read_events(folder, path, rows, template)
    named = [name for name in FIELDS if name in columns]
    if not named or not {"uid", "episode", "take"} & set(columns):
        raise UnusableInputError(
            f"{path} has the columns {', '.join(columns)}. It needs uid or episode, and one or "
            f"more of {', '.join(FIELDS)}; see one with: gaploop label DIR --export=labels.csv"
        )
    return _Takes(folder, path, columns, template).read(rows)


def _read(path: Path) -> tuple[list[tuple[int, dict[str, str]]], list[str]]:
    """Return (line, cells) of each row, and the columns."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableInputError(f"{path} is not UTF-8 ({error}). Save it as CSV UTF-8.") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [_plain(name) for name in next(reader, [])]
        rows = [
            (reader.line_num, dict(zip(columns, (c.strip() for c in cells), strict=False)))
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise UnusableInputError(f"{path}, line {reader.line_num}: {error}.") from None
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UnusableInputError(f"{path} has the column {twice[0]} twice. Remove one.")
    return rows, columns


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _refuse(path: Path, problems: Sequence[str], rows: int) -> UnusableInputError:
    more = f" And {len(problems) - _SHOWN} more." if len(problems) > _SHOWN else ""
    shown = "; ".join(problem.rstrip(".") for problem in problems[:_SHOWN])
    return UnusableInputError(f"{path}: {shown}.{more} Nothing of its {rows} rows is imported.")


@dataclass(frozen=True)
class _Takes:
    """Reads a file with one row per take."""

    folder: FolderLabels
    path: Path
    columns: Sequence[str]
    template: LabelEvent

    def read(self, rows: Sequence[tuple[int, dict[str, str]]]) -> IncomingLabels:
        problems: list[str] = []
        stated: dict[labels.Key, tuple[int, LabelEvent]] = {}
        seen: dict[labels.Key, int] = {}
        for line, row in rows:
            try:
                uid = self._uid(row)
                for event in self._events(uid, row):
                    before = stated.setdefault(event.key, (line, event))
                    if before[1].value != event.value:
                        raise UnusableInputError(f"{event.field} differs from line {before[0]}.")
                    if row.get(SEEN):
                        seen[event.key] = int(row[SEEN])
            except (UnusableInputError, *DAMAGE) as error:
                problems.append(f"Line {line}: {error}")
        problems += self._overtaken(stated, seen)
        if problems:
            raise _refuse(self.path, problems, len(rows))
        events = [event for _, event in stated.values()]
        new = [e for e in events if not self._known(e, e.key in seen)]
        meant = {"uid", "episode", "take", SEEN, *FIELDS, *ABOUT, *_ROW_COLUMNS}
        ignored = tuple(name for name in self.columns if name not in meant)
        return IncomingLabels(tuple(new), False, len(events) - len(new), ignored)

    @cached_property
    def _uids(self) -> dict[str, str]:
        """Return what a row may call a take, its uid or its index, to its uid."""
        by_index = "uid" not in self.columns
        return {str(e.index) if by_index else e.info.uid: e.info.uid for e in self.folder.episodes}

    def _uid(self, row: Mapping[str, str]) -> str:
        name = row.get("uid" if "uid" in self.columns else self._index_column, "")
        if name not in self._uids:
            raise UnusableInputError(f"{self.folder.root} has no {self.folder.what} {name!r}.")
        return self._uids[name]

    @property
    def _index_column(self) -> str:
        return "episode" if "episode" in self.columns else "take"

    def _events(self, uid: str, row: Mapping[str, str]) -> Iterable[LabelEvent]:
        for name in FIELDS:
            if row.get(name):
                value = parse_cell(name, row[name])
                yield _filled(replace(self.template, uid=uid, field=name, value=value), row)

    def _overtaken(
        self, stated: Mapping[labels.Key, tuple[int, LabelEvent]], seen: Mapping[labels.Key, int]
    ) -> list[str]:
        """Say which labels somebody changed since the file was exported."""
        about = by_uid(self.folder.events)
        standing = labels.standing(self.folder.events)
        problems = []
        for key, count in seen.items():
            line, event = stated[key]
            late = [e for e in about.get(event.uid, ())[count:] if e.field == event.field]
            now = standing.get(key)
            if late and now is not None and now.value != event.value:
                problems.append(
                    f"Line {line}: {event.field} is {event.value!r} here, but {now.author} said "
                    f"{now.value!r} since the export. Export again, or empty the row's "
                    f"{SEEN} cell to overrule that."
                )
        return problems

    def _known(self, event: LabelEvent, exported: bool) -> bool:
        """Say whether a cell says nothing new: as exported, or said by that author already."""
        if event.author not in self._own:
            self._own[event.author] = self._standing_of(event.author)
        own = self._own[event.author].get(event.key)
        if own is not None and (own.value, own.source) == (event.value, event.source):
            return True
        return exported and bool(self._values[event.key] == event.value)

    def _standing_of(self, author: str) -> dict[labels.Key, LabelEvent]:
        return labels.standing(e for e in self.folder.events if e.author == author)

    @cached_property
    def _own(self) -> dict[str, dict[labels.Key, LabelEvent]]:
        """Author to what stands of their own words."""
        return {}

    @cached_property
    def _values(self) -> dict[labels.Key, Any]:
        said = labels.standing(self.folder.events)
        every = self.folder.episodes
        return {(e.info.uid, name): value_of(e, name, said) for e in every for name in FIELDS}


def parse_cell(name: str, text: str) -> Any:
    """Return the value that a cell holds.

    Raises:
        UnusableInputError: it can't be read.
    """
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


def _filled(event: LabelEvent, row: Mapping[str, str]) -> LabelEvent:
    """Return an event with what its row says about author, source, confidence and note."""
    given = _texts(row, "author", "source", "note")
    if row.get("confidence"):
        given["confidence"] = float(row["confidence"])
    return replace(event, **given)


def _texts(row: Mapping[str, str], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name)}


def _read_events(
    folder: FolderLabels,
    path: Path,
    rows: Sequence[tuple[int, dict[str, str]]],
    template: LabelEvent,
) -> IncomingLabels:
    uids = {e.info.uid for e in folder.episodes}
    events, problems = [], []
    for line, row in rows:
        try:
            if row["uid"] not in uids:
                raise UnusableInputError(f"{folder.root} has no {folder.what} {row['uid']!r}.")
            value = parse_json(row["value"]) if row["field"] == "dimensions" else row["value"]
            stated = replace(template, uid=row["uid"], field=row["field"], value=value)
            events.append(replace(_filled(stated, row), **_texts(row, "at", "retracts")))
        except (UnusableInputError, *DAMAGE) as error:
            problems.append(f"Line {line}: {error}")
    if problems:
        raise _refuse(path, problems, len(rows))
    have = {event.to_line() for event in folder.events}
    new = tuple(event for event in events if event.to_line() not in have)
    ignored = tuple(n for n in (rows[0][1] if rows else {}) if n not in EVENT_COLUMNS)
    return IncomingLabels(new, True, len(events) - len(new), ignored)
