"""Changing a dataset so that, killed at any instant, it is the old one or the new one.

The change is made in a folder beside the dataset: big files are hard links, `meta` is copied.
Then the two folders trade names in one system call (renameat2, Linux). Where the file system
can't do that, two renames do it; a kill between them leaves the old one as `.<name>.old`,
which the next `recover` puts back.
"""

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import filelock

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.core.paths import snapshot_of
from gaploop.datasets.episodes_table import carried_over

LINKED: Final = (".mp4", ".parquet", ".zip", ".png", ".jpg")
"""Files that may be large and, outside of meta, are only ever replaced: hard links are safe."""
LOCK_WAIT_S: Final = 60.0


class BusyError(UnusableInputError):
    """Another process is changing the dataset."""


type Hook = Callable[[str], None]
"""Called with the name of every step; tests end the process in it."""


def no_hook(_step: str) -> None:
    """Do nothing."""


def sibling(root: Path, what: str) -> Path:
    """Return the hidden name beside `root` for its staging folder, old version or lock."""
    return root.parent / f".{root.name}.{what}"


def require_writable(root: Path, option: str = "--dataset.root") -> None:
    """Refuse a dataset that can't be changed where it is; `option` gave it.

    Nor is one in the Hub's cache, though its folder lets one: what would be changed is everybody's
    copy of what was published, and is out of sight once the Hub has a newer one.

    Raises:
        UnusableInputError: as above.
    """
    if name := snapshot_of(root):
        raise UnusableInputError(
            f"{root} is in the Hub's cache: nothing is written there. Make a copy, and name that: "
            f"cp -rL {shlex.quote(str(root))} {shlex.quote(name)}"
        )
    writable_folder(root.parent, "The folder of the dataset", option)


@contextlib.contextmanager
def locked(root: Path, option: str = "--dataset.root") -> Iterator[None]:
    """Hold the dataset's file lock; `option` gave the dataset.

    Raises:
        BusyError: another process holds it.
        UnusableInputError: as `require_writable`.
    """
    require_writable(root, option)
    lock = filelock.FileLock(sibling(root, "lock"))
    try:
        held = lock.acquire(timeout=LOCK_WAIT_S)
    except filelock.Timeout:
        raise BusyError(
            f"{root} is being written by another process. Wait until it is done."
        ) from None
    except OSError as error:  # a link in the lock's place, which is not followed
        reason = error.strerror or error
        raise UnusableInputError(f"{lock.lock_file} can't be used ({reason}). Remove it.") from None
    with held:
        try:
            yield
        except Exception:  # such as for want of room, of which it then keeps none
            shutil.rmtree(sibling(root, "staging"), ignore_errors=True)
            raise


@contextlib.contextmanager
def new_folder(target: Path, *sources: Path) -> Iterator[None]:
    """Hold the lock of a dataset that is about to be made of others.

    Raises:
        UnusableInputError: the folder holds something, also what another process has put there
            meanwhile, or it lies inside a source or the other way round.
    """
    require_new_folder(target, *sources)
    with locked(target, "--output_dir"):
        recover(target)
        require_new_folder(target, *sources)  # again: another process may have been waited for
        yield


def require_new_folder(target: Path, *sources: Path) -> None:
    """Refuse a folder that a new dataset can't be put into; see `new_folder`."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnusableInputError(f"{target} is not empty. Name another with --output_dir.")
    for source in sources:
        if target.is_relative_to(source) or source.is_relative_to(target):
            raise UnusableInputError(
                f"{target} and {source} lie inside each other. Keep them apart."
            )


def recover(root: Path) -> None:
    """Put right what a kill left behind; call with the lock held."""
    old = sibling(root, "old")
    if old.exists() and not _holds_something(root):
        if root.exists():
            root.rmdir()
        os.rename(old, root)
    for leftover in (sibling(root, "staging"), old):
        if leftover.exists():
            shutil.rmtree(leftover)


def _holds_something(root: Path) -> bool:
    return root.exists() and any(root.iterdir())


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file that is never changed once written a second name, or copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copy2(path, target)


def clone(
    root: Path,
    stage: Path,
    link: Callable[[Path, Path], Any] = link_or_copy,
    *,
    follow: bool = False,
) -> None:
    """Make a folder of links to big files and copies of the rest; what isn't a file is left out.

    Args:
        root: what is cloned; links in it that lead out were refused before.
        stage: the new folder; what was there is deleted.
        follow: what a link to a folder leads to is cloned; otherwise it stays a link.
    """
    shutil.rmtree(stage, ignore_errors=True)
    seen: set[Path] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        if Path(folder).resolve() in seen:  # a link that leads back
            names.clear()
            continue
        seen.add(Path(folder).resolve())
        own = Path(folder).relative_to(root)
        here = stage / own
        here.mkdir(parents=True, exist_ok=True)
        for path in [p for p in (Path(folder, n) for n in names) if p.is_symlink() and not follow]:
            (here / path.name).symlink_to(path.readlink())
            names.remove(path.name)
        for name in files:
            source = Path(folder, name)
            if not source.is_file():
                continue  # a pipe, a socket, a link to nothing
            if source.suffix in LINKED and own.parts[:1] != ("meta",):
                link(source.resolve(), here / name)
            else:
                shutil.copy2(source, here / name)


def commit(
    staging: Path,
    root: Path,
    hook: Hook = no_hook,
    exchange: Callable[[Path, Path], bool] | None = None,
) -> None:
    """Make `staging` the dataset at `root`; the old one, if any, is deleted afterwards.

    Labels that were given meanwhile come along.

    Args:
        exchange: lets two folders trade names at once, or returns False where that can't be
            done; renameat2 unless given.
    """
    sync_tree(staging)
    hook("synced")
    if not _holds_something(root):
        os.replace(staging, root)
    else:
        with carried_over(root, staging):
            if not (exchange or platform_calls.exchange_names)(staging, root):
                os.rename(root, sibling(root, "old"))
                hook("renamed away")
                os.rename(staging, root)
        hook("swapped")
    platform_calls.sync_path(root.parent)
    for leftover in (staging, sibling(root, "old")):
        shutil.rmtree(leftover, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Make a folder and what was written to it durable; files with other names already are."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() or (path.is_file() and path.stat().st_nlink == 1):
            platform_calls.sync_path(path)
