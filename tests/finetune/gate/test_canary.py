"""The canary's laws, whatever robots report, twice or late."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import CanaryRules, Suite, SuiteTask
from gaploop.finetune.gate.canary import (
    ASSIGNMENT,
    Canary,
    CanaryPhase,
    Lease,
    Report,
    drives,
    fleet_stage,
    replay,
    reported,
)
from gaploop.finetune.gate.folder import Contest, GateFolder
from gaploop.finetune.gate.judge import CANARY, StageAnswer

RULES = CanaryRules()


REPORTS = st.lists(
    st.builds(
        Report, st.sampled_from(["a", "b"]), st.integers(0, 40), st.booleans(), st.booleans(),
        st.booleans(),
    ),
    max_size=80,
)  # fmt: skip


@given(REPORTS)
def test_reports_that_come_twice_count_once(reports: list[Report]) -> None:
    once = replay(Canary(RULES, ("a", "b")), reports)
    twice = replay(Canary(RULES, ("a", "b")), [r for r in reports for _ in range(2)])
    assert (once.phase, once.evidence) == (twice.phase, twice.evidence)


@given(REPORTS, REPORTS)
def test_what_is_over_stays_over(before: list[Report], after: list[Report]) -> None:
    """A report that comes late may not bring a candidate back."""
    canary = replay(Canary(RULES, ("a", "b")), before)
    phase, over = canary.phase, canary.phase in (CanaryPhase.ROLLED_BACK, CanaryPhase.PROMOTED)
    replay(canary, after)
    assert not over or canary.phase is phase
    if canary.phase is CanaryPhase.ROLLED_BACK:
        assert canary.lease("a", 0.0).share == 0


@given(st.integers(0, 500), st.sampled_from([0.5, 1 / 3, 0.25, 0.1]))
def test_a_robot_drives_its_share_with_the_candidate(block: int, share: float) -> None:
    canary, length = Canary(replace(RULES, share=share), ("a",)), round(1 / share)
    lease = Lease(share, 100.0)
    turns = range(block * length, (block + 1) * length)
    assert sum(drives(canary.seed, lease, "a", turn, 0.0) for turn in turns) == 1
    assert not any(drives(canary.seed, lease, "a", turn, 100.0) for turn in turns)


ROBOTS = tuple(f"arm_{n}" for n in range(4))
FLEET_RULES = CanaryRules(robots=0.5, episodes=20, full_episodes=20, fleet=ROBOTS)
SUITE = Suite("s", (SuiteTask("t"),), canary=FLEET_RULES)
CONTEST = Contest("sha256:a", "sha256:b", "s")


def test_a_fleet_is_led_by_its_reports(tmp_path: Path) -> None:
    reports, folder = tmp_path / "reports.jsonl", GateFolder(tmp_path, CONTEST, seed=4)
    reports.touch()
    waiting = reported(SUITE, reports, folder)
    assert fleet_stage(waiting, CANARY).answer is StageAnswer.OPEN
    assigned = json.loads((tmp_path / ASSIGNMENT).read_text())
    assert sorted(assigned["share"].values()) == [0.0, 0.0, 0.5, 0.5]
    assert datetime.fromisoformat(assigned["until"]) > datetime.now(UTC)
    robot = max(assigned["share"], key=lambda name: assigned["share"][name])
    bad = {"robot": robot, "candidate": True, "success": False, "safety": True}
    reports.write_text("".join(json.dumps(bad | {"episode": n}) + "\n" for n in range(10)))
    over = reported(SUITE, reports, folder)
    assert fleet_stage(over, CANARY).answer is StageAnswer.FAILED
    assert "rolled back" in fleet_stage(over, CANARY).message
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
