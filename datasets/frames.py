"""A dataset's numbers as arrays, straight from Parquet: no video is opened, no LeRobot needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import layout
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.v3_files import batches


@dataclass(frozen=True)
class FrameTable:
    """Frames of some episodes, in order of episode, then frame.

    Attributes:
        columns: feature to values, one row per frame: shape (n,) or (n, width).
        episode_index: episode of each frame, shape (n,).
    """

    info: DatasetInfo
    columns: Mapping[str, NDArray[Any]]
    episode_index: NDArray[np.int64]
    episodes: tuple[EpisodeRow, ...]

    def __len__(self) -> int:
        return len(self.episode_index)

    def rows_of(self, episode: int) -> slice:
        """Return the rows of an episode."""
        first, last = np.searchsorted(self.episode_index, [episode, episode + 1])
        return slice(int(first), int(last))


def load_frames(
    root: Path, columns: Iterable[str], episodes: Sequence[int] | None = None
) -> FrameTable:
    """Load columns of a dataset's frames.

    Args:
        columns: features to load; vectors become float32 of shape (n, width).

    Raises:
        UnusableInputError: no dataset there, an unknown column or episode, a damaged file.
    """
    info = layout.read_info(Path(root))
    wanted = list(dict.fromkeys(columns))
    for name in wanted:
        if name not in info.features or name in info.video_keys:
            valid = [n for n in info.features if n not in info.video_keys]
            raise unknown_choice("column", name, valid, str(root))
    files = layout.data_files(info.root)
    if not files:
        raise UnusableInputError(f"{info.root} has no data files. Restore its data folder.")
    return _frames(info, files, wanted, tuple(layout.read_episodes(info, episodes)))


def load_episode(info: DatasetInfo, episode: EpisodeRow, columns: Sequence[str]) -> FrameTable:
    """Load columns of one episode's frames, from no other data file than its row names."""
    return _frames(info, [data_file(info, episode)], columns, (episode,))


def data_file(info: DatasetInfo, episode: EpisodeRow) -> Path:
    """Return the data file that holds an episode's frames, by its row."""
    chunk, file = (int(episode.row.get(f"data/{name}_index") or 0) for name in ("chunk", "file"))
    return info.root / info.data_name(chunk, file)


def recorded_success(root: Path) -> dict[int, bool]:
    """Return how episodes ended by the column `next.success`, which environments of LeRobot write.

    Without that column it is empty.
    """
    ended: dict[int, bool] = {}
    for path in layout.data_files(root):
        for rows in batches(path, {"episode_index", "next.success"}):
            if rows.num_columns < 2:
                return {}
            said = rows["next.success"].to_pylist()
            for episode, went_well in zip(rows["episode_index"].to_pylist(), said, strict=True):
                ended[episode] = ended.get(episode, False) or bool(np.any(went_well or False))
    return dict(sorted(ended.items()))


class EpisodeReader:
    """Rows of a dataset's episodes, one after the other; the data file read last is kept."""

    def __init__(self, info: DatasetInfo, names: Iterable[str]) -> None:
        self._info, self._names = info, list(names)
        self._path, self._table = Path(), pa.table({})
        self._bounds: dict[int, tuple[int, int]] = {}

    def rows_of(self, episode: EpisodeRow) -> pa.Table:
        """Return an episode's rows.

        Raises:
            UnusableInputError: they aren't there, or not as the episode table says.
        """
        row, info = episode.row, self._info
        if row.get("data/chunk_index") is None or row.get("data/file_index") is None:
            raise layout.damaged(
                info.root, f"episode {episode.index} doesn't state where its rows are."
            )
        path = data_file(info, episode)
        if path != self._path:
            table = layout.read_parquet(path)
            lacking = [n for n in (*self._names, "episode_index") if n not in table.column_names]
            if lacking:
                raise layout.damaged(info.root, f"{path.name} has no column {', '.join(lacking)}.")
            numbers = table["episode_index"].to_numpy()
            breaks = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
            edges = [0, *breaks, len(numbers)] if len(numbers) else []
            self._bounds = {int(numbers[a]): (a, b) for a, b in itertools.pairwise(edges)}
            self._path, self._table = path, table.select(self._names).combine_chunks()
        first, last = self._bounds.get(episode.index, (0, 0))
        if last - first != episode.length:
            raise layout.damaged(
                info.root,
                f"{path.name} holds {last - first} rows of episode {episode.index}, which has "
                f"{episode.length}.",
            )
        return self._table.slice(first, last - first)


def _frames(
    info: DatasetInfo, files: Sequence[Path], wanted: Sequence[str], chosen: tuple[EpisodeRow, ...]
) -> FrameTable:
    names = list(dict.fromkeys([*wanted, "episode_index", "frame_index"]))
    keep = pc.field("episode_index").isin(pa.array([e.index for e in chosen], pa.int64()))
    order = [("episode_index", "ascending"), ("frame_index", "ascending")]
    problem = f"{info.root}: the frames aren't as {layout.INFO} describes them"
    with layout.reraise_as_damaged(problem, "Find out more with: gaploop check"):
        parts = [layout.read_parquet(path, names, keep).select(names) for path in files]
        table = pa.concat_tables(parts).sort_by(order)
        values = {name: to_numpy(table[name]) for name in wanted}
        return FrameTable(info, values, table["episode_index"].to_numpy(), chosen)


def to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as an array, of lists a matrix; UnusableInputError: of unequal length."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return np.asarray(column.to_numpy())
    if not len(column):
        return np.empty((0, getattr(kind, "list_size", 0)), dtype=np.float32)
    flat = column.combine_chunks().flatten()
    if len(flat) % len(column):
        raise UnusableInputError("A vector column has rows of unequal length. Restore it.")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), -1)
