"""Videos for the browser: the right pictures, at the right times, from inside the folder only."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

from benchmarks.review_dataset import BITS, BLOCK_PX, FPS, FRAMES, picture
from gaploop.core.errors import UnusableInputError
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.datasets.lerobot_read import stored_pictures
from gaploop.failure_analysis.review.takes import CameraVideo, Media, TakeSource, make_playable


def number_of(image: np.ndarray) -> int:
    blocks = image[:BLOCK_PX, : BITS * BLOCK_PX].reshape(BLOCK_PX, BITS, BLOCK_PX, 3)
    return sum(1 << bit for bit in range(BITS) if blocks[:, bit].mean() > 128)


def shown(path: Path) -> list[tuple[int, float]]:
    """Return the number that each picture says, and when it is shown [s]."""
    with av.open(str(path)) as container:
        return [
            (number_of(frame.to_ndarray(format="rgb24")), float(frame.pts * frame.time_base))
            for frame in container.decode(video=0)
        ]


EXACT = [(k, pytest.approx(k / FPS, abs=1e-6)) for k in range(FRAMES)]


def test_every_picture_stands_at_its_own_time(store: LabelStore, tmp_path: Path) -> None:
    """Matroska has whole milliseconds and a dataset's file many takes: neither may shift one."""
    source, media = TakeSource(store), Media(tmp_path)
    episode = store.episodes[3]
    cameras = source.pictures(episode)
    assert [c.camera for c in cameras] == ["overhead", "wrist"]
    for camera in cameras:
        assert shown(media.video(episode.info.uid, camera)) == EXACT


def test_a_torn_journal_video_plays_as_far_as_it_goes(journal: Path, tmp_path: Path) -> None:
    store = open_labelled(journal)
    where = TakeSource(store).pictures(store.episodes[0])[0]
    data = where.path.read_bytes()
    where.path.write_bytes(data[: len(data) * 2 // 3])
    numbers = [number for number, _ in shown(Media(tmp_path).video("take", where))]
    assert numbers == list(range(len(numbers)))
    assert numbers


def write_video(path: Path, codec: str, pix_fmt: str, **options: str) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=int(FPS), options=options)
        stream.height, stream.width = picture(0, 60).shape[:2]
        stream.pix_fmt = pix_fmt
        for k in range(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(k, 60), format="rgb24")))
        container.mux(stream.encode(None))


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options"),
    [
        ("mpeg4", "yuv420p", {"b": "4M"}),
        ("libx264", "yuv444p", {"g": "250", "bf": "2"}),
        ("libx264", "yuv420p", {"g": "250", "bf": "2"}),
    ],
)
def test_what_browsers_cant_play_or_cut_is_encoded_anew(
    tmp_path: Path, codec: str, pix_fmt: str, options: dict[str, str]
) -> None:
    source = tmp_path / "source.mp4"
    write_video(source, codec, pix_fmt, **options)
    target = tmp_path / "target.mp4"
    make_playable(CameraVideo("top", source, 5 / FPS, 10, FPS), target)
    assert [number for number, _ in shown(target)] == list(range(5, 15))
    with av.open(str(target)) as container:
        context = container.streams.video[0].codec_context
        assert (context.codec.canonical_name, context.pix_fmt) == ("h264", "yuv420p")


def test_pictures_that_lie_in_the_rows_are_shown_as_those_of_videos(tmp_path: Path) -> None:
    """A dataset of LeRobot's without videos had "no video" in every episode."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape, root = picture(0, 60).shape, tmp_path / "images"
    features = {
        "observation.images.top": {
            "dtype": "image", "shape": shape, "names": ["height", "width", "channels"]
        },
        "action": {"dtype": "float32", "shape": (1,), "names": ["gripper.pos"]},
    }  # fmt: skip
    made = LeRobotDataset.create("me/images", int(FPS), features, root=root, use_videos=False)
    for k in range(30):
        action = np.zeros(1, np.float32)
        pixels = picture(k, 60)
        made.add_frame({"observation.images.top": pixels, "action": action, "task": "Pick"})
        if k in (9, 29):
            made.save_episode()
    made.finalize()
    store = open_labelled(root)
    source, episode = TakeSource(store), store.episodes[1]
    (camera,) = source.pictures(episode)
    assert camera.camera == "top"
    numbers = [number for number, _ in shown(Media(tmp_path).video(episode.info.uid, camera))]
    assert numbers == list(range(10, 30))
    assert number_of(source.picture(episode, "top", 7)) == 17


def test_a_dataset_that_points_outside_is_refused(dataset: Path, tmp_path: Path) -> None:
    """info.json of a stranger's dataset could name any file of this machine."""
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    info = json.loads((dataset / "meta" / "info.json").read_text())
    info["video_path"] = "../secret.mp4"
    (dataset / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(UnusableInputError, match=r"video_path '\.\./secret\.mp4'"):
        open_labelled(dataset)


def test_a_link_to_the_outside_is_refused(store: LabelStore, tmp_path: Path) -> None:
    source = TakeSource(store)
    path = source.pictures(store.episodes[0])[0].path
    outside = tmp_path / "elsewhere"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(UnusableInputError, match="is a link that leads out"):
        source.take(store.episodes[0])


def test_a_camera_named_like_a_path_is_refused(journal: Path) -> None:
    store = open_labelled(journal)
    header = journal / store.episodes[0].info.uid / "take.json"
    value = json.loads(header.read_text())
    value["cameras"] = {"../../../secret": next(iter(value["cameras"].values()))}
    header.write_text(json.dumps(value))
    with pytest.raises(UnusableInputError, match=r"camera '\.\./\.\./\.\./secret'"):
        open_labelled(journal)


@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_depth_in_the_rows_is_grey_by_one_scale_and_not_white(tmp_path: Path, kind: str) -> None:
    """Millimetres became 255 all over, metres nothing but black: Pillow clips at a byte."""
    unit, rows = 1000.0 if kind == "uint16" else 1.0, []
    for near_m in (0.3, 0.3, 0.6):
        depth_m = np.tile(np.linspace(near_m, 1.5, 64), (48, 1))
        depth_m[0, 0] = 0.0 if kind == "uint16" else np.nan  # nothing measured
        file = io.BytesIO()
        Pillow.fromarray((unit * depth_m).astype(kind)).save(file, "TIFF")
        rows.append({"bytes": file.getvalue(), "path": None})
    table = pa.table({"depth": rows, "episode_index": [0] * len(rows)})
    path = tmp_path / "data" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    first, again, farther = stored_pictures(path, "depth", 0)
    assert first.shape == (48, 64, 3)
    assert first.dtype == np.uint8
    assert first[0, 0].max() == 0
    assert np.all(np.diff(first[1, :, 0].astype(int)) >= 0)
    assert first[1, -1, 0] - first[1, 0, 0] > 100
    np.testing.assert_array_equal(first, again)
    assert farther[1, 0, 0] > first[1, 0, 0]
    assert farther[1, -1, 0] == first[1, -1, 0]
