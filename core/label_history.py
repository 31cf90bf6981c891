"""Who said what about a take, and why it counts or doesn't."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC

from gaploop.core import labels
from gaploop.core.labels import LabelEvent


@dataclass(frozen=True)
class Said:
    """One event of a history.

    Attributes:
        event: what was said, or taken back.
        counts: it is the value that stands.
        why: why it counts or doesn't, in words.
    """

    event: LabelEvent
    counts: bool
    why: str


def history(events: Iterable[LabelEvent]) -> list[Said]:
    """Return what was said, in order, with what became of it."""
    events = list(events)
    stands = labels.standing(events)
    taken_back = {labels.name(e): e for e in events if e.retracts}
    of_key: dict[labels.Key, list[LabelEvent]] = {}
    for event in events:
        if not event.retracts and labels.name(event) not in taken_back:
            of_key.setdefault(event.key, []).append(event)
    return [_said(e, stands.get(e.key), of_key.get(e.key, []), taken_back) for e in events]


def _said(
    event: LabelEvent,
    stands: LabelEvent | None,
    rivals: Sequence[LabelEvent],
    taken_back: dict[tuple[str, ...], LabelEvent],
) -> Said:
    if event.retracts:
        return Said(event, False, f"takes back what {event.author} said at {_time(event.retracts)}")
    back = taken_back.get(labels.name(event))
    if back is not None:
        return Said(event, False, f"taken back at {_time(back.at)}")
    if event is stands:
        return Said(event, True, _reason(event, rivals))
    if stands is None:  # nothing else was said: then it would stand itself
        return Said(event, False, "")
    if stands.rank > event.rank:
        who = f"{stands.author} ({stands.source})"
        return Said(event, False, f"{who} stands above {_word(event.source)}")
    return Said(event, False, f"replaced by {stands.author} at {_time(stands.at)}")


def _reason(event: LabelEvent, rivals: Sequence[LabelEvent]) -> str:
    if len(rivals) == 1:
        return "the only word"
    equals = [e for e in rivals if e.rank == event.rank]
    newest = "newest " if len(equals) > 1 else ""
    lower = any(e.rank < event.rank for e in rivals)
    return (
        f"the {newest}word of the highest source ({event.source})" if lower else "the newest word"
    )


def _word(source: str) -> str:
    return "an automatic word" if source == labels.SOURCES[0] else f"an {source}'s word"


def _time(at: str) -> str:
    return f"{labels.instant(at).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
