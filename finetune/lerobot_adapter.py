"""LoRA on LeRobot policies through PEFT: wrap, save with the base inside, load, merge.

LoRA is Hu et al. 2021 (arXiv:2106.09685). LeRobot's adapter folders store the base model's
path literally, so they load only where that path exists. Ours carry a copy of the base in
`base/` and always load that one: from any working directory, and after a move. A base too
large to copy is named by its name on the Hub, where it has one. The sidecar says which weights
an adapter was trained on, and it is put on no others.
"""

import hashlib
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from peft import PeftModel

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.paths import refuse_links_out
from gaploop.datasets.hub.target import is_hub_name
from gaploop.datasets.hub.upload import fetch
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.lerobot_trust import refuse_foreign_code
from gaploop.finetune.tuning.presets import LoraOptions

log = logging.getLogger(__name__)

CONFIG: Final = "adapter_config.json"
BASE: Final = "base"
BASE_KEY: Final = "base_model_name_or_path"
"""Where PEFT says which base an adapter belongs to."""
BASE_HASH: Final = "base_sha256"
"""In the sidecar: the hash of the base's weights that the adapter was trained on."""
COPIED_BYTES: Final = 300_000_000
"""A larger base isn't copied beside its adapter."""


def wrap(policy: Any, base: Path, lora: LoraOptions) -> PeftModel:
    """Freeze a LeRobot policy and put a trainable adapter on it.

    Args:
        lora: LeRobot's own modules get an adapter where it names none.

    Raises:
        UnusableInputError: sizes out of range, or nothing to put an adapter on.
    """
    if lora.r < 1:
        raise UnusableInputError(f"--lora.r={lora.r} must be at least 1; try 16.")
    policy.config.pretrained_path = base
    named = list(lora.target_modules)
    is_pattern = len(named) == 1 and not named[0].isidentifier()
    try:
        model: PeftModel = policy.wrap_with_peft(
            peft_cli_overrides={
                "method_type": "lora",
                "target_modules": named[0] if is_pattern else named or None,
                "r": lora.r,
                "lora_alpha": 2 * lora.r,
            }
        )
        model.base_sha256 = weights_hash(base)  # now, not when it is saved hours later
        return model
    except ValueError as error:
        parts = policy.named_modules()
        linear = sorted({n.rpartition(".")[2] for n, m in parts if type(m).__name__ == "Linear"})
        reason = " ".join(str(error).split())[:160]
        raise UnusableInputError(
            f"No adapter for this {policy.config.type} policy ({reason}). Name "
            f"modules with --lora.target_modules, such as {', '.join(linear[:6])}; or train all "
            "weights with --method=full."
        ) from None


def save(
    model: PeftModel, bundle: Any, base: Path, folder: Path, hub_name: str = "", merge: bool = False
) -> None:
    """Write an adapter folder that holds its base, or names it where it is large.

    Args:
        hub_name: the base's name on the Hub, if it has one.
        merge: write the plain policy of both, too, as `merged` beside it; it is merged then.

    Raises:
        UnusableInputError: the base was changed since it was wrapped.
    """
    policy = bundle.policy
    require_base(folder, base, model.base_sha256)
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links_out(base)  # what they lead to would be copied, and pushed one day
    named = hub_name or str(base)
    if sum(p.stat().st_size for p in base.rglob("*") if p.is_file()) <= COPIED_BYTES:
        shutil.copytree(base, folder / BASE, dirs_exist_ok=True)
        named = BASE
    elif not hub_name:
        log.warning("%s is too large to copy: its adapter works where that folder is.", base)
    model.save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    config[BASE_KEY] = named
    if isinstance(modules := config.get("target_modules"), list):
        config["target_modules"] = sorted(modules)  # PEFT's set: the id changed with every saving
    write_atomically(folder / CONFIG, json.dumps(config, indent=1, sort_keys=True) + "\n")
    path, policy.config.pretrained_path = policy.config.pretrained_path, None
    policy.config.save_pretrained(folder)
    policy.config.pretrained_path = path
    act.save_processors(bundle, folder)
    sidecar = read_json(folder / act.SIDECAR)
    write_json(folder / act.SIDECAR, {**sidecar, BASE_HASH: model.base_sha256})
    if merge:
        act.save(replace(bundle, policy=merged(model)), folder.parent / "merged")


def is_adapter(folder: Path) -> bool:
    """Say whether `folder` is an adapter folder."""
    return (folder / CONFIG).exists()


def weights_hash(base: Path) -> str:
    """Return the SHA-256 of a base's weights."""
    with (base / "model.safetensors").open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_base(folder: Path, base: Path, trained_on: str) -> None:
    """Refuse a base whose weights aren't those that an adapter was trained on.

    Args:
        trained_on: what `weights_hash` said then.

    Raises:
        UnusableInputError: they are others, or missing.
    """
    try:
        found = weights_hash(base)
    except OSError as error:
        raise UnusableInputError(
            f"Adapter {folder}: its base {base} can't be read ({error.strerror}). Copy the base "
            f"policy to {folder / BASE}, or use the merged folder of the same run."
        ) from None
    if found != trained_on:
        raise UnusableInputError(
            f"Adapter {folder} was trained on a base with weights sha256:{trained_on[:16]}, and "
            f"{base} holds sha256:{found[:16]}, another or a damaged one. Put the old base back, "
            "use the merged folder of the same run, or train again on this one."
        )


def base_folder(folder: Path) -> Path:
    """Return the folder of an adapter's base, checked: inside, or where PEFT's file names it.

    Raises:
        UnusableInputError: it is missing, isn't the one that the adapter was trained on, or names
            code to run.
    """
    base = folder / BASE
    if not base.is_dir():
        named = str(read_json(folder / CONFIG).get(BASE_KEY) or "")
        there = fetch(named) if is_hub_name(named) else Path(named)
        if not named or not there.is_dir():
            raise UnusableInputError(
                f"Adapter {folder} has no base/ folder, and {named or 'its base'} isn't here. Copy "
                f"the base policy to {base}, or use the merged folder of the same run."
            )
        base = there
    refuse_foreign_code(base)
    sidecar = folder / act.SIDECAR
    trained_on = read_json(sidecar).get(BASE_HASH) if sidecar.exists() else None
    if trained_on is None:
        log.warning(
            "%s doesn't state which base it was trained on: an older adapter, or not gaploop's. "
            "Nothing shows whether %s is still the same.", folder, base,
        )  # fmt: skip
    else:
        require_base(folder, base, str(trained_on))
    return base


def load(folder: Path, device: str = "cpu") -> act.ActBundle:
    """Load an adapter on its base and merge the two.

    Raises:
        UnusableInputError: the base is missing or another one, or either part is damaged.
    """
    refuse_foreign_code(folder)
    base = base_folder(folder)
    bundle = act.load(base, device, processors=folder)
    try:
        model = PeftModel.from_pretrained(bundle.policy, str(folder))
    except act.FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableInputError(f"{folder} can't be loaded ({reason}). Train it again.") from None
    policy = merged(model)
    act.refuse_not_finite(policy, folder)
    return replace(bundle, policy=policy)


def merged(model: Any) -> Any:
    """Fold the adapter into the weights; return the plain policy, without PEFT."""
    policy = model.merge_and_unload()
    policy.config.use_peft = False
    policy.config.pretrained_path = None
    for parameter in policy.parameters():
        parameter.requires_grad_(True)
    policy.eval()
    return policy
