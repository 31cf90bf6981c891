"""The study with another robot arm: the same design, told apart in names and figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))

from made_rows import row

from benchmarks.proof.design import draw_site
from benchmarks.proof.figures import by_gap
from benchmarks.proof.report import summary
from benchmarks.proof.rows import StudyRow, load_rows, save_rows, site_name
from gaploop.core.vocabulary import GapDimension
from gaploop.finetune.evaluate import CellSpec, _plain


def test_a_row_from_before_there_was_another_arm_is_the_so101s(tmp_path: Path) -> None:
    """Rows of the first study were kept without the column."""
    kept = row("uniform", 5, 0.5)
    value = kept.to_json()
    del value["robot"]
    assert StudyRow.from_json(value) == kept
    path = tmp_path / "rows.parquet"
    save_rows([kept], path)
    old = pq.read_table(path).drop_columns(["robot"])
    pq.write_table(old, path)
    assert load_rows(path) == [kept]
    assert (
        kept.site
        == site_name("so101", kept.task, kept.gap, kept.seed)
        == ("pick_place-spatial_geometry-0")
    )


def test_the_same_gaps_are_hidden_from_every_arm_in_cells_of_its_own() -> None:
    one, other = (draw_site("pick_place", "mixture_1", 4, r) for r in ("so101", "bi_so101"))
    assert (one.gaps, one.gap_seed) == (other.gaps, other.gap_seed)
    assert one.name != other.name
    dimension = GapDimension.SENSOR_NOISE
    for cell in (other.cell, other.set_up_for(dimension), other.with_varied(dimension)):
        assert cell.robot == "bi_so101"


def test_arms_are_not_averaged() -> None:
    rows = [row("uniform", 5, 0.2), row("uniform", 5, 0.8, robot="bi_so101")]
    assert len({r.key for r in rows}) == 2
    assert list(by_gap(rows)) == [
        "pick_place spatial_geometry", "bi_so101:pick_place spatial_geometry",
    ]  # fmt: skip
    found = summary(rows)
    assert found["pick_place all"]["success"]["uniform 5"]["value"] == 0.2
    assert found["bi_so101:pick_place all"]["success"]["uniform 5"]["value"] == 0.8


def test_folders_of_rollouts_from_before_there_was_another_arm_are_gone_on_with() -> None:
    assert "robot" not in _plain(CellSpec())
    assert _plain(CellSpec(robot="bi_so101"))["robot"] == "bi_so101"
