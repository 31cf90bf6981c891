"""Edits of datasets that gaploop didn't make, beside LeRobot's own edit tool."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lerobot.datasets.compute_stats import aggregate_stats
from lerobot.datasets.dataset_tools import delete_episodes
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, episodes_table, layout
from gaploop.datasets.check.dataset import check
from gaploop.scripts.cli import main

FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.images.front": {
        "dtype": "video",
        "shape": (64, 64, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.still": {
        "dtype": "image",
        "shape": (16, 16, 3),
        "names": ["height", "width", "channels"],
    },
    "grid": {"dtype": "float32", "shape": (2, 3), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}
LENGTHS = (6, 7, 8, 9)


def plain_picture(size: int, level: int) -> np.ndarray:
    return np.full((size, size, 3), level, dtype=np.uint8)


def write(root: Path, features: dict[str, Any]) -> Path:
    """Write a dataset as LeRobot does, with two columns of somebody's own for each episode."""
    dataset = LeRobotDataset.create("x/y", 10, features, root=root, robot_type="arm")
    save = dataset.meta.save_episode

    def save_with_marks(index: int, *known: Any) -> None:
        *rest, columns = known
        save(index, *rest, {**columns, "my_quality": float(index), "my_reviewer": f"ana {index}"})

    dataset.meta.save_episode = save_with_marks
    draw = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        for k in range(length):
            frame = {
                "action": draw.normal(size=2).astype(np.float32),
                "observation.state": draw.normal(size=3).astype(np.float32),
                "observation.images.front": plain_picture(64, 50 * episode + 3 * k),
                "observation.images.still": plain_picture(16, 10 * episode + k),
                "grid": draw.normal(size=(2, 3)).astype(np.float32),
                "note": f"note {episode}.{k}",
            }
            task = "wave" if k < 3 or episode == 0 else "grab"
            dataset.add_frame({name: frame[name] for name in features} | {"task": task})
        dataset.save_episode()
    dataset.finalize()
    return root


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AV1, pictures in Parquet, matrices, texts, two tasks in a take."""
    return write(tmp_path_factory.mktemp("foreign") / "set", FEATURES)


def edit(action: str, root: Path, episodes: str, out: Path) -> int:
    return main(["edit", action, str(root), episodes, f"--output_dir={out}"])


def same(old: Path, new: Path, numbers: list[int]) -> None:
    """Check that `new` holds the episodes `numbers` of `old`, as LeRobot reads them."""
    a, b = LeRobotDataset("x/y", root=old), LeRobotDataset("x/y", root=new)
    assert b.num_episodes == len(numbers)
    for place, number in enumerate(numbers):
        was, now = a.meta.episodes[number], b.meta.episodes[place]
        assert (was["length"], was["tasks"]) == (now["length"], now["tasks"])
        for k in range(was["length"]):
            x, y = a[was["dataset_from_index"] + k], b[now["dataset_from_index"] + k]
            for name in set(x) - {"index", "episode_index", "task_index"}:
                equal = (
                    torch.equal(x[name], y[name])
                    if torch.is_tensor(x[name])
                    else x[name] == y[name]
                )
                assert equal, (number, k, name)


def test_rows_pictures_and_tasks_of_a_foreign_dataset(foreign: Path, tmp_path: Path) -> None:
    out = [f"--output_dir={tmp_path / name}" for name in ("kept", "parts", "whole")]
    assert main(["edit", "delete", str(foreign), "--episodes=[1]", out[0]]) == 0
    same(foreign, tmp_path / "kept", [0, 2, 3])
    assert main(["edit", "split", str(foreign), "--episodes=[1, 2]", out[1]]) == 0
    parts = [str(tmp_path / "parts" / name) for name in ("chosen", "rest")]
    assert main(["edit", "merge", *parts, out[2]]) == 0
    same(foreign, tmp_path / "whole", [1, 2, 0, 3])
    assert [p.name for p in foreign.parent.iterdir()] == ["set"]  # nothing written beside it
    loaded = LeRobotDataset("x/y", root=tmp_path / "whole")
    stats = loaded.meta.stats
    assert stats["index"]["max"] == [sum(LENGTHS) - 1]
    tasks = np.concatenate([loaded.hf_dataset.with_format("numpy")["task_index"]])
    np.testing.assert_allclose(stats["task_index"]["mean"], [tasks.mean()])
    assert json.loads((tmp_path / "whole" / layout.INFO).read_text())["total_tasks"] == 2


def test_lerobot_drops_a_teams_own_columns_and_gaploop_keeps_them(tmp_path: Path) -> None:
    """A team's review marks were gone after one `delete_episodes` of LeRobot 0.6.1.

    It writes `meta/episodes` anew with the columns that it knows.
    """
    root = write(tmp_path / "set", {n: FEATURES[n] for n in ("action", "observation.state")})
    delete_episodes(LeRobotDataset("x/y", root=root), [1], tmp_path / "theirs", "x/z")
    assert not any(name.startswith("my_") for name in layout.episode_rows(tmp_path / "theirs")[0])
    assert edit("delete", root, "--episodes=[1]", tmp_path / "ours") == 0
    rows = layout.episode_rows(tmp_path / "ours")
    assert [row["my_quality"] for row in rows] == [0.0, 2.0, 3.0]
    assert [row["my_reviewer"] for row in rows] == ["ana 0", "ana 2", "ana 3"]


def test_statistics_are_those_that_lerobot_adds_up(foreign: Path, tmp_path: Path) -> None:
    """But for the quantiles, of which it takes the mean: see test_statistics.py."""
    assert (
        main(["edit", "keep", str(foreign), "--episodes=1:", f"--output_dir={tmp_path}/out"]) == 0
    )
    table = pa.concat_tables(
        [layout.read_parquet(p) for p in layout.episode_files(tmp_path / "out")]
    )
    episodes: list[dict[str, dict[str, Any]]] = [{} for _ in range(len(table))]
    for name in table.column_names:
        if name.startswith("stats/"):
            _, feature, stat = name.split("/")
            for episode, value in zip(episodes, table[name].to_pylist(), strict=True):
                episode.setdefault(feature, {})[stat] = np.array(value)
    theirs = aggregate_stats(episodes)
    ours = json.loads((tmp_path / "out" / layout.STATS).read_text())
    assert set(ours) == set(theirs)
    for feature, stats in theirs.items():
        for stat in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(ours[feature][stat], stats[stat], rtol=1e-4, atol=1e-6)


def test_recording_goes_on_with_plain_lerobot_after_an_edit(foreign: Path, tmp_path: Path) -> None:
    assert (
        main(["edit", "keep", str(foreign), "--episodes=[0, 2]", f"--output_dir={tmp_path}/out"])
        == 0
    )
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "out", bare)
    dataset = LeRobotDataset.resume("x/y", root=bare)
    assert dataset.num_episodes == 2
    dataset.finalize()
    assert LeRobotDataset("x/y", root=bare).num_frames == 14


def test_a_dataset_with_tags_and_one_without_are_not_merged(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["edit", "split", str(foreign), "--episodes=[0]", f"--output_dir={tmp_path}/p"]) == 0
    )
    rest, tagged = tmp_path / "p" / "rest", tmp_path / "tagged"
    shutil.copytree(tmp_path / "p" / "chosen", tagged)
    (episode,) = layout.read_episodes(layout.read_info(tagged))
    row = columns.default_row(episode.info, Outcome.SUCCESS)
    episodes_table.materialise(tagged, {0: row})
    assert main(["edit", "merge", str(rest), str(tagged), f"--output_dir={tmp_path}/m"]) == 2
    error = capsys.readouterr().err
    assert f"gaploop convert {rest} --set=" in error
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("data/chunk-000/file-000.parquet", "can't be read"),
        ("videos/observation.images.front/chunk-000/file-000.mp4", "can't be opened|can't be read"),
        ("meta/tasks.parquet", "can't be read"),
    ],
)
def test_a_damaged_source_is_refused_and_nothing_is_left(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, says: str
) -> None:
    root = Path(shutil.copytree(foreign, tmp_path / "set"))
    content = (root / damage).read_bytes()
    (root / damage).write_bytes(content[: len(content) // 2])
    assert edit("delete", root, "--episodes=[1]", tmp_path / "o") == 2
    error = capsys.readouterr().err
    assert re.search(says, error), error
    assert error.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"set", ".o.lock"}


def test_rows_that_are_not_there_are_not_invented(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(foreign, tmp_path / "set"))
    (path,) = layout.data_files(root)
    table = layout.read_parquet(path)
    pq.write_table(table.slice(0, len(table) - 2), path)
    assert edit("keep", root, "--episodes=[3]", tmp_path / "o") == 2
    assert "holds 7 rows of episode 3, which has 9" in capsys.readouterr().err
    assert check(root) != []


def test_torn_statistics_are_computed_anew(foreign: Path, tmp_path: Path) -> None:
    """stats.json cut short by a full disk ended an edit of a dataset with a traceback."""
    root = Path(shutil.copytree(foreign, tmp_path / "set"))
    for path in layout.episode_files(root):
        table = layout.read_parquet(path)
        kept = [n for n in table.column_names if not n.startswith("stats/")]
        pq.write_table(table.select(kept), path)
    due = json.loads((root / layout.STATS).read_text())["action"]["max"]
    (root / layout.STATS).write_text('{"action": {')
    assert edit("keep", root, "--episodes=0:", tmp_path / "o") == 0
    stats = json.loads((tmp_path / "o" / layout.STATS).read_text())
    np.testing.assert_allclose(stats["action"]["max"], due, rtol=1e-6)
    assert set(stats) >= {"action", "observation.images.front"}
