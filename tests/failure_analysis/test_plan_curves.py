"""Laws of learning curves: what was tried moves them the right way and makes them surer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.gains import (
    RECOVERABLE,
    Curve,
    curves_of,
    expected_curves,
    fixed_share,
    fixed_shares,
    flat_curve,
    prior_entries,
    updated,
)
from gaploop.failure_analysis.planning.planner import LEAST_RESPONSE

D = GapDimension
OBJECT, POSE = D.OBJECT_PROPERTY, D.SPATIAL_GEOMETRY
AT_20 = np.array([20.0])


def interval(curve: Curve, takes: int) -> tuple[float, float]:
    """Return the central 95 % interval of the share fixed by that many takes."""
    values = fixed_shares(np.array([float(takes)]))[0]
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(curve.probability.ravel()[order])
    low, high = np.minimum(np.searchsorted(reached, (0.025, 0.975)), len(order) - 1)
    return float(values[order[low]]), float(values[order[high]])


def moved(curve: Curve, after: int, *, n: int = 50, takes: int = 20) -> Curve:
    return updated(curve, takes, (5, n), (after, n))


def mean_and_sd(curve: Curve) -> tuple[float, float]:
    a = curve.probability.sum(axis=1)
    mean = float(a @ RECOVERABLE)
    return mean, float(np.sqrt(a @ (RECOVERABLE - mean) ** 2))


def test_the_prior_says_what_was_measured() -> None:
    curves = expected_curves()
    fixed = {d: float(c.fixed(AT_20)[0]) for d, c in curves.items()}
    for mendable in (POSE, OBJECT, D.CONTACT_DYNAMICS, D.ACTUATOR_RESPONSE):
        assert fixed[mendable] > 0.3
    assert fixed[POSE] == max(fixed.values())
    assert 0.0 < fixed[D.HUMAN_BEHAVIOR] < 0.2
    for hopeless in (D.SENSOR_NOISE, D.VISUAL_DOMAIN, D.TASK_SPECIFICATION):
        assert curves[hopeless].responds < LEAST_RESPONSE, "else episodes are asked for"
        assert fixed[hopeless] < 0.1


@pytest.mark.parametrize("takes", [5, 20, 50])
def test_more_success_afterwards_means_more_is_repaired(takes: int) -> None:
    seen = [moved(flat_curve(0.2), k, takes=takes) for k in range(0, 51, 5)]
    fixed = [float(c.fixed(AT_20)[0]) for c in seen]
    assert fixed == sorted(fixed)
    responds = [c.responds for c in seen]
    assert responds == sorted(responds)


def test_results_make_surer() -> None:
    curve, widths = flat_curve(0.2), []
    for _ in range(5):
        low, high = interval(curve, 20)
        widths.append(high - low)
        curve = moved(curve, 35)
    assert widths[-1] < widths[0]
    assert sorted(widths, reverse=True) == widths
    assert mean_and_sd(curve)[1] < mean_and_sd(flat_curve(0.2))[1]


def test_curves_grow_and_flatten() -> None:
    line = expected_curves()[POSE].fixed(np.arange(200, dtype=float))
    steps = np.diff(line)
    assert line[0] == 0.0
    assert (steps >= 0).all()
    assert (np.diff(steps) <= 1e-12).all()
    assert line[-1] <= 1.0


def test_intervals_cover_under_the_model() -> None:
    """Stations are drawn from the prior, a campaign is rolled out in each: 95 % means 95 %."""
    rng, inside, n = np.random.default_rng(3), 0, 60
    start = flat_curve(0.2)
    a, tau = start.draw(rng, n)
    for k in range(n):
        truth = float(fixed_share(a[k], tau[k], np.asarray(20.0)))
        before = rng.binomial(50, 0.2)
        noise = rng.beta(*_around(0.2 + 0.8 * truth))
        low, high = interval(updated(start, 20, (before, 50), (rng.binomial(50, noise), 50)), 20)
        inside += low - 1e-9 <= truth <= high + 1e-9
    assert inside / n >= 0.90  # of 95 %, less three standard errors


def _around(rate: float) -> tuple[float, float]:
    """Beta distribution of a retrained policy's rate: its rollouts correlate by 0.02."""
    rate = min(max(rate, 0.01), 0.99)
    return rate * 49.0, (1.0 - rate) * 49.0


def idle(site: str, number: int = 0) -> dict[str, Any]:
    return {
        "id": f"{site}-{number}", "site": site, "dimension": OBJECT.value, "takes": 20,
        "before": [20, 100], "after": [20, 100],
    }  # fmt: skip


def test_one_site_rolled_out_for_ever_says_no_more_than_one_site() -> None:
    untried, often, sites = (
        float(curves_of(entries)[OBJECT].fixed(AT_20)[0])
        for entries in ([], [idle("a", k) for k in range(30)], [idle(str(k)) for k in range(30)])
    )
    assert often > 0.6 * untried
    assert sites < 0.2 * untried


def test_what_a_policy_that_sees_was_tried_on_tells_of_its_kind_alone() -> None:
    seen = {**idle("a"), "after": [95, 100], "sees": "pictures"}
    tried = [], [seen], [idle("b")], [seen, idle("b")]
    tracked, sees = (
        [curves_of(e, kind)[OBJECT].fixed(AT_20)[0] for e in tried] for kind in (False, True)
    )
    assert tracked[0] == tracked[1] > tracked[2] == tracked[3]
    assert sees[1] == sees[3] > sees[0] > sees[2]


def test_a_site_lies_where_the_others_let_expect_it() -> None:
    """One in three left out in turn; a rate of 100 rollouts is known within some ten points."""
    every, inside = prior_entries(), []
    tried = sorted({(entry["site"], entry.get("sees") == "pictures") for entry in every})[::3]
    others = {
        (site, sees): curves_of([e for e in every if e["site"] != site], sees)
        for site, sees in tried
    }
    for entry in every:
        if (entry["site"], entry.get("sees") == "pictures") not in others:
            continue
        (before, n), after = entry["before"], entry["after"][0]
        curves = others[entry["site"], entry.get("sees") == "pictures"]
        low, high = interval(curves[D(entry["dimension"])], entry["takes"])
        inside.append(low - 0.1 <= (after - before) / (n - before) <= high + 0.1)
    assert np.mean(inside) >= 0.85  # of 95 %, less three standard errors


def test_no_trial_of_the_prior_counts_twice() -> None:
    ids = [entry["id"] for entry in prior_entries()]
    assert len(set(ids)) == len(ids)


def belief_table() -> str:
    """The table of docs/diagnose/planning.md: what is believed before any campaign."""
    lines = [
        "| dimension | chance that takes help | 5 episodes fix | 20 episodes | 50 episodes |",
        "|---|---|---|---|---|",
    ]
    for d, curve in sorted(expected_curves().items(), key=lambda pair: -pair[1].fixed(AT_20)[0]):
        means = zip((5, 20, 50), curve.fixed(np.array([5.0, 20.0, 50.0])), strict=True)
        cells = ["{:.0%} [{:.0%}, {:.0%}]".format(m, *interval(curve, n)) for n, m in means]
        lines.append(f"| `{d.value}` | {curve.responds:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_shows_what_is_believed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnose" / "planning.md").read_text()
    shown = page.partition("<!-- curves: begin -->\n")[2].partition("\n<!-- curves: end -->")[0]
    assert shown == belief_table()
