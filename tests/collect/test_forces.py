"""Forces that policies see: the same numbers recorded, edited in afterwards, learned and driven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.core.telemetry import Telemetry
from gaploop.datasets import layout
from gaploop.datasets.columns import force_columns
from gaploop.finetune.lerobot_formats import possible_views
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.scripts.cli import main

WRIST, TIPS = "observation.force.wrist", "observation.force.fingertips"
SMALL = {
    "type": "act", "push_to_hub": "false", "device": "cpu", "pretrained_backbone_weights": "null",
    "dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "n_encoder_layers": 1, "chunk_size": 4,
    "n_action_steps": 4, "use_vae": "false",
}  # fmt: skip
TRAIN = [f"--policy.{name}={value}" for name, value in SMALL.items()]
TRAIN += ["--steps=1", "--batch_size=2", "--num_workers=0", "--wandb.enable=false"]
TRAIN += ["--dataset.repo_id=x/y"]


def record(root: Path, sensors: str) -> Path:
    command = [
        "record",
        "--robot.type=so101_sim",
        "--teleop.type=scripted",
        f"--dataset.root={root}",
    ]
    command += ["--dataset.num_episodes=1", "--dataset.episode_time_s=3", f"--sensors={sensors}"]
    assert main(command) == 0
    return root


def rows(root: Path, feature: str) -> np.ndarray:
    (file,) = layout.data_files(root)
    return np.array(pq.read_table(file, columns=[feature])[feature].to_pylist())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seen")
    return record(folder / "seen", "{wrist: {observe: true}, fingertips: {observe: true}}")


def test_an_edit_adds_what_would_have_been_recorded(
    seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = record(tmp_path / "plain", "{wrist: {}, fingertips: {}}")
    assert not any("force" in name for name in layout.read_info(plain).features)
    bare = Path(shutil.copytree(plain, tmp_path / "bare"))
    shutil.rmtree(bare / "telemetry")
    assert main(["edit", "force", str(bare), "--yes"]) == 2
    assert "of no sensor" in capsys.readouterr().err
    assert main(["edit", "force", str(plain), "--yes"]) == 0
    for feature in (WRIST, TIPS):
        assert np.array_equal(rows(plain, feature), rows(seen, feature))
        mine, theirs = (layout.read_info(r).features[feature] for r in (plain, seen))
        assert mine == theirs
        stats = [json.loads((r / layout.STATS).read_text())[feature] for r in (plain, seen)]
        assert stats[0] == stats[1]
    assert main(["check", str(plain)]) == 0
    assert main(["edit", "force", str(plain), "--yes"]) == 2  # it is there already


def test_a_policy_learns_forces_and_is_given_them_as_it_drives(seen: Path, tmp_path: Path) -> None:
    """LeRobot's policies read observation.state alone: forces in a dataset taught them nothing."""
    run, options = tmp_path / "run", [f"--dataset.root={seen}", f"--output_dir={tmp_path / 'run'}"]
    assert main(["finetune", "--method=lerobot", "--", *TRAIN, *options]) == 0
    saved = json.loads((run / "checkpoints/last/pretrained_model/config.json").read_text())
    assert saved["input_features"]["observation.state"]["shape"] == [6 + 6 + 2]
    drive = ["rollout", f"--policy.path={run}", "--robot.type=so101_sim", "--take_over=never"]
    drive += ["--dataset.num_episodes=1", "--dataset.episode_time_s=0.5"]
    sees = "--sensors={wrist: {observe: true}, fingertips: {observe: true}}"
    assert main([*drive, sees, f"--dataset.root={tmp_path / 'rolled'}"]) == 0
    assert rows(tmp_path / "rolled", WRIST).shape[1] == 6
    policy = load_policy(run)
    assert policy.forces == ("wrist", "fingertips")
    (view,) = possible_views(run / "checkpoints/last/pretrained_model", 1)
    harder = {name: values + 5.0 for name, values in view.forces.items()}
    felt = Observation(view.state, view.environment_state, view.images, harder)
    plans = []
    for observation in (view, felt):
        policy.reset()
        plans.append(policy.plan(observation))
    assert not np.allclose(*plans)
    policy.reset()
    with pytest.raises(UnusableInputError, match=f"needs {WRIST}"):
        policy.plan(Observation(view.state, view.environment_state, view.images))


def test_a_reading_stands_for_half_a_second_and_no_longer() -> None:
    t_s = np.arange(0.0, 2.0, 0.1)
    read = np.where((t_s > 0.45) & (t_s < 1.45), np.nan, t_s)
    telemetry = Telemetry(
        t_s, {"follower.a.position_rad": t_s, "pad.p": read, "loop.period_s": t_s}
    )
    assert telemetry.sensors() == {"pad": ("pad.p",)}
    asked_s = np.array([-0.003, 0.35, 0.5, 0.8, 1.2, 1.55])  # an arm's first frame is before 0
    at = telemetry.readings_at(["pad.p"], asked_s)[:, 0]
    assert at == pytest.approx([0.0, 0.3, 0.4, 0.4, np.nan, 1.5], nan_ok=True)
    with pytest.raises(UnusableInputError, match="sensor 'pad' has no reading"):
        force_columns(telemetry, np.array([0.2, 1.2]), ["pad"])
