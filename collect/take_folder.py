"""The folder of a take, and its files on the disk."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import sync_file

ROOM_BYTES: Final = 64_000_000
"""Room that a take is begun with: a minute and a half of two 640×480 cameras at 50 Hz."""


def make_folder(journal: Path, folder: Path) -> None:
    """Make a take's folder in a journal that has room for it.

    Raises:
        UnusableInputError: it exists, there is too little room, or it can't be made.
    """
    if folder.exists():
        raise UnusableInputError(f"{folder} exists already. Give every take a new uid.")
    try:
        journal.mkdir(parents=True, exist_ok=True)
        if full := no_room(journal):
            raise UnusableInputError(full)
        folder.mkdir()
    except OSError as error:
        raise unusable(journal, error) from None


def no_room(journal: Path) -> str:
    """Return why no take can be begun in a journal, "" where its disk has room."""
    left = shutil.disk_usage(journal).free if journal.exists() else ROOM_BYTES
    if left >= ROOM_BYTES:
        return ""
    return (
        f"Journal {journal} has {left / 1e6:.0f} MB of room left; a take is begun with "
        f"{ROOM_BYTES / 1e6:.0f} MB or more. Make room or name another with --journal."
    )


def unusable(journal: Path, error: OSError) -> UnusableInputError:
    """Return what to say where a journal can't be written."""
    return UnusableInputError(
        f"Journal {journal} can't be written ({error.strerror}). Name another with --journal."
    )


def synced_sha256(path: Path) -> str:
    """Return a file's SHA-256, once it is on the disk."""
    sync_file(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
