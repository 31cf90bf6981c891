"""The episode table of a dataset made of others' episodes: every column kept, numbers anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.datasets import columns, layout
from gaploop.datasets.edit.compose_rows import Placed
from gaploop.datasets.edit.pieces import DatasetPiece, damaged
from gaploop.datasets.episodes_table import with_gap_columns

_FILE: Final = "chunk-000/file-000.parquet"
_QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def write_episodes(
    pieces: Sequence[DatasetPiece], stage: Path, placed: Placed, videos: Sequence[Mapping[str, Any]]
) -> None:
    """Write `meta/episodes` and `meta/stats.json` of a dataset made of `pieces`.

    Args:
        placed: where the rows are.
        videos: per episode, the columns about its videos.

    Raises:
        UnusableInputError: columns of the same name that hold different things.
    """
    tagged = any(piece.tagged for piece in pieces)
    table = _together([_of_piece(piece, tagged) for piece in pieces], pieces)
    new = [{**row, **clips} for row, clips in zip(placed.rows, videos, strict=True)]
    for name in new[0]:
        table = _put(table, name, [row[name] for row in new])
    for name in ("meta/episodes/chunk_index", "meta/episodes/file_index"):
        table = _put(table, name, [0] * len(table))
    table = _renumbered_stats(table, placed)
    path = stage / layout.EPISODES / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")
    write_json(stage / layout.STATS, _total_stats(table, pieces))


def _of_piece(piece: DatasetPiece, tagged: bool) -> pa.Table:
    """Return the chosen rows of a dataset's episode table, with gap columns where one has them."""
    tables = [layout.read_parquet(path) for path in layout.episode_files(piece.info.root)]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise damaged(piece, f"files of {layout.EPISODES} don't fit together ({error}).") from None
    numbers = table["episode_index"].to_numpy()
    order = np.argsort(numbers, kind="stable")
    keep = [int(i) for i in order if int(numbers[i]) in piece.chosen]
    table = table.take(pa.array(keep, pa.int64()))
    if not tagged:
        return table
    rows = [
        {name: e.row.get(name) for name in columns.EPISODE_COLUMNS}
        if e.row.get("gap_uid")
        else columns.default_row(e.info, e.outcome)
        for e in piece.episodes
    ]
    return with_gap_columns(table, rows)


def _together(tables: Sequence[pa.Table], pieces: Sequence[DatasetPiece]) -> pa.Table:
    """Put tables below each other; a column that some lack is empty there.

    Statistics that some lack go: LeRobot can't add them up.
    """
    if len(tables) == 1:
        return tables[0]
    shared = set.intersection(*(set(t.column_names) for t in tables))
    kept = [
        t.select([n for n in t.column_names if n in shared or not n.startswith("stats/")])
        for t in tables
    ]
    for other, piece in zip(kept[1:], pieces[1:], strict=True):
        for name in other.column_names:
            if name not in kept[0].column_names:
                continue
            have, got = kept[0].schema.field(name).type, other.schema.field(name).type
            if have != got and not (pa.types.is_null(have) or pa.types.is_null(got)):
                raise UnusableInputError(
                    f"{piece.info.root}: column {name} of {layout.EPISODES} is {got}, in "
                    f"{pieces[0].info.root} it is {have}. Write both with the same tool, or "
                    "remove the column."
                )
    return pa.concat_tables(kept, promote_options="default").replace_schema_metadata(None)


def _put(table: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """Set a column, of the type that it had."""
    place = table.schema.get_field_index(name)
    if place < 0:
        return table.append_column(name, pa.array(values))
    field = table.schema.field(name)
    return table.set_column(place, field, pa.array(values, type=field.type))


def _renumbered_stats(table: pa.Table, placed: Placed) -> pa.Table:
    """Return the table with new statistics of `index`, `episode_index` and `task_index`."""
    moving = {"index": [m[0] for m in placed.moved], "episode_index": [m[1] for m in placed.moved]}
    for name in table.column_names:
        folder, _, rest = name.partition("/")
        feature, _, stat = rest.rpartition("/")
        if folder != "stats" or stat == "count":
            continue
        old = table[name].to_pylist()
        if feature in moving and stat != "std":
            pairs = zip(old, moving[feature], strict=True)
            table = _put(table, name, [v and [x + by for x in v] for v, by in pairs])
        elif feature == "task_index":
            tasks = zip(old, placed.task_indices, strict=True)
            table = _put(table, name, [v and [type(v[0])(_stat(t, stat))] for v, t in tasks])
    return table


def _stat(values: np.ndarray[Any, Any], stat: str) -> float:
    if (values == values[0]).all():
        return 0.0 if stat == "std" else float(values[0])
    if stat in _QUANTILES:
        return float(np.quantile(values, _QUANTILES[stat]))
    return float(getattr(values, stat)())  # min, max, mean, std


def _total_stats(table: pa.Table, pieces: Sequence[DatasetPiece]) -> dict[str, Any]:
    """Return the statistics of all episodes together, as LeRobot's `aggregate_stats` does.

    Means are weighted by count, variances added with the squared distance of the means (Chan et
    al. 1979), quantiles averaged.
    """
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name in table.column_names:
        folder, _, rest = name.partition("/")
        feature, _, stat = rest.rpartition("/")
        known = folder == "stats" and feature in pieces[0].info.features
        if known and not table[name].null_count:
            values = np.array(table[name].to_pylist(), dtype=np.float64)
            found.setdefault(feature, {})[stat] = values
    total = {
        feature: _total(stats)
        for feature, stats in found.items()
        if {"min", "max", "mean", "std", "count"} <= set(stats)
    }
    return total or _stats_of_source(pieces)


def _total(stats: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    count = stats["count"]
    weight = count.reshape(count.shape + (1,) * (stats["mean"].ndim - count.ndim))
    n = weight.sum(axis=0)
    mean = (stats["mean"] * weight).sum(axis=0) / n
    variance = ((stats["std"] ** 2 + (stats["mean"] - mean) ** 2) * weight).sum(axis=0) / n
    result = {
        "min": stats["min"].min(axis=0),
        "max": stats["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": count.sum(axis=0).astype(np.int64),
    }
    for name, values in stats.items():
        if name not in result:
            result[name] = (values * weight).sum(axis=0) / n
    return {name: value.tolist() for name, value in result.items()}


def _stats_of_source(pieces: Sequence[DatasetPiece]) -> dict[str, Any]:
    """Return the old statistics where the episode table has none and nothing is left out."""
    piece = pieces[0]
    if len(pieces) == 1 and not piece.rest:
        stats = read_json(piece.info.root / layout.STATS)
        if not isinstance(stats, dict):
            raise damaged(piece, f"{layout.STATS} is not a JSON object.")
        return stats
    raise UnusableInputError(
        f"{piece.info.root / layout.EPISODES} has no statistics per episode, so those of a part "
        "can't be told. Compute them with: lerobot-edit-dataset --operation.type=recompute_stats"
    )
