"""Labels that are given while a dataset is being changed: they reach the new version of it.

A change (publishing, an edit) works on a copy for minutes; then the two folders trade names. A
label goes to the old folder's file at once, under that file's lock, so that nobody waits. Who
trades the names holds the lock meanwhile and first takes over what the copy lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gaploop.core import labels
from gaploop.core.files import locked_stream
from gaploop.datasets import episodes_table, layout


@contextlib.contextmanager
def carried_over(root: Path, staging: Path) -> Iterator[None]:
    """Take over to `staging` the labels that only `root` has; none are added within the block.

    Labels of takes that `staging` doesn't hold stay behind: they were deleted.

    Args:
        root: the dataset as it is, whose lock is held.
        staging: what is to take its place.
    """
    path = root / layout.LABELS
    try:  # the first label of all is only given with the dataset's lock held
        held = contextlib.ExitStack()
        held.enter_context(locked_stream(path, create=False))
    except FileNotFoundError:
        yield
        return
    with held:
        _take_over(path, staging)
        yield


def _take_over(path: Path, staging: Path) -> None:
    have = {event.to_line() for event in labels.readable(staging / layout.LABELS)}
    late = [event for event in labels.readable(path) if event.to_line() not in have]
    uids = episodes_table.uids(staging) if late else set()
    late = [event for event in late if event.uid in uids]
    if late:
        target = staging / layout.LABELS
        target.parent.mkdir(parents=True, exist_ok=True)
        labels.append(target, *late)
        episodes_table.materialise(staging, {}, {event.uid for event in late})
