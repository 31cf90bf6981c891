"""The gap columns of `meta/episodes`: written with fixed types, kept in step with the labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core import labels
from gaploop.datasets.columns import EPISODE_COLUMNS, dimension_columns
from gaploop.datasets.layout import LABELS, episode_files, read_parquet


def materialise(root: Path, new_rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the gap columns of every episode, with the labels that stand now.

    Args:
        root: a dataset that nobody else writes (a staging folder).
        new_rows: episode index to gap columns, for episodes that don't have them yet.
    """
    said = labels.current(labels.read(root / LABELS))
    for path in episode_files(root):
        table = read_parquet(path)
        rows = _rows(table, new_rows)
        changed = [apply_labels(row, said.get(row["gap_uid"], {})) for row in rows]
        updated = with_gap_columns(table, changed)
        if not updated.equals(table):
            _replace(path, updated)


def _rows(table: pa.Table, new_rows: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = [n for n in EPISODE_COLUMNS if n in table.column_names]
    old = table.select(names).to_pylist() if names else [{}] * table.num_rows
    indices = table["episode_index"].to_pylist()
    return [{**row, **new_rows.get(i, {})} for i, row in zip(indices, old, strict=True)]


def apply_labels(row: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return an episode's gap columns with label fields put over them."""
    result = dict(row)
    for name in ("outcome", "failure_mode", "phase"):
        if name in said:
            result[f"gap_{name}"] = str(said[name])
    if "dimensions" in said:
        result |= dimension_columns(said["dimensions"])
    return result


def with_gap_columns(table: pa.Table, rows: list[dict[str, Any]]) -> pa.Table:
    """Return `table` with the gap columns of `rows` at its end, in fixed order and types."""
    kept = [n for n in table.column_names if n not in EPISODE_COLUMNS]
    result = table.select(kept)
    for name, kind in EPISODE_COLUMNS.items():
        field = pa.field(name, kind)
        result = result.append_column(field, pa.array([row[name] for row in rows], type=kind))
    return result


def _replace(path: Path, table: pa.Table) -> None:
    part = path.with_suffix(".part")
    pq.write_table(table, part, compression="snappy")
    part.replace(path)
