"""Repair: a folder of links to work in, and the folder before kept beside the new one."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gaploop.core.files import sync_folder
from gaploop.datasets import staging

type Link = Callable[[Path, Path], Any]

LINKED: Final = (".mp4", ".parquet", ".zip", ".png", ".jpg")
"""Files that may be large and are only ever replaced; others are copied."""


KEPT: Final = ".damaged-"
PART: Final = "damaged"


def kept_copies(root: Path) -> list[Path]:
    """Return the folders that repairs of a dataset kept beside it, also one that a kill cut off."""
    numbered = sorted(root.parent.glob(f"{glob.escape(root.name)}{KEPT}[0-9]*"))
    return [p for p in (*numbered, staging.beside(root, PART)) if p.is_dir() and not p.is_symlink()]


def keep(root: Path, hook: staging.Hook) -> Path:
    """Keep the folder as it is under a name beside it, whole or not at all."""
    number = 1
    while (kept := root.parent / f"{root.name}{KEPT}{number}").exists():
        number += 1
    part = staging.beside(root, PART)
    shutil.rmtree(part, ignore_errors=True)
    clone(root, part)
    staging.sync_tree(part)
    hook("copied")
    os.rename(part, kept)
    sync_folder(root.parent)
    hook("kept")
    return kept


def clone(root: Path, stage: Path, link: Link | None = None) -> None:
    """Make a folder of links to big files and copies of small ones; other things are left out.

    Args:
        root: what is cloned.
        stage: the new folder; what was there is deleted.
        link: makes a link; a hard link, or a copy where there can't be one, unless given.
    """
    shutil.rmtree(stage, ignore_errors=True)
    seen: set[Path] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        if Path(folder).resolve() in seen:  # a link that leads back
            names.clear()
            continue
        seen.add(Path(folder).resolve())
        here = stage / Path(folder).relative_to(root)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            source = Path(folder, name)
            if not source.is_file():
                continue  # a pipe, a socket, a link to nothing
            if source.suffix in LINKED:
                (link or staging.link)(source.resolve(), here / name)
            else:
                shutil.copy2(source, here / name)
