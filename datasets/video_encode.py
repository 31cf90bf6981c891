"""Pictures of a video that can't be cut packet by packet: decoded, and encoded by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.video import TICKS_PER_FRAME, open_video, reading

_ENCODERS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "h264": ("libx264", {"crf": "16", "g": "2", "bf": "0", "preset": "medium"}),
    "hevc": ("libx265", {"crf": "18", "g": "2", "bf": "0", "x265-params": "log-level=error"}),
    "av1": ("libsvtav1", {"crf": "20", "g": "2", "preset": "8"}),
}
"""Codec to encoder and options: key frames as close as in LeRobot, finer than it by default."""


def encode_part(source: Path, start_s: float, frames: int, fps: float, target: Path) -> None:
    """Write `frames` pictures of `source` from `start_s` [s] on to an mp4 of their own.

    Raises:
        UnusableInputError: there are fewer, the file is damaged, or can't be encoded here.
    """
    rate = Fraction(fps).limit_denominator(1001)
    with open_video(source) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        if codec not in _ENCODERS:
            raise UnusableInputError(
                f"{source} can't be encoded again: its codec is {codec}, which must be one of "
                f"{', '.join(_ENCODERS)}. Convert it first."
            )
        with av.open(str(target), "w", format="mp4") as written:
            encoder, options = _ENCODERS[codec]
            out: Any = written.add_stream(encoder, rate=rate, options=options)
            out.width, out.height = stream.codec_context.width, stream.codec_context.height
            out.pix_fmt = stream.codec_context.pix_fmt
            out.codec_context.time_base = 1 / (rate * TICKS_PER_FRAME)
            count = 0
            for frame in _pictures(container, source, start_s, frames, fps):
                frame.pts, frame.time_base = count * TICKS_PER_FRAME, out.codec_context.time_base
                frame.pict_type = 0  # the source's key frames are not the encoder's
                written.mux(out.encode(frame))
                count += 1
            written.mux(out.encode(None))
    if count != frames:
        raise UnusableInputError(
            f"{source} holds {count} pictures from {start_s:g} s on, not {frames}. Restore it."
        )


def _pictures(
    container: Any, source: Path, start_s: float, frames: int, fps: float
) -> Iterator[Any]:
    stream = container.streams.video[0]
    left = frames
    with reading(source):
        container.seek(max(0, int(start_s / stream.time_base)), stream=stream)
        for frame in container.decode(stream):
            if frame.time is None or frame.time < start_s - 0.5 / fps:
                continue
            if left == 0:
                return
            left -= 1
            yield frame
