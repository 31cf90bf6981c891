"""A command as a function: `gaploop.diagnose("rollouts", output_dir="out")`.

What a command takes is written once, in its options' dataclass. Here its fields are arguments by
name, a group such as `--policy.path` a dictionary, and whatever the command line refuses is refused
in the same words.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

from gaploop.scripts import cli
from gaploop.scripts._arguments import from_values


class LibraryCommand[Config, Result]:
    """The function of a command: takes its options, returns what it found, prints nothing.

    Args:
        work: does it, from options that were checked.
    """

    def __init__(self, work: Callable[[Config], Result]) -> None:
        self._work = work
        functools.update_wrapper(self, work)

    @overload
    def __call__(self, config: Config, /) -> Result: ...
    @overload
    def __call__(self, /, *given: str | Path, **options: Any) -> Result: ...
    def __call__(self, /, *given: Any, **options: Any) -> Result:
        """Do it.

        Args:
            given: the options' dataclass, filled in; or what stands without a name on the command
                line, such as the folder.
            options: the other options by name, those of a group as a dictionary:
                `policy={"path": "adapted"}`, `robot={"type": "so101_sim"}`.

        Raises:
            GaploopError: in one line, what a user can fix.
        """
        if given and not isinstance(given[0], str | Path):
            return self._work(given[0])
        module, name = sys.modules[self._work.__module__], self._work.__name__
        nested = {name.rstrip("_"): _plain(value) for name, value in options.items()}
        types = [
            f"--{group}.type={value['type']}"
            for group, value in nested.items()
            if isinstance(value, dict) and "type" in value
        ]
        config_class = cli.config_class_of(module, name, types)
        positional = cli.positional(module)
        return self._work(from_values(config_class, given, nested, positional, f"gaploop {name}"))


def command[Config, Result](work: Callable[[Config], Result]) -> LibraryCommand[Config, Result]:
    """Let a command be called from Python with its options by name."""
    return LibraryCommand(work)


def _plain(value: Any) -> Any:
    """Return a value as a YAML file would hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
