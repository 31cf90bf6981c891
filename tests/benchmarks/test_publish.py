"""The publishing benchmark counts wrong pictures, and would see one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import publish as bench
from benchmarks.bench import BenchConfig


@pytest.mark.slow
def test_every_row_has_its_picture_and_a_shifted_one_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RATES_HZ": (30,), "TAKE_S": 0.7, "REPEATS": 1, "PEER_TAKES": 1}.items():
        monkeypatch.setattr(bench, name, value)
    result = bench.measure(BenchConfig("publish", n=2), tmp_path)
    found = result["rates"]["30_hz"]
    assert found["rows"] == found["rows_expected"] == 42
    assert (found["pictures_checked"], found["pictures_wrong"]) == (84, 0)
    assert "0 of 84 pictures wrong" in bench.table(result)
    monkeypatch.setattr("benchmarks.cameras.read_barcode", lambda _picture: 3)
    assert bench._check(tmp_path / "30" / "set_0", 0, 42)["pictures_wrong"] == 83
