"""Statistics of pictures in [0, 1], as LeRobot states them, from how often each value occurs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE
from gaploop.core.messages import Image

QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_NAMES: Final = ("min", "max", "mean", "std", *QUANTILES)
MOST_PICTURES: Final = 200
"""LeRobot takes 100 pictures of an episode, of more than 500 rows n^0.75; with these it is 100 to
200 of any episode that is longer."""

type Stats = dict[str, NDArray[Any]]
"""Statistic to its value in each channel, shape (3, 1, 1); `count` of the pictures, shape (1,)."""


def pixel_counts(picture: Image) -> NDArray[np.int64]:
    """Return how often each value occurs in a picture, thinned by LeRobot's rule.

    Args:
        picture: RGB, uint8, shape (height, width, 3).

    Returns:
        shape (3, 256).
    """
    height, width = picture.shape[:2]
    step = int((width if width > height else height) / 150) if max(width, height) >= 300 else 1
    thinned = picture[::step, ::step].reshape(-1, picture.shape[2]).T
    return np.stack([np.bincount(channel, minlength=256) for channel in thinned])


def statistics_of(counts: NDArray[np.int64], pictures: int) -> Stats:
    """Return statistics of pixels; `counts` are those of all `pictures`, shape (3, 256)."""
    values, below = np.arange(256) / 255.0, np.cumsum(counts, axis=1)
    n = below[:, -1:]
    mean = (counts * values).sum(axis=1, keepdims=True) / n
    spread = (counts * (values - mean) ** 2).sum(axis=1, keepdims=True) / n

    def ranked(place: NDArray[Any]) -> NDArray[np.float64]:  # the value at a place in rising order
        return np.asarray((below <= place).sum(axis=1, keepdims=True) / 255.0)

    found = {"min": ranked(0 * n), "max": ranked(n - 1), "mean": mean, "std": np.sqrt(spread)}
    for name, level in QUANTILES.items():
        place = level * (n - 1)
        low, high = ranked(np.floor(place)), ranked(np.ceil(place))
        found[name] = low + (high - low) * (place - np.floor(place))
    return {**{k: v[:, :, None] for k, v in found.items()}, "count": np.array([pictures])}


class PictureSample:
    """Evenly spread pictures of an episode whose length isn't known yet, as counts of pixels."""

    def __init__(self) -> None:
        self._counts: list[NDArray[np.int64]] = []
        self._seen, self._every = 0, 1

    def add(self, picture: Image) -> None:
        """Take note of the next picture, or pass it over; its memory isn't kept."""
        if self._seen % self._every == 0:
            self._counts.append(pixel_counts(picture))
            if len(self._counts) > MOST_PICTURES:
                del self._counts[1::2]
                self._every *= 2
        self._seen += 1

    def stated(self) -> dict[str, list[float]]:
        """Return the statistics as a take's seal states them; {} where there was no picture."""
        if not self._counts:
            return {}
        found = statistics_of(np.sum(self._counts, axis=0), len(self._counts))
        return {name: value.reshape(-1).tolist() for name, value in found.items()}


def from_stated(value: Any) -> Stats | None:
    """Return what `PictureSample.stated` wrote; None where it is missing or isn't plausible."""
    try:
        found = {name: np.array(value[name], np.float64).reshape(3, 1, 1) for name in _NAMES}
        count = int(value["count"][0])
    except DAMAGE:
        return None
    if count < 1 or not all(((v >= 0) & (v <= 1)).all() for v in found.values()):
        return None
    return {**found, "count": np.array([count])}
