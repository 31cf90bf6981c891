"""The foreign layouts by name: which there are, and which one a path holds."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import h5py

from gaploop.core.errors import UnusableInputError
from gaploop.core.paths import refuse_links_out
from gaploop.datasets.formats.aloha import QPOS, SUFFIXES, episode_paths, open_hdf5, read_aloha
from gaploop.datasets.formats.foreign import ForeignRecording, ImportSettings
from gaploop.datasets.formats.replay_buffer import open_buffer, read_diffusion_policy, read_umi

LAYOUTS: Final[dict[str, tuple[str, Callable[[Path, ImportSettings], ForeignRecording]]]] = {
    "diffusion_policy": (
        "replay buffer of Diffusion Policy, a Zarr v2 folder",
        read_diffusion_policy,
    ),
    "umi": ("replay buffer of UMI, .zarr.zip", read_umi),
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
        with open_buffer(path) as root:
            return "umi" if "robot0_eef_pos" in root["data"] else "diffusion_policy"
    except UnusableInputError:
        return None
