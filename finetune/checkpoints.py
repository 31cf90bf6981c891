"""Checkpoints of a training: whole or not at all, with the one before kept."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from gaploop.core.files import sync_folder

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint.pt"
PREVIOUS: Final = "checkpoint.previous.pt"


def write_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; a kill leaves it, or the one before, and never a part."""
    part, path = folder / f"{CHECKPOINT}.part", folder / CHECKPOINT
    with part.open("wb") as stream:
        torch.save(dict(state), stream)
        stream.flush()
        os.fsync(stream.fileno())
    if path.exists():
        os.replace(path, folder / PREVIOUS)
    os.replace(part, path)
    sync_folder(folder)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read; None where there is none."""
    for name in (CHECKPOINT, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            return state
        except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError):
            # Out of the way: the next checkpoint would put it in the place of the good one before.
            log.warning("%s is damaged and left aside as %s.damaged.", path, name)
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.replace(path, path.with_name(f"{name}.damaged"))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory ran out, on a GPU (PyTorch has a class for it) or off it (it has none)."""
    says = ("out of memory", "not enough memory", "can't allocate memory")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(word in str(error).lower() for word in says)
