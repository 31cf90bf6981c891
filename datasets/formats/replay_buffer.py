"""Replay buffers of Diffusion Policy and UMI: Zarr v2 with `data/*` and `meta/episode_ends`.

As `ReplayBuffer` of real-stanford/diffusion_policy reads it (`copy_from_path`, `copy_from_store`):
every array under `data` has one row per frame of all episodes end to end, `meta/episode_ends`
says where each ends. It is Zarr v2, which the zarr 2.x of those projects reads.

UMI's holds tool poses and gripper widths. Keys and units are those of
real-stanford/universal_manipulation_interface (`07_generate_replay_buffer.py`): `robot<i>_eef_pos`
[m], `robot<i>_eef_rot_axis_angle` [rad], `robot<i>_gripper_width` [m], `robot<i>_demo_start_pose`
and `_demo_end_pose` (n, 6), the same in every row of an episode. `action` is absolute
[pos, rot, width] per robot, as its sampler makes it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.datasets import columns
from gaploop.datasets.formats.foreign import (
    About,
    ForeignRecording,
    ImportSettings,
    Recording,
    chosen_key,
    described,
    foreign_recording,
    named,
    taken,
)
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY, ZARR_DAMAGE, zip_store

STATE_KEYS: Final = ("state", "agent_pos", "robot_joint", "qpos", "robot_eef_pose")
"""Keys that hold the robot's state in buffers of that project."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "eef_pos": ("x_m", "y_m", "z_m"),
    "eef_rot_axis_angle": ("rx_rad", "ry_rad", "rz_rad"),
    "gripper_width": ("width_m",),
}
"""Part of a robot's state to what its entries are called."""
UNITS: Final = "m, rad"
_PICTURES_AT_ONCE: Final = 16


def part_names(robot: int) -> list[str]:
    """Return the names of one robot's seven entries of UMI's state and action."""
    return [f"robot{robot}_{part}.{name}" for part, names in PARTS.items() for name in names]


def pictures_in(
    array: Any, first: int, last: int, where: str, swap_red_blue: bool
) -> Iterator[Image]:
    """Yield an episode's pictures in a Zarr array (n, height, width, 3) in order, RGB, uint8."""
    # A chunk of many small pictures is decoded once, not once per picture.
    step = max(_PICTURES_AT_ONCE, int(array.chunks[0]))
    for at in range(first, last, step):
        block = read_rows(array, at, min(last, at + step), where)
        if block.dtype != np.uint8:
            whole = np.rint(block)
            if not np.array_equal(whole, block) or whole.min() < 0 or whole.max() > 255:
                raise UnusableInputError(
                    f"{where}: pictures are {block.dtype} and not whole numbers from 0 to 255. "
                    "Scale them to uint8 first."
                )
            block = whole.astype(np.uint8)
        yield from block[..., ::-1] if swap_red_blue else block


def read_rows(array: Any, first: int, last: int, where: str) -> NDArray[Any]:
    """Return rows of a Zarr array; UnusableInputError where they are damaged or no numbers."""
    with reraise_as_damaged(f"{where} can't be read", "Restore it.", ZARR_DAMAGE):
        rows = last - first
        if rows * math.prod((*array.shape[1:], array.dtype.itemsize)) > LARGEST_ARRAY:
            raise ValueError(f"{rows} rows of shape {array.shape[1:]}")
        if array.dtype.kind not in "fiub":
            raise ValueError(f"it holds {array.dtype}, not numbers")
        return np.asarray(array[first:last])


@contextlib.contextmanager
def open_buffer(path: Path) -> Iterator[Any]:
    """Open the group of a replay buffer, a folder or a zip file.

    Raises:
        UnusableInputError: it isn't one, and what is missing; a chunk is damaged.
    """
    fix = "Check the path, or restore it."
    if importlib.util.find_spec("imagecodecs"):  # UMI stores pictures as JPEG XL
        importlib.import_module("imagecodecs.numcodecs").register_codecs(verbose=False)
    else:
        fix += " Pictures in JPEG XL need: pip install 'gaploop[all]'"
    problem = f"{path} can't be read as a Zarr group"
    with contextlib.ExitStack() as stack:
        stack.enter_context(reraise_as_damaged(problem, fix, ZARR_DAMAGE))
        store = LocalStore(path, read_only=True) if path.is_dir() else zip_store(path)
        root = zarr.open_group(stack.enter_context(contextlib.closing(store)), mode="r")
        for name in ("data", "meta/episode_ends"):
            if name not in root:
                found = ", ".join(sorted(root.keys())) or "nothing"
                raise UnusableInputError(
                    f"{path} has no {name} (it holds {found}): not a replay buffer. Name the "
                    "folder or .zip that holds data/ and meta/episode_ends."
                )
        yield root


def read_diffusion_policy(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a Diffusion Policy replay buffer."""
    return _read(path, settings, _diffusion_policy_about)


def read_umi(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a UMI replay buffer. Its layout defines its units: metres and radians."""
    settings = settings if settings.units else replace(settings, units=UNITS)
    return _read(path, settings, _umi_about)


type _Describe = Callable[
    [Path, Any, ImportSettings], tuple[About, Mapping[str, tuple[str, ...]], list[str]]
]


def _read(path: Path, settings: ImportSettings, describe: _Describe) -> ForeignRecording:
    with open_buffer(path) as root:
        ends = [int(n) for n in np.asarray(root["meta/episode_ends"][:])]
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
        about, parts, notes = describe(path, root, settings)

    def episodes() -> Iterator[Recording]:
        with open_buffer(path) as root:
            data = root["data"]

            def rows(first: int, last: int, key: str) -> NDArray[Any]:
                return read_rows(data[key], first, last, f"{path}/data/{key}")

            def pictures(first: int, last: int, key: str, swap: bool) -> Iterator[Image]:
                return pictures_in(data[key], first, last, f"{path}/data/{key}", swap)

            for index, span in enumerate(zip([0, *ends], ends, strict=False)):
                shown, origin = partial(pictures, *span), f"{path.name} {index}"
                yield foreign_recording(about, settings, parts, partial(rows, *span), shown, origin)

    return ForeignRecording(about, len(ends), episodes, tuple(notes))


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
    settings.require_units(path)
    vectors = {n: named({k: _width(numbers[k]) for k in part}) for n, part in parts.items()}
    cameras = {n.replace("/", "_"): (n, array.shape[1:3]) for n, array in pictures.items()}
    if any(numbers[k].dtype == np.float64 for part in parts.values() for k in part):
        notes.append("float64 numbers are kept as float32, which is what LeRobot trains on.")
    fps = settings.required_fps(path)
    return described(fps, settings.robot_type, vectors, cameras), parts, notes


def _width(array: Any) -> int:
    return int(np.prod(array.shape[1:], dtype=int)) if array.ndim > 1 else 1


def _umi_about(
    path: Path, root: Any, settings: ImportSettings
) -> tuple[About, Mapping[str, tuple[str, ...]], list[str]]:
    numbers, pictures, notes = _arrays(root)
    robots = 0
    while f"robot{robots}_eef_pos" in numbers:
        robots += 1
    state = [f"robot{i}_{part}" for i in range(robots) for part in PARTS]
    missing = [key for key in state if key not in numbers] or ([] if robots else ["robot0_eef_pos"])
    if missing:
        raise UnusableInputError(
            f"{path} has no data/{missing[0]}: not a UMI buffer. It holds "
            f"{', '.join([*numbers, *pictures])}. Try --from=diffusion_policy."
        )
    action = ("action",) if "action" in numbers else tuple(state)
    if action != ("action",):
        notes.append("action is the pose of the same row, as UMI's own sampler makes it.")
    parts = {columns.ACTION: action, columns.STATE: tuple(state)}
    names = [n for i in range(robots) for n in part_names(i)]
    if action == ("action",) and _width(numbers["action"]) != len(names):
        raise UnusableInputError(
            f"{path}: data/action has width {_width(numbers['action'])}, {robots} robots have "
            f"{len(names)} numbers. Try --from=diffusion_policy."
        )
    vectors = dict.fromkeys(parts, names)
    for key in sorted(set(numbers) - set(state) - {"action"}):
        parts[f"umi.{key}"] = (key,)
        vectors[f"umi.{key}"] = named({key: _width(numbers[key])})
    cameras = {n.removesuffix("_rgb"): (n, array.shape[1:3]) for n, array in pictures.items()}
    fps = settings.required_fps(path, ", 60 for a GoPro at full rate")
    return described(fps, settings.robot_type or "umi", vectors, cameras), parts, notes
