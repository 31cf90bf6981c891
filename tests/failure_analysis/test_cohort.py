"""Laws of the statistics across takes, on trials whose truth is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.failure_analysis.factors import Trials, factor_table


def rows(counts: dict[tuple[str, str], tuple[int, int]]) -> list[Trials]:
    """Trials of a light and a number of distractors: (light, distractors) to counts."""
    return [
        Trials({"lighting": light, "distractors": number}, won, n)
        for (light, number), (won, n) in counts.items()
    ]


counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@settings(max_examples=25, deadline=None)
@given(st.lists(counts, min_size=6, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_how_they_are_split_change_nothing(
    six: list[tuple[int, int]], shuffle: random.Random
) -> None:
    pairs = [(light, n) for light in ("nominal", "dim") for n in ("nominal", "2", "4")]
    given_rows = rows(dict(zip(pairs, six, strict=True)))
    single = [
        Trials(r.levels, int(k < r.successes), 1) for r in given_rows for k in range(r.trials)
    ]
    shuffle.shuffle(single)
    assert factor_table(given_rows) == factor_table(single)


@settings(max_examples=40, deadline=None)
@given(st.lists(counts, min_size=6, max_size=6))
def test_no_table_of_counts_breaks_it(six: list[tuple[int, int]]) -> None:
    """Levels that never failed, or never succeeded, included: estimates stay finite."""
    pairs = [(light, n) for light in ("nominal", "dim") for n in ("nominal", "2", "4")]
    for effect in factor_table(rows(dict(zip(pairs, six, strict=True)))).effects:
        d = effect.difference
        assert -1 <= d.low <= d.value <= d.high <= 1
        assert 0 < effect.odds_ratio.low <= effect.odds_ratio.value <= effect.odds_ratio.high
        assert math.isfinite(effect.odds_ratio.high)
        assert effect.p <= effect.p_family <= 1


def test_a_level_that_never_succeeded_has_a_finite_cost() -> None:
    """0 of 12 beside 11 of 12: maximum likelihood has no odds ratio for it, Firth's has."""
    (effect,) = factor_table(
        [Trials({"lighting": "nominal"}, 11, 12), Trials({"lighting": "dark"}, 0, 12)]
    ).effects
    assert effect.verdict == "costs"
    assert -0.95 < effect.difference.value < -0.75
    assert 0 < effect.odds_ratio.value < 0.05


def test_a_confounded_condition_is_corrected_for() -> None:
    """Distractors were tried mostly in dim light, which is what costs: they cost nothing."""
    mixed = rows({
        ("nominal", "nominal"): (80, 100),
        ("nominal", "4"): (8, 10),
        ("dim", "nominal"): (4, 10),
        ("dim", "4"): (40, 100),
    })  # fmt: skip
    effects = {e.factor: e for e in factor_table(mixed).effects}
    raw = 48 / 110 - 84 / 110
    assert raw < -0.3
    assert abs(effects["distractors"].difference.value) < 0.03
    assert effects["distractors"].verdict == "not shown"
    assert effects["lighting"].difference.value == pytest.approx(-0.4, abs=0.03)


def test_factors_that_always_change_together_are_said_not_to_be_told_apart() -> None:
    both = [
        Trials({"lighting": "nominal", "operator": "ana"}, 18, 20),
        Trials({"lighting": "dim", "operator": "bo"}, 8, 20),
    ]
    table = factor_table(both)
    assert [e.factor for e in table.effects] == ["lighting"]
    assert "lighting" in table.aside["operator"]


def test_sessions_that_differ_widen_the_interval() -> None:
    """Light was changed between sessions, not within: ten sessions say less than 200 takes."""
    rng = np.random.default_rng(4)
    sessions = [
        Trials({"lighting": "dim" if k % 2 else "nominal"},
               int(rng.binomial(20, float(np.clip(0.6 + rng.normal(0, 0.2), 0, 1)))), 20, f"s{k}")
        for k in range(10)
    ]  # fmt: skip
    alone = [Trials(r.levels, r.successes, r.trials) for r in sessions]
    wide, narrow = factor_table(sessions).effects[0], factor_table(alone).effects[0]
    assert factor_table(sessions).clusters == 10
    assert wide.difference.value == pytest.approx(narrow.difference.value)
    assert wide.difference.high - wide.difference.low > 1.3 * (
        narrow.difference.high - narrow.difference.low
    )
