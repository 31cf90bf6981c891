from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.finetune.evaluation import Evaluation, Rollout, summarise, wilson
from gaploop.finetune.gate.judge import Answer, compare

OUTCOMES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=120)
FLIPPED = {
    Answer.PROMOTE: Answer.REJECT,
    Answer.REJECT: Answer.PROMOTE,
    Answer.INCONCLUSIVE: Answer.INCONCLUSIVE,
}


def evaluation(wins: list[bool], domain: Domain = Domain.SIM_TARGET) -> Evaluation:
    return summarise([Rollout(i, "nominal", won) for i, won in enumerate(wins)], domain=domain)


@given(OUTCOMES)
def test_swapping_before_and_after_flips_the_verdict(pairs: list[tuple[bool, bool]]) -> None:
    one, two = (evaluation([p[i] for p in pairs]) for i in (0, 1))
    there, back = compare(one, two), compare(two, one)
    assert back.verdict is FLIPPED[there.verdict]
    assert back.difference.p == there.difference.p
    assert back.difference.value == pytest.approx(-there.difference.value)
    low, high = there.difference.interval
    assert back.difference.interval == pytest.approx((-high, -low), abs=1e-12)


@given(OUTCOMES)
def test_the_interval_holds_the_difference(pairs: list[tuple[bool, bool]]) -> None:
    change = compare(*(evaluation([p[i] for p in pairs]) for i in (0, 1))).difference
    assert -1 <= change.interval[0] <= change.value <= change.interval[1] <= 1


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_holds_its_rate(counts: tuple[int, int]) -> None:
    rate = wilson(*counts)
    assert 0 <= rate.interval[0] <= rate.rate + 1e-12
    assert rate.rate - 1e-12 <= rate.interval[1] <= 1


def test_equal_policies_are_rarely_promoted() -> None:
    """The exact test keeps its level: promoted by chance in at most 2.5 % (+ noise)."""
    rng = np.random.default_rng(0)
    answers = [
        compare(*(evaluation((rng.random(60) < 0.6).tolist()) for _ in range(2))).verdict
        for _ in range(300)
    ]
    assert answers.count(Answer.PROMOTE) / len(answers) < 0.05


def test_an_improvement_that_forgets_the_old_cell_is_rejected() -> None:
    before, after = evaluation([False] * 50), evaluation([True] * 50)
    kept = evaluation([True] * 50, Domain.SIM)
    lost = evaluation([True] * 25 + [False] * 25, Domain.SIM)
    assert compare(before, after).verdict is Answer.PROMOTE
    same = compare(before, after, retention_before=kept, retention_after=kept)
    assert same.verdict is Answer.PROMOTE
    worse = compare(before, after, retention_before=kept, retention_after=lost)
    assert worse.verdict is Answer.REJECT
    assert "nominal" in worse.message


def test_a_simulated_target_is_called_sim_to_sim() -> None:
    wins = [True, False]
    assert compare(evaluation(wins), evaluation(wins)).message.startswith("Sim-to-sim")
    real = [evaluation(wins, Domain.REAL)] * 2
    assert "im-to-sim" not in compare(*real).message


def test_rollouts_that_do_not_pair_up_are_refused() -> None:
    one = evaluation([True, False])
    two = replace(one, outcomes=one.outcomes[:1])
    with pytest.raises(UnusableInputError, match="one policy only"):
        compare(one, two)
    with pytest.raises(UnusableInputError, match="both"):
        compare(one, one, retention_before=one)


def test_exit_codes_are_the_answers() -> None:
    many, none = evaluation([True] * 20), evaluation([False] * 20)
    assert compare(none, many).verdict.exit_code == 0
    assert compare(many, none).verdict.exit_code == 1
    assert compare(many, many).verdict.exit_code == 3


def test_an_evaluation_survives_json() -> None:
    whole = evaluation([True, True, False])
    assert Evaluation.from_json(whole.to_json()) == whole
    with pytest.raises(UnusableInputError):
        Evaluation.from_json({"schema": "other"})
    assert whole.to_csv().count("\n") == 4
