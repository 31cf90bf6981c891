"""Whether a dataset has what a LeRobot policy is fed; each difference with its fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lerobot.configs import FeatureType
from lerobot.configs.policies import PreTrainedConfig

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets.layout import DatasetInfo

ACTION: Final = "action"
STATE: Final = "observation.state"
SIDECAR: Final = "gaploop.json"
UNNAMED: Final = (
    "%s doesn't say its rate, joints and units, so they can't be compared with those of %s: check "
    "them where it was trained."
)
"""Said of policies that lerobot-train saved: LeRobot's config has no place for these."""
RESIZING: Final = ("image_resolution", "resize_imgs_with_padding", "resize_shape")
"""Options of policies that bring pictures of any size to theirs."""


def check_fits(
    config: PreTrainedConfig,
    info: DatasetInfo,
    folder: Path,
    rename: Mapping[str, str],
    size: tuple[int, int] | None = None,
) -> None:
    """Check that a dataset has what a policy is fed, under the same names.

    Args:
        config: the policy's.
        info: the dataset.
        folder: where the policy's sidecar is, if it has one.
        rename: the dataset's name of a feature to the policy's.
        size: height and width that pictures are scaled to [px]; None as recorded.

    Raises:
        UnusableInputError: what differs, and how to fix it.
    """
    have = {rename.get(k, k): v for k, v in info.features.items()}
    _check_cameras(config, have, info.root)
    for key, shape in _pictures(config).items():
        if key in have:
            _check_size(config, key, shape, have[key], info.root, size)
    for key, width in _widths(config).items():
        if key not in have:
            raise UnusableInputError(
                f"{info.root} has no {key}, which policy {folder} needs. Record it, or name the "
                f"""feature that stands for it: --rename_map='{{"THEIRS": "{key}"}}'."""
            )
        given = int((have[key].get("shape") or (0,))[0])
        padded = hasattr(config, "max_action_dim") and given < width
        if given != width and not padded:
            raise UnusableInputError(
                f"{info.root}: {key} has {given} entries, policy {folder} was trained on {width}. "
                "Use takes of the arm it was trained with, or gaploop harmonise."
            )
    _check_names(info, folder)


def _check_cameras(config: PreTrainedConfig, have: Mapping[str, Any], root: Path) -> None:
    wanted = [k for k in config.image_features if ".empty_camera_" not in k]
    missing = [k for k in wanted if k not in have]
    cameras = sorted(k for k in have if k.startswith("observation.image"))
    if len(missing) > int(getattr(config, "empty_cameras", 0) or 0):
        raise UnusableInputError(
            f"{root} has no camera {', '.join(missing)}, which the {config.type} policy looks "
            f"through; it has {', '.join(cameras) or 'none'}. If one is the same view, say so: "
            f"""--rename_map='{{"{cameras[0] if cameras else "THEIRS"}": "{missing[0]}"}}'; or """
            "record with it."
        )


def _pictures(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    return {k: tuple(f.shape) for k, f in config.image_features.items()}


def _check_size(
    config: PreTrainedConfig,
    key: str,
    shape: tuple[int, ...],
    feature: Mapping[str, Any],
    root: Path,
    size: tuple[int, int] | None,
) -> None:
    given = list(feature.get("shape") or ())
    recorded = tuple(given[:2]) if given and given[-1] == 3 else tuple(given[1:])
    seen = size or recorded
    if any(hasattr(config, name) for name in RESIZING) or seen == shape[1:]:
        return
    height, width = shape[1:]
    raise UnusableInputError(
        f"{root}: {key} is {seen[1]}×{seen[0]}, the policy was trained on {width}×{height}. Scale "
        f"with --cache.size={width}x{height}."
    )


def _widths(config: PreTrainedConfig) -> dict[str, int]:
    features = {**(config.input_features or {}), **(config.output_features or {})}
    kinds = (FeatureType.STATE, FeatureType.ACTION, FeatureType.ENV)
    return {k: int(f.shape[0]) for k, f in features.items() if f.type in kinds}


def _check_names(info: DatasetInfo, folder: Path) -> None:
    path = folder / SIDECAR
    if not path.exists():
        return
    own = read_json(path)
    mend = "Name, order and convert them alike with gaploop harmonise."
    for key, feature in (("state_names", STATE), ("action_names", ACTION)):
        theirs, ours = tuple(own.get(key) or ()), info.names(feature)
        if theirs and theirs != ours:
            raise UnusableInputError(
                f"{info.root}: {feature} is [{', '.join(ours)}], policy {folder} was trained on "
                f"[{', '.join(theirs)}]. {mend}"
            )
    if own.get("fps") and float(own["fps"]) != info.fps:
        raise UnusableInputError(
            f"{info.root}: {info.fps:g} frames a second, policy {folder} was trained on "
            f"{float(own['fps']):g}. Resample with gaploop harmonise."
        )


def check_units(units: Sequence[str], folder: Path, root: str) -> None:
    """Check that takes are in the units that a policy was trained on.

    Raises:
        UnusableInputError: they aren't.
    """
    path = folder / SIDECAR
    own = str(read_json(path).get("units") or "") if path.exists() else ""
    other = sorted({u for u in units if u and own and u != own})
    if other:
        raise UnusableInputError(
            f"{root}: joints in {', '.join(other)}, policy {folder} was trained in {own}. Convert "
            "with gaploop harmonise."
        )
