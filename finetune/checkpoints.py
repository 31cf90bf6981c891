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

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import sync_folder

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint.pt"
PREVIOUS: Final = "checkpoint.previous.pt"
PARTS: Final = frozenset({"spec", "step", "weights", "optimizer"})
"""What tells a checkpoint from another file of PyTorch's."""
_DAMAGED: Final = (
    RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError,
    pickle.UnpicklingError,
)  # fmt: skip


def write_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; a kill leaves it, or the one before, and never a part."""
    part, path = folder / f"{CHECKPOINT}.part", folder / CHECKPOINT
    try:
        with part.open("wb") as stream:
            torch.save(dict(state), stream)
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, RuntimeError) as error:  # PyTorch says "unexpected pos" of a full disk
        part.unlink(missing_ok=True)
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:120]
        raise UnusableInputError(
            f"{path} can't be written ({reason}); is the disk full? The checkpoint before is kept: "
            "make room and go on with --resume."
        ) from None
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
            if isinstance(state, dict) and state.keys() >= PARTS:
                return state
        except _DAMAGED as error:
            if is_out_of_memory(error):
                raise
        if path.exists():  # where several processes look, another may have been first
            # Out of the way: the next checkpoint would put it in the place of the good one before.
            log.warning("%s is damaged and left aside as %s.damaged.", path, name)
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, path.with_name(f"{name}.damaged"))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory ran out, on a GPU (PyTorch has a class for it) or off it (it has none)."""
    says = ("out of memory", "not enough memory", "can't allocate memory")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(word in str(error).lower() for word in says)
