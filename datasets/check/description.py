"""`meta/info.json`, and the names of folders, files and keys.

`--fix` keeps the description where it makes sense and reads it off the data where it doesn't. What
goes by a wrong name gets the one that LeRobot looks for, only where it is unambiguous: what is
missing has one candidate, and nothing is overwritten.
"""

import contextlib
import difflib
import json
import re
import shlex
import shutil
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_json, write_json
from gaploop.core.paths import is_plain_name, plain_name
from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE, Findings, FixDraft
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.v3_files import AUTOMATIC_FEATURES, replace_table
from gaploop.datasets.video import video_index

NUMBERS: Final = frozenset(
    {"float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"}
    | {"uint8", "uint16", "uint32", "uint64"}
)
"""Number types a feature may have; beside them there are video, image, string and language."""
_OTHER: Final = frozenset(("video", "image", "string", "language"))
FOLDERS: Final = ("data", "meta", "videos")
META: Final = ("info.json", "stats.json", "tasks.parquet", "episodes")
STANDARD: Final = (columns.ACTION, columns.STATE, columns.ENVIRONMENT, *columns.AUTOMATIC)
"""Keys that LeRobot or policies know by name."""
_NEAR: Final = 0.6
_CHUNK: Final = re.compile(r"chunk-\d{3,}")
DEFAULTS: Final[dict[str, Any]] = {
    "codebase_version": "v3.0",
    "chunks_size": 1000,
    "data_files_size_in_mb": 100,
    "video_files_size_in_mb": 200,
    "data_path": layout.DATA_PATH,
    "video_path": layout.VIDEO_PATH,
    "robot_type": "",
}
_RATES_AGREE: Final = 0.01
_PATHS: Final = {
    "data_path": (
        layout.DATA_PATH,
        "data/chunk-{chunk_index:03d}/episode_{file_index:06d}.parquet",
    ),
    "video_path": (
        layout.VIDEO_PATH,
        "videos/chunk-{chunk_index:03d}/{video_key}/episode_{file_index:06d}.mp4",
    ),
}
"""LeRobot's usual names in v3, and those of v2 with v3's fields."""
_MARKED: Final = (layout.INFO, layout.STATS)


def feature_fault(spec: object) -> str:
    """Say why LeRobot can't use a feature's description; "" where it can."""
    if not isinstance(spec, Mapping):
        return "is no table"
    kind, shape = spec.get("dtype"), spec.get("shape")
    if kind not in NUMBERS | _OTHER:
        return f"has dtype {kind!r}"
    if not isinstance(shape, list | tuple) or not 1 <= len(shape) <= 5:
        return f"has shape {shape!r}"
    whole = all(type(n) is int and n > 0 for n in shape)
    return "" if whole else f"has shape {shape!r}"


def _notes_of_macos(root: Path) -> list[Path]:
    return [p for p in sorted(root.rglob("._*")) if p.is_file()]


def check_folders(info: DatasetInfo, findings: Findings) -> None:
    """Find folders under a misspelt name, such as `video` for `videos`, and what isn't data."""
    for path in _notes_of_macos(info.root):
        where = path.relative_to(info.root)
        if path.suffix == ".parquet":
            text = "A note of macOS from an archive, no data: LeRobot takes it for a table."
            findings.error("unreadable", where, text)
    for name in _MARKED:
        if (info.root / name).is_file() and (info.root / name).read_bytes()[:3] == BOM_UTF8:
            findings.error(
                "bad_info", name, "It begins with a byte order mark: LeRobot refuses it."
            )
    needed = ["data", "meta"] + (["videos"] if info.video_keys else [])
    present = {p.name for p in info.root.iterdir() if p.is_dir()}
    for name in needed:
        near = difflib.get_close_matches(name, sorted(present - set(needed)), n=1, cutoff=0.7)
        if name not in present and near:
            text = f"There is a folder {near[0]} where LeRobot looks for {name}."
            fix = shlex.join(["mv", str(info.root / near[0]), str(info.root / name)])
            findings.error("misnamed_folder", near[0], text, fix)


def check_features(info: DatasetInfo, findings: Findings) -> None:
    """Check that features are described as LeRobot needs it, and that the usual ones are there."""
    for name, spec in info.features.items():
        fault = feature_fault(spec)
        if "/" in name:
            fault = "has a '/' in its name"
        if not fault and (axes := layout.axes_of(spec)):
            fault = f"has names {spec.get('names')}, not {axes}: LeRobot's training fails"
        if fault:
            findings.error("bad_info", layout.INFO, f"Feature {name} {fault}.")
    for name in (columns.ACTION, columns.STATE, *columns.AUTOMATIC):
        if name in info.features:
            continue
        other = [n for n in info.features if n not in (*STANDARD, *info.video_keys)]
        near = [k for k, usual in usual_names(info.features).items() if usual == name]
        near = near or difflib.get_close_matches(name, other, n=1, cutoff=0.6)
        hint = f" Did the writer call it {near[0]}?" if near else ""
        fix = ""
        if not near and name not in columns.AUTOMATIC:
            where, out = shlex.quote(str(info.root)), shlex.quote(f"{info.root}_renamed")
            fix = f"gaploop edit harmonise {where} --rename_map='{{THEIRS: {name}}}'"
            fix += f" --output_dir={out}  # THEIRS: the feature that holds it"
            if not any(info.features[k].get("dtype") in NUMBERS for k in other):
                fix = f"Record {name}, too: no feature of this dataset could be it."
        # Sets of pictures and actions alone train, too; a near name says that it was meant.
        say = findings.warn if name == columns.STATE and not near else findings.error
        say("missing_feature", layout.INFO, f"There is no feature {name}.{hint}", fix)


def fix_names(draft: FixDraft) -> None:
    """Rename folders and files."""
    if notes := _notes_of_macos(draft.root):
        for path in notes:
            path.unlink()
        draft.did("left_out", f"{len(notes)} notes of macOS (._…), which hold no data")
    for name in _MARKED:
        path = draft.root / name
        if path.is_file() and (held := path.read_bytes()).startswith(BOM_UTF8):
            path.unlink()  # it may be a link
            path.write_bytes(held.removeprefix(BOM_UTF8))
            draft.did("rebuilt_info", f"{name}: without its byte order mark")
    _fix_paths(draft)
    _rename_near(draft, draft.root, FOLDERS, folders_only=True)
    _rename_near(draft, draft.root / "meta", META)
    for parent in (draft.root / "data", draft.root / layout.EPISODES):
        _fix_chunks(draft, parent, ".parquet")
    for camera in sorted((draft.root / "videos").glob("*")):
        _fix_chunks(draft, camera, ".mp4")


def _fix_paths(draft: FixDraft) -> None:
    """Give files that other templates, or v2's, name LeRobot's names, by which they are mended."""
    info = draft.info = read_object(draft.root / layout.INFO)
    for key, (usual, template) in _PATHS.items():
        files = [p for p in sorted(draft.root.rglob("*.*")) if p.is_file()]
        named = {p.relative_to(draft.root).as_posix(): p for p in files}
        stated = info.get(key, usual) != usual and layout.is_template(info[key])
        if stated:
            template = str(info[key])
        elif any(map(layout.pattern(usual).fullmatch, named)):
            continue
        pattern, moved = layout.pattern(template), []
        for name, path in named.items():
            if (found := pattern.fullmatch(name)) is None:
                continue
            place = {"chunk_index": 0, "file_index": 0, "video_key": "", **found.groupdict()}
            place |= {k: int(v) for k, v in place.items() if k != "video_key"}
            target = draft.root / usual.format(**place)
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            moved.append(f"{name} → {target.relative_to(draft.root)}")
            for folder in path.relative_to(draft.root).parents:
                with contextlib.suppress(OSError):  # what isn't empty stays
                    (draft.root / folder).rmdir()
        if stated:
            info[key] = usual
            draft.save()
        elif not moved:
            continue
        more = f" and {len(moved) - 1} more" if moved[1:] else ""
        draft.did(
            "renamed", f"{key} as LeRobot has it{': ' * bool(moved)}{''.join(moved[:1])}{more}"
        )


def _rename_near(
    draft: FixDraft, parent: Path, wanted: Sequence[str], *, folders_only: bool = False
) -> None:
    present = {p.name for p in parent.glob("*") if p.is_dir() or not folders_only}
    missing = [name for name in wanted if name not in present]
    spare = sorted(present - set(wanted) - {layout.TELEMETRY, "gap"})
    for name in missing:
        kind = Path(name).suffix  # v2's episodes.jsonl is neither the folder nor a table of v3
        alike = [n for n in spare if (parent / n).is_dir() == (not kind) and ".jsonl" not in n]
        near = [n for n in alike if best_match(n, missing) == name]
        if len(near) == 1:
            _rename(draft, parent / near[0], parent / name)


def best_match(name: str, among: Sequence[str]) -> str:
    """Return the one of `among` that `name` was probably meant to be; "" if none or several."""
    scores = [
        (difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio(), word) for word in among
    ]
    scores = sorted((s for s in scores if s[0] >= _NEAR), reverse=True)
    if not scores or (len(scores) > 1 and scores[0][0] - scores[1][0] < 0.05):
        return ""
    return scores[0][1]


def _fix_chunks(draft: FixDraft, parent: Path, suffix: str) -> None:
    for folder in [p for p in sorted(parent.glob("*")) if p.is_dir()]:
        number = re.findall(r"\d+", folder.name)
        good = folder
        if not _CHUNK.fullmatch(folder.name):
            if len(number) != 1:
                continue
            good = parent / f"chunk-{int(number[0]):03d}"
            if good.exists():
                continue
            _rename(draft, folder, good)
        for file in [p for p in sorted(good.iterdir()) if p.is_file()]:
            number = re.findall(r"\d+", file.name.replace(".mp4", ""))
            if re.fullmatch(r"file-\d{3,}\.(parquet|mp4)", file.name) or len(number) != 1:
                continue
            named = good / f"file-{int(number[0]):03d}{suffix}"
            if not named.exists():
                _rename(draft, file, named)


def _rename(draft: FixDraft, old: Path, new: Path) -> None:
    old.rename(new)
    draft.did("renamed", f"{old.relative_to(draft.root)} → {new.relative_to(draft.root)}")


def pair_keys(
    features: Mapping[str, Any], present: Sequence[str], *, videos: bool
) -> dict[str, str]:
    """Return which features mean the same as which columns, or which folders of `videos`."""
    wanted = [k for k, f in features.items() if (f.get("dtype") == "video") == videos]
    lost = [k for k in wanted if k not in present]
    spare = [k for k in present if k not in wanted]
    if len(lost) == 1 and len(spare) == 1:
        return {lost[0]: spare[0]}
    pairs = {key: best_match(key, spare) for key in lost}
    found = list(pairs.values())
    return {k: v for k, v in pairs.items() if v and found.count(v) == 1}


def read_object(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds; {} where it can't be read or holds something else."""
    try:
        value = read_json(path)
    except DAMAGE:
        return {}
    return value if isinstance(value, dict) else {}


def fix_info(draft: FixDraft) -> None:
    """Read the description, and write one in which every key is usable.

    Counts are left for later, when it is known what stays.
    """
    info = draft.info = read_object(draft.root / layout.INFO)
    was = json.dumps(info, sort_keys=True)
    lost = [k for k in DEFAULTS if k not in info or not _usable(k, info[k])] if info else ["all"]
    for key, value in DEFAULTS.items():
        if key not in info or not _usable(key, info[key]):
            info[key] = value
    # Features that are described soundly, and those found only in the files.
    described = info.get("features")
    table = described if isinstance(described, dict) else {}
    features = {k: dict(f) for k, f in table.items() if is_plain_name(k) and not feature_fault(f)}
    whole = bool(features) and len(features) == len(table)
    for column in first_schema(draft.root):
        spec, told = _described(column.type), features.get(column.name)
        if spec and told is not None and list(told["shape"]) != spec["shape"]:
            told |= {"shape": spec["shape"], "names": None}
        elif spec and told is None and not whole:
            features[column.name] = spec
    folders = [] if whole else sorted((draft.root / "videos").glob("*"))
    for folder in (f for f in folders if f.is_dir() and f.name not in features):
        for path in sorted(folder.glob("*/*.mp4")):
            with contextlib.suppress(*DAMAGE):
                width, height = video_index(path, whole=False).size
                names = ["height", "width", "channels"]
                shape = [height, width, 3]
                features[folder.name] = {"dtype": "video", "shape": shape, "names": names}
                break
    for spec in features.values():
        if axes := layout.axes_of(spec):
            spec["names"] = axes
    info["features"] = features
    lost += ["features"] if "all" not in lost and info["features"] != described else []
    rate = _rate(draft.root)
    fps = info.get("fps")
    known = isinstance(fps, int | float) and not isinstance(fps, bool) and 0 < fps <= 1000
    if rate is not None and (not known or abs(float(fps or 0) - rate) > _RATES_AGREE * rate):
        draft.did("set_fps", f"fps: {fps} → {rate}, as timestamps (and videos) have it")
        info["fps"] = rate
    elif not known:
        rough = _rate(draft.root, rough=True)
        info["fps"] = rough or 30
        why = "as timestamps have it on average" if rough else "LeRobot's usual rate: the real one"
        why += "" if rough else " isn't known"
        draft.did("set_fps", f"fps: {fps} → {info['fps']}, {why}")
    if float(info["fps"]).is_integer():
        info["fps"] = int(info["fps"])  # lerobot-record goes on with no other
    for name in ("total_episodes", "total_frames", "total_tasks"):
        info.setdefault(name, 0)
    if json.dumps(info, sort_keys=True) != was:
        draft.save()
        if lost:
            draft.did("rebuilt_info", f"{layout.INFO}: {', '.join(lost)} made anew")


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


def first_schema(root: Path) -> pa.Schema:
    """Return the schema of the first data file that has one; an empty one without.

    Lists that are as long in every row are vectors, as LeRobot's own files store them.
    """
    for path in layout.data_files(root):
        with contextlib.suppress(*DAMAGE):
            schema = pq.read_schema(path)
            lists = [f.name for f in schema if pa.types.is_list(f.type)]
            rows = pq.read_table(path, columns=lists, partitioning=None)
            for name in lists:
                widths = pc.unique(pc.list_value_length(rows[name])).to_pylist()
                if len(widths) == 1 and widths[0]:
                    field = schema.field(name)
                    field = field.with_type(pa.list_(field.type.value_type, widths[0]))
                    schema = schema.set(schema.get_field_index(name), field)
            return schema
    return pa.schema([])


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
    named = {"double": "float64", "float": "float32", "halffloat": "float16"}
    dtype = named.get(str(kind), str(kind))
    spec = {"dtype": dtype, "shape": shape or [1], "names": None}
    return {} if feature_fault(spec) else spec


def _rate(root: Path, rough: bool = False) -> int | None:
    """Return the rate that the timestamps count at, unless they or videos disagree [Hz].

    Args:
        rough: what they come to, however unevenly; nothing else is asked.
    """
    for path in layout.data_files(root):
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
        if rough and whole:
            return whole
        if whole < 1 or abs(rate - whole) > _RATES_AGREE * rate or fits.mean() < 0.9:
            return None
        for video in sorted((root / "videos").glob("*/*/*.mp4")):
            with contextlib.suppress(*DAMAGE):
                found = video_index(video, whole=False).rate_hz
                if found:
                    return whole if abs(found - whole) <= _RATES_AGREE * whole else None
        return whole
    return None


def fix_counts(draft: FixDraft, episodes: int, frames: int, tasks: Sequence[str]) -> None:
    """Write the counts of what is there now; splits stay while the number of episodes does."""
    info = draft.info
    counts = {"total_episodes": episodes, "total_frames": frames, "total_tasks": len(tasks)}
    changed = {k: v for k, v in counts.items() if info.get(k) != v}
    if changed:
        words = ", ".join(f"{k} {info.get(k)} → {v}" for k, v in changed.items())
        draft.did("set_counts", f"{layout.INFO}: {words}")
    splits = before = info.get("splits")
    if "total_episodes" in changed or not isinstance(before, dict):
        splits = {"train": f"0:{episodes}"}
    if splits != before:
        words = f"{json.dumps(before)} → {json.dumps(splits)}"
        draft.did("set_splits", f"{layout.INFO}: splits {words}")
    if changed or splits != before:
        info |= {**counts, "splits": splits}
        draft.save()


def fix_keys(draft: FixDraft) -> dict[str, str]:
    """Rename keys so that description, videos and statistics agree; data files are left for later.

    Returns:
        data column to the feature it stands for.
    """
    features, schema = draft.info["features"], first_schema(draft.root)
    stands_for: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for feature, column in pair_keys(features, schema.names, videos=False).items():
        standard = feature in STANDARD or feature.startswith("gap.")
        name = feature if standard and column not in STANDARD else column
        if column != name:
            stands_for[column] = name
        if feature != name:
            renamed[feature] = name
    folder = draft.root / "videos"
    present = sorted(p.name for p in folder.glob("*") if p.is_dir())
    for feature, name in pair_keys(features, present, videos=True).items():
        kept = feature if feature.startswith(columns.IMAGES) else name
        if name != kept:
            (folder / name).rename(folder / kept)
            draft.did("renamed", f"videos/{name} → videos/{kept}")
        if feature != kept:
            renamed[feature] = kept
    # What goes by a wrong name everywhere.
    everywhere = usual_names(features)
    renamed |= everywhere
    stands_for |= everywhere
    if renamed:
        _rename_features(draft, renamed)
    for old, new in stands_for.items():
        draft.did("renamed", f"data column {old} → {new}")
    named = {n: stands_for.get(n, n) for n in schema.names}
    # Features that LeRobot makes itself, and columns beyond all that is described.
    features = draft.info["features"]
    more = {n: {**f, "shape": [1]} for n, f in AUTOMATIC_FEATURES.items() if n not in features}
    known = {*named.values(), *more}
    if all(k in known or f["dtype"] == "video" for k, f in features.items()):
        for column in schema:
            spec, name = _described(column.type), named[column.name]
            if spec and name not in features:
                more.setdefault(name, spec)
    if more:
        features |= more
        draft.save()
        draft.did("rebuilt_info", f"{layout.INFO}: features {', '.join(more)} described")
    known = {k for k, f in features.items() if f["dtype"] != "video"}
    dropped = [column for column, name in named.items() if name not in known]
    if dropped:
        raise UnusableInputError(
            f"{draft.root.name}: data columns {', '.join(dropped)} are no features of "
            f"{layout.INFO}, and which is meant is not clear. Describe or rename them there."
        )
    return stands_for


def usual_names(features: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands for action or state by another name: `actions`, `state`; to LeRobot's."""
    names = (columns.ACTION, columns.STATE)
    meant = {
        k: columns.STATE if k in ("state", "states") else best_match(k, names)
        for k, f in features.items()
        if k not in STANDARD
        and not k.startswith("gap.")
        and isinstance(f, Mapping)
        and f.get("dtype") not in ("video", "image", "string")
    }
    others = {name: [k for k in meant if meant[k] == name] for name in names}
    return {k[0]: n for n, k in others.items() if n not in features and len(k) == 1}


def rename_features(draft: FixDraft, renamed: Mapping[str, str]) -> None:
    """Rename features as the user says: in the description, data, videos and statistics.

    Raises:
        UnusableInputError: as `checked_rename`.
    """
    renamed = checked_rename(draft.info["features"], renamed)
    _rename_features(draft, renamed)
    for path in layout.data_files(draft.root):
        table = pq.read_table(path, partitioning=None)
        if set(table.column_names) & set(renamed):
            table = table.rename_columns([renamed.get(n, n) for n in table.column_names])
            # What pandas and Hugging Face noted about the old columns goes.
            replace_table(path, table.replace_schema_metadata(None))


def checked_rename(features: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return what `--rename_map` says, with the ages of cameras, which go by their names.

    Raises:
        UnusableInputError: there is no such feature, or the new name is taken or can't be one.
    """
    for old, new in renamed.items():
        if old not in features:
            raise unknown_choice("feature", old, features, "--rename_map")
        if new in features and new not in renamed:
            raise UnusableInputError(f"--rename_map: {new} is there already. Choose another name.")
        if not is_plain_name(new) or old in columns.AUTOMATIC or new in columns.AUTOMATIC:
            raise UnusableInputError(f"--rename_map: {old} can't be renamed to {new!r}.")
    if len(set(renamed.values())) < len(renamed) or set(renamed) & set(renamed.values()):
        raise UnusableInputError("--rename_map: every feature needs a new name of its own.")
    cameras = {
        old.removeprefix(columns.IMAGES): new.removeprefix(columns.IMAGES)
        for old, new in renamed.items()
    }
    ages = {columns.age_column(old): columns.age_column(new) for old, new in cameras.items()}
    return {**{old: new for old, new in ages.items() if old in features}, **renamed}


def _rename_features(draft: FixDraft, renamed: dict[str, str]) -> None:
    features = draft.info["features"]
    draft.info["features"] = {renamed.get(k, k): f for k, f in features.items()}
    draft.save()
    videos = draft.root / "videos"
    for old, new in renamed.items():
        plain_name(new, "data column", draft.root.name)
        draft.did("renamed", f"feature {old} → {new}")
        if (videos / old).is_dir() and not (videos / new).exists():
            shutil.move(videos / old, videos / new)
    stats = read_object(draft.root / layout.STATS)
    if set(stats) & set(renamed):
        named = {renamed.get(k, k): v for k, v in stats.items()}
        write_json(draft.root / layout.STATS, named)
    for path in layout.episode_files(draft.root):
        try:
            table = pq.read_table(path, partitioning=None)
        except DAMAGE:
            continue
        names = []
        for name in table.column_names:
            parts = name.split("/")
            if len(parts) == 3 and parts[0] in ("stats", "videos"):
                parts[1] = renamed.get(parts[1], parts[1])
            names.append("/".join(parts))
        if names != table.column_names:
            replace_table(path, table.rename_columns(names))
