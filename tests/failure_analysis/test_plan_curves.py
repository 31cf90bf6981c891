"""Laws of learning curves: results move them the right way and make them surer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan, PlanItem
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.curves import (
    RECOVERABLE,
    Curve,
    RolloutCounts,
    Trial,
    believed,
    campaign_trial,
    fixed_share,
    flat_curve,
    learn,
    load_trials,
    prior_curves,
    prior_entries,
    save_curves,
    updated,
)
from gaploop.failure_analysis.planning.plan import LEAST_RESPONSE

D = GapDimension
OBJECT, POSE = D.OBJECT_PROPERTY, D.SPATIAL_GEOMETRY
AT_20 = np.array([20.0])


def trial(after: int, *, n: int = 50, name: str = "c", takes: int = 20) -> Trial:
    return Trial(name, {OBJECT: takes}, {OBJECT: 1.0}, (5, n), (after, n))


def mean_and_sd(curve: Curve) -> tuple[float, float]:
    a = curve.probability.sum(axis=1)
    mean = float(a @ RECOVERABLE)
    return mean, float(np.sqrt(a @ (RECOVERABLE - mean) ** 2))


def test_the_prior_says_what_was_measured() -> None:
    curves = learn()
    fixed = {d: float(c.fixed(AT_20)[0]) for d, c in curves.items()}
    for mendable in (POSE, OBJECT, D.CONTACT_DYNAMICS, D.ACTUATOR_RESPONSE):
        assert fixed[mendable] > 0.3
    assert fixed[POSE] == max(fixed.values())
    assert 0.0 < fixed[D.HUMAN_BEHAVIOR] < 0.2
    for hopeless in (D.SENSOR_NOISE, D.VISUAL_DOMAIN, D.TASK_SPECIFICATION):
        assert curves[hopeless].responds < LEAST_RESPONSE, "else takes are asked for"
        assert fixed[hopeless] < 0.1


@pytest.mark.parametrize("takes", [5, 20, 50])
def test_more_success_afterwards_means_more_is_repaired(takes: int) -> None:
    start = {OBJECT: flat_curve(0.2)}
    seen = [updated(start, trial(k, takes=takes))[OBJECT] for k in range(0, 51, 5)]
    fixed = [float(c.fixed(AT_20)[0]) for c in seen]
    assert fixed == sorted(fixed)
    responds = [c.responds for c in seen]
    assert responds == sorted(responds)


def test_results_make_surer() -> None:
    curve, widths = flat_curve(0.2), []
    for k in range(5):
        low, high = curve.interval(20)
        widths.append(high - low)
        curve = updated({OBJECT: curve}, trial(35, name=str(k)))[OBJECT]
    assert widths[-1] < widths[0]
    assert sorted(widths, reverse=True) == widths
    assert mean_and_sd(curve)[1] < mean_and_sd(flat_curve(0.2))[1]


def test_results_take_back_what_was_hoped() -> None:
    before = learn()[OBJECT]
    after = learn([trial(5, name=str(k), n=100) for k in range(3)])[OBJECT]
    assert after.responds < before.responds
    assert after.fixed(AT_20)[0] < 0.5 * before.fixed(AT_20)[0]


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_matters(counts: list[int], shuffle: random.Random) -> None:
    both = {OBJECT: 10, POSE: 10}
    trials = [Trial(str(k), both, {OBJECT: 0.5, POSE: 0.4}, (5, 50), (c, 50))
              for k, c in enumerate(counts)]  # fmt: skip
    once = learn(trials)
    again = [*trials, trials[0]]
    shuffle.shuffle(again)
    for d, curve in learn(again).items():
        np.testing.assert_array_equal(curve.probability, once[d].probability)


def test_a_campaign_for_one_dimension_says_nothing_about_another() -> None:
    before, after = learn(), learn([trial(40)])
    for d in GapDimension:
        same = np.array_equal(before[d].probability, after[d].probability)
        assert same == (d is not OBJECT)


def test_curves_grow_and_flatten() -> None:
    line = learn()[POSE].fixed(np.arange(200, dtype=float))
    steps = np.diff(line)
    assert line[0] == 0.0
    assert (steps >= 0).all()
    assert (np.diff(steps) <= 1e-12).all()
    assert line[-1] <= 1.0


def test_intervals_cover_under_the_model() -> None:
    """Stations are drawn from the prior, a campaign is rolled out in each: 95 % means 95 %."""
    rng, inside, n = np.random.default_rng(3), 0, 150
    start = flat_curve(0.2)
    a, tau = start.draw(rng, n)
    for k in range(n):
        truth = float(fixed_share(a[k], tau[k], np.asarray(20.0)))
        before = rng.binomial(50, 0.2)
        noise = rng.beta(*_around(0.2 + 0.8 * truth))
        seen = Trial("t", {OBJECT: 20}, {OBJECT: 1.0}, (before, 50), (rng.binomial(50, noise), 50))
        low, high = updated({OBJECT: start}, seen)[OBJECT].interval(20)
        inside += low - 1e-9 <= truth <= high + 1e-9
    assert inside / n >= 0.90  # of 95 %, less three standard errors


def _around(rate: float) -> tuple[float, float]:
    """Beta distribution of a retrained policy's rate: its rollouts correlate by 0.02."""
    rate = min(max(rate, 0.01), 0.99)
    return rate * 49.0, (1.0 - rate) * 49.0


def test_trials_are_kept_and_read_back(tmp_path: Path) -> None:
    path, kept = tmp_path / "curves.json", [trial(30, name="b"), trial(20, name="a")]
    save_curves(path, "id", learn(kept), kept, [])
    assert sorted(load_trials(path), key=lambda t: t.id) == [kept[1], kept[0]]
    again = learn(load_trials(path))
    assert again[OBJECT].responds == learn(kept)[OBJECT].responds


def test_a_campaign_becomes_a_trial() -> None:
    items = (
        PlanItem("p:a", OBJECT, 12, "collect", "", share=0.6),
        PlanItem("p:a:object=mug", OBJECT, 3, "collect", "", share=0.6),
        PlanItem("p:b", D.ACTUATOR_RESPONSE, 0, "change_scene", "", share=0.3),
    )
    plan = Plan("p", "d", items)
    found = campaign_trial(plan, RolloutCounts(5, 50), RolloutCounts(30, 50, "policy"))
    assert (found.takes, found.shares) == ({OBJECT: 15}, {OBJECT: 0.6})
    stopped = campaign_trial(plan, RolloutCounts(5, 50), RolloutCounts(30, 50), {"p:a": 4})
    assert stopped.takes == {OBJECT: 4}
    with pytest.raises(UnusableInputError, match="no takes were recorded"):
        campaign_trial(plan, RolloutCounts(5, 50), RolloutCounts(30, 50), {})
    with pytest.raises(UnusableInputError, match="no judged rollouts"):
        campaign_trial(plan, RolloutCounts(0, 0), RolloutCounts(30, 50))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "gaploop.curves.v1"),
        ('{"schema": "gaploop.curves.v1", "trials": 3}', "damaged"),
        ('{"schema": "gaploop.curves.v1", "trials": [{"id": "a"}]}', "damaged"),
        ('{"schema": "gaploop.curves.v1", "trials": [{"id": "a", "takes": {}, "shares": {}, '
         '"before": [9, 3], "after": [1, 2]}]}', "more successes"),
    ],
)  # fmt: skip
def test_damaged_curves_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UnusableInputError, match=says) as caught:
        load_trials(tmp_path / "c.json")
    assert "\n" not in str(caught.value)


def idle(site: str, number: int = 0) -> dict[str, Any]:
    return {
        "id": f"{site}-{number}", "site": site, "dimension": OBJECT.value, "takes": 20,
        "before": [20, 100], "after": [20, 100],
    }  # fmt: skip


def test_one_site_rolled_out_for_ever_says_no_more_than_one_site() -> None:
    untried, often, sites = (
        float(prior_curves(entries)[OBJECT].fixed(AT_20)[0])
        for entries in ([], [idle("a", k) for k in range(30)], [idle(str(k)) for k in range(30)])
    )
    assert often > 0.6 * untried
    assert sites < 0.2 * untried


def test_what_a_policy_that_sees_was_tried_on_tells_of_its_kind_alone() -> None:
    seen = {**idle("a"), "after": [95, 100], "sees": "pictures"}
    tried = [], [seen], [idle("b")], [seen, idle("b")]
    tracked, sees = (
        [prior_curves(e, kind)[OBJECT].fixed(AT_20)[0] for e in tried] for kind in (False, True)
    )
    assert tracked[0] == tracked[1] > tracked[2] == tracked[3]
    assert sees[1] == sees[3] > sees[0] > sees[2]


def test_a_site_lies_where_the_others_let_expect_it() -> None:
    """Left out one at a time; a rate of 100 rollouts is known within some ten points."""
    every, inside = prior_entries(), []
    tried = {(entry["site"], entry.get("sees") == "pictures") for entry in every}
    others = {
        (site, sees): prior_curves([e for e in every if e["site"] != site], sees)
        for site, sees in tried
    }
    for entry in every:
        (before, n), after = entry["before"], entry["after"][0]
        curves = others[entry["site"], entry.get("sees") == "pictures"]
        low, high = curves[D(entry["dimension"])].interval(entry["takes"])
        inside.append(low - 0.1 <= (after - before) / (n - before) <= high + 0.1)
    assert np.mean(inside) >= 0.85  # of 95 %, less three standard errors


def test_no_trial_of_the_prior_counts_twice() -> None:
    ids = [entry["id"] for entry in prior_entries()]
    assert len(set(ids)) == len(ids)


def belief_table() -> str:
    """The table of docs/diagnose/planning.md: what is believed before any campaign."""
    lines = [
        "| dimension | chance that takes help | 5 takes fix | 20 takes | 50 takes |",
        "|---|---|---|---|---|",
    ]
    for d, curve in sorted(learn().items(), key=lambda pair: -pair[1].fixed(AT_20)[0]):
        found = believed(curve)
        cells = ["{:.0%} [{:.0%}, {:.0%}]".format(*found["mended"][n]) for n in ("5", "20", "50")]
        lines.append(f"| `{d.value}` | {found['responds']:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_shows_what_is_believed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnose" / "planning.md").read_text()
    shown = page.partition("<!-- curves: begin -->\n")[2].partition("\n<!-- curves: end -->")[0]
    assert shown == belief_table()
