"""LoRA on ACT through LeRobot and PEFT: wrap, save with the base inside, load, merge.

LoRA is Hu et al. 2021 (arXiv:2106.09685). LeRobot's adapter folders store the base model's
path literally, so they load only where that path exists. Ours carry a copy of the base (at
most 2 MB) in `base/` and always load that one: from any working directory, and after a move.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peft import PeftModel

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.finetune import lerobot_act as act

TARGETS: Final = (
    "linear1",
    "linear2",
    "action_head",
    "encoder_robot_state_input_proj",
    "encoder_env_state_input_proj",
)
"""Linear layers that get an adapter. Attention's `in_proj` is a bare parameter, not a Linear,
which PEFT can't wrap; ACT has no default targets in LeRobot."""
CONFIG: Final = "adapter_config.json"
BASE: Final = "base"


@dataclass(frozen=True)
class LoraOptions:
    """Size of the adapter.

    Attributes:
        r: rank.
        alpha: scale; the update is multiplied by alpha / r. 0 means 2 r.
        dropout: dropout on the adapter's input.
    """

    r: int = 16
    alpha: int = 0
    dropout: float = 0.0


def wrap(bundle: act.ActBundle, base: Path, lora: LoraOptions) -> PeftModel:
    """Freeze the policy and put a trainable adapter on it."""
    if lora.r < 1:
        raise UnusableInputError(f"--lora.r={lora.r} must be at least 1; try 16.")
    bundle.policy.config.pretrained_path = base
    return bundle.policy.wrap_with_peft(
        peft_cli_overrides={
            "method_type": "lora",
            "target_modules": list(TARGETS),
            "r": lora.r,
            "lora_alpha": lora.alpha or 2 * lora.r,
            "lora_dropout": lora.dropout,
        }
    )


def save(model: PeftModel, bundle: act.ActBundle, base: Path, folder: Path) -> None:
    """Write an adapter folder that holds its base.

    Args:
        model: the wrapped policy.
        bundle: what was wrapped.
        base: the base policy's folder, copied in.
        folder: where to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(base, folder / BASE, dirs_exist_ok=True)
    model.save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    config["base_model_name_or_path"] = BASE
    write_atomically(folder / CONFIG, json.dumps(config, indent=1, sort_keys=True) + "\n")
    path, bundle.policy.config.pretrained_path = bundle.policy.config.pretrained_path, None
    bundle.policy.config.save_pretrained(folder)
    bundle.policy.config.pretrained_path = path
    act.save_processors(bundle, folder)


def is_adapter(folder: Path) -> bool:
    """Say whether `folder` is an adapter folder."""
    return (folder / CONFIG).exists()


def load(folder: Path, device: str = "cpu") -> act.ActBundle:
    """Load an adapter on the base inside its folder and merge the two.

    Raises:
        UnusableInputError: the base is missing or either part is damaged.
    """
    base = folder / BASE
    if not base.is_dir():
        raise UnusableInputError(
            f"Adapter {folder} has no base/ folder. Copy the base policy there, or use the merged "
            "folder of the same run."
        )
    bundle = act.load(base, device, processors=folder)
    try:
        model = PeftModel.from_pretrained(bundle.policy, str(folder))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableInputError(f"{folder} can't be loaded ({reason}). Train it again.") from None
    return merged(model, bundle)


def merged(model: Any, bundle: act.ActBundle) -> act.ActBundle:
    """Fold the adapter into the weights; the result is a plain policy without PEFT."""
    policy = model.merge_and_unload()
    policy.config.use_peft = False
    policy.config.pretrained_path = None
    for parameter in policy.parameters():
        parameter.requires_grad_(True)
    policy.eval()
    return act.ActBundle(policy, bundle.preprocessor, bundle.postprocessor, bundle.signature)
