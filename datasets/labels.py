"""The labels of a dataset's or journal's takes: what was said about them, saying more, and queries.

Labels are events in a `labels.jsonl` (`core.labels` defines and writes its lines). The console
appends to a journal's while it records; the shell and the review page go through `LabelStore`,
which is the same for journals and datasets. A dataset's episode columns show what stands.

A query chooses episodes: `field=value` or `field!=value`, or several of them, separated by spaces,
which must all hold. Values separated by commas are alternatives. `none` stands for nothing said.
What has spaces or commas in it is quoted: `outcome=failure lighting=dim,dark`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gaploop.core import journal_format, labels, vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import existing_folder, make_folder
from gaploop.core.journal_format import is_journal, read_end, read_header, take_folders
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.layout import EpisodeRow, is_dataset, parse_episodes

NUMBERS: Final = re.compile(r"-?\d{1,7}|-?\d*:-?\d*")
"""An episode's number, or a range of them, as opposed to a uid."""


def open_labelled(root: Path) -> LabelStore:
    """Read what a dataset or journal holds and what was said about it.

    Raises:
        UnusableInputError: neither is there, or a file is damaged.
    """
    root = existing_folder(Path(root), "Folder").resolve()  # "." has no folder beside it
    if is_dataset(root):
        recorded = tuple(layout.read_episodes(layout.read_info(root)))
        # Events are read after the columns: see `LabelStore.write`.
        return LabelStore(root, False, recorded, labels.read(root / layout.LABELS))
    if is_journal(root):
        folders = take_folders(root)
        events = list(labels.read(root / journal_format.LABELS))
        takes = []
        for index, folder in enumerate(folders):
            info, end = read_header(folder).info, read_end(folder)
            frames, outcome = (end.frames, end.outcome) if end else (0, Outcome.INTERRUPTED)
            takes.append(EpisodeRow(index, frames, info, outcome, "", "", row={}))
        return LabelStore(root, True, tuple(takes), events)
    raise UnusableInputError(
        f"{root} holds neither episodes nor a dataset. Name a journal (folders with take.json) or "
        "a LeRobot dataset (meta/info.json)."
    )


class LabelStore:
    """The takes of one dataset or journal with everything that was said about them.

    What it knows is what was there when it was opened, until `refresh` is called. Writing needs
    no fresh knowledge: events are only ever added.

    Attributes:
        recorded: its episodes as they are written down: a journal's as they were sealed, numbered
            from 0, oldest first; a dataset's as its columns show them.
        episodes: `recorded` with the labels that stood when it was opened.
    """

    def __init__(
        self,
        root: Path,
        journal: bool,
        recorded: tuple[EpisodeRow, ...],
        events: Iterable[LabelEvent],
    ) -> None:
        self.root, self.journal, self.recorded = root, journal, recorded
        self._said = list(events)
        self._unsaved: dict[str, LabelEvent] = {}
        self._lines: dict[str, LabelEvent] = {}  # as `refresh` read them, so that none counts twice
        self._stamp: tuple[int, ...] = (-1,)  # of the file as `refresh` read it last
        self._index()
        said = (labels.current if journal else episodes_table.label_values)(self._said)
        episodes = []
        for episode in recorded:
            about = said.get(episode.info.uid, {})
            words: dict[str, Any] = {}
            words |= {name: about[name] for name in ("failure_mode", "phase") if name in about}
            if "outcome" in about:
                words["outcome"] = Outcome(about["outcome"])
            if "dimensions" in about:
                words["info"] = replace(episode.info, dimensions=dict(about["dimensions"]))
            episodes.append(replace(episode, **words))
        self.episodes = tuple(episodes)

    @property
    def file(self) -> Path:
        """Where its label events are."""
        return self.root / (journal_format.LABELS if self.journal else layout.LABELS)

    @property
    def what(self) -> str:
        """What one of its takes is called."""
        return "take" if self.journal else "episode"

    @property
    def events(self) -> list[LabelEvent]:
        """Every event, in order; those that aren't on disk yet come last."""
        return [*self._said, *self._unsaved.values()]

    def about(self, uid: str) -> Sequence[LabelEvent]:
        """Return what was said about a take, in order."""
        return self._of_take.get(uid, ())

    def select(self, text: str) -> list[EpisodeRow]:
        """Return the episodes that a text names, in order of index.

        Args:
            text: as `parse_episodes` reads it, with uids or their beginnings among the numbers.

        Raises:
            UnusableInputError: one isn't there, or a beginning names several.
        """
        by_index = {e.index: e for e in self.episodes}
        names = [name.strip() for name in text.strip().strip("[]").split(",")]
        numbers = [name for name in names if NUMBERS.fullmatch(name)]
        wanted = set(parse_episodes(",".join(numbers), len(by_index))) if numbers else set()
        for uid in (name for name in names if name not in numbers):
            found = [e.index for e in self.episodes if e.info.uid == uid]
            found = found or [e.index for e in self.episodes if uid and e.info.uid.startswith(uid)]
            if len(found) != 1:
                many = f"{len(found)} uids begin so; give more of it" if found else "no such uid"
                raise UnusableInputError(
                    f"--episodes={uid}: {many}. See what there is: gaploop label {self.root}"
                )
            wanted.add(found[0])
        return [by_index[index] for index in sorted(wanted)]

    # Saying more

    def say(self, new: Sequence[LabelEvent]) -> bool:
        """Write events durably, all of them or none; then show them in a dataset's columns.

        They are written at once, also while the dataset is being published to or edited: whoever
        changes it takes them over. Without events it shows what columns lack of earlier ones.

        Returns:
            Whether the columns show it; where another process changes the dataset for longer than
            `staging.LOCK_WAIT_S`, they do so from the next label or publication on.

        Raises:
            UnusableInputError: the folder can't be written.
            OSError: there is no room.
        """
        if new:
            self.write(new)
        if self.journal:
            return True
        uids = {event.uid for event in new} | self.stale()
        return self.show(uids) if uids else True

    def stale(self) -> set[str]:
        """Return the takes whose columns don't show their labels: who said so died, or waited."""
        said = {} if self.journal else episodes_table.label_values(self.events)
        return {
            e.info.uid
            for e in self.episodes
            if e.info.uid in said and episodes_table.apply_labels(e.row, said[e.info.uid]) != e.row
        }

    def write(self, new: Sequence[LabelEvent], known: Sequence[LabelEvent] | None = None) -> None:
        """Write events durably, all of them or none, as the first half of `say`.

        Args:
            known: every event that was said before; `events` where None.

        Raises:
            UnusableInputError: the folder can't be written.
            OSError: there is no room.
        """
        if self.journal:
            labels.append(self.file, *new)
            return
        staging.require_writable(self.root)  # first: locks are beside it
        uids = {event.uid for event in new}
        # The columns as they were before the events were read: a label that they show is in those.
        rows = [e.row for e in self.episodes if e.info.uid in uids]
        before = episodes_table.bases(rows, new, self.events if known is None else known)
        try:
            labels.append(self.file, *before, *new, create=False)
        except FileNotFoundError:  # the first label of all: nobody may trade folders meanwhile
            with staging.locked(self.root):
                staging.recover(self.root)
                make_folder(self.file.parent)
                labels.append(self.file, *before, *new)

    def show(self, uids: Set[str]) -> bool:
        """Show in a dataset's columns what was written about some takes; the rest of `say`.

        Return False where another process changes the dataset for too long.
        """
        try:
            with staging.locked(self.root):
                staging.recover(self.root)
                episodes_table.materialise(self.root, {}, uids)
        except staging.BusyError:
            return False
        return True

    @cached_property
    def lacks_columns(self) -> bool:
        """Whether it is a dataset without gap columns yet."""
        return not self.journal and not all(e.row.get("gap_uid") for e in self.episodes)

    def add_columns(self) -> LabelStore:
        """Give a dataset that was recorded elsewhere gap columns; return it as it is then.

        Without them its episodes have no uid of their own that a label could name. Killed at any
        instant, the dataset is the old one or the new one.
        """
        with staging.locked(self.root):
            staging.recover(self.root)
            known = layout.read_episodes(layout.read_info(self.root))
            stage = staging.sibling(self.root, "staging")
            staging.clone(self.root, stage)
            rows = {e.index: columns.default_row(e.info, e.outcome) for e in known}
            episodes_table.materialise(stage, rows)
            staging.commit(stage, self.root)
        return open_labelled(self.root)

    # What is said meanwhile

    def take_in(self, events: Iterable[LabelEvent]) -> None:
        """Know of events that are about to be written."""
        for event in events:
            self._unsaved[event.to_line()] = event
            self._of_take.setdefault(event.uid, []).append(event)

    def refresh(self) -> set[str]:
        """Take in what was written meanwhile, also by others; return the takes it is about.

        Lines that can't be read are passed over: whoever opened the folder was told of them.

        Raises:
            OSError: the file can't be read.
        """
        stamp: tuple[int, ...] = ()
        with contextlib.suppress(FileNotFoundError):
            found = self.file.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return set()
        lines = {event.to_line(): event for event in labels.readable(self.file)}
        for line in lines:
            self._unsaved.pop(line, None)
        changed = {event.uid for line, event in lines.items() if line not in self._lines}
        if list(lines)[: len(self._lines)] != list(self._lines):
            changed |= set(self._of_take)  # lines were put between: labels of another log
        self._stamp, self._lines, self._said = stamp, lines, list(lines.values())
        self._index()
        return changed

    def _index(self) -> None:
        self._of_take: dict[str, list[LabelEvent]] = {}
        for event in self.events:
            self._of_take.setdefault(event.uid, []).append(event)


def value_of(episode: EpisodeRow, name: str, said: Mapping[labels.Key, LabelEvent]) -> Any:
    """Return what stands about one label field of a take."""
    if name == "dimensions":
        return dict(episode.info.dimensions)
    if name == "discard_reason":
        event = said.get((episode.info.uid, name))
        return event.value if event else ""
    return str(getattr(episode, name))


def repeats(event: LabelEvent, before: LabelEvent | None) -> bool:
    """Say whether an author says what they said last, in the same way."""
    return before is not None and replace(before, at=event.at) == event


@dataclass(frozen=True)
class HistoryEntry:
    """One event of a history: whether it is the value that stands, and why, in words."""

    event: LabelEvent
    counts: bool
    why: str


def history(events: Iterable[LabelEvent]) -> list[HistoryEntry]:
    """Return what was said, in order, with what became of it."""
    events = list(events)
    standing = labels.standing(events)
    retracted = {labels.name(e): e for e in events if e.retracts}
    rivals: dict[labels.Key, list[LabelEvent]] = {}
    for event in events:
        if not event.retracts and labels.name(event) not in retracted:
            rivals.setdefault(event.key, []).append(event)
    entries = []
    for event in events:
        stands, back = standing.get(event.key), retracted.get(labels.name(event))
        if event.retracts:
            why = f"takes back what {event.author} said at {_time(event.retracts)}"
        elif back is not None:
            why = f"taken back at {_time(back.at)}"
        elif event is stands:
            others = rivals[event.key]
            why = "the only label" if len(others) == 1 else "the newest label"
            if any(e.rank < event.rank for e in others):
                newest = "newest " if sum(e.rank == event.rank for e in others) > 1 else ""
                why = f"the {newest}label of the highest source ({event.source})"
        elif stands is None:  # nothing else was said: then it would stand itself
            why = ""
        elif stands.rank > event.rank:
            auto = event.source == labels.SOURCES[0]
            whose = "an automatic" if auto else f"an {event.source}'s"
            why = f"{stands.author} ({stands.source}) overrides {whose} label"
        else:
            why = f"replaced by {stands.author} at {_time(stands.at)}"
        counts = event is stands and not event.retracts and back is None
        entries.append(HistoryEntry(event, counts, why))
    return entries


def _time(at: str) -> str:
    return f"{labels.instant(at).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


NONE: Final = "none"
"""Stands for no failure mode, phase, dimension, text or condition."""
_ANYTHING: Final = frozenset[str]()
_TEXTS: Final = (
    "uid", "task", "session", "operator", "station", "calibration", "policy", "plan", "consent",
    "units", "robot_type",
)  # fmt: skip

FIELDS: Final[dict[str, frozenset[str]]] = {
    "outcome": frozenset(vocabulary.Outcome),
    "failure_mode": frozenset({*vocabulary.FailureMode, NONE}),
    "phase": frozenset({*vocabulary.Phase, NONE}),
    "dimensions": frozenset({*vocabulary.GapDimension, NONE}),
    "kind": frozenset(vocabulary.TakeKind),
    "domain": frozenset(vocabulary.Domain),
    "episode": _ANYTHING,  # in a journal its place, oldest first from 0
    "date": _ANYTHING,  # YYYY-MM-DD, UTC
    **dict.fromkeys(_TEXTS, _ANYTHING),
}
"""Every field but the conditions, with the values that it can have; empty: any."""

_QUOTED: Final = r"""'[^']*'|"[^"]*"|"""
_VALUE: Final = rf"""(?:{_QUOTED}[^\s,'"]+)"""
_PART: Final = re.compile(
    rf"""({_QUOTED}[^\s,'"=!<>]+)\s*(!?=)(?!=)\s*({_VALUE}(?:,\s*{_VALUE})*)(?:\s+|$)"""
)


@dataclass(frozen=True)
class Condition:
    """One part of a query: a field has one of these values, or, `negated`, none of them."""

    field: str
    values: frozenset[str]
    negated: bool

    def of_episode(self, episode: EpisodeRow) -> Collection[str]:
        """Return the field's values in an episode; never empty."""
        info = episode.info
        match self.field:
            case "date":
                return _words(_day(info.t0_ns))
            case "episode":
                return _words(episode.index)
            case "outcome" | "failure_mode" | "phase":
                return _words(getattr(episode, self.field))
        known = self.field in FIELDS
        return _words(getattr(info, self.field) if known else info.conditions.get(self.field))

    def allows(self, words: Collection[str]) -> bool:
        """Return whether the part holds for a field's values."""
        return self.values.isdisjoint(words) == self.negated


def _day(t0_ns: int) -> str:
    """Return the day of a time [ns since 1970], "" where it is unknown."""
    return datetime.fromtimestamp(t0_ns / 1e9, UTC).date().isoformat() if t0_ns > 0 else ""


def _words(value: Any) -> Collection[str]:
    """Return a value as it is written in a query: a list has several."""
    if isinstance(value, str):
        return (value or NONE,)
    many = value if isinstance(value, list | tuple | Mapping) else [value]
    words = {v if isinstance(v, str) else json.dumps(v) for v in many if v not in ("", None)}
    return words or {NONE}


def parse_query(
    text: str, conditions: Collection[str], option: str = "--where"
) -> tuple[Condition, ...]:
    """Return the parts of a query, which must all hold.

    Args:
        conditions: names of conditions that one may ask for, beside those of the vocabulary.
        option: where the query came from, for errors.

    Raises:
        UnusableInputError: it can't be understood; names the part, and the fields.
    """
    parts: list[Condition] = []
    fields = {*FIELDS, *vocabulary.CONDITIONS, *conditions}
    rest = text.strip()
    while rest or not parts:
        found = _PART.match(rest)
        if found is None:
            raise UnusableInputError(
                f"{option}, at '{rest[:40]}': write field=value, field!=value or field=this,that; "
                "several, separated by spaces, must all hold. Quote what has spaces in it. "
                f"Fields: {', '.join(sorted(fields))}"
            )
        name, sign, listed = found.groups()
        name = name.strip("'\"")
        if name not in fields:
            raise unknown_choice("field", name, fields, option)
        values = frozenset(v.strip("'\"") or NONE for v in re.findall(_VALUE, listed))
        choices = FIELDS.get(name, _ANYTHING)
        if choices and (unknown := sorted(values - choices)):
            raise unknown_choice(name.replace("_", " "), unknown[0], choices, option)
        parts.append(Condition(name, values, negated=sign == "!="))
        rest = rest[found.end() :]
    return tuple(parts)


def where(text: str, episodes: Sequence[EpisodeRow], option: str = "--where") -> list[int]:
    """Return the indices of the episodes that a query chooses, in the order given.

    Errors name the `option` that the query came from.

    Raises:
        UnusableInputError: the query can't be understood.
    """
    parts = parse_query(text, _condition_names(episodes), option)
    return [e.index for e in episodes if all(part.allows(part.of_episode(e)) for part in parts)]


def queried_values(text: str, episodes: Sequence[EpisodeRow]) -> dict[str, Counter[str]]:
    """Return each field that a query names with the values there are, to say why none matches."""
    parts = parse_query(text, _condition_names(episodes))
    return {p.field: Counter(w for e in episodes for w in p.of_episode(e)) for p in parts}


def _condition_names(episodes: Iterable[EpisodeRow]) -> set[str]:
    return {name for e in episodes for name in e.info.conditions}
