"""The shift between two signals, by cross-correlation of pieces, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from gaploop.core.types import FloatArray

SEGMENT_S: Final = 2.0
"""Length of the pieces that are correlated, and resampled for the interval [s]."""
EARLIEST_S: Final = -0.1
LATEST_S: Final = 0.5
"""Where the shift is looked for [s]."""
BOOTSTRAPS: Final = 400
INTERVAL: Final = (2.5, 97.5)
"""Percentiles of the 95 % interval."""


@dataclass(frozen=True)
class Lag:
    """One shift between two signals.

    Attributes:
        latency_s: the shift [s].
        interval_s: its 95 % interval, by bootstrap over pieces [s].
        correlation: of the signals at that shift.
        segments: pieces that it comes from.
    """

    latency_s: float
    interval_s: tuple[float, float]
    correlation: float
    segments: int

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "latency_s": self.latency_s,
            "interval_s": list(self.interval_s),
            "correlation": self.correlation,
            "segments": self.segments,
        }


@dataclass(frozen=True)
class Pieces:
    """Cross-correlations of pieces of two signals.

    Attributes:
        products: sum of products at each shift, shape (pieces, shifts).
        driver: energy of the first signal, shape (pieces,).
        response: energy of the second at each shift, shape (pieces, shifts).
        first: shift of the first column, in periods.
        period_s: between two columns [s].
    """

    products: FloatArray
    driver: FloatArray
    response: FloatArray
    first: int
    period_s: float

    @classmethod
    def join(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return the pieces of several records of one rate."""
        return cls(
            np.concatenate([p.products for p in parts]),
            np.concatenate([p.driver for p in parts]),
            np.concatenate([p.response for p in parts]),
            parts[0].first,
            parts[0].period_s,
        )

    def peak(self, which: NDArray[np.int64] | slice = slice(None)) -> tuple[float, float]:
        """Return the best shift [s] and its correlation, over the pieces `which`."""
        energy = self.driver[which].sum() * self.response[which].sum(axis=0)
        r = self.products[which].sum(axis=0) / np.sqrt(np.maximum(energy, 1e-300))
        # Periodic motion agrees at several shifts: the first that is as good is the one.
        inside = np.flatnonzero((r[1:-1] >= r[:-2]) & (r[1:-1] >= r[2:])) + 1
        if not len(inside):
            return float(self.first + int(np.argmax(r))) * self.period_s, float("nan")
        good = inside[r[inside] >= 0.98 * r[inside].max()]
        at = int(good[np.argmin(np.abs(good + self.first))])
        spline = CubicSpline(np.arange(len(r)), r)
        turning = spline.derivative().roots(extrapolate=False)
        near = turning[np.abs(turning - at) <= 1.0]
        if len(near):
            at = near[int(np.argmax(spline(near)))]
        return float((at + self.first) * self.period_s), float(spline(at))


def correlate(
    driver: FloatArray, response: FloatArray, ok: Callable[[slice], bool], period_s: float
) -> Pieces:
    """Correlate pieces of two evenly sampled signals, shape (n,), where `ok` and moving.

    Args:
        driver: what comes first.
        response: what follows.
        ok: whether the piece that begins at a sample counts: a function of slice.
        period_s: between samples [s].
    """
    n, length = len(driver), round(SEGMENT_S / period_s)
    first, last = round(EARLIEST_S / period_s), round(LATEST_S / period_s)
    products, energies, responses = [], [], []
    for start in range(-first, n - length - last, length):
        piece = slice(start, start + length)
        window = response[start + first : start + last + length]
        if not ok(piece) or not np.isfinite(window).all():
            continue
        x = driver[piece] - driver[piece].mean()
        shifted = sliding_window_view(window, length)
        shifted = shifted - shifted.mean(axis=1, keepdims=True)
        products.append(shifted @ x)
        energies.append(float(x @ x))
        responses.append((shifted**2).sum(axis=1))
    width = last - first + 1
    return Pieces(
        np.array(products).reshape(-1, width),
        np.array(energies),
        np.array(responses).reshape(-1, width),
        first,
        period_s,
    )


def lag_of(pieces: Pieces, seed: int = 0, off_s: float = 0.0) -> Lag:
    """Return the shift between two signals with its interval; `off_s` [s] is taken off."""
    best_s, correlation = pieces.peak()
    rng, n = np.random.default_rng(seed), len(pieces.driver)
    drawn = [pieces.peak(rng.integers(0, n, n))[0] for _ in range(BOOTSTRAPS)]
    low, high = np.percentile(drawn, INTERVAL)
    return Lag(best_s - off_s, (float(low) - off_s, float(high) - off_s), correlation, n)


def resampled(t_s: FloatArray, values: FloatArray, grid_s: FloatArray) -> FloatArray:
    """Return values, shape (n,), on an even grid; NaN where the record has a hole.

    Args:
        t_s: their times [s], shape (n,), rising.
        values: may hold NaN.
        grid_s: where they are wanted [s].
    """
    good = np.isfinite(values)
    if good.sum() < 2:
        return np.full(len(grid_s), np.nan)
    times = t_s[good]
    even = np.interp(grid_s, times, values[good], left=np.nan, right=np.nan)
    after = np.clip(np.searchsorted(times, grid_s), 1, len(times) - 1)
    hole = times[after] - times[after - 1] > 5 * float(np.median(np.diff(times)))
    return np.asarray(np.where(hole, np.nan, even))
