"""What recording does to pictures: they are encoded, with less colour than brightness."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import av
import numpy as np

from gaploop.core.types import Image

OPTIONS: Final = {"preset": "ultrafast", "tune": "zerolatency", "g": "10"}
"""As takes are encoded."""


def recorded(pictures: Sequence[Image]) -> list[Image]:
    """Return pictures of one size as they come back from a take's video, in order."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=50, options=OPTIONS)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
