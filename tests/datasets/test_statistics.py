"""Statistics are those of the frames, whoever wrote them last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow.parquet as pq
import pytest
from damage import CAMERA

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core import journal_format
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.messages import Image
from gaploop.core.statistics import QUANTILES
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.datasets.whole_stats import complete_stats
from gaploop.scripts.cli import main

type Write = Callable[..., str]
TACTILE = "observation.tactile"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    """A recording of LeRobot's; the same with a (3, 4) feature; and a dataset of ours."""
    root = tmp_path_factory.mktemp("statistics")
    damage.record(root / "recorded", 3, 12)
    damage.record(root / "matrix", 2, 12, videos=False, more={TACTILE: (3, 4)})
    for i in range(3):
        write_take(root / "journal", 9, code=50 * i)
    publish(root / "journal", root / "published", "me/x")
    return root


def stats(root: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((root / layout.STATS).read_text())
    return value


def require_exact(root: Path) -> None:
    for key in ("action", "observation.state", "timestamp"):
        read = [pq.read_table(path)[key].to_pylist() for path in damage.data_files(root)]
        rows = np.array([row for part in read for row in part]).reshape(sum(map(len, read)), -1)
        for name, level in QUANTILES.items():
            due = np.quantile(rows, level, axis=0)
            np.testing.assert_allclose(stats(root)[key][name], due, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(stats(root)[key]["std"], rows.std(axis=0), rtol=1e-5)
        assert stats(root)[key]["count"] == [len(rows)]


def quantile_findings(root: Path) -> list[str]:
    return [f.where for f in check(root) if f.code in ("wrong_stats", "missing_stats")]


def test_whatever_writes_a_dataset_writes_quantiles_of_its_frames(
    store: Path, tmp_path: Path
) -> None:
    """On a real dataset, half of the gripper's actions lay outside the averaged [q01, q99]."""
    recorded, published = store / "recorded", store / "published"
    assert set(quantile_findings(recorded)) == {
        f"{layout.STATS}: action", f"{layout.STATS}: observation.state"
    }  # fmt: skip
    require_exact(published)
    shutil.copytree(recorded, tmp_path / "repaired")
    for words in (
        f"check {tmp_path}/repaired --fix",
        f"convert {recorded} --output_dir={tmp_path}/imported",
        f"convert {recorded} --drop_videos=true --output_dir={tmp_path}/bare",
        f"edit delete {published} --episodes=1 --output_dir={tmp_path}/edited",
        f"convert {published} --to=lerobot_v21 --output_dir={tmp_path}/old",
        f"convert {tmp_path}/old --output_dir={tmp_path}/back",
        f"edit merge {tmp_path}/imported {tmp_path}/again --output_dir={tmp_path}/merged",
    ):
        if words.startswith("edit merge"):
            again = ["--set={kind: rollout}", "--episodes=1:", f"--output_dir={tmp_path}/again"]
            assert main(["convert", str(recorded), *again]) == 0
        assert main(words.split()) == 0, words
    for name in ("repaired", "imported", "bare", "edited", "back", "merged"):
        require_exact(tmp_path / name)
        assert quantile_findings(tmp_path / name) == []


def test_check_compares_quantiles_and_misses_those_that_lack(store: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(store / "published", tmp_path / "set"))
    assert quantile_findings(root) == []
    for change in (
        lambda s: s["action"]["q99"].__setitem__(0, 0.5),
        lambda s: s["action"].pop("q10"),
    ):
        changed = stats(root)
        change(changed)
        (root / layout.STATS).write_text(json.dumps(changed))
        [where] = quantile_findings(root)
        assert where.startswith(layout.STATS)
        assert complete_stats(layout.parse_info(root))
        assert quantile_findings(root) == []
        assert not complete_stats(layout.parse_info(root))


def test_quantiles_of_pictures_are_those_of_the_mixture(tmp_path: Path) -> None:
    """Of a dark and a bright episode no pixel has the mean of their quantiles."""
    root = damage.record(tmp_path / "set", 2, 12, bright=(10, 200))
    complete_stats(layout.parse_info(root))
    pixels = np.concatenate([np.stack(list(t.cameras["front"]())) for t in read_takes(root)]) / 255
    for name, level in QUANTILES.items():
        if name != "q50":  # anything between the two
            due = np.quantile(pixels, level, axis=(0, 1, 2))
            np.testing.assert_allclose(np.ravel(stats(root)[CAMERA][name]), due, atol=0.02)


def recorded_stats(
    folder: Path, pictures: list[Image], change: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """Record an episode of `pictures`, change what its seal states, publish; return its row."""
    height, width = pictures[0].shape[:2]
    spec = {"width": width, "height": height, "fps": 30.0, "codec": "h264"}
    take = TakeInfo(uuid7(), task="look", fps=30, joint_names=("j",), robot_type="r")
    with JournalWriter(folder / "journal", TakeHeader(take, (), {"front": spec})) as writer:
        for k, picture in enumerate(pictures):
            joint = np.full(1, float(k))
            writer.frame(FrameRow(k / 30, joint, joint, joint, pictures={"front": picture}))
        end = writer.seal(Outcome.SUCCESS) / journal_format.END
    sealed = json.loads(end.read_text())
    change(sealed["statistics"])
    end.write_text(json.dumps(sealed))
    assert publish(folder / "journal", folder / "set") == 1
    [row] = pq.read_table(damage.episode_files(folder / "set")[0]).to_pylist()
    prefix = f"stats/{CAMERA}/"
    return {n.removeprefix(prefix): np.ravel(v) for n, v in row.items() if n.startswith(prefix)}


def test_statistics_of_recorded_pictures_are_lerobots(tmp_path: Path) -> None:
    """They are gathered while recording; LeRobot's own quantiles lie between two pixel values."""
    from lerobot.datasets.compute_stats import auto_downsample_height_width, get_feature_stats

    draw = np.random.default_rng(0)
    wide = [draw.integers(k, 60 + 3 * k, (200, 320, 3), np.uint8) for k in range(60)]
    thinned = np.stack([auto_downsample_height_width(p.transpose(2, 0, 1)) for p in wide])
    theirs = get_feature_stats(thinned, axis=(0, 2, 3), keepdims=True)
    due = {n: np.ravel(v) / (1 if n == "count" else 255) for n, v in theirs.items()}
    ours = recorded_stats(tmp_path / "as recorded", wide, lambda _: None)
    assert set(ours) == set(due)
    for name, value in due.items():
        within = {"std": 1e-3, **dict.fromkeys(QUANTILES, 1 / 255)}.get(name, 1e-6)
        np.testing.assert_allclose(ours[name], value, atol=within, err_msg=name)
    exact = (thinned / 255.0).std(axis=(0, 2, 3))  # LeRobot adds up squares in 32 bits
    np.testing.assert_allclose(ours["std"], exact, rtol=1e-12)
    for k, change in enumerate(
        (
            lambda stated: stated.clear(),  # as sealed by older versions
            lambda stated: stated["front"].update(mean=[0.5]),
            lambda stated: stated["front"].update(q01=[2.0] * 3),
        )
    ):  # then they come from decoded key frames
        decoded = recorded_stats(tmp_path / str(k), wide, change)
        assert decoded["count"] < ours["count"]
        np.testing.assert_allclose(decoded["mean"], ours["mean"], atol=0.05)


def test_pictures_of_a_long_episode_are_sampled_evenly(tmp_path: Path) -> None:
    shades = [np.full((16, 16, 3), k * 255 // 899, np.uint8) for k in range(900)]
    sampled = recorded_stats(tmp_path, shades, lambda _: None)
    assert 100 <= sampled["count"] <= 200
    np.testing.assert_allclose(sampled["mean"], np.mean(shades) / 255, atol=0.005)
    np.testing.assert_allclose(sampled["q90"], 0.9, atol=0.01)


def test_a_matrix_keeps_lerobots_statistics_of_its_last_axis(store: Path, tmp_path: Path) -> None:
    """Repair flattened them: 12 numbers against rows of 4, and training ended in a traceback."""
    root = Path(shutil.copytree(store / "matrix", tmp_path / "set"))
    assert [f.where for f in check(root) if "tactile" in f.where and f.severity == "error"] == []
    assert main(["check", str(root), "--fix"]) == 0
    assert np.shape(stats(root)[TACTILE]["mean"]) == (4,)
    whole = {**stats(root)}
    rows = np.array(pq.read_table(damage.data_files(root)[0])[TACTILE].to_pylist())
    for name in ("min", "max", "mean", "std"):  # as older writers have them: of every entry
        whole[TACTILE][name] = getattr(rows, name)(axis=0).tolist()
    (root / layout.STATS).write_text(json.dumps(whole))
    assert [f.where for f in check(root) if f.severity == "error"] == []
    whole[TACTILE]["mean"] = np.ravel(whole[TACTILE]["mean"]).tolist()
    (root / layout.STATS).write_text(json.dumps(whole))
    assert [f.code for f in check(root) if f.severity == "error"]


@pytest.mark.parametrize("command", ["check", "convert"])
def test_statistics_of_pictures_are_computed_where_they_lack(
    store: Path, tmp_path: Path, command: str
) -> None:
    """Repair sent to a copy, import to repair; the pictures were there all the time."""
    root = Path(shutil.copytree(store / "recorded", tmp_path / "set"))
    before = stats(root)
    (root / layout.STATS).write_text(json.dumps({k: v for k, v in before.items() if k != CAMERA}))
    [path] = damage.episode_files(root)
    table = pq.read_table(path)
    pq.write_table(
        table.drop_columns([n for n in table.column_names if n.startswith(f"stats/{CAMERA}")]), path
    )
    if command == "convert":
        main(["convert", str(root), f"--output_dir={tmp_path}/done"])
    else:
        assert main(["check", str(root), "--fix", f"--output_dir={tmp_path}/done"]) == 0
    done = tmp_path / "done"
    assert [f.code for f in check(done) if f.severity != "info"] == []
    np.testing.assert_allclose(
        np.ravel(stats(done)[CAMERA]["mean"]), np.ravel(before[CAMERA]["mean"]), atol=0.02
    )
