"""Rules of `check` about videos, gap columns and statistics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets import columns, layout
from gaploop.datasets.findings import Findings, numbers
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.video import count_frames

ABSURD: Final = 1e6
"""No joint, image or pose statistic of a robot dataset is larger than this."""


def check_videos(info: DatasetInfo, episodes: list[dict[str, Any]], findings: Findings) -> None:
    """Check that every video file is there and holds the frames that episodes claim of it."""
    missing: dict[str, list[str]] = {}
    for key in info.video_keys:
        claims, unplaced = _claims(info, episodes, key)
        if unplaced:
            findings.error(
                "no_video_columns",
                layout.EPISODES,
                f"Episodes {numbers(unplaced)} don't say in which file their {key} is.",
                "Restore meta/episodes from a copy.",
            )
        absent = [p for p in claims if not p.exists()]
        if absent:
            missing[key] = [str(p.relative_to(info.root)) for p in absent]
        for path, needed in claims.items():
            if path not in absent:
                _check_video(info, path, key, needed, findings)
    if missing:
        _report_missing(info, missing, findings)


def _claims(
    info: DatasetInfo, episodes: list[dict[str, Any]], key: str
) -> tuple[dict[Path, int], list[int]]:
    """Return each file with the number of frames claimed of it, and episodes without a file."""
    claims: dict[Path, int] = defaultdict(int)
    unplaced: list[int] = []
    for row in episodes:
        path, start_s = video_of(info, row, key)
        if path is None:
            unplaced.append(int(row["episode_index"]))
        else:
            claims[path] = max(claims[path], round(start_s * info.fps) + int(row["length"]))
    return dict(claims), unplaced


def _report_missing(
    info: DatasetInfo, missing: Mapping[str, list[str]], findings: Findings
) -> None:
    for key, files in missing.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        findings.error(
            "missing_video",
            f"{files[0]}{more}",
            f"The video of {key} is missing.",
            "Copy the videos here, or go on without pictures: gaploop import "
            f"{info.root} --format=lerobot --drop_videos=true --output_dir=OUT",
        )


def _check_video(info: DatasetInfo, path: Path, key: str, needed: int, findings: Findings) -> None:
    name = path.relative_to(info.root)
    try:
        frames = count_frames(path)
    except UnusableInputError as error:
        text = f"{key}: {error}"
        findings.error("unreadable", name, text, "Copy the video again from where it was made.")
        return
    if frames < needed:
        findings.error(
            "video_too_short",
            name,
            f"{key}: {frames} pictures for {needed} rows; later rows show a wrong picture or none.",
            "Copy the video again, or publish the journal again to a new folder.",
        )
    elif frames > needed:
        text = f"{key}: {frames} pictures for {needed} rows."
        findings.warn("video_too_long", name, text, "None needed if an edit tool made the set.")


def check_gap_columns(
    info: DatasetInfo, episodes: list[dict[str, Any]], findings: Findings
) -> None:
    """Check gaploop's columns: there, typed, and holding only words of the vocabulary."""
    expected = {columns.TIME, columns.TAKE, columns.SENT, columns.INTERVENTION, columns.SAFETY}
    lacking = sorted(expected - set(info.features))
    if lacking and len(lacking) < len(expected):
        text = f"Frame columns {', '.join(lacking)} are missing."
        findings.error("missing_gap_columns", layout.INFO, text, "Publish the journal again.")
    if not episodes:
        return
    if not any("gap_uid" in row for row in episodes):
        findings.warn(
            "no_gap_columns",
            layout.EPISODES,
            "No gap columns: recorded elsewhere, or an edit tool dropped them. Outcome, domain "
            "and gap dimension of its episodes are unknown.",
            f"Add them: gaploop import {info.root} --format=lerobot --output_dir=OUT",
        )
        return
    _check_types(info, findings)
    _check_words(episodes, findings)


def _check_types(info: DatasetInfo, findings: Findings) -> None:
    for path in layout.episode_files(info.root):
        schema = pq.read_schema(path)
        for name, kind in columns.EPISODE_COLUMNS.items():
            where = f"{path.relative_to(info.root)}: {name}"
            mend = "Publish the journal again to a new folder."
            if name not in schema.names:
                findings.error("missing_gap_columns", where, f"Column {name} is missing.", mend)
            elif not schema.field(name).type.equals(kind):
                found = schema.field(name).type
                text = f"Type is {found}, not {kind}; LeRobot refuses to append then."
                findings.error("gap_column_type", where, text, mend)


def _check_words(episodes: list[dict[str, Any]], findings: Findings) -> None:
    wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in episodes:
        index = int(row["episode_index"])
        for name in columns.EPISODE_COLUMNS:
            if name in row and row[name] is None:
                wrong[name, "nothing"].append(index)
        for name, words in columns.EPISODE_WORDS.items():
            value = row.get(name)
            values = value if isinstance(value, list) else [value]
            for word in values:
                if word is not None and word not in words:
                    wrong[name, str(word)].append(index)
        if not _is_object(row.get("gap_conditions")):
            wrong["gap_conditions", "no JSON object"].append(index)
        weights, names = row.get("gap_dimension_weights"), row.get("gap_dimensions")
        if len(weights or []) != len(names or []):
            wrong["gap_dimension_weights", "another number of weights"].append(index)
    for (name, word), found in wrong.items():
        valid = sorted(w for w in columns.EPISODE_WORDS.get(name, ()) if w)
        hint = f" One of: {', '.join(valid)}." if valid else ""
        findings.error(
            "bad_gap_value",
            f"{layout.EPISODES}: {name}",
            f"Episodes {numbers(found)} hold {word!r}.{hint}",
            "Label those episodes again, or restore meta/episodes from a copy.",
        )
    _check_unique(episodes, findings)


def _is_object(text: Any) -> bool:
    if not isinstance(text, str):
        return text is None  # reported as missing already
    try:
        return text == "" or isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def _check_unique(episodes: list[dict[str, Any]], findings: Findings) -> None:
    seen: set[str] = set()
    twice = []
    for row in episodes:
        uid = str(row.get("gap_uid") or "")
        if not uid or uid in seen:
            twice.append(int(row["episode_index"]))
        seen.add(uid)
    if twice:
        findings.error(
            "bad_uid",
            f"{layout.EPISODES}: gap_uid",
            f"Episodes {numbers(twice)} have no uid of their own: labels can't tell them apart.",
            "Publish the journal again to a new folder.",
        )


def check_stats(info: DatasetInfo, findings: Findings) -> None:
    """Check `meta/stats.json`: there, finite, plausible, for every feature policies read."""
    recompute = "Compute them anew: gaploop import SRC --format=lerobot --output_dir=OUT"
    try:
        stats = read_json(info.root / layout.STATS)
    except UnusableInputError as error:
        findings.error("missing_stats", layout.STATS, str(error), recompute)
        return
    used = [k for k in info.features if k == columns.ACTION or k.startswith("observation.")]
    for key in used:
        entry = stats.get(key) if isinstance(stats, dict) else None
        if not isinstance(entry, dict) or not {"mean", "std", "min", "max"} <= set(entry):
            text = f"No statistics of {key}: normalisation fails."
            findings.error("missing_stats", layout.STATS, text, recompute)
            continue
        for problem in _stat_problems(entry):
            findings.error("absurd_stats", f"{layout.STATS}: {key}", problem, recompute)


def _stat_problems(entry: Mapping[str, Any]) -> list[str]:
    try:
        values = {
            name: np.asarray(entry[name], dtype=np.float64).reshape(-1)
            for name in ("mean", "std", "min", "max")
        }
    except (TypeError, ValueError):
        return ["Statistics are not numbers."]
    if len({len(v) for v in values.values()}) != 1:
        return ["mean, std, min and max have different lengths."]
    if not all(np.isfinite(v).all() for v in values.values()):
        return ["NaN or infinite statistics."]
    low, mean, high = values["min"], values["mean"], values["max"]
    slack = 1e-3 * (1 + np.abs(high - low))
    problems = []
    if (mean < low - slack).any() or (mean > high + slack).any():
        problems.append("The mean lies outside min and max.")
    if (values["std"] < 0).any() or (values["std"] > (high - low) + slack).any():
        problems.append("The standard deviation is negative or larger than the range.")
    if any(np.abs(v).max(initial=0) > ABSURD for v in values.values()):
        problems.append(f"Values above {ABSURD:g}.")
    return problems
