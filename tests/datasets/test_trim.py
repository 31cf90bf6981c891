"""Idle ends are trimmed, wrong offsets subtracted, cameras swapped; all else is what it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_edit_videos import encode

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core import labels
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.labels import LabelEvent
from gaploop.core.take import Take, TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.edit.changes import find_idle
from gaploop.datasets.edit.compose import DatasetPiece, read_run
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

Barcodes = tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], int]]
FPS = 20
JOINTS = ("pan", "lift", "gripper")
IDLE = ((27, 24, 13), (0, 30, 0), (30, 0, 0), (0, 24, 21))
"""Per episode: frames before the motion, of the motion with a pause in it, and after it."""
MARGIN = 4
STEP = 0.088


def motion(before: int, moving: int, after: int) -> np.ndarray:
    """Return joint positions of a take, (n, 3), with a pause in the middle, gripper 0 or 60."""
    share = np.clip(np.concatenate([np.linspace(0, 1, max(1, moving - 8)), [1.0]]), 0, 1)
    half = len(share) // 2
    share = np.concatenate([share[:half], np.full(7, share[half]), share[half:]])[:moving]
    share = np.concatenate([np.zeros(before), share, np.full(after, 1.0 if moving else 0.0)])
    return np.stack([40 * share, -30 * share, 60.0 * (share > 0.5)], axis=1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, barcodes: Barcodes) -> Path:
    """Takes of an arm whose encoders waver by a step and tear once, with two cameras."""
    folder = tmp_path_factory.mktemp("trim")
    draw = np.random.default_rng(0)
    for number, (before, moving, after) in enumerate(IDLE):
        goals = motion(before, moving, after)
        info = TakeInfo(
            uuid7(), "Lift it", FPS, joint_names=JOINTS, robot_type="arm", units="deg",
            t0_ns=1_700_000_000_000_000_000,
        )  # fmt: skip
        size = {"width": 64, "height": 64, "fps": FPS, "codec": "h264"}
        header = TakeHeader(info, (), {"top": size, "wrist": size}, {"clock": "s"})
        with JournalWriter(folder / "journal", header) as writer:
            for k, goal in enumerate(goals):
                state = np.round((goal + draw.normal(size=3) * 0.02) / STEP) * STEP
                if k == before // 2 and before and moving:
                    state[1] += 50.0  # one torn reading
                writer.frame(
                    FrameRow(
                        t_s=k / FPS + 0.001 * (k % 3),
                        state=state,
                        action=goal,
                        sent=goal + 0.5,
                        environment_state=np.empty(0),
                        intervention=False,
                        safety=k % 2,
                        camera_age_s={"top": 0.01, "wrist": 0.02},
                        pictures={
                            "top": barcodes[0](1000 * number + k),
                            "wrist": barcodes[0](1000 * number + 500 + k),
                        },
                    )
                )
                for half in (0.0, 0.5):
                    at_s = (k + half) / FPS + 0.001 * (k % 3)
                    writer.telemetry(round(at_s * 1e9), np.array([at_s]))
            writer.seal(Outcome.SUCCESS)
        if number == 0:
            event = LabelEvent(info.uid, "failure_mode", "slip", "ana", "operator")
            labels.append(folder / "journal/labels.jsonl", event)
    publish(folder / "journal", folder / "set", "me/x")
    return folder / "set"


@pytest.fixture
def dataset(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "set"))


@pytest.fixture
def plain(dataset: Path) -> Path:
    """The same as LeRobot alone would have written it."""
    for path in (*layout.data_files(dataset), *layout.episode_files(dataset)):
        table = pq.read_table(path, partitioning=None)
        gone = [n for n in table.column_names if n.removeprefix("stats/")[:4] in ("gap.", "gap_")]
        pq.write_table(table.drop_columns(gone), path)
    for path in (dataset / layout.INFO, dataset / layout.STATS):
        value = json.loads(path.read_text())
        whole = value.get("features", value)
        for name in [n for n in whole if n.startswith("gap.")]:
            del whole[name]
        path.write_text(json.dumps(value))
    for name in ("meta/gap", "telemetry"):
        shutil.rmtree(dataset / name)
    return dataset


def errors(root: Path) -> list[str]:
    return [f.code for f in check(root) if f.severity in ("error", "warning")]


def rows(root: Path) -> list[pa.Table]:
    data = pa.concat_tables([pq.read_table(p) for p in layout.data_files(root)])
    numbers = data["episode_index"].to_numpy()
    return [data.filter(pa.array(numbers == n)) for n in np.unique(numbers)]


def codes(take: Take, camera: str, read: Callable[[np.ndarray], int]) -> list[int]:
    return [read(picture) for picture in take.cameras[camera]()]


def answer(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    assert main([*command, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("kind", ["dataset", "plain"])
def test_trimming_leaves_out_idle_ends_and_changes_nothing_else(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, barcodes: Barcodes,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root: Path = request.getfixturevalue(kind)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    seen = answer(capsys, "edit", "trim", str(root), "--dry_run")
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    assert not seen["changed"]
    assert any("Nothing ever moves" in n and n.endswith("episodes 2.") for n in seen["notes"])
    ends = {row["episode"]: (row["first"], row["end"]) for row in seen["ends"]}
    assert set(ends) == {0, 3}
    # Motion begins in frame 27 of take 0; the last key frame before the margin is frame 20.
    assert ends[0][0] == 20
    assert any("Up to 0." in n and "--reencode=true" in n for n in seen["notes"])
    assert (ends[3][0], ends[3][1]) == (0, ends[3][1])
    for number in (0, 3):
        motion_ends = IDLE[number][0] + IDLE[number][1]
        assert motion_ends - 1 <= ends[number][1] <= motion_ends + MARGIN + 1

    out = tmp_path / "out"
    assert answer(capsys, "edit", "trim", str(root), f"--output_dir={out}")["changed"]
    assert errors(out) == errors(root) == []
    kept = [ends.get(n, (0, sum(spans))) for n, spans in enumerate(IDLE)]
    numbers = ("index", "frame_index", "timestamp", columns.TIME)
    for (first, end), old, new in zip(kept, rows(root), rows(out), strict=True):
        same = [n for n in old.column_names if n not in numbers]
        assert new.select(same).equals(old.slice(first, end - first).select(same))
        assert new["frame_index"].to_pylist() == list(range(end - first))
        due = (np.arange(end - first) / FPS).astype(np.float32)
        assert (new["timestamp"].to_numpy() == due).all()
    for (first, end), old, new in zip(kept, read_takes(root), read_takes(out), strict=True):
        for camera in ("top", "wrist"):
            assert codes(new, camera, barcodes[1]) == codes(old, camera, barcodes[1])[first:end]
        if kind == "dataset":
            assert new.info.uid == old.info.uid
            assert (new.outcome, new.failure_mode) == (old.outcome, old.failure_mode)
            start_s = old.frames.t_s[first] if first else 0.0
            assert new.info.t0_ns - old.info.t0_ns == round(start_s * 1e9)
            np.testing.assert_allclose(new.frames.t_s, old.frames.t_s[first:end] - start_s)
            # The channel holds the time it was recorded at: signals stay in step.
            np.testing.assert_allclose(new.telemetry.columns["clock"] - start_s, new.telemetry.t_s)
            assert len(new.telemetry) == 2 * (end - first)
    run = read_run(out)
    assert run["command"] == "edit trim"
    assert run["inputs"][0]["frames"] == {str(n): f"{a}:{b}" for n, (a, b) in ends.items()}
    assert answer(capsys, "edit", "trim", str(out), "--yes")["ends"] == []  # once is enough


def test_where_key_frames_are_rare_more_stays_or_pictures_are_encoded_again(
    dataset: Path, tmp_path: Path, barcodes: Barcodes, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = np.cumsum([0, *(sum(spans) for spans in IDLE)]).tolist()
    keys = [*starts, 10]
    for camera, more in (("top", 0), ("wrist", 500)):
        (path,) = (dataset / "videos" / f"{columns.IMAGES}{camera}").rglob("*.mp4")
        numbers = [1000 * n + more + k for n, spans in enumerate(IDLE) for k in range(sum(spans))]
        encode(path, [barcodes[0](n) for n in numbers], FPS, keys)
    out, exact = tmp_path / "out", tmp_path / "exact"
    trim = ["edit", "trim", str(dataset), "--episodes=[0]"]
    (ends,) = answer(capsys, *trim, f"--output_dir={out}")["ends"]
    assert ends["first"] == 10
    whole = answer(capsys, *trim, f"--output_dir={exact}", "--reencode")
    assert whole["videos"]["takes_encoded"] > 0
    for root, row in ((out, ends), (exact, whole["ends"][0])):
        take = next(iter(read_takes(root)))
        assert codes(take, "wrist", barcodes[1]) == list(
            range(500 + row["first"], 500 + row["end"])
        )
        assert errors(root) == []
    assert whole["ends"][0]["first"] > 10
    encode(path, [barcodes[0](n) for n in numbers], FPS, starts)  # a second and more to the next
    assert main([*trim, f"--output_dir={tmp_path / 'none'}"]) == 2
    assert "can only be cut at key frames" in capsys.readouterr().err
    assert answer(capsys, *trim, "--dry_run")["ends"] == []


@pytest.mark.parametrize(
    "wavers", [lambda n, draw: draw.normal(size=(n, 3)) * 0.3, lambda n, _: np.zeros((n, 3))]
)
def test_what_wavers_by_itself_is_idle_and_what_is_asked_for_is_not(
    dataset: Path, wavers: Callable[[int, np.random.Generator], np.ndarray]
) -> None:
    """Noise of any size, and a gripper that is opened and closed in one step."""
    draw = np.random.default_rng(1)
    (path,) = layout.data_files(dataset)
    table = pq.read_table(path, partitioning=None)
    goals = np.concatenate([motion(*spans) for spans in IDLE])
    goals[np.flatnonzero(table["episode_index"].to_numpy() == 3)[:3], 2] = 100.0
    state = (goals + wavers(len(goals), draw)).astype(np.float32)
    for name, values in ((columns.STATE, state), (columns.ACTION, goals.astype(np.float32))):
        place = table.schema.get_field_index(name)
        kind = table.schema.types[place]
        cells = pa.array(list(values), kind)
        table = table.set_column(place, table.schema.field(place), cells)
    pq.write_table(table, path)
    piece = DatasetPiece.whole(dataset)
    for trim in find_idle(piece, piece.chosen, exact=True):
        before, moving, after = IDLE[trim.episode.index]
        assert trim.never_moves == (not moving)
        if moving:
            assert max(0, before - MARGIN) <= trim.first <= before
            assert before + moving - 1 <= trim.end
            assert trim.left_out > 5 or before + after < 5


def test_an_offset_is_subtracted_exactly_and_cameras_are_swapped(
    plain: Path, tmp_path: Path, barcodes: Barcodes
) -> None:
    """Takes 1 and 3 read 17 too much, as after a horn was put back a few teeth off."""
    wrong, out = tmp_path / "wrong", tmp_path / "out"
    chosen = ["--episodes=[1, 3]"]
    for sign, swap, source, target in ((-1, [], plain, wrong), (1, ["top", "wrist"], wrong, out)):
        by = {"lift.pos": sign * 17.0, "pan.pos": sign * -0.3}
        command = ["edit", "correct", str(source), *chosen, f"--output_dir={target}"]
        command += [f"--swap=[{', '.join(swap)}]"] if swap else []
        assert main([*command, f"--subtract={json.dumps(by)}"]) == 0
    assert "wrong_stats" not in errors(wrong)
    assert errors(out) == []
    for number, (first, old, new) in enumerate(zip(*map(rows, (plain, wrong, out)), strict=True)):
        state = np.stack(old[columns.STATE].to_pylist())
        if number in (1, 3):
            state = (state - [-0.3, 17.0, 0.0]).astype(np.float32).astype(np.float64)
        now = np.stack(new[columns.STATE].to_pylist())
        assert (now == state).all()
        np.testing.assert_allclose(now, np.stack(first[columns.STATE].to_pylist()), atol=5e-6)
        rest = [n for n in old.column_names if n != columns.STATE]
        assert new.select(rest).equals(first.select(rest))
    for old, new in zip(read_takes(plain), read_takes(out), strict=True):
        swapped = {"top": "wrist", "wrist": "top"} if old.episode in (1, 3) else {}
        for camera in ("top", "wrist"):
            due = codes(old, swapped.get(camera, camera), barcodes[1])
            assert codes(new, camera, barcodes[1]) == due
    run = read_run(out)
    assert run["inputs"][0]["changed"] == "1,3"
    assert run["config"]["subtract"] == by


def test_what_was_sent_follows_the_action_and_ages_their_camera(dataset: Path) -> None:
    before, seen = rows(dataset), list(read_takes(dataset))
    command = ["edit", "correct", str(dataset), "--episodes=[0]", "--swap=[top, wrist]", "--yes"]
    assert main([*command, '--subtract={"action": {"pan.pos": 2}}']) == 0
    after = rows(dataset)
    for name in (columns.ACTION, columns.SENT):
        old, new = (np.stack(t[0][name].to_pylist()) for t in (before, after))
        np.testing.assert_allclose(old - new, np.tile([2.0, 0.0, 0.0], (len(old), 1)), atol=1e-5)
    assert after[0][columns.STATE].equals(before[0][columns.STATE])
    assert [t.equals(s) for t, s in zip(after[1:], before[1:], strict=True)] == [True] * 3
    changed = next(iter(read_takes(dataset)))
    assert changed.frames.camera_age_s["top"] == pytest.approx(0.02)
    assert (changed.telemetry.columns["clock"] == seen[0].telemetry.columns["clock"]).all()
    assert errors(dataset) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (['--subtract={"lft.pos": 1}'], "Did you mean 'lift.pos'"),
        (['--subtract={"lift.pos": "x"}'], "give a number"),
        (['--subtract={"timestamp": {"x": 1}}'], "Unknown feature 'timestamp'"),
        (["--swap=[top, wrst]"], "Did you mean 'wrist'"),
        (["--swap=[top, top]"], "name two cameras"),
        ([], "Correct what?"),
    ],
)
def test_a_correction_that_makes_no_sense_is_refused(
    original: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edit", "correct", str(original), "--episodes=[0]", "--yes", *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line


def test_cameras_of_unlike_pictures_are_not_swapped(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dataset / layout.INFO
    value = json.loads(path.read_text())
    value["features"][f"{columns.IMAGES}wrist"]["shape"] = [48, 64, 3]
    path.write_text(json.dumps(value))
    assert main(["edit", "correct", str(dataset), "--episodes=[0]", "--swap=[top, wrist]"]) == 2
    assert "shape of top is [64, 64, 3]" in capsys.readouterr().err


def test_rewritten_quantiles_have_a_lineage(plain: Path) -> None:
    """What repair did to a dataset stood nowhere in it."""
    assert main(["edit", "delete", str(plain), "--episodes=[3]", "--yes"]) == 0
    first, path = read_run(plain), plain / layout.STATS
    stats = json.loads(path.read_text())
    stats[columns.ACTION]["q99"] = [v / 2 for v in stats[columns.ACTION]["q99"]]
    path.write_text(json.dumps(stats))
    assert errors(plain) == ["wrong_stats"]
    assert main(["check", str(plain), "--fix"]) == 0
    assert errors(plain) == []
    run = read_run(plain)
    assert (run["command"], run["result"]["actions"]) == ("check --fix", ["rebuilt_stats"])
    assert run["inputs"][0]["run"] == first


@pytest.mark.parametrize("dtype", ["image", "video"])
def test_depth_stays_to_the_bit_and_its_statistics_are_those_of_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    """Those of depth stayed as they were before episodes were trimmed, and `check` looked at none.

    A video of depth that had to be encoded again lost detail: LeRobot's are lossless. `harmonise`
    wrote it as a video of colours, and a merge forgot how it is packed where two differ in it.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    key, size = "observation.images.depth", (64, 96, 1)
    numbers = {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}
    features: dict[str, Any] = {"action": numbers, "observation.state": numbers}
    features[key] = {"dtype": dtype, "shape": size, "names": ["height", "width", "channels"]}
    features[key]["info"] = {"is_depth_map": True}
    made = LeRobotDataset.create("x/y", FPS, features, root=tmp_path / "set", use_videos=True)
    slope = np.linspace(0, 300, 96).astype(np.uint16)[None, :, None]
    far = [2000] * 25 + [700 + 2 * k for k in range(15)]  # what is seen while the arm stands first
    for episode in range(2):
        for k, level in enumerate(far):
            row = np.full(2, episode + 3.0 * max(0, k - 28), np.float32)
            depth = np.broadcast_to(slope + level, size).astype(np.uint16)
            made.add_frame({"action": row, "observation.state": row, key: depth, "task": "Lift it"})
        made.save_episode()
    made.finalize()
    trimmed = tmp_path / "trimmed"
    command = ["edit", "trim", str(made.root), f"--output_dir={trimmed}", "--reencode=true"]
    assert main(command) == 0
    left = LeRobotDataset("x/y", root=trimmed)
    kept = np.stack([np.asarray(left[k][key]) for k in range(len(left))])
    begin = len(far) - len(left) // 2
    before = LeRobotDataset("x/y", root=made.root)
    assert begin > 20
    assert np.array_equal(kept[0], before[begin][key])
    path = trimmed / layout.STATS
    stats = json.loads(path.read_text())
    for name in ("min", "max", "mean", "q10", "q50", "q90"):
        found = np.quantile(kept, int(name[1:]) / 100) if name[1:].isdigit() else None
        truth = getattr(kept, name)() if found is None else found
        assert np.ravel(stats[key][name]) == pytest.approx(truth, rel=0.02)
    assert not errors(trimmed)
    for spoilt in ({**stats[key], "mean": [[[0.5]]]}, {}):
        path.write_text(json.dumps({**stats, key: spoilt}))
        assert errors(trimmed)
        assert main(["check", str(trimmed), "--fix"]) == 0
        assert json.loads(path.read_text())[key] == stats[key]
        path.write_text(json.dumps(stats))
    (tmp_path / "spec.yaml").write_text("fps: 10\n")
    other = Path(shutil.copytree(trimmed, tmp_path / "other"))
    change = json.loads((other / layout.INFO).read_text())
    change["features"][key]["info"] |= {"depth_unit": "m", "video.depth_max": 4.0}
    (other / layout.INFO).write_text(json.dumps(change))
    capsys.readouterr()
    for command in (
        ["edit", "harmonise", str(trimmed), f"--spec={tmp_path / 'spec.yaml'}"],
        ["edit", "merge", str(trimmed), str(other)],
    ):
        assert main([*command, f"--output_dir={tmp_path / 'none'}"]) == 2
        assert f"drop: [{key}]" in capsys.readouterr().err
