"""Laws of the statistics, and the published tables that their methods come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.heldout import bootstrap_mean
from gaploop.core.statistics import (
    TrialCounts,
    holm,
    mcnemar_p,
    paired_difference,
    rate,
    standardised,
    weighted_sum,
)

counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_a_rate_lies_in_its_interval_and_is_never_certain(count: tuple[int, int]) -> None:
    found = rate(*count)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0.05


def test_a_rate_has_wilson_s_interval() -> None:
    from scipy.stats import binomtest

    found, by_scipy = rate(7, 20), binomtest(7, 20).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((by_scipy.low, by_scipy.high))


def test_newcombe_s_own_examples() -> None:
    """Tables of Newcombe 1998: 56/70 beside 48/80; paired (36, 12, 2, 0)."""
    found = weighted_sum([(1.0, [TrialCounts(56, 70)]), (-1.0, [TrialCounts(48, 80)])])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    pair = paired_difference(36, 12, 2, 0)
    assert (pair.value, pair.low, pair.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=1e-4)


@given(st.lists(counts, min_size=1, max_size=6), st.lists(counts, min_size=1, max_size=6))
def test_swapping_the_two_sides_turns_the_difference_round(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    first = [TrialCounts(*c, 1 / len(one)) for c in one]
    second = [TrialCounts(*c, 1 / len(two)) for c in two]
    there = weighted_sum([(1.0, first), (-1.0, second)])
    back = weighted_sum([(1.0, second), (-1.0, first)])
    assert -1 - 1e-9 <= there.low <= there.value <= there.high <= 1 + 1e-9
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


@given(counts)
def test_alike_strata_say_what_all_trials_together_say(count: tuple[int, int]) -> None:
    won, n = 10 * count[0], 10 * count[1]
    split = standardised([TrialCounts(won, n, 0.25)] * 4)
    whole = rate(4 * won, 4 * n)
    assert (split.low, split.high) == pytest.approx((whole.low, whole.high), abs=0.02)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_and_keeps_their_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    assert [adjusted[k] for k in order] == sorted(adjusted)


def test_holm_gives_what_statsmodels_gives() -> None:
    from statsmodels.stats.multitest import multipletests

    p_values = [0.012, 0.4, 0.001, 0.03, 0.02, 0.02]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_mcnemar_looks_at_discordant_pairs_only() -> None:
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(6, 0) == mcnemar_p(0, 6) == pytest.approx(2 * 0.5**6)


def test_a_bootstrap_interval_is_that_of_the_normal_for_many_takes() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    found = bootstrap_mean(values, seed=0, resamples=4000)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert found == bootstrap_mean(values, seed=0, resamples=4000)
