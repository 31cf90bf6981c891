"""LeRobot policies with random weights, built from configs alone: tiny, or as large as they come.

What a policy would else download, tokenizers and configs, is made up here; that changes neither how
long a step takes nor how much memory it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

from benchmarks.checkpoint import BACKBONE, add_thin_backbone

CHUNK: Final = 4
WORDS: Final = (
    "<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "Move", "the",
    "left", "right",
)  # fmt: skip
TEXT: Final = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "act": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "dim_model": 16, "n_heads": 2,
        "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1, "latent_dim": 4,
        "pretrained_backbone_weights": None, "vision_backbone": BACKBONE,
    },
    "diffusion": {
        "horizon": 8, "n_action_steps": 4, "down_dims": (16, 32), "diffusion_step_embed_dim": 16,
        "spatial_softmax_num_keypoints": 4, "crop_shape": None, "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 10, "n_groups": 4, "resize_shape": None,
        "pretrained_backbone_weights": None, "vision_backbone": BACKBONE,
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
    "keypoint": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "resize_shape": (32, 32), "channels": 8,
        "keypoints": 4, "width": 16, "blocks": 1,
    },
}  # fmt: skip
"""Options that make a policy tiny."""
FULL_SIZE: Final = {"act": {"pretrained_backbone_weights": None}}
TINY_VISION: Final = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
SMOLVLM2_500M: Final[dict[str, Any]] = {
    "vision_config": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
    },
    "text_config": {
        "model_type": "llama", "vocab_size": 49280, "hidden_size": 960, "intermediate_size": 2560,
        "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5,
        "head_dim": 64, "attention_bias": False,
    },
    "scale_factor": 4,
}  # fmt: skip
"""Sizes of SmolVLA's language model."""

type Put = Callable[[Any, str, Any], None]
"""Puts a value in the place of a module's own, as `setattr` does."""


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


def without_downloads(put: Put, folder: Path, is_tiny: bool) -> None:
    """Put made-up parts where the policies would fetch theirs."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05
    from lerobot.policies.smolvla import smolvlm_with_expert
    from lerobot.processor import tokenizer_processor
    from transformers import SmolVLMConfig

    if is_tiny:
        add_thin_backbone()
    words = tokenizer()
    text = {**TEXT, "model_type": "llama", "attention_bias": False}
    tiny = {"vision_config": TINY_VISION, "text_config": text, "scale_factor": 2}
    size: Mapping[str, Any] = tiny if is_tiny else SMOLVLM2_500M
    SmolVLMConfig(**size, image_token_id=2, pad_token_id=0).save_pretrained(folder)
    # The processor needs num2words to be built; of it only two numbers are read.
    ids = SimpleNamespace(fake_image_token_id=3, global_image_token_id=4)
    processor = SimpleNamespace(from_pretrained=lambda _name: SimpleNamespace(tokenizer=ids))
    put(smolvlm_with_expert, "AutoProcessor", processor)
    loader = SimpleNamespace(from_pretrained=lambda _name: words)
    put(tokenizer_processor, "AutoTokenizer", loader)
    for module in (modeling_pi0, modeling_pi05) if is_tiny else ():
        gemma = module.GemmaConfig(32, 2, 32, 8, 1, 16)  # their forward wants 8 heads
        put(module, "get_gemma_config", lambda _variant, gemma=gemma: gemma)
        name = "PaliGemmaForConditionalGenerationWithPiGemma"
        put(module, name, _small_paligemma(getattr(module, name)))


def _small_paligemma(real: Any) -> Callable[..., Any]:
    def build(config: Any) -> Any:
        for key, value in {**TINY_VISION, "projection_dim": TEXT["hidden_size"]}.items():
            setattr(config.vision_config, key, value)
        config.text_config.vocab_size = TEXT["vocab_size"]
        return real(config=config)

    return build


def make(
    kind: str,
    folder: Path,
    vlm: Path,
    *,
    camera: str,
    pixels: int,
    joints: int,
    options: Mapping[str, Any],
    has_stats: bool = True,
) -> Path:
    """Write an untrained policy as a base folder, after `without_downloads`.

    Args:
        kind: LeRobot's name of the policy.
        folder: written.
        vlm: where `without_downloads` put a language model's config.
        camera: feature that it sees.
        pixels: height and width of the pictures.
        joints: entries of state and action.
        options: of the policy's config.
        has_stats: it normalises.
    """
    named = {"vlm_model_name": str(vlm)} if kind == "smolvla" else {}
    config = make_policy_config(
        kind,
        device="cpu",
        push_to_hub=False,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (joints,)),
            camera: PolicyFeature(FeatureType.VISUAL, (3, pixels, pixels)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (joints,))},
        **options,
        **named,
    )
    torch.manual_seed(0)
    policy = get_policy_class(kind)(config)
    known = {k: _statistics(joints) for k in ("observation.state", "action")}
    known[camera] = {k: v.reshape(3, 1, 1) for k, v in _statistics(3).items()}
    before, after = make_pre_post_processors(config, dataset_stats=known if has_stats else None)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    return folder


def _statistics(n: int) -> dict[str, Any]:
    ones = np.ones(n, dtype=np.float32)
    spread = {"q01": -2 * ones, "q99": 2 * ones, "q10": -ones, "q90": ones}
    return {"mean": 0 * ones, "std": 3 * ones, "min": -9 * ones, "max": 9 * ones, **spread}
