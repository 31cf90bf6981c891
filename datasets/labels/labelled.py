"""A dataset's or journal's takes with the labels that stand, and saying something about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gaploop.core import journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, writable_folder
from gaploop.core.journal_format import is_journal, read_end, read_header, take_folders
from gaploop.core.labels import LabelEvent
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.layout import EpisodeRow, is_dataset


@dataclass(frozen=True)
class FolderLabels:
    """What is in a folder, as read once.

    Attributes:
        root: a dataset or a journal.
        journal: it is a journal.
        episodes: with the labels that stand; a journal's takes are numbered from 0, oldest first.
        events: everything that was said, in order.
        recorded: the same episodes as they are written down: a journal's as they were sealed, a
            dataset's as its columns show them.
    """

    root: Path
    journal: bool
    episodes: tuple[EpisodeRow, ...]
    events: tuple[LabelEvent, ...]
    recorded: tuple[EpisodeRow, ...]

    @property
    def file(self) -> Path:
        """Where its label events are."""
        return self.root / (journal_format.LABELS if self.journal else layout.LABELS)

    @property
    def what(self) -> str:
        """What one of its takes is called."""
        return "take" if self.journal else "episode"


def open_labelled(root: Path) -> FolderLabels:
    """Read what a dataset or journal holds and what was said about it.

    Raises:
        UnusableInputError: neither is there, or a file is damaged.
    """
    root = existing_folder(Path(root), "Folder").resolve()  # "." has no folder beside it
    if is_dataset(root):
        known = tuple(layout.read_episodes(layout.read_info(root)))
        # After the columns: see `write_down`.
        events = tuple(labels.read(root / layout.LABELS))
        return _labelled(root, False, known, events, episodes_table.said_about(events))
    if is_journal(root):
        folders = take_folders(root)
        events = tuple(labels.read(root / journal_format.LABELS))
        takes = tuple(_take(n, folder) for n, folder in enumerate(folders))
        return _labelled(root, True, takes, events, labels.current(events))
    raise UnusableInputError(
        f"{root} holds neither takes nor a dataset. Name a journal (folders with take.json) or a "
        "LeRobot dataset (meta/info.json)."
    )


def _labelled(
    root: Path,
    journal: bool,
    recorded: tuple[EpisodeRow, ...],
    events: tuple[LabelEvent, ...],
    said: Mapping[str, Mapping[str, Any]],
) -> FolderLabels:
    episodes = tuple(_with(e, said.get(e.info.uid, {})) for e in recorded)
    return FolderLabels(root, journal, episodes, events, recorded)


def _take(index: int, folder: Path) -> EpisodeRow:
    info, end = read_header(folder).info, read_end(folder)
    if end is None:
        return EpisodeRow(index, 0, info, Outcome.INTERRUPTED, "", "", row={})
    return EpisodeRow(index, end.frames, info, end.outcome, "", "", row={})


def _with(episode: EpisodeRow, said: Mapping[str, Any]) -> EpisodeRow:
    """Return an episode with labels put over what it says itself."""
    if not said:
        return episode
    info: TakeInfo = episode.info
    if "dimensions" in said:
        info = replace(info, dimensions=dict(said["dimensions"]))
    return replace(
        episode,
        info=info,
        outcome=Outcome(said.get("outcome", episode.outcome)),
        failure_mode=said.get("failure_mode", episode.failure_mode),
        phase=said.get("phase", episode.phase),
    )


def say(folder: FolderLabels, new: Sequence[LabelEvent], *, merged: bool = False) -> bool:
    """Write events down, durably and all of them or none; then show them in a dataset's columns.

    They are written at once, also while the dataset is being published to or edited: whoever
    changes it takes them over.

    Args:
        folder: what they are about, from `open_labelled`.
        new: what is said.
        merged: they are events of another log: put them among those that are there by time.

    Returns:
        Whether the columns show it; where another process changes the dataset for longer than
        `staging.LOCK_WAIT_S`, they do so from the next label or publication on.

    Raises:
        UnusableInputError: the folder can't be written.
        OSError: there is no room.
    """
    if not new:
        return True
    write_down(folder, new, merged=merged)
    return folder.journal or show(folder, {event.uid for event in new} | _stale(folder))


def write_down(folder: FolderLabels, new: Sequence[LabelEvent], *, merged: bool = False) -> None:
    """Write events down, durably and all of them or none, as the first half of `say`.

    Raises:
        UnusableInputError: the folder can't be written.
        OSError: there is no room.
    """
    write = labels.insert if merged else labels.append
    if folder.journal:
        write(folder.file, *new)
        return
    writable_folder(folder.root.parent, "The folder of the dataset")  # first: locks are there
    uids = {event.uid for event in new}
    # The columns as they were before the events were read: a label that they show is among those.
    rows = [e.row for e in folder.episodes if e.info.uid in uids]
    _write(folder, [*episodes_table.bases(rows, new, folder.events), *new], write)


def show(folder: FolderLabels, uids: Set[str]) -> bool:
    """Show in a dataset's columns what was written down about some takes; the rest of `say`.

    Returns:
        Whether they show it; not where another process changes the dataset for too long.
    """
    try:
        with staging.locked(folder.root):
            staging.recover(folder.root)
            episodes_table.materialise(folder.root, {}, uids)
    except staging.BusyError:
        return False
    return True


def _stale(folder: FolderLabels) -> set[str]:
    """Return the takes whose columns don't show their labels: the dataset was busy at the time."""
    said = episodes_table.said_about(folder.events)
    return {
        e.info.uid
        for e in folder.episodes
        if e.info.uid in said and episodes_table.apply_labels(e.row, said[e.info.uid]) != e.row
    }


def _write(folder: FolderLabels, events: Sequence[LabelEvent], write: Callable[..., None]) -> None:
    path = folder.file
    try:
        write(path, *events, create=False)
    except FileNotFoundError:  # the first label of all: nobody may trade folders meanwhile
        with staging.locked(folder.root):
            staging.recover(folder.root)
            path.parent.mkdir(exist_ok=True)
            write(path, *events)


def add_columns(folder: FolderLabels) -> FolderLabels:
    """Give a dataset that was recorded elsewhere gap columns, and return it as it is then.

    Without them its episodes have no uid of their own that a label could name. Killed at any
    instant, the dataset is the old one or the new one.
    """
    root = folder.root
    with staging.locked(root):
        staging.recover(root)
        known = layout.read_episodes(layout.read_info(root))
        stage = staging.beside(root, "staging")
        staging.clone(root, stage)
        rows = {e.index: columns.default_row(e.info, e.outcome) for e in known}
        episodes_table.materialise(stage, rows)
        staging.commit(stage, root)
    return open_labelled(root)


def lacks_columns(folder: FolderLabels) -> bool:
    """Say whether a dataset has no gap columns yet."""
    return not folder.journal and not all(e.row.get("gap_uid") for e in folder.episodes)


def chosen(
    folder: FolderLabels, indices: Iterable[int], uids: Iterable[str], option: str = "--uid"
) -> list[EpisodeRow]:
    """Return the episodes that are named by index or by uid, in order of index.

    Args:
        folder: where they are.
        indices: their indices.
        uids: their uids, or beginnings that only one of them has.
        option: names the option that gave the uids, in errors.

    Raises:
        UnusableInputError: one isn't there, or a beginning names several.
    """
    by_index = {e.index: e for e in folder.episodes}
    for index in indices:
        if index not in by_index:
            raise UnusableInputError(
                f"{folder.root} has no {folder.what} {index}; it has {len(by_index)} "
                f"(0 to {len(by_index) - 1})."
            )
    wanted = set(indices)
    for uid in uids:
        found = [e.index for e in folder.episodes if e.info.uid == uid]
        found = found or [e.index for e in folder.episodes if uid and e.info.uid.startswith(uid)]
        if len(found) != 1:
            many = f"{len(found)} uids begin so; write more of it" if found else "no such uid"
            raise UnusableInputError(
                f"{option}={uid}: {many}. See what {folder.root} holds: gaploop label {folder.root}"
            )
        wanted.add(found[0])
    return [by_index[index] for index in sorted(wanted)]
