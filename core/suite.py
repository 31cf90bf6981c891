"""`suite.yaml`: what a candidate policy is tried on before it may replace another, and the rules.

The file names tasks; everything else has a default. `docs/train/gate.md` says what the rules mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.labels import check_dimensions
from gaploop.core.schema import check_keys, load_yaml, mapping, number, numbers, ranged, texts
from gaploop.core.station import SIM_STATION, Station
from gaploop.core.vocabulary import dimension

SUCCESS_CHECKS: Final = ("operator", "script", "reward_model")
FUNCTION_FORM: Final = "module:function, such as my_cell.checks:cube_on_disc"


@dataclass(frozen=True)
class SuiteTask:
    """One thing that both policies are tried on.

    Attributes:
        task: name of the task; for the embedded cell pick_place, pick_lift or stack_cube.
        gaps: gap dimension to severity in [0, 1], injected into the embedded cell.
        gap_seed: draws mechanism and direction of each gap.
        dimension: gap dimension that this task stands for; tasks of one dimension are judged
            together for non-inferiority. The only dimension of `gaps` unless given; else the
            task is a group of its own.
        reset: how the scene is set up before each attempt: words for the operator, or a function
            `module:function` that is called with the number of the scene.
        success_check: who says whether an attempt succeeded, one of `SUCCESS_CHECKS`.
        check: function that tells it, for script and reward_model, as `module:function`; ""
            asks the embedded cell's own judge.
        threshold: a reward model's score from here on is a success.
        timeout_s: an attempt ends after this [s].
        min_pass_rate: a candidate that succeeds less often is not promoted.
    """

    task: str
    instruction: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    dimension: str = ""
    reset: str = ""
    success_check: str = "operator"
    check: str = ""
    threshold: float = 0.5
    timeout_s: float = 60.0
    min_pass_rate: float = 0.85

    @property
    def name(self) -> str:
        """The task with everything that is set up for it, in one line."""
        settings = {**self.conditions, **self.gaps}
        return ", ".join([self.task, *(f"{key}={value}" for key, value in settings.items())])

    @property
    def group(self) -> str:
        """What the task is judged together with: its dimension, else itself."""
        return self.dimension or self.name


@dataclass(frozen=True)
class Rules:
    """Error rates and margins of the comparison, all as fractions.

    Attributes:
        alpha: chance to promote a candidate that is no better, at most.
        power: chance to find an improvement of `gain`, at least.
        gain: smallest improvement that is worth finding, in success.
        retrain_sd: standard deviation of success between trainings on the same data. The
            candidate has to be better by more than such luck; 0 compares these two policies only.
        baseline_rate: success expected of the baseline, for planning only.
        non_inferiority_margin: largest loss in a dimension that an improvement elsewhere excuses.
        retention_margin: the same in nominal simulation.
        max_pairs: pairs of attempts after which the comparison ends; what `power` needs if 0.
        sim_pairs: the same for the regression in simulation.
    """

    alpha: float = ranged(0.05, 0.001, 0.25)
    power: float = ranged(0.80, 0.5, 0.99)
    gain: float = ranged(0.10, 0.01, 0.9)
    retrain_sd: float = ranged(0.02, 0.0, 0.5)
    baseline_rate: float = ranged(0.70, 0.01, 0.99)
    non_inferiority_margin: float = ranged(0.15, 0.01, 0.5)
    retention_margin: float = ranged(0.10, 0.01, 0.5)
    max_pairs: int = ranged(0, 0, 100_000)
    sim_pairs: int = ranged(200, 1, 100_000)


@dataclass(frozen=True)
class CanaryRules:
    """How a candidate gets its share of a fleet, and when it loses it.

    Attributes:
        robots: share of the robots that try it.
        share: of each such robot's episodes, the share that the candidate drives; 1/2, 1/3, …
        episodes: episodes of the candidate before the whole fleet gets it, at least.
        full_episodes: episodes of the candidate on the whole fleet before it counts as promoted.
        success_margin: the whole fleet gets it once it is shown to lose less than this.
        max_safety_rate: safety events per episode that are tolerated.
        alpha: chance to roll back a candidate that is no worse and no less safe, at most.
        lease_s: a robot that nobody heard of for so long goes back to the baseline [s].
        fleet: names of the robots; without --reports none are needed.
    """

    robots: float = ranged(0.2, 0.001, 1)
    share: float = ranged(0.5, 0.01, 0.5)
    episodes: int = ranged(100, 1, 1e6)
    full_episodes: int = ranged(400, 1, 1e6)
    success_margin: float = ranged(0.15, 0.01, 0.5)
    max_safety_rate: float = ranged(0.01, 0.0001, 0.5)
    alpha: float = ranged(0.05, 0.001, 0.5)
    lease_s: float = ranged(900.0, 1, 1e6)
    fleet: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A named list of tasks with the rules of the comparison.

    Attributes:
        sim_tasks: tasks of the embedded cell on which nothing may be forgotten.
        where: the file it was read from, for messages.
    """

    name: str
    tasks: tuple[SuiteTask, ...]
    rules: Rules = Rules()
    canary: CanaryRules = CanaryRules()
    sim_tasks: tuple[str, ...] = ()
    where: str = "the suite"

    @property
    def needs_person(self) -> bool:
        """Whether a person has to say how attempts went."""
        return any(task.success_check == "operator" for task in self.tasks)

    @property
    def groups(self) -> tuple[str, ...]:
        """What is judged for non-inferiority, each once, in order."""
        return tuple(dict.fromkeys(task.group for task in self.tasks))


def load_suite(path: Path, station: Station = SIM_STATION) -> Suite:
    """Read and check a suite file, or raise UnusableInputError with what is valid."""
    value, where = load_yaml(path, "Suite"), str(path)
    check_keys(value, ("name", "tasks", "rules", "canary", "sim_tasks"), where, ("name", "tasks"))
    if not isinstance(value["tasks"], list) or not value["tasks"]:
        raise UnusableInputError(f"{where}: tasks must be a list of at least one task.")
    entries = enumerate(value["tasks"], 1)
    tasks = tuple(_task(entry, f"{where}: task {n}", station) for n, entry in entries)
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise UnusableInputError(
                f"{where}: task '{name}' is given twice. Change its conditions, or remove one."
            )
    rules = Rules(**numbers(Rules, value.get("rules"), f"{where}: rules", "rule: number"))
    if rules.baseline_rate + rules.gain > 1:
        raise UnusableInputError(
            f"{where}: rules: a gain of {rules.gain:g} over baseline_rate {rules.baseline_rate:g} "
            f"is more than certain success. Lower gain to {1 - rules.baseline_rate:.2g} or less."
        )
    place, given = f"{where}: canary", value.get("canary")
    fleet = texts(
        mapping(given, place, "rule: number").get("fleet"),
        f"{place}: fleet",
        "robots, such as [arm_1, arm_2]",
    )
    for name in fleet:
        if fleet.count(name) > 1:
            raise UnusableInputError(f"{place}: fleet names '{name}' twice. Name each once.")
    canary = CanaryRules(
        **numbers(CanaryRules, given, place, "rule: number", ("fleet",)), fleet=fleet
    )
    parts = 1 / canary.share
    if abs(parts - round(parts)) > 0.03 * parts:  # 0.33 is meant for 1/3
        raise UnusableInputError(
            f"{place}: share: {canary.share:g} must be one of 1/2, 1/3, 1/4 and so on: of so many "
            f"episodes the candidate drives one. Nearest: {1 / (int(parts) + 1):.3g}."
        )
    return Suite(
        str(value["name"]),
        tasks,
        rules,
        canary,
        texts(value.get("sim_tasks"), f"{where}: sim_tasks", "tasks, such as [pick_place]"),
        where,
    )


def _task(value: Any, where: str, station: Station) -> SuiteTask:
    if not isinstance(value, dict):
        raise UnusableInputError(f"{where} must be a mapping, got {value!r}.")
    check_keys(value, SuiteTask.__dataclass_fields__, where, ("task",))
    check = value.get("success_check", "operator")
    if check not in SUCCESS_CHECKS:
        raise unknown_choice("success check", check, SUCCESS_CHECKS, where)
    conditions = mapping(value.get("conditions"), f"{where}: conditions", "condition: value")
    station.check_conditions(conditions, where)
    gaps = mapping(value.get("gaps"), f"{where}: gaps", "dimension: severity")
    function = _text(value, "check", where)
    if function and check == "operator":
        raise UnusableInputError(
            f"{where}: check={function!r} is never called where success_check is operator. "
            "Choose script or reward_model, or leave check out."
        )
    if check == "reward_model" and not function:
        raise UnusableInputError(f"{where}: reward_model needs check: {FUNCTION_FORM}.")
    if function and (function.count(":") != 1 or not all(function.split(":"))):
        raise UnusableInputError(f"{where}: check must be {FUNCTION_FORM}, got {function!r}.")
    # A mechanism may follow its dimension, as in object_property.size; the cell knows which.
    severities = {str(gap).partition(".")[0]: severity for gap, severity in gaps.items()}
    check_dimensions(severities, f"{where}: gaps")
    stands_for = next(iter(severities)) if len(severities) == 1 else ""
    if "dimension" in value:
        stands_for = dimension(value["dimension"], where).value
    return SuiteTask(
        task=_text(value, "task", where),
        instruction=_text(value, "instruction", where),
        conditions=conditions,
        gaps=gaps,
        gap_seed=int(number(value.get("gap_seed", 0), f"{where}: gap_seed", 0, 2**31)),
        dimension=stands_for,
        reset=_text(value, "reset", where),
        success_check=check,
        check=function,
        threshold=number(value.get("threshold", 0.5), f"{where}: threshold", -1e9, 1e9),
        timeout_s=number(value.get("timeout_s", 60.0), f"{where}: timeout_s", 0.1, 3600),
        min_pass_rate=number(value.get("min_pass_rate", 0.85), f"{where}: min_pass_rate", 0, 1),
    )


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    text = value.get(key, "")
    if not isinstance(text, str):
        raise UnusableInputError(f"{where}: {key} must be text, got {text!r}.")
    return text
