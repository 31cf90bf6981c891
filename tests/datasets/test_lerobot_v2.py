"""LeRobot's older layout: there and back, and what is missing is named, not half written."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import damage
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from damage import CAMERA, record

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.edit.changes import ticks_to_degrees
from gaploop.datasets.formats.lerobot_v2 import EPISODES, upgrade
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.datasets.v3_files import load_frames
from gaploop.scripts.cli import main

Write = Callable[..., str]
FRAMES = (9, 7, 8, 6)
OVERHEAD = "observation.images.overhead"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v2")


@pytest.fixture
def published(store: Path, write_take: Write) -> Path:
    """Four takes with labels and dimensions, made once; never changed."""
    root = store / "set"
    if not root.exists():
        for k, frames in enumerate(FRAMES):
            uid = write_take(
                store / "journal",
                frames,
                Outcome.SUCCESS if k else Outcome.FAILURE,
                code=50 * k,
                task=f"Task {k % 2}",
                dimensions={"contact_dynamics": 0.7} if k == 1 else {},
            )
        event = labels.LabelEvent(uid, "phase", "grasp", "ana", "engineer")
        labels.append(store / "journal" / "labels.jsonl", event)
        publish(store / "journal", root, "me/set")
    return root


@pytest.fixture
def old(store: Path, published: Path, tmp_path: Path) -> Path:
    """The same as v2.1."""
    if not (store / "old").exists():
        assert export(published, store / "old") == 0
    return Path(shutil.copytree(store / "old", tmp_path / "old"))


def export(root: Path, target: Path) -> int:
    return main(["convert", str(root), "--to=lerobot_v21", f"--output_dir={target}"])


def import_(source: Path, target: Path, *options: str) -> int:
    return main(["convert", str(source), f"--output_dir={target}", *options])


def errors(root: Path) -> list[str]:
    return [f"{f.where}: {f.message}" for f in check(root) if f.severity == ERROR]


def data(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def video(root: Path, episode: int, key: str = OVERHEAD) -> Path:
    return root / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"


def left_behind(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def pictures(root: Path) -> list[np.ndarray]:
    return [p for take in read_takes(root) for c in take.cameras.values() for p in c()]


def require_same(published: Path, back: Path, episodes: tuple[int, ...]) -> None:
    numbers = [n for n in layout.read_info(published).features if n not in columns.AUTOMATIC]
    numbers = [n for n in numbers if not n.startswith(columns.IMAGES)]
    before, after = load_frames(published, numbers, episodes), load_frames(back, numbers)
    for name in numbers:
        np.testing.assert_array_equal(before.columns[name], after.columns[name], name)
    wanted = [*columns.EPISODE_COLUMNS, "tasks", "length"]
    rows = [[r[n] for n in wanted] for r in layout.episode_rows(published)]
    found = [[r[n] for n in wanted] for r in layout.episode_rows(back)]
    assert found == [rows[e] for e in episodes]
    lengths = np.cumsum([0, *FRAMES])
    shown = pictures(published)
    due = [p for e in episodes for p in shown[lengths[e] : lengths[e + 1]]]
    for a, b in zip(due, pictures(back), strict=True):
        np.testing.assert_array_equal(a, b)


def test_there_and_back_gives_the_dataset_back(published: Path, old: Path, tmp_path: Path) -> None:
    back = tmp_path / "back"
    assert import_(old, back) == 0
    assert errors(back) == []
    require_same(published, back, (0, 1, 2, 3))
    assert (back / layout.LABELS).read_text() == (published / layout.LABELS).read_text()
    for path in (published / layout.TELEMETRY).iterdir():
        assert (back / layout.TELEMETRY / path.name).read_bytes() == path.read_bytes()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    assert LeRobotDataset("me/back", root=back)[0][OVERHEAD].shape == (3, 64, 64)


def test_lerobots_own_converter_reads_what_is_exported(old: Path) -> None:
    from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

    convert_dataset("me/old", root=old, push_to_hub=False)
    assert [f for f in check(old) if f.severity == ERROR and f.code != "wrong_stats"] == []


def test_v20_has_no_statistics_of_episodes_and_needs_none(old: Path, tmp_path: Path) -> None:
    (old / "meta/episodes_stats.jsonl").unlink()
    path = old / layout.INFO
    path.write_text(path.read_text().replace("v2.1", "v2.0"))
    assert import_(old, tmp_path / "back") == 0
    assert errors(tmp_path / "back") == []


def test_what_is_missing_is_named_and_left_out(
    published: Path, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """LeRobot's converter ended in a traceback where a video was missing, and left a half-written
    folder that `check` then sent in a circle."""
    video(old, 1).unlink()
    data(old, 2).unlink()
    assert import_(old, tmp_path / "back", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["episodes"] == 2
    assert "episode_000001.mp4 is missing" in answer["left_out"]["1"]
    assert "episode_000002.parquet is missing" in answer["left_out"]["2"]
    assert errors(tmp_path / "back") == []
    require_same(published, tmp_path / "back", (0, 3))


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "odd", ["time runs on", "uneven pictures", "gaps in numbers", "columns that LeRobot makes"]
)
def test_what_is_only_stated_oddly_comes_along_whole(
    published: Path, old: Path, tmp_path: Path, odd: str
) -> None:
    """Import named repair for timestamps that ran on, and repair named import; pictures at uneven
    times were left out; a gap in the numbers ended in exit code 1 with everything written; without
    frame_index it was a KeyError."""
    for k in range(len(FRAMES)):
        table = pq.read_table(data(old, k))
        if odd == "time runs on":
            later = pc.add(table["timestamp"], pa.scalar(10.0 * k, pa.float32()))
            at = table.column_names.index("timestamp")
            pq.write_table(table.set_column(at, "timestamp", later), data(old, k))
        elif odd == "uneven pictures":
            damage.uneven(video(old, k), 50)
        elif odd == "columns that LeRobot makes":
            made = ["frame_index", "index", "episode_index", "task_index"]
            pq.write_table(table.drop_columns(made), data(old, k))
            info = json.loads((old / layout.INFO).read_text())
            info["features"] = {n: f for n, f in info["features"].items() if n not in made}
            info["data_path"] = "data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet"
            (old / layout.INFO).write_text(json.dumps(info))
    if odd == "gaps in numbers":
        for k in (3, 2):
            video(old, k).rename(video(old, 2 * k + 1))
            data(old, k).rename(data(old, 2 * k + 1))
        lines = (old / EPISODES).read_text()
        for k in (3, 2):
            lines = lines.replace(f'"episode_index": {k},', f'"episode_index": {2 * k + 1},')
        (old / EPISODES).write_text(lines)
    assert import_(old, tmp_path / "back") == 0
    assert errors(tmp_path / "back") == []
    require_same(published, tmp_path / "back", (0, 1, 2, 3))


def test_encoder_ticks_become_the_degrees_that_lerobot_reads(old: Path, tmp_path: Path) -> None:
    """Takes in ticks lost their joints in silence."""
    spec = json.loads((old / layout.INFO).read_text())["features"][columns.STATE]
    names = spec["names"]
    for k in range(len(FRAMES)):
        table = pq.read_table(data(old, k))
        for name in (columns.STATE, columns.ACTION):
            ticks = np.full((len(table), len(names)), 2000.0, dtype=np.float32)
            ticks[:, -1] = 1200.0 + 10 * np.arange(len(table))
            at, kind = table.column_names.index(name), table.schema.field(name).type
            table = table.set_column(at, name, pa.array(list(ticks), kind))
        pq.write_table(table, data(old, k))
    arm = tmp_path / "arm.json"
    motor = {"id": 1, "drive_mode": 0, "homing_offset": 0, "range_min": 1000, "range_max": 3000}
    arm.write_text(json.dumps({name.removesuffix(".pos"): motor for name in names}))
    assert import_(old, tmp_path / "angles", f"--calibration={arm}") == 0
    (file,) = (tmp_path / "angles" / "data").rglob("*.parquet")
    state = np.array(pq.read_table(file)[columns.STATE].to_pylist())
    assert (state[:, :-1] == 0.0).all()
    assert state[0, -1] == pytest.approx(10.0)
    info = json.loads((tmp_path / "angles/meta/gap/convert.json").read_text())
    assert info["fixed"] == ["Encoder ticks became degrees."]
    assert import_(tmp_path / "angles", tmp_path / "again", f"--calibration={arm}") == 2


@pytest.mark.parametrize(
    "names",
    [
        ["left_pan.pos", "left_gripper.pos", "right_pan.pos", "right_gripper.pos"],
        ["right_pan", "right_gripper", "left_pan", "left_gripper"],  # files are in that order, too
        ["arm1_j1", "arm1_j2", "arm2_j1", "arm2_j2"],
    ],
)
def test_a_pair_of_arms_has_two_calibration_files(names: list[str], tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for k, file in enumerate(files):
        motor = {"drive_mode": k, "range_min": 1000 + 500 * k, "range_max": 3000}
        file.write_text(json.dumps({"pan": motor, "gripper": motor}))
    feature = {"dtype": "float32", "shape": [4], "names": names}
    info = layout.DatasetInfo(tmp_path, 20.0, {columns.STATE: feature}, "a pair", 1, 1)
    ticks = np.array([[2000.0, 1000.0, 2250.0, 3000.0]])
    change = ticks_to_degrees(info, files, ticks)
    angles = (ticks - change.subtract[columns.STATE]) * change.scale[columns.STATE]
    assert angles.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    with pytest.raises(UnusableInputError, match="of 4 joints"):
        ticks_to_degrees(info, files[:1], ticks)


@pytest.mark.members(2)
@pytest.mark.parametrize("spoil", ["cut video", "cut rows", "short video", "NaN"])
def test_what_is_damaged_is_left_out(
    published: Path, old: Path, tmp_path: Path, spoil: str
) -> None:
    if spoil == "short video":
        shutil.copyfile(video(old, 3), video(old, 1))
    elif spoil == "NaN":
        table = pq.read_table(data(old, 1))
        rows = table.to_pylist()
        rows[2]["action"][0] = float("nan")
        pq.write_table(pa.Table.from_pylist(rows, table.schema), data(old, 1))
    else:
        path = video(old, 1) if spoil == "cut video" else data(old, 1)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert import_(old, tmp_path / "back") == 1
    require_same(published, tmp_path / "back", (0, 2, 3))


def test_where_nothing_is_whole_nothing_is_written(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(old / "videos")
    assert import_(old, tmp_path / "back") == 2
    assert "--drop_videos=true" in capsys.readouterr().err
    assert left_behind(tmp_path) == ["old"]
    assert import_(old, tmp_path / "back", "--drop_videos=true") == 0
    assert errors(tmp_path / "back") == []


@pytest.mark.parametrize("name", [layout.INFO, EPISODES, "meta/tasks.jsonl"])
def test_damaged_descriptions_are_one_clear_line(
    old: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (old / name).read_text()
    (old / name).write_text(text[: len(text) // 2 + 5])
    assert import_(old, tmp_path / "back") == 2
    assert "Traceback" not in capsys.readouterr().err
    assert left_behind(tmp_path) == ["old"]


def test_an_export_leaves_out_what_is_not_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = record(tmp_path / "set", 2)
    first = record(tmp_path / "other", 1)
    [path] = (root / "videos" / CAMERA).glob("*/*.mp4")
    [shorter] = (first / "videos" / CAMERA).glob("*/*.mp4")
    shutil.copyfile(shorter, path)
    assert export(root, tmp_path / "old") == 1
    assert "Episode 1 is left out: pictures" in capsys.readouterr().out
    path.unlink()
    assert export(root, tmp_path / "none") == 2
    assert not (tmp_path / "none").exists()


def test_check_sends_an_older_version_to_a_command_that_works(old: Path) -> None:
    """It named LeRobot's converter, which ended in a traceback on both sets that were tried."""
    [finding] = check(old)
    words = shlex.split(finding.fix)
    assert words[:2] == ["gaploop", "convert"]
    assert main(words[1:]) == 0
    assert errors(Path(f"{old}_v3")) == []


def test_features_are_renamed_on_the_way(
    old: Path, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sets of other projects call them `state` and `image`: nothing found joints or pictures.

    And that one has no state was said once all of it had been converted.
    """
    renames = {"observation.state": "state", OVERHEAD: "image"}
    for episode in range(len(FRAMES)):
        table = pq.read_table(data(old, episode)).replace_schema_metadata(None)
        names = [renames.get(n, n) for n in table.column_names]
        pq.write_table(table.rename_columns(names), data(old, episode))
    (old / "videos/chunk-000" / OVERHEAD).rename(old / "videos/chunk-000/image")
    info = json.loads((old / layout.INFO).read_text())
    info["features"] = {renames.get(k, k): f for k, f in info["features"].items()}
    (old / layout.INFO).write_text(json.dumps(info))
    shutil.copytree(old / "meta", tmp_path / "bare/meta")  # nothing to convert
    bare = json.dumps(info).replace('"state"', '"joints"')
    (tmp_path / "bare" / layout.INFO).write_text(bare)
    assert import_(tmp_path / "bare", tmp_path / "back") == 2
    assert "--rename_map='{THEIRS: observation.state}'" in capsys.readouterr().err
    back = f"--rename_map={{image: {OVERHEAD}}}"
    assert import_(old, tmp_path / "back", back) == 0
    assert "feature state → observation.state" in capsys.readouterr().out
    assert errors(tmp_path / "back") == []
    require_same(published, tmp_path / "back", (0, 1, 2, 3))


def test_files_are_found_where_lerobot_puts_them_and_a_camera_without_any_is_left_out(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVIDIA's `robot_sim.PickNPlace` states `chunk-{episode_index:03d}` and a second camera.

    Nothing of it could be read: one episode of five was where it should be, without that camera.
    """
    info = json.loads((old / layout.INFO).read_text())
    for name in ("data_path", "video_path"):
        info[name] = info[name].replace("{episode_chunk", "{episode_index")
    info["features"]["observation.images.egoview"] = info["features"][OVERHEAD]
    (old / layout.INFO).write_text(json.dumps(info))
    assert import_(old, tmp_path / "new") == 0
    assert "observation.images.egoview is left out" in capsys.readouterr().out
    assert set(layout.read_info(tmp_path / "new").video_keys) == {OVERHEAD}


def test_a_journal_given_as_the_dataset_is_told(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gaploop publish JOURNAL` asked which journal."""
    journal = published.with_name("journal")
    assert main(["publish", str(journal)]) == 2
    assert f"gaploop publish --journal={journal} --dataset.root=" in capsys.readouterr().err


def test_harmonising_and_import_rename_features_of_v3(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = f"--rename_map={{{OVERHEAD}: observation.images.top}}"
    for number, words in enumerate((["edit", "harmonise"], ["convert"])):
        out = tmp_path / f"out{number}"
        assert main([*words, str(published), option, f"--output_dir={out}"]) == 0
        assert "observation.images.top" in layout.read_info(out).video_keys
        assert errors(out) == []
    for bad in ("{nothing: x}", f"{{{OVERHEAD}: action}}", f"{{{OVERHEAD}: ../x}}"):
        target = f"--output_dir={tmp_path / 'bad'}"
        assert main(["convert", str(published), f"--rename_map={bad}", target]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()


def test_names_in_an_older_version_cannot_lead_out(old: Path, tmp_path: Path) -> None:
    path = old / layout.INFO
    path.write_text(path.read_text().replace(OVERHEAD, "../../precious"))
    assert import_(old, tmp_path / "back") == 2


def test_statistics_come_from_the_frames(old: Path, tmp_path: Path) -> None:
    """A set's own statistics were 0.073 where the frames' deviation is 0.009, and were kept."""
    (old / "meta/episodes_stats.jsonl").write_text("nonsense")
    assert upgrade(old, tmp_path / "v3") == {}
    written = json.loads((tmp_path / "v3" / layout.STATS).read_text())
    values = np.concatenate([np.stack(take.frames.state) for take in read_takes(tmp_path / "v3")])
    np.testing.assert_allclose(written["observation.state"]["std"], values.std(axis=0), 1e-6)
