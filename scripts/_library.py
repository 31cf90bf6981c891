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
from typing import Any

from gaploop.scripts import cli
from gaploop.scripts._arguments import parse


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
        module = sys.modules[work.__module__]
        nested = {option.rstrip("_"): _plain(value) for option, value in options.items()}
        types = [
            f"--{group}.{key}={value[key]}"
            for group, value in nested.items()
            for key in (("type", "gym", "scene") if group == "env" else ("type",))
            if isinstance(value, dict) and key in value
        ]
        config_class = cli.config_class_of(module, name, types)
        positional = cli.positional(module)
        words = [str(value) for value in given]
        return work(parse(config_class, words, positional, f"gaploop {name}", nested))

    return call


def _plain(value: Any) -> Any:
    """Return a value as a YAML file would hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
