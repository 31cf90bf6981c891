"""Videos as browsers play them: one small MP4 per take and camera, its first picture at time 0.

A journal's Matroska files don't play in browsers, and a dataset's MP4 holds hundreds of episodes.
The packets are copied without decoding, each at exactly k / fps, so that seeking to a frame shows
that frame. Where that can't be, the pictures are encoded anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.datasets.video import TICKS_PER_FRAME, VideoWriter, open_video
from gaploop.failure_analysis.review.source import CameraVideo

PLAYABLE: Final = ("h264", "av1", "vp9")
"""What browsers on Linux, macOS and Windows play without asking the system for help."""
SUBSAMPLED: Final = "yuv420p"
"""The only pixel format that they all play."""
MOST_FILES: Final = 240


class Media:
    """Makes and keeps the videos of the takes that were looked at last.

    Args:
        folder: where they are kept; emptied by whoever made it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: OrderedDict[str, Path] = OrderedDict()
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def video(self, uid: str, picture: CameraVideo) -> Path:
        """Return a take's video of one camera, made when first asked for.

        Args:
            uid: the take.
            picture: where its pictures are; checked by the caller to lie where it may.

        Raises:
            UnusableInputError: it can't be read.
            OSError: there is no room.
        """
        name = hashlib.sha256(f"{uid}/{picture.camera}".encode()).hexdigest()[:24]
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            path = self._made.get(name)
            if path is None or not path.exists():
                path = self._folder / f"{name}.mp4"
                part = path.with_suffix(".part")
                make_playable(picture, part)
                part.replace(path)
            self._keep(name, path)
            return path

    def _keep(self, name: str, path: Path) -> None:
        with self._lock:
            self._made[name] = path
            self._made.move_to_end(name)
            while len(self._made) > MOST_FILES:
                _, oldest = self._made.popitem(last=False)
                oldest.unlink(missing_ok=True)


def make_playable(picture: CameraVideo, target: Path) -> None:
    """Write a take's pictures to an MP4 that browsers play, its first one at time 0.

    Raises:
        UnusableInputError: they can't be read, or there are none.
    """
    with open_video(picture.path) as container:
        context = container.streams.video[0].codec_context
        plays = context.codec.canonical_name in PLAYABLE and context.pix_fmt == SUBSAMPLED
    frames = picture.frames or _whole_packets(picture.path)
    if not frames:
        raise UnusableInputError(f"{picture.path} holds no whole picture. The take was cut off.")
    if plays:
        with contextlib.suppress(UnusableInputError), VideoWriter(target, picture.fps) as writer:
            writer.append_part(picture.path, picture.start_s, frames)
            return
    _encode(picture, frames, target)


def _whole_packets(path: Path) -> int:
    """Count pictures up to where a kill may have torn the file."""
    count = 0
    with open_video(path) as container, contextlib.suppress(av.FFmpegError):
        for packet in container.demux(video=0):
            count += bool(packet.size) and not packet.is_corrupt
    return count


def _encode(picture: CameraVideo, frames: int, target: Path) -> None:
    rate = Fraction(picture.fps).limit_denominator(1001)
    options = {"crf": "18", "g": "10", "bf": "0", "preset": "veryfast"}
    pictures = itertools.islice(_decoded(picture), frames)
    first = next(pictures, None)
    if first is None:
        raise UnusableInputError(f"{picture.path} can't be decoded. Restore it from a copy.")
    with av.open(str(target), "w", format="mp4", options={"movflags": "faststart"}) as written:
        out: Any = written.add_stream("libx264", rate=rate, options=options)
        out.height, out.width = (n - n % 2 for n in first.shape[:2])
        out.pix_fmt = SUBSAMPLED
        out.codec_context.time_base = 1 / (rate * TICKS_PER_FRAME)
        for n, image in enumerate(itertools.chain([first], pictures)):
            frame = av.VideoFrame.from_ndarray(image[: out.height, : out.width], format="rgb24")
            frame.pts, frame.time_base = n * TICKS_PER_FRAME, out.codec_context.time_base
            written.mux(out.encode(frame))
        written.mux(out.encode(None))


def _decoded(picture: CameraVideo) -> Iterator[Image]:
    """Yield pictures from the first one on, up to where the file may be torn."""
    with open_video(picture.path) as container, contextlib.suppress(av.FFmpegError):
        stream = container.streams.video[0]
        container.seek(max(0, int(picture.start_s / stream.time_base)), stream=stream)
        for frame in container.decode(stream):
            if frame.time is None or frame.time >= picture.start_s - 0.5 / picture.fps:
                yield frame.to_ndarray(format="rgb24")
