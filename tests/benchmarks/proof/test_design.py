"""The study's design is a pure draw: whoever repeats it gets the same sites in the same order."""

from __future__ import annotations

import pytest

from benchmarks.proof.arms import planned, takes_of
from benchmarks.proof.design import (
    COSTLY,
    GAPS,
    SEVERITIES,
    STAGED,
    VARIED,
    Part,
    StudyArm,
    draw_site,
    mixtures,
)
from gaploop.core.errors import UnknownChoiceError
from gaploop.core.plan import Plan, PlanItem
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.gaps import draw_gaps

D = GapDimension


def test_a_site_is_drawn_from_task_gap_and_seed_alone() -> None:
    assert draw_site("pick_place", "spatial_geometry", 3) == draw_site(
        "pick_place", "spatial_geometry", 3
    )
    drawn = [draw_site("pick_place", "object_property", seed) for seed in range(40)]
    assert len({s.gap_seed for s in drawn}) == 40
    assert {name for s in drawn for name in s.gaps} == {
        f"object_property.{m}" for m in COSTLY[D.OBJECT_PROPERTY]
    }
    low, high = SEVERITIES
    assert all(low <= severity <= high for s in drawn for severity in s.gaps.values())


def test_there_are_six_single_gaps_and_five_different_mixtures_of_two_of_them() -> None:
    assert len(COSTLY) == 6
    assert len(GAPS) == 11
    assert len({frozenset(pair) for pair in mixtures()}) == 5
    assert all(len(set(pair)) == 2 and set(pair) <= set(COSTLY) for pair in mixtures())
    for number, pair in enumerate(mixtures(), 1):
        assert set(draw_site("stack_cube", f"mixture_{number}", 0).dimensions) == set(pair)


def test_no_mechanism_of_the_study_is_held_out_or_blind() -> None:
    for gap in GAPS:
        for found in draw_gaps(draw_site("pick_place", gap, 0).gaps, 0):
            assert not found.held_out
            assert not found.blind


def test_a_hidden_dimension_is_set_up_as_at_the_site_and_any_other_is_varied() -> None:
    site = draw_site("pick_place", "mixture_1", 5)
    for dimension in site.dimensions:
        cell = site.set_up_for(dimension)
        assert cell.gap_seed == site.gap_seed
        assert cell.gaps.items() < site.gaps.items()
        ((_, here),) = ((g.dimension, g) for g in draw_gaps(cell.gaps, cell.gap_seed))
        assert here in draw_gaps(site.gaps, site.gap_seed)  # same mechanism, direction, magnitude
    (other, *_) = [d for d in STAGED if d not in site.dimensions]
    assert dict(site.set_up_for(other).gaps) == {other.value: VARIED}
    assert site.gaps.items() < site.with_varied(other).gaps.items()


def test_the_design_is_run_seed_by_seed_so_that_a_part_is_balanced() -> None:
    part = Part(tasks=("pick_place", "pick_lift"), seeds=(0, 1))
    sites = list(part.sites())
    assert len(sites) == 2 * 2 * 6
    assert [s.seed for s in sites] == sorted(s.seed for s in sites)
    assert {(s.task, s.gap) for s in sites[:12]} == {(s.task, s.gap) for s in sites[12:]}
    assert len(part.cells()) == 9
    assert Part(arms=(StudyArm.UNIFORM, StudyArm.REMEDY), budgets=(5, 20)).cells() == [
        (StudyArm.UNIFORM, 5), (StudyArm.UNIFORM, 20), (StudyArm.REMEDY, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("given", [{"tasks": ("fold",)}, {"gaps": ("mixture_9",)}])
def test_what_the_design_does_not_have_is_refused_with_what_it_has(given: dict) -> None:
    with pytest.raises(UnknownChoiceError, match=r"mixture_5|stack_cube"):
        Part(**given)


@pytest.mark.parametrize("budget", [5, 10, 20, 50, 100])
def test_uniform_takes_differ_by_at_most_one_between_dimensions_and_spend_the_budget(
    budget: int,
) -> None:
    site = draw_site("pick_place", "spatial_geometry", 0)
    takes = takes_of(StudyArm.UNIFORM, site, budget, None)
    assert sum(takes.values()) == budget
    counts = [takes.get(d, 0) for d in STAGED]
    assert max(counts) - min(counts) <= 1


def test_uniform_takes_fall_into_those_for_what_is_hidden_and_the_others() -> None:
    """So that where uniform collection does well, it can be told which of its takes did it."""
    site = draw_site("pick_place", "contact_dynamics", 2)
    hidden, other, uniform = (
        dict(takes_of(arm, site, 20, None))
        for arm in (StudyArm.HIDDEN_PART, StudyArm.OTHER_PART, StudyArm.UNIFORM)
    )
    assert set(hidden) == {D.CONTACT_DYNAMICS}
    assert not set(hidden) & set(other)
    assert hidden | other == uniform


def test_the_oracle_spends_everything_on_what_is_hidden_whatever_the_planner_believes() -> None:
    spatial = draw_site("pick_place", "spatial_geometry", 0)
    assert takes_of(StudyArm.ORACLE, spatial, 20, None) == {D.SPATIAL_GEOMETRY: 20}
    assert takes_of(StudyArm.ORACLE, draw_site("pick_place", "visual_domain", 0), 20, None) == {
        D.VISUAL_DOMAIN: 20
    }


def test_targeted_takes_are_the_plans() -> None:
    plan = Plan(
        "p", "d",
        (
            PlanItem("p:a", D.SPATIAL_GEOMETRY, 10, "collect", ""),
            PlanItem("p:b", D.VISUAL_DOMAIN, 0, "change_scene", ""),
        ),
    )  # fmt: skip
    assert planned(plan) == {D.SPATIAL_GEOMETRY: 10}
