"""Held-out takes, weights from the plan, presets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan, PlanItem
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import GapDimension
from gaploop.finetune.config import LEAST, MOST, MixOptions, weights_of
from gaploop.finetune.tuning.presets import PRESETS, preset_for, table
from gaploop.finetune.tuning.takes import TakeNote, by_group, choose, grouped

TAKES = st.lists(
    st.tuples(
        st.sampled_from(["", "monday", "tuesday", "friday"]),
        st.sets(st.sampled_from(["contact_dynamics", "visual_domain"]), max_size=2),
    ),
    min_size=2,
    max_size=12,
).map(
    lambda rows: [
        TakeNote(f"u{i}", session, dict.fromkeys(sorted(dims), 1.0))
        for i, (session, dims) in enumerate(rows)
    ]
)


@given(TAKES, st.floats(0.05, 0.9), st.integers(0, 5))
@settings(max_examples=60)
def test_held_out_takes_are_whole_sessions_and_leave_every_dimension_to_train_on(
    takes: list[TakeNote], share: float, seed: int
) -> None:
    try:
        aside = choose(takes, share, seed)
    except UnusableInputError:
        return
    kept = [t for t in takes if t.uid not in aside]
    assert aside
    assert kept
    for group in grouped(takes).values():
        assert len({t.uid in aside for t in group}) == 1
    for take in takes:
        if take.uid in aside:
            assert all(any(d in k.dimensions for k in kept) for d in take.dimensions)


def test_a_small_session_is_held_out_rather_than_a_large_one() -> None:
    """Of nine takes on Monday and one on Tuesday, a fifth had been Monday's nine."""
    takes = [TakeNote(f"m{k}", "monday") for k in range(9)] + [TakeNote("t", "tuesday")]
    assert all(choose(takes, 0.2, seed) == {"t"} for seed in range(8))


def test_one_take_can_not_be_held_out() -> None:
    with pytest.raises(UnusableInputError, match="Record more"):
        choose([TakeNote("a")], 0.5)


def test_errors_are_told_by_session_and_dimension() -> None:
    takes = [TakeNote("a", "s1", {"visual_domain": 1.0}), TakeNote("b", "s2"), TakeNote("c", "s2")]
    found = by_group({"a": 1.0, "b": 2.0, "c": 4.0}, takes)
    assert found["by_session"] == {"s1": 1.0, "s2": 3.0}
    assert found["by_dimension"] == {"visual_domain": 1.0, "untagged": 3.0}


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0, float("nan")])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(UnusableInputError, match="above 0 and at most 1"):
        MixOptions(share)


def test_a_plan_weighs_dimensions_by_what_it_expects() -> None:
    def item(dimension: GapDimension, gain: float, remedy: str = "collect") -> PlanItem:
        points = Estimate(gain, gain, gain)
        takes = 10 if remedy == "collect" else 0
        return PlanItem(dimension.value, dimension, takes, remedy, "", gain_points=points)

    plan = Plan(
        "p",
        "d",
        (
            item(GapDimension.OBJECT_PROPERTY, 30.0),
            item(GapDimension.SPATIAL_GEOMETRY, 10.0),
            item(GapDimension.HUMAN_BEHAVIOR, 0.0),
            item(GapDimension.SENSOR_NOISE, 50.0, "change_scene"),
        ),
    )
    weights = weights_of(plan)
    assert weights == {
        "object_property": pytest.approx(2.25),
        "spatial_geometry": 0.75,
        "human_behavior": LEAST,
    }
    assert max(weights.values()) <= MOST
    with pytest.raises(UnusableInputError, match="collects no episodes"):
        weights_of(Plan("p", "d", (item(GapDimension.SENSOR_NOISE, 50.0, "change_scene"),)))


def test_presets_are_listed_and_found() -> None:
    assert all(name in table() for name in PRESETS)
    assert preset_for("smolvla").name == "smolvla_lora"
    assert preset_for("something", "full").name == "other_full"
    with pytest.raises(UnusableInputError, match="Did you mean 'act_lora'"):
        preset_for("act", "actlora")
    for preset in PRESETS.values():
        for way in ("lora", "full"):
            assert preset_for(preset.policy, way) is PRESETS[f"{preset.policy}_{way}"]
        assert preset.why
        if not preset.full:
            assert 5e-4 <= preset.spec.lr <= 2e-3
