"""Shared checks for the YAML files that people write: plan, station, suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import DEEPEST, MOST_DIGITS, read_content

LARGEST_YAML: Final = 2 << 20
"""A plan of a thousand items is 1 MiB [bytes]."""
MOST_NODES: Final = 100_000
"""Values in a file once its aliases stand for what they name: a few lines of them make billions."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands in a mapping twice: of two, YAML silently takes the last.

    And what is too deep, or grows beyond `MOST_NODES`, before anything is made of it.
    """

    def get_single_node(self) -> Any:
        root = super().get_single_node()
        sizes: dict[int, int] = {}
        open_: set[int] = set()
        todo: list[tuple[Any, bool]] = [] if root is None else [(root, False)]
        while todo:
            node, done = todo.pop()
            inner = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
            if isinstance(node, yaml.MappingNode):
                inner = [part for pair in node.value for part in pair]
            if done:
                open_.discard(id(node))
                sizes[id(node)] = 1 + sum(sizes[id(part)] for part in inner)
                if sizes[id(node)] > MOST_NODES:
                    raise yaml.YAMLError(f"more than {MOST_NODES} values, its aliases written out")
            elif id(node) in open_ or len(open_) > DEEPEST:  # within itself, or too deep
                raise yaml.YAMLError("nested too deeply")
            elif id(node) not in sizes:
                open_.add(id(node))
                todo.append((node, True))
                todo += [(part, False) for part in inner]
        return root

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong("a key that is no word", key)
            if key.value in seen:
                raise _wrong(f"'{key.value}' is given twice", key)
            seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def construct_yaml_int(self, node: Any) -> Any:
        if str(node.value).isdigit() and len(node.value) > 1 and node.value[0] == "0":
            return str(node.value)  # a serial number; YAML 1.1 would read it as octal
        if len(str(node.value)) > MOST_DIGITS:
            raise _wrong("a whole number of too many digits", node)
        return int(super().construct_yaml_int(node))


def _wrong(why: str, node: Any) -> Exception:
    error: Exception = yaml.constructor.ConstructorError(None, None, why, node.start_mark)
    return error


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        UnusableInputError: missing, not YAML, not a mapping, or deeper, larger or with longer
            numbers than anything that people write.
    """
    value = parse_yaml(read_content(path, LARGEST_YAML), f"{what} {path}")
    if not isinstance(value, dict):
        raise UnusableInputError(
            f"{what} {path} must be a mapping at the top. See docs/data/files.md."
        )
    return value


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Return what YAML that somebody else wrote says; UnusableInputError as of `load_yaml`."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, *DAMAGE) as error:
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        raise UnusableInputError(f"{where} can't be read as YAML ({reason}). Fix it.") from None


def check_keys(
    value: Mapping[str, Any], valid: Iterable[str], where: str, need: Iterable[str] = ()
) -> None:
    """Check that `value` has no key outside `valid` and every key of `need`."""
    valid = tuple(valid)
    for key in value:
        if key not in valid:
            raise unknown_choice("key", key, valid, where)
    for key in need:
        if key not in value:
            raise UnusableInputError(f"{where}: '{key}' is missing. Needed: {', '.join(need)}.")


def mapping(value: object, where: str, form: str) -> dict[str, Any]:
    """Return `value` if it is a mapping, and an empty one if nothing was written.

    Raises:
        UnusableInputError: it is neither; `form` is how an entry looks, such as "limit: number".
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping of {form}, got {value!r}.")
    return value


def number(value: Any, where: str, low: float, high: float) -> float:
    """Return `value` as a float if it is a number in [low, high], or raise UnusableInputError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UnusableInputError(f"{where}: {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)


def ranged[T](default: T, low: float, high: float) -> T:
    """Return the default of a dataclass's field that `numbers` reads, from `low` to `high`."""
    made: T = field(default=default, metadata={"range": (low, high)})
    return made


def numbers(
    kind: type, value: object, where: str, form: str, further: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the `ranged` fields of a dataclass that a mapping gives; none where it is None.

    What is a whole number by default must be one; what is None by default may be. Keys of
    `further` may stand there as well and aren't read; `form` is as of `mapping`.

    Raises:
        UnusableInputError: an unknown key, no number, or one out of range.
    """
    known = {f.name: f for f in fields(kind) if "range" in f.metadata}
    given = mapping(value, where, form)
    check_keys(given, (*known, *further), where)
    found: dict[str, Any] = {}
    for key in (k for k in given if k in known):
        entry, usual = given[key], known[key].default
        if entry is None and usual is None:
            continue
        parsed = number(entry, f"{where}: {key}", *known[key].metadata["range"])
        if isinstance(usual, int) and parsed != int(parsed):
            raise UnusableInputError(f"{where}: {key}: {entry!r} must be a whole number.")
        found[key] = int(parsed) if isinstance(usual, int) else parsed
    return found


def whole_number(value: object, where: str) -> int:
    """Return `value` if it is a whole number, 0 or more, or raise UnusableInputError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnusableInputError(f"{where} must be a whole number, 0 or more, got {value!r}.")
    return value


def texts(value: object, where: str, what: str = "texts") -> tuple[str, ...]:
    """Return `value` if it is a list of texts, and an empty one if nothing was written.

    Raises:
        UnusableInputError: it is neither; `what` says what should be listed.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise UnusableInputError(f"{where} must be a list of {what}, got {value!r}.")
    return tuple(value)
