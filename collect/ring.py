"""Pictures in memory that two processes share: some slots per camera, used in any order.

Who owns a slot is said by messages, not in the memory itself: the writer fills a free slot and
names it; the reader names it again once it has no more use for it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gaploop.core import platform_calls
from gaploop.core.types import Image

SLACK_S: Final = 10.0
"""How long the reader may fall behind before pictures are dropped [s], if memory allows."""
MOST_BYTES: Final = 1_000_000_000
"""All slots together: 10 s of two 640×480 cameras at 50 Hz take 922 MB. What was never needed is
never taken."""
MEMORY_SHARE: Final = 1 / 8
"""… nor more than this share of the machine's memory."""
LEAST_SLOTS: Final = 8
BEHIND_S: Final = 0.5
"""With pictures of so long waiting the reader is behind [s] …"""
BEHIND_SHARE: Final = 0.25
"""… or with this share of the slots, where they are few."""

type CameraSpecs = Mapping[str, Mapping[str, Any]]
"""Camera to {"width", "height", "fps"}."""


class Ring:
    """Slots for the pictures of some cameras.

    Args:
        cameras: their sizes and rates.
        handle: the file that holds the memory; a new, nameless one unless given.
        counts: camera to how many slots it has there.
    """

    def __init__(
        self,
        cameras: CameraSpecs,
        handle: int | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        shapes = {c: (int(s["height"]), int(s["width"]), 3) for c, s in cameras.items()}
        counts = _counts(cameras) if counts is None else counts
        size = sum(counts[c] * math.prod(shapes[c]) for c in cameras)
        self.handle = platform_calls.nameless_file("gaploop-pictures") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, max(size, 1))
        memory = np.frombuffer(mmap.mmap(self.handle, max(size, 1)), dtype=np.uint8)
        self.slots: dict[str, Image] = {}
        """Camera to its slots, shape (slots, height, width, 3)."""
        self.behind: dict[str, int] = {}
        """Camera to how many of them wait where the reader is behind."""
        start = 0
        for camera, shape in shapes.items():
            length = counts[camera] * math.prod(shape)
            self.slots[camera] = memory[start : start + length].reshape(counts[camera], *shape)
            start += length
            few = BEHIND_SHARE * counts[camera], BEHIND_S * cameras[camera]["fps"]
            self.behind[camera] = max(2, round(min(few)))

    def close(self) -> None:
        """Close the file; the memory lives as long as somebody maps it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _counts(cameras: CameraSpecs) -> dict[str, int]:
    """Return how many slots each camera gets."""
    rate_bytes_s = sum(3 * s["height"] * s["width"] * s["fps"] for s in cameras.values())
    most_bytes = min(MOST_BYTES, MEMORY_SHARE * platform_calls.memory_bytes())
    slack_s = min(SLACK_S, most_bytes / max(rate_bytes_s, 1))
    return {c: max(LEAST_SLOTS, int(slack_s * s["fps"])) for c, s in cameras.items()}
