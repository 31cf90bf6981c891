"""The benchmark of absolute tests runs from bus to table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import absolute
from benchmarks.bench import BenchConfig


@pytest.mark.slow
def test_an_offset_is_put_in_named_and_counted(tmp_path: Path) -> None:
    config = BenchConfig("absolute", n=1, quick=True, tasks=["offset at rest", "reversed joint"])
    result = absolute.measure(config, tmp_path)
    assert [row["kind"] for row in result["rows"]] == config.tasks
    assert result["rows"][0]["so101"] == [1, 1]
    assert set(result["clean"]) == {"so101", "koch"}
    table = absolute.table(result)
    assert "| offset at rest | 3 ° | 1 of 1 |" in table
    assert table.count("\n") == 6
