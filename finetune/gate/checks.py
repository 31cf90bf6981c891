"""Success checks and resets that a suite names as `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import FUNCTION_FORM, SuiteTask
from gaploop.core.types import Observation


@dataclass(frozen=True)
class Evidence:
    """What a success check is shown of an attempt.

    Attributes:
        instruction: what the policy was told.
        observations: every policy frame, in the embedded cell.
        folder: what the command wrote, on a station; None in the embedded cell.
    """

    instruction: str
    observations: Sequence[Observation] = ()
    folder: Path | None = None


def check_of(task: SuiteTask) -> Callable[[Evidence], bool] | None:
    """Return a task's own success check; None where the operator or the cell says.

    Raises:
        UnusableInputError: there is no such function.
    """
    if not task.check:
        return None
    function = named_function(task.check, f"check of task '{task.name}'")
    if task.success_check == "reward_model":
        return lambda shown: float(function(shown)) >= task.threshold
    return lambda shown: bool(function(shown))


def named_function(name: str, where: str) -> Callable[..., Any]:
    """Return the function called `module:function`.

    Raises:
        UnusableInputError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnusableInputError(
            f"{where}: {name} can't be imported ({error}). It must be {FUNCTION_FORM}, on "
            "PYTHONPATH or installed."
        ) from None
    if not callable(found):
        raise UnusableInputError(f"{where}: {name} isn't a function.")
    return found  # type: ignore[no-any-return]
