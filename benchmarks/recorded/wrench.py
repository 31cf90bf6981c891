"""What describes a short window of force and torque at the wrist.

Nothing here is fitted. Every number comes from one window alone, so a fold of a cross-validation
can't hear of another. Axes stay apart because labels may be about directions (a collision to the
left); magnitudes and shares are there because others aren't.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.types import FloatArray

LEAST_READING: Final = 1.0
"""Smallest force or torque that a direction or a share is taken of: the set's resolution."""
PARTS: Final = 3
"""Early, middle and late part of a window."""
LINES: Final = 4
"""Spectral lines above the mean."""


def signed_log(values: FloatArray) -> FloatArray:
    """Return sign(x) log(1 + |x|): a push of 2,000 N shouldn't drown one of 20."""
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


def wrench_features(windows: FloatArray) -> FloatArray:
    """Describe windows of one length.

    Args:
        windows: Fx Fy Fz [N], Tx Ty Tz [N m], shape (n_windows, n_samples, 6), 6 samples or more.

    Returns:
        Shape (n_windows, n_features), all finite.
    """
    deviation = windows - np.median(windows, axis=1, keepdims=True)
    series = np.concatenate([windows, _norms(windows), _norms(deviation)[..., :2]], axis=2)
    blocks = [
        *_levels(series),
        *_changes(series),
        *_shares(_norms(windows)[..., :2]),
        *_shares(_norms(deviation)[..., :2]),
        *_directions(windows, deviation),
    ]
    return np.concatenate([b.reshape(len(windows), -1) for b in blocks], axis=1)


def force_energy(windows: FloatArray) -> FloatArray:
    """Return log of RMS and of peak force, shape (n_windows, 2).

    How hard and how long the arm pressed, in a scale where twice is always the same step. It needs
    no axes and no rest reading, so it carries over from one task of an arm to another.
    """
    force_n = np.linalg.norm(windows[..., :3], axis=2)
    rms_n, peak_n = np.sqrt((force_n**2).mean(axis=1)), force_n.max(axis=1)
    return np.asarray(np.log(np.maximum(np.stack([rms_n, peak_n], axis=1), LEAST_READING)))


def _norms(windows: FloatArray) -> FloatArray:
    """Return |F|, |T|, |Fxy|, |Txy|, shape (n_windows, n_samples, 4)."""
    parts = (slice(0, 3), slice(3, 6), slice(0, 2), slice(3, 5))
    return np.stack([np.linalg.norm(windows[..., p], axis=2) for p in parts], axis=2)


def _levels(series: FloatArray) -> list[FloatArray]:
    """Return how large each series is: overall, at both ends, early, middle, late."""
    return [
        series.mean(axis=1),
        np.median(series, axis=1),
        series.std(axis=1),
        series.min(axis=1),
        series.max(axis=1),
        series[:, 0],
        series[:, -1],
        *(part.mean(axis=1) for part in np.array_split(series, PARTS, axis=1)),
    ]


def _changes(series: FloatArray) -> list[FloatArray]:
    """Return how each series changes: steps, trend, its peak and when, its spectrum."""
    n = series.shape[1]
    step = np.diff(series, axis=1)
    time = np.linspace(-1.0, 1.0, n)
    away = series - np.median(series, axis=1, keepdims=True)
    at = np.abs(away).argmax(axis=1)
    spectrum = np.abs(np.fft.rfft(series - series.mean(axis=1, keepdims=True), axis=1))
    return [
        np.abs(step).mean(axis=1),
        np.abs(step).max(axis=1),
        step.max(axis=1),
        step.min(axis=1),
        np.einsum("wns,n->ws", series, time) / (time @ time),
        np.take_along_axis(away, at[:, None], axis=1)[:, 0],
        at / (n - 1),
        series.argmax(axis=1) / (n - 1),
        series.argmin(axis=1) / (n - 1),
        (np.sign(step[:, 1:]) != np.sign(step[:, :-1])).mean(axis=1),
        spectrum[:, 1 : 1 + LINES],
    ]


def _shares(norms: FloatArray) -> list[FloatArray]:
    """Return the shape of magnitudes whatever their scale, and torque against force."""
    peak = np.maximum(norms.max(axis=1), LEAST_READING)
    share = norms / peak[:, None]
    log = np.log1p(norms)
    return [
        share.mean(axis=1),
        np.median(share, axis=1),
        np.sort(share, axis=1)[:, -3],
        (share > 0.5).mean(axis=1),
        (share > 0.2).mean(axis=1),
        share[:, 0],
        share[:, -1],
        log.max(axis=1)[:, 1] - log.max(axis=1)[:, 0],
        log.mean(axis=1)[:, 1] - log.mean(axis=1)[:, 0],
    ]


def _directions(windows: FloatArray, deviation: FloatArray) -> list[FloatArray]:
    """Return where force and torque point: on average, at their peaks, and how steadily."""
    blocks = []
    for axes in (slice(0, 3), slice(3, 6)):
        whole, away = windows[..., axes], deviation[..., axes]
        at = np.linalg.norm(away, axis=2).argmax(axis=1)
        peak = np.take_along_axis(away, at[:, None, None], axis=1)[:, 0]
        pointing = _unit(whole)
        steady = (pointing[:, 1:] * pointing[:, :-1]).sum(axis=2).mean(axis=1)
        blocks += [_unit(whole.mean(axis=1)), _unit(away.mean(axis=1)), _unit(peak), steady]
    return blocks


def _unit(vectors: FloatArray) -> FloatArray:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, LEAST_READING))
