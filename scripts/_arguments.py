"""From a command line to a command's config: the options of its dataclass, read and checked.

Draccus decodes (as in LeRobot: the same types, the same choice registries such as
`--robot.type`); the command line is read here, because draccus's own reader interprets text
as YAML (a task "pick: the cube" becomes a mapping), knows no bare booleans and no
positionals, and reports errors as argparse does.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import draccus
import yaml
from draccus.utils import DecodingError, DraccusException, is_choice_type
from draccus.wrappers.docstring import get_attribute_docstring, get_preferred_help_text

from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.schema import load_yaml

CONFIG_PATH: Final = "config_path"
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
        kind, name = _without_none(hints[spec.name]), prefix + spec.name
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


def parse(config_class: type, argv: Sequence[str], positional: Sequence[str], command: str) -> Any:
    """Return the config that a command line asks for.

    Args:
        config_class: the command's dataclass.
        argv: what stands after the command.
        positional: the options that arguments without a name fill, in order; the last may be
            a list and takes all that are left.
        command: its name, for messages.

    Raises:
        UnusableInputError: an option that doesn't exist, or a value that doesn't fit.
    """
    given_path = next((v for n, v in _pairs(argv) if n == CONFIG_PATH and v is not None), None)
    nested = load_yaml(Path(given_path), "Config file") if given_path else {}
    chosen = {n.removesuffix(".type"): v for n, v in _flat(nested) if n.endswith(".type")}
    chosen |= {n.removesuffix(".type"): v for n, v in _pairs(argv) if v and n.endswith(".type")}
    options = {o.name: o for o in find_options(config_class, chosen)}
    _check_file(nested, options, given_path, command)
    for name, text in _read(argv, options, positional, command):
        _put(nested, name, _value(options[name], text))
    for option in options.values():
        group, _, leaf = option.name.rpartition(".")
        holder = _get(nested, group) if group else None
        if option.differs and isinstance(holder, dict) and leaf not in holder:
            holder[leaf] = draccus.encode(option.default)
    return _decode(config_class, nested, options)


def nearest(name: str, options: Mapping[str, Option]) -> str:
    """Return a hint with the option most like `name`, or the empty text."""
    if name in options:
        return f" Did you mean --{name}?"
    near = difflib.get_close_matches(name, [*options, CONFIG_PATH], n=1, cutoff=0.4)
    last = [o for o in options if o.rpartition(".")[2] == name.rpartition(".")[2]]
    best = last[:1] or near
    return f" Did you mean --{best[0]}?" if best else ""


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield option and text, also of `--name text`, without knowing which options there are."""
    for place, token in enumerate(argv):
        if token.startswith("--"):
            name, equals, text = token[2:].partition("=")
            after = argv[place + 1] if place + 1 < len(argv) else None
            yield name, text if equals else after


def _read(
    argv: Sequence[str], options: Mapping[str, Option], positional: Sequence[str], command: str
) -> Iterator[tuple[str, str]]:
    """Yield option and text of a command line; positionals are given their option's name."""
    tokens, loose = list(argv), []
    while tokens:
        token = tokens.pop(0)
        if not token.startswith("-"):
            loose.append(token)
            continue
        name, equals, text = token.lstrip("-").partition("=")
        option = options.get(name)
        if (option is None and name != CONFIG_PATH) or not token.startswith("--"):
            raise UnusableInputError(
                f"Unknown option {token.partition('=')[0]}.{nearest(name, options)} "
                f"All of them: gaploop {command} --help"
            )
        if not equals:
            text = _next_text(option, tokens)
        if option is not None:
            yield name, text
    yield from _name_loose(loose, options, positional, command)


def _next_text(option: Option | None, tokens: list[str]) -> str:
    """Take an option's text from the next token; a bare boolean means true."""
    ahead = tokens[0] if tokens else None
    if option is not None and option.kind is bool:
        return tokens.pop(0) if ahead in ("true", "false") else "true"
    if ahead is None or ahead.startswith("--"):
        name, word = (option.name, option.metavar) if option else (CONFIG_PATH, "FILE.yaml")
        raise UnusableInputError(f"--{name} needs a value: --{name}={word}")
    return tokens.pop(0)


def _name_loose(
    loose: Sequence[str], options: Mapping[str, Option], positional: Sequence[str], command: str
) -> Iterator[tuple[str, str]]:
    """Give arguments without a name the name of the option they fill."""
    names = [name for name in positional if name in options]
    for place, token in enumerate(loose):
        if place < len(names) - 1 or (place < len(names) and not options[names[place]].is_list):
            yield names[place], token
        elif names and options[names[-1]].is_list:
            rest = ", ".join(f'"{t}"' for t in loose[place:])
            yield names[-1], f"[{rest}]" if len(loose) - place > 1 else token
            return
        else:
            raise UnusableInputError(
                f"Unexpected argument '{token}'. Options are written --name=value: "
                f"gaploop {command} --help"
            )


def _value(option: Option, text: str) -> Any:
    """Interpret an option's text by its type: text stays text, all else is read as YAML."""
    if option.choices and text not in option.choices:
        raise unknown_choice(f"--{option.name}", text, option.choices)
    if text == "null":
        return None
    if option.is_text:
        return text
    if option.is_list and not text.lstrip().startswith("["):
        return [text]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UnusableInputError(
            f"--{option.name}={text} can't be read. Write it as --{option.name}={option.metavar}"
        ) from None
    _check_finite(option, value)
    return value


def _check_finite(option: Option, value: Any) -> None:
    if isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            _check_finite(option, entry)
    elif str(value).lower().lstrip("+-.") in ("nan", "inf", "infinity"):
        raise UnusableInputError(f"--{option.name} must be finite, got {value}.")


def _check_file(
    nested: Mapping[str, Any], options: Mapping[str, Option], path: str | None, command: str
) -> None:
    leaves = {name for name, option in options.items()}
    for name, _ in _flat(nested, leaves):
        if name not in leaves:
            raise UnusableInputError(
                f"{path}: unknown option '{name}'.{nearest(name, options).replace('--', '')} "
                f"All of them: gaploop {command} --help"
            )


def _flat(
    nested: Mapping[str, Any], leaves: frozenset[str] | set[str] = frozenset(), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in leaves:
            yield from _flat(value, leaves, f"{name}.")
        elif value is not None or name in leaves:
            yield name, value


def _put(nested: dict[str, Any], name: str, value: Any) -> None:
    *groups, leaf = name.split(".")
    for group in groups:
        if not isinstance(nested.get(group), dict):
            nested[group] = {}
        nested = nested[group]
    nested[leaf] = value


def _get(nested: Any, name: str) -> Any:
    for part in name.split("."):
        nested = nested.get(part) if isinstance(nested, dict) else None
    return nested


def _decode(config_class: type, nested: dict[str, Any], options: Mapping[str, Option]) -> Any:
    try:
        return draccus.decode(config_class, nested)
    except DraccusException as error:
        raise _readable(error, nested, options) from None


def _readable(
    error: DraccusException, nested: dict[str, Any], options: Mapping[str, Option]
) -> GaploopError:
    """Return draccus's error as ours: which option, what was given, what would fit."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    ours = next((c for c in causes if isinstance(c, GaploopError)), None)
    if ours is not None:
        return ours
    path = error.key_path if isinstance(error, DecodingError) else ()
    missing = re.findall(r"`(\w+)`", str(error)) if "required field" in str(error) else []
    if missing:
        names = [".".join((*path, name)) for name in missing]
        shown = (f"--{n}={options[n].metavar}" if n in options else f"--{n}.type" for n in names)
        return UnusableInputError(f"Missing: {', '.join(shown)}")
    fits = next(
        (o for n in range(len(path), 0, -1) if (o := options.get(".".join(path[:n])))), None
    )
    if fits is not None:
        value = _get(nested, fits.name)
        return UnusableInputError(
            f"--{fits.name}={value} doesn't fit. Write it as --{fits.name}={fits.metavar}"
        )
    place = f"--{'.'.join(path)}: " if path else ""
    return UnusableInputError(f"{place}{causes[-1]}")


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
    for owner in config_class.__mro__:
        if name in inspect.get_annotations(owner):
            doc = get_preferred_help_text(get_attribute_docstring(owner, name)) or ""
            return " ".join(doc.split())
    return ""
