"""`suite.yaml`: what a candidate policy is tried on before it may replace another, and the rules.

The file names tasks; everything else has a default. `docs/train/gate.md` says what the rules mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from gaploop.core import schema
from gaploop.core.errors import UnusableInputError
from gaploop.core.labels import check_dimensions
from gaploop.core.station import SIM_STATION, Station
from gaploop.core.vocabulary import GapDimension, Phase

SUCCESS_CHECKS: Final = ("operator", "script", "reward_model")
FUNCTION_FORM: Final = "module:function, such as my_cell.checks:cube_on_disc"


@dataclass(frozen=True)
class SuiteTask:
    """One thing that both policies are tried on.

    Attributes:
        task: name of the task; for the embedded cell pick_place, pick_lift or stack_cube.
        env: the simulation of your own that it is tried in, as of `gaploop evaluate`: {gym: ID,
            kwargs: …}, {scene: FILE} or {type: NAME}, and roles: FILE; the embedded cell where it
            is empty.
        gaps: gap dimension to severity in [0, 1], injected into the simulation.
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
        candidate_speed: share of its speed that the candidate drives at, as of `gaploop evaluate
            --speed_scale`; a command is told it as {speed_scale}.
    """

    task: str
    instruction: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = schema.ranged(0, 0, 2**31)
    env: Mapping[str, Any] = field(default_factory=dict)
    dimension: str = schema.read_with(schema.one_of(GapDimension, "dimension"), "")
    reset: str = ""
    success_check: str = schema.read_with(
        schema.one_of(SUCCESS_CHECKS, "success check"), "operator"
    )
    check: str = ""
    threshold: float = 0.5
    timeout_s: float = schema.ranged(60.0, 0.1, 3600)
    min_pass_rate: float = schema.ranged(0.85, 0, 1)
    candidate_speed: float = schema.ranged(1.0, 0.01, 1)

    @property
    def name(self) -> str:
        """The task with everything that is set up for it, in one line."""
        settings = {**self.conditions, **self.gaps}
        return ", ".join([self.task, *(f"{key}={value}" for key, value in settings.items())])

    def speed(self, side: str) -> float:
        """Share of its speed that a side's policy drives at."""
        return self.candidate_speed if side == "candidate" else 1.0

    @property
    def is_told(self) -> bool:
        """Whether a station has to tell its success by itself."""
        return self.success_check == "script" and not self.check and not self.env

    @property
    def severities(self) -> dict[str, float]:
        """Severity of each dimension; a mechanism may follow it, as in object_property.size."""
        return {str(gap).partition(".")[0]: severity for gap, severity in self.gaps.items()}

    @property
    def group(self) -> str:
        """What the task is judged together with: its dimension, else itself."""
        only = tuple(self.severities)
        return self.dimension or (only[0] if len(only) == 1 else self.name)


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
        fixes_phase: phase that the candidate is made to fix, declared before the first attempt:
            the comparison also ends, without an answer, once getting past it is shown to gain less
            than `gain`. Taking it out goes on. "" declares none.
    """

    alpha: float = schema.ranged(0.05, 0.001, 0.25)
    power: float = schema.ranged(0.80, 0.5, 0.99)
    gain: float = schema.ranged(0.10, 0.01, 0.9)
    retrain_sd: float = schema.ranged(0.02, 0.0, 0.5)
    baseline_rate: float = schema.ranged(0.70, 0.01, 0.99)
    non_inferiority_margin: float = schema.ranged(0.15, 0.01, 0.5)
    retention_margin: float = schema.ranged(0.10, 0.01, 0.5)
    max_pairs: int = schema.ranged(0, 0, 100_000)
    sim_pairs: int = schema.ranged(200, 1, 100_000)
    fixes_phase: str = schema.read_with(schema.one_of(Phase, "phase"), "")


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

    robots: float = schema.ranged(0.2, 0.001, 1)
    share: float = schema.ranged(0.5, 0.01, 0.5)
    episodes: int = schema.ranged(100, 1, 1e6)
    full_episodes: int = schema.ranged(400, 1, 1e6)
    success_margin: float = schema.ranged(0.15, 0.01, 0.5)
    max_safety_rate: float = schema.ranged(0.01, 0.0001, 0.5)
    alpha: float = schema.ranged(0.05, 0.001, 0.5)
    lease_s: float = schema.ranged(900.0, 1, 1e6)
    fleet: tuple[str, ...] = schema.read_with(
        partial(schema.texts, what="robots, such as [arm_1, arm_2]"), default=()
    )


@dataclass(frozen=True)
class Suite:
    """A named list of tasks with the rules of the comparison.

    Attributes:
        sim_tasks: tasks of the embedded cell on which nothing may be forgotten.
        where: the file it was read from, for messages.
    """

    name: str = field(metadata={"read": schema.word})
    tasks: tuple[SuiteTask, ...]
    rules: Rules = Rules()
    canary: CanaryRules = CanaryRules()
    sim_tasks: tuple[str, ...] = schema.read_with(
        partial(schema.texts, what="tasks, such as [pick_place]"), default=()
    )
    where: str = schema.not_in_file("the suite")

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
    where = str(path)
    suite = replace(schema.read_as(Suite, schema.load_yaml(path, "Suite"), where), where=where)
    if not suite.tasks:
        raise UnusableInputError(f"{where}: tasks must be a list of at least one task.")
    for n, task in enumerate(suite.tasks, 1):
        _check_task(task, f"{where}: task {n}", station)
        if task.name in [other.name for other in suite.tasks[: n - 1]]:
            raise UnusableInputError(
                f"{where}: task '{task.name}' is given twice. Change its conditions, or remove one."
            )
    rules, canary = suite.rules, suite.canary
    if rules.baseline_rate + rules.gain > 1:
        raise UnusableInputError(
            f"{where}: rules: a gain of {rules.gain:g} over baseline_rate {rules.baseline_rate:g} "
            f"is more than certain success. Lower gain to {1 - rules.baseline_rate:.2g} or less."
        )
    for name in canary.fleet:
        if canary.fleet.count(name) > 1:
            raise UnusableInputError(f"{where}: canary: fleet names '{name}' twice. Name it once.")
    parts = 1 / canary.share
    if abs(parts - round(parts)) > 0.03 * parts:  # 0.33 is meant for 1/3
        raise UnusableInputError(
            f"{where}: canary: share: {canary.share:g} must be one of 1/2, 1/3, 1/4 and so on: of "
            f"so many episodes the candidate drives one. Nearest: {1 / (int(parts) + 1):.3g}."
        )
    return suite


def _check_task(task: SuiteTask, where: str, station: Station) -> None:
    station.check_conditions(task.conditions, where)
    check, function = task.success_check, task.check
    if function and check == "operator":
        raise UnusableInputError(
            f"{where}: check={function!r} is never called where success_check is operator. "
            "Choose script or reward_model, or leave check out."
        )
    if check == "reward_model" and not function:
        raise UnusableInputError(f"{where}: reward_model needs check: {FUNCTION_FORM}.")
    if function and (function.count(":") != 1 or not all(function.split(":"))):
        raise UnusableInputError(f"{where}: check must be {FUNCTION_FORM}, got {function!r}.")
    check_dimensions(task.severities, f"{where}: gaps")
