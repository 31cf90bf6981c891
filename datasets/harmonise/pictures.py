"""Pictures of a take at another rate, cropped or scaled: cut out where they stay, else encoded."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.datasets.harmonise.spec import CameraSpec
from gaploop.datasets.video import TICKS_PER_FRAME, VideoRange, VideoWriter

_OPTIONS: Final = {"crf": "16", "g": "2", "bf": "0", "preset": "medium"}
"""Key frames as close as in LeRobot, no reordering, finer than LeRobot's default."""

type Source = tuple[Path, float, int, float]
"""File, start [s], frames, fps of a take's pictures."""


def convert_video(
    source: Source, index: NDArray[np.int64], change: CameraSpec, fps: float, target: Path
) -> None:
    """Write the chosen pictures of a take, changed, as a video of its own.

    Where every picture stays as it is, packets are cut out without decoding, if they can be.

    Args:
        source: the pictures.
        index: which of them, never falling, shape (n,).
        change: crop and size.
        fps: rate of the new video [Hz].
        target: the file to write; H.264 where pictures are encoded.

    Raises:
        UnusableInputError: the source holds fewer pictures.
    """
    path, start_s, frames, source_fps = source
    same = len(index) == frames and source_fps == fps and not change.touches_pictures
    if same and _cut(source, target):
        return
    pictures = VideoRange(path, start_s, frames, source_fps)()
    _encode((_changed(p, change) for p in _chosen(pictures, index, source)), fps, target)


def _cut(source: Source, target: Path) -> bool:
    path, start_s, frames, fps = source
    try:
        with VideoWriter(target, fps) as writer:
            writer.append_part(path, start_s, frames)
    except UnusableInputError:  # no key frame there, or reordered: it has to be decoded
        target.unlink(missing_ok=True)
        return False
    return True


def _chosen(pictures: Iterator[Image], index: NDArray[np.int64], source: Source) -> Iterator[Image]:
    at, picture = -1, None
    for wanted in index.tolist():
        while at < wanted:
            picture = next(pictures, None)
            at += 1
        if picture is None:
            path, start_s, frames, _ = source
            raise UnusableInputError(
                f"{path} holds {at} pictures from {start_s:g} s on, not {frames}. Restore it."
            )
        yield picture


def _changed(picture: Image, change: CameraSpec) -> Image:
    import cv2

    if change.crop is not None:
        x, y, w, h = change.crop
        picture = picture[y : y + h, x : x + w]
    if change.resize is not None and change.resize != picture.shape[1::-1]:
        smaller = change.resize[0] < picture.shape[1]
        way = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
        picture = cv2.resize(picture, change.resize, interpolation=way)
    return np.ascontiguousarray(picture)


def _encode(pictures: Iterator[Image], fps: float, target: Path) -> None:
    rate = Fraction(fps).limit_denominator(1001)
    with av.open(str(target), "w", format="mp4") as container:
        out: Any = None
        for count, picture in enumerate(pictures):
            if out is None:
                out = container.add_stream("libx264", rate=rate, options=_OPTIONS)
                out.height, out.width = picture.shape[:2]
                out.pix_fmt = "yuv420p"
                out.codec_context.time_base = 1 / (rate * TICKS_PER_FRAME)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = count * TICKS_PER_FRAME, out.codec_context.time_base
            container.mux(out.encode(frame))
        if out is not None:
            container.mux(out.encode(None))
