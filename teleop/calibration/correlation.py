"""The shift between two signals, by cross-correlation of pieces, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gaploop.core.types import FloatArray

SEGMENT_S: Final = 1.0
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

    def peak(self) -> tuple[float, float]:
        """Return the best shift over all pieces [s] and its correlation."""
        shifts_s, correlations = self.peaks(np.ones((1, len(self.driver))))
        return float(shifts_s[0]), float(correlations[0])

    def peaks(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return best shifts [s] and their correlations, each of shape (draws,).

        Args:
            counts: how often each piece counts in each draw, shape (draws, pieces).
        """
        energy = (counts @ self.driver)[:, None] * (counts @ self.response)
        r = counts @ self.products / np.sqrt(np.maximum(energy, 1e-300))
        inner = r[:, 1:-1]
        top = (inner >= r[:, :-2]) & (inner >= r[:, 2:])
        best = np.where(top, inner, -np.inf).max(axis=1, keepdims=True)
        # Periodic motion agrees at several shifts: the nearest that is as good is the one.
        good = top & (inner >= 0.98 * best)
        shift = np.arange(1, r.shape[1] - 1) + self.first
        at = np.where(good, np.abs(shift), np.inf).argmin(axis=1)
        row = np.arange(len(r))
        before, here, after = r[row, at], r[row, at + 1], r[row, at + 2]
        bend = before - 2 * here + after
        # A parabola through the three: what is correlated is smooth over many periods.
        between = np.where(bend < 0, 0.5 * (before - after) / np.where(bend < 0, bend, 1.0), 0.0)
        found = here - 0.25 * (before - after) * between
        found = np.where(np.isfinite(best[:, 0]), found, np.nan)
        return (shift[at] + between) * self.period_s, found


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
    low, high = np.percentile(pieces.peaks(draws(len(pieces.driver), seed))[0], INTERVAL)
    interval_s = float(low) - off_s, float(high) - off_s
    return Lag(best_s - off_s, interval_s, correlation, len(pieces.driver))


def draws(pieces: int, seed: int) -> FloatArray:
    """Return how often each piece counts in each bootstrap draw, shape (BOOTSTRAPS, pieces)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), BOOTSTRAPS).astype(np.float64)


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
