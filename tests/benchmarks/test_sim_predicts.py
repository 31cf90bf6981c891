"""`benchmarks sim_predicts` on made-up counts whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import sim_predicts
from benchmarks.bench import BenchConfig
from gaploop.core.errors import UnusableInputError
from gaploop.finetune.evaluation import Rollout, summarise

CONDITIONS = [f"policy {n}" for n in range(12)]
SETTINGS = ("base", "lighting", "object")


def counts(path: Path, base_says: bool, leave_out: str = "") -> Path:
    """Write trials of policies that succeed more and more often, in `base` only if it says so."""
    lines = ["study,task,training_condition,evaluation_setting,successes,trials"]
    rng = np.random.default_rng(0)
    for n, name in enumerate(CONDITIONS):
        for setting in SETTINGS:
            rate = 0.1 + 0.07 * n if setting != "base" or base_says else 0.5
            won = rng.binomial(400, rate)
            if f"{name}/{setting}" != leave_out:
                lines.append(f"s,push,{name},{setting},{won},400")
                lines.append(f"s,pull,{name},{setting},{won},400")
    path.write_text("\n".join([*lines, ""]))
    return path


def evaluations(folder: Path, names: list[str]) -> Path:
    for n, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        rollouts = [
            Rollout(seed, condition, seed < limit)
            for condition, limit in (("nominal", 19), ("dim", n), ("far", n + 1))
            for seed in range(20)
        ]
        written = json.dumps(summarise(rollouts).to_json())
        (folder / name / "evaluation.json").write_text(written)
    return folder


def spearman(result: dict[str, object]) -> dict[str, float]:
    rows = result["predictors"]
    assert isinstance(rows, list)
    return {row["predictor"]: row["spearman"] for row in rows}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_predicts, "RESAMPLES", 200)


@pytest.mark.parametrize("base_says", [True, False])
def test_a_predictor_is_found_to_rank_or_not(tmp_path: Path, base_says: bool) -> None:
    path = counts(tmp_path / "trials.csv", base_says)
    data = evaluations(tmp_path / "sim", CONDITIONS[::-1][:8])
    result = sim_predicts.measure(BenchConfig(trials=path, data=data), tmp_path)
    found = spearman(result)
    assert (found["the robot in its base setting"] > 0.9) == base_says
    assert found["the robot with another lighting; the rest"] > 0.95
    assert found["simulation, out of distribution"] < -0.95  # the folders are named the other way
    assert result["again"] > 0.98
    assert "simulation, out of distribution | 8 |" in sim_predicts.table(result)


def test_stations_that_agree_rank_each_others_remedies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "station": f"s{station}",
            "arm": f"a{arm}",
            "after": "".join(rng.choice(["0", "1"], 40, p=[0.9 - 0.15 * arm, 0.1 + 0.15 * arm])),
            "nominal_after": "1" * (10 - arm) + "0" * arm,
            "own_after": "1" * 9 + ("0" if arm < 5 else "00"),
        }
        for station in range(6)
        for arm in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    result = sim_predicts.measure(BenchConfig(data=tmp_path / "rows.parquet"), tmp_path)
    found = spearman(result)
    assert found["other stations"] > 0.9
    assert found["the nominal cell"] < -0.9
    assert found["the nominal cell; the stations' mean"] == pytest.approx(-1.0)
    assert result["left_out"] == ["a5"]  # nine of eleven in its own cell: it isn't trained yet
    assert result["again"] > 0.9
    assert result["evidence"] == "sim-to-sim"
    assert "the station once more" in sim_predicts.table(result)
    pq.write_table(pa.Table.from_pylist(rows[1:]), tmp_path / "hole.parquet")
    with pytest.raises(UnusableInputError, match="every arm at every station"):
        sim_predicts.measure(BenchConfig(data=tmp_path / "hole.parquet"), tmp_path)


def test_what_chance_ranks_is_not_ranked_so_again() -> None:
    rng = np.random.default_rng(1)
    tried = np.full((40, 2, 2), 100.0)
    won = rng.binomial(100, 0.5, tried.shape).astype(np.float64)
    assert abs(sim_predicts.again(won, tried, rng)) < 0.4


def test_a_table_with_a_hole_is_refused(tmp_path: Path) -> None:
    path = counts(tmp_path / "trials.csv", True, "policy 3/lighting")
    with pytest.raises(UnusableInputError, match="No trials of policy 3 / push / lighting"):
        sim_predicts.measure(BenchConfig(trials=path), tmp_path)
    with pytest.raises(UnusableInputError, match="--trials=FILE"):
        sim_predicts.measure(BenchConfig(), tmp_path)


def test_simulation_of_other_policies_is_refused(tmp_path: Path) -> None:
    data = evaluations(tmp_path / "sim", ["policy 1", "mine", "yours"])
    with pytest.raises(UnusableInputError, match="of 1 training conditions"):
        sim_predicts.simulated_rates(data, CONDITIONS)
