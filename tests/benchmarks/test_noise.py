"""On made logs whose noise grows with speed, learned noise is nearer than white noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas

from benchmarks.bench import BenchConfig
from benchmarks.noise import measure, table
from gaploop.sim.identification.noise import replay


def test_learned_noise_is_nearer_to_held_out_logs_than_white(tmp_path: Path) -> None:
    t_s = np.arange(500) * 0.01
    paths = [np.sin(0.4 * k + 2 * t_s) * (t_s < 3.5) for k in range(12)]
    planted = {"noise_rad": 1e-4, "per_speed_s": 0.004, "dead_rad": 0.0015, "step_rad": 0.0015}
    logs = replay(planted, paths, 0.01, seed=3)
    (tmp_path / "bench").mkdir()
    rows = [
        pandas.DataFrame({"log": k, "t": t_s, "position_rad": log}) for k, log in enumerate(logs)
    ]
    pandas.concat(rows).to_parquet(tmp_path / "bench" / "logs.parquet")
    result = measure(BenchConfig("noise", data=tmp_path), tmp_path)
    (row,) = result["sets"]
    assert row["learned"]["increments_ks"] < 0.5 * row["white"]["increments_ks"]
    assert row["learned"]["repeats_off"] < row["white"]["repeats_off"]
    assert row["learned"]["auroc"][0] < row["white"]["auroc"][0]
    assert table(result).count("\n") == 3
