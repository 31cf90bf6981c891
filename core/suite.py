"""`suite.yaml`: what a candidate policy is tried on before it may replace another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.core.station import SIM_STATION, Station

SUCCESS_CHECKS: Final = ("operator", "script", "reward_model")


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite.

    Attributes:
        task: name of the task, such as `pick_place`.
        instruction: what the policy is told.
        conditions: what is set up for it.
        success_check: one of `SUCCESS_CHECKS`.
        rollouts: how many attempts.
        timeout_s: an attempt ends after this [s].
        min_pass_rate: below this success rate the candidate is rejected.
    """

    task: str
    instruction: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    success_check: str = "operator"
    rollouts: int = 100
    timeout_s: float = 60.0
    min_pass_rate: float = 0.85


@dataclass(frozen=True)
class Suite:
    """A named list of tasks."""

    name: str
    tasks: tuple[SuiteTask, ...]


def load_suite(path: Path, station: Station = SIM_STATION) -> Suite:
    """Read and check a suite file.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Suite"), str(path)
    check_keys(value, ("name", "tasks"), where, ("name", "tasks"))
    if not isinstance(value["tasks"], list) or not value["tasks"]:
        raise UnusableInputError(f"{where}: tasks must be a list of at least one task.")
    tasks = (_task(t, f"{where}: task {n}", station) for n, t in enumerate(value["tasks"], 1))
    return Suite(str(value["name"]), tuple(tasks))


def _task(value: Any, where: str, station: Station) -> SuiteTask:
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping, got {value!r}.")
    check_keys(value, SuiteTask.__dataclass_fields__, where, ("task",))
    check = value.get("success_check", "operator")
    if check not in SUCCESS_CHECKS:
        raise unknown_choice("success check", check, SUCCESS_CHECKS, where)
    conditions = value.get("conditions") or {}
    if not isinstance(conditions, dict):
        raise UnusableInputError(f"{where}: conditions must be a mapping, got {conditions!r}.")
    station.check_conditions(conditions, where)
    return SuiteTask(
        task=str(value["task"]),
        instruction=str(value.get("instruction", "")),
        conditions=conditions,
        success_check=check,
        rollouts=int(number(value.get("rollouts", 100), f"{where}: rollouts", 1, 1e5)),
        timeout_s=number(value.get("timeout_s", 60.0), f"{where}: timeout_s", 0.1, 3600),
        min_pass_rate=number(value.get("min_pass_rate", 0.85), f"{where}: min_pass_rate", 0, 1),
    )
