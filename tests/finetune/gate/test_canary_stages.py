"""A fleet that the gate leads: robots report, and read in a file what they may do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import CanaryRules, Suite, SuiteTask
from gaploop.finetune.gate.canary_stages import ASSIGNMENT, canary_stage, reported
from gaploop.finetune.gate.folder import Contest, GateFolder
from gaploop.finetune.gate.judge import StageAnswer

ROBOTS = tuple(f"arm_{n}" for n in range(4))
RULES = CanaryRules(robots=0.5, episodes=20, full_episodes=20, fleet=ROBOTS)
SUITE = Suite("s", (SuiteTask("t"),), canary=RULES)
CONTEST = Contest("sha256:a", "sha256:b", "s")


def test_a_fleet_is_led_by_its_reports(tmp_path: Path) -> None:
    reports, folder = tmp_path / "reports.jsonl", GateFolder(tmp_path, CONTEST, seed=4)
    reports.touch()
    waiting = reported(SUITE, reports, folder)
    assert canary_stage(waiting).answer is StageAnswer.OPEN
    assigned = json.loads((tmp_path / ASSIGNMENT).read_text())
    assert sorted(assigned["share"].values()) == [0.0, 0.0, 0.5, 0.5]
    assert datetime.fromisoformat(assigned["until"]) > datetime.now(UTC)
    robot = max(assigned["share"], key=lambda name: assigned["share"][name])
    bad = {"robot": robot, "candidate": True, "success": False, "safety": True}
    reports.write_text("".join(json.dumps(bad | {"episode": n}) + "\n" for n in range(10)))
    over = reported(SUITE, reports, folder)
    assert canary_stage(over).answer is StageAnswer.FAILED
    assert "rolled back" in canary_stage(over).says
    assert set(json.loads((tmp_path / ASSIGNMENT).read_text())["share"].values()) == {0.0}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"robot": "arm_7"}, "Unknown robot 'arm_7'"),
        ({"episode": "3"}, "episode must be a number"),
        ({"success": "false"}, "success must be true or false"),
        ({"won": True}, "not a robot's report"),
    ],
)
def test_a_report_that_cannot_be_meant_is_not_passed_over(
    tmp_path: Path, wrong: dict[str, object], says: str
) -> None:
    """An arm whose name was misspelt drove unwatched, and "false" counted as a success."""
    report = {"robot": "arm_1", "episode": 0, "candidate": True, "success": True} | wrong
    reports = tmp_path / "reports.jsonl"
    reports.write_text(json.dumps(report) + "\n")
    with pytest.raises(UnusableInputError, match=says):
        reported(SUITE, reports, GateFolder(tmp_path, CONTEST, seed=4))
    with pytest.raises(UnusableInputError, match="not found"):
        reported(SUITE, tmp_path / "nothing.jsonl", GateFolder(tmp_path, CONTEST))
