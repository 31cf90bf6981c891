"""The canary's laws, whatever robots report, twice or late."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.suite import CanaryRules
from gaploop.finetune.gate.canary import Canary, CanaryPhase, Lease, Report, replay

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
    assert sum(canary.drives(lease, "a", turn, 0.0) for turn in turns) == 1
    assert not any(canary.drives(lease, "a", turn, 100.0) for turn in turns)
