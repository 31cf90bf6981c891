"""What a query may ask about episodes: the names, what each means, and their values by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final

import pyarrow as pa

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.vocabulary import (
    CONDITIONS,
    Domain,
    FailureMode,
    GapDimension,
    Outcome,
    Phase,
    TakeKind,
)
from gaploop.datasets.layout import EpisodeRow


class Kind(StrEnum):
    """How a field's values compare."""

    WORD = "word"
    """A word of the vocabulary; compared with == and in."""
    TEXT = "text"
    NUMBER = "number"
    NAMES = "names"
    """A list of names, for `name in dimensions`."""
    CONDITION = "condition"
    """A number, text or list as it was set; nothing where it wasn't."""


@dataclass(frozen=True)
class FieldSpec:
    """One name of the query language.

    Attributes:
        kind: how its values compare.
        means: what it is, for documentation.
        words: for `Kind.WORD`, the words there are.
        optional: an episode may have none, so that the bare name can be asked for.
    """

    kind: Kind
    means: str
    words: frozenset[str] = frozenset()
    optional: bool = False


def _word(means: str, words: type[StrEnum], optional: bool = False) -> FieldSpec:
    return FieldSpec(Kind.WORD, means, frozenset(words), optional)


_INFO_TEXTS: Final = {
    "uid": "the take's uid",
    "task": "the instruction",
    "session": "the recording session",
    "operator": "who drove",
    "station": "the station",
    "calibration": "the calibration's id",
    "policy": "the policy that drove; none for a person",
    "plan": "the plan item it was recorded for",
    "consent": "the participant's consent id",
    "units": "units of action and state",
    "robot_type": "LeRobot's name of the robot",
}
"""Fields of `TakeInfo` that are texts."""

FIELDS: Final[dict[str, FieldSpec]] = {
    "outcome": _word("how it ended", Outcome),
    "failure_mode": _word("what was seen when it failed", FailureMode, optional=True),
    "phase": _word("when it failed", Phase, optional=True),
    "dimensions": FieldSpec(Kind.NAMES, "the gap dimensions it is tagged with", optional=True),
    "kind": _word("what it is for", TakeKind),
    "domain": _word("where it was recorded", Domain),
    **{name: FieldSpec(Kind.TEXT, means, optional=True) for name, means in _INFO_TEXTS.items()},
    "date": FieldSpec(Kind.TEXT, "day it was recorded, YYYY-MM-DD, UTC", optional=True),
    "episode": FieldSpec(Kind.NUMBER, "its index; in a journal its place, oldest first from 0"),
    "length": FieldSpec(Kind.NUMBER, "number of frames"),
    "duration_s": FieldSpec(Kind.NUMBER, "length in seconds"),
    **{
        d.value: FieldSpec(Kind.NUMBER, "weight of that dimension, 0 where untagged", optional=True)
        for d in GapDimension
    },
}
"""Every name but those of conditions."""

CONDITION: Final = FieldSpec(Kind.CONDITION, "what was set", optional=True)


@dataclass(frozen=True)
class Facts:
    """What is known about some episodes, one column at a time.

    Attributes:
        count: number of episodes.
        column: from one of `FIELDS` to its values, shape (count,).
        conditions: each episode's conditions, made when asked for.
    """

    count: int
    column: Callable[[str], Sequence[Any]]
    conditions: Callable[[], Sequence[Mapping[str, Any]]]

    def condition_names(self) -> set[str]:
        """Return the conditions one may ask for: those of the vocabulary and those set here."""
        return set(CONDITIONS).union(*(set(c) for c in self.conditions()))

    @classmethod
    def of_episodes(cls, episodes: Sequence[EpisodeRow]) -> Facts:
        """Return the facts of episodes in memory."""

        def column(name: str) -> Sequence[Any]:
            if name in GapDimension:
                return [float(e.info.dimensions.get(name, 0.0)) for e in episodes]
            return [_OF_EPISODE[name](e) for e in episodes]

        return cls(len(episodes), column, lambda: [e.info.conditions for e in episodes])

    @classmethod
    def of_table(cls, table: pa.Table, fps: float, robot_type: str = "") -> Facts:
        """Return the facts of rows of `meta/episodes`, without making an object for each.

        Args:
            table: with LeRobot's columns and the gap columns.
            fps: the dataset's frame rate [Hz].
            robot_type: LeRobot's name of its robot.

        Raises:
            UnusableInputError: when asked for a column that the table doesn't have.
        """

        @cache
        def read(name: str) -> list[Any]:
            if name not in table.column_names:
                raise UnusableInputError(
                    f"The episodes have no column {name}, which the query needs. Add gap columns "
                    "with: gaploop import DIR --format=lerobot --output_dir=OUT"
                )
            values: list[Any] = table[name].to_pylist()
            return values

        def column(name: str) -> Sequence[Any]:
            if name in GapDimension:
                pairs = zip(read("gap_dimensions"), read("gap_dimension_weights"), strict=True)
                return [dict(zip(n, w, strict=True)).get(name, 0.0) for n, w in pairs]
            if name in _OF_ROWS:
                return _OF_ROWS[name](read)
            if name == "duration_s":
                return [n / fps for n in read("length")]
            return [robot_type] * len(table) if name == "robot_type" else read(f"gap_{name}")

        @cache
        def parsed(text: str) -> Mapping[str, Any]:
            value = parse_json(text or "{}")
            return value if isinstance(value, Mapping) else {}

        return cls(len(table), column, lambda: [parsed(c) for c in read("gap_conditions")])


def _day(t0_ns: int) -> str:
    """Return the day of a time [ns since 1970], "" where it is unknown."""
    return datetime.fromtimestamp(t0_ns / 1e9, UTC).date().isoformat() if t0_ns > 0 else ""


def _info(name: str) -> Callable[[EpisodeRow], str]:
    return lambda episode: str(getattr(episode.info, name))


_OF_EPISODE: Final[dict[str, Callable[[EpisodeRow], Any]]] = {
    "outcome": lambda e: e.outcome.value,
    "failure_mode": lambda e: e.failure_mode,
    "phase": lambda e: e.phase,
    "dimensions": lambda e: list(e.info.dimensions),
    "kind": lambda e: e.info.kind.value,
    "domain": lambda e: e.info.domain.value,
    **{name: _info(name) for name in _INFO_TEXTS},
    "date": lambda e: _day(e.info.t0_ns),
    "episode": lambda e: e.index,
    "length": lambda e: e.length,
    "duration_s": lambda e: e.length / e.info.fps,
}

_OF_ROWS: Final[dict[str, Callable[[Callable[[str], list[Any]]], Sequence[Any]]]] = {
    "task": lambda read: [(tasks or [""])[0] for tasks in read("tasks")],
    "date": lambda read: [_day(t) for t in read("gap_t0_ns")],
    "episode": lambda read: read("episode_index"),
    "length": lambda read: read("length"),
}
