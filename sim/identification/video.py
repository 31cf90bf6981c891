"""What recording does to pictures: they are encoded, with less colour than brightness."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Final

import av
import numpy as np

from gaploop.core.messages import FloatArray, Image

OPTIONS: Final = {"preset": "ultrafast", "tune": "zerolatency", "g": "10"}
"""As takes are encoded."""


def recorded(pictures: Sequence[Image], held: int = 1) -> list[Image]:
    """Return pictures of one size as they come back from a take's video, in order.

    Each is shown for `held` rows: what stands still comes out finer from row to row.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=50, options=OPTIONS)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for picture in (p for p in pictures for _ in range(held)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return frames[held - 1 :: held]


def restored(picture: Image) -> FloatArray:
    """Return a recorded picture's colours as they went in, RGB, shape (height, width, 3).

    Turned into brightness and colour and back, levels come out one or two lower, depending on all
    three. Only areas of one colour: what is lost at edges is lost.
    """
    flat = picture.reshape(-1, 3).astype(np.float64)
    return (flat + _terms(flat) @ _missing()).reshape(picture.shape)


SETTLED: Final = 5
"""Rows after which a picture that stands still comes out as fine as it will."""
PATCHES: Final = 16
PATCH_PX: Final = 16


@cache
def _missing() -> FloatArray:
    """Return what is missing of recorded colours, as factors of `_terms`, shape (10, 3)."""
    colours = np.random.default_rng(0).integers(8, 248, (PATCHES, PATCHES, 3)).astype(np.uint8)
    board = colours.repeat(PATCH_PX, axis=0).repeat(PATCH_PX, axis=1)
    back = recorded([board], SETTLED)[0][PATCH_PX // 2 :: PATCH_PX, PATCH_PX // 2 :: PATCH_PX]
    held = back.reshape(-1, 3).astype(np.float64)
    factors, *_ = np.linalg.lstsq(_terms(held), colours.reshape(-1, 3) - held, rcond=None)
    return np.asarray(factors)


def _terms(flat: FloatArray) -> FloatArray:
    """Return what colours are weighed by, up to their products, shape (n, 10)."""
    x = flat / 255.0
    products = [x[:, i] * x[:, j] for i in range(3) for j in range(i, 3)]
    return np.stack([np.ones(len(x)), *x.T, *products], 1)
