"""Choosing episodes by what is known about them: `outcome=failure lighting=dim,dark`.

A query is `field=value` or `field!=value`, or several of them, separated by spaces, which must all
hold. Values separated by commas are alternatives. `none` stands for nothing said. What has spaces
or commas in it is quoted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets.layout import EpisodeRow

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
