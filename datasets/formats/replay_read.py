"""Replay buffers of Diffusion Policy and UMI, read episode by episode."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore, ZipStore

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.datasets import columns
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.formats import umi_pose
from gaploop.datasets.formats.carried import NAME, Carried, read_carried
from gaploop.datasets.formats.foreign import as_float32, chosen_key, named, taken
from gaploop.datasets.formats.model import About, ForeignRecording, ImportSettings, Recording
from gaploop.datasets.formats.replay_buffer import STATE_KEYS
from gaploop.datasets.formats.sink import (
    each_camera,
    foreign_recording,
    number_feature,
    picture_spec,
    with_gap_features,
)
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY, ZARR_DAMAGE

_PICTURES_AT_ONCE: Final = 16


@dataclass(frozen=True)
class ZarrPictures:
    """An episode's pictures in a Zarr array (n, height, width, 3)."""

    array: Any
    first: int
    last: int
    where: str
    swap_red_blue: bool = False

    def __call__(self) -> Iterator[Image]:
        """Yield the pictures in order, RGB, uint8.

        Raises:
            UnusableInputError: pictures stored as fractions, or a damaged chunk.
        """
        # A chunk of many small pictures is decoded once, not once per picture.
        step = max(_PICTURES_AT_ONCE, int(self.array.chunks[0]))
        for first in range(self.first, self.last, step):
            block = read_rows(self.array, first, min(self.last, first + step), self.where)
            if block.dtype != np.uint8:
                whole = np.rint(block)
                if not np.array_equal(whole, block) or whole.min() < 0 or whole.max() > 255:
                    raise UnusableInputError(
                        f"{self.where}: pictures are {block.dtype} and not whole numbers from 0 "
                        "to 255. Scale them to uint8 first."
                    )
                block = whole.astype(np.uint8)
            yield from block[..., ::-1] if self.swap_red_blue else block


def read_rows(array: Any, first: int, last: int, where: str) -> NDArray[Any]:
    """Return rows of a Zarr array.

    Raises:
        UnusableInputError: a chunk is damaged, or its codec isn't installed.
    """
    try:
        rows = last - first
        if rows * math.prod((*array.shape[1:], array.dtype.itemsize)) > LARGEST_ARRAY:
            raise ValueError(f"{rows} rows of shape {array.shape[1:]}")
        if array.dtype.kind not in "fiub":
            raise ValueError(f"it holds {array.dtype}, not numbers")
        return np.asarray(array[first:last])
    except ZARR_DAMAGE as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UnusableInputError(f"{where} can't be read ({reason}). Restore it.") from None


@contextlib.contextmanager
def open_buffer(path: Path) -> Iterator[Any]:
    """Open the group of a replay buffer, a folder or a zip file.

    Raises:
        UnusableInputError: it isn't one, and what is missing.
    """
    from imagecodecs.numcodecs import register_codecs  # UMI stores pictures as JPEG XL

    register_codecs(verbose=False)
    try:
        store = ZipStore(path, mode="r") if path.is_file() else LocalStore(path, read_only=True)
        with contextlib.closing(store):
            root = zarr.open_group(store, mode="r")
            for name in ("data", "meta/episode_ends"):
                if name not in root:
                    found = ", ".join(sorted(root.keys())) or "nothing"
                    raise UnusableInputError(
                        f"{path} has no {name} (it holds {found}): not a replay buffer. Name the "
                        "folder or .zip that holds data/ and meta/episode_ends."
                    )
            yield root
    except ZARR_DAMAGE as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UnusableInputError(
            f"{path} can't be read as a Zarr group ({reason}). Check the path, or restore it."
        ) from None


def read_diffusion_policy(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a Diffusion Policy replay buffer."""
    return _read(path, settings, _diffusion_policy_about)


def read_umi(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a UMI replay buffer. Its layout defines its units: metres and radians."""
    settings = settings if settings.units else replace(settings, units=umi_pose.UNITS)
    return _read(path, settings, _umi_about)


type _Describe = Callable[
    [Path, Any, ImportSettings], tuple[About, Mapping[str, tuple[str, ...]], list[str]]
]


def _read(path: Path, settings: ImportSettings, describe: _Describe) -> ForeignRecording:
    with open_buffer(path) as root:
        ends = [int(n) for n in np.asarray(root["meta/episode_ends"][:])]
        _check(path, root, ends)
        if NAME in root.attrs:
            carried = read_carried(root.attrs[NAME], path)
            return ForeignRecording(
                carried.about,
                len(ends),
                lambda: _exact_episodes(path, ends, carried),
                carried.labels,
                exact=True,
            )
        about, parts, notes = describe(path, root, settings)
    return ForeignRecording(
        about,
        len(ends),
        lambda: _foreign_episodes(path, ends, about, parts, settings),
        notes=tuple(notes),
    )


def _check(path: Path, root: Any, ends: list[int]) -> None:
    if not ends or any(b <= a for a, b in zip([0, *ends], ends, strict=False)):
        raise UnusableInputError(
            f"{path}: meta/episode_ends must rise from above 0, it is {ends[:5]}…. Restore it."
        )
    for name, array in root["data"].arrays():
        if array.shape[0] < ends[-1]:
            raise UnusableInputError(
                f"{path}: data/{name} has {array.shape[0]} rows, the episodes {ends[-1]}. "
                "Restore it."
            )


def _spans(ends: list[int]) -> Iterator[tuple[int, int, int]]:
    for index, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        yield index, first, last


def _exact_episodes(path: Path, ends: list[int], carried: Carried) -> Iterator[Recording]:
    about = carried.about
    with open_buffer(path) as root:
        data = root["data"]
        for index, first, last in _spans(ends):
            row = carried.rows[index]
            values = {}
            for name in about.numbers:
                key = about.keys[name]
                rows = read_rows(data[key], first, last, f"{path}/data/{key}")
                narrow = tuple(about.features[name]["shape"]) == (1,)
                values[name] = rows.reshape(last - first) if narrow else rows
            held = f"telemetry/{row['gap_uid']}"
            yield Recording(
                carried.tasks[index],
                last - first,
                values,
                {
                    camera: ZarrPictures(data[key], first, last, f"{path}/data/{key}")
                    for camera, key in each_camera(about)
                },
                row,
                np.asarray(root[held][:]).tobytes() if held in root else None,
            )


def _foreign_episodes(
    path: Path,
    ends: list[int],
    about: About,
    parts: Mapping[str, tuple[str, ...]],
    settings: ImportSettings,
) -> Iterator[Recording]:
    units = settings.units if settings.units != "unknown" else ""
    with open_buffer(path) as root:
        data = root["data"]
        for index, first, last in _spans(ends):

            def column(key: str, first: int = first, last: int = last) -> NDArray[Any]:
                rows = read_rows(data[key], first, last, f"{path}/data/{key}")
                return as_float32(rows.reshape(len(rows), -1))

            values = {n: np.concatenate([column(k) for k in ks], 1) for n, ks in parts.items()}
            swap = settings.swap_red_blue
            pictures = {
                camera: ZarrPictures(data[key], first, last, f"{path}/data/{key}", swap)
                for camera, key in each_camera(about)
            }
            origin = f"{path.name} {index}"
            yield foreign_recording(about, settings, values, pictures, origin, units=units)


def _arrays(root: Any) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return arrays of numbers, arrays of pictures, and notes about the rest."""
    numbers, pictures, notes = {}, {}, []
    for name, array in sorted(root["data"].arrays()):
        if array.ndim == 4 and array.shape[3] == 3:
            pictures[name] = array
        elif array.ndim in (1, 2, 3) and array.dtype.kind in "fiub":
            numbers[name] = array
        else:
            notes.append(f"data/{name} ({array.dtype}, shape {array.shape}) is left out.")
    return numbers, pictures, notes


def _diffusion_policy_about(
    path: Path, root: Any, settings: ImportSettings
) -> tuple[About, Mapping[str, tuple[str, ...]], list[str]]:
    numbers, pictures, notes = _arrays(root)
    keys = dict(settings.keys)
    action = taken(keys, columns.ACTION, numbers, path) or chosen_key(
        columns.ACTION, ("action",), numbers, path, only=False
    )
    rest = [n for n in numbers if n not in action]
    state = taken(keys, columns.STATE, numbers, path) or chosen_key(
        columns.STATE, STATE_KEYS, rest, path
    )
    parts = {columns.ACTION: action, columns.STATE: state}
    for feature in keys:
        parts[feature] = taken(keys, feature, numbers, path)
    used = {key for part in parts.values() for key in part}
    parts |= {f"extra.{name}": (name,) for name in numbers if name not in used}
    settings.required_units(path)
    features: dict[str, Any] = {
        name: number_feature(named({k: _width(numbers[k]) for k in part}))
        for name, part in parts.items()
    }
    camera_keys = {f"{IMAGES}{name.replace('/', '_')}": name for name in pictures}
    features |= {f: picture_spec(*pictures[k].shape[1:3]) for f, k in camera_keys.items()}
    if any(numbers[k].dtype == np.float64 for part in parts.values() for k in part):
        notes.append("float64 numbers are kept as float32, which is what LeRobot trains on.")
    about = About(
        settings.required_fps(path), settings.robot_type, with_gap_features(features), camera_keys
    )
    return about, parts, notes


def _width(array: Any) -> int:
    return int(np.prod(array.shape[1:], dtype=int)) if array.ndim > 1 else 1


def _umi_about(
    path: Path, root: Any, settings: ImportSettings
) -> tuple[About, Mapping[str, tuple[str, ...]], list[str]]:
    numbers, pictures, notes = _arrays(root)
    robots = 0
    while f"robot{robots}_eef_pos" in numbers:
        robots += 1
    state = [f"robot{i}_{part}" for i in range(robots) for part in umi_pose.PARTS]
    missing = [key for key in state if key not in numbers] or ([] if robots else ["robot0_eef_pos"])
    if missing:
        raise UnusableInputError(
            f"{path} has no data/{missing[0]}: not a UMI buffer. It holds "
            f"{', '.join([*numbers, *pictures])}. Try --format=diffusion_policy."
        )
    action = ("action",) if "action" in numbers else tuple(state)
    if action != ("action",):
        notes.append("action is the pose of the same row, as UMI's own sampler makes it.")
    parts = {columns.ACTION: action, columns.STATE: tuple(state)}
    names = [n for i in range(robots) for n in umi_pose.part_names(i)]
    if action == ("action",) and _width(numbers["action"]) != len(names):
        raise UnusableInputError(
            f"{path}: data/action has width {_width(numbers['action'])}, {robots} robots have "
            f"{len(names)} numbers. Try --format=diffusion_policy."
        )
    features: dict[str, Any] = dict.fromkeys(parts, number_feature(names))
    for key in sorted(set(numbers) - set(state) - {"action"}):
        parts[f"umi.{key}"] = (key,)
        features[f"umi.{key}"] = number_feature(named({key: _width(numbers[key])}))
    camera_keys = {f"{IMAGES}{name.removesuffix('_rgb')}": name for name in pictures}
    features |= {f: picture_spec(*pictures[k].shape[1:3]) for f, k in camera_keys.items()}
    fps = settings.required_fps(path, ", 60 for a GoPro at full rate")
    about = About(fps, settings.robot_type or "umi", with_gap_features(features), camera_keys)
    return about, parts, notes
