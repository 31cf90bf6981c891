"""Runs that were made from some takes, found by their `run.json`: trainings, and what shows them.

A run is looked for where the consent register has noted it, beside the datasets, and where the
caller says. A policy that was trained on from another is found by that one's id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.run_record import RUN
from gaploop.datasets import lineage

RUN_DEPTH: Final = 3
"""How many folders below a dataset's parent its training runs are looked for."""
TRAININGS: Final = ("finetune", "pretrain", "train")
PAGE: Final = "report.html"
"""The only file of an analysis with pictures of takes in it."""
TEXTS: Final = (".json", ".jsonl", ".csv", ".yaml", ".html")


@dataclass(frozen=True)
class RunOfTakes:
    """A run that some of the takes went into.

    Attributes:
        takes: how many of them; 1 where the run names only the dataset's folder, 0 where a policy
            that it started from learned from them.
        policies: ids of the policies that came of it; empty for an analysis.
        is_training: a policy learned from the takes; otherwise an analysis shows them.
    """

    folder: str
    id: str
    command: str
    takes: int
    policies: tuple[str, ...] = ()
    is_training: bool = True


def runs_of(
    uids: Collection[str], roots: Sequence[Path], folders: Sequence[Path], noted: Sequence[Path]
) -> Iterator[RunOfTakes]:
    """Yield the runs whose inputs name one of the takes; by folder where they list no takes.

    Args:
        uids: the takes.
        roots: datasets and journals that hold them; runs are looked for beside these.
        folders: further folders to look in, however deep.
        noted: folders of runs that the register knows.
    """
    paths = {path for folder in folders for path in folder.rglob(RUN)}
    paths.update(folder / RUN for folder in noted)
    for root in roots:
        for depth in range(RUN_DEPTH + 1):
            paths.update(root.parent.glob("*/" * depth + RUN))
    names = {str(root.resolve()) for root in roots}
    later = list[tuple[RunOfTakes, str]]()
    known = set[str]()
    for path in sorted(paths):
        try:
            run, base = _read(path, uids, names)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not one of ours
        if run.takes:
            known.update(run.policies)
            yield run
        else:
            later.append((run, base))
    while found := [(run, base) for run, base in later if base in known]:
        later = [entry for entry in later if entry not in found]
        for run, _ in found:
            known.update(run.policies)
            yield run


def _read(path: Path, uids: Collection[str], names: set[str]) -> tuple[RunOfTakes, str]:
    value = json.loads(path.read_text())
    if value.get("schema") == lineage.SCHEMA:
        raise ValueError("a dataset's own, which is cleared as a dataset")
    used = sum(_used(entry, uids, names, path.parent) for entry in value["inputs"])
    command, result = str(value.get("command", "")), value.get("result") or {}
    is_training = command in TRAININGS or "policy" in result
    policies = {str(result.get(k) or "") for k in ("policy", "merged")}
    policies |= {str(policy) for policy in result.get("policies", ())}
    if not used and not is_training:  # `plan` writes its run.json over that of the diagnosis
        used = _named_beside(path.parent, uids)
    run = RunOfTakes(str(path.parent), str(value.get("id", "")), command, used)
    run = replace(run, policies=tuple(sorted(policies - {""})), is_training=is_training)
    return run, str((value.get("lineage") or {}).get("base") or "-")


def _used(entry: Mapping[str, Any], uids: Collection[str], names: set[str], folder: Path) -> int:
    if "uids" in entry:
        return len(set(entry["uids"]) & set(uids))
    if not entry.get("root"):
        return 0
    root = Path(str(entry["root"]))
    candidates = (root, folder / root)
    return int(bool(uids) and any(str(c.resolve()) in names for c in candidates))


def _named_beside(folder: Path, uids: Collection[str]) -> int:
    """Return how many of the takes the results of an analysis name."""
    texts = [p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix in TEXTS and p.is_file()]
    return sum(any(uid.encode() in text for text in texts) for uid in uids)


def clear_pages(run: RunOfTakes, *, remove: bool) -> list[str]:
    """Delete an analysis's page, which shows pictures of takes; return what is, or would be."""
    page = Path(run.folder) / PAGE
    if run.is_training or page.is_symlink() or not page.is_file():
        return []
    if remove:
        page.unlink()
    return [str(page)]
