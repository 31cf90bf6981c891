"""The sides of a query's comparisons: which are fields, which are words, and what is wrong.

A bare word beside a text field is that word; beside a number it must be another number's name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.labels.query_fields import CONDITION, FIELDS, Facts, FieldSpec, Kind

MOST_CHARACTERS: Final = 4000
"""No query that a person writes is longer."""
NONE: Final = "none"
"""Stands for no failure mode or phase, as `''` does."""
_SHOWN: Final = 40  # characters of a query that an error repeats
_CONDITIONS: Final = "conditions"

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
class Reader:
    """Reads a query's parts.

    Attributes:
        text: the query, on one line.
        facts: what is known about the episodes.
        option: names the option that the query came from, in errors.
    """

    text: str
    facts: Facts
    option: str
    _columns: dict[str, Sequence[Any]] = field(default_factory=dict)

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
            hint = next(h for p, h in _HINTS if re.search(p, _without_texts(self.text)))
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self._error_at(offset - 1, self.text[offset - 1 :], f"{reason}. {hint}") from None

    def pair(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> tuple[Operand, Operand]:
        """Return both sides: which is a field decides how a bare word on the other is read."""
        a, b = self.field(left), self.field(right)
        if isinstance(op, ast.In | ast.NotIn) and b is not None and b.spec.kind is not Kind.NUMBER:
            return self._beside(b, left), b
        if a is not None and (b is None or a.spec.kind is not Kind.NUMBER):
            return a, self._beside(a, right)
        if a is None and b is not None:
            return self._beside(b, left), b
        if a is not None and b is not None:
            return a, self._beside(a, right) if b.spec.kind is not Kind.NUMBER else b
        return self._literal(left, None), self._literal(right, None)

    def _beside(self, known: FieldOperand, node: ast.expr) -> Literal:
        """Return the literal that `known` is compared with, checked against its kind."""
        literal = self._literal(node, known)
        many = literal.value if isinstance(literal.value, list) else [literal.value]
        kind = known.spec.kind
        if kind is Kind.CONDITION:
            return literal
        if isinstance(literal.value, list) and kind is Kind.NAMES:
            raise self.error(node, "Ask for one at a time: sensor_noise in dimensions.")
        for value in many:
            if kind is Kind.NUMBER and not isinstance(value, int | float):
                raise self.error(node, f"{known.name} is a number: compare it with one.")
            if kind is not Kind.NUMBER and not isinstance(value, str):
                raise self.error(node, f"{known.name} is text: quote it, as in '{value}'.")
            if kind in (Kind.WORD, Kind.NAMES):
                self._check_word(known, value, node)
        if known.spec.kind is Kind.WORD and known.spec.optional:
            plain = ["" if value == NONE else value for value in many]
            return Literal(plain if isinstance(literal.value, list) else plain[0])
        return literal

    def _check_word(self, known: FieldOperand, value: str, node: ast.expr) -> None:
        words = known.spec.words if known.spec.kind is Kind.WORD else frozenset(GapDimension)
        empty = {"", NONE} if known.spec.optional else set()
        if value not in words | empty:
            what = known.name.replace("_", " ").removesuffix("s")
            raise unknown_choice(what, value, words, self._place(node))

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
                raise self.unknown(node)
            return Literal(node.id)
        raise self.not_understood(node)

    def field(self, node: ast.expr) -> FieldOperand | None:
        """Return the field that `node` names; None where it names none."""
        if isinstance(node, ast.Name) and node.id in FIELDS:
            return FieldOperand(node.id, FIELDS[node.id], self._column(node.id))
        name = _condition_key(node)
        if name is None and isinstance(node, ast.Name):
            name = node.id if node.id in self._condition_names else None
        if name is None:
            return None
        return FieldOperand(name, CONDITION, [c.get(name) for c in self.facts.conditions()])

    @cached_property
    def _condition_names(self) -> set[str]:
        return self.facts.condition_names()

    def _column(self, name: str) -> Sequence[Any]:
        if name not in self._columns:
            self._columns[name] = self.facts.column(name)
        return self._columns[name]

    def unknown(self, node: ast.expr) -> UnusableInputError:
        """Return the error for a side that should have named a field."""
        if not isinstance(node, ast.Name):
            return self.error(
                node, "No field is named here. Write a name first: outcome == failure."
            )
        valid = [*FIELDS, *self._condition_names]
        return unknown_choice("name", node.id, valid, self._place(node))

    def not_understood(self, node: ast.expr) -> UnusableInputError:
        """Return the error for what the language doesn't have."""
        if isinstance(node, ast.Name):
            return self.unknown(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            return self.error(node, "Write and, or: & and | bind more tightly than ==.")
        if isinstance(node, ast.BinOp):
            words = ast.get_source_segment(self.text, node)
            return self.error(node, f"Quote text that isn't one word: '{words}'.")
        return self.error(node, f"This is not understood. {GRAMMAR}")

    def error(self, node: ast.expr, reason: str) -> UnusableInputError:
        """Return an error that points at `node`."""
        return UnusableInputError(f"{self._place(node)}: {reason}")

    def _place(self, node: ast.expr) -> str:
        start = len(self.text.encode()[: node.col_offset].decode())
        return self._at(start, ast.get_source_segment(self.text, node) or "")

    def _error_at(self, start: int, rest: str, reason: str) -> UnusableInputError:
        return UnusableInputError(f"{self._at(start, rest)}: {reason}")

    def _at(self, start: int, words: str) -> str:
        shown = words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
        return f"{self.option}, column {start + 1}, at «{shown}»"


def _condition_key(node: ast.expr) -> str | None:
    """Return the key of `conditions.key` or `conditions['key']`."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id != _CONDITIONS:
            return None
        if isinstance(node, ast.Attribute):
            return node.attr
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
    return None


def _without_texts(text: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
