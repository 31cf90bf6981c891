"""Laws of plans: never over budget, never collecting in vain, more budget never brings less."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import make_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan, load_plan, save_plan
from gaploop.core.station import SIM_STATION, Costs, Station
from gaploop.core.twin import Twin, TwinParameter
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    TakeDiagnosis,
    deployment,
    shown_alone,
)
from gaploop.failure_analysis.planning.gains import (
    CAUSES,
    Budget,
    Curve,
    Failures,
    best_order,
    expected_curves,
    flat_curve,
    next_gains,
    split_takes,
)
from gaploop.failure_analysis.planning.ledger import effort_from
from gaploop.failure_analysis.planning.planner import LEAST_RESPONSE, PlanRequest, plan_for
from gaploop.failure_analysis.planning.remedies import REMEDIES, PlanContext
from gaploop.failure_analysis.report.report import deployment_lines
from gaploop.failure_analysis.signals.registry import Evidence
from gaploop.failure_analysis.station import UNMEASURED, verdict
from gaploop.scripts._diagnose import _in_twin

D = GapDimension
DIMENSIONS = [d.value for d in D]
SEEN = (Evidence("lag_s", 0.3, "s", "motion follows the command 300 ms late (nominal 11 ms)"),)


def failed(name: str, shares: dict[str, float], abstained: bool = False) -> TakeDiagnosis:
    every = {d: shares.get(d, 0.0) for d in DIMENSIONS}
    none = 1.0 - sum(every.values())
    return TakeDiagnosis(name, None, "timeout", "approach", every, none, abstained, SEEN)


def diagnosed(
    shares: dict[str, float], count: int = 5, abstained: bool = False, succeeded: int = 0
) -> Diagnosis:
    takes = tuple(failed(f"take-{k}", shares, abstained) for k in range(count))
    summary = {"outcomes": {"failure": count, "success": succeeded}}
    return Diagnosis("diagnosis-1", "here", takes, summary)


def by_dimension(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in plan.items:
        found[item.dimension.value] = found.get(item.dimension.value, 0) + item.takes
    return found


@cache
def prior() -> dict[GapDimension, Curve]:
    return expected_curves()


spreads = st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9).map(
    lambda raw: {d: v / max(sum(raw), 1.0) for d, v in zip(DIMENSIONS, raw, strict=True)}
)


@settings(max_examples=25, deadline=None)
@given(spreads, st.integers(0, 200), st.integers(0, 6), st.integers(0, 20))
def test_never_over_budget_and_never_collecting_in_vain(
    spread: dict[str, float], budget: int, count: int, succeeded: int
) -> None:
    plan = make_plan(diagnosed(spread, count, succeeded=succeeded), budget)
    assert sum(i.takes for i in plan.items) <= budget
    for item in plan.items:
        assert item.takes >= 0
        assert item.conditions == {}
        assert item.why
        assert item.test
        if item.takes:
            assert item.remedy == "collect"
        if prior()[item.dimension].responds < LEAST_RESPONSE:
            assert item.takes == 0
            assert item.remedy == REMEDIES[item.dimension].instead
    assert [i.share for i in plan.items] == sorted((i.share for i in plan.items), reverse=True)


@settings(max_examples=30, deadline=None)
@given(spreads, st.floats(0.0, 8.0), st.integers(0, 100))
def test_never_over_any_limit(spread: dict[str, float], hours: float, takes: int) -> None:
    ask = PlanRequest(Budget(takes, hours), prior(), effort_from((), Costs(rate_per_hour=60.0)))
    plan = plan_for(diagnosed(spread), ask)
    assert sum(i.takes for i in plan.items) <= takes
    assert plan.hours is not None
    assert plan.hours.value <= hours * 1.05 + 0.05  # the mean of draws, rounded
    assert plan.cost is not None
    assert plan.cost.value == pytest.approx(plan.hours.value * 60.0, abs=1.0)


@settings(max_examples=20, deadline=None)
@given(spreads, st.integers(0, 100), st.integers(0, 60), st.sampled_from(["takes", "hours"]))
def test_more_budget_never_brings_less(
    spread: dict[str, float], budget: int, more: int, unit: str
) -> None:
    def gain(limit: int) -> float:
        given = Budget(takes=limit) if unit == "takes" else Budget(hours=limit / 60.0)
        found = plan_for(diagnosed(spread, succeeded=5), PlanRequest(given, prior())).gain_points
        return found.value if found else 0.0

    assert gain(budget) <= gain(budget + more)


@settings(max_examples=5, deadline=None)
@given(st.lists(spreads, min_size=3, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_takes_does_not_matter(
    every: list[dict[str, float]], shuffle: random.Random
) -> None:
    takes = [failed(f"take-{k}", spread, k % 3 == 0) for k, spread in enumerate(every)]
    plans = []
    for _ in range(2):
        plan = make_plan(Diagnosis("d", "", tuple(takes), {}), 40)
        items = tuple(replace(item, id="") for item in plan.items)
        plans.append(replace(plan, id="", items=items))
        shuffle.shuffle(takes)
    assert plans[0] == plans[1]


@settings(max_examples=30, deadline=None)
@given(
    st.fixed_dictionaries({d: st.floats(0.5, 60.0) for d in (D.OBJECT_PROPERTY, D.HUMAN_BEHAVIOR)}),
    st.integers(0, 30),
)
def test_taking_the_best_next_take_is_the_best_plan(
    points: dict[GapDimension, float], budget: int
) -> None:
    """Against every other way to share the budget out."""
    gains = next_gains(prior(), points)
    chosen = best_order(gains, dict.fromkeys(points, 1.0), 0.0)[:budget]
    got = sum(gains[d][: chosen.count(d)].sum() for d in points)
    first, second = gains.values()
    best = max(first[:n].sum() + second[: budget - n].sum() for n in range(budget + 1))
    assert got == pytest.approx(best)


@pytest.mark.parametrize("dimension", ["spatial_geometry", "object_property"])
def test_what_demonstrations_fix_is_collected_until_it_is_not_worth_it(dimension: str) -> None:
    few, many = (make_plan(diagnosed({dimension: 0.9}), n) for n in (12, 500))
    assert by_dimension(few) == {dimension: 12}
    assert few.items[0].remedy == "collect"
    assert "budget ends it" in few.stop
    assert 12 < many.takes < 200
    assert "aren't worth their time" in many.stop


def test_no_response_means_no_takes() -> None:
    curves = prior() | {D.OBJECT_PROPERTY: flat_curve(1.0)}
    plan = plan_for(diagnosed({"object_property": 0.9}), PlanRequest(Budget(takes=50), curves))
    assert plan.takes == 0
    assert [i.remedy for i in plan.items] == ["change_scene"]
    assert plan.gain_points is not None
    assert plan.gain_points.high == 0.0


@pytest.mark.parametrize(
    ("dimension", "remedy"),
    [
        ("sensor_noise", "recalibrate"),
        ("visual_domain", "change_scene"),
        ("environmental_complexity", "change_scene"),
        ("task_specification", "change_task"),
    ],
)
def test_the_rest_says_what_to_do_instead(dimension: str, remedy: str) -> None:
    plan = make_plan(diagnosed({dimension: 0.9}), 50)
    assert plan.takes == 0
    assert plan.items[0].remedy == remedy
    assert "don't fix" in plan.items[0].why
    assert "Don't collect" in plan.stop


def test_takes_are_asked_for_where_the_study_saw_them_help() -> None:
    """The prior's chance for drives was set by hand, and plans left them as they were."""
    for dimension in ("contact_dynamics", "actuator_response"):
        (item,) = make_plan(diagnosed({dimension: 0.9}, count=16), 20).items
        assert item.remedy == "collect"
        assert item.takes > 0
        assert item.protocol.startswith("First"), "what fixes it without episodes comes before"


def test_a_policy_that_sees_pictures_can_learn_the_light() -> None:
    """Five stations showed it; a policy that tracks poses is told to change the light instead."""
    for sees in (True, False):
        ask = PlanRequest(Budget(takes=100), expected_curves(image_policy=sees), image_policy=sees)
        (item,) = plan_for(diagnosed({"visual_domain": 0.98}, count=20), ask).items
        assert (item.remedy == "collect") == sees
        assert (item.takes >= 20) == sees


def test_a_small_share_gets_no_item() -> None:
    plan = make_plan(diagnosed({"object_property": 0.9, "contact_dynamics": 0.04}), 20)
    assert [i.dimension.value for i in plan.items] == ["object_property"]


def test_abstentions_and_too_few_failures_pay_for_nothing() -> None:
    for unclear in (
        diagnosed({"object_property": 0.9}, count=5, abstained=True),
        diagnosed({"object_property": 0.45, "human_behavior": 0.4}, count=20, abstained=True),
        diagnosed({"object_property": 0.9}, count=2),
    ):
        plan = make_plan(unclear, 50)
        assert plan.takes == 0
        assert not plan.items or "Too few" in plan.items[0].why
        assert any("Find out first" in note for note in plan.notes)
    assert make_plan(diagnosed({}, count=0), 50).items == ()


def test_where_it_is_open_whether_demonstrations_help_the_plan_says_so() -> None:
    curves = prior() | {D.OBJECT_PROPERTY: flat_curve(0.4)}
    plan = plan_for(diagnosed({"object_property": 0.9}), PlanRequest(Budget(takes=100), curves))
    assert "is open (chance 60%)" in plan.items[0].why


def test_takes_follow_the_conditions_under_which_it_fails() -> None:
    takes = tuple(failed(f"take-{k}", {"object_property": 0.9}) for k in range(8))
    under = {
        f"take-{k}": {"object": "mug" if k < 6 else "box", "lighting": "day"} for k in range(8)
    }
    diagnosis = Diagnosis("d", "", takes, {})
    plan = plan_for(diagnosis, PlanRequest(Budget(takes=20), prior(), conditions=under))
    got = {item.conditions["object"]: item.takes for item in plan.items}
    assert got["mug"] > got["box"] > 0
    assert sum(got.values()) <= 20
    assert all(item.conditions["lighting"] == "day" for item in plan.items)
    assert len({item.id for item in plan.items}) == 2


def test_without_known_conditions_takes_are_spread_over_what_the_station_has() -> None:
    bench = Station("bench", conditions={"object": ("mug", "box")}, grid=(2, 2))
    ask = PlanRequest(Budget(takes=16), prior(), station=bench)
    (item,) = plan_for(diagnosed({"object_property": 0.9}), ask).items
    assert item.vary["object"] == ("mug", "box")
    assert len(item.setups()) == 8


def test_an_even_split_is_even() -> None:
    assert split_takes(12, [0.25] * 4, prior()[D.OBJECT_PROPERTY]) == [3, 3, 3, 3]
    assert split_takes(7, [1.0], prior()[D.OBJECT_PROPERTY]) == [7]


def test_intervals_hold_under_the_model() -> None:
    """Worlds are drawn, failures from them; the share lies in its interval as often as it says."""
    rng = np.random.default_rng(5)
    inside, n = 0, 200
    for _ in range(n):
        share = rng.dirichlet(np.full(len(CAUSES), 0.1))
        causes = rng.choice(len(CAUSES), size=12, p=share)
        names = [CAUSES[c].value if CAUSES[c] else "" for c in causes]  # type: ignore[union-attr]
        takes = tuple(failed(str(k), {name: 1.0} if name else {}) for k, name in enumerate(names))
        draws = Failures(takes, 12, 0).draw_shares(np.random.default_rng(0), 2000)
        low, high = np.quantile(draws[:, 7], (0.025, 0.975))
        inside += low - 1e-9 <= share[7] <= high + 1e-9
    assert inside / n >= 0.92  # of 95 %, less three standard errors


def test_a_shared_doubt_widens_the_interval() -> None:
    """Ten takes at 60 % aren't a sure 60 %: the diagnosis may be wrong on all for one reason."""
    shares = {"object_property": 0.6, "spatial_geometry": 0.4}
    draws = Failures.of(diagnosed(shares, 10)).draw_shares(np.random.default_rng(0), 4000)
    place = CAUSES.index(D.OBJECT_PROPERTY)
    assert draws[:, place].mean() == pytest.approx(0.56, abs=0.03)
    low, high = np.quantile(draws[:, place], (0.025, 0.975))
    assert low < 0.3
    assert high > 0.85


def test_points_of_success_need_successes() -> None:
    known = make_plan(diagnosed({"object_property": 0.9}, succeeded=15), 20)
    assert known.success_now is not None
    assert known.success_now.value == pytest.approx(0.74, abs=0.03)
    assert known.success_then is not None
    assert known.success_now.value < known.success_then.value <= 1.0
    unknown = make_plan(diagnosed({"object_property": 0.9}), 20)
    assert unknown.success_now is None
    assert unknown.gain_of == "the failures"
    assert any("No rollout that was diagnosed" in note for note in unknown.notes)


def test_a_plan_reads_back_and_names_its_diagnosis(tmp_path: Path) -> None:
    diagnosis = diagnosed({"object_property": 0.5, "actuator_response": 0.4}, succeeded=3)
    ask = PlanRequest(Budget(takes=30), prior(), effort_from((), Costs(rate_per_hour=30.0)))
    plan = plan_for(diagnosis, replace(ask, station=SIM_STATION))
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    assert plan.diagnosis == "diagnosis-1"


def test_a_mistake_of_the_deployment_comes_first() -> None:
    """Takes were planned against spatial geometry; two joints' statistics were exchanged."""
    plain = diagnosed({"spatial_geometry": 0.9})
    report = AbsoluteReport(Path())
    report.add("wrong_statistics", "", "Only this set's statistics match", range(5), 5, "Mend", 9.0)
    report.add("noise", "roll", "It jitters", range(5), 5, "gaploop doctor", 1.0)
    found = deployment(report, plain)
    assert [(f["kind"], f["failures"], f["modes"], f["fix"]) for f in found] == [
        ("wrong_statistics", 5, {"timeout in approach": 5}, "Mend")
    ]
    assert make_plan(plain, 40).items
    plan = make_plan(replace(plain, summary={**plain.summary, "deployment": found}), 40)
    assert not plan.items
    assert plan.stop.startswith("Don't collect yet: wrong statistics was found")
    assert "5 failures (timeout in approach 5×)" in deployment_lines({"deployment": found})[0]


def test_what_episodes_show_by_themselves_is_mended_before_anything_is_measured() -> None:
    """Leader and follower stood 15 degrees apart, diagnose said so, and the plan left it out."""
    report, fix = AbsoluteReport(Path()), "gaploop edit correct cups"
    report.add("offset", "lift", "At rest lift stands off, by", range(5), 5, fix, 15.0)
    report.add("joint_delay", "roll", "roll is late, by", [0, 1], 5, "gaploop doctor", 9.0)
    report.add("wrong_rate", "", "The policy runs at", range(5), 5, "Mend", 9.0)
    shown = shown_alone(report)
    assert [(f["kind"], f["belongs_to"], f["fix"]) for f in shown] == [
        ("offset", "spatial_geometry", fix)
    ]
    # A simulated arm whose model has friction went well in 12 of 12, and was to be turned by hand.
    report.add(
        "start_change",
        "lift",
        "From episode 1 on lift starts elsewhere",
        range(1, 5),
        5,
        "",
        to_mend=False,
    )
    assert shown_alone(report) == shown  # of a real pair it was to be mended before collecting
    assert not shown_alone(report, {"success": 5, "failure": 0})
    for others in ({"failure": 1}, {"unlabelled": 1}, {"discarded": 1}):
        assert shown_alone(report, {"success": 4, **others}) == shown
    assert shown_alone(report, {"unlabelled": 5}) == shown
    plain = diagnosed({})
    plan = make_plan(replace(plain, summary={**plain.summary, "shown_alone": shown}), 40)
    assert plan.stop.startswith("Don't collect yet: mend")
    assert plan.notes[0].startswith("Mend first: At rest lift stands off")
    assert plan.notes[0].endswith(f" → {fix}")


def test_a_delay_that_the_twin_has_is_no_wrong_fps() -> None:
    """`diagnose --twin` said to look at fps, and the plan to mend it first, beside the cause."""
    report = AbsoluteReport(Path())
    apart = "a slow arm, a wrong fps"
    report.add("action_lag", "", "It is late", range(5), 5, "Look at fps", 9.0, apart=apart)
    name = "actuator_response.latency.latency_s"
    late = TwinParameter(name, "s", 0.0, 0.481, (0.47, 0.49))
    found, none = (_in_twin(report.findings[0], Twin("lab", "so101", p)) for p in ((late,), ()))
    assert none == report.findings[0]
    assert found.command == "The twin has it (latency_s 0.481 s): its cost is below."
    assert "fps" not in found.line()
    assert [f["kind"] for f in shown_alone(report)] == ["action_lag"]
    assert not shown_alone(replace(report, findings=[found]))


def test_bad_budgets_are_refused() -> None:
    with pytest.raises(UnusableInputError, match=r"--budget\.takes"):
        make_plan(diagnosed({}), -1)
    with pytest.raises(UnusableInputError, match=r"--budget\.hours"):
        Budget(hours=float("nan"))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize(("ground", "asks"), [("cell", "--twin"), ("elsewhere", "--trained_on")])
def test_no_twin_is_asked_for_where_the_scene_is_somebody_elses(
    ground: str, asks: str, count: int
) -> None:
    """The only twin there is shows gaploop's own cell.

    The step comes first: six causes that were listed before it hid it.
    """
    plain = diagnosed({})
    hidden = [d.value for d in list(GapDimension)[:count]]
    evidence = {"ground": ground, "evidence": {"cannot_rule_out": hidden}}
    ask = PlanRequest(Budget(takes=40), prior(), about=PlanContext(Path("plan"), "base"))
    plan = plan_for(replace(plain, summary={**plain.summary, **evidence}), ask)
    assert asks in plan.stop
    assert plan.stop.index(" first: ") < plan.stop.index("Nothing here rules out")
    assert (f"{count} causes" in plan.stop) == (count > 2)
    assert ("--twin" in " ".join([plan.stop, *plan.notes])) == (ground == "cell")


@pytest.mark.parametrize("other_arm", [False, True])
def test_no_twin_is_measured_of_an_arm_that_the_cell_hasnt_got(other_arm: bool) -> None:
    """Of a Panda's rollouts the plan printed gaploop identify, which refuses their joints."""
    about = PlanContext(Path("plan"), takes=(Path("rollouts"),), other_arm=other_arm)
    plan = plan_for(
        replace(diagnosed({}), source="rollouts"),
        PlanRequest(Budget(takes=40), prior(), about=about),
    )
    assert bool(plan.measure) != other_arm
    assert ("measuring" in " ".join(plan.notes)) != other_arm


@pytest.mark.parametrize(("share", "says"), [(0.76, "Clear the cell"), (0.3, "Watch")])
def test_who_measured_the_station_already_isnt_told_to_measure_it(share: float, says: str) -> None:
    """Things on the table at 76 %, as its twin told: "Measure first: gaploop identify"."""
    rest = dict.fromkeys((*DIMENSIONS, UNMEASURED), (1.0 - share) / len(DIMENSIONS))
    station = verdict({**rest, "environmental_complexity": share}, 8, {UNMEASURED: 1.0})
    seen = {
        "station": station.to_json(), "reproduction": {},
        "evidence": {"cannot_rule_out": ["environmental_complexity"]},
    }  # fmt: skip
    assert ("likeliest environmental complexity" in station.message) == (share > 0.5)
    plain = diagnosed({}, abstained=True)
    plan = make_plan(replace(plain, summary={**plain.summary, **seen}), 40)
    assert plan.stop.startswith("Not decided: ")
    assert says in plan.stop
    assert "identify" not in plan.stop
