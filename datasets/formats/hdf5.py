"""What the two HDF5 layouts share: opening, pictures, and what gaploop carries along."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, regular_file
from gaploop.core.types import Image
from gaploop.datasets.formats.carried import NAME, Carried, read_carried
from gaploop.datasets.formats.foreign import LARGEST_PICTURE, unpacked
from gaploop.datasets.formats.model import Recording
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY

TELEMETRY: Final = "telemetry"
"""Group at the top of a file: uid to the bytes of a take's control-rate record."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading.

    Raises:
        UnusableInputError: it is missing, damaged or leads into other files; also where that shows
            only while it is read.
    """
    try:
        known = regular_file(path).stat()
        with h5py.File(path, "r") as file:
            _refuse_links_out(path, known.st_ino, known.st_mtime_ns, known.st_size)
            yield file
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UnusableInputError(
            f"{path} can't be read as HDF5 ({reason}). Restore it from a copy."
        ) from None


@functools.lru_cache(maxsize=4096)
def _refuse_links_out(path: Path, *_known: int) -> None:
    """Refuse links, views and raw data that lie in other files: HDF5 follows them unasked."""
    todo = [h5py.File(path, "r")]
    with todo[0]:
        while todo:
            group = todo.pop()
            for name in group:
                kind = group.get(name, getlink=True)
                if isinstance(kind, h5py.ExternalLink):
                    raise _leads_out(path, group.name, name)
                if not isinstance(kind, h5py.HardLink):
                    continue
                entry = group[name]
                if isinstance(entry, h5py.Group):
                    todo.append(entry)
                elif isinstance(entry, h5py.Dataset) and (
                    entry.external
                    or (entry.is_virtual and any(s[1] != "." for s in entry.virtual_sources()))
                ):
                    raise _leads_out(path, group.name, name)


def _leads_out(path: Path, group: str, name: str) -> UnusableInputError:
    return UnusableInputError(
        f"{path}: {group.rstrip('/')}/{name} lies in another file: not followed. Copy it in with: "
        "h5repack, or h5copy."
    )


def rows_in(stored: Any) -> NDArray[Any]:
    """Return all of a data set of numbers.

    Raises:
        ValueError: it holds something else, or more than anybody records in one episode.
    """
    if not isinstance(stored, h5py.Dataset) or not stored.ndim or stored.dtype.kind not in "fiub":
        raise ValueError(f"{getattr(stored, 'name', stored)} holds no rows of numbers")
    if stored.nbytes > LARGEST_ARRAY:
        raise ValueError(f"{stored.name} is said to be of shape {stored.shape}")
    return np.asarray(stored[()])


def carried_in(file: Any, path: Path) -> Carried | None:
    """Return what gaploop noted in a file that it exported; None in any other."""
    if NAME not in file:
        return None
    try:
        value = parse_json(file[NAME].asstr()[()])
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path}: what gaploop noted in it is damaged ({error}). Export it again."
        ) from None
    return read_carried(value, path)


def keep_carried(file: Any, value: Any) -> None:
    """Note what comes along as one string at the top of the file: attributes end at 64 KiB."""
    file[NAME] = json.dumps(value)


def keep_telemetry(file: Any, episode: Recording) -> None:
    """Keep a take's control-rate record in the file."""
    if episode.telemetry is not None:
        content = np.frombuffer(episode.telemetry, dtype=np.uint8)
        file.create_dataset(f"{TELEMETRY}/{episode.uid}", data=content)


def telemetry_of(file: Any, uid: str) -> bytes | None:
    """Return what `keep_telemetry` kept."""
    name = f"{TELEMETRY}/{uid}"
    return rows_in(file[name]).tobytes() if name in file else None


def new_pictures(group: Any, name: str, frames: int, size: tuple[int, int]) -> Any:
    """Return a new data set of raw pictures, one picture a chunk, as ALOHA's recorder makes it."""
    shape = (frames, *size, 3)
    return group.create_dataset(name, shape, dtype="uint8", chunks=(1, *size, 3))


def next_rows(stored: Any) -> Any:
    """Return a view of a data set one row on, its last row twice; it costs no space."""
    view = h5py.VirtualLayout(stored.shape, stored.dtype)
    # "." is the file itself, so that it can be renamed and copied.
    here = h5py.VirtualSource(".", stored.name, stored.shape, stored.dtype)
    n = stored.shape[0]
    if n > 1:
        view[: n - 1] = here[1:]
    view[n - 1] = here[n - 1]
    return view


@dataclass(frozen=True)
class Hdf5Pictures:
    """Pictures of one HDF5 data set: raw (n, height, width, 3), or JPEG, (n, bytes) or ragged."""

    path: Path
    name: str
    swap_red_blue: bool = False

    def __call__(self) -> Iterator[Image]:
        """Yield the pictures in order, uint8, shape (height, width, 3).

        Raises:
            UnusableInputError: one can't be decoded.
        """
        with open_hdf5(self.path) as file:
            stored = file[self.name]
            for k in range(len(stored)):
                if not k and stored.ndim == 4 and math.prod(stored.shape[1:]) > LARGEST_PICTURE:
                    raise ValueError(f"{self.name} is said to be of shape {stored.shape}")
                picture = self._picture(stored[k], k)
                yield picture[..., ::-1] if self.swap_red_blue else picture

    def _picture(self, row: Any, k: int) -> Image:
        if np.ndim(row) == 3:
            return np.asarray(row)
        packed = np.frombuffer(row, np.uint8) if isinstance(row, bytes) else np.asarray(row)
        picture = unpacked(packed.astype(np.uint8).tobytes())
        if picture is None:
            raise UnusableInputError(
                f"{self.path}: {self.name}[{k}] is neither raw pixels nor a JPEG or PNG. Mend it."
            )
        return picture

    def size(self) -> tuple[int, int]:
        """Return height and width [pixels], from the first picture."""
        height, width, _ = next(self()).shape
        return int(height), int(width)
