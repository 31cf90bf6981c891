"""ALOHA's layout: one `episode_<i>.hdf5` per episode.

As tonyzhaozh/act and MarkFzp/act-plus-plus read it (`utils.py`, `EpisodicDataset`): `/action`,
`/observations/qpos`, `/observations/qvel`, `/observations/images/<camera>`, attribute `sim`; with
attribute `compress`, pictures are JPEG, padded to equal length, and `/compress_len` (cameras,
frames) has their lengths. Those projects hand RGB to cv2.imencode and take what cv2.imdecode
returns as RGB, so that is done here, too.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import regular_file
from gaploop.core.messages import Image
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns
from gaploop.datasets.formats.foreign import (
    LARGEST_PICTURE,
    ForeignRecording,
    ImportSettings,
    Recording,
    described,
    foreign_recording,
    named,
    natural,
    unpacked,
)
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY

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
            first = next(pictures_in(files[0], key), None)
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
                rows, pictures = partial(rows_of, file), partial(pictures_in, path)
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


def rows_of(group: Any, key: str) -> NDArray[Any]:
    """Return all of a data set of numbers; ValueError where it holds anything else, or too much."""
    stored = group[key]
    if not isinstance(stored, h5py.Dataset) or not stored.ndim or stored.dtype.kind not in "fiub":
        raise ValueError(f"{stored.name} holds no rows of numbers")
    if stored.nbytes > LARGEST_ARRAY:
        raise ValueError(f"{stored.name} declares the shape {stored.shape}")
    return np.asarray(stored[()])


def pictures_in(path: Path, name: str, swap_red_blue: bool = False) -> Iterator[Image]:
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
