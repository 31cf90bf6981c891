"""What was made of takes, so that a withdrawn consent reaches it: copies, and runs that used them.

Copies are made by gaploop itself: frame caches, tables that LeRobot's loader keeps, what
`check --fix` kept, and videos that a killed review left. Runs are found by their `run.json`, where
the register has noted them, beside the datasets, and where the caller says.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from gaploop.core.errors import UnusableInputError
from gaploop.core.run_record import RUN, read_run
from gaploop.core.take import TakeInfo
from gaploop.datasets import columns, layout, lineage
from gaploop.datasets.cache.folder import remove_cache

REVIEWS: Final = "gaploop_review_"
_LOCK: Final = "lock"


def clear_cache(path: Path) -> str:
    """Remove a frame cache; return why it couldn't be, or ""."""
    try:
        is_gone = remove_cache(path)
    except OSError as error:
        return f"a frame cache that can't be removed ({error.strerror}): delete it"
    return "" if is_gone else "a frame cache in use: end the training, then run this again"


def may_hold(root: Path, uids: Collection[str], is_theirs: Callable[[TakeInfo], bool]) -> bool:
    """Say whether a damaged dataset holds takes; True where its tables can't be read to the end."""
    hashes = {columns.take_hash(uid) for uid in uids}
    try:
        if any(is_theirs(e.info) for e in layout.read_episodes(layout.read_info(root))):
            return True
        for path in sorted(root.glob("data/**/*.parquet")):
            held = pq.read_table(path, columns=[columns.TAKE])[columns.TAKE]
            if hashes & set(held.unique().to_pylist()):
                return True
        texts = [p.read_bytes() for p in (root / "meta" / "gap").glob("*") if p.is_file()]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, UnusableInputError):
        return True
    names = {p.name.partition(".")[0] for p in (root / "telemetry").glob("*")}
    return any(uid in names or any(uid.encode() in t for t in texts) for uid in uids)


def lerobot_tables(uids: Collection[str]) -> list[Path]:
    """Return folders in which LeRobot's loader keeps tables with some takes in them.

    Hugging Face's `datasets` writes every Parquet file that it reads once more, as Arrow, with
    pictures that stand in the tables. What is deleted there is made anew when it is needed.
    """
    needles = [u.encode() for u in uids]
    needles += [columns.take_hash(u).to_bytes(8, "little") for u in uids]
    found = dict[Path, None]()
    # Hugging Face's folder for tables, by its own rules (datasets.config).
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    tables = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    for path in sorted(tables.glob("parquet/*/*/*/*.arrow")):
        with (
            contextlib.suppress(OSError, ValueError),  # an empty one, or one that has just gone
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if any(content.find(needle) >= 0 for needle in needles):
                found[path.parent] = None
    return list(found)


@contextlib.contextmanager
def review_folder() -> Iterator[Path]:
    """Yield a folder for a review's videos, which goes with the review."""
    with tempfile.TemporaryDirectory(prefix=REVIEWS) as name, FileLock(Path(name) / _LOCK):
        yield Path(name)


def clear_reviews() -> list[Path]:
    """Delete what killed reviews left; return the folders of those that are open with videos."""
    still_open = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{REVIEWS}*")):
        if folder.is_symlink() or not any(folder.glob("*.mp4")):
            continue
        try:
            with FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder)
        except Timeout:
            still_open.append(folder)
        except OSError:
            continue  # another user's
    return still_open


RUN_DEPTH: Final = 3
"""How many folders below a dataset's parent its training runs are looked for."""
TRAININGS: Final = ("finetune", "pretrain", "train")
PAGE: Final = "report.html"
"""The only file of an analysis with pictures of takes in it."""
TEXTS: Final = (".json", ".jsonl", ".csv", ".yaml", ".html")


@dataclass(frozen=True)
class RunOfTakes:
    """A run that some of the takes went into; an analysis shows them, where it is no training.

    Attributes:
        takes: how many of them; 1 where the run names only the dataset's folder, 0 where a policy
            that it started from learned from them.
        policies: ids of the policies that came of it.
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
        except (OSError, ValueError, UnusableInputError):
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
    value = read_run(path)
    if value.get("schema") == lineage.SCHEMA:
        raise ValueError("a dataset's own, which is cleared as a dataset")
    used = sum(_used(entry, uids, names, path.parent) for entry in value["inputs"])
    command, result = str(value.get("command", "")), value["result"]
    is_training = command in TRAININGS or "policy" in result
    policies = {result.get("policy", ""), result.get("merged", ""), *result["policies"]}
    if not used and not is_training:  # `plan` writes its run.json over that of the diagnosis
        files = (p for p in path.parent.iterdir() if p.suffix in TEXTS and p.is_file())
        texts = [p.read_bytes() for p in files]
        used = sum(any(uid.encode() in text for text in texts) for uid in uids)
    made = tuple(sorted(policies - {""}))
    run = RunOfTakes(str(path.parent), str(value.get("id", "")), command, used, made, is_training)
    return run, value["lineage"]["base"] or "-"


def _used(entry: Mapping[str, Any], uids: Collection[str], names: set[str], folder: Path) -> int:
    if "uids" in entry:
        return len(set(entry["uids"]) & set(uids))
    if not entry.get("root"):
        return 0
    root = Path(str(entry["root"]))
    candidates = (root, folder / root)
    return int(bool(uids) and any(str(c.resolve()) in names for c in candidates))


def clear_pages(run: RunOfTakes, *, remove: bool) -> list[str]:
    """Delete an analysis's page, which shows pictures of takes; return what is, or would be."""
    page = Path(run.folder) / PAGE
    if run.is_training or page.is_symlink() or not page.is_file():
        return []
    if remove:
        page.unlink()
    return [str(page)]
