"""Success checks and resets that a suite names as `module:function`."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import FUNCTION_FORM, SuiteTask
from gaploop.core.types import Observation


@dataclass(frozen=True)
class StageEvidence:
    """What a success check is shown of an attempt.

    Attributes:
        instruction: what the policy was told.
        observations: every policy frame, in the embedded cell.
        folder: what the command wrote, on a station; None in the embedded cell.
    """

    instruction: str
    observations: Sequence[Observation] = ()
    folder: Path | None = None


class CheckError(UnusableInputError):
    """A check or reset failed, or said what can't be understood."""


def check_of(task: SuiteTask) -> Callable[[StageEvidence], bool] | None:
    """Return a task's own success check; None where the operator or the cell says.

    It raises CheckError where the function fails, or returns neither yes or no (a script) nor a
    number (a reward model): the word "no" would count as a success, NaN as a failure.

    Raises:
        UnusableInputError: there is no such function.
    """
    if not task.check:
        return None
    where = f"check of task '{task.name}'"
    function = named_function(task.check, where)

    def judged(shown: StageEvidence) -> bool:
        said = called(function, shown, f"{where}: {task.check}")
        scored = task.success_check == "reward_model"
        try:
            score = float(said) if scored or said in (0, 1) else math.nan
        except (TypeError, ValueError):
            score = math.nan
        if math.isnan(score):
            wanted = "a number" if scored else "True or False"
            raise CheckError(f"{where}: {task.check} returned {said!r}, not {wanted}.")
        return score >= (task.threshold if scored else 0.5)

    return judged


def called(function: Callable[..., Any], shown: object, where: str) -> Any:
    """Call what a suite names; what it prints goes to stderr.

    Raises:
        CheckError: it failed.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is the verdict's
            return function(shown)
    except Exception as error:  # anything may be wrong in a function that isn't ours
        raise CheckError(f"{where} failed ({type(error).__name__}: {error}).") from error


def named_function(name: str, where: str) -> Callable[..., Any]:
    """Return the function called `module:function`.

    Raises:
        UnusableInputError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs what isn't ours
        raise UnusableInputError(
            f"{where}: {name} can't be imported ({type(error).__name__}: {error}). It must be "
            f"{FUNCTION_FORM}, on PYTHONPATH or installed."
        ) from error
    if not callable(found):
        raise UnusableInputError(f"{where}: {name} isn't a function.")
    return found  # type: ignore[no-any-return]
