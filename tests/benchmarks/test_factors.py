"""Lessons of a published study from planted counts, and promises held on made-up trials."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.factors_laws import COSTS, LAWS, made_up_takes, measure_law
from benchmarks.factors_lessons import counted_once, over_groups, study_lessons
from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.factors import Trials


def test_planted_effects_lie_in_their_intervals_as_often_as_stated() -> None:
    """95 % of them; by chance a run of 120 intervals may be off by four points."""
    assert measure_law("intervals of factors, 60 takes", 40, 0)["share"] > 0.90


def test_where_nothing_matters_alarms_are_as_rare_as_stated() -> None:
    """At most 5 % of tables; 40 tables show 6 alarms or more once in fifty runs at 5 %."""
    assert measure_law("no factor matters, 60 takes", 40, 0)["share"] * 40 < 6


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAWS))
def test_every_promise_holds_over_many_sets_of_trials(name: str) -> None:
    law = measure_law(name, 300, 1)
    if "alarms" in law["promised"]:
        assert law["interval"][0] <= 0.05
    else:
        assert law["interval"][1] >= 0.95


def study(spatial: float = 0.3) -> list[Trials]:
    """Counts in the study's form, with planted rates."""
    base = {"Clean": 0.1, "BG": 0.15, "LT": 0.14, "TD": 0.12, "TH": spatial, "CP": spatial + 0.01}
    extra = {"Frame-wise BG": 0.36, "Frame-wise LT": 0.33, "Frame-wise CP": spatial + 0.1}
    setting = {"base": 0.2, "background": 0.1, "lighting": 0.16, "distractor": 0.0, "object": 0.1}
    return [
        Trials(
            {
                "study": "randomization_granularity" if name in extra else "randomization_factor",
                "task": task,
                "training_condition": name,
                "evaluation_setting": where,
            },
            round(400 * (chance + plus + 0.02 * n)),
            400,
        )
        for n, task in enumerate(("cup", "bell", "bowls"))
        for name, chance in {**base, **extra}.items()
        for where, plus in setting.items()
    ]


def test_planted_lessons_hold_and_others_do_not() -> None:
    found = {lesson.claim: lesson for lesson in study_lessons(study())}
    assert len(found) == 18
    assert {lesson.verdict for lesson in found.values()} == {"holds"}
    space = next(c for c in found if c.startswith("randomising space") and "TD" in c)
    assert found[space].difference.value == pytest.approx(0.305 - 0.41 / 3, abs=0.01)
    turned = {lesson.claim: lesson.verdict for lesson in study_lessons(study(spatial=0.03))}
    assert turned[space] == "contradicted"


def test_a_policy_listed_under_two_names_counts_once() -> None:
    """The published table lists its default policy again as the one with all factors."""
    once = study()
    again = [
        Trials({**r.levels, "study": "fidelity", "training_condition": "Default"}, r.successes, 400)
        for r in once
        if r.levels["training_condition"] == "TH"
    ]
    assert sorted(map(str, counted_once([*once, *again]))) == sorted(map(str, once))


def test_other_counts_are_refused_as_a_study() -> None:
    with pytest.raises(UnusableInputError, match="evaluation_setting"):
        study_lessons([Trials({"lighting": "nominal"}, 1, 2)])


def test_made_up_takes_are_what_they_say() -> None:
    made = made_up_takes(np.random.default_rng(0), 50, planted=True, sessions=True)
    assert len({r.cluster for r in made}) == 10
    assert set(COSTS) <= set(made[0].levels)


def test_groups_that_differ_make_the_interval_wider_than_their_own_chance() -> None:
    alike, apart = over_groups([0.2, 0.21, 0.19, 0.2]), over_groups([0.5, -0.1, 0.45, -0.05])
    assert alike.value == pytest.approx(apart.value)
    assert alike.excludes_zero
    assert not apart.excludes_zero
