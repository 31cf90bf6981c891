"""`benchmarks randomisation` and `ladder`: figures of stored rows; what conditions are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import ladder, randomisation
from benchmarks.bench import BenchConfig
from gaploop.core.errors import UnusableInputError


def stored(path: Path, success: dict[str, int]) -> Path:
    """Write rows of two stations, at the second of which only the first arm was tried."""
    first = next(iter(success))
    rows: list[dict[str, Any]] = [
        {
            "station": f"station_{seed}", "arm": arm, "gaps": "{}", "gap_seed": "1",
            "after": "1" * ones + "0" * (10 - ones), "own_after": "1" * 10,
            "nominal_after": "1" * 10, "mild_after": "", "sim_after": "1" * 5 + "0" * 5,
            "attempted": 300, "episodes": 290, "processor_s": 600.0,
        }
        for arm, ones in success.items()
        for seed in ((1, 2) if arm == first else (1,))
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_condition_is_told_by_what_was_tried_of_it(tmp_path: Path) -> None:
    rows = stored(tmp_path / "rows.parquet", {"none": 2, "both_mild": 6})
    result = randomisation.measure(BenchConfig(data=rows), tmp_path)
    assert list(result["figures"]) == ["none", "both_mild"]
    assert result["figures"]["both_mild"]["stations"].value == pytest.approx(0.6)
    told = randomisation.table(result)
    assert "| both_mild | 290 (300) | 100% [72%, 100%] | 100% [72%, 100%] |  | 50%" in told
    assert "| station_2 | {} | 20% |  |" in told
    assert (tmp_path / "randomisation.png").stat().st_size > 1000


def test_a_rung_is_set_against_the_base_where_both_were_tried(tmp_path: Path) -> None:
    rows = stored(tmp_path / "rows.parquet", {"none": 2, "both_mild": 6, "plus_100": 10})
    result = ladder.measure(BenchConfig(data=rows), tmp_path)
    assert result["figures"]["plus_100"]["over_none"].value == pytest.approx(0.8)
    assert "| both_mild | 1 | 60% " in ladder.table(result)
    assert "| 63 % |" in ladder.table(result)
    assert (tmp_path / "ladder.png").stat().st_size > 1000


def test_nothing_run_and_nothing_stored_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="No rows in"):
        randomisation.measure(BenchConfig(data=tmp_path / "none.parquet"), tmp_path)


def test_conditions_are_told_apart_by_what_is_drawn_and_how_strongly() -> None:
    assert randomisation.drawn("none").randomise is None
    drawn = [randomisation.drawn(arm).randomise for arm in list(randomisation.CONDITIONS)[1:]]
    assert len({(len(d.ranges), d.strength) for d in drawn if d}) == 7
    assert randomisation.randomise("both_mild") == "dynamics+visual:0.25"
