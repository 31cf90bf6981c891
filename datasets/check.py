"""Is a dataset or journal sound? Every fault is a finding with a mend, never a traceback."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal
from gaploop.datasets import columns, layout
from gaploop.datasets.check_journal import check_journal
from gaploop.datasets.check_rules import check_gap_columns, check_stats, check_videos
from gaploop.datasets.findings import Finding as Finding
from gaploop.datasets.findings import Findings, numbers
from gaploop.datasets.layout import DatasetInfo

TIMESTAMP_TOLERANCE_S = 1e-4
"""LeRobot's own tolerance (`LeRobotDataset.tolerance_s`)."""
_RESTORE = "Restore it from a copy, or publish the journal again to a new folder."


def check(root: Path) -> list[Finding]:
    """Check a LeRobot v3 dataset or a journal.

    Raises:
        UnusableInputError: the folder is missing or empty, or holds neither.
    """
    root = existing_folder(Path(root), "Folder")
    findings = Findings()
    if layout.is_dataset(root):
        check_dataset(root, findings)
    elif is_journal(root):
        check_journal(root, findings)
    elif (root / "meta").is_dir() or (root / "data").is_dir():
        findings.error(
            "missing_info",
            layout.INFO,
            f"{layout.INFO} is missing; without it nothing can load the dataset.",
            _RESTORE,
        )
    else:
        what = "is empty" if not any(root.iterdir()) else "holds neither a dataset nor takes"
        raise UnusableInputError(
            f"{root} {what}. Name a LeRobot dataset (meta/info.json) or a journal."
        )
    return list(findings)


def check_dataset(root: Path, findings: Findings) -> None:
    """Check everything about the dataset at `root`, going on as far as each fault allows."""
    try:
        info = layout.read_info(root)
        bad = [k for k, f in info.features.items() if not isinstance(f, dict) or "dtype" not in f]
        if bad:
            raise UnusableInputError(f"features {', '.join(bad)} have no dtype. {_RESTORE}")
    except UnusableInputError as error:
        findings.error("bad_info", layout.INFO, str(error), _RESTORE)
        return
    _check_folders(info, findings)
    _check_features(info, findings)
    _check_tasks(info, findings)
    episodes = _check_episodes(info, findings)
    data = _check_data(info, findings)
    if episodes is not None:
        if data is not None:
            _check_ranges(info, episodes, data, findings)
        check_videos(info, episodes, findings)
        check_gap_columns(info, episodes, findings)
    check_stats(info, findings)


def _check_folders(info: DatasetInfo, findings: Findings) -> None:
    """Find folders under a misspelt name, such as `video` for `videos`."""
    needed = ["data", "meta"] + (["videos"] if info.video_keys else [])
    present = {p.name for p in info.root.iterdir() if p.is_dir()}
    for name in needed:
        near = difflib.get_close_matches(name, sorted(present - set(needed)), n=1, cutoff=0.7)
        if name not in present and near:
            findings.error(
                "misnamed_folder",
                near[0],
                f"There is a folder {near[0]} where LeRobot looks for {name}.",
                f"Rename it: mv {info.root / near[0]} {info.root / name}",
            )


def _check_features(info: DatasetInfo, findings: Findings) -> None:
    for name in (columns.ACTION, columns.STATE):
        if name not in info.features:
            near = difflib.get_close_matches(name, list(info.features), n=1, cutoff=0.6)
            hint = f" Did the writer call it {near[0]}?" if near else ""
            findings.error(
                "missing_feature",
                layout.INFO,
                f"There is no feature {name}.{hint}",
                f"Rename the feature in {layout.INFO} and in the data files to {name}.",
            )
    if not 0 < info.fps <= 1000:
        findings.error("bad_fps", layout.INFO, f"fps is {info.fps:g}.", "Set the recorded rate.")


def _check_tasks(info: DatasetInfo, findings: Findings) -> None:
    path = info.root / layout.TASKS
    if not info.total_episodes:
        return
    if not path.exists():
        findings.error("missing_tasks", layout.TASKS, "The table of tasks is missing.", _RESTORE)
        return
    try:
        layout.read_parquet(path)
    except UnusableInputError as error:
        findings.error("unreadable", layout.TASKS, str(error), _RESTORE)


def _check_episodes(info: DatasetInfo, findings: Findings) -> list[dict[str, Any]] | None:
    """Read `meta/episodes`; None where it can't be used."""
    if not layout.episode_files(info.root):
        if info.total_episodes or (info.root / "data").exists():
            findings.error(
                "missing_episodes", layout.EPISODES, "There is no episode table.", _RESTORE
            )
            return None
        findings.error("empty", info.root.name, "The dataset has no episodes.", "Record some.")
        return None
    try:
        rows = layout.episode_rows(info.root)
    except UnusableInputError as error:
        findings.error("unreadable", layout.EPISODES, str(error), _RESTORE)
        return None
    wanted = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
    lacking = [n for n in wanted if any(not isinstance(row.get(n), int) for row in rows)]
    if lacking:
        findings.error(
            "bad_episodes", layout.EPISODES, f"No usable column {', '.join(lacking)}.", _RESTORE
        )
        return None
    if len(rows) != info.total_episodes:
        findings.error(
            "episode_count",
            layout.INFO,
            f"total_episodes is {info.total_episodes}, the episode table has {len(rows)} rows: "
            "a recording was killed before it was finalised.",
            _RESTORE,
        )
    if [row["episode_index"] for row in rows] != list(range(len(rows))):
        findings.error(
            "episode_numbers", layout.EPISODES, "Episodes are not numbered 0, 1, 2 …", _RESTORE
        )
    if not rows:
        findings.error("empty", info.root.name, "The dataset has no episodes.", "Record some.")
    return rows


def _check_data(info: DatasetInfo, findings: Findings) -> pa.Table | None:
    """Read and check the frames; None where no file can be read."""
    files = layout.data_files(info)
    if not files:
        if info.total_frames:
            findings.error("missing_data", "data", "There are no data files.", _RESTORE)
        return None
    tables = []
    for path in files:
        name = path.relative_to(info.root)
        try:
            table = layout.read_parquet(path)
        except UnusableInputError as error:
            findings.error("unreadable", name, str(error), _RESTORE)
            continue
        _check_columns(info, table, name, findings)
        tables.append(table)
    if not tables:
        return None
    shared = [n for n in tables[0].column_names if all(n in t.column_names for t in tables)]
    try:
        data = pa.concat_tables([t.select(shared) for t in tables], promote_options="permissive")
    except pa.ArrowException as error:
        text = f"Data files have columns of different types ({' '.join(str(error).split())})."
        findings.error("mixed_types", "data", text, _RESTORE)
        return None
    if len(data) != info.total_frames:
        findings.error(
            "frame_count",
            layout.INFO,
            f"total_frames is {info.total_frames}, the data files hold {len(data)} rows.",
            _RESTORE,
        )
    return data


def _check_columns(info: DatasetInfo, table: pa.Table, name: Path, findings: Findings) -> None:
    for feature, spec in info.features.items():
        if spec["dtype"] == "video":
            continue
        if feature not in table.column_names:
            near = difflib.get_close_matches(feature, table.column_names, n=1, cutoff=0.7)
            hint = f" There is a column {near[0]}: was it renamed?" if near else ""
            findings.error("missing_column", name, f"Column {feature} is missing.{hint}", _RESTORE)
            continue
        bad = _not_finite(table, feature)
        if bad:
            findings.error(
                "not_finite",
                f"{name}: {feature}",
                f"NaN, infinite or missing values in {len(bad)} frames: rows {numbers(bad)}.",
                "Drop those episodes with: gaploop import SRC --format=lerobot --episodes=…",
            )


def _not_finite(table: pa.Table, feature: str) -> list[int]:
    """Return rows with null, NaN or infinite numbers."""
    column = table[feature].combine_chunks()
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        values = column.flatten()
        width = len(values) // len(column) if len(column) else 0
        if width == 0 or len(values) != width * len(column):
            return list(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)))
    else:
        values, width = column, 1
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        return list(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)))
    good = pc.fill_null(pc.is_finite(values), False).to_numpy(zero_copy_only=False)
    return [int(i) for i in np.flatnonzero(~good.reshape(-1, width).all(axis=1))]


def _check_ranges(
    info: DatasetInfo, episodes: list[dict[str, Any]], data: pa.Table, findings: Findings
) -> None:
    """Compare the row ranges that the episode table claims with the rows that are there."""
    if not {"episode_index", "frame_index", "timestamp"} <= set(data.column_names):
        return
    episode = data["episode_index"].to_numpy()
    frame, timestamp = data["frame_index"].to_numpy(), data["timestamp"].to_numpy()
    wrong: dict[str, list[int]] = {"rows": [], "frame_index": [], "timestamp": []}
    for row in episodes:
        first, last, n = row["dataset_from_index"], row["dataset_to_index"], row["length"]
        where = slice(first, last)
        inside = episode[where]
        if last - first != n or len(inside) != n or (inside != row["episode_index"]).any():
            wrong["rows"].append(row["episode_index"])
            continue
        if (frame[where] != np.arange(n)).any():
            wrong["frame_index"].append(row["episode_index"])
        if np.abs(timestamp[where] - np.arange(n) / info.fps).max(initial=0) > (
            TIMESTAMP_TOLERANCE_S
        ):
            wrong["timestamp"].append(row["episode_index"])
    unclaimed = np.setdiff1d(episode, [row["episode_index"] for row in episodes])
    _report_ranges(wrong, [int(e) for e in unclaimed], findings)


def _report_ranges(wrong: dict[str, list[int]], unclaimed: list[int], findings: Findings) -> None:
    texts = {
        "rows": "the row range in the episode table is not theirs",
        "frame_index": "frame_index doesn't count 0, 1, 2 …",
        "timestamp": "timestamps are not frame_index / fps",
    }
    for name, found in wrong.items():
        if found:
            text = f"Episodes {numbers(found)}: {texts[name]}."
            findings.error(f"bad_{name}", layout.EPISODES, text, _RESTORE)
    if unclaimed:
        text = f"Rows of episodes {numbers(unclaimed)} stand in no episode table."
        findings.error("orphan_rows", "data", text, _RESTORE)
