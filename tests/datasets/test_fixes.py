"""Every fix that `check` prints is run on the finding that it is for, as a user would."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CAMERA, change, data_files, episode_files, info, run_fix, set_info

from gaploop.core import labels
from gaploop.core.files import LFS_POINTER
from gaploop.core.labels import LabelEvent
from gaploop.core.statistics import QUANTILES
from gaploop.datasets import columns, layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import load_takes
from gaploop.scripts.cli import main

type Write = Callable[..., str]
type Plant = Callable[[Path], object]

EPISODES, FRAMES = 3, 12


def drop(path: Path, *names: str) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(list(names)), path)


def put(
    path: Path, name: str, value: Callable[[int], Any], kind: pa.DataType | None = None
) -> None:
    """Set a column to what `value` gives for each row."""
    table = pq.read_table(path, partitioning=None)
    column = pa.array([value(i) for i in range(len(table))], kind)
    at = table.column_names.index(name) if name in table.column_names else len(table.columns)
    table = table.remove_column(at) if at < len(table.columns) else table
    pq.write_table(table.add_column(at, name, column), path)


def feature(root: Path, name: str, **values: object) -> None:
    features = info(root)["features"]
    set_info(root, features={**features, name: {**features.get(name, {}), **values}})


def without_feature(root: Path, name: str) -> None:
    """Take a feature away, from the description and the data."""
    set_info(root, features={k: f for k, f in info(root)["features"].items() if k != name})
    for path in data_files(root):
        drop(path, name)


def renamed(root: Path, name: str, new: str) -> None:
    damage.rename_feature(root, name, new)
    for path in data_files(root):
        damage.rename_column(path, name, new)


def stats(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = root / layout.STATS
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def second(value: Any, otherwise: Callable[[Any], Any] = lambda v: v) -> Callable[[list[Any]], Any]:
    """Change the second of a column's values."""
    return lambda values: [values[0], value, *map(otherwise, values[2:])]


def link_out(root: Path) -> None:
    (root.parent / "elsewhere").write_text("x")
    (root / "meta/more").symlink_to(root.parent / "elsewhere")


def clip(root: Path, **values: Callable[[list[float]], list[float]]) -> None:
    for name, edit in values.items():
        change(episode_files(root)[0], f"videos/{CAMERA}/{name}", edit)


def mixed(root: Path) -> None:
    """Split the data into two files, one with another type of timestamps."""
    [path] = data_files(root)
    table = pq.read_table(path, partitioning=None)
    cut = FRAMES * (EPISODES - 1)
    pq.write_table(table.slice(0, cut), path)
    second = path.with_name("file-001.parquet")
    pq.write_table(table.slice(cut), second)
    put(second, "timestamp", lambda i: i / damage.FPS, pa.float64())
    change(episode_files(root)[0], "data/file_index", lambda v: [*v[:-1], 1])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def without_videos(root: Path) -> None:
    shutil.rmtree(root / "videos")
    drop(episode_files(root)[0], f"videos/{CAMERA}/file_index")


def smaller(root: Path) -> None:
    feature(root, CAMERA, shape=[24, 32, 3])


def late(root: Path) -> None:
    """Place all pictures but the first episode's one frame late, the last beyond the file's end."""

    def later(times_s: list[float]) -> list[float]:
        return [times_s[0], *(t + 1 / damage.FPS for t in times_s[1:])]

    clip(root, from_timestamp=later, to_timestamp=later)


def with_gaps(root: Path) -> None:
    for path in (*data_files(root), *episode_files(root)):
        change(path, "episode_index", lambda v: [3 * e for e in v])


def without_quantiles(root: Path) -> None:
    stats(root, lambda s: [entry.pop(q) for entry in s.values() for q in QUANTILES])


def radians(root: Path) -> None:
    """Write the last episode in radians."""

    def edit(rows: list[list[float]]) -> list[list[float]]:
        kept = FRAMES * (EPISODES - 1)
        return rows[:kept] + np.radians(rows[kept:]).tolist()

    for name in ("action", "observation.state"):
        change(data_files(root)[0], name, edit)


def pointer(root: Path) -> None:
    data_files(root)[0].write_bytes(LFS_POINTER + b"\noid sha256:0\nsize 9\n")


def own_paths(root: Path) -> None:
    """One file an episode's name, as converters of v2 call them, and tasks without an index."""
    data = "data/chunk-{chunk_index:03d}/episode_{file_index:06d}.parquet"
    video = "videos/chunk-{chunk_index:03d}/{video_key}/episode_{file_index:06d}.mp4"
    set_info(root, data_path=data, video_path=video)
    moves = [(p, data.format(chunk_index=0, file_index=k)) for k, p in enumerate(data_files(root))]
    for camera in sorted((root / "videos").iterdir()):
        for k, path in enumerate(sorted(camera.glob("*/*"))):
            name = video.format(chunk_index=0, file_index=k, video_key=camera.name)
            moves.append((path, name))
    for path, name in moves:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(root / name)
    tasks = root / layout.TASKS
    pq.write_table(pq.read_table(tasks).replace_schema_metadata(None), tasks)


def emptied(root: Path) -> None:
    """A script wrote v2's files and left its descriptions empty."""
    own_paths(root)
    shutil.rmtree(root / "meta")
    for name in ("info.json", "episodes.jsonl", "episodes_stats.jsonl", "tasks.jsonl"):
        write(root / "meta" / name, "")


def decimals(root: Path) -> None:
    """What pandas makes of whole numbers where one was missing in another table."""
    table = pq.read_table(episode_files(root)[0])
    kinds = [pa.float64() if pa.types.is_integer(f.type) else f.type for f in table.schema]
    names = zip(table.column_names, kinds, strict=True)
    pq.write_table(table.cast(pa.schema(list(names))), episode_files(root)[0])


def from_a_mac(root: Path) -> None:
    for path in (*data_files(root), *episode_files(root), root / layout.INFO):
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\26\7Mac OS X")


def as_text(root: Path) -> None:
    """What a way through CSV leaves: NumPy's text of each vector."""
    [path] = data_files(root)
    for name in ("action", "observation.state"):
        vectors = pq.read_table(path)[name].to_pylist()
        put(path, name, lambda i, rows=vectors: str(np.array(rows[i])))


def never_a_row(root: Path) -> None:
    """Add a line of the table for an episode that was ended before its first row."""
    table = pq.read_table(episode_files(root)[0])
    last = table.slice(EPISODES - 1).to_pylist()[0]
    last |= {"episode_index": EPISODES, "length": 0, "dataset_from_index": last["dataset_to_index"]}
    more = pa.Table.from_pylist([last], table.schema)
    pq.write_table(pa.concat_tables([table, more]), episode_files(root)[0])
    set_info(root, total_episodes=EPISODES + 1)


def fixed_lists(root: Path) -> None:
    table = pq.read_table(data_files(root)[0], partitioning=None)
    at = table.column_names.index("timestamp")
    rows = pa.array([[t] for t in table["timestamp"].to_pylist()], pa.list_(pa.float32(), 1))
    pq.write_table(table.set_column(at, "timestamp", rows), data_files(root)[0])


RECORDED: dict[str, tuple[str, Plant]] = {
    "decimals": ("unreadable", decimals),
    "from a Mac": ("unreadable", from_a_mac),
    "never a row": ("bad_rows", never_a_row),
    "text": ("column_type", as_text),
    "lists of one": (
        "column_type",
        lambda r: put(data_files(r)[0], "timestamp", lambda i: [i % FRAMES / damage.FPS]),
    ),
    "lists of one, of fixed length": ("column_type", fixed_lists),
    "v2's meta emptied": ("bad_info", emptied),
    "an empty file beside": (
        "unreadable",
        lambda r: data_files(r)[0].with_name("file-001.parquet").write_bytes(b""),
    ),
    "byte order mark": (
        "bad_info",
        lambda r: (r / layout.INFO).write_bytes(BOM_UTF8 + (r / layout.INFO).read_bytes()),
    ),
    "no axes": ("bad_info", lambda r: feature(r, CAMERA, names=None)),
    "other axes": ("bad_info", lambda r: feature(r, CAMERA, names=["height", "width", "rgb"])),
    "own paths": ("unreadable", own_paths),
    "late pictures": ("video_too_short", late),
    "uneven pictures": (
        "video_timestamps",
        lambda r: damage.uneven(damage.video_files(r)[0], damage.FPS),
    ),
    "gaps in numbers": ("episode_numbers", with_gaps),
    "no quantiles": ("missing_stats", without_quantiles),
    "averaged quantiles": ("wrong_stats", lambda _root: None),
    "time runs on": (
        "bad_timestamp",
        lambda r: change(data_files(r)[0], "timestamp", lambda v: [i / 20 for i in range(len(v))]),
    ),
    "another program's": (
        "bad_info",
        lambda r: (r / layout.INFO).write_text('{"name": "x", "version": 2}'),
    ),
    "radians": ("mixed_units", radians),
    "pointer": ("lfs_pointer", pointer),
    **{name: (way.code, way.plant) for name, way in damage.VIDEO_DAMAGES.items()},
    "NaN": ("not_finite", damage.with_nan),
    "link out": ("link_out", link_out),
    "no fps": ("bad_info", lambda r: set_info(r, fps=None)),
    "no place in a template": ("bad_info", lambda r: set_info(r, data_path="data/{x}.parquet")),
    "slash in a name": ("bad_info", lambda r: feature(r, "a/b", dtype="float32", shape=[1])),
    "Lance": ("bad_info", lambda r: set_info(r, storage_format="lance")),
    "no state": ("missing_feature", lambda r: renamed(r, "observation.state", "state")),
    "no index": ("missing_feature", lambda r: without_feature(r, "index")),
    "no timestamp": ("missing_feature", lambda r: without_feature(r, "timestamp")),
    "tasks of other rows": (
        "bad_tasks",
        lambda r: change(episode_files(r)[0], "tasks", second(["Swim"])),
    ),
    "task index": ("bad_task_index", lambda r: change(data_files(r)[0], "task_index", second(7))),
    "file index": (
        "bad_file_index",
        lambda r: change(episode_files(r)[0], "data/file_index", second(1)),
    ),
    "orphan rows": (
        "orphan_rows",
        lambda r: pq.write_table(
            pq.read_table(episode_files(r)[0]).slice(0, 2), episode_files(r)[0]
        ),
    ),
    "no data": ("missing_data", lambda r: shutil.rmtree(r / "data")),
    "frame count": ("frame_count", lambda r: set_info(r, total_frames=5)),
    "column gone": ("missing_column", lambda r: drop(data_files(r)[0], "action")),
    "another column": ("unknown_column", lambda r: put(data_files(r)[0], "more", float)),
    "another type": ("column_type", lambda r: put(data_files(r)[0], "task_index", str)),
    "mixed types": ("mixed_types", mixed),
    "frame index": (
        "bad_frame_index",
        lambda r: change(data_files(r)[0], "frame_index", second(9)),
    ),
    "index": ("bad_index", lambda r: change(data_files(r)[0], "index", second(99))),
    "absurd stats": (
        "absurd_stats",
        lambda r: stats(r, lambda s: s["action"].update(mean=[1e9] * 3)),
    ),
    "stats of a feature": ("missing_stats", lambda r: stats(r, lambda s: s.pop("action"))),
    "stats of pictures": ("missing_stats", lambda r: stats(r, lambda s: s.pop(CAMERA))),
    "stats of an episode": (
        "episode_stats",
        lambda r: change(episode_files(r)[0], "stats/action/mean", second([9.0, 9.0, 9.0])),
    ),
    "all videos": ("missing_video", lambda r: shutil.rmtree(r / "videos")),
    "no columns of videos": (
        "no_video_columns",
        lambda r: drop(
            episode_files(r)[0], *(f"videos/{CAMERA}/{n}" for n in ("chunk_index", "file_index"))
        ),
    ),
    "nor videos": (
        "no_video_columns",
        without_videos,
    ),
    "overlap": (
        "video_overlap",
        lambda r: clip(
            r, from_timestamp=second(0.1), to_timestamp=second(0.1 + FRAMES / damage.FPS)
        ),
    ),
    "ends": ("video_timestamps", lambda r: clip(r, to_timestamp=second(1.0))),
    "between pictures": (
        "video_timestamps",
        lambda r: clip(
            r,
            from_timestamp=lambda v: [t + 0.01 for t in v],
            to_timestamp=lambda v: [t + 0.01 for t in v],
        ),
    ),
    "video of another rate": (
        "video_fps",
        lambda r: (
            set_info(r, fps=40),
            change(data_files(r)[0], "timestamp", lambda v: [t / 2 for t in v]),
        ),
    ),
    "size": ("video_size", smaller),
    "empty": (
        "empty",
        lambda r: (
            set_info(r, total_episodes=0, total_frames=0),
            shutil.rmtree(r / "data"),
            shutil.rmtree(r / "meta/episodes"),
        ),
    ),
}
ELSEWHERE = {
    "bad_fps", "withdrawn_consent", "bad_consent", "wrong_pictures", "video_too_long", "unsealed",
    "bad_take", "missing_file", "changed_file", "row_count", "video_frames", "dropped_pictures",
    "missing_tag",
}  # fmt: skip
"""Codes whose fix is in words, or whose command other tests run."""


def real(root: Path, calibrations: list[str]) -> None:
    for name, values in (
        ("gap_domain", ["real"] * 3),
        ("gap_kind", ["demonstration"] * 3),
        ("gap_calibration", calibrations),
    ):
        change(episode_files(root)[0], name, lambda _, values=values: values)


def stale(root: Path) -> None:
    uid = pq.read_table(episode_files(root)[0])["gap_uid"][0].as_py()
    labels.append(root / layout.LABELS, LabelEvent(uid, "outcome", "failure", "ana", "engineer"))


PUBLISHED: dict[str, tuple[str, Plant]] = {
    "units": ("mixed_units", lambda r: change(episode_files(r)[0], "gap_units", second("rad"))),
    "columns dropped": (
        "no_gap_columns",
        lambda r: drop(episode_files(r)[0], *columns.EPISODE_COLUMNS),
    ),
    "one column dropped": ("missing_gap_columns", lambda r: drop(episode_files(r)[0], "gap_kind")),
    "frame column dropped": ("missing_gap_columns", lambda r: without_feature(r, "gap.sent")),
    "type": (
        "gap_column_type",
        lambda r: put(episode_files(r)[0], "gap_t0_ns", float, pa.float64()),
    ),
    "word": (
        "bad_gap_value",
        lambda r: change(episode_files(r)[0], "gap_outcome", second("sucess")),
    ),
    "conditions": (
        "bad_gap_value",
        lambda r: change(episode_files(r)[0], "gap_conditions", second("[1")),
    ),
    "dimension": (
        "bad_gap_value",
        lambda r: change(episode_files(r)[0], "gap_dimensions", second(["contact"])),
    ),
    "weights": (
        "bad_gap_value",
        lambda r: change(episode_files(r)[0], "gap_dimension_weights", second([7.0])),
    ),
    "same uid": ("bad_uid", lambda r: change(episode_files(r)[0], "gap_uid", lambda v: [v[0]] * 3)),
    "no uid": ("bad_uid", lambda r: change(episode_files(r)[0], "gap_uid", second(""))),
    "path as uid": ("bad_uid", lambda r: change(episode_files(r)[0], "gap_uid", second("../x"))),
    "another episode": (
        "wrong_take",
        lambda r: change(episode_files(r)[0], "gap_uid", lambda v: v[::-1]),
    ),
    "labels": ("bad_labels", lambda r: write(r / layout.LABELS, "{\n{}\n")),
    "stale": ("stale_labels", stale),
    "consent": (
        "no_consent",
        lambda r: change(episode_files(r)[0], "gap_consent", second("c-bbbbbbbbbb")),
    ),
    "no calibration": ("no_calibration", lambda r: real(r, ["a", "", "a"])),
    "calibrations": ("mixed_calibration", lambda r: real(r, ["a", "b", "b"])),
    "telemetry": ("bad_telemetry", lambda r: next((r / "telemetry").iterdir()).write_bytes(b"x")),
    "orphan": (
        "orphan_telemetry",
        lambda r: shutil.copy(next((r / "telemetry").iterdir()), r / "telemetry/more.zarr.zip"),
    ),
}
STORED: dict[str, tuple[str, Plant]] = {
    "no picture": (
        "bad_pictures",
        lambda r: change(data_files(r)[0], CAMERA, second({"bytes": b"x", "path": "x"})),
    ),
}
BASES = {"recorded": RECORDED, "published": PUBLISHED, "stored": STORED}
"""What faults are planted in: a LeRobot recording, a dataset of ours, one without videos."""
ALL = RECORDED | PUBLISHED | STORED
LAID_OUT_ANEW = {
    "decimals",
    "from a Mac",
    "text",
    "an empty file beside",
    "never a row",
    "own paths",
    "overlap",
    "between pictures",
    "late pictures",
    "uneven pictures",
}
"""Faults after whose fix each episode still has its own pictures."""
COMMANDS = {
    "late pictures": "convert", "uneven pictures": "convert", "gaps in numbers": "convert",
    "own paths": "convert",
    "another program's": "convert", "NaN": "check", "truncated video": "check",
    "column gone": "convert", "empty": "check", "columns dropped": "publish",
    "pointer": "check", "missing video": "convert",
}  # fmt: skip
"""Faults to the command that meets them before `check` does."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    root = tmp_path_factory.mktemp("fixes")
    damage.record(root / "recorded", EPISODES, FRAMES)
    damage.record(root / "stored", EPISODES, FRAMES, videos=False)
    for i in range(EPISODES):
        write_take(root / "journal", FRAMES, code=50 * i)
    publish(root / "journal", root / "published", "me/x")
    to = f"--output_dir={root}/imported"
    assert main(["convert", str(root / "recorded"), to]) == 0
    return root


@pytest.mark.members(8)
@pytest.mark.parametrize("fault", ALL)
def test_the_fix_that_is_printed_fixes_it(store: Path, tmp_path: Path, fault: str) -> None:
    code, plant = ALL[fault]
    base = next(b for b, faults in BASES.items() if fault in faults)
    root = Path(shutil.copytree(store / base, tmp_path / "my set"))
    plant(root)
    follow(root, code, store / base, has_pictures=fault in LAID_OUT_ANEW)


def follow(root: Path, code: str, old: Path, *, has_pictures: bool) -> None:
    """Run what is printed; what isn't a command is for a person."""
    found = [f for f in check(root) if f.code == code]
    assert found, [f.code for f in check(root)]
    assert all(f.message and f.where for f in found)
    for fix in dict.fromkeys(f.fix for f in found):
        if not fix.startswith(("gaploop", "mv ")):
            assert not re.search(r"gaploop \w+ [^-\s]", fix), fix  # a command stands by itself
            continue
        if "--help" in fix:
            assert main(shlex.split(fix, comments=True)[1:]) == 0
            continue
        done = run_fix(next(f for f in found if f.fix == fix), old)
        assert code not in {f.code for f in check(done)}
        for was, now in zip(load_takes(old), load_takes(done), strict=True) if has_pictures else ():
            for camera, pictures in was.cameras.items():
                for a, b in zip(pictures(), now.cameras[camera](), strict=True):
                    assert np.abs(a.astype(float) - b).mean() < 3.0


@pytest.mark.members(4)
@pytest.mark.parametrize("fault", COMMANDS)
def test_what_a_command_prints_leads_on(
    store: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Import named repair, and repair named import: whoever did as told went in a circle.

    The recording has come through import before, where that is possible.
    """
    base = next(b for b, faults in BASES.items() if fault in faults)
    root = tmp_path / "set"
    shutil.copytree(store / ("imported" if base == "recorded" else base), root)
    ALL[fault][1](root)
    words = {
        "check": ["check", str(root), "--fix"],
        "convert": ["convert", str(root), f"--output_dir={tmp_path}/out"],
        "publish": ["publish", f"--journal={store}/journal", f"--dataset.root={root}"],
    }[COMMANDS[fault]]
    tried: list[list[str]] = []
    while main(words) != 0:
        said = capsys.readouterr()
        [printed] = re.findall(r"gaploop (?!\w+:)([^\n#]+)", said.out + said.err)[-1:] or [""]
        told = shlex.split(printed.rstrip(". "))
        if not told or "--help" in told:
            assert re.search("Restore|Fetch|delete it", said.out + said.err), said
            return  # in words, for a person
        assert told not in tried, said
        tried.append(told)
        assert main(told) == 0, said
        if told[0] in ("convert", "edit"):
            return  # it wrote another dataset, without what is wrong with this


def test_no_code_is_left_out() -> None:
    text = Path(__file__).parents[2].joinpath("docs/data/checking.md").read_text()
    table = text[text.index("| looks at |") : text.index("How the less obvious")]
    listed = set(re.findall(r"`([a-z_]+)`", table))
    ways = {way.code for way in damage.DAMAGES.values()}  # repaired in test_damaged.py
    assert listed == ELSEWHERE | ways | {code for code, _ in ALL.values()}
