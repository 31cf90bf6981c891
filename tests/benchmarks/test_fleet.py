"""The canary over a simulated fleet of 20 stations: what it promises, whatever is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleets import FleetRun, FleetSpec, simulate
from gaploop.core.suite import CanaryRules
from gaploop.finetune.gate.canary import CanaryPhase

RULES = CanaryRules()
FLEET = FleetSpec(silent=4, late=0.2)
SEEDS = range(6)


def runs(**changes: float) -> list[FleetRun]:
    return [simulate(RULES, replace(FLEET, **changes), seed) for seed in SEEDS]  # type: ignore[arg-type]


def test_a_bad_candidate_is_rolled_back_before_many_episodes() -> None:
    """40 points worse, on 4 of 20 stations: gone within 80 episodes, late reports and all."""
    for run in runs(candidate=0.35):
        assert run.canary.phase is CanaryPhase.ROLLED_BACK
        assert run.exposed <= 80
        assert not run.canary.widened


def test_an_unsafe_candidate_is_rolled_back_though_it_succeeds() -> None:
    for run in runs(candidate=0.95, candidate_safety=0.2):
        assert run.canary.phase is CanaryPhase.ROLLED_BACK
        assert "safety events" in run.canary.message
        assert run.exposed <= 80


def test_a_good_candidate_gets_the_whole_fleet() -> None:
    for run in runs():
        assert run.canary.phase is CanaryPhase.PROMOTED
        heard = {s.robot for s in run.starts if s.candidate} | set(run.silent)
        assert heard == set(run.canary.robots)


@pytest.mark.slow
def test_a_candidate_that_is_no_worse_is_seldom_rolled_back() -> None:
    spec = replace(FLEET, candidate=0.75)
    phases = [simulate(RULES, spec, seed).canary.phase for seed in range(60)]
    assert phases.count(CanaryPhase.ROLLED_BACK) <= 0.05 * 60 + 5


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
