"""What a video file holds and when each picture is shown, without decoding it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.video import open_video


@dataclass(frozen=True)
class VideoIndex:
    """What a video file holds, without decoding it.

    Attributes:
        times_s: when each picture is shown, in order [s]; None where the file wasn't read.
        frames: number of pictures.
        size: width and height [pixels].
        rate_hz: average rate, as decoders compute it [Hz].
    """

    times_s: NDArray[np.float64] | None
    frames: int
    size: tuple[int, int]
    rate_hz: float

    @property
    def spacing_hz(self) -> float:
        """Rate at which pictures follow each other [Hz]; 0 where that isn't known."""
        if self.times_s is None or len(self.times_s) < 2:
            return 0.0
        step_s = float(np.median(np.diff(self.times_s)))
        return 1 / step_s if step_s > 0 else 0.0


def video_index(path: Path, whole: bool = True) -> VideoIndex:
    """Read what a video file holds.

    Args:
        path: the file.
        whole: read every packet; otherwise the header and the last packets only.

    Raises:
        UnusableInputError: it can't be opened or read.
    """
    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            size = (int(stream.width), int(stream.height))
            rate = float(stream.average_rate or 0)
            if whole or not stream.frames:
                times = _times(container, stream)
                return VideoIndex(times, len(times), size, rate)
            frames = int(stream.frames)
            last = (frames - 1) / rate if rate else 0.0
            container.seek(round(last / stream.time_base), stream=stream)
            if not len(_times(container, stream)):
                raise UnusableInputError(f"{path}: its last pictures are missing.")
            return VideoIndex(None, frames, size, rate)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise UnusableInputError(f"{path} can't be read ({error}).") from None


def _times(container: Any, stream: Any) -> NDArray[np.float64]:
    packets = (p for p in container.demux(stream) if p.size and not p.is_corrupt)
    ticks = [p.pts for p in packets if p.pts is not None]
    return np.sort(np.asarray(ticks, dtype=np.float64)) * float(stream.time_base)
