"""Evidence: error rates hold whenever one looks; plans say what then happens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate_tests import stops
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.suite import Rules, Suite, SuiteTask
from gaploop.finetune.gate.evidence import (
    as_told,
    difference_interval,
    log_evidence,
    make_design,
    rate_evidence,
    retrain_margin,
)
from gaploop.finetune.gate.judge import comparison, power_curve

VALUES = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=60)


def draws(rates: tuple[float, float], shape: tuple[int, ...], seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    old, new = rng.random(shape) < rates[0], rng.random(shape) < rates[1]
    return new.astype(np.float64) - old


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_peeking_after_every_pair_keeps_the_error_rate(rate: float) -> None:
    """Equal policies: at most 5 % of evidence ever crosses, over 300 looks. 3 sigma of 600."""
    x = draws((rate, rate), (600, 300, 1))
    crossed = log_evidence(x, 0.0, 0.1, 0.4).max(-1) >= math.log(20)
    assert crossed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_kinds_that_differ_are_judged_by_their_mean() -> None:
    """One task gains 30 points, the other loses 30: on average nothing, so nothing is promoted."""
    rng = np.random.default_rng(1)
    old, new = rng.random((500, 200, 2)) < 0.5, rng.random((500, 200, 2)) < (0.8, 0.2)
    crossed = log_evidence(new.astype(float) - old, 0.0, 0.1, 0.4).max(-1) >= math.log(20)
    assert crossed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


@pytest.mark.parametrize("shared", [False, True])
def test_tasks_of_a_round_need_scenes_of_their_own(shared: bool) -> None:
    """Why no two pairs have one scene: four tasks on one promoted a fifth of equal policies.

    Whether an attempt succeeds hangs on its scene here; tasks share the scene or don't.
    """
    rng = np.random.default_rng(3)
    luck = rng.random((500, 120, 1 if shared else 4, 2)) * np.ones((4, 1))
    x = (luck[..., 1] < 0.7).astype(np.float64) - (luck[..., 0] < 0.7)
    crossed = log_evidence(x, 0.0, 0.1, 0.42).max(-1) >= math.log(20)
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)
    assert (crossed.mean() > limit) == shared


@given(VALUES)
def test_the_order_within_a_round_does_not_matter(values: list[float]) -> None:
    x = np.array(values)[None, :]
    there, back = log_evidence(x, 0.0, 0.1, 0.4), log_evidence(x[:, ::-1], 0.0, 0.1, 0.4)
    assert there == pytest.approx(back)


@given(VALUES)
def test_the_past_of_evidence_does_not_change(values: list[float]) -> None:
    """Evidence at a round may not depend on what comes after it."""
    x = np.array(values)[:, None]
    whole = log_evidence(x, 0.0, 0.1, 0.4)
    part = log_evidence(x[: len(x) // 2 + 1], 0.0, 0.1, 0.4)
    assert part == pytest.approx(whole[: len(part)])


def test_a_fixed_stake_on_a_rate_is_the_likelihood_ratio() -> None:
    got = rate_evidence(np.array([1.0, 0.0, 1.0]), 0.2, 0.4)[-1]
    assert got == pytest.approx(2 * math.log(0.4 / 0.2) + math.log(0.6 / 0.8))


def test_the_interval_holds_the_difference_at_every_look() -> None:
    """Of 60 runs with a true difference of 0.2, the final 95 % interval misses few."""
    runs = draws((0.5, 0.7), (60, 100, 1), seed=3)
    spans = [difference_interval(x, 0.05, 0.5) for x in runs]
    assert sum(not low <= 0.2 <= high for low, high in spans) <= 7
    assert all(high - low < 0.6 for low, high in spans)


def test_a_plan_finds_the_gain_with_fewer_pairs_than_a_fixed_one() -> None:
    """The plan's own promises, on other draws than it was made with: 3 sigma of 600."""
    rules = Rules(retrain_sd=0.0)
    design = make_design(rules)
    shape = (600, design.max_pairs, 1)
    for gain, low, high in ((0.0, 0.0, 0.05), (rules.gain, rules.power, 1.0)):
        x = draws((rules.baseline_rate, rules.baseline_rate + gain), shape, seed=5)
        better, futile = stops(x, rules, design.margin)
        promoted = float(((better < futile) & np.isfinite(better)).mean())
        assert low - 0.05 <= promoted <= high + 0.027
        pairs = np.minimum(np.minimum(better, futile), design.max_pairs).mean()
        assert pairs < 0.8 * design.fixed_pairs


def test_labels_that_are_wrong_cost_pairs_and_no_promise() -> None:
    """False promotion and power are those of true differences, whoever tells success."""
    suite = Suite("s", (SuiteTask("t", min_pass_rate=0.0),), Rules(gain=0.2))
    seen = as_told(suite, 0.05, 0.10)
    design = make_design(seen.rules)
    found = {p.difference: p.promoted for p in power_curve(seen, design, 0, 0.85)}
    assert found[0.0] <= 0.05 + 0.03
    assert found[0.2] >= suite.rules.power - 0.06
    assert design.margin == pytest.approx(0.85 * make_design(suite.rules).margin, rel=0.01)
    assert 1.2 < design.fixed_pairs / make_design(suite.rules).fixed_pairs < 1.6
    assert as_told(suite, 0.0, 0.0) == suite


def test_a_lucky_retrain_is_rarely_promoted() -> None:
    """Trainings on the same data differ; a test of two given policies promotes the lucky ones."""
    rng = np.random.default_rng(2)
    rules = Rules(retrain_sd=0.03)
    rates = np.clip(rng.normal(rules.baseline_rate, rules.retrain_sd, (2, 500, 1, 1)), 0, 1)
    old, new = rng.random((2, 500, 1200, 1), dtype=np.float32) < rates
    lucky = {}
    for name, margin in (("margin", retrain_margin(rules)), ("none", 0.0)):
        better, futile = stops(new.astype(float) - old, rules, margin)
        lucky[name] = float(((better < futile) & np.isfinite(better)).mean())
    assert lucky["margin"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)
    assert lucky["margin"] < lucky["none"] - 0.02


@given(st.floats(0, 0.04), st.floats(0, 0.04))
def test_more_spread_of_retrains_asks_for_a_larger_margin(one: float, other: float) -> None:
    low, high = sorted((one, other))
    margins = [retrain_margin(Rules(retrain_sd=sd)) for sd in (low, high)]
    assert 0 <= margins[0] <= margins[1] + 1e-9 < Rules().gain


def test_a_gain_hidden_by_retrains_is_refused() -> None:
    with pytest.raises(UnusableInputError, match=r"retrain_sd 0\.06 hides a gain of 0\.1"):
        make_design(Rules(retrain_sd=0.06))
    with pytest.raises(UnusableInputError, match="set max_pairs"):
        make_design(Rules(retrain_sd=0.0, gain=0.01))


def test_better_and_futile_speak_against_each_other() -> None:
    rules = replace(Rules(), retrain_sd=0.0)
    better, futile = comparison(np.ones((30, 1)), rules, 0.0)
    assert better[-1] > 0 > futile[-1]
    better, futile = comparison(-np.ones((30, 1)), rules, 0.0)
    assert futile[-1] > 0 > better[-1]
