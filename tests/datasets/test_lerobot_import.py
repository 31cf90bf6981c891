"""Foreign LeRobot datasets: read as they are, imported with gap columns, with and without video."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import staging
from gaploop.datasets.check.dataset import check
from gaploop.datasets.columns import EPISODE_COLUMNS
from gaploop.datasets.differences import profile, require_trainable_together
from gaploop.datasets.layout import parse_episodes, read_episodes, read_info
from gaploop.datasets.lerobot_import import REPORT, ImportOptions, import_dataset
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import load_takes, read_takes
from gaploop.datasets.v3_files import load_frames
from gaploop.scripts.cli import main

Write = Callable[..., str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foreign")


@pytest.fixture
def foreign(store: Path, tmp_path: Path) -> Path:
    """A dataset as LeRobot itself writes it: no gap columns, another action width, videos."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if not (store / "set").exists():
        features = {
            "action": {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]},
            "observation.state": {
                "dtype": "float32",
                "shape": (3,),
                "names": ["j1.pos", "j2.pos", "grip.pos"],
            },
            "observation.images.front": {
                "dtype": "video",
                "shape": (64, 64, 3),
                "names": ["height", "width", "channels"],
            },
        }
        dataset = LeRobotDataset.create("x/y", 10, features, root=store / "set", robot_type="arm")
        draw = np.random.default_rng(0)
        for episode in range(4):
            for _ in range(6 + episode):
                dataset.add_frame(
                    {
                        "action": draw.normal(size=2).astype(np.float32),
                        "observation.state": draw.normal(size=3).astype(np.float32),
                        "observation.images.front": np.full((64, 64, 3), 60 * episode, np.uint8),
                        "task": "wave",
                    }
                )
            dataset.save_episode()
        dataset.finalize()
    return Path(shutil.copytree(store / "set", tmp_path / "foreign"))


def import_(source: Path, target: Path, *options: str) -> int:
    return main(["convert", str(source), f"--output_dir={target}", *options])


def test_a_foreign_dataset_reads_as_unlabelled_imports(foreign: Path) -> None:
    takes = list(load_takes(foreign))
    assert [len(t.frames) for t in takes] == [6, 7, 8, 9]
    assert {t.info.kind for t in takes} == {TakeKind.IMPORT}
    assert {t.outcome for t in takes} == {Outcome.UNLABELLED}
    assert len({t.info.uid for t in takes}) == 4
    assert [t.info.uid for t in load_takes(foreign)] == [t.info.uid for t in takes]
    levels = [np.mean([p.mean() for p in t.cameras["front"]()]) for t in takes]
    np.testing.assert_allclose(levels, [0, 60, 120, 180], atol=4)
    assert [len(list(t.cameras["front"]())) for t in takes] == [6, 7, 8, 9]


def test_pictures_in_the_rows_are_seen_and_depth_is_none(tmp_path: Path) -> None:
    """Cameras of sets without videos were silently left out; LeRobot's depth was an error."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def stored(channels: int) -> dict[str, object]:
        names = ["height", "width", "channels"]
        return {"dtype": "image", "shape": (24, 32, channels), "names": names}

    numbers = {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]}
    features = {"action": numbers, "observation.state": numbers}
    features |= {"observation.images.front": stored(3), "observation.images.depth": stored(1)}
    root, draw = tmp_path / "set", np.random.default_rng(0)
    dataset = LeRobotDataset.create("x/y", 10, features, root=root, use_videos=False)
    for episode in range(3):
        for row in range(5):
            level = 60 * episode + row
            dataset.add_frame({
                "action": draw.normal(size=2).astype(np.float32),
                "observation.state": draw.normal(size=2).astype(np.float32),
                "observation.images.front": np.full((24, 32, 3), level, np.uint8),
                "observation.images.depth": np.full((24, 32, 1), 500 + row, np.uint16),
                "task": "把杯子放到盘子上",
            })  # fmt: skip
        dataset.save_episode()
    dataset.finalize()
    takes = list(load_takes(root))
    assert [set(t.cameras) for t in takes] == [{"front"}] * 3
    for episode, read in enumerate(takes):
        assert [int(p.mean()) for p in read.cameras["front"]()] == [
            60 * episode + k for k in range(5)
        ]
    assert not [f for f in check(root) if f.severity == "error"]


def test_texts_and_matrices_without_pictures_are_imported_as_they_are(tmp_path: Path) -> None:
    """`check` named `convert`, which refused a set with a text of what is being done."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    numbers = {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]}
    features = {"action": numbers, "observation.state": numbers}
    features["subtask"] = {"dtype": "string", "shape": (1,), "names": None}
    features["observation.touch"] = {"dtype": "float32", "shape": (2, 3), "names": None}
    root, draw = tmp_path / "set", np.random.default_rng(0)
    dataset = LeRobotDataset.create("x/y", 10, features, root=root, use_videos=False)
    for row in range(8):
        frame = {k: draw.normal(size=2).astype(np.float32) for k in ("action", "observation.state")}
        touch = draw.normal(size=(2, 3)).astype(np.float32)
        said = "reach – 伸手" if row < 4 else "lift"
        dataset.add_frame(frame | {"observation.touch": touch, "subtask": said, "task": "wave"})
    dataset.save_episode()
    dataset.finalize()
    assert import_(root, tmp_path / "in") == 0
    before, after = (pq.read_table(next(r.glob("data/*/*"))) for r in (root, tmp_path / "in"))
    for name in features:
        assert after[name].to_pylist() == before[name].to_pylist()
    assert not [f for f in check(tmp_path / "in") if f.severity == "error"]


def test_check_only_notes_what_a_foreign_dataset_lacks(foreign: Path) -> None:
    found = {(f.code, f.severity) for f in check(foreign)}
    assert found == {("no_gap_columns", "info"), ("wrong_stats", "warning")}  # LeRobot's quantiles


def test_without_videos_state_is_copied_and_plain_lerobot_loads(
    foreign: Path, tmp_path: Path
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shutil.rmtree(foreign / "videos")
    out = tmp_path / "out"
    options = (
        "--drop_videos=true",
        "--episodes=1:3",
        "--set={kind: demonstration, outcome: success}",
    )
    assert import_(foreign, out, *options) == 0
    assert check(out) == []
    dataset = LeRobotDataset("x/y", root=out)
    assert (dataset.num_episodes, len(dataset)) == (2, 7 + 8)
    item = dataset[0]
    assert (item["observation.environment_state"] == item["observation.state"]).all()
    source, result = (load_frames(r, ["action"]) for r in (foreign, out))
    np.testing.assert_array_equal(result.columns["action"], source.columns["action"][6:21])
    takes = list(read_takes(out))
    assert {(t.info.kind, t.outcome, t.info.domain) for t in takes} == {
        (TakeKind.DEMONSTRATION, Outcome.SUCCESS, Domain.REAL)
    }
    assert [t.info.uid for t in takes] == [t.info.uid for t in read_takes(foreign, [1, 2])]


@pytest.mark.parametrize("drops", [False, True])
def test_everything_is_kept_and_nothing_is_added_once_it_can_be_seen(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    out, seen, commit = tmp_path / "out", list[dict[Path, int]](), staging.commit

    def files() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}

    def watched(stage: Path, root: Path) -> None:
        commit(stage, root)
        seen.append(files())

    monkeypatch.setattr(staging, "commit", watched)
    assert import_(foreign, out, *["--drop_videos=true"][: int(drops)]) == 0
    assert seen == [files()], "killed from here on, it is whole"
    assert json.loads((out / REPORT).read_text())["episodes"] == 4
    assert check(out) == []
    if not drops:
        assert [len(list(t.cameras["front"]())) for t in read_takes(out)] == [6, 7, 8, 9]


def test_some_episodes_with_their_videos(foreign: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert import_(foreign, out, "--episodes=[1, 3]") == 0
    levels = [np.mean([p.mean() for p in t.cameras["front"]()]) for t in read_takes(out)]
    np.testing.assert_allclose(levels, [60, 180], atol=4)
    assert [f.code for f in check(out) if f.severity == "error"] == []


def test_missing_videos_are_refused_with_the_way_on(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(foreign / "videos")
    assert import_(foreign, tmp_path / "out") == 2
    assert "--drop_videos=true" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_target_that_filled_while_it_was_waited_for_is_left_alone(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two imports into one new folder the later one threw away what the first had written."""
    target = tmp_path / "out"
    monkeypatch.setattr(staging, "recover", lambda root: (root / "meta").mkdir(parents=True))
    with pytest.raises(UnusableInputError, match="not empty"):
        import_dataset(foreign, target, ImportOptions(drop_videos=True))
    assert [p.name for p in target.iterdir()] == ["meta"]


def test_nan_in_a_chosen_episode_is_refused_and_nothing_is_left(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    states = table["observation.state"].to_pylist()
    states[0] = [float("nan")] * 3
    at = table.column_names.index("observation.state")
    column = type(table["observation.state"].chunk(0)).from_arrays(
        [float(v) for row in states for v in row], 3
    )
    kind = table.schema.field("observation.state").type
    pq.write_table(table.set_column(at, table.schema.field(at), column.cast(kind)), path)
    out = tmp_path / "out"
    assert import_(foreign, out, "--drop_videos=true") == 2
    assert "episode 0" in capsys.readouterr().err
    assert not out.exists()
    assert import_(foreign, out, "--drop_videos=true", "--episodes=1:") == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--episodes=0:x",), "0 to 3"),
        (("--episodes=9",), "0 to 3"),
        (("--set={kind: demo}",), "demonstration"),
        (("--set={outcome: sucess}",), "success"),
    ],
)
def test_wrong_options_name_the_valid_ones(
    foreign: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert import_(foreign, tmp_path / "out", *options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("0:3", [0, 1, 2]), (":2", [0, 1]), ("8:", [8, 9]), ("[0, 3]", [0, 3]), ("0:2,-1", [0, 1, 9])],
)
def test_ranges_of_episodes(text: str, chosen: list[int]) -> None:
    assert parse_episodes(text, 10) == chosen


def test_frames_load_without_lerobot(foreign: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from gaploop.datasets.v3_files import load_frames; "
        "t = load_frames(Path(sys.argv[1]), ['action', 'observation.state'], [1, 2]); "
        "assert t.columns['action'].shape == (15, 2), t.columns['action'].shape; "
        "assert [e.index for e in t.episodes] == [1, 2]; "
        "assert 'lerobot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(foreign)], check=True)


def test_an_unknown_column_or_episode_is_named(foreign: Path) -> None:
    with pytest.raises(UnusableInputError, match=r"observation\.state"):
        load_frames(foreign, ["observation.stat"])
    with pytest.raises(UnusableInputError, match="no episode 7"):
        load_frames(foreign, ["action"], [7])


def test_training_on_two_robots_is_refused(
    foreign: Path, tmp_path: Path, write_take: Write
) -> None:
    write_take(tmp_path / "journal", cameras=())
    publish(tmp_path / "journal", tmp_path / "own", "me/x")
    infos = [read_info(foreign), read_info(tmp_path / "own")]
    both = [profile(info, read_episodes(info)) for info in infos]
    require_trainable_together([both[0], both[0]])
    with pytest.raises(UnusableInputError, match=r"fps is 50, not .*gaploop edit harmonise"):
        require_trainable_together(both)


def test_gap_columns_of_an_import_have_fixed_types(foreign: Path, tmp_path: Path) -> None:
    import_(foreign, tmp_path / "out", "--drop_videos=true")
    [path] = (tmp_path / "out/meta/episodes").glob("*/*.parquet")
    schema = pq.read_schema(path)
    assert {n: schema.field(n).type for n in EPISODE_COLUMNS} == EPISODE_COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize("cameras", [(), ("overhead",)])
def test_plain_lerobot_train_trains_two_steps(
    tmp_path: Path, write_take: Write, cameras: tuple[str, ...]
) -> None:
    """State and environment state without pictures; pictures, with an untrained backbone."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    for i in range(2):
        write_take(journal, 30, code=40 * i, cameras=cameras)
    publish(journal, root, "me/x")
    command = [
        str(Path(sys.executable).parent / "lerobot-train"),
        "--dataset.repo_id=me/x",
        f"--dataset.root={root}",
        "--policy.type=act",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.pretrained_backbone_weights=null",
        "--policy.dim_model=32",
        "--policy.n_heads=2",
        "--policy.chunk_size=8",
        "--policy.n_action_steps=8",
        "--steps=2",
        "--batch_size=4",
        "--num_workers=0",
        "--wandb.enable=false",
        f"--output_dir={tmp_path / 'run'}",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    config = json.loads(
        (tmp_path / "run/checkpoints/000002/pretrained_model/config.json").read_text()
    )
    assert not [name for name in config["input_features"] if "gap" in name]
