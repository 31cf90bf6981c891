"""From a command line to a command's config: the options of its dataclass, read and checked.

Draccus decodes (as in LeRobot: the same types, the same choice registries such as
`--robot.type`); the command line is read here, because draccus's own reader interprets text
as YAML (a task "pick: the cube" becomes a mapping), knows no bare booleans and no
positionals, and reports errors as argparse does.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import draccus
import yaml
from draccus.utils import DecodingError, DraccusException

from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.schema import load_yaml
from gaploop.scripts._option_fields import Option, find_options

CONFIG_PATH: Final = "config_path"


def parse(config_class: type, argv: Sequence[str], positional: Sequence[str], program: str) -> Any:
    """Return the config that a command line asks for.

    Args:
        config_class: the command's dataclass.
        argv: what stands after the command.
        positional: the options that arguments without a name fill, in order; the last may be
            a list and takes all that are left.
        program: what a user types to call it, for messages.

    Raises:
        UnusableInputError: an option that doesn't exist, or a value that doesn't fit.
    """
    given_path = next((v for n, v in _pairs(argv) if n == CONFIG_PATH and v is not None), None)
    nested = load_yaml(Path(given_path), "Config file") if given_path else {}
    chosen = {n.removesuffix(".type"): v for n, v in _flat(nested) if n.endswith(".type")}
    chosen |= chosen_types(argv)
    options = {o.name: o for o in find_options(config_class, chosen)}
    _check_file(nested, options, given_path, program)
    for name, text in _read(argv, options, positional, program):
        _put(nested, name, _value(options[name], text))
    for option in options.values():
        group, _, leaf = option.name.rpartition(".")
        holder = _get(nested, group) if group else None
        if option.differs and isinstance(holder, dict) and leaf not in holder:
            holder[leaf] = draccus.encode(option.default)
    return _decode(config_class, _python_names(config_class, nested), options)


def _python_names(config_class: type, nested: dict[str, Any]) -> dict[str, Any]:
    """Return values by field: an option such as --import stands in the field `import_`."""
    fields = {spec.name.rstrip("_"): spec.name for spec in dataclasses.fields(config_class)}
    return {fields.get(name, name): value for name, value in nested.items()}


def chosen_types(argv: Sequence[str]) -> dict[str, str]:
    """Return option such as `robot` to the type that a command line chooses for it."""
    return {n.removesuffix(".type"): v for n, v in _pairs(argv) if v and n.endswith(".type")}


def file_types(argv: Sequence[str]) -> dict[str, str]:
    """Return option such as `robot` to the type that the file of `--config_path` chooses for it."""
    path = next((v for n, v in _pairs(argv) if n == CONFIG_PATH and v is not None), None)
    nested = load_yaml(Path(path), "Config file") if path else {}
    return {n.removesuffix(".type"): str(v) for n, v in _flat(nested) if n.endswith(".type")}


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
    argv: Sequence[str], options: Mapping[str, Option], positional: Sequence[str], program: str
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
                f"All of them: {program} --help=all"
            )
        if not equals:
            text = _next_text(option, tokens)
        if option is not None:
            yield name, text
    yield from _name_loose(loose, options, positional, program)


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
    loose: Sequence[str], options: Mapping[str, Option], positional: Sequence[str], program: str
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
                f"Unexpected argument '{token}'. Options are written --name=value: {program} --help"
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
    nested: Mapping[str, Any], options: Mapping[str, Option], path: str | None, program: str
) -> None:
    leaves = {name for name, option in options.items()}
    for name, _ in _flat(nested, leaves):
        if name not in leaves:
            raise UnusableInputError(
                f"{path}: unknown option '{name}'.{nearest(name, options).replace('--', '')} "
                f"All of them: {program} --help=all"
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
    said = error.message if isinstance(error, DecodingError) else ""
    fits = next(
        (o for n in range(len(path), 0, -1) if (o := options.get(".".join(path[:n])))), None
    )
    missing = re.findall(r"`(\w+)`", said) if "required field" in said else []
    if fits is not None and (missing or "choice class" in said):
        return _inside(fits, path, said, missing, causes)
    if missing:
        names = [".".join((*path, name)) for name in missing]
        shown = (f"--{n}={options[n].metavar}" if n in options else f"--{n}.type" for n in names)
        return UnusableInputError(f"Missing: {', '.join(shown)}")
    if fits is not None:
        value = _get(nested, fits.name)
        return UnusableInputError(
            f"--{fits.name}={value} doesn't fit. Write it as --{fits.name}={fits.metavar}"
        )
    place = f"--{'.'.join(path)}: " if path else ""
    return UnusableInputError(f"{place}{causes[-1]}")


def _inside(
    option: Option,
    path: Sequence[str],
    said: str,
    missing: Sequence[str],
    causes: Sequence[BaseException],
) -> GaploopError:
    """Return what is wrong within an option's value, such as one camera of `--robot.cameras`."""
    entry = ".".join(path[option.name.count(".") + 1 :])
    where = f"--{option.name}"
    if missing:
        return UnusableInputError(f"{where}: '{entry}' lacks {', '.join(missing)}.")
    given = next((c.args[0] for c in causes if isinstance(c, KeyError) and c.args), "")
    known = next((t for t in _choice_types(option.kind)), None)
    if known is None:
        return UnusableInputError(f"{where}: '{entry}': {said}")
    return unknown_choice("type", given, known.get_known_choices(), f"{where}, '{entry}'")


def _choice_types(kind: Any) -> Iterator[Any]:
    """Yield the registries of types that a type such as `dict[str, CameraConfig]` names."""
    if isinstance(kind, type) and issubclass(kind, draccus.ChoiceRegistry):
        yield kind
    for part in get_args(kind):
        yield from _choice_types(part)
