"""Labels on their way from a journal to a dataset, put among those that the dataset has by time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from gaploop.core import journal_format, labels
from gaploop.core.files import write_atomically
from gaploop.core.journal_format import TakeHeader, read_end
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, episodes_table, layout


def new_events(journal: Path, root: Path, uids: Collection[str]) -> list[LabelEvent]:
    """Return the label events of a journal about some takes that a dataset doesn't have yet."""
    have = {event.to_line() for event in labels.read(root / layout.LABELS)}
    said = [e for e in labels.read(journal / journal_format.LABELS) if e.uid in uids]
    return [event for event in said if event.to_line() not in have]


def add_labels(
    journal: Path,
    stage: Path,
    new: Sequence[LabelEvent],
    folders: Iterable[tuple[Path, TakeHeader]],
) -> None:
    """Write new events of a journal to a dataset, with what the takes were before.

    Args:
        journal: where they are from.
        stage: a dataset that nobody else writes; its columns don't show the new events yet.
        new: what it doesn't have yet.
        folders: folder and header of each take that is published now.
    """
    path = stage / layout.LABELS
    path.parent.mkdir(parents=True, exist_ok=True)
    have = list(labels.read(path))
    about = {event.uid for event in new}
    said = [e for e in labels.read(journal / journal_format.LABELS) if e.uid in about]
    rows = episodes_table.rows_of(stage, about)
    rows += [_as_sealed(*pair) for pair in folders if pair[1].info.uid in about]
    events = labels.merge(episodes_table.bases(rows, new, have), have, said)
    write_atomically(path, "".join(f"{event.to_line()}\n" for event in events))


def _as_sealed(folder: Path, header: TakeHeader) -> dict[str, Any]:
    """Return a take's episode columns before anybody labelled it."""
    end = read_end(folder)
    return columns.default_row(header.info, end.outcome if end else Outcome.INTERRUPTED)
