"""Other projects' layouts that are read: ALOHA's and Diffusion Policy's.

ALOHA's is one `episode_<i>.hdf5` per episode, as tonyzhaozh/act and MarkFzp/act-plus-plus read it
(`utils.py`, `EpisodicDataset`): `/action`, `/observations/qpos`, `/observations/qvel`,
`/observations/images/<camera>`, attribute `sim`; with attribute `compress`, pictures are JPEG,
padded to equal length, and `/compress_len` (cameras, frames) has their lengths. Those projects hand
RGB to cv2.imencode and take what cv2.imdecode returns as RGB, so that is done here, too.

Diffusion Policy's is a replay buffer, Zarr v2, as `ReplayBuffer` of real-stanford/diffusion_policy
reads it (`copy_from_path`, `copy_from_store`): every array under `data` has one row per frame of
all episodes end to end, `meta/episode_ends` says where each ends.
"""

from __future__ import annotations

import contextlib
import functools
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import regular_file
from gaploop.core.messages import Image
from gaploop.core.paths import refuse_links_out
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns
from gaploop.datasets.formats.foreign import (
    LARGEST_PICTURE,
    About,
    ForeignRecording,
    ImportSettings,
    Recording,
    chosen_key,
    described,
    foreign_recording,
    named,
    natural,
    taken,
    unpacked,
)
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY, ZARR_DAMAGE, zip_store

QPOS: Final = "observations/qpos"
PICTURES: Final = "observations/images"
SUFFIXES: Final = (".hdf5", ".h5")
_FOUND: Final = {
    columns.ACTION: "action",
    columns.STATE: QPOS,
    "observation.velocity": "observations/qvel",
    "observation.effort": "observations/effort",
    "extra.base_action": "base_action",
}
"""Feature to where recordings have it."""


def episode_paths(path: Path) -> list[Path]:
    """Return the episodes of a folder in the order of their numbers, or a single file."""
    if path.is_file():
        return [path]
    return sorted((p for p in path.iterdir() if p.suffix in SUFFIXES), key=natural)


def read_aloha(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a folder of ALOHA episodes, or one of them."""
    files = episode_paths(path)
    if not files:
        raise UnusableInputError(f"{path} holds no .hdf5 file. Name the folder of the episodes.")
    parts: dict[str, tuple[str, ...]] = {}
    with open_hdf5(files[0]) as file:
        _require(file, files[0])
        sim = bool(file.attrs.get("sim", False))
        settings.require_units(files[0], " (ALOHA's own recorder: rad, grippers normalised)")
        fps = settings.required_fps(files[0], " (ALOHA's own recorder: 50)")
        vectors: dict[str, list[str]] = {}
        for name, key in _FOUND.items():
            if key in file:
                stored, parts[name] = file[key], (key,)
                width = int(stored.shape[1]) if stored.ndim > 1 else 1
                vectors[name] = named({key.rsplit("/", 1)[-1]: width})
        cameras: dict[str, tuple[str, Sequence[int]]] = {}
        for camera in _cameras(file):
            key = f"{PICTURES}/{camera}"
            first = next(_hdf5_pictures(files[0], key), None)
            if first is None or first.ndim != 3:
                raise UnusableInputError(
                    f"{files[0]}: {key} holds no picture. Fix it, or leave it out."
                )
            cameras[camera] = key, first.shape[:2]
    about = described(fps, settings.robot_type or "aloha", vectors, cameras)

    def episodes() -> Iterator[Recording]:
        for index, path in enumerate(files):
            with open_hdf5(path) as file:
                _require(file, path)
                lacking = any(key not in file for keys in parts.values() for key in keys)
                if lacking or set(_cameras(file)) != set(about.pictures.values()):
                    raise UnusableInputError(
                        f"{path} has other cameras or columns than {files[0].name}. Import it "
                        "alone."
                    )
                domain = Domain.SIM if file.attrs.get("sim", False) else Domain.REAL
                rows, pictures = partial(_hdf5_rows, file), partial(_hdf5_pictures, path)
                origin = f"{path.name} {index}"
                yield foreign_recording(about, settings, parts, rows, pictures, origin, domain)

    notes = () if settings.domain else (f"domain is {'sim' if sim else 'real'}: attribute sim.",)
    return ForeignRecording(about, len(files), episodes, notes)


def _require(file: Any, path: Path) -> None:
    found: list[str] = []
    file.visititems(lambda n, v: found.append(n) if isinstance(v, h5py.Dataset) else None)
    for key in ("action", QPOS):
        if key not in found:
            raise UnusableInputError(
                f"{path} has no /{key}: not ALOHA's layout. It holds "
                f"{', '.join(found[:12]) or 'nothing'}."
            )


def _cameras(file: Any) -> list[str]:
    group = file.get(PICTURES, {})
    return [name for name in group if not name.endswith("_depth")]


# -- HDF5 ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading.

    Raises:
        UnusableInputError: it is damaged, also where that shows only while it is read, or leads
            into other files.
    """
    with reraise_as_damaged(f"{path} can't be read as HDF5", "Restore it from a copy."):
        known = regular_file(path).stat()
        with h5py.File(path, "r") as file:
            _refuse_other_files(path, known.st_ino, known.st_mtime_ns, known.st_size)
            yield file


@functools.lru_cache(maxsize=4096)
def _refuse_other_files(path: Path, *_known: int) -> None:
    """Refuse a file that has HDF5 open others: by links, views, or rows kept beside it."""

    def refuse(what: str) -> None:
        raise UnusableInputError(
            f"{path}: {what}, another file: not opened. Copy its content into this one with: "
            "h5repack, or h5copy."
        )

    with h5py.File(path, "r") as file:
        # Not h5py's `visititems_links`: an error in what it calls ends in a SystemError.
        seen, left = {file.id}, [("/", file)]
        while left:
            at, group = left.pop()
            for name in group:
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    refuse(f"{at}{name} leads to {link.filename!r}")
                if not isinstance(link, h5py.HardLink):
                    continue  # a soft link stays in the file: what it leads to is looked at there
                found = group[name]
                if isinstance(found, h5py.Group) and found.id not in seen:
                    seen.add(found.id)
                    left.append((f"{at}{name}/", found))
                elif isinstance(found, h5py.Dataset):
                    others = [entry[0] for entry in found.external or ()]
                    if found.is_virtual:
                        sources = found.virtual_sources()
                        others += [s.file_name for s in sources if s.file_name != "."]
                    if others:
                        refuse(f"{at}{name} is read from {others[0]!r}")


def _hdf5_rows(group: Any, key: str) -> NDArray[Any]:
    """Return all of a data set of numbers; ValueError where it holds anything else, or too much."""
    stored = group[key]
    if not isinstance(stored, h5py.Dataset) or not stored.ndim or stored.dtype.kind not in "fiub":
        raise ValueError(f"{stored.name} holds no rows of numbers")
    if stored.nbytes > LARGEST_ARRAY:
        raise ValueError(f"{stored.name} declares the shape {stored.shape}")
    return np.asarray(stored[()])


def _hdf5_pictures(path: Path, name: str, swap_red_blue: bool = False) -> Iterator[Image]:
    """Yield the pictures of a data set in order, uint8, shape (height, width, 3).

    It is raw, (n, height, width, 3), or JPEG, (n, bytes) or ragged.
    """
    with open_hdf5(path) as file:
        stored = file[name]
        for k in range(len(stored)):
            if not k and stored.ndim == 4 and math.prod(stored.shape[1:]) > LARGEST_PICTURE:
                raise ValueError(f"{name} declares the shape {stored.shape}")
            row = stored[k]
            if np.ndim(row) == 3:
                picture: Image | None = np.asarray(row)
            else:
                is_bytes = isinstance(row, bytes)
                packed = np.frombuffer(row, np.uint8) if is_bytes else np.asarray(row)
                picture = unpacked(packed.astype(np.uint8).tobytes())
            if picture is None:
                raise UnusableInputError(
                    f"{path}: {name}[{k}] is neither raw pixels nor a JPEG or PNG. Fix it."
                )
            yield picture[..., ::-1] if swap_red_blue else picture


STATE_KEYS: Final = ("state", "agent_pos", "robot_joint", "qpos", "robot_eef_pose")
"""Keys that hold the robot's state in buffers of that project."""
_PICTURES_AT_ONCE: Final = 16


def _buffer_pictures(
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
    """Open a Diffusion Policy replay buffer, a folder or a zip file."""
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
        about, parts, notes = _about(path, root, settings)

    def episodes() -> Iterator[Recording]:
        with open_buffer(path) as root:
            data = root["data"]

            def rows(first: int, last: int, key: str) -> NDArray[Any]:
                return read_rows(data[key], first, last, f"{path}/data/{key}")

            def pictures(first: int, last: int, key: str, swap: bool) -> Iterator[Image]:
                return _buffer_pictures(data[key], first, last, f"{path}/data/{key}", swap)

            for index, span in enumerate(zip([0, *ends], ends, strict=False)):
                shown, origin = partial(pictures, *span), f"{path.name} {index}"
                yield foreign_recording(about, settings, parts, partial(rows, *span), shown, origin)

    return ForeignRecording(about, len(ends), episodes, tuple(notes))


def _about(
    path: Path, root: Any, settings: ImportSettings
) -> tuple[About, Mapping[str, tuple[str, ...]], list[str]]:
    """Return what a buffer holds, by which keys, and notes about what is left out."""
    numbers, pictures, notes = dict[str, Any](), dict[str, Any](), list[str]()
    for name, array in sorted(root["data"].arrays()):
        if array.ndim == 4 and array.shape[3] == 3:
            pictures[name] = array
        elif array.ndim in (1, 2, 3) and array.dtype.kind in "fiub":
            numbers[name] = array
        else:
            notes.append(f"data/{name} ({array.dtype}, shape {array.shape}) is left out.")
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


LAYOUTS: Final[dict[str, tuple[str, Callable[[Path, ImportSettings], ForeignRecording]]]] = {
    "diffusion_policy": (
        "replay buffer of Diffusion Policy, a Zarr v2 folder",
        read_diffusion_policy,
    ),
    "aloha": ("ALOHA, a folder of episode_<i>.hdf5", read_aloha),
}
"""Name to what it is in words, and what opens it.

That raises UnusableInputError where the file is another layout, damaged, or something is missing
that nobody said.
"""


def guess(path: Path) -> str | None:
    """Return the layout that a path's content shows, such as `lerobot`, None where it shows none.

    Raises:
        UnusableInputError: the path doesn't exist, or a link in it leads out.
    """
    if not path.exists():
        raise UnusableInputError(f"{path} not found. Check the path.")
    if path.is_dir():
        refuse_links_out(path)
        if (path / "meta" / "info.json").is_file():
            return "lerobot"
        if (path / "meta").is_dir() and (path / "data").is_dir():
            return _guess_buffer(path)
        episodes = episode_paths(path)
        return _guess_hdf5(episodes[0]) if episodes else None
    if path.suffix in SUFFIXES:
        return _guess_hdf5(path)
    return _guess_buffer(path) if zipfile.is_zipfile(path) else None


def _guess_hdf5(path: Path) -> str | None:
    try:
        with open_hdf5(path) as file:
            return "aloha" if QPOS in file and "action" in file else None
    except UnusableInputError:
        if path.is_file() and h5py.is_hdf5(path):
            raise  # damaged, or it opens other files: that is the answer, not what else it may be
        return None


def _guess_buffer(path: Path) -> str | None:
    try:
        with open_buffer(path):
            return "diffusion_policy"
    except UnusableInputError:
        return None
