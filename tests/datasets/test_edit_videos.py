"""Videos through edits: cut where key frames allow it, refused or encoded again where not."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError
from gaploop.datasets import video
from gaploop.datasets.check.dataset import check
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.datasets.video import VideoRange, VideoWriter, encode_part
from gaploop.scripts.cli import main

Write = Callable[..., str]
Barcodes = tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], int]]


def encode(
    path: Path,
    pictures: list[np.ndarray],
    fps: int,
    keys: list[int],
    encoder: str = "libx264",
    **options: str,
) -> None:
    """Encode pictures, with key frames where `keys` says and B-frames between them."""
    with av.open(str(path), "w", format="mp4") as container:
        settings = {"bf": "2", "g": "1000", "crf": "10", "sc_threshold": "0", **options}
        stream = container.add_stream(encoder, rate=fps, options=settings)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for n, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pict_type = 1 if n in keys else 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def codes(path: Path, frames: int, fps: float, read: Callable[[np.ndarray], int]) -> list[int]:
    return [read(picture) for picture in VideoRange(path, 0.0, frames, fps)()]


def times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [float(frame.time) for frame in container.decode(video=0)]


@pytest.mark.members(2)
@pytest.mark.parametrize("fps", [10, 15, 30, 50])
def test_parts_with_reordered_pictures_are_cut_at_exact_times(
    tmp_path: Path, barcodes: Barcodes, fps: int
) -> None:
    """Below 20 fps pictures once stood at half their times.

    FFmpeg's mp4 writer doubles time bases below 1/10000 when it writes the header; ticks were
    counted in the old one.
    """
    draw, read = barcodes
    source = tmp_path / "source.mp4"
    encode(source, [draw(n) for n in range(30)], fps, keys=[0, 10, 20])
    with VideoWriter(tmp_path / "out.mp4", fps) as writer:
        assert writer.append_part(source, 20 / fps, 10)
        assert writer.append_part(source, 0.0, 10)
    assert codes(tmp_path / "out.mp4", 20, fps, read) == [*range(20, 30), *range(10)]
    np.testing.assert_allclose(times(tmp_path / "out.mp4"), np.arange(20) / fps, atol=1e-6)


@pytest.mark.parametrize(
    ("encoder", "params"), [("libx265", "x265-params"), ("libx264", "x264-params")]
)
@pytest.mark.parametrize("opens", [0, 1])
def test_parts_come_out_in_their_order_or_are_not_cut(
    tmp_path: Path, barcodes: Barcodes, encoder: str, params: str, opens: int
) -> None:
    """Trimmed episodes of HEVC, LeRobot's for depth, showed pictures at wrong times.

    x265 begins few groups of pictures so that decoders count anew; at others no part can begin.
    """
    source, target = tmp_path / "source.mp4", tmp_path / "out.mp4"
    gop = {params: f"keyint=4:min-keyint=1:open-gop={opens}:bframes=2:b-adapt=0:scenecut=0"}
    encode(source, [barcodes[0](n) for n in range(40)], 30, [], encoder, **gop)
    starts, ends = video.cut_points(source, 30)
    assert {0} < starts if not opens else starts == {0}
    want = [n for first in sorted(starts)[::-1] for n in range(first, min(first + 8, max(ends)))]
    with VideoWriter(target, 30) as writer:
        for first in sorted(starts)[::-1]:
            assert writer.append_part(source, first / 30, min(8, max(ends) - first))
        for other in {0, 4, 8, 12} - starts:
            with pytest.raises(UnusableInputError, match="can't be cut at"):
                writer.append_part(source, other / 30, 4)
    assert codes(target, len(want), 30, barcodes[1]) == want


def test_a_part_that_others_depend_on_is_not_cut(tmp_path: Path, barcodes: Barcodes) -> None:
    source = tmp_path / "source.mp4"
    encode(source, [barcodes[0](n) for n in range(30)], 30, keys=[0, 10])
    with VideoWriter(tmp_path / "out.mp4", 30) as writer:
        for first, frames in ((5, 5), (20, 10), (10, 25)):
            with pytest.raises(UnusableInputError, match="can't be cut at"):
                writer.append_part(source, first / 30, frames)
        assert not (tmp_path / "out.mp4").exists()
        assert writer.append_part(source, 10 / 30, 20)


def test_encoding_a_part_again_shows_the_same_pictures(tmp_path: Path, barcodes: Barcodes) -> None:
    source, target = tmp_path / "source.mp4", tmp_path / "part.mp4"
    encode(source, [barcodes[0](n) for n in range(30)], 30, keys=[0])
    encode_part(source, 7 / 30, 12, 30, target)
    assert codes(target, 12, 30, barcodes[1]) == list(range(7, 19))
    with pytest.raises(UnusableInputError, match="holds 5 pictures"):
        encode_part(source, 25 / 30, 12, 30, target)


def test_an_edit_encodes_nothing_unless_it_is_told_to(
    tmp_path: Path, write_take: Write, barcodes: Barcodes, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(4):
        write_take(tmp_path / "journal", frames=6, code=100 * n)
    root = tmp_path / "set"
    publish(tmp_path / "journal", root, "me/x")
    pictures = [barcodes[0](100 * n + k) for n in range(4) for k in range(6)]
    (video,) = (root / "videos").rglob("*.mp4")
    encode(video, pictures, 50, keys=[0, 6])  # takes 2 and 3 don't begin with a key frame
    before = video.read_bytes()
    arguments = ["edit", "keep", str(root), "--episodes=[0, 2]"]
    assert main([*arguments, "--yes"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"file-000.mp4 can't be cut at 0.24 s.*--reencode=true", error), error
    assert video.read_bytes() == before
    out = tmp_path / "out"
    assert main([*arguments, f"--output_dir={out}", "--reencode"]) == 0
    assert "1 episode cut out, 1 episode encoded again" in capsys.readouterr().out
    for take, code in zip(read_takes(out), (0, 200), strict=True):
        seen = [barcodes[1](picture) for picture in take.cameras["overhead"]()]
        assert seen == [code + k for k in range(6)]
    assert [f.code for f in check(out) if f.severity == "error"] == []


def test_merging_and_splitting_at_files_never_opens_what_it_takes_whole(
    tmp_path: Path, write_take: Write
) -> None:
    """A file all of whose takes stay is copied, key frames or not."""
    roots = []
    for n in range(2):
        for k in range(2):
            write_take(tmp_path / f"j{n}", frames=5, code=100 * n + 10 * k)
        roots.append(tmp_path / f"set{n}")
        publish(tmp_path / f"j{n}", roots[-1], "me/x")
    assert main(["edit", "merge", *map(str, roots), f"--output_dir={tmp_path / 'whole'}"]) == 0
    old = [p.read_bytes() for root in roots for p in (root / "videos").rglob("*.mp4")]
    new = sorted((tmp_path / "whole" / "videos").rglob("*.mp4"))
    assert [p.read_bytes() for p in new] == old
    assert all(p.stat().st_nlink == 1 for p in new)  # independent of what it was made of


def test_a_damaged_video_is_named_in_one_line(
    tmp_path: Path, write_take: Write, barcodes: Barcodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit of a dataset with a picture that doesn't decode ended with a traceback."""
    for n in range(3):
        write_take(tmp_path / "journal", frames=6, code=100 * n)
    root = tmp_path / "set"
    publish(tmp_path / "journal", root, "me/x")
    (video,) = (root / "videos").rglob("*.mp4")
    encode(video, [barcodes[0](n) for n in range(18)], 50, keys=[0, 6])  # take 2 can't be cut
    with av.open(str(video)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    content = bytearray(video.read_bytes())
    for place, size in places[6:]:
        content[place : place + size] = b"\xff" * size
    video.write_bytes(content)
    out = f"--output_dir={tmp_path / 'out'}"
    assert main(["edit", "keep", str(root), "--episodes=[2]", out, "--reencode"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"file-000.mp4 can't be read .*Restore it", error), error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(UnusableInputError, match="can't be read"):
        list(VideoRange(video, 0.12, 6, 50)())


def priorities() -> list[int]:
    """Return the real-time priority of each of this process's threads; 0 is an ordinary one."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found.append(os.sched_getparam(int(thread)).sched_priority)
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux alone lists threads there")
def test_encoding_as_root_keeps_nobody_from_the_processor(tmp_path: Path) -> None:
    """SVT-AV1 gave the highest real-time priority to itself and, for good, to whoever called it."""
    seen = []

    def pictures() -> Iterator[av.VideoFrame]:
        for _ in range(8):
            seen.append(max(priorities()))
            yield av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))

    assert video.encode(pictures(), tmp_path / "out.mp4", 30, video.ENCODERS["av1"]) == 8
    assert platform_calls.HIGHEST not in [*seen, *priorities()]
