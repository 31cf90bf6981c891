"""Episodes out of a dataset, for good: no byte of them is left in its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from gaploop.core.files import parse_json
from gaploop.datasets import layout, staging
from gaploop.datasets.edit.actions import EditPlan, EditRules, carry_out
from gaploop.datasets.edit.pieces import DatasetPiece
from gaploop.datasets.layout import EpisodeRow


def delete_takes(
    root: Path,
    unwanted: Callable[[EpisodeRow], bool],
    *,
    hook: staging.Hook = staging.no_hook,
) -> tuple[str, ...]:
    """Delete episodes from the dataset at `root`, and return their uids.

    Pictures that can't be cut out of a video without decoding are encoded again: that the takes
    go matters more here. Where none is left the dataset's folder goes: LeRobot knows no empty
    dataset. Killed at any instant, the dataset is the old one or the new one.

    Args:
        root: dataset folder.
        unwanted: says which episodes go.
        hook: called with the name of each step.

    Raises:
        UnusableInputError: no dataset there, a damaged file, or another process is writing it.
    """
    root = Path(root).resolve()
    with staging.locked(root):
        staging.recover(root)
        info = layout.read_info(root)
        episodes = tuple(layout.read_episodes(info))
        gone = tuple(e.info.uid for e in episodes if unwanted(e))
        kept = frozenset(e.index for e in episodes if not unwanted(e))
        if gone and not kept:
            stage = staging.beside(root, "staging")
            os.rename(root, stage)  # a kill from here on: `recover` deletes it
            shutil.rmtree(stage)
        elif gone:
            plan = EditPlan("edit delete", {"": (DatasetPiece(info, episodes, kept),)})
            carry_out(plan, None, EditRules(reencode=True, hook=hook))
    return gone


def is_about(line: str, uids: Collection[str]) -> bool:
    """Say whether a line of JSON is about one of these takes; a torn line is about none."""
    try:
        value = parse_json(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("uid") in uids
