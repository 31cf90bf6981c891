"""Runs that learned from some takes, found by what their `run.json` says went in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RUN: Final = "run.json"
RUN_DEPTH: Final = 3
"""How many folders below a dataset's parent its training runs are looked for."""


@dataclass(frozen=True)
class TrainedRun:
    """A run whose `run.json` names some of the takes among its inputs.

    Attributes:
        takes: how many of them; 1 where the run names only the dataset's folder.
    """

    folder: str
    id: str
    command: str
    takes: int


def trained_on(
    uids: Collection[str], roots: Sequence[Path], runs: Sequence[Path]
) -> Iterator[TrainedRun]:
    """Yield the runs whose inputs name one of the takes; by folder where they list no takes.

    Args:
        uids: the takes.
        roots: datasets that hold them; runs are looked for beside these.
        runs: further folders to look in, however deep.
    """
    paths = {path for folder in runs for path in folder.rglob(RUN)}
    for root in roots:
        for depth in range(RUN_DEPTH + 1):
            paths.update(root.parent.glob("*/" * depth + RUN))
    names = {str(root.resolve()) for root in roots}
    for path in sorted(paths):
        try:
            run = json.loads(path.read_text())
            used = sum(_used(entry, uids, names, path.parent) for entry in run["inputs"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not one of ours
        if used:
            yield TrainedRun(
                str(path.parent), str(run.get("id", "")), str(run.get("command", "")), used
            )


def _used(entry: dict[str, Any], uids: Collection[str], names: set[str], folder: Path) -> int:
    if "uids" in entry:
        return len(set(entry["uids"]) & set(uids))
    if not entry.get("root"):
        return 0
    root = Path(str(entry["root"]))
    candidates = (root, folder / root)
    return int(bool(uids) and any(str(c.resolve()) in names for c in candidates))
