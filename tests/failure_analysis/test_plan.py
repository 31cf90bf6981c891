"""Laws of plans: never over budget, never collecting for what demonstrations don't mend."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import load_plan, save_plan
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis
from gaploop.failure_analysis.planning.plan import REMEDIES, make_plan
from gaploop.failure_analysis.seen import Seen

DIMENSIONS = [d.value for d in GapDimension]


def diagnosed(shares: dict[str, float], count: int = 5, abstained: bool = False) -> Diagnosis:
    every = {d: shares.get(d, 0.0) for d in DIMENSIONS}
    seen = (Seen("lag_s", 0.3, "s", "motion follows the command 300 ms late (nominal 11 ms)"),)
    takes = tuple(
        TakeDiagnosis(f"take-{k}", k, "timeout", "approach", every, 1.0 - sum(every.values()),
                      abstained, seen)
        for k in range(count)
    )  # fmt: skip
    return Diagnosis("diagnosis-1", "here", takes, {})


shares = st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9).map(
    lambda raw: {d: v / max(sum(raw), 1.0) for d, v in zip(DIMENSIONS, raw, strict=True)}
)


@given(shares, st.integers(0, 200), st.integers(0, 6))
def test_never_over_budget_and_never_collecting_in_vain(
    spread: dict[str, float], budget: int, count: int
) -> None:
    plan = make_plan(diagnosed(spread, count), budget)
    assert plan.takes <= budget
    for item in plan.items:
        assert item.takes >= 0
        assert item.conditions == {}
        assert item.why
        if REMEDIES[item.dimension].remedy != "demonstrate":
            assert item.takes == 0
            assert item.remedy == REMEDIES[item.dimension].remedy
    assert [i.share for i in plan.items] == sorted((i.share for i in plan.items), reverse=True)


@pytest.mark.parametrize("dimension", ["spatial_geometry", "object_property"])
def test_what_demonstrations_mend_gets_the_whole_budget(dimension: str) -> None:
    plan = make_plan(diagnosed({dimension: 0.9}), 50)
    assert [(i.dimension.value, i.remedy, i.takes) for i in plan.items] == [
        (dimension, "demonstrate", 50)
    ]


@pytest.mark.parametrize(
    ("dimension", "remedy"),
    [
        ("actuator_response", "identify"),
        ("sensor_noise", "recalibrate"),
        ("visual_domain", "perception"),
        ("environmental_complexity", "perception"),
        ("task_specification", "restate"),
    ],
)
def test_the_rest_says_what_to_do_instead(dimension: str, remedy: str) -> None:
    plan = make_plan(diagnosed({dimension: 0.9}), 50)
    assert plan.takes == 0
    assert plan.items[0].remedy == remedy
    assert "don't mend" in plan.items[0].why


def test_a_small_share_gets_no_item() -> None:
    plan = make_plan(diagnosed({"object_property": 0.9, "contact_dynamics": 0.04}), 20)
    assert [i.dimension.value for i in plan.items] == ["object_property"]


def test_abstentions_and_too_few_failures_pay_for_nothing() -> None:
    assert make_plan(diagnosed({"object_property": 0.9}, abstained=True), 50).items == ()
    few = make_plan(diagnosed({"object_property": 0.9}, count=2), 50)
    assert few.takes == 0
    assert "Too few" in few.items[0].why


def test_a_plan_reads_back_and_names_its_diagnosis(tmp_path: Path) -> None:
    plan = make_plan(diagnosed({"object_property": 0.5, "actuator_response": 0.4}), 30)
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    assert plan.diagnosis == "diagnosis-1"


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(UnusableInputError, match=r"--budget\.takes"):
        make_plan(diagnosed({}), -1)
