"""What the study's figures promise, on rows whose truth is known."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_rows import row

from gaploop.core.errors import UnusableInputError
from gaploop.finetune.proof import figures
from gaploop.finetune.proof.figures import reached
from gaploop.finetune.proof.lessons import trials
from gaploop.finetune.proof.report import picture, summary, table
from gaploop.finetune.proof.rows import Row, load_rows, save_rows


def a_study(targeted: dict[int, float], uniform: dict[int, float], sites: int = 3) -> list[Row]:
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


def test_the_table_and_the_picture_hold_every_gap() -> None:
    rows = a_study({5: 0.8, 50: 0.9}, {5: 0.2, 50: 0.8})
    rows += [replace(r, gap="object_property") for r in rows]
    said = table(summary(rows))
    assert "| pick_place object_property | 3 |" in said
    assert "| pick_place all | 6 |" in said
    assert "10.0x" in said
    assert picture(rows).startswith(b"\x89PNG")


def test_the_planner_learns_once_from_takes_that_two_arms_shared_and_not_from_uniform_ones() -> (
    None
):
    rows = [
        row("targeted", 20, 0.8, data="a"),
        row("oracle", 20, 0.8, data="a"),
        row("uniform", 20, 0.3, data="b", planned={"spatial_geometry": 3, "sensor_noise": 17}),
        row("targeted", 20, 0.1, 1, planned={}, takes=0, data=""),
    ]
    (one,) = trials(rows)
    assert one["dimension"] == "spatial_geometry"
    assert (one["takes"], one["before"], one["after"]) == (20, [10, 100], [80, 100])
