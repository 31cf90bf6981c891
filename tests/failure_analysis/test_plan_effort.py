"""Hours and money: measured where takes are there, assumed and said so where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import read_as
from gaploop.core.station import Costs
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.planning.ledger import SeenTake, effort_from, setup_changes

D = GapDimension
SECOND_NS = 1_000_000_000


def shift(n: int, take_s: float, reset_s: float, pause_at: int = -1) -> list[SeenTake]:
    """A session of demonstrations, every fourth of which failed."""
    t_s, found = 1000.0, []
    for k in range(n):
        info = TakeInfo(
            str(k), kind=TakeKind.DEMONSTRATION, session="s", t0_ns=int(t_s * SECOND_NS)
        )
        outcome = Outcome.FAILURE if k % 4 == 3 else Outcome.SUCCESS
        found.append(SeenTake(info, outcome, take_s))
        t_s += take_s + reset_s + (3000.0 if k == pause_at else 0.0)
    return found


def test_times_are_measured_from_takes_and_pauses_left_out() -> None:
    effort = effort_from(shift(20, 12.0, 24.0, pause_at=7))
    assert effort.measured == 20
    assert effort.take.mean_s == pytest.approx(12.0)
    assert effort.reset.mean_s == pytest.approx(24.0)
    assert effort.setup.basis == "assumed"
    assert effort.recorded == (15, 5)


def test_without_takes_times_are_assumed_and_less_sure() -> None:
    assumed, measured = effort_from(), effort_from(shift(20, 15.0, 30.0))
    assert (assumed.take.mean_s, assumed.reset.mean_s, assumed.measured) == (15.0, 30.0, 0)
    assert assumed.take.sd_s > measured.take.sd_s


def test_what_is_stated_counts_more_than_takes() -> None:
    station = Costs(take_s=40.0, reset_s=50.0, rate_per_hour=10.0)
    effort = effort_from(shift(20, 12.0, 24.0), station)
    assert (effort.take.mean_s, effort.reset.mean_s) == (40.0, 50.0)
    assert effort.rate_per_hour == 10.0


def test_failed_attempts_cost_time() -> None:
    some = effort_from(shift(40, 12.0, 24.0))
    clean = effort_from([replace(t, outcome=Outcome.SUCCESS) for t in shift(40, 12.0, 24.0)])
    assert some.hours_per_take(D.OBJECT_PROPERTY) > clean.hours_per_take(D.OBJECT_PROPERTY)
    assert effort_from().hours_per_take(D.CONTACT_DYNAMICS) > effort_from().hours_per_take(
        D.OBJECT_PROPERTY
    )


def test_drawn_hours_agree_with_the_expected_ones_and_cover_a_campaign() -> None:
    """Campaigns are recorded under the model; the interval holds their hours."""
    effort = effort_from(shift(60, 12.0, 24.0))
    draws = effort.draw_hours({D.OBJECT_PROPERTY: 40}, 0.0, np.random.default_rng(0), 4000)
    expected = 40 * effort.hours_per_take(D.OBJECT_PROPERTY)
    assert draws.mean() == pytest.approx(expected, rel=0.05)
    low, high = np.quantile(draws, (0.025, 0.975))
    rng = np.random.default_rng(1)
    tried = 40 + rng.negative_binomial(40, 0.76, 500)
    hours = tried * 36.0 / 3600.0
    assert np.mean((hours >= low) & (hours <= high)) >= 0.93


def test_changes_of_set_up_grow_with_takes() -> None:
    lights = [{"lighting": name, "grid_cell": [0, c]} for name in ("dim", "warm") for c in range(3)]
    every = [setup_changes(n, lights) for n in range(60)]
    assert every[0] == 0.0
    assert every == sorted(every)
    assert setup_changes(10, lights[:1]) == 0.0
    cells = [{"grid_cell": [0, c]} for c in range(3)]
    assert 0.0 < setup_changes(30, cells) < setup_changes(30, lights)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"take": 3}, "Did you mean 'take_s'"),
        ({"take_s": -1}, "must be a number from 0.1"),
        ({"rate_per_hour": "x"}, "must be a number"),
        ({"currency": 3}, "such as EUR"),
        (3, "must be a mapping"),
    ],
)
def test_bad_costs_are_one_line(value: object, says: str) -> None:
    with pytest.raises(UnusableInputError, match=says) as caught:
        read_as(Costs, value, "bench.yaml")
    assert "bench.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_costs_come_back() -> None:
    assert read_as(Costs, None, "f") == Costs()
    assert read_as(Costs, {"take_s": 20, "currency": "USD"}, "f") == Costs(20.0, currency="USD")
