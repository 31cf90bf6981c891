"""The canary over a simulated fleet of 20 stations: what it promises, whatever is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleets import FleetRun, FleetSpec, simulate
from gaploop.core.suite import CanaryRules
from gaploop.finetune.gate.canary import Canary, Lease, Phase, Report, replay

RULES = CanaryRules()
FLEET = FleetSpec(silent=4, late=0.2)
SEEDS = range(6)


def runs(**changes: float) -> list[FleetRun]:
    return [simulate(RULES, replace(FLEET, **changes), seed) for seed in SEEDS]  # type: ignore[arg-type]


def test_a_bad_candidate_is_rolled_back_before_many_episodes() -> None:
    """40 points worse, on 4 of 20 stations: gone within 80 episodes, late reports and all."""
    for run in runs(candidate=0.35):
        assert run.canary.phase is Phase.ROLLED_BACK
        assert run.exposed <= 80
        assert not run.canary.widened


def test_an_unsafe_candidate_is_rolled_back_though_it_succeeds() -> None:
    for run in runs(candidate=0.95, candidate_safety=0.2):
        assert run.canary.phase is Phase.ROLLED_BACK
        assert "safety events" in run.canary.says
        assert run.exposed <= 80


def test_a_good_candidate_gets_the_whole_fleet() -> None:
    for run in runs():
        assert run.canary.phase is Phase.PROMOTED
        heard = {s.robot for s in run.starts if s.candidate} | set(run.silent)
        assert heard == set(run.canary.robots)


@pytest.mark.slow
def test_a_candidate_that_is_no_worse_is_seldom_rolled_back() -> None:
    spec = replace(FLEET, candidate=0.75)
    phases = [simulate(RULES, spec, seed).canary.phase for seed in range(60)]
    assert phases.count(Phase.ROLLED_BACK) <= 0.05 * 60 + 5


@pytest.mark.parametrize("candidate", [0.35, 0.85])
def test_a_silent_station_does_not_keep_the_candidate(candidate: float) -> None:
    """A cable that is pulled must not keep a policy running that everybody else gave up."""
    for run in runs(candidate=candidate, silent=6):
        for start in run.starts:
            if start.candidate:
                assert start.at_s - start.heard_s < RULES.lease_s
                if start.robot in run.silent:
                    assert start.at_s < run.silent[start.robot] + RULES.lease_s


def test_after_a_roll_back_nobody_begins_with_the_candidate_once_leases_are_out() -> None:
    for run in runs(candidate=0.35):
        late = [s for s in run.starts if s.candidate and s.at_s > run.ended_s + RULES.lease_s]
        assert not late


def test_before_the_whole_fleet_has_it_only_the_drawn_robots_try_it() -> None:
    for run in runs(candidate=0.35):
        assert {s.robot for s in run.starts if s.candidate} <= run.canary.tries
        assert len(run.canary.tries) == 4


def test_equal_seeds_give_equal_fleets() -> None:
    one, other = simulate(RULES, FLEET, 3), simulate(RULES, FLEET, 3)
    assert (one.starts, one.ended_s) == (other.starts, other.ended_s)
    assert one.canary.evidence == other.canary.evidence


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
    phase, over = canary.phase, canary.phase in (Phase.ROLLED_BACK, Phase.PROMOTED)
    replay(canary, after)
    assert not over or canary.phase is phase
    if canary.phase is Phase.ROLLED_BACK:
        assert canary.lease("a", 0.0).share == 0


@given(st.integers(0, 500), st.sampled_from([0.5, 1 / 3, 0.25, 0.1]))
def test_a_robot_drives_its_share_with_the_candidate(block: int, share: float) -> None:
    canary, length = Canary(replace(RULES, share=share), ("a",)), round(1 / share)
    lease = Lease(share, 100.0)
    turns = range(block * length, (block + 1) * length)
    assert sum(canary.drives(lease, "a", turn, 0.0) for turn in turns) == 1
    assert not any(canary.drives(lease, "a", turn, 100.0) for turn in turns)
