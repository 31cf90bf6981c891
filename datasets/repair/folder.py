"""Repair: the folder before, kept beside the new one."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path
from typing import Final

from gaploop.core import platform_calls
from gaploop.datasets import staging

KEPT: Final = ".damaged-"
PART: Final = "damaged"


def kept_copies(root: Path) -> list[Path]:
    """Return the folders that repairs of a dataset kept beside it, also one that a kill cut off."""
    numbered = sorted(root.parent.glob(f"{glob.escape(root.name)}{KEPT}[0-9]*"))
    return [
        p for p in (*numbered, staging.sibling(root, PART)) if p.is_dir() and not p.is_symlink()
    ]


def keep(root: Path, hook: staging.Hook) -> Path:
    """Keep the folder as it is under a name beside it, whole or not at all."""
    number = 1
    while (kept := root.parent / f"{root.name}{KEPT}{number}").exists():
        number += 1
    part = staging.sibling(root, PART)
    shutil.rmtree(part, ignore_errors=True)
    staging.clone(root, part, follow=True)
    staging.sync_tree(part)
    hook("copied")
    os.rename(part, kept)
    platform_calls.sync_path(root.parent)
    hook("kept")
    return kept
