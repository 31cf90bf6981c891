"""Recordings that gaploop didn't write: read as they are, and asked about what they don't say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from zarr.storage import ZipStore

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.formats.dataset import write_dataset
from gaploop.datasets.formats.foreign import ForeignRecording, ImportSettings
from gaploop.datasets.formats.layouts import LAYOUTS, guess
from gaploop.datasets.layout import read_info
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

RNG = np.random.default_rng(0)
KNOWN = ImportSettings(fps=20.0, units="rad", task="push")


def read(name: str, path: Path, settings: ImportSettings) -> ForeignRecording:
    return LAYOUTS[name][1](path, settings)


def written(incoming: ForeignRecording, target: Path) -> list[Take]:
    write_dataset(incoming, target)
    assert [f for f in check(target) if f.severity == ERROR] == []
    return list(read_takes(target))


def picture(k: int) -> np.ndarray:
    """Return a picture, 30 pixels high and 41 wide, that shows which one it is."""
    return np.dstack([np.full((30, 41), v, np.uint8) for v in (20 * k % 250, 90, 250 - 7 * k)])


@pytest.fixture
def pusht(tmp_path: Path) -> Path:
    """As pusht_cchi_v7_replay.zarr is: float32 pictures, float32 state of 5, key points."""
    root = zarr.open_group(tmp_path / "pusht.zarr", mode="w", zarr_format=2)
    data = root.create_group("data")
    arrays = {
        "img": np.stack([picture(k) for k in range(9)]).astype(np.float32),
        "state": RNG.normal(size=(9, 5)).astype(np.float32),
        "action": RNG.normal(size=(9, 2)),
        "keypoint": RNG.normal(size=(9, 3, 2)).astype(np.float32),
        "n_contacts": np.arange(9, dtype=np.float32)[:, None],
    }
    for name, values in arrays.items():
        data.create_array(name, data=values, chunks=(4, *values.shape[1:]))
    root.create_group("meta").create_array("episode_ends", data=np.array([5, 9]))
    return tmp_path / "pusht.zarr"


def test_a_diffusion_policy_buffer(pusht: Path, tmp_path: Path) -> None:
    assert guess(pusht) == "diffusion_policy"
    takes = written(read("diffusion_policy", pusht, KNOWN), tmp_path / "out")
    root = zarr.open_group(pusht, mode="r")
    assert [len(t.frames) for t in takes] == [5, 4]
    np.testing.assert_array_equal(
        takes[1].frames.action, root["data/action"][5:].astype(np.float32)
    )
    np.testing.assert_array_equal(takes[1].frames.state, root["data/state"][5:])
    for k, shown in enumerate(takes[1].cameras["img"](), 5):
        np.testing.assert_array_equal(shown, picture(k))
    assert {(t.info.units, t.info.task, t.info.kind) for t in takes} == {
        ("rad", "push", TakeKind.IMPORT)
    }
    info = read_info(tmp_path / "out")
    assert info.features["extra.keypoint"]["shape"] == [6]
    again = read("diffusion_policy", pusht, KNOWN).episodes()
    assert [t.info.uid for t in takes] == [e.uid for e in again]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ImportSettings(units="rad"), "--fps"),
        (ImportSettings(fps=10.0), "--units"),
        (ImportSettings(fps=12.5, units="rad"), "whole number"),
        (
            ImportSettings(10.0, "rad", keys={"observation.state": ("stat",)}),
            "keypoint, n_contacts, state",
        ),
    ],
)
def test_what_a_buffer_does_not_say_is_asked_for(
    settings: ImportSettings, says: str, pusht: Path
) -> None:
    with pytest.raises(UnusableInputError, match=says) as caught:
        read("diffusion_policy", pusht, settings)
    assert "\n" not in str(caught.value)


def test_an_ambiguous_state_is_asked_for(pusht: Path) -> None:
    data = zarr.open_group(pusht, mode="a")["data"]
    data.create_array("agent_pos", data=np.zeros((9, 2), np.float32))
    with pytest.raises(UnusableInputError, match=r"which of .* is observation.state"):
        read("diffusion_policy", pusht, KNOWN)
    chosen = ImportSettings(20.0, "rad", keys={"observation.state": ("agent_pos", "n_contacts")})
    episode = next(read("diffusion_policy", pusht, chosen).episodes())
    assert episode.columns["observation.state"].shape == (5, 3)


def test_a_umi_buffer_with_jpeg_xl_pictures(tmp_path: Path) -> None:
    """As UMI's own pipeline writes it: no action, pictures as JPEG XL, one a chunk."""
    from imagecodecs.numcodecs import Jpegxl

    path, n = tmp_path / "demo.zarr.zip", 6
    pose = {
        f"robot{r}_{part}": RNG.normal(size=(n, width)).astype(np.float32)
        for r in range(2)
        for part, width in (("eef_pos", 3), ("eef_rot_axis_angle", 3), ("gripper_width", 1))
    }
    with ZipStore(path, mode="w") as store:
        root = zarr.create_group(store, zarr_format=2)
        data = root.create_group("data")
        for name, values in pose.items():
            data.create_array(name, data=values)
        seen = data.create_array(
            "camera0_rgb",
            shape=(n, 30, 41, 3),
            chunks=(1, 30, 41, 3),
            dtype="uint8",
            compressors=Jpegxl(level=99, lossless=True),
        )
        for k in range(n):
            seen[k] = picture(k)
        root.create_group("meta").create_array("episode_ends", data=np.array([2, 6]))
    assert guess(path) == "umi"
    incoming = read("umi", path, ImportSettings(fps=60.0))
    takes = written(incoming, tmp_path / "out")
    wanted = np.concatenate(list(pose.values()), axis=1)
    np.testing.assert_array_equal(takes[1].frames.state, wanted[2:])
    np.testing.assert_array_equal(takes[1].frames.action, wanted[2:])
    assert takes[0].info.units == "m, rad"
    for k, shown in enumerate(takes[1].cameras["camera0"](), 2):
        np.testing.assert_array_equal(shown, picture(k))


def aloha(folder: Path, numbers: tuple[int, ...] = (0, 1), **attributes: Any) -> Path:
    folder.mkdir()
    for k in numbers:
        with h5py.File(folder / f"episode_{k}.hdf5", "w") as root:
            root.attrs.update({"sim": False, **attributes})
            root["action"] = RNG.normal(size=(4 + k, 14))
            root["observations/qpos"] = RNG.normal(size=(4 + k, 14))
            root["observations/qvel"] = np.zeros((4 + k, 14))
            root["observations/images/cam_high"] = np.stack([picture(i) for i in range(4 + k)])
    return folder


def test_aloha_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    source = aloha(tmp_path / "raw", (0, 2, 10))
    settings = ImportSettings(50.0, "rad", outcome=Outcome.SUCCESS)
    takes = written(read("aloha", source, settings), tmp_path / "out")
    assert [len(t.frames) for t in takes] == [4, 6, 14]
    assert {(t.info.domain, t.outcome) for t in takes} == {(Domain.REAL, Outcome.SUCCESS)}
    with h5py.File(source / "episode_10.hdf5") as root:
        wanted = root["action"][:].astype(np.float32)
    np.testing.assert_array_equal(takes[2].frames.action, wanted)
    np.testing.assert_array_equal(next(iter(takes[2].cameras["cam_high"]())), picture(0))


def test_aloha_with_nan_is_refused_and_nothing_stays(tmp_path: Path, capsys: Any) -> None:
    source, out = aloha(tmp_path / "raw"), tmp_path / "out"
    with h5py.File(source / "episode_1.hdf5", "a") as root:
        root["action"][3, 2] = np.nan
    argv = ["convert", str(source), "--fps=50", "--units=rad", f"--output_dir={out}"]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "action holds NaN" in line
    assert "row 3" in line
    assert sorted(p.name for p in tmp_path.iterdir() if "lock" not in p.name) == ["raw"]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("aloha", "--rename_map={qvel: observation.state}"),
        ("umi", "--rename_map={qvel: observation.state}"),
        ("umi", "--drop_videos"),
        ("lerobot", "--units=degrees"),
    ],
)
def test_an_option_that_a_format_does_not_heed_is_refused(
    name: str, option: str, tmp_path: Path, capsys: Any
) -> None:
    argv = ["convert", str(tmp_path), f"--from={name}", f"--output_dir={tmp_path / 'out'}"]
    assert main([*argv, option]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert option.partition("=")[0] + " is for" in line


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("noise.hdf5", b"noise", "doesn't show its format"),
        ("noise.zarr.zip", b"noise", "doesn't show its format"),
        ("missing.hdf5", b"", "not found"),
    ],
)
def test_damaged_sources_get_one_line(
    name: str, content: bytes, says: str, tmp_path: Path, capsys: Any
) -> None:
    source = tmp_path / name
    if content:
        source.write_bytes(content)
    argv = ["convert", str(source), "--fps=25", f"--output_dir={tmp_path / 'out'}"]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert not (tmp_path / "out").exists()
