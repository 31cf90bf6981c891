"""YAML files that people write, such as plan, station and suite: read into dataclasses, checked."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

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


def whole_number(value: object, where: str) -> int:
    """Return `value` if it is a whole number, 0 or more, or raise UnusableInputError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnusableInputError(f"{where} must be a whole number, 0 or more, got {value!r}.")
    return value


def pair(
    value: object, where: str, low: float, high: float, form: str = "[low, high]"
) -> tuple[float, float]:
    """Return `value` if it is a list of two numbers in [low, high], or raise UnusableInputError."""
    if not isinstance(value, list) or len(value) != 2:
        raise UnusableInputError(f"{where} must be {form}, got {value!r}.")
    return number(value[0], where, low, high), number(value[1], where, low, high)


def text(value: object, where: str) -> str:
    """Return `value` if it is text, or raise UnusableInputError."""
    if not isinstance(value, str):
        raise UnusableInputError(f"{where} must be text, got {value!r}.")
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


def word(value: object, where: str) -> str:
    """Return a name as text, also one that YAML reads as a number."""
    return str(value) if isinstance(value, int | float) else text(value, where)


# -- dataclasses as files have them ---------------------------------------------------------

_FINITE: Final = (-1e9, 1e9)


def ranged[T](default: T, low: float, high: float) -> T:
    """Return the default of a number in a dataclass that `read_as` reads, from `low` to `high`."""
    made: T = field(default=default, metadata={"range": (low, high)})
    return made


def read_with(read: Callable[[Any, str], Any], default: Any = MISSING, **how: Any) -> Any:
    """Return a field that `read_as` reads with a function of its value and its place in words.

    Without a default: `field(metadata={"read": function})`.
    """
    return field(default=default, metadata={"read": read}, **how)


def not_in_file(default: Any) -> Any:
    """Return a field that no file gives."""
    return field(default=default, metadata={"read": None})


def read_as[T](kind: type[T], value: object, where: str) -> T:
    """Return a dataclass as a mapping gives it; each field is read by its type, or `read_with`.

    Numbers must be in their range (`ranged`); what is None by default may be empty; tuples of
    dataclasses are lists of mappings.

    Raises:
        UnusableInputError: an unknown key, one that is missing, or a value that doesn't fit.
    """
    known = {f.name: f for f in fields(cast(Any, kind)) if f.metadata.get("read", f) is not None}
    given = mapping(value, where, "key: value")
    needed = [
        f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING
    ]
    check_keys(given, known, where, needed)
    hints = get_type_hints(kind)
    return kind(
        **{
            name: known[name].metadata["read"](entry, f"{where}: {name}")
            if "read" in known[name].metadata
            else _read(hints[name], known[name], entry, where)
            for name, entry in given.items()
        }
    )


def _read(hint: Any, spec: Field[Any], value: Any, where: str) -> Any:
    """Return a field's value by its type."""
    place, of = f"{where}: {spec.name}", get_args(hint)
    if type(None) in of:
        if value is None:
            return None
        hint, of = of[0], get_args(of[0])
    if get_origin(hint) is tuple and is_dataclass(of[0]):
        if not isinstance(value, list):
            raise UnusableInputError(f"{place} must be a list of mappings, got {value!r}.")
        what = f"{where}: {spec.name.removesuffix('s')}"
        return tuple(
            read_as(cast(type, of[0]), entry, f"{what} {n}") for n, entry in enumerate(value, 1)
        )
    if get_origin(hint) is tuple:
        return texts(value, place)
    if get_origin(hint) is Mapping:
        return mapping(value, place, "name: value")
    if is_dataclass(hint):
        return read_as(cast(type, hint), value, place)
    if issubclass(hint, StrEnum):
        return one_of(hint, spec.name)(value, where)
    if hint is bool:
        if not isinstance(value, bool):
            raise UnusableInputError(f"{place} must be true or false, got {value!r}.")
        return value
    if hint is str:
        return text(value, place)
    found = number(value, place, *spec.metadata.get("range", _FINITE))
    if hint is int and found != int(found):
        raise UnusableInputError(f"{place}: {value!r} must be a whole number.")
    return hint(found)


def one_of[T](words: Iterable[T], kind: str) -> Callable[[Any, str], T]:
    """Return a function that returns that of some words which it is given, `kind` in messages."""

    def read(value: Any, where: str) -> T:
        for known in words:
            if known == value:
                return known
        raise unknown_choice(kind.replace("_", " "), value, map(str, words), where)

    return read


# -- code of a user's own ------------------------------------------------------------------------


def named_function(name: str, where: str, form: str) -> Callable[..., Any]:
    """Import what `module:name` names.

    Args:
        where: option or entry that names it, for messages.
        form: what it must be, for messages.

    Raises:
        UnusableInputError: it can't be imported, or can't be called.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs what isn't ours
        raise UnusableInputError(
            f"{where}: {name} can't be imported ({type(error).__name__}: {error}). It must be "
            f"{form}, in a module that is installed or lies in a folder of PYTHONPATH."
        ) from error
    if not callable(function):
        raise UnusableInputError(f"{where}: {name} is no function or class.")
    return function  # type: ignore[no-any-return]
