"""What the two HDF5 layouts share: opening, pictures, and what gaploop carries along."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json, regular_file
from gaploop.core.messages import Image
from gaploop.datasets.formats.foreign import LARGEST_PICTURE, unpacked
from gaploop.datasets.formats.model import NAME, About, Carried, Recording, read_carried
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.telemetry_zarr import LARGEST_ARRAY

TELEMETRY: Final = "telemetry"
"""Group at the top of a file: uid to the bytes of a take's control-rate record."""


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


class _Hdf5File(io.RawIOBase):
    """A file to HDF5, also once the disk is full.

    HDF5 keeps what it couldn't write and tries again whenever an object is closed; where that
    fails, it ends the process with a segmentation fault. So from the first failure on what it
    writes is kept here, for it to read again, and the failure is told to whoever asks.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0
        self._lost: list[tuple[int, bytes]] = []
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        held = os.fstat(self._file.fileno()).st_size
        end = max([held, *(at + len(data) for at, data in self._lost)])
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: end}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read what was written, in the file or not; nothing is zeros."""
        view = memoryview(buffer).cast("B")
        view[:] = bytes(len(view))
        self._file.seek(self._at)
        held = self._file.read(len(view))
        view[: len(held)] = held
        for at, data in self._lost:
            first, last = max(at, self._at), min(at + len(data), self._at + len(view))
            if first < last:
                view[first - self._at : last - self._at] = data[first - at : last - at]
        self._at += len(view)
        return len(view)

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        try:
            if self.error is None:
                self._file.seek(self._at)
                if self._file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.error = error
        if self.error is not None:
            self._lost.append((self._at, content))
        self._at += len(content)
        return len(content)

    def truncate(self, size: int | None = None, /) -> int:
        size = self._at if size is None else size
        try:
            if self.error is None:
                self._file.truncate(size)
        except OSError as error:
            self.error = error
        return size

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


type Written = Callable[[], None]
"""Raises OSError where what was written isn't on the disk; asked after each larger part."""


@contextlib.contextmanager
def new_hdf5(path: Path, **options: Any) -> Iterator[tuple[Any, Written]]:
    """Write a new HDF5 file, with h5py's `options`; OSError where it can't be written."""
    with path.open("xb+", buffering=0) as stream:
        kept = _Hdf5File(stream)

        def written() -> None:
            if kept.error is not None:
                raise kept.error

        with h5py.File(kept, "w", **options) as file:
            yield file, written
            file.flush()
            written()


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


def carried_in(file: Any, path: Path) -> Carried | None:
    """Return what gaploop noted in a file that it exported; None in any other."""
    if NAME not in file:
        return None
    with reraise_as_damaged(f"{path}: what gaploop noted in it is damaged", "Export it again."):
        value = parse_json(file[NAME].asstr()[()])
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
    return rows_of(file, name).tobytes() if name in file else None


def write_pictures(
    group: Any, about: About, keys: Mapping[str, str], episode: Recording, written: Written
) -> None:
    """Write an episode's raw pictures, one a chunk, as ALOHA's recorder makes them."""
    for name, images in episode.pictures.items():
        shape = (*about.size(name), 3)
        stored = group.create_dataset(
            keys[name], (episode.length, *shape), dtype="uint8", chunks=(1, *shape)
        )
        for k, picture in enumerate(images()):
            stored[k] = picture
            written()


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
