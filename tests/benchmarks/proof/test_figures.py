"""What the study's figures promise, on rows whose truth is known."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_rows import row

from benchmarks.proof import figures
from benchmarks.proof.figures import reached
from benchmarks.proof.lessons import STUDY, TAUGHT, taught, trials
from benchmarks.proof.pictures import curves_picture, most_run, saved_picture, success_picture
from benchmarks.proof.report import losses, summary, table
from benchmarks.proof.rows import StudyRow, load_rows, save_rows
from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.planning.gains import prior_entries


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DRAWS", 200)


def a_study(
    targeted: dict[int, float], uniform: dict[int, float], sites: int = 3
) -> list[StudyRow]:
    arms = {"targeted": targeted, "uniform": uniform}
    return [
        row(arm, n, rate, seed)
        for seed in range(sites)
        for arm, curve in arms.items()
        for n, rate in curve.items()
    ]


@pytest.mark.parametrize(
    ("level", "takes"),
    [(0.1, 1.0), (0.05, 1.0), (0.5, 5.0), (0.7, 10.0), (0.9, 20.0), (0.95, math.inf)],
)
def test_takes_to_a_level_are_interpolated_over_their_logarithm(level: float, takes: float) -> None:
    assert reached([5, 20, 50], [0.5, 0.9, 0.8], 0.1, level) == pytest.approx(takes)


def test_a_dip_in_the_curve_takes_nothing_back() -> None:
    assert reached([5, 20, 50], [0.8, 0.3, 0.9], 0.1, 0.8) == pytest.approx(5.0)


def test_ten_times_fewer_takes_are_called_ten_times() -> None:
    rows = a_study({5: 0.8, 20: 0.9, 50: 0.9}, {5: 0.2, 20: 0.5, 50: 0.8})
    saved = figures.takes_saved(rows)
    assert saved is not None
    assert saved.value == pytest.approx(10.0)
    assert saved.low <= 10.0 <= saved.high


def test_not_reached_is_reported_as_zero_and_not_left_out() -> None:
    rows = a_study({5: 0.1, 20: 0.2, 50: 0.3}, {5: 0.2, 20: 0.5, 50: 0.8})
    saved = figures.takes_saved(rows)
    assert saved is not None
    assert saved.value == 0.0
    assert saved.sites == 3
    assert figures.takes_saved([r for r in rows if r.arm == "targeted"]) is None


def test_hours_are_saved_where_takes_are_and_set_ups_count() -> None:
    """Ten times fewer takes at a set-up each are not ten times fewer hours."""
    rows = a_study({5: 0.8, 20: 0.9, 50: 0.9}, {50: 0.8})
    dear = [replace(r, hours=r.hours + 0.1) if r.arm == "targeted" else r for r in rows]
    saved, cost = figures.takes_saved(rows), figures.hours_saved(rows)
    assert saved
    assert cost
    assert cost.value == pytest.approx(saved.value)
    cost = figures.hours_saved(dear)
    assert cost
    assert cost.value == pytest.approx(1.0 / 0.2)


def test_nothing_recorded_costs_no_hours_and_that_is_no_division_by_nothing() -> None:
    rows = [
        row("targeted", 50, 0.1, planned={}, takes=0, attempts=0, hours=0.0),
        row("uniform", 50, 0.1),
    ]
    cost = figures.hours_saved(rows)
    assert cost
    assert cost.value == 50.0


def test_where_targeting_lost_is_listed_with_its_reason_the_worst_first() -> None:
    rows = [
        *a_study({20: 0.5}, {20: 0.55}, sites=1),
        row("targeted", 20, 0.1, 1, planned={}, takes=0), row("uniform", 20, 0.4, 1),
        row("targeted", 20, 0.2, 2, found="visual_domain", planned={"visual_domain": 20}),
        row("uniform", 20, 0.9, 2),
        row("targeted", 20, 0.2, 3), row("uniform", 20, 0.4, 3),
        row("targeted", 20, 0.1, 4, planned={"actuator_response": 20}), row("uniform", 20, 0.25, 4),
        row("targeted", 20, 0.1, 5, planned={}, found=""), row("uniform", 20, 0.22, 5),
    ]  # fmt: skip
    found = figures.losses(rows)
    why = [loss.why for loss in found]
    assert why == ["misnamed", "not collected", "collected", "elsewhere", "not named"]
    assert found[0].behind == pytest.approx(0.7)
    said = losses([asdict(loss) for loss in found])
    assert (
        "| pick_place-spatial_geometry-2 | 20 | spatial_geometry.camera_pose | 70 points |" in said
    )
    assert losses([]) == ""


def test_differences_are_paired_scene_by_scene() -> None:
    """Two arms that win the same scenes differ by nothing, however few scenes there are."""
    rows = a_study({20: 0.5}, {20: 0.5})
    gain = figures.gains(rows, ("targeted", 20), ("uniform", 20))
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_dont_collect_is_right_where_uniform_gains_little() -> None:
    rows = [
        *a_study({50: 0.9}, {50: 0.9}, sites=1),
        row("targeted", 50, 0.1, 1, planned={}, takes=0), row("uniform", 50, 0.15, 1),
        row("targeted", 50, 0.1, 2, planned={}, takes=0), row("uniform", 50, 0.60, 2),
        row("targeted", 50, 0.1, 3), row("uniform", 50, 0.1, 3),
    ]  # fmt: skip
    found = figures.plans(rows)
    assert (found.said, found.right, found.missed, found.sites) == (2, 1, 1, 4)


def test_attribution_counts_sites_and_only_those_with_failures() -> None:
    rows = [
        *a_study({5: 0.5, 20: 0.5}, {}, sites=2),
        row("targeted", 5, 0.5, 7, found="visual_domain"),
        row("targeted", 5, 0.5, 8, found="", failures=0),
    ]
    named = figures.attribution(rows)
    assert named is not None
    assert (named.successes, named.trials) == (2, 3)


def test_rows_come_back_from_parquet_as_they_were_and_give_the_same_bytes(tmp_path: Path) -> None:
    rows = a_study({5: 0.5}, {5: 0.25})
    save_rows(rows, tmp_path / "a.parquet")
    save_rows(reversed(rows), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert sorted(load_rows(tmp_path / "a.parquet"), key=lambda r: r.key) == sorted(
        rows, key=lambda r: r.key
    )


def test_a_file_that_holds_no_results_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1, or so it says")
    for name in ("a.parquet", "none.parquet"):
        with pytest.raises(UnusableInputError, match=name):
            load_rows(tmp_path / name)


def test_the_tables_hold_every_gap_and_the_pictures_are_drawn() -> None:
    rows = a_study({5: 0.8, 50: 0.9}, {5: 0.2, 50: 0.8})
    rows += [replace(r, gap="object_property") for r in rows]
    said = table(summary(rows))
    success, saved = said.split("Takes and hours saved")
    for name, sites in {"spatial_geometry": 3, "object_property": 3, "all": 6}.items():
        assert [n for n in (5, 20, 50) if f"| pick_place {name} | {n} |" in success] == [5, 50]
        assert f"| pick_place {name} | {sites} of {sites} | 50 | 10.0x" in saved
    for picture in (success_picture(rows), curves_picture(rows), saved_picture(summary(rows))):
        assert picture is not None
        assert picture.startswith(b"\x89PNG")


def test_an_arm_that_few_sites_have_run_is_set_beside_the_others_at_those_alone() -> None:
    """The first sites are easy: beside the mean of all of them it would seem better than it is."""
    easy, hard = a_study({20: 0.9}, {20: 0.2}, sites=2), a_study({20: 0.3}, {20: 0.2}, sites=4)
    rows = [*easy, *(r for r in hard if r.seed >= 2), row("on_site", 20, 0.8, 0)]
    found = summary([r for r in rows if r.budget == 20])["pick_place all"]
    assert found["targeted_minus_uniform"][20]["value"] == pytest.approx(0.4)
    gain = found["targeted_minus_on_site"][20]
    assert (gain["sites"], gain["value"]) == (1, pytest.approx(0.1))
    assert "+10 [" in table(summary(rows))


def test_with_one_budget_there_is_no_curve_to_draw() -> None:
    rows = [r for r in a_study({5: 0.8, 20: 0.9}, {5: 0.2, 20: 0.8}) if r.budget == 20]
    assert curves_picture(rows) is None
    assert success_picture(rows).startswith(b"\x89PNG")


def test_arms_are_shown_side_by_side_at_the_budget_that_most_sites_have_run() -> None:
    rows = a_study({5: 0.8, 50: 0.9}, {5: 0.2, 50: 0.8})
    assert most_run(rows) == 50  # of two that as many have run, the larger
    assert most_run([*rows, *(replace(r, task="stack_cube") for r in rows if r.budget == 5)]) == 5
    assert most_run([]) == 0


def test_the_planner_learns_once_from_takes_that_two_arms_shared_and_not_from_uniform_ones() -> (
    None
):
    rows = [
        row("targeted", 20, 0.8, data="a"),
        row("oracle", 20, 0.8, data="a"),
        row("uniform", 20, 0.3, data="b", planned={"spatial_geometry": 3, "sensor_noise": 17}),
        row("targeted", 20, 0.1, 1, planned={}, takes=0, data=""),
        row("oracle", 20, 1.0, 2, before="1" * 91 + "0" * 9, data="c"),
    ]
    (one,) = trials(rows)
    assert one["dimension"] == "spatial_geometry"
    assert (one["takes"], one["before"], one["after"]) == (20, [10, 100], [80, 100])


def test_the_planners_prior_holds_what_the_published_rows_taught() -> None:
    """`docs/figures` is what anybody can read; the planner must not know of other trials."""
    rows = load_rows(Path(__file__).parents[3] / "docs" / "figures" / "closed_loop.parquet")
    known = [entry for entry in prior_entries() if entry["id"].startswith(STUDY)]
    assert known == trials(rows)


def test_takes_that_closed_the_gap_were_not_idle_because_uniform_ones_were() -> None:
    found = figures.plans([row("targeted", 50, 0.9), row("uniform", 50, 0.1)])
    assert (found.said, found.missed, found.sites) == (0, 0, 1)


def test_a_task_with_one_budget_is_compared_at_that() -> None:
    """Its curve is a line from one take that does nothing: steeper ones save more than it says."""
    found = summary([r for r in a_study({20: 0.9}, {20: 0.1}) if r.budget == 20])
    assert {group["compared"] for group in found.values()} == {20}
    assert all(group["takes_saved"]["value"] > 10 for group in found.values())
    assert all(group["targeted_tenth_minus_uniform"] is None for group in found.values())


def test_sites_with_nothing_to_fix_are_told_apart() -> None:
    """At them no plan can gain anything, and uniform collection can do harm."""
    whole = [
        replace(r, seed=r.seed + 10, before="1" * 95 + "0" * 5)
        for r in a_study({20: 0.9}, {20: 0.7})
    ]
    found = summary([*a_study({20: 0.9}, {20: 0.2}), *whole])
    fails, hardly = found["pick_place, the base fails"], found["pick_place, it hardly fails"]
    assert fails["sites"] + hardly["sites"] == found["pick_place all"]["sites"]
    assert hardly["success"]["before"]["value"] == pytest.approx(0.95)
    assert not any(", " in name for name in summary(whole))


def test_a_figure_over_fewer_sites_says_so() -> None:
    rows = [*a_study({20: 0.9}, {20: 0.2}), row("targeted", 5, 0.7, 0)]
    line = table(summary(rows)).splitlines()[4]
    assert "70% [61%, 79%] (1)" in line
    assert line.count("(") == 1


def of(dimension: str, arm: str, after: float, seed: int, **given: object) -> StudyRow:
    planned = given.pop("planned", {dimension: 20})
    return row(
        arm, 20, after, seed, gap=dimension, gaps={f"{dimension}.some": 0.9}, found=dimension,
        planned=planned, data=f"{arm}{seed}", **given,
    )  # fmt: skip


def test_a_prior_taught_by_other_seeds_records_what_the_first_one_wrongly_left() -> None:
    """The prior's trials said that takes don't fix contact; the study's oracle says otherwise."""
    rows = [
        made
        for seed in range(4)
        for made in (
            of("contact_dynamics", "targeted", 0.1, seed, planned={}, takes=0),
            of("contact_dynamics", "oracle", 0.8, seed),
            of("contact_dynamics", "uniform", 0.4, seed, planned={"sensor_noise": 20}),
        )
    ]
    found = taught(rows)
    assert [r.arm for r in found] == [TAUGHT] * 4
    assert all(r.after == rows[1].after for r in found)
    assert taught(rows[:3])[0].after == rows[0].before, "its own seed must not teach it"
    later = [replace(r, task="stack_cube") for r in rows]
    assert taught(later) == [], "their prior knew"
    assert taught([*rows[:3], *later])[0].after == rows[0].before


def test_a_prior_taught_that_takes_are_idle_leaves_them_and_a_wrong_name_stays_wrong() -> None:
    idle = [
        made
        for seed in range(8)
        for made in (
            of("human_behavior", "targeted", 0.1, seed),
            of("human_behavior", "oracle", 0.1, seed),
        )
    ]
    assert all(r.takes == 0 and r.after == r.before for r in taught(idle))
    misnamed = replace(idle[0], found="visual_domain", planned={"spatial_geometry": 20})
    (kept, *_) = taught([misnamed, *idle[1:]])
    assert kept.planned == misnamed.planned
