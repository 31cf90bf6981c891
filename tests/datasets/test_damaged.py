"""Damaged datasets: `check` says what is wrong, repair saves what is whole and changes none of it.

With GAPLOOP_DAMAGE_SET=DIR the slow test does the same to copies of a dataset of yours.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.absolute.examine import examine
from gaploop.datasets.check.dataset import FixOptions, check, fix, plan
from gaploop.datasets.check.findings import ERROR, FixDraft
from gaploop.datasets.check.videos import Camera, places, read_cameras
from gaploop.datasets.lerobot_read import load_takes
from gaploop.datasets.video import VideoIndex
from gaploop.datasets.whole_stats import complete_stats
from gaploop.scripts.cli import main

ALL = {**damage.DAMAGES, **damage.VIDEO_DAMAGES}
EPISODES, FRAMES = 4, 12
REAL = os.environ.get("GAPLOOP_DAMAGE_SET", "")

Write = Callable[..., str]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of LeRobot's with its quantiles put right, which is all that `check` minds."""
    root = Path(damage.record(tmp_path_factory.mktemp("recorded") / "set", EPISODES, FRAMES))
    assert odd(root) == ["wrong_stats"] * 2
    complete_stats(layout.parse_info(root))
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "set"))


def odd(root: Path) -> list[str]:
    return [f.code for f in check(root) if f.severity != "info"]


def errors(root: Path) -> set[str]:
    return {f.code for f in check(root) if f.severity == ERROR}


def signals(root: Path) -> dict[bytes, list[float]]:
    """Return each episode's action and state, to the bit, and its timestamps."""
    found = {}
    for path in damage.data_files(root):
        table = pq.read_table(path, partitioning=None)
        for episode in sorted(set(table["episode_index"].to_pylist())):
            part = table.filter(pa.array(table["episode_index"].to_numpy() == episode))
            values = [part[n].to_pylist() for n in ("action", "observation.state")]
            found[json.dumps(values).encode()] = part["timestamp"].to_pylist()
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


def load(root: Path) -> list[dict[str, Any]]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("me/x", root=root)
    return [dataset[i] for i in range(len(dataset))]


def test_what_lerobot_records_is_sound(recorded: Path) -> None:
    assert odd(recorded) == []
    assert plan(recorded, FixOptions()).actions == ()


# Every code of `check` is also planted and its fix typed in test_fixes.
@pytest.mark.members(4)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if k % 2 else []) for k, n in enumerate(ALL)]
)
def test_damage_is_found_and_repaired(
    recorded: Path, root: Path, tmp_path: Path, name: str
) -> None:
    way = ALL[name]
    way.plant(root)
    assert way.code in errors(root)
    if name == "missing video":
        assert {f.code for f in plan(root, FixOptions()).left} == {"missing_video"}
        return
    before = tree(root)
    assert fix(root, FixOptions(), tmp_path / "repaired").left == ()
    assert tree(root) == before

    repaired = tmp_path / "repaired"
    assert errors(repaired) == set()
    total = damage.info(repaired)["total_episodes"]
    assert total == way.keeps(EPISODES) if way.exact else total >= way.keeps(EPISODES)
    reference, found = signals(recorded), signals(repaired)
    assert set(found) <= set(reference)
    assert all(np.allclose(found[k], reference[k], atol=1e-6) for k in found)
    assert len(load(repaired)) == total * FRAMES


@pytest.mark.members(1)
@pytest.mark.parametrize("name", ["killed", "missing meta", "shuffled rows"])
def test_a_trial_says_what_repair_does_and_once_is_enough(
    root: Path, tmp_path: Path, name: str
) -> None:
    ALL[name].plant(root)
    before = tree(root)
    said = plan(root, FixOptions())
    assert said.actions
    assert tree(root) == before
    done = fix(root, FixOptions())
    assert done.actions == said.actions
    assert done.kept is not None
    assert tree(done.kept) == before
    assert fix(root, FixOptions()).actions == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".set.lock", "set", "set.damaged-1"]


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="GAPLOOP_DAMAGE_SET names no dataset")
@pytest.mark.parametrize("name", damage.DAMAGES)
def test_a_dataset_of_yours_damaged(tmp_path: Path, name: str) -> None:
    """The same on a real dataset; what was wrong with it before may be wrong afterwards."""
    way = damage.DAMAGES[name]
    root = Path(shutil.copytree(REAL, tmp_path / "set"))
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    wrong_before, total = errors(root), damage.info(root)["total_episodes"]
    reference = signals(root)
    way.plant(root)
    assert way.code in errors(root)
    report = fix(root, FixOptions(), tmp_path / "repaired")
    if "missing_video" in wrong_before:  # then nothing says any more where pictures would be
        wrong_before |= {"no_video_columns"}
    assert {f.code for f in report.left} <= wrong_before
    found = signals(tmp_path / "repaired")
    assert set(found) <= set(reference)
    left = damage.info(tmp_path / "repaired")["total_episodes"]
    assert left == way.keeps(total) if way.exact else left >= way.keeps(total)


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("dead", {"dead_joint"}),
        ("clipped", {"clipped_joint"}),
        ("late", {"action_lag"}),
        ("early", {"action_lag"}),
        ("frozen", {"frozen_camera"}),
        ("stalled", {"frozen_state"}),
        ("", set()),
    ],
)
def test_what_does_not_move_as_it_should_is_said_and_the_command_helps(
    tmp_path: Path, fault: str, kinds: set[str]
) -> None:
    """`gaploop diagnose`, printed for a late arm, asked for outcomes that no such set has."""
    found = examine(damage.record(tmp_path / "my set", 3, 60, fault=fault)).findings
    assert {f.kind for f in found} == kinds
    if fault in ("frozen", "stalled"):
        assert "--episodes='[1]'" in found[0].command
    elif fault == "dead":  # in every episode: there was a command that left nothing
        assert "every episode" in found[0].command
    for finding in found[:1]:
        if not finding.command.startswith("gaploop"):
            assert "gaploop" not in finding.command
            continue
        assert main(shlex.split(finding.command, comments=True)[1:]) == 0
        assert finding.kind not in {f.kind for f in examine(tmp_path / "my set_clean").findings}


def test_cameras_whose_files_are_mixed_up_are_found(tmp_path: Path) -> None:
    """Rows would stand beside the other camera's pictures, and nothing else would look odd."""
    root = damage.record(tmp_path / "set", 2, 12, cameras=2)
    assert set(odd(root)) <= {"wrong_stats"}
    first, second = sorted(p for p in (root / "videos").iterdir())
    first.rename(root / "videos/x")
    second.rename(first)
    (root / "videos/x").rename(second)
    assert errors(root) == {"wrong_pictures"}


def test_damage_in_a_column_that_only_lerobot_reads_is_found(root: Path) -> None:
    """LeRobot reads every column of the episode table, statistics of the index among them."""
    [path] = damage.episode_files(root)
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = next(
        group.column(i)
        for i in range(group.num_columns)
        if group.column(i).path_in_schema.startswith("stats/index/mean")
    )
    data = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + 30] = bytes(30)
    path.write_bytes(data)
    assert errors(root) == {"unreadable"}


def test_no_next_step_is_told_that_would_be_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incident: `convert` was told to a dataset without its videos, beside `--drop_videos`."""
    assert main(["check", str(root)]) == 0
    assert f"→ gaploop convert {root} --output_dir" in capsys.readouterr().out
    damage.video_files(root)[0].unlink()
    assert main(["check", str(root)]) == 1
    assert f"→ gaploop convert {root} --output_dir" not in capsys.readouterr().out


def test_types_of_other_writers_are_read_as_lerobot_reads_them(recorded: Path, root: Path) -> None:
    """Incident: polars' lists ended `diagnose` in "is damaged"; LeRobot and `check` read them."""

    def large(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            return pa.large_list(large(kind.value_type))
        return pa.large_string() if pa.types.is_string(kind) else kind

    for path in (root / "data", root / "meta/episodes"):
        for file in path.rglob("*.parquet"):
            table = pq.read_table(file, partitioning=None)
            schema = pa.schema([f.with_type(large(f.type)) for f in table.schema])
            pq.write_table(table.cast(schema), file)
    assert not errors(root)
    for ours, theirs in zip(load_takes(root), load_takes(recorded), strict=True):
        assert ours.info.task == theirs.info.task
        assert np.array_equal(ours.frames.state, theirs.frames.state)
    assert examine(root).findings == examine(recorded).findings
    assert main(["label", str(root), "--episodes=0", "--outcome=failure", "--author=x"]) == 0
    assert [t.outcome.value for t in load_takes(root)][:2] == ["failure", "unlabelled"]
    assert len(load(root)) == EPISODES * FRAMES


@pytest.mark.parametrize("times", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_what_check_passes_lerobot_loads_as_it_was(
    recorded: Path, tmp_path: Path, times: int
) -> None:
    """Random damage: found, or without effect. Pictures are not compared: videos hold no sums."""
    draw = random.Random(times)
    files = [p.relative_to(recorded) for p in sorted(recorded.rglob("*")) if p.is_file()]
    reference = [item["action"] for item in load(recorded)]
    for number in range(times):
        root = Path(shutil.copytree(recorded, tmp_path / f"copy{number}"))
        path = root / draw.choice(files)
        data = bytearray(path.read_bytes())
        at = draw.randrange(len(data))
        way = draw.choice(("flip", "cut", "zero", "rename"))
        if way == "flip":
            data[at] ^= 1 << draw.randrange(8)
        elif way == "cut":
            del data[at:]
        elif way == "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        path.write_bytes(data)
        if way == "rename":
            path.rename(path.with_name("x" + path.name))
        if not errors(root):
            found = [item["action"] for item in load(root)]
            assert len(found) == len(reference)
            assert all(np.allclose(a, b, atol=0.1) for a, b in zip(found, reference, strict=True))


def test_pictures_are_not_laid_out_past_an_episode_of_unknown_length() -> None:
    """Where episode 1 was lost, episode 2 silently got episode 1's pictures."""
    index = VideoIndex(None, 48, (64, 48), 20.0)
    camera = Camera("front", {(0, 0): index}, {(0, 0): Path("file-000.mp4")})
    assert places(camera, {}, [(0, 12), (2, 12), (3, 12)], 20.0) == {0: (0, 0, 0.0)}
    whole = places(camera, {}, [(e, 12) for e in range(4)], 20.0)
    assert [whole[e][2] for e in range(4)] == pytest.approx([0.0, 0.6, 1.2, 1.8])


def nan_in_row(row: int) -> Callable[[list[Any]], list[Any]]:
    def spoil(values: list[Any]) -> list[Any]:
        return [*values[:row], [float("nan")] * len(values[row]), *values[row + 1 :]]

    return spoil


@pytest.mark.parametrize("gone", [False, True])
def test_episodes_keep_their_own_pictures_where_the_table_and_one_episode_are_lost(
    recorded: Path, root: Path, tmp_path: Path, gone: bool
) -> None:
    """NaN in episode 1, or its rows gone: those after it never get its pictures."""
    reference = {bytes(i["action"].numpy()): i[damage.CAMERA] for i in load(recorded)}
    [path] = damage.data_files(root)
    if gone:
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.filter(pa.array(table["episode_index"].to_numpy() != 1)), path)
    else:
        damage.change(path, "observation.state", nan_in_row(FRAMES))
    shutil.rmtree(root / damage.EPISODES)
    report = fix(root, FixOptions(), tmp_path / "repaired")
    assert report.left == ()
    found = load(tmp_path / "repaired")
    assert len(found) == FRAMES * (1 if gone else EPISODES - 1)
    assert all(
        bool((i[damage.CAMERA] == reference[bytes(i["action"].numpy())]).all()) for i in found
    )


def test_a_file_under_another_name_does_not_stand_for_a_cameras_first(root: Path) -> None:
    """file-000.part.mp4, left by a kill, took the place of file-000.mp4."""
    [path] = damage.video_files(root)
    shutil.copy(path, path.with_name("file-000.part.mp4"))
    [camera] = read_cameras(FixDraft(root, damage.info(root)))
    assert camera.paths == {(0, 0): path}


@pytest.mark.parametrize("content", ["", " \n", '{"fps":', "[1]", "{}"])
def test_a_description_that_says_nothing_names_the_command_that_makes_it_anew(
    tmp_path: Path, content: str
) -> None:
    """An empty info.json, of a full disk, was "not JSON (Expecting value: line 1 column 1)"."""
    for name in ("meta/info.json", "data/chunk-000/file-000.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(UnusableInputError, match=f"gaploop check {tmp_path} --fix") as told:
        layout.parse_info(tmp_path)
    assert ("it is empty" in str(told.value)) == (not content.strip())
