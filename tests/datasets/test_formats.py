"""Other projects' layouts: what their readers need is there, and importing gives it all back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from gaploop.collect.withdrawal import withdraw
from gaploop.core import consent, labels
from gaploop.core.consent import Use, new_id
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets import columns, layout, staging
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.formats import registry
from gaploop.datasets.formats.dataset import open_dataset, write_dataset
from gaploop.datasets.formats.model import ImportSettings
from gaploop.datasets.formats.registry import LAYOUTS, export_dataset, guess
from gaploop.datasets.frames import load_frames
from gaploop.datasets.lerobot_publish import publish, publish_takes
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
ENDINGS = {"diffusion_policy": ".zarr", "aloha": ""}
FRAMES = (7, 5, 6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture
def dataset(store: Path, write_take: Callable[..., str]) -> Path:
    """Three takes with two cameras, telemetry, labels and dimensions; made once."""
    root = store / "set"
    if not root.exists():
        for k, frames in enumerate(FRAMES):
            uid = write_take(
                store / "journal",
                frames,
                Outcome.SUCCESS if k else Outcome.FAILURE,
                code=50 * k,
                joints=JOINTS,
                cameras=("overhead", "wrist"),
                task=f"Task {k % 2}",
                dimensions={"contact_dynamics": 0.7} if k == 1 else {},
                domain=Domain.SIM,
                conditions={"distractors": k},
            )
            if k == 0:
                event = labels.LabelEvent(uid, "failure_mode", "slip", "ana", "engineer")
                labels.append(store / "journal" / "labels.jsonl", event)
        publish(store / "journal", root, "me/set")
    return root


@pytest.fixture
def exported(store: Path, dataset: Path) -> Callable[[str], Path]:
    def export(name: str) -> Path:
        output = store / f"{name}{ENDINGS[name]}"
        if not output.exists():
            export_dataset(dataset, name, output)
        return output

    return export


def pictures(root: Path) -> list[np.ndarray]:
    return [p for take in read_takes(root) for c in take.cameras.values() for p in c()]


@pytest.mark.parametrize("name", ENDINGS)
def test_exporting_and_importing_gives_the_dataset_back(
    name: str, dataset: Path, exported: Callable[[str], Path], store: Path, capsys: Any
) -> None:
    """Numbers and pictures bit by bit; uids, labels, units, tasks, fps and telemetry, too."""
    back = store / f"back_{name}"
    assert main(["convert", str(exported(name)), f"--output_dir={back}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["format"], answer["episodes"], answer["exact"]) == (name, 3, True)
    assert [f for f in check(back) if f.severity == ERROR] == []
    old, new = layout.read_info(dataset), layout.read_info(back)
    assert (old.fps, old.robot_type, list(old.features)) == (
        new.fps,
        new.robot_type,
        list(new.features),
    )
    numbers = [n for n in old.features if n not in old.video_keys]
    before, after = load_frames(dataset, numbers), load_frames(back, numbers)
    for column in numbers:
        np.testing.assert_array_equal(before.columns[column], after.columns[column], column)
        assert before.columns[column].dtype == after.columns[column].dtype
    wanted = [*columns.EPISODE_COLUMNS, "tasks", "length"]
    rows = [[{n: r[n] for n in wanted} for r in layout.episode_rows(x)] for x in (dataset, back)]
    assert rows[0] == rows[1]
    assert (back / layout.LABELS).read_text() == (dataset / layout.LABELS).read_text()
    for a, b in zip(pictures(dataset), pictures(back), strict=True):
        np.testing.assert_array_equal(a, b)
    for path in (dataset / "telemetry").iterdir():
        assert (back / "telemetry" / path.name).read_bytes() == path.read_bytes()


def test_plain_lerobot_shows_the_pictures_that_came_back(
    dataset: Path, exported: Callable[[str], Path], store: Path
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    back = store / "back_lerobot"
    write_dataset(LAYOUTS["aloha"].read(exported("aloha"), ImportSettings()), back)
    ours = LeRobotDataset("me/back", root=back)
    wanted = [p for take in read_takes(dataset) for p in take.cameras["wrist"]()]
    for k in (0, 6, 7, 12, 17):
        shown = (ours[k]["observation.images.wrist"].numpy().transpose(1, 2, 0) * 255).round()
        np.testing.assert_array_equal(shown.astype(np.uint8), wanted[k])


def test_diffusion_policy_reads_its_buffer(dataset: Path, exported: Callable[[str], Path]) -> None:
    """As `ReplayBuffer.copy_from_path` does: zarr 2 metadata, arrays as long as the last end."""
    path = exported("diffusion_policy")
    assert json.loads((path / ".zgroup").read_text()) == {"zarr_format": 2}
    assert not list(path.rglob("zarr.json"))
    for spec in path.glob("data/*/.zarray"):
        value = json.loads(spec.read_text())
        assert (value["zarr_format"], value["compressor"]["id"]) == (2, "blosc")
        assert value.get("dimension_separator", ".") == "."
    root = zarr.open_group(path, mode="r")
    ends = root["meta/episode_ends"][:]
    assert (ends.dtype, list(ends)) == (np.int64, [7, 12, 18])
    table = load_frames(dataset, ["action", "observation.state"])
    np.testing.assert_array_equal(root["data/action"][:], table.columns["action"])
    np.testing.assert_array_equal(root["data/state"][:], table.columns["observation.state"])
    for _, array in root["data"].arrays():
        assert array.shape[0] == ends[-1]
    overhead = [p for take in read_takes(dataset) for p in take.cameras["overhead"]()]
    np.testing.assert_array_equal(root["data/overhead"][:], np.stack(overhead))


def test_act_reads_the_episodes(dataset: Path, exported: Callable[[str], Path]) -> None:
    """As `EpisodicDataset.__getitem__` of tonyzhaozh/act does, one time step of each."""
    table = load_frames(dataset, ["action", "observation.state"])
    takes = list(read_takes(dataset))
    for episode, take in enumerate(takes):
        with h5py.File(exported("aloha") / f"episode_{episode}.hdf5") as root:
            assert root.attrs["sim"]
            rows, step = table.rows_of(episode), 3
            assert root["/action"].shape == (FRAMES[episode], 6)
            np.testing.assert_array_equal(root["/action"][:], table.columns["action"][rows])
            state = table.columns["observation.state"][rows]
            np.testing.assert_array_equal(root["/observations/qpos"][step], state[step])
            assert root["/observations/qvel"][step].shape == (6,)
            for camera in ("overhead", "wrist"):
                stored = root[f"/observations/images/{camera}"]
                assert stored.chunks == (1, 64, 64, 3)
                wanted = list(take.cameras[camera]())[step]
                np.testing.assert_array_equal(stored[step], wanted)


@pytest.mark.parametrize("name", ["diffusion_policy", "aloha"])
def test_what_is_exported_shows_its_layout(name: str, exported: Callable[[str], Path]) -> None:
    assert guess(exported(name)) == name


def test_only_some_episodes(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "some.zarr"
    export_dataset(dataset, "diffusion_policy", output, episodes=[2, 0])
    assert LAYOUTS["diffusion_policy"].read(output, ImportSettings()).count == 2
    back = tmp_path / "back"
    write_dataset(LAYOUTS["diffusion_policy"].read(output, ImportSettings()), back)
    uids = [take.info.uid for take in read_takes(dataset)]
    assert [take.info.uid for take in read_takes(back)] == [uids[0], uids[2]]
    assert len(list(labels.read(back / layout.LABELS))) == 1


def test_a_failed_export_leaves_nothing(dataset: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(dataset, tmp_path / "set"))
    next((broken / "videos").rglob("*.mp4")).unlink()
    for name, ending in ENDINGS.items():
        with pytest.raises(UnusableInputError, match=r"video of .* is missing"):
            export_dataset(broken, name, tmp_path / f"out{ending}")
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_two_exports_to_one_output_do_not_disturb_each_other(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_WAIT_S", 0.0)
    output = tmp_path / "out.zarr"
    refused: list[BaseException | None] = []

    def second() -> None:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(export_dataset, dataset, "diffusion_policy", output)
            refused.append(work.exception())

    export_dataset(dataset, "diffusion_policy", output, advance=second)
    assert [type(error) for error in refused] == [staging.BusyError] * len(FRAMES)
    assert LAYOUTS["diffusion_policy"].read(output, ImportSettings()).count == len(FRAMES)
    assert list(tmp_path.iterdir()) == [output]


def test_an_output_that_appears_meanwhile_is_not_touched(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.zarr"

    def slow(*given: Any, **more: Any) -> Any:
        out = open_dataset(*given, **more)
        output.write_text("theirs")  # by another export, which held the lock
        return out

    monkeypatch.setattr(registry, "open_dataset", slow)
    with pytest.raises(UnusableInputError, match="exists"):
        export_dataset(dataset, "diffusion_policy", output)
    assert output.read_text() == "theirs"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--to=csv2", "--output_dir=x"], "Unknown format 'csv2'"),
        (["--to=aloha"], "Convert to where?"),
        (["--to=aloha", "--output_dir=x", "--fps=3"], "--fps is for what is read"),
        (["--to=diffusion_policy", "--output_dir=x"], "ends with .zarr"),
        (["--to=mcap", "--output_dir=x"], "Unknown format 'mcap'"),
    ],
)
def test_wrong_exports_are_refused_in_one_line(
    argv: list[str], says: str, dataset: Path, capsys: Any
) -> None:
    assert main(["convert", str(dataset), *argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line


@pytest.mark.parametrize("name", ["aloha", "diffusion_policy"])
def test_some_episodes_come_back_with_their_labels(
    name: str, dataset: Path, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    argv = ["convert", str(exported(name)), f"--output_dir={tmp_path / 'out'}"]
    assert main([*argv, "--episodes=[0, 2]"]) == 0
    uids = [take.info.uid for take in read_takes(dataset)]
    assert [take.info.uid for take in read_takes(tmp_path / "out")] == [uids[0], uids[2]]
    (event,) = labels.read(tmp_path / "out" / layout.LABELS)
    assert event.uid == uids[0]


@pytest.mark.parametrize("option", ["--fps=10", "--set={outcome: failure}", "--drop_videos=true"])
def test_nothing_that_is_said_is_passed_over_in_silence(
    option: str, exported: Callable[[str], Path], tmp_path: Path, capsys: Any
) -> None:
    argv = ["convert", str(exported("aloha")), f"--output_dir={tmp_path / 'out'}", option]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert option.partition("=")[0] in line
    assert not (tmp_path / "out").exists()


def test_people_have_to_agree_to_a_copy(
    tmp_path: Path, write_take: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register, id_ = tmp_path / "consents.jsonl", new_id()
    expires = datetime.now(UTC).date() + timedelta(days=9)
    consent.add(register, id_, expires, frozenset(Use))
    write_take(tmp_path / "journal", 3, consent=id_)
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    publish_takes(tmp_path / "journal", tmp_path / "set", "me/set")
    export_dataset(tmp_path / "set", "diffusion_policy", tmp_path / "a.zarr")
    places = consent.load_register(register).places[id_]
    assert str(tmp_path / "a.zarr") in {place.where for place in places}
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "other.jsonl"))
    with pytest.raises(UnusableInputError, match=id_):
        export_dataset(tmp_path / "set", "diffusion_policy", tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()
    argv = ["convert", str(tmp_path / "a.zarr"), f"--output_dir={tmp_path / 'back'}"]
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    assert main(argv) == 0  # a copy again, in the same register
    places = consent.load_register(register).places[id_]
    assert str(tmp_path / "back") in {place.where for place in places}

    def leave() -> None:
        consent.withdraw(register, id_)

    with pytest.raises(UnusableInputError, match="withdrawn"):  # during the export
        export_dataset(
            tmp_path / "set",
            "diffusion_policy",
            tmp_path / "c.zarr",
            advance=leave,
        )
    assert not [p for p in tmp_path.iterdir() if "c.zarr" in p.name]
    report = withdraw(register, id_, remove=True)
    assert {str(tmp_path / name) for name in ("a.zarr", "c.zarr")} <= {
        place.where for place in report.unreached
    }
    assert str(tmp_path / "back") in {place.where for place in report.found}
