"""LeRobot's training on cached pictures learns what it learns without, and saves how to scale."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gaploop.datasets.cache.folder import PACK, CacheOptions
from gaploop.scripts.cli import main

CAMERA = "observation.images.front"
SMALL = [
    "--policy.type=act",
    "--policy.push_to_hub=false",
    "--policy.device=cpu",
    "--policy.pretrained_backbone_weights=null",
    "--policy.dim_model=16",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=16",
    "--policy.chunk_size=3",
    "--policy.n_action_steps=3",
    "--policy.n_encoder_layers=1",
    "--policy.latent_dim=4",
    "--steps=2",
    "--batch_size=2",
    "--log_freq=1",
    "--num_workers=0",
    "--seed=1",
    "--wandb.enable=false",
    "--dataset.repo_id=x/y",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = tmp_path_factory.mktemp("cached_train") / "set"
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        CAMERA: {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
    }
    dataset = LeRobotDataset.create("x/y", 10, features, root=folder, robot_type="arm")
    draw = np.random.default_rng(0)
    for _ in range(2):
        for _ in range(4):
            numbers = draw.normal(size=(2, 2)).astype(np.float32)
            picture = draw.integers(0, 255, (64, 96, 3), dtype=np.uint8)
            frame = {"action": numbers[0], "observation.state": numbers[1], CAMERA: picture}
            dataset.add_frame({**frame, "task": "wave"})
        dataset.save_episode()
    dataset.finalize()
    return folder


@pytest.fixture
def train(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(name: str, *options: str) -> Path:
        out = tmp_path / name
        own = [f"--output_dir={out}", *options]
        assert (
            main(["finetune", "--method=lerobot", *own, "--", *SMALL, f"--dataset.root={root}"])
            == 0
        )
        return out / "checkpoints" / "last" / "pretrained_model"

    return run


def test_training_is_the_same_with_and_without_the_cache(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    policies = [train(size, f"--cache.size={size}") for size in ("native", "off")]
    weights = [(p / "model.safetensors").read_bytes() for p in policies]
    assert weights[0] == weights[1]
    assert list((tmp_path / "cache").rglob(f"*raw-native*/*{PACK}"))


def test_a_policy_trained_on_scaled_pictures_scales_camera_pictures(
    train: Callable[..., Path], root: Path
) -> None:
    """Without that it would drive on pictures of another size than it has learned from."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.factory import make_pre_post_processors

    from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset

    policy = train("scaled", "--cache.size=48x32")
    config = json.loads((policy / "config.json").read_text())
    assert config["input_features"][CAMERA]["shape"] == [3, 32, 48]
    saved = (policy / "policy_preprocessor.json").read_text()
    assert re.search(r"gaploop\.datasets\.cache\.lerobot_scale_step\.ScaleStep", saved)
    before, _ = make_pre_post_processors(ACTConfig(), pretrained_path=str(policy))
    as_recorded, as_trained = (
        CachedLeRobotDataset("x/y", root=root, cache=CacheOptions(size, keep=False))[3]
        for size in ("native", "48x32")
    )
    state = as_recorded["observation.state"]
    seen = [
        before({CAMERA: i[CAMERA], "observation.state": state}) for i in (as_recorded, as_trained)
    ]
    assert seen[0][CAMERA].shape[-3:] == (3, 32, 48)
    assert torch.equal(seen[0][CAMERA], seen[1][CAMERA])
