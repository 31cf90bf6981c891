"""Causal filters that a take and a running rollout share: the same numbers either way."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray

SHAKE_HZ: Final = 2.5
"""An arm that is told to move smoothly has little motion above this [Hz]."""


@lru_cache(maxsize=8)
def _high_pass(rate_hz: float) -> tuple[FloatArray, FloatArray]:
    """Return numerator and denominator of a second-order Butterworth high pass."""
    from scipy.signal import butter

    b, a = butter(2, min(SHAKE_HZ, 0.4 * rate_hz), "high", fs=rate_hz)
    return np.asarray(b, dtype=np.float64), np.asarray(a, dtype=np.float64)


def high_pass(values: FloatArray, rate_hz: float) -> FloatArray:
    """Return `values`, shape (n, k), without what is slower than `SHAKE_HZ`."""
    from scipy.signal import lfilter

    return np.asarray(lfilter(*_high_pass(round(rate_hz, 6)), values, axis=0))


def speed(values: FloatArray, rate_hz: float) -> FloatArray:
    """Return the backward difference per second, shape (n, k); 0 in the first row."""
    return np.diff(values, axis=0, prepend=values[:1]) * rate_hz


class HighPass:
    """`high_pass`, one sample at a time.

    Args:
        rate_hz: samples per second.
        width: numbers per sample.
    """

    def __init__(self, rate_hz: float, width: int) -> None:
        b, a = _high_pass(round(rate_hz, 6))
        self._b, self._a = b.tolist(), a.tolist()
        self._first, self._second = np.zeros(width), np.zeros(width)

    def step(self, x: FloatArray) -> FloatArray:
        """Return the next filtered sample, shape (width,)."""
        b, a = self._b, self._a
        y = b[0] * x + self._first  # direct form II, transposed
        self._first = b[1] * x - a[1] * y + self._second
        self._second = b[2] * x - a[2] * y
        return np.asarray(y)
