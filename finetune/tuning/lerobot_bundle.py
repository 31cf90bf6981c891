"""Any LeRobot policy with its processors: load, check against the data, normalise.

LeRobot makes the policy (`make_policy`) and its processors (`make_pre_post_processors`); what
is added are the checks that it leaves to a crash in the middle of training, each with its fix.

By whose statistics a tuned policy normalises: a base has learned what its inputs and answers mean
on its own scale. New statistics move every one of them at once (the action spread went from 0.89 to
4.46 in a trial), and a small adapter then relearns the scale instead of the task: hence `base`
unless said otherwise. `new` is what LeRobot does. It is right for a base that has no statistics of
this arm, as those on the Hub that are meant to be tuned to any.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs import FeatureType, NormalizationMode
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import make_policy, make_pre_post_processors
from lerobot.utils.constants import IMAGENET_STATS
from safetensors import SafetensorError, safe_open

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets.layout import DatasetInfo
from gaploop.finetune.batches import Signature
from gaploop.finetune.lerobot_act import (
    ACTION,
    SIDECAR,
    STATE,
    ActBundle,
    in_words,
    refuse_not_finite,
)
from gaploop.finetune.lerobot_policy import PREPROCESSOR
from gaploop.finetune.lerobot_trust import refuse_foreign_code

type Stats = Mapping[str, Mapping[str, Any]]
"""Feature to statistic, such as `mean` and `std`, to its values."""
UNNAMED: Final = (
    "%s doesn't state its rate, joints and units, so they can't be compared with those of %s: "
    "check them where it was trained."
)
"""Said of policies that lerobot-train saved: LeRobot's config has no place for these."""
RESIZING: Final = ("image_resolution", "resize_imgs_with_padding", "resize_shape")
"""Options of policies that bring pictures of any size to theirs."""
USED: Final = {
    NormalizationMode.MEAN_STD: ("mean", "std"),
    NormalizationMode.MIN_MAX: ("min", "max"),
    NormalizationMode.QUANTILES: ("q01", "q99"),
    NormalizationMode.QUANTILE10: ("q10", "q90"),
}
"""The statistics that LeRobot's normaliser reads."""


def check_fits(
    config: PreTrainedConfig,
    info: DatasetInfo,
    folder: Path,
    rename: Mapping[str, str],
    size: tuple[int, int] | None = None,
) -> None:
    """Check that a dataset has what a policy is fed, under the same names.

    Args:
        folder: where the policy's sidecar is, if it has one.
        rename: the dataset's name of a feature to the policy's.
        size: height and width that pictures are scaled to [px]; None as recorded.

    Raises:
        UnusableInputError: what differs, and how to fix it.
    """
    have = {rename.get(k, k): v for k, v in info.features.items()}
    wanted = [k for k in config.image_features if ".empty_camera_" not in k]
    missing = [k for k in wanted if k not in have]
    cameras = sorted(k for k in have if k.startswith("observation.image"))
    if len(missing) > int(getattr(config, "empty_cameras", 0) or 0):
        raise UnusableInputError(
            f"{info.root} has no camera {', '.join(missing)}, which the {config.type} policy looks "
            f"through; it has {', '.join(cameras) or 'none'}. If one is the same view, say so: "
            f"""--rename_map='{{"{cameras[0] if cameras else "THEIRS"}": "{missing[0]}"}}'; or """
            "record with it."
        )
    is_scaled = any(hasattr(config, name) for name in RESIZING)
    for key, picture in config.image_features.items():
        if key not in have or is_scaled:
            continue
        given = list(have[key].get("shape") or ())
        recorded = tuple(given[:2]) if given and given[-1] == 3 else tuple(given[1:])
        seen, (height, width) = size or recorded, picture.shape[1:]
        if seen != (height, width):
            raise UnusableInputError(
                f"{info.root}: {key} is {seen[1]}×{seen[0]}, the policy was trained on "
                f"{width}×{height}. Scale with --cache.size={width}x{height}."
            )
    for key, feature in {**(config.input_features or {}), **(config.output_features or {})}.items():
        if feature.type not in (FeatureType.STATE, FeatureType.ACTION, FeatureType.ENV):
            continue
        width = int(feature.shape[0])
        if key not in have:
            raise UnusableInputError(
                f"{info.root} has no {key}, which policy {folder} needs. Record it, or name the "
                f"""feature that stands for it: --rename_map='{{"THEIRS": "{key}"}}'."""
            )
        held = int((have[key].get("shape") or (0,))[0])
        padded = hasattr(config, "max_action_dim") and held < width
        if held != width and not padded:
            raise UnusableInputError(
                f"{info.root}: {key} has {held} entries, policy {folder} was trained on {width}. "
                "Use episodes of the arm it was trained with, or gaploop edit harmonise."
            )
    path = folder / SIDECAR
    if not path.exists():
        return
    own = read_json(path)
    for key, feature in (("state_names", STATE), ("action_names", ACTION)):
        theirs, ours = tuple(own.get(key) or ()), info.names(feature)
        if theirs and theirs != ours:
            raise UnusableInputError(
                f"{info.root}: {feature} is [{', '.join(ours)}], policy {folder} was trained on "
                f"[{', '.join(theirs)}]. Name, order and convert them alike with "
                "gaploop edit harmonise."
            )
    if own.get("fps") and float(own["fps"]) != info.fps:
        raise UnusableInputError(
            f"{info.root}: {info.fps:g} frames a second, policy {folder} was trained on "
            f"{float(own['fps']):g}. Resample with gaploop edit harmonise."
        )


def read_config(folder: Path, device: str = "cpu") -> PreTrainedConfig:
    """Read a policy's config.

    Raises:
        UnusableInputError: there is none, or LeRobot doesn't know it.
    """
    refuse_foreign_code(folder)
    with in_words(folder):
        config = PreTrainedConfig.from_pretrained(
            folder, local_files_only=True, cli_overrides=[f"--device={device}"]
        )
    config.pretrained_path = folder
    return config


def open_bundle(
    config: PreTrainedConfig,
    meta: Any,
    signature: Signature,
    *,
    stats: str = "base",
    rename: Mapping[str, str] | None = None,
) -> ActBundle:
    """Load a policy with its processors, ready to be tuned.

    Args:
        config: as `read_config` gave it; says where the policy is.
        meta: LeRobot metadata of the data, with their statistics.
        rename: the dataset's name of a feature to the policy's.

    Raises:
        UnusableInputError: files are missing or damaged, a library of this policy isn't
            installed, or the base has no statistics to keep.
    """
    folder = Path(str(config.pretrained_path))
    refuse_foreign_code(folder)
    with in_words(folder):
        policy = make_policy(config, ds_meta=meta, rename_map=dict(rename or {}) or None)
        saved: dict[str, Any] = {}
        if (folder / PREPROCESSOR).exists():
            changed: dict[str, Any] = {"device_processor": {"device": str(config.device)}}
            if rename:
                changed["rename_observations_processor"] = {"rename_map": dict(rename)}
            saved = {"pretrained_path": str(folder), "preprocessor_overrides": changed}
        before, after = make_pre_post_processors(config, **saved)
    # Weights that aren't this policy's are refused: pi0's loader only prints that it failed.
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as weights:
            held = {k.removeprefix("model.") for k in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UnusableInputError(
            f"{folder}/model.safetensors can't be read ({error}). Fetch or train it again."
        ) from None
    own = {k.removeprefix("model.") for k in policy.state_dict()}
    if len(own & held) < 0.5 * len(own):
        raise UnusableInputError(
            f"{folder}/model.safetensors holds {len(own & held)} of the {len(own)} weights of a "
            f"{policy.config.type} policy. Its config.json belongs to other weights."
        )
    refuse_not_finite(policy, folder)
    bundle = ActBundle(policy, before, after, signature)
    features = {**(policy.config.input_features or {}), **(policy.config.output_features or {})}
    modes, as_is = policy.config.normalization_mapping, NormalizationMode.IDENTITY
    needed = [k for k, f in features.items() if modes.get(f.type.value, as_is) != as_is]
    if stats != "base":
        base = base_stats(bundle)
        numbers = {
            k: s
            for k, s in meta.stats.items()
            if k in needed and not k.startswith("observation.im")
        }
        # Pictures keep the scale that the backbone learned with.
        imagenet = {**IMAGENET_STATS, "min": np.zeros((3, 1, 1)), "max": np.ones((3, 1, 1))}
        usual = {k: np.asarray(v, dtype=np.float32) for k, v in imagenet.items()}
        pictures = {k: base.get(k) or usual for k in needed if k not in numbers}
        set_stats(bundle, {**numbers, **pictures})
    require_stats(bundle, needed, folder)
    return bundle


def require_stats(bundle: Any, features: Sequence[str], folder: Path) -> None:
    """Check that a policy has the statistics that it normalises these features by.

    Raises:
        UnusableInputError: some are missing, or aren't finite.
    """
    config = bundle.policy.config
    kinds = {**(config.input_features or {}), **(config.output_features or {})}
    own = base_stats(bundle)
    for key in features:
        if key not in kinds or ".empty_camera_" in key:
            continue
        mode = config.normalization_mapping.get(kinds[key].type.value)
        names = USED.get(mode, ())
        held = own.get(key) or {}
        lacking = [n for n in names if n not in held]
        if lacking:
            raise UnusableInputError(
                f"{folder} has no statistics of {key} to keep ({', '.join(lacking)}): it is meant "
                "to be tuned to any arm. Take the new data's with --stats=new."
            )
        if not all(bool(torch.isfinite(torch.as_tensor(held[n])).all()) for n in names):
            raise UnusableInputError(
                f"{folder}: the statistics of {key} that it normalises by ({', '.join(names)}) "
                "are not finite. Take the new data's with --stats=new."
            )


def base_stats(bundle: Any) -> Stats:
    """Return the statistics that a policy's preprocessor normalises by."""
    for step in bundle.preprocessor.steps:
        if getattr(step, "norm_map", None) is not None:
            found: Stats = step.stats or {}
            return found
    return {}


def set_stats(bundle: Any, stats: Stats) -> None:
    """Let both processors normalise by other statistics."""
    for pipeline in (bundle.preprocessor, bundle.postprocessor):
        for step in pipeline.steps:
            if getattr(step, "norm_map", None) is not None:
                step.stats = {k: dict(v) for k, v in stats.items()}
                step.to(device=step.device)
