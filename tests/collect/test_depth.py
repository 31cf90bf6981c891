"""Depth streams: 16 bits from the camera to the LeRobot dataset, without a bit lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core.errors import DeviceError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader, read_take
from gaploop.core.messages import DEPTH_CODEC
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.lerobot_publish import publish_takes

SIZE = {"width": 34, "height": 26, "fps": 50.0}
CAMERAS = {"top": {**SIZE, "codec": "h264"}, "top_depth": {**SIZE, "codec": DEPTH_CODEC}}
FRAMES = 6
NAME = "observation.images.top_depth"


def depth_mm(index: int) -> NDArray[np.uint16]:
    """Every bit of 16 is used, up to both ends."""
    picture = np.random.default_rng(index).integers(0, 1 << 16, (26, 34), dtype=np.uint16)
    picture[0, :2] = 0, 65535
    return picture


def row(index: int, depth: NDArray[np.uint16]) -> FrameRow:
    q = np.array([index, 1.0])
    grey = np.full((26, 34, 3), 40 * index, dtype=np.uint8)
    return FrameRow(
        index / 50, q, q, q, np.empty(0), False, 0, dict.fromkeys(CAMERAS, 0.01),
        {"top": grey, "top_depth": depth},  # type: ignore[dict-item]
    )  # fmt: skip


def recorded(journal: Path, encoder: Encoder | None = None) -> Path:
    info = TakeInfo(uuid7(), task="t", fps=50.0, joint_names=("a", "b"), robot_type="r")
    journal.mkdir(exist_ok=True)
    with JournalWriter(journal, TakeHeader(info, (), CAMERAS, {}), encoder=encoder) as writer:
        for index in range(FRAMES):
            writer.frame(row(index, depth_mm(index)))
        return writer.seal(Outcome.SUCCESS)


def test_depth_is_read_back_to_the_bit(tmp_path: Path) -> None:
    take = read_take(recorded(tmp_path / "j"))
    assert list(take.cameras) == ["top"]
    found = list(take.depth["top_depth"]())
    assert len(found) == FRAMES
    for index, picture in enumerate(found):
        assert picture.dtype == np.uint16
        np.testing.assert_array_equal(picture, depth_mm(index))


def test_the_encoders_process_loses_nothing_either(tmp_path: Path) -> None:
    with Encoder() as encoder:
        take = read_take(recorded(tmp_path / "j", encoder))
    for index, picture in enumerate(take.depth["top_depth"]()):
        np.testing.assert_array_equal(picture, depth_mm(index))


def test_eight_bits_are_no_depth(tmp_path: Path) -> None:
    info = TakeInfo(uuid7(), task="t", fps=50.0, joint_names=("a", "b"))
    with JournalWriter(tmp_path, TakeHeader(info, (), CAMERAS, {})) as writer:
        right = row(0, depth_mm(0))
        wrong = {**right.pictures, "top_depth": np.zeros((26, 34), dtype=np.uint8)}
        with pytest.raises(DeviceError, match=r"top_depth.*not uint16 \(26, 34\)"):
            writer.frame(replace(right, pictures=wrong))


def test_lerobot_reads_the_published_millimetres(tmp_path: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root, journal = tmp_path / "data", tmp_path / "j"
    recorded(journal)
    assert len(publish_takes(journal, root, "me/x").published) == 1
    recorded(journal)
    assert len(publish_takes(journal, root, "me/x").published) == 1  # appended
    assert not (root / "images").exists()
    dataset = LeRobotDataset("me/x", root, depth_output_unit="mm")
    assert dataset.meta.depth_keys == [NAME]
    assert dataset.meta.stats[NAME]["max"].item() == 65535
    for index in range(2 * FRAMES):
        picture = dataset[index][NAME].numpy()
        np.testing.assert_array_equal(picture[0], depth_mm(index % FRAMES).astype(np.float32))


def test_a_publish_that_is_killed_leaves_no_depth_behind(tmp_path: Path) -> None:
    def killed(step: str) -> None:
        if step == "take written":
            raise KeyboardInterrupt

    root, journal = tmp_path / "data", tmp_path / "j"
    recorded(journal)
    with pytest.raises(KeyboardInterrupt):
        publish_takes(journal, root, "me/x", hook=killed)
    assert not root.exists()
    assert len(publish_takes(journal, root, "me/x").published) == 1
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["data", "j"]
