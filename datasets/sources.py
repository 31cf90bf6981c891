"""Takes from wherever they are: a journal or a dataset, decided by what the folder holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal, read_journal
from gaploop.core.take import Take
from gaploop.datasets.layout import is_dataset, read_info
from gaploop.datasets.lerobot_read import read_takes


def load_takes(path: Path) -> Iterator[Take]:
    """Yield the takes of the journal or dataset in `path`, oldest first.

    Raises:
        UnusableInputError: at once, where there is neither, or an empty one.
    """
    path = existing_folder(Path(path), "Folder")
    if is_dataset(path):
        if not read_info(path).total_episodes:
            raise UnusableInputError(f"{path} is a dataset without episodes. Record some first.")
        return read_takes(path)
    if is_journal(path):
        return read_journal(path)
    what = "is empty" if not any(path.iterdir()) else "holds neither episodes nor a dataset"
    raise UnusableInputError(
        f"{path} {what}. Name a journal (folders with take.json) or a LeRobot dataset "
        "(meta/info.json)."
    )
