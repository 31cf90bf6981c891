"""The transfer study's figures come from its rows alone, and pair where both arms have run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.bench import BenchConfig
from benchmarks.transfer import ARMS, EXERCISED, EXERCISES, MAIN, PAIR, measure, table
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import GapDimension


def row(kind: str, arm: str, after: str, hours: float = 0.0) -> dict[str, object]:
    return {
        "site": f"pick_place-{kind}-0", "kind": kind, "seed": 0, "gaps": '{"x.y": 0.8}',
        "arm": arm, "done": "what was done", "hours": hours, "before": "0000", "after": after,
        "nominal_before": "11", "nominal_after": "10" if arm == "collect" else "11",
    }  # fmt: skip


def test_arms_are_compared_where_both_have_run_and_the_pair_is_kept_apart(tmp_path: Path) -> None:
    rows = [
        row("spatial_geometry", "nothing", "0001"), row("spatial_geometry", "plan", "1111", 0.2),
        row("spatial_geometry", "collect", "1101", 0.4), row("human_behavior", "plan", "0000", 0.1),
        row("pair", "plan", "0011", 0.2),
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = measure(BenchConfig("transfer", data=tmp_path / "rows.parquet"), tmp_path)
    plan = found["figures"]["plan"]
    assert (plan["stations"], plan["all"]["stations"], plan["fixable"]["stations"]) == (3, 2, 1)
    assert plan["all"]["success"].value == pytest.approx(0.5)
    assert plan["fixable"]["over_nothing"].value == pytest.approx(0.75)
    assert plan["fixable"]["over_collect"].value == pytest.approx(0.25)
    assert found["figures"]["collect"]["kept"].value == pytest.approx(-0.5)
    text = table(found)
    assert "| pair 0 |" in text
    assert "human_behavior 0: what was done" in text
    assert (tmp_path / "transfer.png").stat().st_size > 5000


def test_without_rows_it_says_what_to_give(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([]), tmp_path / "rows.parquet")
    with pytest.raises(UnusableInputError, match="budget_s"):
        measure(BenchConfig("transfer", data=tmp_path / "rows.parquet"), tmp_path)


def test_every_arm_of_the_protocol_is_an_arm() -> None:
    protocol = (Path(__file__).parents[2] / "docs/figures/transfer_protocol.md").read_text()
    assert all(f"`{arm}`" in protocol for arm in ARMS)
    assert set(MAIN).isdisjoint(EXERCISES)
    assert set(EXERCISED) <= {*GapDimension, PAIR}
