"""Laws of the sample stream; no dataset, no torch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.mixing.mixture import Draws, Mixture, MixtureStage, Pool

SIZES = (5, 40, 300)

shares = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5)
seeds = st.integers(0, 2**40)


def pools(*sizes: int) -> list[Pool]:
    return [
        Pool(f"s{i}", np.full(n, i), np.arange(n) * 10, np.ones(n)) for i, n in enumerate(sizes)
    ]


def make(
    *stages: MixtureStage,
    sizes: tuple[int, ...] = SIZES,
    batch: int = 8,
    ranks: int = 1,
    seed: int = 0,
) -> Mixture:
    return Mixture(pools(*sizes), stages, batch_size=batch, world_size=ranks, seed=seed)


def keys(drawn: Draws) -> list[tuple[int, int]]:
    return list(zip(drawn.dataset.tolist(), drawn.frame.tolist(), strict=True))


@settings(deadline=None)
@given(shares, seeds, st.integers(0, 5000))
def test_counts_stay_near_what_was_asked(asked: list[float], seed: int, n: int) -> None:
    """Not only in the long run: after any number of samples, for any shares."""
    mixture = make(MixtureStage(tuple(asked)), sizes=(7,) * len(asked), batch=1, seed=seed)
    quota = np.array(asked) / sum(asked) * n
    assert np.abs(mixture.counts(n) - quota).max() <= len(asked)
    drawn = np.bincount(mixture.draws(0, n).source, minlength=len(asked))
    assert np.array_equal(drawn, mixture.counts(n))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), seeds, st.integers(0, 10**7))
def test_a_block_that_quotas_divide_holds_them_exactly(
    asked: list[int], seed: int, block: int
) -> None:
    """Shares 1:3 give exactly 1 and 3 in every 4 samples, however far into a run."""
    asked = asked if any(asked) else [*asked, 1]
    mixture = make(
        MixtureStage(tuple(map(float, asked))), sizes=(7,) * len(asked), batch=1, seed=seed
    )
    first = block * sum(asked)
    drawn = mixture.draws(first, first + sum(asked))
    assert np.bincount(drawn.source, minlength=len(asked)).tolist() == asked


@settings(deadline=None, max_examples=30)
@given(shares, seeds, st.integers(0, 400), st.integers(1, 60))
def test_a_sample_depends_on_seed_and_place_alone(
    asked: list[float], seed: int, first: int, length: int
) -> None:
    """Asked for at once, in pieces or again, by another process: the same samples."""
    stages = (MixtureStage(tuple(asked), 3), MixtureStage(tuple(reversed(asked))))
    one, two = (make(*stages, sizes=(9,) * len(asked), seed=seed) for _ in range(2))
    whole = keys(one.draws(0, first + length))[first:]
    assert keys(two.draws(first, first + length)) == whole
    assert [k for n in range(first, first + length) for k in keys(two.draws(n, n + 1))] == whole


def test_another_seed_is_another_order() -> None:
    one, two = (make(MixtureStage((1, 1, 1)), seed=s) for s in (1, 2))
    assert keys(one.draws(0, 90)) != keys(two.draws(0, 90))


def test_resuming_is_never_having_stopped() -> None:
    stages = (
        MixtureStage((0, 1, 0), 3),
        MixtureStage((0.2, 0.3, 0.5), 4),
        MixtureStage((0.9, 0.1, 0)),
    )
    uninterrupted = [keys(make(*stages).batch(step)) for step in range(12)]
    for step in range(12):
        again = make(*stages).samples(step * 8)
        assert [[next(again) for _ in range(8)] for _ in range(step, 12)] == uninterrupted[step:]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_partition_the_stream(ranks: int) -> None:
    """Together they read what one process with the whole batch reads, and nothing twice."""
    stages = (MixtureStage((0, 1, 1), 5), MixtureStage((0.25, 0.25, 0.5)))
    shared = make(*stages, batch=4, ranks=ranks)
    alone = make(*stages, batch=4 * ranks)
    for step in range(12):
        parts = [keys(shared.batch(step, rank)) for rank in range(ranks)]
        assert [key for part in parts for key in part] == keys(alone.batch(step))
    assert np.array_equal(shared.counts(12), alone.counts(12))


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 4))
def test_no_row_comes_again_before_all_others_have(seed: int, ranks: int) -> None:
    drawn = make(MixtureStage((0.2, 0.3, 0.5)), batch=4, ranks=ranks, seed=seed).draws(0, 1200)
    for source, size in enumerate(SIZES):
        rows = drawn.row[drawn.source == source]
        for first in range(0, len(rows) - size + 1, size):
            assert len(set(rows[first : first + size].tolist())) == size
        assert max(Counter(rows.tolist()).values()) <= -(-len(rows) // size)


def test_epochs_differ_in_order() -> None:
    rows = make(MixtureStage((1,)), sizes=(50,)).draws(0, 100).row
    assert rows[:50].tolist() != rows[50:].tolist()
    assert rows[:50].tolist() != sorted(rows[:50].tolist())


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=4, max_size=30), seeds)
def test_heavy_rows_come_as_much_more_often(weights: list[float], seed: int) -> None:
    pool = Pool("a", np.zeros(len(weights), int), np.arange(len(weights)), np.array(weights))
    mixture = Mixture([pool], [MixtureStage((1,))], batch_size=10, seed=seed)
    n = 400 * len(weights)
    got = np.bincount(mixture.draws(0, n).row, minlength=len(weights))
    asked = n * np.array(weights) / sum(weights)
    assert np.abs(got - asked).max() <= 5


def test_a_source_without_a_share_is_never_drawn() -> None:
    mixture = make(
        MixtureStage((1, 0, 0), 7), MixtureStage((0.3, 0.7, 0), 9), MixtureStage((0, 0, 1)), batch=3
    )
    source = mixture.draws(0, 3 * 40).source
    assert set(source[: 3 * 7].tolist()) == {0}
    assert set(source[3 * 7 : 3 * 16].tolist()) == {0, 1}
    assert set(source[3 * 16 :].tolist()) == {2}


def test_a_stage_goes_on_where_the_one_before_left_off() -> None:
    """A source that both stages draw from doesn't begin its epoch anew."""
    mixture = make(
        MixtureStage((1, 1, 0), 2), MixtureStage((1, 0, 1)), sizes=(40, 40, 40), batch=10
    )
    rows = mixture.draws(0, 60).row[mixture.draws(0, 60).source == 0]
    assert len(rows) == 30
    assert len(set(rows.tolist())) == 30


def test_mean_shares_are_those_of_the_run() -> None:
    mixture = make(
        MixtureStage((1, 0, 0), 10), MixtureStage((0, 1, 1), 20), MixtureStage((0, 0, 1))
    )
    assert np.allclose(mixture.mean_shares(10), [1, 0, 0])
    assert np.allclose(mixture.mean_shares(40), [0.25, 0.25, 0.5])
    assert np.allclose(mixture.mean_shares(40), mixture.counts(40) / 320, atol=0.01)


@pytest.mark.parametrize("asked", [(0.0, 0, 0), (-1.0, 2, 0), (1.0,), (float("nan"), 1, 1)])
def test_shares_that_make_no_sense_are_refused(asked: tuple[float, ...]) -> None:
    with pytest.raises(UnusableInputError):
        make(MixtureStage(asked))


def test_stages_and_sources_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UnusableInputError, match="at least one stage"):
        make()
    with pytest.raises(UnusableInputError, match="Stage 1 of 2 needs steps"):
        make(MixtureStage((1, 1, 1)), MixtureStage((1, 1, 1)))
    with pytest.raises(UnusableInputError, match="'s1' has nothing"):
        make(MixtureStage((1, 1)), sizes=(3, 0))
    with pytest.raises(UnusableInputError, match="at least 1"):
        make(MixtureStage((1, 1, 1)), batch=0)
