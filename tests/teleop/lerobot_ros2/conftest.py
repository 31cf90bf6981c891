"""A small policy that looks at the example's camera."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def picture_policy(tmp_path: Path) -> Path:
    """An untrained ACT of LeRobot's for six joints and the camera `front`."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 48, 64)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        pretrained_backbone_weights=None, dim_model=32, n_heads=2, dim_feedforward=32,
        n_encoder_layers=1, use_vae=False, chunk_size=10, n_action_steps=10, device="cpu",
    )  # fmt: skip
    one = {"mean": torch.zeros(6), "std": torch.full((6,), 10.0)}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.3)}
    stats = {"observation.state": one, "action": one, "observation.images.front": picture}
    folder = tmp_path / "policy"
    ACTPolicy(config).save_pretrained(folder)
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(folder)
    return folder
