"""The program `gaploop`: finds the command, reads its options, runs it, returns its exit code.

A command is a module `scripts/<command>.py` with

- `@dataclass class <Command>Config`, whose docstring is the help; or
  `config_class_for(arguments) -> type | None` where some of its options need heavy imports (None:
  the usual one);
- if some of its options are LeRobot's devices, `DEVICES`, as `with_devices` takes them;
- `EXAMPLE: str`, printed by `--help`;
- if it has many options, `RARE: tuple[str, ...]`, names or patterns of those that only
  `--help=all` lists; what the example uses is always listed;
- `def run(config) -> int`, the exit code: 0 done, 1 the answer is no, 3 inconclusive; in
  `scripts/_<command>.py` where it imports more than the help may wait for;
- if it takes arguments without a name, `POSITIONAL: str | tuple[str, ...]` with the options
  they fill, in order; `dataset.root` unless given;
- if it hands options on to another program, `PASSED_ON: str`, the list that takes whatever
  stands behind a bare `--`.

Nothing heavy is imported until a command is known: `gaploop --help` reads the files' text.
`command` makes a function of what a command does: `gaploop.diagnose("rollouts", output_dir="out")`.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError, file_words, unknown_choice
from gaploop.core.progress import loading, setup_logging
from gaploop.scripts._output import print_error, stdout_is_json
from gaploop.scripts.former_names import LEROBOT_COMMANDS, current, refusal

HELPERS: Final = ("cli", "former_names", "options")
"""Modules in this folder that are not commands, besides those that begin with an underscore."""

USAGE: Final = "gaploop <command> [DIR] [--option=value ...]"
GLOBAL: Final[Mapping[str, str]] = {
    "config_path=FILE.yaml": "Read options from a file; those given on the command line win.",
    "json": "Print one JSON object on stdout; what is in it: --help=all.",
}
"""Options of every command, which `gaploop --help` lists once."""
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells do
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "start here": ("demo", "record", "diagnose", "plan", "finetune", "evaluate"),
    "drive": ("teleoperate", "rollout", "serve", "doctor", "calibrate", "emulate"),
    "episodes and datasets": ("publish", "check", "label", "review", "edit", "convert", "consent"),
    "find out why": ("identify",),
    "deploy": ("gate", "push"),
}
"""Commands by job, as `gaploop --help` lists them; those in no group come last."""
_EXTRAS: Final[Mapping[str, str]] = {
    "any": "torch torchvision lerobot mujoco so101_nexus gymnasium datasets pandas",
    "robot": "mink serial fastcrc websockets cryptography msgspec segno zmq pygame rerun",
    "train": "peft transformers accelerate safetensors diffusers wandb",
}
"""The extra that brings packages which an installation without extras lacks."""
_TERMINATING: Final = platform_calls.signals("SIGTERM", "SIGHUP", "SIGQUIT")
SIGPIPE: Final = 13  # POSIX; Windows has no such signal, but the same exit code will do
_WIDTH, _INDENT = 96, " " * 8
_HELP: Final = frozenset({"--help", "-h", "--help=all"})
_DISCOVER: Final = ".discover_packages_path="

# Python looks through all that torch and its like have made, several times, as it ends: seconds.
atexit.register(gc.freeze)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gaploop` with `argv`, or the process's own arguments, and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments, moved = current(given)
    if moved:
        print_error(moved, f"gaploop {given[0]}")
    if gone := refusal(arguments):
        print_error(gone, f"gaploop {arguments[0]}")
        return UnusableInputError.exit_code
    command = "" if not arguments or arguments[0].startswith("-") else arguments[0]
    program = f"gaploop {command}" if command in commands() else "gaploop"
    return guard(program, lambda: _dispatch(command, arguments))


def guard(program: str, work: Callable[[], int]) -> int:
    """Return the exit code of `work`; what a user can fix is said in one line on stderr."""
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        came.append(number)
        raise Terminated(number)

    # SIGTERM and its like become an exception, so that who holds a device or a file lets go. One
    # that is ignored, as SIGHUP under nohup, stays so. Outside the main thread, whoever called us
    # minds the signals.
    heeded = _TERMINATING if threading.current_thread() is threading.main_thread() else ()
    numbers = [n for n in heeded if signal.getsignal(n) is not signal.SIG_IGN]
    try:
        with platform_calls.signals_handled(numbers, stop):
            code = work()
        return 128 + came[0] if came else code
    except GaploopError as error:
        print_error(str(error), program)
        return error.exit_code
    except Terminated as ended:
        raise SystemExit(128 + ended.number) from None
    except KeyboardInterrupt:
        print_error("interrupted.", program)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE
    except OSError as error:
        check = "that path, its permissions and the space left"
        if type(error).__module__.startswith("urllib"):  # weights of a backbone, such as ACT's
            check = "the network: something is downloaded"
        print_error(f"{file_words(error)}. Check {check}.", program)
        return UnusableInputError.exit_code


def commands() -> dict[str, Path]:
    """Return the commands that exist, name to module file, in alphabetical order."""
    found = sorted(Path(__file__).parent.glob("*.py"))
    names = {path.stem.rstrip("_").replace("_", "-"): path for path in found}
    return {n: p for n, p in names.items() if p.stem not in HELPERS and not p.stem.startswith("_")}


def _dispatch(command: str, arguments: list[str]) -> int:
    if not command:
        if arguments == ["--version"]:
            from importlib.metadata import version

            print(f"gaploop {version('gaploop')}")
            return 0
        if arguments and arguments[0] not in _HELP:
            raise UnusableInputError(
                f"Unknown option {arguments[0]}. The command comes first: {USAGE}. "
                "See: gaploop --help"
            )
        print(_overview())
        return 0 if arguments else UnusableInputError.exit_code
    known = commands()
    if command in ("bench", "benchmark"):
        raise UnusableInputError(
            "Benchmarks aren't in the package: python -m benchmarks NAME, from a checkout."
        )
    if command in LEROBOT_COMMANDS:
        raise UnusableInputError(f"No command {command}: {LEROBOT_COMMANDS[command]} does it.")
    if command not in known:
        raise unknown_choice("command", command, known)
    try:
        module = importlib.import_module(f"gaploop.scripts.{known[command].stem}")
        return run_module(module, command, arguments[1:], f"gaploop {command}")
    except ModuleNotFoundError as error:
        extra = _extra_with((error.name or "").partition(".")[0], command, arguments)
        if not extra:
            raise
        raise UnusableInputError(
            f"{error.name} isn't installed: pip install 'gaploop[{extra}]'"
        ) from error


def _extra_with(package: str, command: str, arguments: list[str]) -> str:
    """Return the extra that brings a package, "" for a package that none brings."""
    extra = next((extra for extra, names in _EXTRAS.items() if package in names.split()), "")
    if extra != "any":
        return extra
    if any("_sim" in argument for argument in arguments):
        return "sim"
    return "robot" if command in ("record", *GROUPS["drive"]) else "train"


def run_module(module: ModuleType, command: str, given: list[str], program: str) -> int:
    """Run a command's module, or print its help; `program` is what a user types to call it."""
    if any(_DISCOVER in argument for argument in given):
        from gaploop.collect.lerobot_types import discover

        given = discover(given)
    from gaploop.scripts._arguments import parse, require_inputs

    passes_on = hasattr(module, "PASSED_ON") and "--" in given
    own = given[: given.index("--")] if passes_on else given
    if not _HELP & set(own):
        require_inputs(own, positional(module))
    # LeRobot's devices, on a busy machine, or what a command imports to do its work.
    with loading(program):
        config_class = config_class_of(module, command, given)
    if _HELP & set(own):
        print(_command_help(program, module, config_class, given))
        return 0
    setup_logging()
    config = parse(config_class, own, positional(module), program)
    if passes_on:
        setattr(config, module.PASSED_ON, given[len(own) + 1 :])
    with stdout_is_json() if getattr(config, "json", False) else contextlib.nullcontext():
        try:
            package, _, name = module.__name__.rpartition(".")
            with loading(program):
                has_run = hasattr(module, "run")
                body = module if has_run else importlib.import_module(f"{package}._{name}")
            return int(body.run(config) or 0)
        except SystemExit as stop:
            if stop.code:
                raise
            raise GaploopError(
                "The code of a device, a policy or another plug-in ended the program (sys.exit). "
                "Take that out of it."
            ) from stop


def positional(module: ModuleType) -> tuple[str, ...]:
    """Return the options that a command's arguments without a name fill, in order."""
    names = getattr(module, "POSITIONAL", "dataset.root")
    return (names,) if isinstance(names, str) else tuple(names)


def config_class_of(module: ModuleType, command: str, arguments: Sequence[str]) -> type:
    """Return the dataclass of a command's options, by what the arguments choose."""
    made: type | None = getattr(module, "config_class_for", lambda _arguments: None)(arguments)
    if made is not None:
        return made
    made = getattr(module, f"{command.title().replace('-', '')}Config")
    if not hasattr(module, "DEVICES"):
        return made
    from gaploop.collect.lerobot_types import with_devices
    from gaploop.scripts._arguments import chosen_types

    given = {argument.partition("=")[0] for argument in arguments}
    needs_options = chosen_types(arguments) or "--config_path" in given
    return with_devices(made, module.DEVICES, bool(_HELP & given) and not needs_options)


def _overview() -> str:
    """Return what `gaploop --help` prints."""
    lines = ["Find out why a robot policy fails, record what fixes it, fine-tune, prove it.", ""]
    lines += [f"usage: {USAGE}"]
    known = {}
    for name, path in commands().items():  # the first line of each one's help, without importing it
        text, config = path.read_text(), path.stem.replace("_", "")
        of_config = re.search(rf'(?im)^class {config}Config\b.*:\n    """(.*?)("""|$)', text)
        of_file = text.partition('"""')[2].partition("\n")[0].removesuffix('"""')
        known[name] = of_config[1] if of_config else of_file
    width = max(map(len, known), default=0) + 2
    rest = known.keys() - {name for names in GROUPS.values() for name in names}
    for group, names in (*GROUPS.items(), ("more", sorted(rest))):
        there = [name for name in names if name in known]
        lines += ["", f"{group}:"] if there else []
        lines += [f"  {name:<{width}}{known[name]}" for name in there]
    lines += ["", "options of every command:"]
    lines += [f"  --{name:<{width + 12}}{words}" for name, words in GLOBAL.items()]
    lines += ["", "Options and an example: gaploop <command> --help; rare ones too: --help=all"]
    lines += ["Exit codes: 0 done, 1 the answer is no, 2 unusable input, 3 inconclusive"]
    return "\n".join(lines)


def _command_help(program: str, module: ModuleType, config_class: type, argv: list[str]) -> str:
    """Return what `--help` behind a command prints."""
    from gaploop.scripts._arguments import chosen_types, find_options

    chosen = chosen_types(argv)
    options = list(find_options(config_class, chosen))
    example = textwrap.dedent(getattr(module, "EXAMPLE", "")).strip()
    used = set(re.findall(r"--([\w.]+)", example)) - {"json"}
    rare = [
        option
        for option in options
        if "--help=all" not in argv
        and option.name not in used
        and any(fnmatchcase(option.name, p) for p in ("json", *getattr(module, "RARE", ())))
    ]
    by_name = {o.name: o for o in options}
    fills = [by_name[name] for name in positional(module) if name in by_name]
    words = "".join(f" [{o.name.rpartition('.')[2].upper()}{' ...' * o.is_list}]" for o in fills)
    lines = [f"usage: {program}{words} [--option=value ...]", ""]
    first, _, rest = (config_class.__doc__ or "").partition("\n")
    lines += [f"{first}\n{textwrap.dedent(rest)}".strip(), "", "options:"]
    for option in options:
        if option in rare:
            continue
        words = option.help
        group, _, leaf = option.name.rpartition(".")
        if leaf == "type" and option.choices and group not in chosen:
            words += f" More options with: --{option.name}=… --help"
        if option.default is MISSING:
            words += " (required)"
        elif option.default not in (None, "", [], {}, ()):
            value = getattr(option.default, "value", option.default)
            value = list(value) if isinstance(value, tuple) else value  # as it is typed
            words += f" (default: {str(value).lower() if isinstance(value, bool) else value})"
        lines += [f"  --{option.name}={option.metavar}"]
        lines += textwrap.wrap(
            words.strip(), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )
    if example:
        lines += ["", "example:", textwrap.indent(example, "  ")]
    more = len([option for option in rare if option.name != "json"])
    if more:
        lines += ["", f"{more} more option{'s' * (more > 1)}: {program} --help=all"]
    lines += ["" * (more > 0), "--config_path, --json: gaploop --help"][more > 0 :]
    return "\n".join(lines)


class Terminated(KeyboardInterrupt):
    """A signal asks for the program's end; no plug-in's SystemExit."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def command[Config, Result](work: Callable[[Config], Result]) -> Callable[..., Result]:
    """Let a command's work be called from Python with its options by name.

    The function takes the options' dataclass, filled in. Or it takes what stands without a name on
    the command line, such as the folder, and the other options by name, those of a group as a
    dictionary: `policy={"path": "adapted"}`, `robot={"type": "so101_sim"}`.
    """
    name = work.__name__

    @functools.wraps(work)
    def call(*given: Any, **options: Any) -> Result:
        if given and not isinstance(given[0], str | Path):
            return work(given[0])
        from gaploop.scripts._arguments import parse

        module = importlib.import_module(f"gaploop.scripts.{name}")
        nested = {option.rstrip("_"): _plain(value) for option, value in options.items()}
        types = [
            f"--{group}.{key}={value[key]}"
            for group, value in nested.items()
            for key in (("type", "gym", "scene") if group == "env" else ("type",))
            if isinstance(value, dict) and key in value
        ]
        config_class = config_class_of(module, name, types)
        words = [str(value) for value in given]
        return work(parse(config_class, words, positional(module), f"gaploop {name}", nested))

    return call


def _plain(value: Any) -> Any:
    """Return a value as a YAML file would hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    sys.exit(main())
