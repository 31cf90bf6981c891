"""Repair: `meta/info.json`, kept where it makes sense and read off the data where it doesn't."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.files import read_json, write_json
from gaploop.core.paths import is_plain_name
from gaploop.datasets import layout
from gaploop.datasets.check.episodes import feature_fault
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.repair.names import RepairDraft
from gaploop.datasets.video import video_index

VERSION: Final = "v3.0"
DEFAULTS: Final[dict[str, Any]] = {
    "codebase_version": VERSION,
    "chunks_size": 1000,
    "data_files_size_in_mb": 100,
    "video_files_size_in_mb": 200,
    "data_path": layout.DATA_PATH,
    "video_path": layout.VIDEO_PATH,
    "robot_type": "",
}
_RATES_AGREE: Final = 0.01


def load(draft: RepairDraft) -> dict[str, Any]:
    """Return the description, as far as it can be read; {} where it can't."""
    try:
        value = read_json(draft.root / layout.INFO)
    except DAMAGE:
        return {}
    return value if isinstance(value, dict) else {}


def mend_info(draft: RepairDraft) -> dict[str, Any]:
    """Return a description in which every key is usable, and write it.

    Counts are left for later, when it is known what stays.
    """
    info = load(draft)
    was = json.dumps(info, sort_keys=True)
    lost = [] if info else ["all"]
    for key, value in DEFAULTS.items():
        if key not in info or not _usable(key, info[key]):
            lost += [key] if info else []
            info[key] = value
    described = info.get("features")
    info["features"] = _features(draft.root, described)
    lost += ["features"] if "all" not in lost and info["features"] != described else []
    rate = _rate(draft.root)
    fps = info.get("fps")
    known = isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps <= 1000
    if rate is not None and (not known or abs(float(fps or 0) - rate) > _RATES_AGREE * rate):
        draft.did("set_fps", f"fps: {fps} → {rate}, as timestamps (and videos) have it")
        info["fps"] = rate
    elif not known:
        info["fps"] = 30
        draft.did("set_fps", f"fps: {fps} → 30, LeRobot's usual rate: nothing says what it was")
    for name in ("total_episodes", "total_frames", "total_tasks"):
        info.setdefault(name, 0)
    if json.dumps(info, sort_keys=True) != was:
        save(draft, info)
        if lost:
            draft.did("rebuilt_info", f"{layout.INFO}: {', '.join(lost)} made anew")
    return info


def save(draft: RepairDraft, info: Mapping[str, Any]) -> None:
    """Write the description."""
    path = draft.root / layout.INFO
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, info)


def _usable(key: str, value: Any) -> bool:
    default = DEFAULTS[key]
    if key == "codebase_version":
        return isinstance(value, str) and value.startswith("v3")
    if key in ("robot_type", "video_path") and value is None:
        return True  # as LeRobot writes it where there is none
    if key == "robot_type":
        return isinstance(value, str)
    if isinstance(default, str):
        return value == default or layout.is_template(value)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _features(root: Path, known: Any) -> dict[str, Any]:
    """Return the features that are described soundly, and those found only in the files."""
    table = known if isinstance(known, dict) else {}
    features = {k: dict(f) for k, f in table.items() if is_plain_name(k) and not feature_fault(f)}
    schema = first_schema(root)
    for field in schema if schema is not None else ():
        spec = _described(field.type)
        known_shape = features.get(field.name, {}).get("shape")
        if spec and known_shape is not None and list(known_shape) != spec["shape"]:
            features[field.name] |= {"shape": spec["shape"], "names": None}
    if features and len(features) == len(table):
        return features
    for field in schema if schema is not None else ():
        if field.name not in features:
            spec = _described(field.type)
            if spec:
                features[field.name] = spec
    videos = root / "videos"
    for folder in sorted(videos.iterdir()) if videos.is_dir() else ():
        if folder.is_dir() and folder.name not in features:
            spec = _video_feature(folder)
            if spec:
                features[folder.name] = spec
    return features


def first_schema(root: Path) -> pa.Schema | None:
    """Return the schema of the first data file that has one."""
    for path in sorted((root / "data").glob("*/*.parquet")):
        try:
            return pq.read_schema(path)
        except DAMAGE:
            continue
    return None


def _described(kind: pa.DataType) -> dict[str, Any]:
    """Return the feature that a column's type stands for; {} where none does."""
    if pa.types.is_struct(kind):
        return {}
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(int(kind.list_size))
        kind = kind.value_type
    if pa.types.is_nested(kind):
        return {}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"dtype": "string", "shape": [1], "names": None}
    dtype = {"double": "float64", "float": "float32", "halffloat": "float16"}.get(
        str(kind), str(kind)
    )
    spec = {"dtype": dtype, "shape": shape or [1], "names": None}
    return {} if feature_fault(spec) else spec


def _video_feature(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.glob("*/*.mp4")):
        try:
            width, height = video_index(path, whole=False).size
        except DAMAGE:
            continue
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": [height, width, 3], "names": names}
    return {}


def _rate(root: Path) -> int | None:
    """Return the rate that the timestamps count at, unless videos disagree [Hz]."""
    for path in sorted((root / "data").glob("*/*.parquet")):
        try:
            table = pq.read_table(path, columns=["timestamp", "frame_index"], partitioning=None)
            t = np.asarray(table["timestamp"].to_numpy(), dtype=np.float64).reshape(-1)
            k = np.asarray(table["frame_index"].to_numpy(), dtype=np.float64).reshape(-1)
        except DAMAGE:
            continue
        later = (k > 0) & np.isfinite(t) & (t > 0)
        if not later.any():
            continue
        rate = float(np.median(k[later] / t[later]))
        fits = np.abs(t - k / rate) < 1e-3 + 1e-6 * t
        whole = round(rate)
        if whole < 1 or abs(rate - whole) > _RATES_AGREE * rate or fits.mean() < 0.9:
            return None
        return whole if _videos_agree(root, whole) else None
    return None


def _videos_agree(root: Path, rate: int) -> bool:
    for path in sorted((root / "videos").glob("*/*/*.mp4")):
        try:
            found = video_index(path, whole=False).rate_hz
        except DAMAGE:
            continue
        if found:
            return abs(found - rate) <= _RATES_AGREE * rate
    return True


def mend_counts(
    draft: RepairDraft, info: dict[str, Any], episodes: int, frames: int, tasks: Sequence[str]
) -> None:
    """Write the counts of what is there now; splits stay while the number of episodes does."""
    counts = {"total_episodes": episodes, "total_frames": frames, "total_tasks": len(tasks)}
    changed = {k: v for k, v in counts.items() if info.get(k) != v}
    if changed:
        words = ", ".join(f"{k} {info.get(k)} → {v}" for k, v in changed.items())
        draft.did("set_counts", f"{layout.INFO}: {words}")
    before = info.get("splits")
    splits = before
    if "total_episodes" in changed or not isinstance(before, dict):
        splits = {"train": f"0:{episodes}"}
    if splits != before:
        words = f"{json.dumps(before)} → {json.dumps(splits)}"
        draft.did("set_splits", f"{layout.INFO}: splits {words}")
    if changed or splits != before:
        info |= {**counts, "splits": splits}
        save(draft, info)
