"""Statistics of episodes, and `meta/stats.json`: those of all frames of a dataset.

Of numbers they are computed from every row. LeRobot takes the mean of the episodes' quantiles,
which are no quantiles of anything: where episodes differ, half of the frames can lie outside
[q01, q99], and policies that normalise by them, such as pi0.5, see actions cut off. Of pictures the
episodes' statistics are joined, each standing for the distribution that its quantiles outline.
"""

import contextlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import Image
from gaploop.core.statistics import QUANTILES, Stats, pixel_counts, statistics_of
from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import depth_of, pictures_of
from gaploop.datasets.v3_files import (
    EpisodeReader,
    batches,
    matrix,
    numeric_features,
    with_columns,
    write_episodes,
)
from gaploop.datasets.video import VideoRange, sample_pictures

_GRID: Final = 1025
"""Values at which pictures' distributions are added up; 8 bits have 256."""

PICTURES: Final = 10
"""Pictures of an episode that enter its image statistics."""

type Floats = NDArray[np.float64]


def complete_stats(info: DatasetInfo) -> bool:
    """Write `meta/stats.json` anew, and what `meta/episodes` lacks of pictures; say if it changed.

    What nothing can be computed from, such as a camera without videos, keeps what it had. Nobody
    else may read or write the dataset meanwhile.

    Raises:
        UnusableInputError: a file can't be read.
    """
    table = _with_pictures(info)
    path = info.root / layout.STATS
    before: Any = {}
    with contextlib.suppress(UnusableInputError):  # missing or torn
        before = read_json(path)
    before = before if isinstance(before, dict) else {}
    stats = {key: value for key, value in before.items() if key in info.features}
    for key, shape in numeric_shapes(info).items():
        values = [
            matrix(part[key], int(np.prod(shape)))
            for file in layout.data_files(info.root)
            for part in batches(file, [key])
            if key in part.column_names
        ]
        if rows := sum(map(len, values)):
            flat = np.concatenate(values).reshape(-1, shape[-1])
            stats[key] = {**_of_numbers(flat), "count": [rows]}
    for key in info.picture_keys:
        if (joined := joined_stats(table, key)) is not None:
            stats[key] = {n: v.tolist() for n, v in joined.items()}
    if stats == before:
        return False
    write_json(path, stats)
    return True


def renew_episode_stats(
    info: DatasetInfo, changed: Sequence[int], added: Collection[str] = ()
) -> None:
    """Compute anew what `meta/episodes` states of these episodes, in the columns that it has.

    Where features are `added`, these alone are computed.

    Raises:
        UnusableInputError: a file can't be read.
    """
    read = [layout.read_parquet(path) for path in layout.episode_files(info.root)]
    table = pa.concat_tables(read, promote_options="permissive")
    names = [n for n in table.column_names if n.startswith("stats/")]
    place = {index: row for row, index in enumerate(table["episode_index"].to_pylist())}
    cells = {name: table[name].to_pylist() for name in names}
    reader = EpisodeReader(info, added or numeric_shapes(info))
    for episode in layout.read_episodes(info, changed):
        found = of_rows(reader.rows_of(episode), info)
        for key in () if added else info.picture_keys:
            if f"stats/{key}/mean" in cells and (stats := _of_episode(info, episode, key)):
                found[key] = stats
        for key, stats in found.items():
            for stat, value in stats.items():
                name = f"stats/{key}/{stat}"
                if key in added:
                    cells.setdefault(name, [None] * len(table))
                if name in cells:
                    cells[name][place[episode.index]] = value.tolist()
    write_episodes(info.root, with_columns(table, cells))


def numeric_shapes(info: DatasetInfo) -> dict[str, tuple[int, ...]]:
    """Return the features that hold numbers with their shapes.

    LeRobot's statistics are of the last axis, over rows and all other axes: (4,) of (3, 4).
    """
    names = {**numeric_features(info), **dict.fromkeys(columns.AUTOMATIC, 1)}
    return {n: tuple(info.features[n].get("shape") or (1,)) for n in names if n in info.features}


def of_rows(table: pa.Table, info: DatasetInfo) -> dict[str, Stats]:
    """Return statistics of the finite numbers in one episode's rows, of their last axis."""
    found: dict[str, Stats] = {}
    for name, shape in numeric_shapes(info).items():
        if name in table.column_names:
            values = matrix(table[name], int(np.prod(shape))).reshape(-1, shape[-1])
            stats = _of_numbers(values)
            found[name] = {n: np.array(value) for n, value in stats.items()}
            found[name]["count"] = np.array([len(table)])
    return found


def of_pictures(path: Path, start_s: float, frames: int, fps: float) -> Stats:
    """Return statistics of one episode's pictures in [0, 1], each of shape (3, 1, 1)."""
    return of_images(VideoRange(path, start_s, frames, fps)(), frames)


def of_images(images: Iterator[Image], frames: int) -> Stats:
    """Return statistics of one episode's `frames` pictures, as `of_pictures` does."""
    every = max(1, frames // PICTURES)
    return _of_pixels(p for i, p in enumerate(images) if i % every == 0)


def of_key_frames(path: Path) -> Stats:
    """Return statistics of a video's key frames, as `of_pictures` does."""
    return _of_pixels(sample_pictures(path, PICTURES).transpose(0, 2, 3, 1))


def of_depth(pictures: Iterator[NDArray[Any]], frames: int) -> Stats:
    """Return statistics of one episode's `frames` depth pictures, in their own units."""
    every = max(1, frames // PICTURES)
    kept = np.stack([p.squeeze() for i, p in enumerate(pictures) if i % every == 0])
    stats = {n: np.reshape(v, (1, 1, 1)) for n, v in _of_numbers(kept.reshape(-1, 1)).items()}
    return {**stats, "count": np.array([len(kept)])}


def _of_pixels(pictures: Iterable[Image]) -> Stats:
    counts = [pixel_counts(picture) for picture in pictures]
    return statistics_of(np.sum(counts, axis=0), len(counts))


def _of_numbers(values: NDArray[Any]) -> dict[str, list[float]]:
    """Return statistics of finite numbers, shape (n, width), but their count."""
    found: dict[str, list[float]] = {n: [] for n in ("min", "max", "mean", "std", *QUANTILES)}
    for column in values.T:
        column = column[np.isfinite(column)]
        kept = column if len(column) else np.zeros(1)
        for name in ("min", "max", "mean", "std"):
            found[name].append(float(getattr(kept, name)()))
        for name, value in zip(
            QUANTILES, np.quantile(kept, list(QUANTILES.values())).tolist(), strict=True
        ):
            found[name].append(value)
    return found


def joined_stats(table: pa.Table, key: str) -> dict[str, NDArray[Any]] | None:
    """Return statistics of pictures of all episodes of a table; None where one has none."""
    names = [n for n in table.column_names if n.startswith(f"stats/{key}/")]
    stats: dict[str, Floats] = {}
    try:
        for name in names:
            if table[name].null_count or not len(table):
                return None
            cells = table[name].to_pylist()
            values = np.array([np.asarray(cell, dtype=np.float64).reshape(-1) for cell in cells])
            stats[name.rpartition("/")[2]] = values
        if not {"min", "max", "mean", "std", "count"} <= set(stats):
            return None
        count = stats.pop("count")[:, :1]
        share = count / count.sum()
        mean = (stats["mean"] * share).sum(axis=0)
        spread = stats["std"] ** 2 + (stats["mean"] - mean) ** 2
        joined = {
            "min": stats["min"].min(axis=0),
            "max": stats["max"].max(axis=0),
            "mean": mean,
            "std": np.sqrt((spread * share).sum(axis=0)),
        }
        if set(QUANTILES) <= set(stats):
            joined |= _joined_quantiles(stats, share[:, 0])
    except (ValueError, TypeError):  # of unequal width, or no numbers
        return None
    shaped: dict[str, NDArray[Any]] = {n: v.reshape(-1, 1, 1) for n, v in joined.items()}
    return {**shaped, "count": np.array([int(count.sum())])}


def _joined_quantiles(stats: Mapping[str, Floats], share: Floats) -> dict[str, Floats]:
    """Return quantiles of a mixture of distributions, each outlined by its own quantiles.

    `stats` have shape (episodes, channels); `share` of each episode, (episodes,), adds up to 1.
    """
    outlines = np.stack([stats[n] for n in ("min", *QUANTILES, "max")], axis=1)
    outlines = np.maximum.accumulate(outlines, axis=1)  # whatever rounding did to their order
    levels = [0.0, *QUANTILES.values(), 1.0]
    found: dict[str, list[float]] = {name: [] for name in QUANTILES}
    for channel in range(outlines.shape[2]):
        points = outlines[:, :, channel]
        grid = np.linspace(points.min(), points.max(), _GRID)
        below = np.zeros(_GRID)
        for part, own in zip(share, points, strict=True):
            below += part * np.interp(grid, own, levels, left=0.0, right=1.0)
        for name, level in QUANTILES.items():
            found[name].append(float(np.interp(level, below, grid)))
    return {name: np.array(values) for name, values in found.items()}


def _with_pictures(info: DatasetInfo) -> pa.Table:
    """Return `meta/episodes`; statistics that it lacks of pictures that are there are put in."""
    files = layout.episode_files(info.root)
    read = [layout.read_parquet(path) for path in files]
    table = pa.concat_tables(read, promote_options="permissive") if read else pa.table({})
    lacking = [k for k in info.picture_keys if joined_stats(table, k) is None]
    if not len(table) or not lacking:
        return table
    episodes = {e.index: e for e in layout.read_episodes(info)}
    rows = [episodes[int(i)] for i in table["episode_index"].to_pylist()]
    filled: dict[str, list[Any]] = {}
    for key in lacking:
        filled |= _of_episodes(info, rows, key)
    if filled:
        table = with_columns(
            table.drop_columns([n for n in filled if n in table.schema.names]), filled
        )
        shutil.rmtree(info.root / layout.EPISODES)
        write_episodes(info.root, table)
    return table


def _of_episode(info: DatasetInfo, episode: EpisodeRow, key: str) -> Stats | None:
    """Return statistics of an episode's pictures or depth; None where they lack."""
    if (depth := depth_of(info, episode, key)) is not None:
        return of_depth(depth, episode.length)
    pictures = pictures_of(info, episode, key)
    return of_images(pictures(), episode.length) if pictures is not None else None


def _of_episodes(info: DatasetInfo, rows: Sequence[EpisodeRow], key: str) -> dict[str, list[Any]]:
    """Return a camera's columns of statistics, a value for each episode; {} if pictures lack."""
    stats = []
    try:
        for episode in rows:
            if (found := _of_episode(info, episode, key)) is None:
                return {}
            stats.append(found)
    except DAMAGE:
        return {}  # `check` says what is the matter with them
    return {f"stats/{key}/{n}": [own[n].tolist() for own in stats] for n in stats[0]}
