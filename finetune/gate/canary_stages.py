"""The two stages of a fleet: what its robots reported, and what they may do next."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import json_lines, write_json
from gaploop.core.suite import Suite
from gaploop.finetune.gate.canary import Canary, CanaryPhase, Report, replay
from gaploop.finetune.gate.folder import GateFolder
from gaploop.finetune.gate.judge import CANARY, FULL, StageAnswer, StageResult

ASSIGNMENT: Final = "assignment.json"


def reported(suite: Suite, reports: Path, folder: GateFolder) -> Canary:
    """Let a fleet's canary take in its reports, and write `assignment.json` for the robots.

    Raises:
        UnusableInputError: the suite names no robots, or a report can't be read.
    """
    rules = suite.canary
    if not rules.fleet:
        raise UnusableInputError(
            f"{suite.where}: canary: --reports needs the robots' names, such as "
            "fleet: [arm_1, arm_2]."
        )
    canary = replay(Canary(rules, rules.fleet, folder.seed), _read(reports, rules.fleet))
    now = datetime.now(UTC)
    write_json(
        folder.path / ASSIGNMENT,
        {
            "phase": canary.phase.value,
            "seed": canary.seed,
            "at": now.isoformat(timespec="seconds"),
            # A robot that reads an old file has heard of nobody: by itself it goes back.
            "until": (now + timedelta(seconds=rules.lease_s)).isoformat(timespec="seconds"),
            "lease_s": rules.lease_s,
            "share": {robot: canary.lease(robot, 0.0).share for robot in canary.robots},
        },
    )
    return canary


def _read(path: Path, fleet: Iterable[str]) -> list[Report]:
    if not path.exists():
        raise UnusableInputError(f"{path} not found. Check --reports, or make it an empty file.")
    names = tuple(fleet)

    def read(value: Any, where: str) -> Report:
        report = Report(**value)
        if report.robot not in names:
            raise unknown_choice("robot", str(report.robot), names, where)
        if type(report.episode) is not int or report.episode < 0:
            raise TypeError(f"episode must be a number from 0, got {report.episode!r}")
        for name in ("candidate", "success", "safety"):
            said = getattr(report, name)
            if type(said) is not bool:
                raise TypeError(f"{name} must be true or false, got {said!r}")
        return report

    return list(json_lines(path, "a robot's report", read))


def canary_stage(canary: Canary) -> StageResult:
    """Return how the canary stands."""
    answer = {
        CanaryPhase.CANARY: StageAnswer.OPEN,
        CanaryPhase.UNDECIDED: StageAnswer.UNDECIDED,
        CanaryPhase.ROLLED_BACK: StageAnswer.PASSED if canary.widened else StageAnswer.FAILED,
    }.get(canary.phase, StageAnswer.PASSED)
    says = canary.widened if answer is StageAnswer.PASSED else _words(canary)
    return StageResult(CANARY, answer, says, canary.episodes)


def full_stage(canary: Canary) -> StageResult:
    """Return how the whole fleet stands."""
    answer = {
        CanaryPhase.PROMOTED: StageAnswer.PASSED,
        CanaryPhase.ROLLED_BACK: StageAnswer.FAILED,
    }.get(canary.phase, StageAnswer.OPEN)
    return StageResult(FULL, answer, _words(canary), canary.episodes)


def _words(canary: Canary) -> str:
    if canary.phase in (CanaryPhase.CANARY, CanaryPhase.FULL):
        return f"{canary.episodes} episodes so far; run the gate again as reports come in"
    if canary.phase is CanaryPhase.ROLLED_BACK:
        return f"rolled back: {canary.says}"
    return canary.says
