"""Videos into pictures, as LeRobot's reader would return them for every row.

The same decoder, the same choice of the nearest frame in single precision, the same tolerance;
but each file is opened once and decoded from front to back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np
from lerobot.datasets.video_utils import (
    FrameTimestampError,
    VideoDecoderCache,
    decode_video_frames_torchcodec,
)
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.datasets.cache.packs import Int64Array
from gaploop.datasets.video import open_video

JUMP_S: Final = 5.0
"""Pictures that nobody wants are decoded up to this long a stretch [s], and jumped over beyond."""
AT_ONCE: Final = 32
"""Pictures asked of torchcodec in one call."""


@dataclass(frozen=True)
class Clip:
    """The pictures of one episode and camera in a video file.

    Attributes:
        episode: episode index.
        camera: feature.
        video: name of the file, relative to the dataset.
        times_s: when each row's picture is shown in the file [s], shape (n,).
        rows: rows of the loaded table, shape (n,).
        shape: height and width as `meta/info.json` says [px].
    """

    episode: int
    camera: str
    video: str
    times_s: NDArray[np.float64]
    rows: Int64Array
    shape: tuple[int, int]


@dataclass(frozen=True)
class Decoding:
    """How videos are read; as in `LeRobotDataset`.

    Attributes:
        root: dataset folder.
        backend: LeRobot's name of the decoder.
        tolerance_s: how far a picture may be from the time of its row [s].
        size: height and width that pictures are scaled to, or None.
    """

    root: Path
    backend: str
    tolerance_s: float
    size: tuple[int, int] | None


def scaled(picture: Image, size: tuple[int, int] | None) -> Image:
    """Return an RGB picture (height, width, 3) scaled to a size, by averaging over areas."""
    if size is None or picture.shape[:2] == size:
        return picture
    height, width = size
    result = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(result, dtype=np.uint8)


def decoded(clips: Sequence[Clip], decoding: Decoding) -> Iterator[tuple[Clip, Iterator[Image]]]:
    """Yield each clip of one video file with its pictures, to be taken in that order.

    Args:
        clips: in order of time.

    Raises:
        UnusableInputError: the file can't be read, or lacks a picture for some row.
    """
    path = decoding.root / clips[0].video
    if decoding.backend == "torchcodec":
        # Not in LeRobot's common cache of decoders: worker processes would share its file handles.
        with contextlib.closing(_Decoders()) as decoders:
            yield from ((c, _by_torchcodec(path, c, decoding, decoders)) for c in clips)
        return
    with open_video(path) as container:
        stream = _Frames(container)
        for clip in clips:
            yield clip, _in_order(path, stream, clip, decoding)


class _Frames:
    """The frames of an open video in order of time, around a moving point in time."""

    def __init__(self, container: Any) -> None:
        self._container, self._stream = container, container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._frames: Iterator[Any] = iter(())
        self.before: Any = None
        self.after: Any = None
        self._at_s = -np.inf

    def go_to(self, time_s: float) -> None:
        """Make `before` and `after` the neighbours of a time; they show None past either end."""
        if not self._at_s <= time_s <= self._at_s + JUMP_S:
            self._seek(time_s)
        self._at_s = time_s
        while self.after is not None and self.time_s(self.after) < time_s:
            self.before, self.after = self.after, self._next()

    def time_s(self, frame: Any) -> float:
        """Return when a frame is shown [s]."""
        return float(frame.pts * self._stream.time_base)

    def _seek(self, time_s: float) -> None:
        # As LeRobot: to the key frame before, with a margin of one tick.
        tick = round(time_s / self._stream.time_base) - 1
        self._container.seek(tick, backward=True, any_frame=False, stream=self._stream)
        self._frames = iter(self._container.decode(self._stream))
        self.before, self.after = None, self._next()

    def _next(self) -> Any:
        return next((f for f in self._frames if f.pts is not None), None)


def _in_order(path: Path, frames: _Frames, clip: Clip, decoding: Decoding) -> Iterator[Image]:
    shown, picture = None, None
    try:
        for k, time_s in enumerate(clip.times_s.tolist()):
            frames.go_to(time_s)
            near = [f for f in (frames.before, frames.after) if f is not None]
            # In single precision, as LeRobot compares; the earlier one wins a tie.
            away = [abs(np.float32(time_s) - np.float32(frames.time_s(f))) for f in near]
            best = int(np.argmin(away)) if away else -1
            if not away or not away[best] < np.float32(decoding.tolerance_s):
                raise _no_picture(path, clip, k, away)
            if near[best] is not shown or picture is None:
                shown = near[best]
                picture = scaled(shown.to_ndarray(format="rgb24"), decoding.size)
            yield picture
    except av.FFmpegError as error:
        raise UnusableInputError(
            f"{path} can't be decoded ({error}). Restore it, or leave episode {clip.episode} out."
        ) from None


def _no_picture(path: Path, clip: Clip, k: int, away: Sequence[Any]) -> UnusableInputError:
    nearest = f"the nearest is {min(away):.4f} s off" if away else "the video ends before"
    return UnusableInputError(
        f"{path} has no picture for frame {k} of episode {clip.episode} at "
        f"{clip.times_s[k]:.4f} s; {nearest}. See gaploop check, or leave the episode out with "
        "--dataset.episodes."
    )


class _Decoders(VideoDecoderCache):  # type: ignore[misc]
    def close(self) -> None:
        self.clear()


def _by_torchcodec(
    path: Path, clip: Clip, decoding: Decoding, decoders: VideoDecoderCache
) -> Iterator[Image]:
    for first in range(0, len(clip.times_s), AT_ONCE):
        times_s = clip.times_s[first : first + AT_ONCE].tolist()
        try:
            found = decode_video_frames_torchcodec(
                path, times_s, decoding.tolerance_s, decoder_cache=decoders, return_uint8=True
            )
        except (FrameTimestampError, RuntimeError, IndexError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UnusableInputError(
                f"{path}: episode {clip.episode} can't be decoded ({reason}). See gaploop check."
            ) from None
        for picture in found.permute(0, 2, 3, 1).numpy():
            yield scaled(picture, decoding.size)
