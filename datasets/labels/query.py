"""Choosing episodes by what is known about them: `outcome==failure and contact_dynamics>0.5`.

The language is a small part of Python's expressions, parsed by `ast` and never evaluated by
Python: names of `query_fields`, words, numbers, texts and lists; `== != < <= > >= in not in`;
`and or not` and brackets. A bare word beside a text field is that word, so `outcome==failure`
needs no quotes. A condition whose key isn't one word is `conditions['key']`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.labels.query_fields import Facts, Kind
from gaploop.datasets.labels.query_operands import GRAMMAR, FieldOperand, Literal, Operand, Reader
from gaploop.datasets.layout import EpisodeRow

_ORDER: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def where(text: str, episodes: Sequence[EpisodeRow], option: str = "--where") -> list[int]:
    """Return the indices of the episodes that a query chooses, in the order given.

    Args:
        text: the query.
        episodes: from `layout.read_episodes`.
        option: names the option that the query came from, in errors.

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
    reader = Reader(" ".join(text.split("\n")).strip(), facts, option)
    try:
        return _Query(reader).truth(reader.parse())
    except (RecursionError, MemoryError):
        raise UnusableInputError(f"{option} is nested too deeply. {GRAMMAR}") from None


def asked(text: str, episodes: Sequence[EpisodeRow]) -> dict[str, Sequence[Any]]:
    """Return the fields that a query asks about, with their values, to say why none matches."""
    reader = Reader(" ".join(text.split("\n")).strip(), Facts.of_episodes(episodes), "--where")
    found = (reader.field(n) for n in ast.walk(reader.parse()) if isinstance(n, ast.expr))
    return {field.name: field.values for field in found if field is not None}


@dataclass(frozen=True)
class _Query:
    reader: Reader

    def truth(self, node: ast.expr) -> list[bool]:
        """Return for each episode whether `node` holds."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(value) for value in node.values]
            join = all if isinstance(node.op, ast.And) else any
            return [join(row) for row in zip(*parts, strict=True)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [not yes for yes in self.truth(node.operand)]
        if isinstance(node, ast.Compare):
            return self._chain(node)
        found = self.reader.field(node)
        if found is None:
            raise self.reader.not_understood(node)
        if not found.spec.optional:
            raise self.reader.error(
                node, f"Every episode has that: compare it, as in {found.name} == …"
            )
        return [bool(value) for value in found.values]

    def _chain(self, node: ast.Compare) -> list[bool]:
        """Return a comparison such as `0.2 < contact_dynamics < 0.8`."""
        nodes = [node.left, *node.comparators]
        held = [True] * self.reader.facts.count
        for op, left, right in zip(node.ops, nodes, nodes[1:], strict=False):
            part = self._compare(op, left, right)
            held = [a and b for a, b in zip(held, part, strict=True)]
        return held

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> list[bool]:
        if isinstance(op, ast.Is | ast.IsNot):
            raise self.reader.error(left, "Compare with == or !=, not is.")
        a, b = self.reader.pair(op, left, right)
        if isinstance(a, Literal) and isinstance(b, Literal):
            raise self.reader.unknown(left)
        if isinstance(op, ast.In | ast.NotIn):
            held = self._contained(a, b, right)
            return held if isinstance(op, ast.In) else [not yes for yes in held]
        xs, ys = self._values(a), self._values(b)
        if isinstance(op, ast.Eq | ast.NotEq):
            self._check_equal((a, left), (b, right))
            same = [x == y for x, y in zip(xs, ys, strict=True)]
            return same if isinstance(op, ast.Eq) else [not yes for yes in same]
        return self._ordered(op, (a, left), (b, right))

    def _check_equal(self, *sides: tuple[Operand, ast.expr]) -> None:
        """Refuse what could never be equal."""
        kinds = {operand.spec.kind for operand, _ in sides if isinstance(operand, FieldOperand)}
        for operand, node in sides:
            if Kind.NAMES in kinds:
                raise self.reader.error(node, "Ask with in, as in sensor_noise in dimensions.")
            is_list = isinstance(operand, Literal) and isinstance(operand.value, list)
            if is_list and Kind.CONDITION not in kinds:
                raise self.reader.error(node, "Beside a list, write in or not in.")

    def _ordered(
        self, op: ast.cmpop, left: tuple[Operand, ast.expr], right: tuple[Operand, ast.expr]
    ) -> list[bool]:
        for operand, node in (left, right):
            if isinstance(operand, FieldOperand) and operand.spec.kind in (Kind.WORD, Kind.NAMES):
                raise self.reader.error(node, f"{operand.name} has no order: use ==, != or in.")
        compare = _ORDER[type(op)]
        held = []
        for x, y in zip(self._values(left[0]), self._values(right[0]), strict=True):
            try:
                held.append(x is not None and y is not None and compare(x, y))
            except TypeError:
                reason = f"{x!r} and {y!r} can't be ordered: use numbers, or == and in."
                raise self.reader.error(left[1], reason) from None
        return held

    def _contained(self, a: Operand, b: Operand, node: ast.expr) -> list[bool]:
        if isinstance(b, Literal) and not isinstance(b.value, list):
            raise self.reader.error(
                node, "After in comes a list, as in failure_mode in [slip, drift]."
            )
        if isinstance(b, FieldOperand) and b.spec.kind in (Kind.WORD, Kind.NUMBER):
            raise self.reader.error(node, f"{b.name} holds one value: compare it with ==.")
        pairs = zip(self._values(a), self._values(b), strict=True)
        return [isinstance(y, list | str) and _inside(x, y) for x, y in pairs]

    def _values(self, operand: Operand) -> Sequence[Any]:
        if isinstance(operand, FieldOperand):
            return operand.values
        return [operand.value] * self.reader.facts.count


def _inside(x: Any, container: list[Any] | str) -> bool:
    return x in container if isinstance(container, list) else isinstance(x, str) and x in container
