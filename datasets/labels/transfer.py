"""Labels on their way from one folder to another: none is lost, none counts twice.

From a journal to its dataset, from a dataset to one that is made of it, and from a dataset to the
new version of itself. Events are put among those that are there by time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from gaploop.core import journal_format, labels
from gaploop.core.files import locked_stream, write_atomically
from gaploop.core.journal_format import TakeHeader, read_end
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, episodes_table, layout
from gaploop.datasets.layout import EpisodeRow


@contextlib.contextmanager
def carried_over(root: Path, staging: Path) -> Iterator[None]:
    """Take over to `staging` the labels that only `root` has; none are added within the block.

    A change (publishing, an edit) works on a copy for minutes; then the two folders trade names. A
    label goes to the old folder's file at once, under that file's lock, so that nobody waits. Who
    trades the names holds the dataset's lock meanwhile and first takes over what the copy lacks.
    Labels of takes that `staging` doesn't hold stay behind: they were deleted.
    """
    path, target = root / layout.LABELS, staging / layout.LABELS
    held = contextlib.ExitStack()
    try:  # the first label of all is only given with the dataset's lock held
        held.enter_context(locked_stream(path, create=False))
    except FileNotFoundError:
        yield
        return
    with held:
        have = {event.to_line() for event in labels.readable(target)}
        late = [event for event in labels.readable(path) if event.to_line() not in have]
        uids = episodes_table.uids(staging) if late else set()
        late = [event for event in late if event.uid in uids]
        if late:
            labels.append(_with_folder(target), *late)
            episodes_table.materialise(staging, {}, {event.uid for event in late})
        yield


def _with_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def new_events(journal: Path, root: Path, uids: Collection[str]) -> list[LabelEvent]:
    """Return the label events of a journal about some takes that a dataset doesn't have yet."""
    return _lacking(journal / journal_format.LABELS, root, lambda uid: uid in uids)


def _lacking(said: Path, root: Path, wanted: Callable[[str], bool]) -> list[LabelEvent]:
    """Return the events of a file about the takes wanted that a dataset doesn't have yet."""
    have = {event.to_line() for event in labels.read(root / layout.LABELS)}
    about = [event for event in labels.read(said) if wanted(event.uid)]
    return [event for event in about if event.to_line() not in have]


def publish_events(
    journal: Path,
    stage: Path,
    new: Sequence[LabelEvent],
    folders: Iterable[tuple[Path, TakeHeader]],
) -> None:
    """Write new events of a journal to a dataset, with what the takes were before.

    Args:
        stage: a dataset that nobody else writes; its columns don't show the new events yet.
        folders: folder and header of each take that is published now.
    """
    path = _with_folder(stage / layout.LABELS)
    have = list(labels.read(path))
    about = {event.uid for event in new}
    said = [e for e in labels.read(journal / journal_format.LABELS) if e.uid in about]
    rows = episodes_table.rows_of(stage, about)
    for folder, header in folders:
        if header.info.uid in about:
            end = read_end(folder)
            outcome = end.outcome if end else Outcome.INTERRUPTED
            rows.append(columns.default_row(header.info, outcome))
    events = labels.merge(episodes_table.bases(rows, new, have), have, said)
    write_atomically(path, "".join(f"{event.to_line()}\n" for event in events))


def copy_events(roots: Iterable[Path], uids: Collection[str], stage: Path) -> None:
    """Write to a new dataset what was said in any of some datasets about the takes it holds."""
    said = [[e for e in labels.read(root / layout.LABELS) if e.uid in uids] for root in roots]
    events = labels.merge(*said)
    if events:
        labels.append(_with_folder(stage / layout.LABELS), *events)


def bring_events(source: Path, target: Path, takes: Collection[int]) -> int:
    """Put a dataset's or journal's events about takes of these hashes among another dataset's.

    Return how many were new. Nobody else may write the `target`.

    Raises:
        UnusableInputError: a line of either can't be read; nothing is written over it.
    """
    said = source / (layout.LABELS if layout.is_dataset(source) else journal_format.LABELS)
    new = _lacking(said, target, lambda uid: columns.take_hash(uid) in takes)
    if new:
        labels.insert(_with_folder(target / layout.LABELS), *new)
    return len(new)


def add_events(root: Path, episodes: Sequence[EpisodeRow], events: Sequence[LabelEvent]) -> None:
    """Add events to a dataset that nobody else sees yet, and show them in its columns."""
    path = _with_folder(root / layout.LABELS)
    rows = [episodes_table.gap_row(e) for e in episodes]
    labels.append(path, *episodes_table.bases(rows, events, labels.read(path)), *events)
    episodes_table.materialise(root, {}, {event.uid for event in events})
