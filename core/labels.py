"""Label events: append-only, keyed by the take's uid, with a precedence of sources.

The current value of a field is the newest event of its highest source: an engineer's word
stands above an operator's, and that above an automatic suggestion, whenever each was said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import append_line, json_lines

SOURCES: Final = ("auto", "operator", "engineer")
"""Who says so, in rising order of precedence."""

FIELDS: Final = ("outcome", "failure_mode", "phase", "dimensions", "discard_reason")


@dataclass(frozen=True)
class LabelEvent:
    """One statement about one field of one take.

    Attributes:
        uid: the take's uid.
        field: one of `FIELDS`.
        value: a name of the vocabulary; for `dimensions` a mapping of dimension to weight.
        author: who said it.
        source: one of `SOURCES`.
        at: ISO 8601 time, UTC.
        confidence: 0 to 1, as far as the source states one.
    """

    uid: str
    field: str
    value: Any
    author: str
    source: str
    at: str = ""
    confidence: float = 1.0
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise unknown_choice("label source", self.source, SOURCES)
        if self.field not in FIELDS:
            raise unknown_choice("label field", self.field, FIELDS)
        _check_value(self.field, self.value)
        if not self.at:
            object.__setattr__(self, "at", datetime.now(UTC).isoformat())


def _check_value(name: str, value: Any) -> None:
    if name == "outcome":
        vocabulary.outcome(value, "label")
    elif name == "failure_mode" and value:
        vocabulary.failure_mode(value, "label")
    elif name == "phase" and value and value not in list(vocabulary.Phase):
        raise unknown_choice("phase", value, [p.value for p in vocabulary.Phase], "label")
    elif name == "dimensions":
        check_dimensions(value, "label")


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


def append(path: Path, event: LabelEvent) -> None:
    """Append one event to a `labels.jsonl`, durably."""
    append_line(path, json.dumps(asdict(event)))


def read(path: Path) -> Iterator[LabelEvent]:
    """Yield the events of a `labels.jsonl` in order; none if the file doesn't exist.

    A torn last line (a kill while appending) is passed over.

    Raises:
        UnusableInputError: another line can't be read.
    """
    yield from json_lines(path, "a label event", lambda value, _where: LabelEvent(**value))


def current(events: Iterable[LabelEvent]) -> dict[str, dict[str, Any]]:
    """Return uid → field → value that stands now."""
    best: dict[tuple[str, str], tuple[int, str, Any]] = {}
    for event in events:
        rank = (SOURCES.index(event.source), event.at)
        key = (event.uid, event.field)
        if key not in best or rank >= best[key][:2]:
            best[key] = (*rank, event.value)
    result: dict[str, dict[str, Any]] = {}
    for (uid, name), (_, _, value) in best.items():
        result.setdefault(uid, {})[name] = value
    return result
