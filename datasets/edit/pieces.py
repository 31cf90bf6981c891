"""Episodes of one dataset that go into another: what `compose` puts together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

LOOK: Final = "Find out more with: gaploop check {root}"


@dataclass(frozen=True)
class DatasetPiece:
    """Some episodes of one dataset.

    Attributes:
        info: the dataset.
        held: all of its episodes, in order.
        chosen: indices of those that are meant.
    """

    info: DatasetInfo
    held: tuple[EpisodeRow, ...]
    chosen: frozenset[int]

    @classmethod
    def whole(cls, root: Path) -> DatasetPiece:
        """Return all episodes of the dataset at `root`.

        Raises:
            UnusableInputError: no dataset there, or none of its episodes can be told.
        """
        info = layout.read_info(root)
        held = tuple(layout.read_episodes(info))
        if not held:
            raise UnusableInputError(f"{root} has no episodes. {LOOK.format(root=root)}")
        return cls(info, held, frozenset(e.index for e in held))

    def only(self, chosen: Collection[int]) -> DatasetPiece:
        """Return the piece with just these episodes."""
        return DatasetPiece(self.info, self.held, frozenset(chosen))

    @property
    def episodes(self) -> tuple[EpisodeRow, ...]:
        """The chosen episodes, in order."""
        return tuple(e for e in self.held if e.index in self.chosen)

    @property
    def rest(self) -> tuple[EpisodeRow, ...]:
        """The others, in order."""
        return tuple(e for e in self.held if e.index not in self.chosen)

    @property
    def tagged(self) -> bool:
        """Say whether the dataset has gap columns."""
        return any(e.row.get("gap_uid") for e in self.held)


def numbered(pieces: Sequence[DatasetPiece]) -> Iterator[tuple[int, DatasetPiece, EpisodeRow]]:
    """Yield every chosen episode with its index in the dataset that is made of them."""
    new = 0
    for piece in pieces:
        for episode in piece.episodes:
            yield new, piece, episode
            new += 1


def damaged(piece: DatasetPiece, what: str) -> UnusableInputError:
    """Return the error for a source that is not what it says."""
    root = piece.info.root
    return UnusableInputError(f"{root}: {what} {LOOK.format(root=root)}")


def task_names(info: DatasetInfo) -> dict[int, str]:
    """Return task index to instruction, from `meta/tasks.parquet`.

    Raises:
        UnusableInputError: the table is missing or damaged.
    """
    table: pa.Table = layout.read_parquet(info.root / layout.TASKS)
    # Pandas stores the instruction as the table's index, under its name or without one.
    words = next((n for n in ("task", "__index_level_0__") if n in table.column_names), None)
    if words is None or "task_index" not in table.column_names:
        raise UnusableInputError(
            f"{info.root / layout.TASKS} has no columns task and task_index. "
            f"{LOOK.format(root=info.root)}"
        )
    pairs: Any = zip(table["task_index"].to_pylist(), table[words].to_pylist(), strict=True)
    return {int(index): str(task) for index, task in pairs}
