"""`benchmarks seeing_remedies`: figures of stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import seeing_remedies
from benchmarks.bench import BenchConfig
from gaploop.core.errors import UnusableInputError


def row(station: int, arm: str, after: str) -> dict[str, Any]:
    return {
        "station": f"visual_domain-{station}", "dimension": "visual_domain", "seed": station,
        "gap": "visual_domain.blur", "severity": 0.7, "gap_seed": 1, "arm": arm,
        "before": "0001", "after": after, "nominal_before": "1111", "nominal_after": "1110",
    }  # fmt: skip


def test_an_arm_is_set_beside_the_base_on_its_own_stations(tmp_path: Path) -> None:
    rows = [row(0, "takes", "1111"), row(1, "takes", "1110"), row(0, "pictures", "0000")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    config = BenchConfig("seeing_remedies", data=tmp_path / "rows.parquet")
    result = seeing_remedies.measure(config, tmp_path)
    takes, pictures = (result["figures"][f"visual_domain.{a}"] for a in ("takes", "pictures"))
    assert (takes["stations"], takes["after"].value, takes["change"].value) == (2, 0.875, 0.625)
    assert (pictures["change"].value, pictures["nominal"].value) == (-0.25, -0.25)
    assert "| visual_domain-1 | `visual_domain.blur` 0.7 | 25% " in seeing_remedies.table(result)


def test_nothing_to_show_says_what_to_give(tmp_path: Path) -> None:
    config = BenchConfig("seeing_remedies", data=tmp_path / "none.parquet")
    with pytest.raises(UnusableInputError, match=r"none.parquet: .* --data=FILE"):
        seeing_remedies.measure(config, tmp_path)
