"""Repair: `meta/stats.json`, from the statistics of the episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE, Findings
from gaploop.datasets.check.frames import scan_frames
from gaploop.datasets.check.stats import check_stats
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.repair.names import RepairDraft

_NAMES: Final = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")


def read_table(root: Path) -> pa.Table | None:
    """Return the episode table with its statistics; None where it can't be read."""
    try:
        files = layout.episode_files(root)
        return pa.concat_tables([pq.read_table(p, partitioning=None) for p in files])
    except DAMAGE:
        return None


def written(root: Path) -> Mapping[str, Any]:
    """Return what `stats.json` says; {} where it can't be read."""
    try:
        stats = read_json(root / layout.STATS)
    except UnusableInputError:
        return {}
    return stats if isinstance(stats, dict) else {}


def mend_stats(draft: RepairDraft, info: DatasetInfo) -> None:
    """Write `stats.json` anew from the episodes' statistics where it isn't theirs."""
    findings = Findings()
    scan = scan_frames(info, (), Findings())
    check_stats(info, scan, findings)
    if not list(findings):
        return
    from gaploop.datasets.lerobot_stats import aggregated  # here: it imports torch

    table = read_table(draft.root)
    if table is None:
        return
    stats = {**written(draft.root)}
    keys = [k for k in info.features if f"stats/{k}/mean" in table.column_names]
    for key in keys:
        try:
            part = [{key: s} for s in _stats_of(table, key, info.features[key])]
            stats |= aggregated(part)
        except (ValueError, TypeError, KeyError):
            continue  # statistics of a camera without pictures stay as they are
    stats = {k: v for k, v in stats.items() if k in info.features}
    if stats != written(draft.root):
        write_json(draft.root / layout.STATS, stats)
        draft.did("rebuilt_stats", f"{layout.STATS}: computed anew from {len(table)} episodes")


def _stats_of(table: pa.Table, key: str, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = [n for n in _NAMES if f"stats/{key}/{n}" in table.column_names]
    columns = {n: table[f"stats/{key}/{n}"].to_pylist() for n in names}
    pictures = spec["dtype"] in ("video", "image")
    rows = []
    for i in range(len(table)):
        row = {n: np.asarray(columns[n][i], dtype=np.float64) for n in names}
        if pictures:
            row = {n: v if n == "count" else v.reshape(-1, 1, 1) for n, v in row.items()}
        rows.append(row)
    return rows
