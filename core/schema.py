"""Shared checks for the YAML files that people write: plan, station, suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gaploop.core.errors import UnusableInputError, unknown_choice


class _OnceEach(yaml.SafeLoader):
    """Refuses a key that stands in a mapping twice: of two, YAML silently takes the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, keys, strict=True):
            if keys.count(name) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{name}' stands there twice", key.start_mark
                )
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        UnusableInputError: missing, not YAML, or not a mapping.
    """
    try:
        value = yaml.load(path.read_text(), _OnceEach)
    except FileNotFoundError:
        raise UnusableInputError(f"{what} {path} not found. Check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UnusableInputError(f"{what} {path} can't be read ({reason}). Mend it.") from None
    if not isinstance(value, dict):
        raise UnusableInputError(f"{what} {path} must be a mapping at the top. See docs/files.md.")
    return value


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

    Args:
        form: how an entry looks, such as "limit: number".

    Raises:
        UnusableInputError: it is neither.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping of {form}, got {value!r}.")
    return value


def number(value: Any, where: str, low: float, high: float) -> float:
    """Return `value` as a float if it is a number within [low, high].

    Raises:
        UnusableInputError: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UnusableInputError(f"{where}: {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)
