"""What the two HDF5 layouts share: opening, pictures, and what gaploop carries along."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import h5py
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.datasets.formats.carried import NAME, Carried, read_carried
from gaploop.datasets.formats.model import Recording

TELEMETRY: Final = "telemetry"
"""Group at the top of a file: uid to the bytes of a take's control-rate record."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading.

    Raises:
        UnusableInputError: it is missing or damaged, or takes its content from other files.
    """
    try:
        with h5py.File(path, "r") as file:
            refuse_other_files(file, path)
            yield file
    except OSError as error:
        reason = " ".join(str(error).split())[:160]
        raise UnusableInputError(
            f"{path} can't be read as HDF5 ({reason}). Restore it from a copy."
        ) from None


def refuse_other_files(file: Any, path: Path) -> None:
    """Refuse a file that has HDF5 open others: by links, views, or rows kept beside it.

    Raises:
        UnusableInputError: it does; which it would open.
    """
    state = path.stat()
    if other := _other_file(file, (str(path), state.st_ino, state.st_size, state.st_mtime_ns)):
        raise UnusableInputError(
            f"{path}: {other}, another file: not opened. Copy its content into this one first."
        )


_LOOKED_AT: dict[tuple[str, int, int, int], str] = {}
"""Files that were looked at already: they are opened once for every episode."""


def _other_file(file: Any, key: tuple[str, int, int, int]) -> str:
    if key not in _LOOKED_AT:
        _LOOKED_AT[key] = next(_other_files(file), "")
    return _LOOKED_AT[key]


def _other_files(file: Any) -> Iterator[str]:
    seen, left = {file.id}, [("/", file)]
    while left:
        at, group = left.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield f"{at}{name} leads to {link.filename!r}"
            if not isinstance(link, h5py.HardLink):
                continue  # a soft link stays in the file: what it leads to is looked at there
            found = group[name]
            if isinstance(found, h5py.Group) and found.id not in seen:
                seen.add(found.id)
                left.append((f"{at}{name}/", found))
            elif isinstance(found, h5py.Dataset):
                others = [entry[0] for entry in found.external or ()]
                if found.is_virtual:
                    others += [s.file_name for s in found.virtual_sources() if s.file_name != "."]
                if others:
                    yield f"{at}{name} is read from {others[0]!r}"


def carried_in(file: Any, path: Path) -> Carried | None:
    """Return what gaploop noted in a file that it exported; None in any other."""
    if NAME not in file:
        return None
    try:
        value = json.loads(file[NAME].asstr()[()])
    except (json.JSONDecodeError, TypeError) as error:
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
    return np.asarray(file[name][()]).tobytes() if name in file else None


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
                picture = self._picture(stored[k], k)
                yield picture[..., ::-1] if self.swap_red_blue else picture

    def _picture(self, row: Any, k: int) -> Image:
        if np.ndim(row) == 3:
            return np.asarray(row)
        packed = np.frombuffer(row, np.uint8) if isinstance(row, bytes) else np.asarray(row)
        picture = cv2.imdecode(packed.astype(np.uint8).reshape(-1), cv2.IMREAD_COLOR)
        if picture is None:
            raise UnusableInputError(
                f"{self.path}: {self.name}[{k}] is neither raw pixels nor a JPEG or PNG. Mend it."
            )
        return np.asarray(picture)

    def size(self) -> tuple[int, int]:
        """Return height and width [pixels], from the first picture."""
        height, width, _ = next(self()).shape
        return int(height), int(width)
