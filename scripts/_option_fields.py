"""What options a command has: read off its dataclass, those within it and the chosen types."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from draccus.utils import is_choice_type

_TYPE_WORDS: Final = {bool: "true|false", int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        name: with dots, without dashes, such as `dataset.root`.
        kind: its type, without None.
        default: what it is unless given; MISSING where it must be given.
        differs: the default differs from that of the dataclass it stands in.
        help: what it means, in words.
        choices: the only values it may take, if it is a choice.
    """

    name: str
    kind: Any
    default: Any
    differs: bool
    help: str
    choices: tuple[str, ...] = ()

    @property
    def is_list(self) -> bool:
        """Say whether it takes several values."""
        return (typing.get_origin(self.kind) or self.kind) in (list, tuple, set)

    @property
    def is_text(self) -> bool:
        """Say whether its value is taken as it is written."""
        return bool(self.choices) or all(kind in (str, Path) for kind in self.kinds)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Return the types its value may have."""
        union = typing.get_origin(self.kind) in (typing.Union, types.UnionType)
        return typing.get_args(self.kind) if union else (self.kind,)

    @property
    def metavar(self) -> str:
        """Return what stands after the `=` in the help."""
        if self.choices:
            return "|".join(self.choices)
        if self.is_list:
            return "'[A, B]'"
        if (typing.get_origin(self.kind) or self.kind) is dict:
            return "'{\"NAME\": VALUE}'"
        return next((_TYPE_WORDS[k] for k in reversed(self.kinds) if k in _TYPE_WORDS), "VALUE")


def find_options(
    config_class: type, chosen: Mapping[str, str], default: Any = None, prefix: str = ""
) -> Iterator[Option]:
    """Yield the options of a dataclass, of those within it, and of the chosen types.

    Args:
        config_class: the dataclass.
        chosen: option such as `robot` to the type chosen for it.
        default: an instance whose values stand where nothing is given.
        prefix: what stands before each name.
    """
    hints = typing.get_type_hints(config_class)
    for spec in dataclasses.fields(config_class):
        if not spec.init:
            continue
        kind, name = _without_none(hints[spec.name]), prefix + spec.name.rstrip("_")
        own = _default(spec)
        value = own if default is None else getattr(default, spec.name)
        doc = _help(config_class, spec.name)
        if is_choice_type(kind):
            known = kind.get_known_choices()
            shown = tuple(sorted(known))
            yield Option(f"{name}.type", str, None, False, doc, shown)
            selected = known.get(chosen.get(name, kind.default_choice_name()))
            if selected is not None:
                yield from find_options(selected, chosen, None, f"{name}.")
        elif dataclasses.is_dataclass(kind):
            within = value if dataclasses.is_dataclass(value) else None
            yield from find_options(typing.cast(type, kind), chosen, within, f"{name}.")
        else:
            yield Option(name, kind, value, value != own, doc, _choices(kind))


def _default(spec: dataclasses.Field[Any]) -> Any:
    if spec.default_factory is not dataclasses.MISSING:
        return spec.default_factory()
    return spec.default


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        rest = tuple(k for k in typing.get_args(kind) if k is not type(None))
        return rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007 (built at run time)
    return kind


def _choices(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    if typing.get_origin(kind) is typing.Literal:
        return tuple(str(value) for value in typing.get_args(kind))
    return ()


def _help(config_class: type, name: str) -> str:
    """Return what the class that defines a field says about it."""
    for owner in config_class.__mro__:
        if name in inspect.get_annotations(owner):
            return " ".join(_field_docs(owner).get(name, "").split())
    return ""


@functools.cache
def _field_docs(owner: type) -> dict[str, str]:
    """Return field to its docstring, else LeRobot's ways: a comment, an entry of "Attributes:".

    (Draccus's reader loses the docstring of the first field and fails on "Attributes:".)
    """
    found = _attributes_section(inspect.getdoc(owner) or "")
    try:
        source = textwrap.dedent(inspect.getsource(owner))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # made at run time, or indented beyond repair
        return found
    lines = source.splitlines()
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for place, spec in enumerate(body):
        if isinstance(spec, ast.AnnAssign) and isinstance(spec.target, ast.Name):
            after = body[place + 1] if place + 1 < len(body) else None
            said = _docstring(after) or _comment(lines, spec)
            if said:
                found[spec.target.id] = said
    return found


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _comment(lines: list[str], spec: ast.AnnAssign) -> str:
    """Return the comment above a field, or else the one beside it."""
    above: list[str] = []
    for line in reversed(lines[: spec.lineno - 1]):
        if not line.lstrip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("#").strip())
    if above:
        return " ".join(above)
    rest = lines[(spec.end_lineno or spec.lineno) - 1][spec.end_col_offset or 0 :].strip()
    return rest.lstrip("#").strip() if rest.startswith("#") else ""


def _attributes_section(doc: str) -> dict[str, str]:
    """Return the entries of a docstring's "Attributes:" section."""
    _, _, section = doc.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.strip():
            break
        head, colon, rest = line.strip().partition(":")
        if colon and line.startswith("    ") and not line.startswith("     "):
            name = head.split()[0]
            found[name] = rest.strip()
        elif name:
            found[name] += f" {line.strip()}"
    return found
