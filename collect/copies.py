"""Copies of takes that gaploop makes by itself, so that a withdrawn consent reaches them.

Frame caches of trainings, tables that LeRobot's loader keeps, datasets that `repair` kept as they
were, and videos that a review left in the temporary folder when it was killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import locked_file
from gaploop.core.take import TakeInfo
from gaploop.datasets import columns, layout
from gaploop.datasets.cache.folder import cache_path, is_cache, remove_cache
from gaploop.datasets.repair.folder import kept_copies

REVIEWS: Final = "gaploop_review_"
_LOCK: Final = "lock"


def caches_of(roots: Iterable[Path], noted: Iterable[Path]) -> list[Path]:
    """Return the frame caches of datasets: in the usual place, and where the register says."""
    found = dict.fromkeys((*(cache_path(root) for root in roots), *noted))
    return [path for path in found if is_cache(path)]


def clear_cache(path: Path) -> str:
    """Remove a frame cache; return why it couldn't be, or ""."""
    try:
        is_gone = remove_cache(path)
    except OSError as error:
        return f"a frame cache that can't be removed ({error.strerror}): delete it"
    return "" if is_gone else "a frame cache in use: end the training, then run this again"


def kept_with(
    root: Path, uids: Collection[str], is_theirs: Callable[[TakeInfo], bool]
) -> list[Path]:
    """Return what repairs of a dataset kept and what holds, or may hold, some takes."""
    return [path for path in kept_copies(root) if _may_hold(path, uids, is_theirs)]


def _may_hold(root: Path, uids: Collection[str], is_theirs: Callable[[TakeInfo], bool]) -> bool:
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

    Hugging Face's `datasets` writes every Parquet file that it reads once more, as Arrow: numbers,
    and the pictures of datasets that keep them in their tables. What is deleted there is made
    anew when it is needed.
    """
    needles = [u.encode() for u in uids]
    needles += [columns.take_hash(u).to_bytes(8, "little") for u in uids]
    found = dict[Path, None]()
    for path in sorted(_datasets_cache().glob("parquet/*/*/*/*.arrow")):
        with (
            contextlib.suppress(OSError, ValueError),  # an empty one, or one that has just gone
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if any(content.find(needle) >= 0 for needle in needles):
                found[path.parent] = None
    return list(found)


def _datasets_cache() -> Path:
    """Return Hugging Face's folder for tables, by its own rules (datasets.config)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()


@contextlib.contextmanager
def review_folder() -> Iterator[Path]:
    """Yield a folder for a review's videos, which goes with the review."""
    with tempfile.TemporaryDirectory(prefix=REVIEWS) as name, locked_file(Path(name) / _LOCK):
        yield Path(name)


def clear_reviews() -> list[Path]:
    """Delete what killed reviews left; return the folders of those that are open with videos."""
    still_open = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{REVIEWS}*")):
        if folder.is_symlink() or not any(folder.glob("*.mp4")):
            continue
        try:
            with locked_file(folder / _LOCK, wait=False):
                shutil.rmtree(folder)
        except BlockingIOError:
            still_open.append(folder)
        except OSError:
            continue  # another user's
    return still_open
