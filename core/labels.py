"""Label events: append-only, keyed by the take's uid, with a precedence of sources.

The current value of a field is the newest event of its highest source: an engineer's word
stands above an operator's, and that above an automatic suggestion, whenever each was said.
Within one file, newer is what stands further down, whatever the clocks said; `merge` brings
files together by time without changing the order of any.
"""

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from gaploop.core import files, vocabulary
from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.paths import refuse_link

SOURCES: Final = ("auto", "operator", "engineer")
"""Who says so, in rising order of precedence."""

FIELDS: Final = ("outcome", "failure_mode", "phase", "dimensions", "discard_reason")

TAGS: Final = (
    "kind", "domain", "conditions", "session", "operator", "station", "calibration", "policy",
    "plan", "units",
)  # fmt: skip
"""What an episode was recorded with; said again where it was noted wrongly (`gaploop edit
retag`)."""

NOTHING_SAID: Final[dict[str, Any]] = {
    "outcome": vocabulary.Outcome.UNLABELLED.value,
    "failure_mode": "",
    "phase": "",
    "dimensions": {},
    "discard_reason": "",
    **dict.fromkeys(TAGS, ""),
    "kind": vocabulary.TakeKind.DEMONSTRATION.value,
    "domain": vocabulary.Domain.REAL.value,
    "conditions": {},
}
"""What each field is while nobody has said anything."""

_WORDS: Final[Mapping[str, type[StrEnum]]] = {
    "outcome": vocabulary.Outcome,
    "failure_mode": vocabulary.FailureMode,
    "phase": vocabulary.Phase,
    "kind": vocabulary.TakeKind,
    "domain": vocabulary.Domain,
}
"""Fields that hold a word of the vocabulary; mode and phase may be empty."""

type Key = tuple[str, str]
"""A take's uid and a field."""


@dataclass(frozen=True)
class LabelEvent:
    """One statement about one field of one take, or one taken back.

    Attributes:
        field: one of `FIELDS` or `TAGS`.
        value: a name of the vocabulary; for `dimensions` a mapping of dimension to weight, for
            `conditions` of name to value, for other tags text.
        source: one of `SOURCES`.
        at: ISO 8601 time, UTC; now unless given. Events of one act share it.
        confidence: 0 to 1, as far as the source states one.
        retracts: `at` of an event of this uid, field, author and source that this one takes
            back; "" for a statement.

    Raises:
        UnusableInputError: a word that doesn't exist, a number out of range, or no time.
    """

    uid: str
    field: str
    value: Any
    author: str
    source: str
    at: str = ""
    confidence: float = 1.0
    note: str = ""
    retracts: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise unknown_choice("label source", self.source, SOURCES)
        if self.field not in FIELDS + TAGS:
            raise unknown_choice("label field", self.field, FIELDS + TAGS)
        if not isinstance(self.uid, str) or not isinstance(self.author, str):
            raise UnusableInputError(f"uid {self.uid!r} and author {self.author!r} must be text.")
        if self.field == "dimensions":
            check_dimensions(self.value, "label")
        elif self.field == "conditions":
            if not isinstance(self.value, Mapping) or not all(
                isinstance(key, str) for key in self.value
            ):
                raise UnusableInputError(
                    f"label: conditions must map names to values, got {self.value!r}."
                )
        elif not isinstance(self.value, str):
            raise UnusableInputError(f"label: {self.field} must be text, got {self.value!r}.")
        elif self.field in _WORDS:
            _check_word(self.field, self.value)
        if type(self.confidence) not in (int, float) or not 0 <= self.confidence <= 1:
            raise UnusableInputError(f"Confidence {self.confidence!r} must be in [0, 1].")
        if not self.at:
            object.__setattr__(self, "at", now())
        instant(self.at)

    @property
    def key(self) -> Key:
        """What it is about."""
        return self.uid, self.field

    @property
    def rank(self) -> int:
        """Its source's precedence, 0 for the lowest."""
        return SOURCES.index(self.source)

    def to_line(self) -> str:
        """Return its line in a `labels.jsonl`, without a line break."""
        value = dict(vars(self))
        if not self.retracts:
            del value["retracts"]
        return json.dumps(value)


def now() -> str:
    """Return the time as events carry it."""
    return datetime.now(UTC).isoformat()


def instant(at: str) -> datetime:
    """Return an event's time, ISO 8601, UTC without a zone, or raise UnusableInputError."""
    try:
        value = datetime.fromisoformat(at)
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
        value.astimezone(UTC)  # the first and last day of all can't be compared with others
    except (TypeError, ValueError, OverflowError):
        raise UnusableInputError(
            f"Time {at!r} is not ISO 8601. Write it as 2026-11-22T08:15:00+00:00."
        ) from None
    return value


@cache
def _check_word(name: str, value: str) -> None:
    words = [word.value for word in _WORDS[name]]
    if value not in words and (value or name not in ("failure_mode", "phase")):
        raise unknown_choice(name.replace("_", " "), value, words, "label")


def check_dimensions(value: Mapping[str, float], where: str) -> None:
    """Check a mapping of gap dimension to weight in [0, 1].

    Raises:
        UnknownChoiceError: a dimension that doesn't exist.
        UnusableInputError: a weight outside [0, 1], or not a mapping at all.
    """
    if not isinstance(value, Mapping):
        raise UnusableInputError(f"{where}: dimensions must map names to weights, got {value!r}.")
    for name, weight in value.items():
        vocabulary.dimension(name, where)
        if not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise UnusableInputError(f"{where}: weight {weight!r} of {name} must be in [0, 1].")


def append(path: Path, *events: LabelEvent, create: bool = True) -> None:
    """Append events to a `labels.jsonl`, durably, all of them or none.

    Raises:
        UnusableInputError: the file is a link.
        FileNotFoundError: there is no file, and it isn't to be made.
        OSError: they can't be written.
    """
    refuse_link(path)
    files.append_lines(path, [event.to_line() for event in events], create)


def insert(path: Path, *events: LabelEvent, create: bool = True) -> None:
    """Put events of another log among those of a `labels.jsonl` as `merge` does, all or none.

    Raises:
        UnusableInputError: a line of the file can't be read; and as `append`.
    """
    refuse_link(path)
    with files.locked_stream(path, create) as stream:
        lines = [event.to_line() for event in merge(read(path), events)]
        files.rewrite_locked(stream, path, "".join(f"{line}\n" for line in lines))


def read(path: Path) -> Iterator[LabelEvent]:
    """Yield the events of a `labels.jsonl` in order; none if the file doesn't exist.

    A torn last line (a kill while appending) is passed over.

    Raises:
        UnusableInputError: another line can't be read.
    """
    yield from files.json_lines(path, "a label event", _event)


def readable(path: Path) -> list[LabelEvent]:
    """Return the events of a `labels.jsonl` that can be read; damaged lines are passed over."""
    found = []
    for line in files.read_content(path).split(b"\n") if path.exists() else ():
        with contextlib.suppress(UnusableInputError, *DAMAGE):
            found.append(LabelEvent(**files.parse_json(line)))
    return found


def _event(value: Any, where: str) -> LabelEvent:
    try:
        return LabelEvent(**value)
    except UnusableInputError as error:
        raise UnusableInputError(f"{where}: {error}") from None


def standing(events: Iterable[LabelEvent]) -> dict[Key, LabelEvent]:
    """Return the event that stands for each take and field, of events in the order of a file."""
    events = list(events)
    gone = _retracted(events)
    best: dict[Key, LabelEvent] = {}
    for event in events:
        if event.retracts or (gone and name(event) in gone):
            continue
        held = best.get(event.key)
        if held is None or event.rank >= held.rank:
            best[event.key] = event
    return best


def emptied(events: Iterable[LabelEvent]) -> set[Key]:
    """Return the takes and fields about which all that was said is taken back."""
    events = list(events)
    return {event.key for event in events} - set(standing(events))


def current(events: Iterable[LabelEvent]) -> dict[str, dict[str, Any]]:
    """Return uid → field → value that stands, of events in the order of a file."""
    result: dict[str, dict[str, Any]] = {}
    for (uid, field), event in standing(events).items():
        result.setdefault(uid, {})[field] = event.value
    return result


def merge(*logs: Iterable[LabelEvent]) -> list[LabelEvent]:
    """Bring the events of several files into one order, each event once.

    By time, but what one file says about a take keeps its order: where a clock stepped back, an
    event counts as late as the latest before it about the same take. So merging is associative,
    and as long as no two events of different files have one time, it doesn't matter which file
    is first.
    """
    timed: list[tuple[datetime, LabelEvent]] = []
    for events in logs:
        latest: dict[str, datetime] = {}
        for event in events:
            time = instant(event.at)
            latest[event.uid] = max(latest.get(event.uid, time), time)
            timed.append((latest[event.uid], event))
    timed.sort(key=lambda pair: pair[0])
    return list({event.to_line(): event for _, event in timed}.values())


def last_act(events: Sequence[LabelEvent], author: str) -> list[LabelEvent]:
    """Return what an author said last, all of one act, unless it is taken back already."""
    gone = _retracted(events)
    said = [e for e in events if e.author == author and not e.retracts and name(e) not in gone]
    return [e for e in said if (e.source, e.at) == (said[-1].source, said[-1].at)]


def retraction(event: LabelEvent, at: str = "", note: str = "") -> LabelEvent:
    """Return the event that takes `event` back."""
    return replace(event, at=at, note=note, retracts=event.at)


def name(event: LabelEvent) -> tuple[str, ...]:
    """Return what names a statement; what takes it back has the same name."""
    return event.uid, event.field, event.author, event.source, event.retracts or event.at


def is_about(line: bytes, uids: Collection[str]) -> bool:
    """Say whether a line of JSON is about one of these takes; a torn line is about none."""
    try:
        value = files.parse_json(line)
    except ValueError:
        return False
    uid = value.get("uid") if isinstance(value, dict) else None
    return isinstance(uid, str) and uid in uids


def _retracted(events: Iterable[LabelEvent]) -> set[tuple[str, ...]]:
    return {name(event) for event in events if event.retracts}
