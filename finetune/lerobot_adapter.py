"""LoRA on LeRobot policies through PEFT: wrap, save with the base inside, load, merge.

LoRA is Hu et al. 2021 (arXiv:2106.09685). LeRobot's adapter folders store the base model's
path literally, so they load only where that path exists. Ours carry a copy of the base in
`base/` and always load that one: from any working directory, and after a move. A base too
large to copy is named by its name on the Hub, where it has one.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from peft import PeftModel
from safetensors import SafetensorError

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.paths import refuse_links_out
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.tuning.presets import ACT_TARGETS, Targets

log = logging.getLogger(__name__)

CONFIG: Final = "adapter_config.json"
BASE: Final = "base"
COPIED_BYTES: Final = 300_000_000
"""A larger base isn't copied beside its adapter."""


@dataclass(frozen=True)
class LoraOptions:
    """Size of the adapter.

    Attributes:
        r: rank.
        alpha: scale; the update is multiplied by alpha / r. 0 means 2 r.
        dropout: dropout on the adapter's input.
        targets: modules that get an adapter; LeRobot's own for the policy if None.
    """

    r: int = 16
    alpha: int = 0
    dropout: float = 0.0
    targets: Targets = ACT_TARGETS


def wrap(policy: Any, base: Path, lora: LoraOptions) -> PeftModel:
    """Freeze a LeRobot policy and put a trainable adapter on it.

    Raises:
        UnusableInputError: sizes out of range, or nothing to put an adapter on.
    """
    if lora.r < 1:
        raise UnusableInputError(f"--lora.r={lora.r} must be at least 1; try 16.")
    if lora.alpha < 0 or not 0 <= lora.dropout < 1:
        raise UnusableInputError(
            f"--lora.alpha={lora.alpha} must not be below 0, and --lora.dropout={lora.dropout:g} "
            "must be from 0 to below 1."
        )
    policy.config.pretrained_path = base
    targets = lora.targets
    try:
        return policy.wrap_with_peft(
            peft_cli_overrides={
                "method_type": "lora",
                "target_modules": list(targets) if isinstance(targets, tuple) else targets,
                "r": lora.r,
                "lora_alpha": lora.alpha or 2 * lora.r,
                "lora_dropout": lora.dropout,
            }
        )
    except ValueError as error:
        linear = sorted({n.rpartition(".")[2] for n, m in policy.named_modules() if _is_linear(m)})
        reason = " ".join(str(error).split())[:160]
        raise UnusableInputError(
            f"No adapter for this {policy.config.type} policy ({reason}). Name "
            f"modules with --lora.target_modules, such as {', '.join(linear[:6])}; or train all "
            "weights with --full."
        ) from None


def _is_linear(module: Any) -> bool:
    return type(module).__name__ == "Linear"


def save(
    model: PeftModel,
    policy: Any,
    base: Path,
    folder: Path,
    save_processors: Callable[[Path], None],
    hub_name: str = "",
) -> None:
    """Write an adapter folder that holds its base, or names it where it is large.

    Args:
        model: the wrapped policy.
        policy: what was wrapped.
        base: the base policy's folder, copied in.
        folder: where to write.
        save_processors: writes the policy's processors into a folder.
        hub_name: the base's name on the Hub, if it has one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = _place_base(base, folder, hub_name)
    model.save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    config["base_model_name_or_path"] = named
    write_atomically(folder / CONFIG, json.dumps(config, indent=1, sort_keys=True) + "\n")
    path, policy.config.pretrained_path = policy.config.pretrained_path, None
    policy.config.save_pretrained(folder)
    policy.config.pretrained_path = path
    save_processors(folder)


def _place_base(base: Path, folder: Path, hub_name: str) -> str:
    """Copy the base beside its adapter, unless it is large; return what the adapter calls it."""
    refuse_links_out(base)  # what they lead to would be copied, and pushed one day
    files = [p for p in base.rglob("*") if p.is_file()]
    if sum(p.stat().st_size for p in files) <= COPIED_BYTES:
        shutil.copytree(base, folder / BASE, dirs_exist_ok=True)
        return BASE
    if not hub_name:
        log.warning("%s is too large to copy: its adapter works where that folder is.", base)
    return hub_name or str(base)


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
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableInputError(f"{folder} can't be loaded ({reason}). Train it again.") from None
    return replace(bundle, policy=merged(model))


def merged(model: Any) -> Any:
    """Fold the adapter into the weights; return the plain policy, without PEFT."""
    policy = model.merge_and_unload()
    policy.config.use_peft = False
    policy.config.pretrained_path = None
    for parameter in policy.parameters():
        parameter.requires_grad_(True)
    policy.eval()
    return policy
