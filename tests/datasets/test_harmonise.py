"""Datasets made to go together: exact, recorded, never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.differences import profile, require_trainable_together
from gaploop.datasets.edit.harmonise_spec import HarmoniseSpec, JointChange, Units, parse_spec
from gaploop.datasets.edit.harmonised import chosen_rows
from gaploop.datasets.layout import LABELS, TELEMETRY, read_episodes, read_info
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.v3_files import FrameTable, load_frames
from gaploop.scripts import cli

type Write = Callable[..., str]

SIX = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
VECTORS = ("observation.state", "action", "gap.sent")
FRAMES = 9
RANGES = {name: [-110, 95] for name in SIX[:5]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    """Datasets: a reference; one at half the rate in another order; one of an SO-101."""
    root = tmp_path_factory.mktemp("harmonise")

    def make(name: str, first: int, **options: Any) -> None:
        for number in range(2):
            write_take(root / f"{name}_journal", FRAMES, code=first + 20 * number, **options)
        publish(root / f"{name}_journal", root / name, f"me/{name}")

    make("reference", 0, domain=Domain.REAL)
    make("slow", 100, fps=25.0, joints=("lift", "pan", "gripper"), domain=Domain.SIM)
    make("strange", 200, joints=("waist", "lift", "gripper"), cameras=("top",))
    make("arm", 300, joints=SIX)
    return root


def run(*argv: object) -> int:
    return cli.main(["edit", "harmonise", *map(str, argv)])


def convert(folder: Path, name: str, out: Path, **spec: Any) -> Path:
    """Return the dataset that `spec` makes of one of `folder`."""
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(spec))
    assert run(folder / name, f"--spec={file}", f"--output_dir={out}") == 0
    return out


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def numbers(root: Path) -> FrameTable:
    return load_frames(root, VECTORS)


def errors(root: Path) -> list[str]:
    return [f.code for f in check(root) if f.severity == ERROR]


# Steps


angles = st.floats(-170, 170)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(angles, min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from(["deg", "rad", "m100_100"]),
    st.sampled_from(["deg", "rad", "m100_100"]),
    st.sampled_from([1.0, -1.0]),
    st.floats(-30, 30),
)
def test_what_is_converted_there_and_back_is_what_it_was(
    rows: list[list[float]], source: str, target: str, sign: float, offset: float
) -> None:
    ranges, gripper = {"pan": (-90.0, 100.0), "lift": (20.0, -30.0)}, (-0.1, 1.7)
    there, back = ("gripper.pos", "lift.pos", "pan.pos"), ("a.pos", "lift.pos", "gripper.pos")
    names: tuple[str, ...] = back
    values = np.array(rows)
    for spec in (
        HarmoniseSpec(
            {"a": JointChange("pan", sign, offset)},
            Units(source, target, ranges, gripper),
            {"action": there},
        ),
        HarmoniseSpec(units=Units(target, source, ranges, gripper)),
        HarmoniseSpec({"pan": JointChange("a", sign, -sign * offset)}, order={"action": back}),
    ):
        made = spec.joint_map("action", names)
        names, values = made.names, made.of(values)
    assert names == back
    assert np.allclose(values, np.array(rows), atol=1e-9)


def test_units_are_those_of_lerobot() -> None:
    """-100 and 100 are the ends of the range, 180 deg is pi, a gripper's 0 and 100 its angles."""
    ranges = {"pan": (-90.0, 110.0)}
    names, values = ("pan.pos", "gripper.pos"), np.array([[-100.0, 0.0], [100.0, 100.0]])
    to_deg = HarmoniseSpec(units=Units("m100_100", "deg", ranges))
    assert to_deg.joint_map("action", names).of(values).tolist() == [[-90.0, 0.0], [110.0, 100.0]]
    to_rad = HarmoniseSpec(units=Units("m100_100", "rad", ranges, (0.0, 1.5)))
    rad = to_rad.joint_map("action", names).of(values)
    assert np.allclose(rad, [[np.radians(-90), 0.0], [np.radians(110), 1.5]])
    with pytest.raises(UnusableInputError, match="lift"):
        to_deg.joint_map("action", ("lift.pos",))


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 120), st.integers(1, 120))
def test_held_frames_are_the_newest_there_were(frames: int, source: int, target: int) -> None:
    """Never one from the future, never one older than a frame's time; nothing behind the end."""
    index = chosen_rows(frames, source, target)
    moment_s = np.arange(len(index)) / target
    age_s = moment_s - index / source
    assert (np.diff(index) >= 0).all()
    assert (age_s > -1e-6).all()
    assert (age_s < 1 / source + 1e-6).all()
    assert (frames - 1) / source - 1 / target < moment_s[-1] + 1e-6 <= (frames - 1) / source + 2e-6
    if source == target:
        assert index.tolist() == list(range(frames))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 4))
def test_twice_the_rate_and_back_is_the_same(frames: int, fps: int, times: int) -> None:
    up = chosen_rows(frames, fps, fps * times)
    assert up[chosen_rows(len(up), fps * times, fps)].tolist() == list(range(frames))


# Datasets


def test_a_dataset_made_like_another_goes_with_it(folder: Path, tmp_path: Path) -> None:
    """Resampled and reordered: LeRobot loads it, check finds no error, it merges and mixes."""
    out, slow, reference = tmp_path / "out", folder / "slow", folder / "reference"
    assert run(slow, f"--to={reference}", f"--output_dir={out}") == 0
    assert not errors(out)
    infos = [read_info(p) for p in (reference, out)]
    require_trainable_together([profile(i, read_episodes(i)) for i in infos])
    merged = tmp_path / "merged"
    assert cli.main(["edit", "merge", str(reference), str(out), f"--output_dir={merged}"]) == 0
    assert read_info(merged).total_episodes == 4
    old, new = numbers(slow), numbers(out)
    assert len(new) == 2 * (2 * FRAMES - 1)
    for name in VECTORS:
        assert new.info.names(name) == ("pan.pos", "lift.pos", "gripper.pos")
        held = old.columns[name][new.rows_of(0).start : FRAMES][:, [1, 0, 2]]
        assert np.array_equal(new.columns[name][new.rows_of(0)], np.repeat(held, 2, axis=0)[:-1])
    dataset = LeRobotDataset("me/out", root=out)
    assert (dataset.num_episodes, dataset.fps) == (2, 50)


def test_every_picture_stays_beside_its_row(
    folder: Path, tmp_path: Path, barcodes: tuple[Any, Callable[[np.ndarray], int]]
) -> None:
    """At 20 fps of 50, and cropped and scaled: the picture that was newest at that moment."""
    pictures = {"overhead": {"name": "front", "crop": [0, 0, 64, 32], "resize": [128, 64]}}
    out = convert(folder, "reference", tmp_path / "out", fps=20, cameras=pictures)
    assert not errors(out)
    dataset = LeRobotDataset("me/out", root=out)
    index = chosen_rows(FRAMES, 50, 20)
    for episode, first in enumerate((0, 20)):
        for k, row in enumerate(index):
            picture = dataset[episode * len(index) + k]["observation.images.front"]
            assert tuple(picture.shape) == (3, 64, 128)
            upper = picture.permute(1, 2, 0).numpy()[::2, ::2] * 255
            code = barcodes[1](np.concatenate([upper, np.zeros_like(upper)]))
            assert code == (first + row) & 0xFF
    ages = load_frames(out, ["gap.cam_age.front"]).columns["gap.cam_age.front"]
    expected = 0.01 + np.arange(len(index)) / 20 - index / 50
    assert np.allclose(ages[: len(index)].reshape(-1), expected, atol=1e-6)


def test_pictures_that_stay_are_not_encoded_again(folder: Path, tmp_path: Path) -> None:
    out = convert(folder, "arm", tmp_path / "out", robot_type="so101_follower")
    a, b = (LeRobotDataset("me/x", root=root) for root in (folder / "arm", out))
    for k in (0, FRAMES - 1, FRAMES, 2 * FRAMES - 1):
        name = "observation.images.overhead"
        assert np.array_equal(a[k][name].numpy(), b[k][name].numpy())
    assert read_info(out).robot_type == "so101_follower"


@pytest.mark.members(1)
@pytest.mark.parametrize(
    ("spec", "back", "tolerance"),
    [
        (
            {"units": {"to": "rad", "gripper": [-0.17, 1.74]}},
            {"units": {"to": "deg", "gripper": [-0.17, 1.74]}},
            1e-4,
        ),
        (
            {"units": {"to": "m100_100", "ranges": RANGES}},
            {"units": {"to": "deg", "ranges": RANGES}},
            1e-4,
        ),
        ({"cameras": {"overhead": "front"}}, {"cameras": {"front": "overhead"}}, 0.0),
    ],
    ids=["rad", "normalised", "names"],
)
def test_there_and_back_gives_what_was(
    folder: Path, tmp_path: Path, spec: dict[str, Any], back: dict[str, Any], tolerance: float
) -> None:
    there = convert(folder, "arm", tmp_path / "there", **spec)
    assert not errors(there)
    out = convert(tmp_path, "there", tmp_path / "back", **back)
    old, new = numbers(folder / "arm"), numbers(out)
    assert old.info.features.keys() == new.info.features.keys()
    assert [e.info.units for e in new.episodes] == ["deg", "deg"]
    for name in VECTORS:
        assert old.info.names(name) == new.info.names(name)
        assert np.abs(old.columns[name] - new.columns[name]).max() <= tolerance
    assert len(json.loads((out / "meta/gap/harmonise.json").read_text())["history"]) == 2


def test_gap_columns_that_an_import_lacks_are_filled(folder: Path, tmp_path: Path) -> None:
    """A foreign dataset has none; without them it would never merge with one of ours."""
    gap = [n for n in read_info(folder / "arm").features if n.startswith("gap.")]
    bare = convert(folder, "arm", tmp_path / "bare", drop=gap)
    full = tmp_path / "full"
    assert run(bare, f"--to={folder / 'arm'}", f"--output_dir={full}") == 0
    assert not errors(full)
    old, new = (load_frames(root, gap) for root in (folder / "arm", full))
    assert {n: old.info.features[n]["dtype"] for n in gap} == {
        n: new.info.features[n]["dtype"] for n in gap
    }
    assert np.array_equal(old.columns["gap.take"], new.columns["gap.take"])
    assert np.array_equal(new.columns["gap.sent"], numbers(full).columns["action"])
    assert not new.columns["gap.intervention"].any()
    assert (new.columns["gap.cam_age.overhead"] == -1).all()


def test_labels_telemetry_and_what_others_wrote_follow(folder: Path, tmp_path: Path) -> None:
    import shutil

    source = tmp_path / "source"
    shutil.copytree(folder / "arm", source)
    before = read_episodes(read_info(source))
    uid = before[0].info.uid
    labels.append(source / LABELS, labels.LabelEvent(uid, "phase", "grasp", "ana", "engineer"))
    out = convert(tmp_path, "source", tmp_path / "out", units={"to": "rad", "gripper": "keep"})
    after = read_episodes(read_info(out))
    assert [e.info.uid for e in after] == [e.info.uid for e in before]
    assert after[0].phase == "grasp"
    assert [e.info.units for e in after] == ["rad", "rad"]
    assert (out / LABELS).read_bytes() == (source / LABELS).read_bytes()
    assert sorted(p.name for p in (out / TELEMETRY).iterdir()) == sorted(
        p.name for p in (source / TELEMETRY).iterdir()
    )
    entry = json.loads((out / "meta/gap/harmonise.json").read_text())["history"][0]
    assert entry["source"]["name"] == "source"
    assert entry["units"] == {"from": "deg", "to": "rad"}


def test_statistics_are_those_of_the_new_numbers(folder: Path, tmp_path: Path) -> None:
    out = convert(folder, "arm", tmp_path / "out", units={"to": "rad", "gripper": "keep"})
    stats = json.loads((out / "meta/stats.json").read_text())["action"]
    values = numbers(out).columns["action"]
    assert np.allclose(stats["mean"], values.mean(axis=0), atol=1e-5)
    assert np.allclose(stats["max"], values.max(axis=0), atol=1e-5)


def test_names_that_could_mean_anything_are_not_guessed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange, reference = folder / "strange", folder / "reference"
    assert run(strange, f"--to={reference}", f"--output_dir={tmp_path / 'out'}") == 2
    said = one_line(capsys)
    assert "waist" in said
    assert "one of pan, or null" in said
    assert not (tmp_path / "out").exists()
    assert run(strange, f"--to={reference}", "--dry_run") == 1
    spec = yaml.safe_load(capsys.readouterr().out)
    assert spec == {"joints": {"waist": "?"}, "cameras": {"top": "?"}}
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    assert run(strange, f"--spec={file}", f"--output_dir={tmp_path / 'out'}") == 2
    assert "still '?'" in one_line(capsys)
    spec = {"joints": {"waist": "pan"}, "cameras": {"top": "overhead"}}
    file.write_text(yaml.safe_dump(spec))
    out = f"--output_dir={tmp_path / 'out'}"
    assert run(strange, f"--spec={file}", f"--to={reference}", out) == 0
    assert "gaploop edit merge" in capsys.readouterr().out


def features(root: Path) -> set[str]:
    return set(read_info(root).features)


def test_features_under_other_names_are_renamed_and_come_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other projects call them `state` and `image`: the spec said to leave the joints out of both,
    and a camera without the prefix ended in a traceback."""
    reference = folder / "reference"
    plain, back = tmp_path / "plain", tmp_path / "back"
    theirs = "--rename_map={observation.state: state, observation.images.overhead: image}"
    assert run(reference, theirs, f"--output_dir={plain}") == 0
    assert {"state", "image", "gap.cam_age.IMAGE"} <= features(plain)
    capsys.readouterr()
    assert run(plain, f"--to={reference}", f"--output_dir={tmp_path / 'out'}") == 2
    assert "--rename_map='{state: observation.state}'" in one_line(capsys)
    file = tmp_path / "spec.yaml"
    file.write_text("cameras: {image: {name: overhead, resize: [32, 32]}}")
    option, out = "--rename_map={state: observation.state}", tmp_path / "out"
    assert run(plain, option, f"--spec={file}", f"--output_dir={out}") == 0
    assert features(out) == features(reference)
    assert errors(out) == []
    whole = "--rename_map={state: observation.state, image: observation.images.overhead}"
    assert run(plain, whole, f"--to={reference}", f"--output_dir={tmp_path / 'same'}") == 0
    assert "gaploop edit merge" in capsys.readouterr().out
    assert run(tmp_path / "same", theirs, f"--output_dir={back}") == 0
    assert features(back) == features(plain)
    assert LeRobotDataset("me/x", root=back)[3]["state"].tolist() == pytest.approx(
        LeRobotDataset("me/x", root=reference)[3]["observation.state"].tolist()
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rename_map={stat: observation.state}"], "Unknown feature 'stat'"),
        (["--rename_map={action: observation.state}"], "is there already"),
        ([], "or --rename_map"),
    ],
)
def test_a_rename_that_makes_no_sense_is_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    says: str,
) -> None:
    assert run(folder / "reference", *options, f"--output_dir={tmp_path / 'out'}") == 2
    assert says in one_line(capsys)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"units": "rad"}, "gripper: keep"),
        ({"units": "grad"}, "Unknown units 'grad'"),
        ({"units": {"from": "rad", "to": "deg"}}, "the episodes are in deg"),
        ({"units": "m100_100"}, "Give ranges"),
        ({"joints": {"waist": "pan"}}, "Unknown joint 'waist'"),
        ({"joints": {"elbow_flex": "wrist_flex"}}, "get one name"),
        ({"cameras": {"top": None}}, "Unknown camera 'top'"),
        ({"cameras": {"overhead": {"crop": [0, 0, 66, 64]}}}, "reaches out of a picture"),
        ({"cameras": {"overhead": {"resize": [33, 32]}}}, "must be even"),
        ({"fps": 29.97}, "whole number"),
        ({"drop": ["observation.velocity"]}, "Unknown feature"),
        ({"action_space": {"to": "ee", "arm": "so101"}}, "action_space"),
        ({"order": {"action": ["shoulder_pan.pos"]}}, "name each of them once"),
        ({"unit": "rad"}, "Did you mean 'units'"),
    ],
)
def test_a_spec_that_makes_no_sense_is_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spec: dict[str, Any],
    says: str,
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    out = tmp_path / "out"
    assert run(folder / "arm", f"--spec={file}", f"--output_dir={out}") == 2
    assert says in one_line(capsys)
    assert not out.exists()
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == ["spec.yaml"]


def test_a_calibration_file_gives_ranges(tmp_path: Path) -> None:
    motor = {"id": 1, "drive_mode": 0, "homing_offset": 0, "range_min": 1024, "range_max": 3072}
    (tmp_path / "arm.json").write_text(json.dumps({"pan": motor}))
    spec = parse_spec({"units": {"to": "deg", "ranges": "arm.json"}}, "spec", tmp_path)
    assert spec.units is not None
    assert np.allclose(spec.units.ranges_deg["pan"], (-1024 * 360 / 4095, 1024 * 360 / 4095))
