"""Deleting takes from a dataset: what stays is unchanged, what goes is nowhere any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from gaploop.core import labels
from gaploop.core.journal_format import TRUTH, append_truth
from gaploop.core.labels import LabelEvent
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.edit.actions import delete_takes
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.video import count_frames

Write = Callable[..., str]
Barcodes = tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], int]]


@pytest.fixture
def published(tmp_path: Path, write_take: Write) -> tuple[Path, list[str]]:
    """A dataset of five takes, with labels, truth, telemetry and a card."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    uids = []
    for n in range(5):
        task = "Put the cube on the disc" if n != 3 else "Lift it"
        uids.append(write_take(journal, frames=6 + n, code=100 * n, task=task, policy=f"p{n}"))
        append_truth(journal, uids[-1], {"gap": n})
        event = LabelEvent(uids[-1], "failure_mode", "slip", "ana", "operator")
        labels.append(journal / "labels.jsonl", event)
    publish(journal, root, "me/x")
    (root / "README.md").write_text("# card\n")
    return root, uids


def everything(folder: Path) -> bytes:
    return b"\0".join(p.read_bytes() + str(p).encode() for p in folder.rglob("*") if p.is_file())


@pytest.mark.members(2)
@pytest.mark.parametrize("gone", [[0], [4], [1, 3], [0, 1, 2, 4]])
def test_what_stays_is_unchanged_and_what_goes_is_nowhere(
    published: tuple[Path, list[str]], gone: list[int], barcodes: Barcodes
) -> None:
    root, uids = published
    before = {take.info.uid: take for take in read_takes(root)}
    removed = delete_takes(root, lambda episode: episode.index in gone)
    assert list(removed) == [uids[n] for n in gone]
    kept = [uid for uid in uids if uid not in removed]
    after = list(read_takes(root))
    assert [take.info.uid for take in after] == kept
    for take in after:
        was = before[take.info.uid]
        assert (take.info, take.outcome, take.failure_mode) == (
            was.info, was.outcome, was.failure_mode,
        )  # fmt: skip
        for name in ("t_s", "state", "action", "sent", "environment_state", "intervention"):
            np.testing.assert_array_equal(getattr(take.frames, name), getattr(was.frames, name))
        np.testing.assert_array_equal(take.telemetry.t_s, was.telemetry.t_s)
        code = 100 * uids.index(take.info.uid)
        seen = [barcodes[1](picture) for picture in take.cameras["overhead"]()]
        assert seen == [code + k for k in range(len(take.frames))]
    assert [f for f in check(root) if f.severity == "error"] == []
    videos = sum(count_frames(path) for path in (root / "videos").rglob("*.mp4"))
    assert videos == sum(len(take.frames) for take in after)
    held = everything(root)
    for uid in removed:
        assert uid.encode() not in held
        assert not telemetry_path(root, uid).exists()
    assert (root / "README.md").read_text() == "# card\n"
    assert len((root / TRUTH).read_text().splitlines()) == len(kept)
    assert [e.uid for e in labels.read(root / layout.LABELS)] == kept
    assert sorted(p.name for p in root.parent.iterdir()) == [".set.lock", "journal", "set"]


def test_plain_lerobot_loads_what_is_left_with_every_picture_by_its_row(
    published: tuple[Path, list[str]], barcodes: Barcodes
) -> None:
    root, _ = published
    delete_takes(root, lambda episode: episode.index in (0, 2))
    loaded = LeRobotDataset("me/x", root=root)
    assert loaded.num_episodes == 3
    for item in loaded:
        picture = item["observation.images.overhead"].numpy().transpose(1, 2, 0) * 255
        code = (100, 300, 400)[int(item["episode_index"])]
        assert barcodes[1](picture) == code + int(item["frame_index"])
    assert loaded[7]["task"] == "Lift it"


def test_deleting_everything_deletes_the_folder(published: tuple[Path, list[str]]) -> None:
    root, uids = published
    assert list(delete_takes(root, lambda _episode: True)) == uids
    assert not root.exists()


def test_deleting_nothing_writes_nothing(published: tuple[Path, list[str]]) -> None:
    root, _ = published
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    assert delete_takes(root, lambda _episode: False) == ()
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


def test_publishing_goes_on_after_a_deletion(
    published: tuple[Path, list[str]], write_take: Write, tmp_path: Path
) -> None:
    root, uids = published
    delete_takes(root, lambda episode: episode.index == 4)
    new = write_take(tmp_path / "next", code=900)
    assert publish(tmp_path / "next", root, "me/x") == 1
    assert [take.info.uid for take in read_takes(root)] == [*uids[:4], new]
    assert [f for f in check(root) if f.severity == "error"] == []


class Killed(BaseException):
    pass


@pytest.mark.members(2)
@pytest.mark.parametrize("at", ["rows written", "videos written", "staged", "synced", "swapped"])
def test_killed_at_any_step_it_is_the_old_or_the_new_one(
    published: tuple[Path, list[str]], at: str
) -> None:
    root, uids = published

    def kill(step: str) -> None:
        if step == at:
            raise Killed

    with pytest.raises(Killed):
        delete_takes(root, lambda episode: episode.index == 1, hook=kill)
    held = [take.info.uid for take in read_takes(root)]
    assert held in (uids, uids[:1] + uids[2:])
    delete_takes(root, lambda episode: episode.info.uid == uids[1])
    assert uids[1].encode() not in everything(root.parent / "set")
    assert [p.name for p in root.parent.iterdir() if p.name.startswith(".set.")] == [".set.lock"]


def reencode(path: Path) -> None:
    """Encode a video with one key frame and B-frames, as other recorders do."""
    with av.open(str(path)) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path), "w", format="mp4") as container:
        options = {"bf": "2", "g": "1000", "crf": "10"}
        stream = container.add_stream("libx264", rate=50, options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def test_videos_that_cannot_be_cut_are_encoded_again(
    published: tuple[Path, list[str]], barcodes: Barcodes
) -> None:
    """Datasets from elsewhere may have reordered frames, or key frames somewhere else."""
    root, uids = published
    for path in (root / "videos").rglob("*.mp4"):
        reencode(path)
    assert delete_takes(root, lambda episode: episode.index == 1) == (uids[1],)
    after = list(read_takes(root))
    assert [take.info.uid for take in after] == uids[:1] + uids[2:]
    assert after[1].info.policy == "p2"
    seen = [barcodes[1](picture) for picture in after[1].cameras["overhead"]()]
    assert seen == [200 + k for k in range(8)]
    assert uids[1].encode() not in everything(root)
