"""`benchmarks reinforcement`: figures of stored rows, and the twin that it learns in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import reinforcement
from benchmarks.bench import BenchConfig
from benchmarks.starts import LoopStart
from gaploop.sim.cell import SimCell

SIZE = "object_property.size"


def row(seed: int, arm: str, after: str) -> dict[str, Any]:
    return {
        "station": f"{SIZE}-{seed}", "seed": seed, "gap": SIZE, "severity": 0.8,
        "gap_seed": 7000 + seed, "arm": arm, "episodes": 20, "before": "0001", "after": after,
        "nominal_before": "1111", "nominal_after": "1110",
    }  # fmt: skip


def test_an_arm_is_set_beside_twenty_takes_of_the_same_station(tmp_path: Path) -> None:
    rows = [row(0, "takes", "0011"), row(0, "reinforce", "0111"), row(1, "reinforce", "1111")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    config = BenchConfig("reinforcement", data=tmp_path / "rows.parquet")
    result = reinforcement.measure(config, tmp_path)
    found = result["figures"][f"{SIZE}.reinforce"]
    assert (found["stations"], found["after"].value) == (2, 0.875)
    assert found["over_takes"].value == 0.25  # of the one station that has both
    assert found["nominal"].value == -0.25
    assert f"| {SIZE}-1 |  |  |  |  | 100% " in reinforcement.table(result)


@pytest.mark.parametrize("gap", reinforcement.GAPS)
def test_the_twin_is_the_station(gap: str, tmp_path: Path) -> None:
    station = reinforcement._Station(LoopStart("base", tmp_path), gap, 3, 1, tmp_path)
    there = SimCell(
        "pick_place", gaps={gap: reinforcement.GAPS[gap]}, gap_seed=station.cell.gap_seed
    )
    twin = SimCell("pick_place", parameters=station._twin().values())
    for cell in (there, twin):
        cell.reset(5)
        cell.command(cell.joint_limits_rad.mean(1))
        cell.advance(0.5)
    assert there.read().position_rad.tolist() == twin.read().position_rad.tolist()
    names = ("geom_friction", "geom_size", "geom_solref", "dof_armature")
    for name in names:
        assert getattr(there.model, name).tolist() == getattr(twin.model, name).tolist()
