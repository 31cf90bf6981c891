"""The layouts by name: which there are, which one a path holds, writing and reading them."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import h5py

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder
from gaploop.core.paths import refuse_links_out
from gaploop.datasets import staging
from gaploop.datasets.formats.aloha import QPOS, SUFFIXES, episode_paths, read_aloha, write_aloha
from gaploop.datasets.formats.dataset import open_dataset
from gaploop.datasets.formats.hdf5 import open_hdf5
from gaploop.datasets.formats.lerobot_v2 import write_v21
from gaploop.datasets.formats.mcap import read_mcap
from gaploop.datasets.formats.model import Advance, ForeignRecording, ImportSettings, Outgoing
from gaploop.datasets.formats.replay_buffer import (
    open_buffer,
    read_diffusion_policy,
    read_umi,
    write_diffusion_policy,
)
from gaploop.datasets.formats.robomimic import read_robomimic

type Write = Callable[[Outgoing, Path, Advance], None]


@dataclass(frozen=True)
class Layout:
    """One foreign layout.

    Attributes:
        label: what it is, in words.
        read: opens it; None where it comes in as a LeRobot dataset. UnusableInputError: it is
            another layout, damaged, or something is missing that nobody said.
        write: writes it; None where gaploop only reads it. UnusableInputError: it can't hold the
            dataset.
        ending: what its output's name ends with; "" for a folder of any name.
    """

    label: str
    read: Callable[[Path, ImportSettings], ForeignRecording] | None
    write: Write | None = None
    ending: str = ""


LAYOUTS: Final[dict[str, Layout]] = {
    "diffusion_policy": Layout(
        "replay buffer of Diffusion Policy, a Zarr v2 folder",
        read_diffusion_policy,
        write_diffusion_policy,
        ".zarr",
    ),
    "umi": Layout("replay buffer of UMI, .zarr.zip", read_umi),
    "aloha": Layout("ALOHA, a folder of episode_<i>.hdf5", read_aloha, write_aloha),
    "robomimic": Layout("robomimic, one .hdf5", read_robomimic),
    "lerobot_v21": Layout("LeRobot v2.1, a folder", None, write_v21),
    "mcap": Layout("ROS 2 recordings, .mcap files", read_mcap),
}
WRITTEN: Final = tuple(name for name, one in LAYOUTS.items() if one.write is not None)


def export_dataset(
    root: Path,
    name: str,
    output: Path,
    *,
    episodes: Sequence[int] | None = None,
    advance: Advance = lambda: None,
) -> Outgoing:
    """Export a dataset; the output's name appears only when it is whole.

    Args:
        name: one of `WRITTEN`.

    Raises:
        UnusableInputError: an unknown layout, an output that exists or is being written by another
            process, a dataset that can't be written that way, or a consent that is missing or
            withdrawn meanwhile. Nothing is left at the output then.
    """
    if name not in WRITTEN:
        raise unknown_choice("format", name, WRITTEN, "--to")
    write = LAYOUTS[name].write
    assert write is not None
    _check_output(root, output, LAYOUTS[name].ending)
    whole_only = name == "lerobot_v21"
    out = open_dataset(root, output, episodes, whole_only=whole_only)
    part = output.parent / f".{output.name}.part"
    with staging.locked(output.absolute(), "--output_dir"):
        try:
            _check_output(root, output, LAYOUTS[name].ending)  # who held the lock may have made it
            _remove(part)
            write(out, part, advance)
            out.check()
            os.replace(part, output)
            platform_calls.sync_path(output.parent)
        except OSError as error:
            reason = error.strerror or error
            raise UnusableInputError(f"{output} can't be written ({reason}). Make room.") from None
        finally:
            _remove(part)
            # While it is held: filelock tries anew where the file that it locked is gone.
            staging.sibling(output.absolute(), "lock").unlink(missing_ok=True)
    return out


def _check_output(root: Path, output: Path, ending: str) -> None:
    if output.exists():
        raise UnusableInputError(f"{output} exists. Name another with --output_dir, or remove it.")
    if ending and not output.name.endswith(ending):
        raise UnusableInputError(
            f"{output}: readers of this layout expect a name that ends with {ending}. "
            f"Use --output_dir={output}{ending}"
        )
    if output.absolute().is_relative_to(root.absolute()):
        raise UnusableInputError(
            f"{output} lies inside the dataset. Name another with --output_dir."
        )
    writable_folder(output.absolute().parent, "Folder of the output", "--output_dir")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
        found = {p.suffix for p in path.iterdir()}
        if ".mcap" in found and not found & set(SUFFIXES):
            return "mcap"
        if found & set(SUFFIXES) and ".mcap" not in found:
            return "aloha" if _guess_hdf5(episode_paths(path)[0]) == "aloha" else None
        return None
    if path.suffix == ".mcap":
        return "mcap"
    if path.suffix in SUFFIXES:
        return _guess_hdf5(path)
    return _guess_buffer(path) if zipfile.is_zipfile(path) else None


def _guess_hdf5(path: Path) -> str | None:
    try:
        with open_hdf5(path) as file:
            if QPOS in file and "action" in file:
                return "aloha"
            demos = file.get("data")
            known = isinstance(demos, h5py.Group) and any(n.startswith("demo_") for n in demos)
            return "robomimic" if known else None
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
