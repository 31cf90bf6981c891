"""Repair: keys that go by another name in one place than in another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.paths import plain_name
from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.repair.info import first_schema, save
from gaploop.datasets.repair.names import RepairDraft, misnamed, pair_keys, right_name


def mend_keys(draft: RepairDraft, info: dict[str, Any]) -> dict[str, str]:
    """Rename keys so that description, data, videos and statistics agree.

    Returns:
        data column to the feature it stands for; the data files are left for later.
    """
    schema = first_schema(draft.root)
    stored = list(schema.names) if schema is not None else []
    columns: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for feature, column in pair_keys(info["features"], stored, videos=False).items():
        name = right_name(feature, column, videos=False)
        if column != name:
            columns[column] = name
        if feature != name:
            renamed[feature] = name
    folder = draft.root / "videos"
    present = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for feature, name in pair_keys(info["features"], present, videos=True).items():
        kept = right_name(feature, name, videos=True)
        if name != kept:
            (folder / name).rename(folder / kept)
            draft.did("renamed", f"videos/{name} → videos/{kept}")
        if feature != kept:
            renamed[feature] = kept
    for feature, name in misnamed(info["features"]).items():
        renamed[feature] = name
        columns[feature] = name
    _rename_features(draft, info, renamed)
    for old, new in columns.items():
        draft.did("renamed", f"data column {old} → {new}")
    dropped = _unknown(info, stored, columns)
    if dropped:
        raise UnusableInputError(
            f"{draft.root.name}: data columns {', '.join(dropped)} are no features of "
            f"{layout.INFO}, and which is meant is not clear. Rename them there."
        )
    return columns


def _unknown(info: dict[str, Any], stored: list[str], columns: dict[str, str]) -> list[str]:
    features = [k for k, f in info["features"].items() if f["dtype"] != "video"]
    return [c for c in stored if columns.get(c, c) not in features]


def _rename_features(draft: RepairDraft, info: dict[str, Any], renamed: dict[str, str]) -> None:
    if not renamed:
        return
    info["features"] = {renamed.get(k, k): f for k, f in info["features"].items()}
    save(draft, info)
    for old, new in renamed.items():
        plain_name(new, "data column", draft.root.name)
        draft.did("renamed", f"feature {old} → {new}")
        videos = draft.root / "videos"
        if (videos / old).is_dir() and not (videos / new).exists():
            shutil.move(videos / old, videos / new)
    _rename_stats(draft, renamed)
    for path in layout.episode_files(draft.root):
        _rename_episode_columns(path, renamed)


def _rename_stats(draft: RepairDraft, renamed: dict[str, str]) -> None:
    path = draft.root / layout.STATS
    try:
        stats = read_json(path)
    except (UnusableInputError, OSError):
        return
    if isinstance(stats, dict) and set(stats) & set(renamed):
        write_json(path, {renamed.get(k, k): v for k, v in stats.items()})


def _rename_episode_columns(path: Path, renamed: dict[str, str]) -> None:
    try:
        table = pq.read_table(path, partitioning=None)
    except DAMAGE:
        return
    names = []
    for name in table.column_names:
        parts = name.split("/")
        if len(parts) == 3 and parts[0] in ("stats", "videos"):
            parts[1] = renamed.get(parts[1], parts[1])
        names.append("/".join(parts))
    if names != table.column_names:
        part = path.with_suffix(".part")
        pq.write_table(table.rename_columns(names), part, compression="snappy")
        os.replace(part, path)
