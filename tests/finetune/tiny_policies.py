"""Tiny LeRobot policies built from configs alone, with what they would else download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

import gaploop.finetune.lerobot_keypoint  # noqa: F401  registers it

CAMERA = "observation.images.overhead"
SIZE = 64
JOINTS = 3
CHUNK = 4
WORDS = ("<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "Move", "the")
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "dim_model": 16, "n_heads": 2,
        "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1, "latent_dim": 4,
        "pretrained_backbone_weights": None,
    },
    "keypoint": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "resize_shape": (32, 32), "channels": 8,
        "keypoints": 4, "width": 16, "blocks": 1,
    },
    "diffusion": {
        "horizon": 8, "n_action_steps": 4, "down_dims": (16, 32), "diffusion_step_embed_dim": 16,
        "spatial_softmax_num_keypoints": 4, "crop_shape": None, "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 10, "n_groups": 4, "resize_shape": None,
        "pretrained_backbone_weights": None,
    },
    "smolvla": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "num_vlm_layers": 2,
        "self_attn_every_n_layers": 2, "resize_imgs_with_padding": (64, 64), "max_state_dim": 8,
        "max_action_dim": 8, "tokenizer_max_length": 8, "num_steps": 2,
    },
    "pi0": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "image_resolution": (64, 64),
        "max_state_dim": 8, "max_action_dim": 8, "num_inference_steps": 2,
    },
    "pi05": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "image_resolution": (64, 64),
        "max_state_dim": 8, "max_action_dim": 8, "num_inference_steps": 2,
    },
    "vqbet": {"crop_shape": None},
}  # fmt: skip


def tokenizer() -> Any:
    """Return a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>")
    inner = Tokenizer(words)
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>"
    )


def _without_downloads(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put tiny parts where the policies would fetch gigabytes."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05
    from lerobot.policies.smolvla import smolvlm_with_expert
    from lerobot.processor import tokenizer_processor
    from transformers import SmolVLMConfig

    words = tokenizer()
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": SIZE, "patch_size": 16,
    }  # fmt: skip
    SmolVLMConfig(
        vision_config=vision,
        text_config={**TEXT, "model_type": "llama", "attention_bias": False},
        scale_factor=2,
        image_token_id=2,
        pad_token_id=0,
    ).save_pretrained(folder)
    # The processor needs num2words to be built; of it only two numbers are read.
    ids = SimpleNamespace(fake_image_token_id=3, global_image_token_id=4)
    processor = SimpleNamespace(from_pretrained=lambda _name: SimpleNamespace(tokenizer=ids))
    monkeypatch.setattr(smolvlm_with_expert, "AutoProcessor", processor)
    loader = SimpleNamespace(from_pretrained=lambda _name: words)
    monkeypatch.setattr(tokenizer_processor, "AutoTokenizer", loader)
    for module in (modeling_pi0, modeling_pi05):
        gemma = module.GemmaConfig(32, 2, 32, 8, 1, 16)  # their forward wants 8 heads
        monkeypatch.setattr(module, "get_gemma_config", lambda _variant, gemma=gemma: gemma)
        name = "PaliGemmaForConditionalGenerationWithPiGemma"
        monkeypatch.setattr(module, name, _small_paligemma(getattr(module, name), vision))


def _small_paligemma(real: Any, vision: dict[str, int]) -> Callable[..., Any]:
    def build(config: Any) -> Any:
        for key, value in {**vision, "projection_dim": TEXT["hidden_size"]}.items():
            setattr(config.vision_config, key, value)
        config.text_config.vocab_size = TEXT["vocab_size"]
        return real(config=config)

    return build


@pytest.fixture
def tiny_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a tiny untrained policy of a type as a base folder."""

    def make(kind: str, camera: str = CAMERA, joints: int = JOINTS, stats: bool = True) -> Path:
        if kind == "diffusion":
            pytest.importorskip("diffusers", reason="LeRobot's diffusion policy needs it")
        _without_downloads(monkeypatch, tmp_path / "vlm")
        vlm = {"vlm_model_name": str(tmp_path / "vlm")} if kind == "smolvla" else {}
        config = make_policy_config(
            kind,
            device="cpu",
            push_to_hub=False,
            input_features={
                "observation.state": PolicyFeature(FeatureType.STATE, (joints,)),
                camera: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)),
            },
            output_features={"action": PolicyFeature(FeatureType.ACTION, (joints,))},
            **OPTIONS[kind],
            **vlm,
        )
        torch.manual_seed(0)
        policy = get_policy_class(kind)(config)
        known = {k: _statistics(joints) for k in ("observation.state", "action")}
        known[camera] = {k: v.reshape(3, 1, 1) for k, v in _statistics(3).items()}
        before, after = make_pre_post_processors(config, dataset_stats=known if stats else None)
        folder = tmp_path / f"base_{kind}"
        for part in (policy, before, after):
            part.save_pretrained(folder)
        return folder

    return make


def _statistics(n: int) -> dict[str, np.ndarray]:
    ones = np.ones(n, dtype=np.float32)
    spread = {"q01": -2 * ones, "q99": 2 * ones, "q10": -ones, "q90": ones}
    return {"mean": 0 * ones, "std": 3 * ones, "min": -9 * ones, "max": 9 * ones, **spread}
