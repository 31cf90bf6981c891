"""Choosing episodes by what is known about them: `outcome==failure and contact_dynamics>0.5`.

The language is a small part of Python's expressions, parsed by `ast` and never evaluated by
Python: names of `FIELDS`, words, numbers, texts and lists; `== != < <= > >= in not in`; `and or
not` and brackets. A bare word beside a text field is that word, so `outcome==failure` needs no
quotes; beside a number it must be another number's name. A condition whose key isn't one word is
`conditions['key']`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Final

import pyarrow as pa

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import parse_json
from gaploop.core.vocabulary import GapDimension
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
    """One name of the query language: how its values compare, and for `Kind.WORD` which there are.

    Where it is `optional` an episode may have none, so that the bare name can be asked for.
    """

    kind: Kind
    words: frozenset[str] = frozenset()
    optional: bool = False


_INFO_TEXTS: Final = (
    "uid", "task", "session", "operator", "station", "calibration", "policy", "plan", "consent",
    "units", "robot_type",
)  # fmt: skip
"""Fields of `TakeInfo` that are texts."""

FIELDS: Final[dict[str, FieldSpec]] = {
    "outcome": FieldSpec(Kind.WORD, frozenset(vocabulary.Outcome)),
    "failure_mode": FieldSpec(Kind.WORD, frozenset(vocabulary.FailureMode), optional=True),
    "phase": FieldSpec(Kind.WORD, frozenset(vocabulary.Phase), optional=True),
    "dimensions": FieldSpec(Kind.NAMES, optional=True),
    "kind": FieldSpec(Kind.WORD, frozenset(vocabulary.TakeKind)),
    "domain": FieldSpec(Kind.WORD, frozenset(vocabulary.Domain)),
    **dict.fromkeys(_INFO_TEXTS, FieldSpec(Kind.TEXT, optional=True)),
    "date": FieldSpec(Kind.TEXT, optional=True),  # YYYY-MM-DD, UTC
    "episode": FieldSpec(Kind.NUMBER),  # in a journal its place, oldest first from 0
    "length": FieldSpec(Kind.NUMBER),  # frames
    "duration_s": FieldSpec(Kind.NUMBER),
    # The weight of that dimension, 0 where it isn't tagged.
    **{d.value: FieldSpec(Kind.NUMBER, optional=True) for d in GapDimension},
}
"""Every name but those of conditions."""

CONDITION: Final = FieldSpec(Kind.CONDITION, optional=True)


@dataclass(frozen=True)
class Facts:
    """What is known about some episodes, one column at a time.

    Attributes:
        column: from one of `FIELDS` to its values, shape (count,).
        conditions: each episode's conditions, made when asked for.
        known: names of conditions that one may ask for; those of the vocabulary and those that
            are set in these episodes if None.
    """

    count: int
    column: Callable[[str], Sequence[Any]]
    conditions: Callable[[], Sequence[Mapping[str, Any]]]
    known: frozenset[str] | None = None

    @classmethod
    def of_episodes(cls, episodes: Sequence[EpisodeRow]) -> Facts:
        """Return the facts of episodes in memory."""

        def column(name: str) -> Sequence[Any]:
            if name in GapDimension:
                return [float(e.info.dimensions.get(name, 0.0)) for e in episodes]
            if name in _OF_EPISODE:
                return [_OF_EPISODE[name](e) for e in episodes]
            on_info = name in (*_INFO_TEXTS, "kind", "domain")
            return [str(getattr(e.info if on_info else e, name)) for e in episodes]

        return cls(len(episodes), column, lambda: [e.info.conditions for e in episodes])

    @classmethod
    def of_table(cls, table: pa.Table, fps: float, robot_type: str = "") -> Facts:
        """Return the facts of rows of `meta/episodes` at `fps` [Hz], without an object for each.

        Raises:
            UnusableInputError: when asked for a column that the table doesn't have.
        """

        @cache
        def read(name: str) -> list[Any]:
            if name not in table.column_names:
                raise UnusableInputError(
                    f"The episodes have no column {name}, which the query needs. Add gap columns "
                    "with: gaploop convert DIR --output_dir=OUT"
                )
            values: list[Any] = table[name].to_pylist()
            return values

        def column(name: str) -> Sequence[Any]:
            if name in GapDimension:
                pairs = zip(read("gap_dimensions"), read("gap_dimension_weights"), strict=True)
                return [dict(zip(n, w, strict=True)).get(name, 0.0) for n, w in pairs]
            match name:
                case "task":
                    return [(tasks or [""])[0] for tasks in read("tasks")]
                case "date":
                    return [_day(t) for t in read("gap_t0_ns")]
                case "episode" | "length":
                    return read("episode_index" if name == "episode" else name)
                case "duration_s":
                    return [n / fps for n in read("length")]
                case "robot_type":
                    return [robot_type] * len(table)
            return read(f"gap_{name}")

        @cache
        def parsed(text: str) -> Mapping[str, Any]:
            value = parse_json(text or "{}")
            return value if isinstance(value, Mapping) else {}

        return cls(len(table), column, lambda: [parsed(c) for c in read("gap_conditions")])


def _day(t0_ns: int) -> str:
    """Return the day of a time [ns since 1970], "" where it is unknown."""
    return datetime.fromtimestamp(t0_ns / 1e9, UTC).date().isoformat() if t0_ns > 0 else ""


_OF_EPISODE: Final[dict[str, Callable[[EpisodeRow], Any]]] = {
    "dimensions": lambda e: list(e.info.dimensions),
    "date": lambda e: _day(e.info.t0_ns),
    "episode": lambda e: e.index,
    "length": lambda e: e.length,
    "duration_s": lambda e: e.length / e.info.fps,
}
"""Fields that aren't attributes of an episode or its `TakeInfo`, as texts."""


MOST_CHARACTERS: Final = 4000
"""No query that a person writes is longer."""
NONE: Final = "none"
"""Stands for no failure mode or phase, as `''` does."""
_SHOWN: Final = 40  # characters of a query that an error repeats

_HINTS: Final = (
    (r"(\b(and|or|not|in)|[=<>])\s*$", "The query ends too early."),
    (r"(?<![=!<>])=(?!=)", "Compare with ==, not =."),
    (r"&&|\bAND\b", "Write and."),
    (r"\|\||\bOR\b", "Write or."),
    (r"!(?!=)|\bNOT\b", "Write not."),
    (r"", "Quote text that isn't one word, as in session == '2026-11-22 a'."),
)
GRAMMAR: Final = (
    "Queries have names, words, numbers, 'texts', [lists], == != < <= > >= in, and or not, ( )."
)


@dataclass(frozen=True)
class FieldOperand:
    """A side that names a field: one value for each episode."""

    name: str
    spec: FieldSpec
    values: Sequence[Any]


@dataclass(frozen=True)
class Literal:
    """A side that is the same for all: a word, text, number, or list of them."""

    value: Any


type Operand = FieldOperand | Literal


@dataclass
class _Query:
    """A query about some episodes, and what goes wrong in it."""

    text: str
    facts: Facts
    option: str

    def parse(self) -> ast.expr:
        """Return the query's tree."""
        if not self.text:
            raise UnusableInputError(f"{self.option} is empty. {GRAMMAR}")
        if len(self.text) > MOST_CHARACTERS:
            raise UnusableInputError(
                f"{self.option} has {len(self.text)} characters, more than {MOST_CHARACTERS}. "
                "List episodes with --episodes instead."
            )
        try:
            return ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            offset = getattr(error, "offset", None) or 1
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", self.text)
            hint = next(h for p, h in _HINTS if re.search(p, bare))
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            where = self._at(offset - 1, self.text[offset - 1 :])
            raise UnusableInputError(f"{where}: {reason}. {hint}") from None

    def truth(self, node: ast.expr) -> list[bool]:
        """Return for each episode whether `node` holds."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(value) for value in node.values]
            join = all if isinstance(node.op, ast.And) else any
            return [join(row) for row in zip(*parts, strict=True)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [not yes for yes in self.truth(node.operand)]
        if isinstance(node, ast.Compare):  # also a chain such as `0.2 < contact_dynamics < 0.8`
            nodes = [node.left, *node.comparators]
            steps = zip(node.ops, nodes, nodes[1:], strict=False)
            parts = [self._compare(op, left, right) for op, left, right in steps]
            return [all(row) for row in zip(*parts, strict=True)]
        found = self.field(node)
        if found is None:
            raise self._not_understood(node)
        if not found.spec.optional:
            raise self._error(node, f"Every episode has that: compare it, as in {found.name} == …")
        return [bool(value) for value in found.values]

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> list[bool]:
        if isinstance(op, ast.Is | ast.IsNot):
            raise self._error(left, "Compare with == or !=, not is.")
        # Which side is a field decides how a bare word on the other is read.
        first, second = self.field(left), self.field(right)
        is_in = isinstance(op, ast.In | ast.NotIn)
        a: Operand
        b: Operand
        if second and (first is None or (is_in and second.spec.kind is not Kind.NUMBER)):
            a, b = self._beside(second, left), second
        elif first is None:
            for node in (left, right):
                self._literal(node, None)  # it may have more to say
            raise self._unknown(left)
        elif second and first.spec.kind is second.spec.kind is Kind.NUMBER:
            a, b = first, second
        else:
            a, b = first, self._beside(first, right)
        xs, ys = (
            side.values if isinstance(side, FieldOperand) else [side.value] * self.facts.count
            for side in (a, b)
        )
        if is_in:
            if isinstance(b, Literal) and not isinstance(b.value, list):
                reason = "After in comes a list, as in failure_mode in [slip, drift]."
                raise self._error(right, reason)
            if isinstance(b, FieldOperand) and b.spec.kind in (Kind.WORD, Kind.NUMBER):
                raise self._error(right, f"{b.name} holds one value: compare it with ==.")
            held = [
                (isinstance(y, list) or (isinstance(x, str) and isinstance(y, str))) and x in y
                for x, y in zip(xs, ys, strict=True)
            ]
            return held if isinstance(op, ast.In) else [not yes for yes in held]
        kinds = {side.spec.kind for side in (a, b) if isinstance(side, FieldOperand)}
        if isinstance(op, ast.Eq | ast.NotEq):
            if Kind.NAMES in kinds:
                raise self._error(left, "Ask with in, as in sensor_noise in dimensions.")
            for side, node in ((a, left), (b, right)):
                is_list = isinstance(side, Literal) and isinstance(side.value, list)
                if is_list and Kind.CONDITION not in kinds:
                    raise self._error(node, "Beside a list, write in or not in.")
            same = [x == y for x, y in zip(xs, ys, strict=True)]
            return same if isinstance(op, ast.Eq) else [not yes for yes in same]
        for side, node in ((a, left), (b, right)):
            if isinstance(side, FieldOperand) and side.spec.kind in (Kind.WORD, Kind.NAMES):
                raise self._error(node, f"{side.name} has no order: use ==, != or in.")
        held = []
        for x, y in zip(xs, ys, strict=True):
            try:
                held.append(x is not None and y is not None and _ORDER[type(op)](x, y))
            except TypeError:
                reason = f"{x!r} and {y!r} can't be ordered: use numbers, or == and in."
                raise self._error(left, reason) from None
        return held

    def _beside(self, known: FieldOperand, node: ast.expr) -> Literal:
        """Return the literal that `known` is compared with, checked against its kind."""
        literal = self._literal(node, known)
        many = literal.value if isinstance(literal.value, list) else [literal.value]
        spec = known.spec
        if spec.kind is Kind.CONDITION:
            return literal
        if isinstance(literal.value, list) and spec.kind is Kind.NAMES:
            raise self._error(node, "Ask for one at a time: sensor_noise in dimensions.")
        words = spec.words if spec.kind is Kind.WORD else frozenset(GapDimension)
        empty = {"", NONE} if spec.optional else set()
        for value in many:
            if spec.kind is Kind.NUMBER and not isinstance(value, int | float):
                raise self._error(node, f"{known.name} is a number: compare it with one.")
            if spec.kind is not Kind.NUMBER and not isinstance(value, str):
                raise self._error(node, f"{known.name} is text: quote it, as in '{value}'.")
            if spec.kind in (Kind.WORD, Kind.NAMES) and value not in words | empty:
                what = known.name.replace("_", " ").removesuffix("s")
                raise unknown_choice(what, value, words, self._place(node))
        if spec.kind is Kind.WORD and spec.optional:
            plain = ["" if value == NONE else value for value in many]
            return Literal(plain if isinstance(literal.value, list) else plain[0])
        return literal

    def _literal(self, node: ast.expr, beside: FieldOperand | None) -> Literal:
        if isinstance(node, ast.Constant) and type(node.value) in (str, int, float, bool):
            return Literal(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._literal(node.operand, beside).value
            if type(inner) in (int, float):
                return Literal(-inner)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return Literal([self._literal(item, beside).value for item in node.elts])
        if isinstance(node, ast.Name):
            if beside is None or beside.spec.kind is Kind.NUMBER:
                raise self._unknown(node)
            return Literal(node.id)
        raise self._not_understood(node)

    def field(self, node: ast.expr) -> FieldOperand | None:
        """Return the field that `node` names; None where it names none."""
        if isinstance(node, ast.Name) and node.id in FIELDS:
            return FieldOperand(node.id, FIELDS[node.id], self.facts.column(node.id))
        match node:
            case ast.Name(id=name) if name in self._condition_names:
                pass
            case ast.Attribute(ast.Name("conditions"), name) | ast.Subscript(
                ast.Name("conditions"), ast.Constant(str(name))
            ):
                pass
            case _:
                return None
        return FieldOperand(name, CONDITION, [c.get(name) for c in self.facts.conditions()])

    @cached_property
    def _condition_names(self) -> frozenset[str]:
        if self.facts.known is not None:
            return self.facts.known
        return frozenset(vocabulary.CONDITIONS).union(*self.facts.conditions())

    # What is wrong, and where

    def _unknown(self, node: ast.expr) -> UnusableInputError:
        """Return the error for a side that should have named a field."""
        if not isinstance(node, ast.Name):
            reason = "No field is named here. Write a name first: outcome == failure."
            return self._error(node, reason)
        valid = [*FIELDS, *self._condition_names]
        return unknown_choice("name", node.id, valid, self._place(node))

    def _not_understood(self, node: ast.expr) -> UnusableInputError:
        """Return the error for what the language doesn't have."""
        if isinstance(node, ast.Name):
            return self._unknown(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            return self._error(node, "Write and, or: & and | bind more tightly than ==.")
        if isinstance(node, ast.BinOp):
            words = ast.get_source_segment(self.text, node)
            return self._error(node, f"Quote text that isn't one word: '{words}'.")
        return self._error(node, f"This is not understood. {GRAMMAR}")

    def _error(self, node: ast.expr, reason: str) -> UnusableInputError:
        return UnusableInputError(f"{self._place(node)}: {reason}")

    def _place(self, node: ast.expr) -> str:
        start = len(self.text.encode()[: node.col_offset].decode())
        return self._at(start, ast.get_source_segment(self.text, node) or "")

    def _at(self, start: int, words: str) -> str:
        shown = words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
        return f"{self.option}, column {start + 1}, at «{shown}»"


_ORDER: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def where(text: str, episodes: Sequence[EpisodeRow], option: str = "--where") -> list[int]:
    """Return the indices of the episodes that a query chooses, in the order given.

    Errors name the `option` that the query came from.

    Raises:
        UnusableInputError: the query can't be understood; says where in it, and what would do.
    """
    chosen = matching(text, Facts.of_episodes(episodes), option)
    return [e.index for e, yes in zip(episodes, chosen, strict=True) if yes]


def matching(text: str, facts: Facts, option: str = "--where") -> list[bool]:
    """Return for each episode whether a query chooses it, shape (facts.count,).

    Raises:
        UnusableInputError: as in `where`.
    """
    query = _Query(text.replace("\n", " ").strip(), facts, option)
    try:
        return query.truth(query.parse())
    except (RecursionError, MemoryError):
        raise UnusableInputError(f"{option} is nested too deeply. {GRAMMAR}") from None


def queried_fields(text: str, episodes: Sequence[EpisodeRow]) -> dict[str, Sequence[Any]]:
    """Return the fields that a query asks about, with their values, to say why none matches."""
    query = _Query(text.replace("\n", " ").strip(), Facts.of_episodes(episodes), "--where")
    found = (query.field(n) for n in ast.walk(query.parse()) if isinstance(n, ast.expr))
    return {field.name: field.values for field in found if field is not None}
