"""Names and relative paths that a file gives: checked before they are joined to a path.

Whoever wrote a dataset, a take or a policy chose its uids, its camera names, its path templates
and its links, and could name any file of this computer with them.

tests/test_foreign_paths.py lists every place where a name is joined to a path, and why it's safe.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final

from gaploop.core.errors import UnusableInputError

LONGEST_BYTES: Final = 200
"""File systems take 255 bytes; the rest is for what is added, such as `.zarr.zip`."""
_DRIVE: Final = re.compile(r"[A-Za-z]:")


def plain_name(value: object, what: str, where: object = "", fix: str = "") -> str:
    """Return `value` if it can be one component of a path, here and on any other system.

    `what` it names, such as "gap_uid", the file it was read from and how to `fix` it are for the
    message; unless given, to rename it there.

    Raises:
        UnusableInputError: not text, empty, hidden (a leading dot; also "." and ".."), longer
            than `LONGEST_BYTES`, or with separators, a drive letter or unprintable characters.
    """
    wrong = _wrong(value)
    if wrong:
        raise UnusableInputError(
            f"{_place(where)}{what} {_shown(value)} {wrong}: not used as a file name. "
            + (fix or "Rename it there, with letters, digits, dots and dashes.")
        )
    return str(value)


def is_plain_name(value: object) -> bool:
    """Say whether `plain_name` takes a value."""
    return not _wrong(value)


def relative_path(value: object, what: str, where: object = "") -> str:
    """Return `value` if it is a path of plain names below some folder; links aren't looked at.

    The arguments are those of `plain_name`; `/` stands between the names.

    Raises:
        UnusableInputError: absolute, empty, or one of its names isn't plain.
    """
    if not isinstance(value, str) or value in ("", "."):
        wrong = _wrong(value)
    elif value.startswith("/"):
        wrong = "is absolute"
    else:
        wrong = next((w for w in map(_wrong, PurePosixPath(value).parts) if w), "")
    if wrong:
        raise UnusableInputError(
            f"{_place(where)}{what} {_shown(value)} {wrong}: not opened. Give a path below the "
            "folder, such as data/file.parquet."
        )
    return str(value)


def inside(
    root: Path, relative: str | Path, what: str, where: object = "", *, of_snapshot: bool = False
) -> Path:
    """Return `root / relative` if it is below `root` also once links are followed.

    For what is about to be written, deleted or opened by a name that a file gives; it needn't
    exist, and `root` may itself be reached through links. What is only read may be `of_snapshot`,
    as of `links_out`; the other arguments are those of `relative_path`.

    Raises:
        UnusableInputError: it isn't below `root`, or a link leads out.
    """
    path = root / relative_path(str(relative), what, where)
    top = root.resolve()
    if not _within(path, top, _blobs(top) if of_snapshot else None):
        raise _outside(path, root)
    return path


def links_out(root: Path, *, of_snapshot: bool = True) -> list[Path]:
    """Return the links in a folder that lead out of it, in order; other links aren't followed.

    Of a snapshot in the Hub's cache links to the `blobs` of the same repository are no fault,
    unless it is about to be written or deleted.
    """
    if not root.is_dir():
        return []
    top = root.resolve()
    blobs = _blobs(top) if of_snapshot else None
    found = []
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink() and not _within(path, top, blobs):
                found.append(path)
    return sorted(found)


def refuse_links_out(root: Path, *, of_snapshot: bool = True) -> None:
    """Raise UnusableInputError for a folder with links that lead out of it; see `links_out`."""
    for path in links_out(root, of_snapshot=of_snapshot):
        raise _outside(path, root)


def refuse_link(path: Path) -> None:
    """Raise UnusableInputError for a link: nothing is written to what it leads to."""
    if path.is_symlink():
        raise UnusableInputError(f"{path} is a link: nothing is written there. {link_fix(path)}")


def link_fix(path: Path) -> str:
    """Return what to do about a link that leads out of a folder, in words."""
    return f"If you trust it, put a copy of what it leads to in its place; or delete {path.name}."


def _outside(path: Path, root: Path) -> UnusableInputError:
    link = next((p for p in (path, *path.parents) if p.is_symlink() and p != root), path)
    return UnusableInputError(
        f"{link} is a link that leads out of {root}: not followed. {link_fix(link)}"
    )


def _within(path: Path, top: Path, blobs: Path | None = None) -> bool:
    try:
        real = path.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return False
    return real.is_relative_to(top) or (blobs is not None and real.is_relative_to(blobs))


def _blobs(top: Path) -> Path | None:
    """Return where the Hub's cache keeps the files of a snapshot; None for other folders.

    Source: huggingface_hub, "Understand caching": `<repo>/snapshots/<revision>/…` are links to
    `<repo>/blobs/…`.
    """
    if top.parent.name != "snapshots":
        return None
    return top.parent.parent / "blobs"


def snapshot_of(folder: Path) -> str:
    """Return of which repository a folder is a snapshot in the Hub's cache: its name, or ""."""
    blobs = _blobs(folder.resolve())
    return blobs.parent.name.rpartition("--")[2] if blobs is not None and blobs.is_dir() else ""


def _wrong(value: object) -> str:
    if not isinstance(value, str):
        return "is not text"
    if not value.strip():
        return "is empty"
    if "/" in value or "\\" in value or _DRIVE.match(value):
        return "is a path"
    if value.startswith("."):
        return "begins with a dot"
    if not value.isprintable():
        return "holds unprintable characters"
    if len(value.encode()) > LONGEST_BYTES:
        return f"is longer than {LONGEST_BYTES} bytes"
    return ""


def _place(where: object) -> str:
    return f"{where}: " if str(where) else ""


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    return ascii(value) if len(value) <= 60 else ascii(value[:60]) + "…"
