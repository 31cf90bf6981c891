"""What `benchmarks gate` computes by itself: Barnard's test, the spread of retrains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import barnard_exact

from benchmarks.gate import retrain_spread
from benchmarks.gate_phases import measure_phases
from benchmarks.gate_retrains import make_retrains, stored_outcomes
from benchmarks.gate_tests import barnard_rejects
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.finetune.evaluation import Rollout, summarise


@pytest.mark.parametrize("table", [(2, 8), (3, 8), (5, 9), (4, 4), (9, 2)])
def test_barnard_is_scipys(table: tuple[int, int]) -> None:
    first, second = table
    p = barnard_exact([[second, first], [12 - second, 12 - first]], alternative="greater").pvalue
    assert bool(barnard_rejects(12, 0.05)[first, second]) == (p <= 0.05)


def test_the_spread_of_retrains_is_told_from_that_of_scenes() -> None:
    """On the same scenes two equal policies agree where a scene is hard; that is no spread."""
    rng = np.random.default_rng(0)
    hard = rng.random(4000)
    for spread in (0.0, 0.05):
        rates = np.clip(rng.normal(0.7, spread, (40, 1)), 0, 1)
        stored = 0.7 * rng.random((40, 4000)) + 0.3 * hard < rates
        many = 0.7 * rng.random((40, 20_000)) + 0.3 * rng.random(20_000) < rates
        true = float(np.std(many.mean(1)))
        assert retrain_spread(stored) == pytest.approx(true, abs=0.008)


def test_outcomes_that_were_kept_pair_up_by_scene(tmp_path: Path) -> None:
    """A run that was stopped has tried its retrains on different numbers of scenes."""
    assert stored_outcomes(tmp_path) is None
    for retrain, scenes in ((0, range(4)), (1, (2, 0, 1))):
        rows = [{"retrain": retrain, "scene": s, "success": s == retrain} for s in scenes]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"outcomes_{retrain}.parquet")
    stored = stored_outcomes(tmp_path)
    assert stored is not None
    assert stored.tolist() == [[True, False, False], [False, True, False]]


def test_outcomes_of_other_trainings_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    """Twice a recipe was changed between two runs in what could have been the same folder."""
    rows = [{"retrain": 0, "scene": 0, "success": True}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "outcomes_000_00000.parquet")
    with pytest.raises(UnusableInputError, match="other trainings"):
        make_retrains(tmp_path, 1, 1, 1)
    assert not (tmp_path / "takes").exists()


def test_a_declared_phase_is_tried_on_evaluations_of_the_same_scenes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that mends every grasp is promoted; a wrong declaration can only end it early."""
    monkeypatch.setattr("benchmarks.gate_phases.DRAWS", 40)
    with pytest.raises(UnusableInputError, match="no baseline"):
        measure_phases(tmp_path, 0)
    for name, failed in (("baseline", 6), ("candidate", 0)):
        rollouts = [Rollout(n, "nominal", n >= failed, phase="grasp") for n in range(10)]
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "evaluation.json", summarise(rollouts).to_json())
    found = measure_phases(tmp_path, 0)
    rows = {row.declared: row for row in found if row.candidate.startswith("candidate")}
    assert rows["grasp"].promoted == (1.0, 1.0)
    assert rows["grasp"].gave_up == 0.0
    early = rows["approach"]
    assert early.gave_up > 0
    assert early.promoted[1] <= early.promoted[0]
    assert early.attempts[1] < early.attempts[0]
