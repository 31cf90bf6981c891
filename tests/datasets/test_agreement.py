"""Agreement between labellers: textbook values, and intervals that don't promise too much."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import FailureMode
from gaploop.datasets.labels.agreement import Agreement, agreement

MODES = sorted(FailureMode)


def said(words: Sequence[Sequence[int]]) -> list[LabelEvent]:
    """Return what labeller k said about take n: `words[n][k]`."""
    return [
        LabelEvent(f"u{n}", "failure_mode", MODES[word], f"p{k:02d}", "engineer")
        for n, row in enumerate(words)
        for k, word in enumerate(row)
    ]


def of(words: Sequence[Sequence[int]]) -> Agreement:
    found = agreement(said(words), [f"u{n}" for n in range(len(words))])
    return next(a for a in found if a.field == "failure_mode")


def test_cohens_kappa_is_the_textbooks() -> None:
    """Two readers of 50 grant proposals: 20 both yes, 15 both no, 5 and 10 apart: 0.4."""
    words = [(0, 0)] * 20 + [(0, 1)] * 5 + [(1, 0)] * 10 + [(1, 1)] * 15
    found = of(words)
    assert (found.method, found.takes, found.raw) == ("cohen", 50, 0.7)
    assert found.kappa == pytest.approx(0.4)


def test_fleiss_kappa_is_the_textbooks() -> None:
    """Fourteen raters, ten subjects, five categories: 0.210 (Fleiss 1971's worked layout)."""
    table = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    found = of([[k for k, count in enumerate(row) for _ in range(count)] for row in table])
    assert (found.method, found.takes, len(found.authors)) == ("fleiss", 10, 14)
    assert found.kappa == pytest.approx(0.210, abs=5e-4)
    assert found.raw == pytest.approx(0.378, abs=5e-4)


WORDS = st.integers(2, 4).flatmap(
    lambda people: st.lists(
        st.lists(st.integers(0, 2), min_size=people, max_size=people), min_size=1, max_size=12
    )
)


@given(WORDS)
def test_intervals_hold_what_they_are_of_and_are_never_a_point(words: list[list[int]]) -> None:
    """Five takes labelled alike gave the interval [1, 1]: as if two people could never differ."""
    found = of(words)
    low, high = found.raw_interval
    assert 0 <= low <= found.raw + 1e-9
    assert found.raw <= high + 1e-9
    assert high - low > 0.01
    if len({word for row in words for word in row}) == 1:
        assert math.isnan(found.kappa)
        return
    low, high = found.kappa_interval
    assert -1 <= low <= found.kappa + 1e-9
    assert found.kappa <= high + 1e-9
    assert high <= 1
    assert high - low > 0.01


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Bootstrap and asymptotic ones did so in 45 % of draws like these."""
    draw = np.random.default_rng(1)
    truth, held, draws = 0.90, 0, 120
    for _ in range(draws):
        real = draw.choice(2, size=(20, 1), p=[0.8, 0.2]).repeat(2, axis=1)
        guessed = draw.choice(2, size=(20, 2), p=[0.8, 0.2])
        low, high = of(np.where(draw.random((20, 2)) > 0.95, guessed, real).tolist()).kappa_interval
        held += low <= truth <= high
    assert held / draws > 0.87


@given(WORDS, st.permutations(range(4)))
def test_who_comes_first_does_not_matter(words: list[list[int]], order: list[int]) -> None:
    people = [k for k in order if k < len(words[0])]
    other, found = of([[row[k] for k in people] for row in words]), of(words)
    assert other.raw == pytest.approx(found.raw)
    assert other.kappa == pytest.approx(found.kappa, nan_ok=True)


def test_only_the_last_word_of_people_counts() -> None:
    events = said([(0, 0), (1, 1), (0, 1)])
    changed = [
        *events,
        LabelEvent("u0", "failure_mode", MODES[2], "p00", "engineer"),
        *(LabelEvent(f"u{n}", "failure_mode", MODES[0], "gaploop", "auto") for n in range(3)),
    ]
    [found] = agreement(changed, ["u0", "u1", "u2"])
    assert found.authors == ("p00", "p01")
    assert found.raw == pytest.approx(1 / 3)
    back = [*changed, labels.retraction(changed[len(events)])]
    assert agreement(back, ["u0", "u1", "u2"])[0].raw == pytest.approx(2 / 3)
    assert agreement(back, ["u0", "u1"])[0].raw == 1.0


def test_of_dimensions_the_heaviest_counts() -> None:
    def cause(who: str, **weights: float) -> LabelEvent:
        return LabelEvent("u0", "dimensions", weights, who, "engineer")

    alike = [
        cause("a", contact_dynamics=0.8, sensor_noise=0.1),
        cause("b", contact_dynamics=0.6, visual_domain=0.3),
    ]
    [found] = agreement(alike, ["u0"])
    assert (found.field, found.raw) == ("dimensions", 1.0)
