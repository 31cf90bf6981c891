"""From a command line to a command's config: the options of its dataclass, read and checked.

Options are read off a dataclass, those within it and the chosen types. Draccus decodes (as in
LeRobot: the same types, the same choice registries such as `--robot.type`); the command line is
read here, because draccus's own reader interprets text as YAML (a task "pick: the cube" becomes a
mapping), knows no bare booleans and no positionals, and reports errors as argparse does.
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import draccus
from draccus.utils import DraccusException, is_choice_type

from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.schema import load_yaml, parse_yaml
from gaploop.datasets.hub.target import is_hub_address, require_policy
from gaploop.scripts.former_names import of_lerobot

CONFIG_PATH: Final = "config_path"
DATASET_ROOT: Final = "dataset.root"
_FOLDERS: Final = ("root", "roots", "source", "folder")
"""What some commands call the folder that others, and LeRobot's, call `dataset.root`."""
POLICIES: Final = ("policy.path", "baseline", "candidate", "reset")
INPUTS: Final = (
    *("real", "sim", "mixture", "rollouts", "reference", "trained_on", "watch"),
    *("twin", "env.twin", "robot.twin", "env.scene", "robot.scene"),
    *("plan", "suite", "diagnosis", "takes", "carried_out", "outcomes"),
)
"""Options that name what has to be there, in any command: `require_inputs` looks for it."""
_NO_INPUT: Final = ("help", "auto", "never", "person", "script", "null", "true", "false", "")
"""Words that some of them take in the place of a path."""
_ON_A_PORT: Final = tuple(
    f"{arm}_{role}"
    for arm in ("so", "so100", "so101", "koch", "omx")
    for role in ("follower", "leader")
)
"""Arms on a serial port. LeRobot's class says so too, after seconds of imports."""
_WORDS: Final = {bool: "true|false", int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        name: with dots, without dashes, such as `dataset.root`.
        default: what it is unless given; MISSING where it must be given.
        differs: the default differs from that of the dataclass it stands in.
        choices: the only values it may take, if it is a choice.
    """

    name: str
    kind: Any
    default: Any
    differs: bool
    help: str
    choices: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types its value may have."""
        union = typing.get_origin(self.kind) in (typing.Union, types.UnionType)
        return typing.get_args(self.kind) if union else (self.kind,)

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return (typing.get_origin(self.kind) or self.kind) in (list, tuple, set)

    @property
    def metavar(self) -> str:
        """What stands after the `=` in the help."""
        if self.choices:
            return "|".join(self.choices)
        if self.is_list:
            return "'[A, B]'"
        if (typing.get_origin(self.kind) or self.kind) is dict:
            return "'{\"NAME\": VALUE}'"
        return next((_WORDS[kind] for kind in reversed(self.kinds) if kind in _WORDS), "VALUE")


def find_options(
    config_class: type, chosen: Mapping[str, str], default: Any = None, prefix: str = ""
) -> Iterator[Option]:
    """Yield the options of a dataclass, of those within it, and of the chosen types.

    Args:
        config_class: the dataclass. Fields with the metadata `{"option": False}` are none.
        chosen: option such as `robot` to the type chosen for it.
        default: an instance whose values stand where nothing is given.
    """
    hints = typing.get_type_hints(config_class)
    for spec in dataclasses.fields(config_class):
        if not spec.init or not spec.metadata.get("option", True):
            continue
        kind, name = hints[spec.name], prefix + spec.name.rstrip("_")
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            rest = tuple(k for k in typing.get_args(kind) if k is not type(None))
            kind = rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007 (made here)
        own = spec.default
        if spec.default_factory is not dataclasses.MISSING:
            own = spec.default_factory()
        value = own if default is None else getattr(default, spec.name)
        # What the class that defines the field says about it.
        owners = (c for c in config_class.__mro__ if spec.name in inspect.get_annotations(c))
        doc = " ".join(_field_docs(next(owners)).get(spec.name, "").split())
        if is_choice_type(kind):
            known = kind.get_known_choices()
            yield Option(f"{name}.type", str, None, False, doc, tuple(sorted(known)))
            selected = known.get(chosen.get(name, kind.default_choice_name()))
            if selected is not None:
                yield from find_options(selected, chosen, None, f"{name}.")
        elif dataclasses.is_dataclass(kind):
            within = value if dataclasses.is_dataclass(value) else None
            yield from find_options(typing.cast(type, kind), chosen, within, f"{name}.")
        else:
            words: Sequence[Any] = ()
            if isinstance(kind, type) and issubclass(kind, Enum):
                words = [member.value for member in kind]
            elif typing.get_origin(kind) is typing.Literal:
                words = typing.get_args(kind)
            yield Option(name, kind, value, value != own, doc, tuple(map(str, words)))


@functools.cache
def _field_docs(owner: type) -> dict[str, str]:
    """Return field to its docstring, else LeRobot's ways: a comment, an entry of "Attributes:".

    (Draccus's reader loses the docstring of the first field and fails on "Attributes:".)
    """
    _, _, section = (inspect.getdoc(owner) or "").partition("Attributes:\n")
    entry = re.compile(r"^    (\w+)[^:\n]*:(.*(?:\n {5,}.*)*)", re.MULTILINE)
    docs = dict[str, str](entry.findall(section.partition("\n\n")[0]))
    try:
        source = textwrap.dedent(inspect.getsource(owner))
        (defined,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError):  # made at run time, or indented beyond repair
        return docs
    lines, body = source.splitlines(), getattr(defined, "body", [])
    for spec, after in itertools.zip_longest(body, body[1:]):
        if not isinstance(spec, ast.AnnAssign) or not isinstance(spec.target, ast.Name):
            continue
        match after:
            case ast.Expr(ast.Constant(str(words))):
                pass
            case _:  # the comment above a field, or else the one beside it
                before = reversed(lines[: spec.lineno - 1])
                above = itertools.takewhile(lambda line: line.lstrip()[:1] == "#", before)
                words = " ".join(line.strip(" #") for line in reversed(list(above)))
                beside = lines[(spec.end_lineno or 1) - 1][spec.end_col_offset or 0 :].strip()
                words = words.strip() or (beside.strip("# ") if beside[:1] == "#" else "")
        if words:
            docs[spec.target.id] = words
    return docs


def parse(
    config_class: type,
    argv: Sequence[str],
    positional: Sequence[str],
    program: str,
    values: dict[str, Any] | None = None,
) -> Any:
    """Return the config that a command line asks for.

    Args:
        config_class: the command's dataclass. Options of the groups that its `UNREAD` names are
            left out, whatever they are, and what they are given.
        positional: the options that arguments without a name fill, in order; the last may be
            a list and episodes all that are left.
        program: what a user types to call it, for messages.
        values: what a Python call gives by name, as a file of `--config_path` would hold it.

    Raises:
        UnusableInputError: an option that doesn't exist, or a value that doesn't fit.
    """
    path, nested = _config_file(argv)
    unread = getattr(config_class, "UNREAD", ())
    nested = {n: value for n, value in {**nested, **(values or {})}.items() if n not in unread}
    usual = {  # the types that devices are unless others are chosen
        spec.name: naming(spec.default_factory)
        for spec in dataclasses.fields(config_class)
        if (naming := getattr(spec.default_factory, "get_choice_name", None)) is not None
    }
    chosen = {**usual, **_types_in(nested), **chosen_types(argv)}
    options = {o.name: o for o in find_options(config_class, chosen)}
    for name, _ in _flat(nested, options.keys()):
        if name not in options:
            hint = nearest(name, options).replace("--", "")
            raise UnusableInputError(
                f"{f'{path}: unknown' if path else 'Unknown'} option '{name}'.{hint} All of them: "
                f"{program} --help=all"
            )
    for name, text in _read(argv, options, positional, program, unread):
        holder, (*groups, leaf) = nested, name.split(".")
        for group in groups:
            if not isinstance(holder.get(group), dict):
                holder[group] = {}
            holder = holder[group]
        holder[leaf] = _value(options[name], text)
    for name, kind in usual.items():
        if isinstance(nested.get(name), dict):
            nested[name].setdefault("type", kind)
    # Draccus would fall back to the class's own defaults in a group of which anything is given.
    for option in options.values():
        group, _, leaf = option.name.rpartition(".")
        beside = _get(nested, group) if group else None
        if option.differs and isinstance(beside, dict) and leaf not in beside:
            beside[leaf] = draccus.encode(option.default)
    # An option such as --import stands in the field `import_`.
    fields = {spec.name.rstrip("_"): spec.name for spec in dataclasses.fields(config_class)}
    nested = {fields.get(name, name): value for name, value in nested.items()}
    try:
        config = draccus.decode(config_class, nested)
    except DraccusException as error:
        raise _readable(error, nested, options) from None
    vars(config)["given"] = nested  # see `session_options.is_given`
    return config


def chosen_types(argv: Sequence[str]) -> dict[str, str]:
    """Return option such as `robot` to the type that a command line chooses for it."""
    return {n.removesuffix(".type"): v for n, v in _pairs(argv) if v and n.endswith(".type")}


def all_types(argv: Sequence[str]) -> dict[str, str]:
    """Return `chosen_types`, also of the file of `--config_path`."""
    return _types_in(_config_file(argv)[1]) | chosen_types(argv)


def require_inputs(argv: Sequence[str], positional: Sequence[str]) -> None:
    """Refuse a policy, dataset or file that isn't there, before anything heavy is imported.

    So is an arm of which nobody says where it is.

    Raises:
        UnusableInputError: one isn't there.
    """
    bare = itertools.takewhile(lambda token: not token.startswith("-"), argv)
    given = dict(_flat(_config_file(argv)[1]))
    given |= {**dict(zip(positional, bare, strict=False)), **dict(_pairs(argv))}
    for name in (*POLICIES, *INPUTS):
        value = given.get(name)
        if isinstance(value, str) and value.startswith("["):
            with contextlib.suppress(UnusableInputError):  # said when options are read
                value = parse_yaml(value, f"--{name}")
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, str) or path in _NO_INPUT or is_hub_address(path):
                continue
            if path.startswith("-"):  # the next option, where this one has no value
                continue
            if name in POLICIES:
                require_policy(path)
            elif not Path(path).expanduser().exists():
                raise UnusableInputError(f"--{name}: {path} not found. Check the path.")
    for group in () if "status" in given else ("robot", "teleop"):  # what a plan lacks needs none
        if given.get(f"{group}.type") in _ON_A_PORT and f"{group}.port" not in given:
            raise UnusableInputError(
                f"Missing: --{group}.port=TEXT, such as /dev/ttyACM0. To list them: gaploop doctor"
            )


def nearest(name: str, options: Mapping[str, Option]) -> str:
    """Return a hint with the option most like `name`, or the empty text."""
    near = difflib.get_close_matches(name, [*options, CONFIG_PATH], n=1, cutoff=0.6)
    last = [o for o in options if o.rpartition(".")[2] == name.rpartition(".")[2]]
    best = [name] if name in options else last or near
    return f" Did you mean --{best[0]}?" if best else ""


def _unknown(names: Sequence[str], options: Mapping[str, Option], program: str) -> str:
    """Return a line for options that the command hasn't, with what to type in place of each."""
    command, told = program.rpartition(" ")[2], list[str]()
    for name in names:
        here, bare = of_lerobot(command, name.lstrip("-")), name.lstrip("-")
        told.append(f"{name} (here: {here})." if here else f"{name}.{nearest(bare, options)}")
    return f"Unknown option {' And '.join(told)}"


def _types_in(nested: Mapping[str, Any]) -> dict[str, str]:
    return {n.removesuffix(".type"): str(v) for n, v in _flat(nested) if n.endswith(".type")}


def _config_file(argv: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the file that a command line names, "" without, and what it holds."""
    path = next((v for n, v in _pairs(argv) if n == CONFIG_PATH and v is not None), "")
    return path, load_yaml(Path(path), "Config file") if path else {}


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield option and text, also of `--name text`, without knowing which options there are."""
    for token, after in itertools.zip_longest(argv, argv[1:]):
        if token.startswith("--"):
            name, equals, text = token[2:].partition("=")
            yield name, text if equals else after


def _read(
    argv: Sequence[str],
    options: Mapping[str, Option],
    positional: Sequence[str],
    program: str,
    unread: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield option and text of a command line; positionals are given their option's name."""
    tokens, loose, unknown = list(argv), list[str](), list[str]()
    while tokens:
        token = tokens.pop(0)
        if not token.startswith("-"):
            loose.append(token)
            continue
        name, equals, text = token.lstrip("-").partition("=")
        if name == DATASET_ROOT and name not in options:  # as other commands call the folder
            name = next((n for n in positional if n in _FOLDERS and n in options), name)
        option, ahead = options.get(name), tokens[0] if tokens else None
        if name.partition(".")[0] in unread:
            del tokens[: not equals and ahead is not None and not ahead.startswith("--")]
            continue
        if (option is None and name != CONFIG_PATH) or not token.startswith("--"):
            unknown.append(token.partition("=")[0])
            del tokens[: not equals and ahead is not None and not ahead.startswith("-")]
            continue
        if not equals and option is not None and option.kind is bool:  # a bare one means true
            text = tokens.pop(0) if ahead in ("true", "false") else "true"
        elif not equals and (ahead is None or ahead.startswith("--")):
            word = option.metavar if option else "FILE.yaml"
            raise UnusableInputError(f"--{name} needs a value: --{name}={word}")
        elif not equals:
            text = tokens.pop(0)
        if option is not None:
            yield name, text
    if unknown:
        raise UnusableInputError(f"{_unknown(unknown, options, program)} All: {program} --help=all")
    names = [name for name in positional if name in options]
    if names and len(loose) > len(names) and options[names[-1]].is_list:
        rest = ", ".join(f'"{token}"' for token in loose[len(names) - 1 :])
        loose[len(names) - 1 :] = [f"[{rest}]"]
    if len(loose) > len(names):
        token = loose[len(names)]
        here = f" Name it with --robot.topics={token}." if "robot.topics" in options else ""
        raise UnusableInputError(
            f"Unexpected argument '{token}'.{here} Options are written --name=value: "
            f"{program} --help"
        )
    yield from zip(names, loose, strict=False)


def _value(option: Option, text: str) -> Any:
    """Interpret an option's text by its type: text stays text, all else is read as YAML."""
    if option.choices and text not in option.choices:
        raise unknown_choice(f"--{option.name}", text, option.choices)
    if text == "null":
        return None
    if option.choices or all(kind in (str, Path) for kind in option.kinds):
        return text
    if option.is_list and not text.lstrip().startswith("["):
        return [text]
    try:
        value = parse_yaml(text, f"--{option.name}")
    except UnusableInputError:
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


def _flat(
    nested: Mapping[str, Any], leaves: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in leaves:
            yield from _flat(value, leaves, f"{name}.")
        elif value is not None or name in leaves:
            yield name, value


def _get(nested: Any, name: str) -> Any:
    for part in name.split("."):
        nested = nested.get(part) if isinstance(nested, dict) else None
    return nested


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
    path: Sequence[str] = getattr(error, "key_path", ())
    said = getattr(error, "message", "")
    missing = re.findall(r"`(\w+)`", said) if "required field" in said else []
    starts = (".".join(path[:n]) for n in range(len(path), 0, -1))
    fits = next((options[start] for start in starts if start in options), None)
    if fits is None and missing:
        names = [".".join((*path, name)) for name in missing]
        shown = (f"--{n}={options[n].metavar}" if n in options else f"--{n}.type" for n in names)
        return UnusableInputError(f"Missing: {', '.join(shown)}")
    if fits is None:
        place = f"--{'.'.join(path)}: " if path else ""
        return UnusableInputError(f"{place}{causes[-1]}")
    where = f"--{fits.name}"
    if not missing and "choice class" not in said:
        value = _get(nested, fits.name)
        return UnusableInputError(
            f"{where}={value} doesn't fit. Write it as {where}={fits.metavar}"
        )
    # Within an option's value, such as one camera of `--robot.cameras`.
    entry = ".".join(path[fits.name.count(".") + 1 :])
    if missing:
        return UnusableInputError(f"{where}: '{entry}' lacks {', '.join(missing)}.")
    kinds = [fits.kind]
    while kinds and not (
        isinstance(kinds[0], type) and issubclass(kinds[0], draccus.ChoiceRegistry)
    ):
        kinds += typing.get_args(kinds.pop(0))
    if not kinds:
        return UnusableInputError(f"{where}: '{entry}': {said}")
    given = next((c.args[0] for c in causes if isinstance(c, KeyError) and c.args), "")
    return unknown_choice("type", given, kinds[0].get_known_choices(), f"{where}, '{entry}'")
